//! Bandwidths of ports: which the data plane is told.

use super::*;
use flow::{PortRates, RateLimit};

fn until(rig: &Rig, port: PortId, from: Option<(u64, u32)>, to: Option<(u64, u32)>) {
    let limit = |(bits_per_second, burst)| RateLimit {
        bits_per_second,
        burst,
    };
    let wanted = PortRates {
        from: from.map(limit),
        to: to.map(limit),
        ..PortRates::default()
    };
    let told = || rig.plane.lock().unwrap().rates.get(&port).copied();
    wait("the bandwidths", || {
        (told().unwrap_or_default() == wanted).then_some(())
    });
}

fn set(rig: &Rig, changes: PortChanges) {
    rig.call(Verb::PortSet {
        port: "a".into(),
        changes,
    });
}

/// By command and by reload, in place; a data plane and a control process that are new agree on them.
#[test]
fn bandwidths_change_in_place() {
    let (rig, a, b) = two_ports();
    running(&rig, 2);
    set(
        &rig,
        PortChanges {
            max_rate_from: Some("100M".parse().unwrap()),
            max_rate_to: Some("1G".parse().unwrap()),
            ..PortChanges::default()
        },
    );
    until(
        &rig,
        a,
        Some((100_000_000, 125_000)),
        Some((1_000_000_000, 1_250_000)),
    );
    set(
        &rig,
        PortChanges {
            max_rate_to: Some("none".parse().unwrap()),
            max_burst: Some("64k".parse().unwrap()),
            ..PortChanges::default()
        },
    );
    until(&rig, a, Some((100_000_000, 64_000)), None);
    let refused = rig.refused(Verb::PortSet {
        port: "b".into(),
        changes: PortChanges {
            max_burst: Some("64k".parse().unwrap()),
            ..PortChanges::default()
        },
    });
    assert!(refused.contains("`max-burst` needs `max-rate-from`"), "{refused}");
    until(&rig, b, None, None);
    let log = std::mem::take(&mut rig.plane.lock().unwrap().log);
    assert!(
        !log.iter()
            .any(|request| matches!(request, Request::PortDel { .. })),
        "{log:?}"
    );
    // A reload drops what was set by command.
    rig.call(Verb::Reload);
    until(&rig, a, None, None);
}
