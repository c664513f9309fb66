//! Storm control: which rates the data plane is told.

use super::*;
use flow::MeterUnit;

/// Rates in packets of the meters that the data plane has, in the order of ports and classes.
fn rates(rig: &Rig) -> Vec<u32> {
    let plane = rig.plane.lock().unwrap();
    let packets = plane
        .meters
        .values()
        .filter(|spec| spec.unit == MeterUnit::Packets);
    packets.map(|spec| spec.band.expect("a limit").rate).collect()
}

/// Rates in thousands of bits, each with what its drops are counted as.
fn kilobits(rig: &Rig) -> Vec<(u32, DropReason)> {
    let plane = rig.plane.lock().unwrap();
    let bits = plane
        .meters
        .values()
        .filter(|spec| spec.unit == MeterUnit::Kilobits);
    bits.map(|spec| (spec.band.expect("a limit").rate, spec.reason))
        .collect()
}

fn until(rig: &Rig, wanted: &[u32]) {
    wait("the meters", || (rates(rig) == wanted).then_some(()));
}

fn set(rig: &Rig, port: &str, rates: &str) {
    let changes = PortChanges {
        storm_control: Some(rates.parse().unwrap()),
        ..PortChanges::default()
    };
    change(rig, port, changes);
}

fn set_bits(rig: &Rig, port: &str, rates: &str) {
    let changes = PortChanges {
        storm_control_bits: Some(rates.parse().unwrap()),
        ..PortChanges::default()
    };
    change(rig, port, changes);
}

fn change(rig: &Rig, port: &str, changes: PortChanges) {
    rig.call(Verb::PortSet {
        port: port.into(),
        changes,
    });
}

/// Ports have a limit unless it is switched off, and frames to known stations ask none. Changes leave ports
/// and stations alone.
#[test]
fn ports_have_a_storm_rate_that_changes_in_place() {
    const USUAL: u32 = 10_000;
    let (mut rig, a, b) = two_ports();
    running(&rig, 2);
    until(&rig, &[USUAL; 6]);
    rig.add("s", "c");
    let c = rig.number("c");
    rig.set_state(c, PortState::Running);
    running(&rig, 3);
    until(&rig, &[USUAL; 9]);
    assert_eq!(rig.executed(a, 1, 0xff), [b, c].map(Action::Output));
    assert_eq!(rig.executed(b, 2, 1), [Action::Output(a)]);
    let metered = |from, to, from_port, is_metered: bool| {
        let id = control::l2::flow_id(&key(from_port, from, to));
        let plane = rig.plane.clone();
        wait("the flow", move || {
            let plane = plane.lock().unwrap();
            let first = plane.flows.get(&id)?.actions.first()?;
            (matches!(first, Action::Meter(_)) == is_metered).then_some(())
        });
    };
    metered(1, 0xff, a, true);
    metered(2, 1, b, false);
    set(&rig, "a", "70");
    until(&rig, &[&[70; 3][..], &[USUAL; 6]].concat());
    set(&rig, "a", "0");
    until(&rig, &[USUAL; 6]);
    metered(1, 0xff, a, false);
    set(&rig, "a", "80");
    metered(1, 0xff, a, true);
    until(&rig, &[&[80; 3][..], &[USUAL; 6]].concat());
    // Classes have rates of their own, in packets and in bits.
    set(&rig, "a", "broadcast=7,unknown=0");
    until(&rig, &[&[7, USUAL][..], &[USUAL; 6]].concat());
    set_bits(&rig, "a", "multicast=100k,unknown=100G");
    wait("the meters of bits", || {
        let wanted = [
            (100, DropReason::StormMulticast),
            (100_000_000, DropReason::StormUnknown),
        ];
        (kilobits(&rig) == wanted).then_some(())
    });
    set_bits(&rig, "a", "none");
    wait("no meters of bits", || kilobits(&rig).is_empty().then_some(()));
    set(&rig, "a", "80");
    until(&rig, &[&[80; 3][..], &[USUAL; 6]].concat());
    assert_eq!(rig.macs().len(), 2, "stations stay");
    let log = std::mem::take(&mut rig.plane.lock().unwrap().log);
    let is_removal = |request: &Request| matches!(request, Request::PortDel { .. });
    assert!(!log.iter().any(is_removal), "{log:?}");
    // One receiver is left.
    rig.call(Verb::PortDel { port: "c".into() });
    until(&rig, &[80, 80, 80, USUAL, USUAL, USUAL]);
    metered(1, 0xff, a, false);
}
