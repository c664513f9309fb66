//! Who gets the frames for an address that several ports use.

use super::mac_table::QUIET_MS;
use super::twin::{Step, World, key, plain, roomy};
use super::*;
use flow::{DropReason, PortId};
use management::{ContestedMacs, VlanConfig, VlanId};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The address that is contested.
const ADDRESS: u64 = 0x0200_0000_00ff;

/// Somebody who sends to it, and does not exist.
const GROUP: u64 = 0xffff_ffff_ffff;

/// The port of the right owner, and that of a third party who sends to it; the ports in between are rivals.
const OWNER: u32 = 0;
const SENDER: u32 = 5;

fn world(rules: SwitchRules) -> World {
    World::new(rules, &vec![plain(1000); 6])
}

/// A frame from the address enters.
fn claim(world: &mut World, port: u32) {
    let _ = world.receivers(&key(port, ADDRESS, GROUP, 0));
    world.refresh_stale();
}

/// The ports that get a frame for the address, and that of the sender's `number`th station.
fn heard_by(world: &mut World, number: u64) -> Result<BTreeSet<u32>, DropReason> {
    let receivers = world.receivers(&key(SENDER, 0x0200_0001_0000 + number, ADDRESS, 0))?;
    Ok(receivers.into_iter().map(|(port, _)| port).collect())
}

fn ports<const N: usize>(ports: [u32; N]) -> Result<BTreeSet<u32>, DropReason> {
    Ok(ports.into())
}

fn pass(world: &mut World, time_ms: u64) {
    for _ in 0..time_ms.div_ceil(1000) {
        world.step(&Step::Wait(time_ms.min(1000)));
        world.step(&Step::Age);
    }
}

/// A port that was there first holds the address against an owner that sends all the time, with few frames:
/// it answers each of the owner's until it has the address, and then keeps quiet.
#[test]
fn an_owner_that_sends_all_the_time_misses_nothing() {
    let mut world = world(roomy());
    world.switch.set_move_limit(1);
    claim(&mut world, 1);
    let (mut sent, mut missed) = (0, 0);
    for round in 0..1600 {
        claim(&mut world, OWNER);
        let alone = |receivers: Result<BTreeSet<u32>, _>| receivers == ports([1]);
        if !alone(heard_by(&mut world, 0)) {
            claim(&mut world, 1);
        }
        for number in 0..3 {
            sent += 1;
            missed += u32::from(!heard_by(&mut world, number).unwrap().contains(&OWNER));
        }
        world.step(&Step::Wait(50));
        if round % 20 == 0 {
            world.step(&Step::Age);
            world.check();
        }
    }
    println!("the owner did not get {missed} of {sent} frames for its address");
    assert_eq!(missed, 0);
}

/// What happens to a world in which rivals claim the owner's address.
#[derive(Clone, Debug)]
enum Event {
    /// A rival sends from the address.
    Rival(u32),
    Owner,
    /// The third party sends to the address, from one of many stations.
    Frame(u64),
    Wait(u64),
    Age,
    /// A rival's driver starts or stops, or its VMM disconnects.
    Ready(u32, Readiness),
    /// A rival's port is deleted, or made again.
    Port(u32, bool),
    RestartDataPlane,
}

fn event() -> impl Strategy<Value = Event> {
    use Readiness::{Connected, Disconnected, Running};
    let rival = || 1..SENDER;
    let readiness = prop_oneof![3 => Just(Running), 1 => Just(Connected), 1 => Just(Disconnected)];
    prop_oneof![
        8 => rival().prop_map(Event::Rival),
        3 => Just(Event::Owner),
        12 => (0..8u64).prop_map(Event::Frame),
        3 => (1..2_000u64).prop_map(Event::Wait),
        2 => (1..200_000u64).prop_map(Event::Wait),
        4 => Just(Event::Age),
        1 => (rival(), readiness).prop_map(|(port, readiness)| Event::Ready(port, readiness)),
        1 => (rival(), any::<bool>()).prop_map(|(port, there)| Event::Port(port, there)),
        1 => Just(Event::RestartDataPlane),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Whatever the rivals do and whoever came first: a port that sends at least as often as each of its
    /// rivals, and is not silent for the ageing time, gets every frame that is for it, from its first frame
    /// on.
    #[test]
    fn a_port_that_sends_as_often_as_each_rival_gets_everything(
        events in proptest::collection::vec(event(), 1..300),
        move_limit in 1..100u64,
    ) {
        let mut world = world(roomy());
        world.switch.set_move_limit(move_limit);
        // Rivals that have sent since the owner did.
        let mut ahead = BTreeSet::new();
        let (mut has_sent, mut silent_ms) = (false, 0);
        for event in events {
            match event {
                Event::Rival(port) => {
                    if has_sent && !ahead.insert(port) {
                        claim(&mut world, OWNER);
                        (silent_ms, ahead) = (0, BTreeSet::from([port]));
                    }
                    claim(&mut world, port);
                }
                Event::Owner => {
                    claim(&mut world, OWNER);
                    (has_sent, silent_ms, ahead) = (true, 0, BTreeSet::new());
                }
                Event::Frame(number) => {
                    let heard = heard_by(&mut world, number).unwrap();
                    prop_assert!(!has_sent || heard.contains(&OWNER), "{heard:?} after {ahead:?}");
                }
                Event::Wait(time) => {
                    if has_sent && silent_ms + time >= roomy().ageing_ms {
                        claim(&mut world, OWNER);
                        (silent_ms, ahead) = (0, BTreeSet::new());
                    }
                    silent_ms += time;
                    world.step(&Step::Wait(time));
                }
                Event::Age => world.step(&Step::Age),
                Event::Ready(port, readiness) => world.step(&Step::Ready(port, readiness)),
                Event::Port(port, true) => world.step(&Step::Port(port, plain(1000))),
                Event::Port(port, false) => world.step(&Step::Remove(port)),
                Event::RestartDataPlane => world.restart_data_plane(),
            }
            world.refresh_stale();
        }
    }
}

/// A station that moves is reached at once, and the old port gets copies for a while only.
#[test]
fn a_move_is_quick_and_soon_over() {
    let mut world = world(roomy());
    claim(&mut world, 1);
    assert_eq!(heard_by(&mut world, 0), ports([1]));
    claim(&mut world, 2);
    assert_eq!(heard_by(&mut world, 0), ports([1, 2]));
    for _ in 0..3 {
        pass(&mut world, QUIET_MS);
        claim(&mut world, 2);
    }
    world.step(&Step::Age);
    assert_eq!(heard_by(&mut world, 0), ports([2]));
    assert_eq!(
        (world.switch.move_counts().made, world.switch.contested().count()),
        (1, 0)
    );
    // Where the driver does not run any more, as after a migration, there are no copies at all.
    claim(&mut world, 3);
    world.step(&Step::Ready(2, Readiness::Connected));
    assert_eq!(heard_by(&mut world, 0), ports([3]));
    assert_eq!(world.switch.contested().count(), 0);
    world.step(&Step::Remove(2));
    assert_eq!(heard_by(&mut world, 0), ports([3]));
    world.check();
}

/// A switch can drop frames for contested addresses, too.
#[test]
fn frames_for_a_contested_address_can_be_dropped() {
    let mut world = world(SwitchRules {
        contested: ContestedMacs::Drop,
        ..roomy()
    });
    claim(&mut world, OWNER);
    assert_eq!(heard_by(&mut world, 0), ports([OWNER]));
    claim(&mut world, 1);
    assert_eq!(heard_by(&mut world, 0), Err(DropReason::Contested));
    world.restart_control();
    assert_eq!(heard_by(&mut world, 0), Err(DropReason::Contested));
    world.step(&Step::Ready(1, Readiness::Disconnected));
    assert_eq!(heard_by(&mut world, 0), ports([OWNER]));
}

/// `mac` decides while the port's driver runs, however long the port is silent and whoever was there before.
#[test]
fn the_device_s_address_is_at_its_port() {
    let mut world = world(roomy());
    claim(&mut world, 1);
    let mut device = plain(1000);
    (device.mac, device.readiness) = (Some(ADDRESS), Readiness::Connected);
    world.step(&Step::Port(OWNER, device.clone()));
    assert_eq!(heard_by(&mut world, 0), ports([1]), "it does not run yet");
    world.step(&Step::Ready(OWNER, Readiness::Running));
    for _ in 0..20 {
        assert_eq!(heard_by(&mut world, 0), ports([OWNER]), "before its first frame");
        claim(&mut world, 1);
        claim(&mut world, 2);
        pass(&mut world, QUIET_MS);
    }
    assert_eq!(world.switch.contested().count(), 0);
    assert_eq!(
        world.switch.decide(&key(2, ADDRESS, GROUP, 0)).source,
        Source::Device(PortId(OWNER))
    );
    assert!(
        world.receivers(&key(2, ADDRESS, GROUP, 0)).is_ok(),
        "forwarded all the same"
    );
    let listed = world.switch.mac_entries(world.now_ms);
    assert!(
        listed
            .iter()
            .any(|entry| (entry.mac, entry.port, entry.vlan) == (ADDRESS, PortId(OWNER), None))
    );
    let impostors = world.switch.impostors();
    let impostors: Vec<_> = impostors
        .iter()
        .map(|(_, owner, from)| (owner.0, from.0))
        .collect();
    assert_eq!(impostors, [(OWNER, 1), (OWNER, 2)]);
    // Frames from another port are looked at anew when the driver ends: the guest may have gone there.
    world.step(&Step::Ready(OWNER, Readiness::Connected));
    claim(&mut world, 2);
    assert!(heard_by(&mut world, 0).unwrap().contains(&2));
    world.step(&Step::Ready(OWNER, Readiness::Running));
    assert_eq!(heard_by(&mut world, 0), ports([OWNER]));
    // Two that run and have the address decide nothing.
    world.step(&Step::Port(
        3,
        PortRules {
            readiness: Readiness::Running,
            ..device
        },
    ));
    for port in [OWNER, 3] {
        claim(&mut world, port);
    }
    assert!(heard_by(&mut world, 0).unwrap().is_superset(&[OWNER, 3].into()));
}

/// Frames with a static address of another port are dropped, so nothing is contested.
#[test]
fn a_static_address_is_not_contested() {
    let mut world = world(roomy());
    claim(&mut world, 1);
    let mut fixed = plain(0);
    fixed.static_macs = vec![ADDRESS];
    world.step(&Step::Port(OWNER, fixed));
    let forged = world.receivers(&key(1, ADDRESS, GROUP, 0));
    assert_eq!(forged, Err(DropReason::Policy));
    assert_eq!(heard_by(&mut world, 0), ports([OWNER]));
    assert_eq!(world.switch.contested().count(), 0);
}

#[test]
fn an_address_is_contested_in_its_vlan_only() {
    let vid = |number| VlanId::new(number).unwrap();
    let port = |vlan| PortRules {
        vlan: VlanConfig::Access(vid(vlan)),
        ..plain(10)
    };
    let mut world = World::new(
        roomy(),
        &[port(10), port(20), port(10), port(20), port(20), port(10)],
    );
    for from in [0, 1, 3] {
        claim(&mut world, from);
    }
    assert_eq!(heard_by(&mut world, 0), ports([0]));
    let contested: Vec<_> = world.switch.contested().collect();
    assert_eq!(
        contested,
        [(
            Station {
                vlan: 20,
                mac: ADDRESS
            },
            vec![PortId(1), PortId(3)]
        )]
    );
    assert_eq!(
        [0, 1, 2].map(|id| world.switch.contested_on_port(PortId(id))),
        [0, 1, 0]
    );
}

/// A new control process learns from the flows that an address is contested, from its senders' or from those
/// to it.
#[test]
fn a_contest_outlives_the_control_process() {
    let mut world = world(roomy());
    for port in [OWNER, 1, 2] {
        claim(&mut world, port);
    }
    world.restart_control();
    assert_eq!(heard_by(&mut world, 0), ports([OWNER, 1, 2]));
    // The owner and a rival are silent for so long that their flows end.
    for _ in 0..40 {
        world.step(&Step::Wait(1000));
        claim(&mut world, 1);
        let _ = heard_by(&mut world, 0);
    }
    let before = world.flow_count();
    let changes = world.switch.age(world.now_ms);
    assert_eq!(changes.len(), 2, "flows of the owner and one rival");
    world.apply(changes);
    assert_eq!(world.flow_count() + 2, before);
    world.restart_control();
    assert_eq!(heard_by(&mut world, 0), ports([OWNER, 1, 2]));
}

/// A port contests all the addresses that it may learn, each of which has flows from many stations; so do
/// others.
#[test]
fn contests_cost_a_bounded_amount_at_once() {
    const LIMIT: u64 = 50;
    let mut world = World::new(roomy(), &vec![plain(64); 6]);
    world.switch.set_move_limit(LIMIT);
    let victims = || 0x0200_0000_1000..0x0200_0000_1000 + 100u64;
    for victim in victims() {
        let port = if victim % 2 == 0 { 3 } else { 4 };
        let _ = world.receivers(&key(port, victim, GROUP, 0));
        for number in 0..10 {
            let _ = world.receivers(&key(SENDER, 0x0200_0001_0000 + number, victim, 0));
        }
        world.refresh_stale();
    }
    let flows = world.flow_count();
    let mut at_once = 0;
    for victim in victims() {
        let (decision, changes) = world.switch.packet(&key(1, victim, GROUP, 0), world.now_ms);
        assert!(decision.source == Source::Contested || decision.source == Source::PortFull);
        at_once += changes.len();
        world.apply(changes);
    }
    assert_eq!(world.switch.macs_on_port(PortId(1)), 64);
    assert_eq!(world.switch.contested().count(), 64);
    // Four seconds' worth of flows, and those of the packets themselves.
    assert!(at_once <= 4 * LIMIT as usize + 100, "{at_once} changes at once");
    assert!(world.switch.move_counts().deferred > 0);
    // The rest is done in pieces, each flow once.
    let mut later = 0;
    while world.switch.has_stale() {
        let changes = world.switch.refresh_stale(16, world.now_ms);
        assert!(changes.len() <= 16);
        later += changes.len();
        world.apply(changes);
    }
    assert!(later <= flows, "{later} of {flows} flows");
    for victim in victims().take(64) {
        let station = Station { vlan: 0, mac: victim };
        assert!(matches!(
            world.switch.destination(station),
            Destination::Contested(_)
        ));
    }
}

/// An address that flaps between two uplinks, as in a loop, is at both: nothing changes any more, however
/// often it is seen.
#[test]
fn a_loop_costs_two_moves() {
    let mut world = world(roomy());
    for number in 0..100 {
        let _ = heard_by(&mut world, number);
    }
    let mut changes = 0;
    for round in 0..10_000u32 {
        let key = key(1 + round % 2, ADDRESS, GROUP, 0);
        let (_, made) = world.switch.packet(&key, world.now_ms);
        changes += made.len();
        world.apply(made);
        world.now_ms += 1;
    }
    assert_eq!(world.switch.move_counts().made, 1);
    // All flows to it twice, and its own once each 500 ms, since the data plane is said not to have them.
    assert!((200..=202 + 40).contains(&changes), "{changes}");
    let station = Station {
        vlan: 0,
        mac: ADDRESS,
    };
    let both = Destination::Contested(vec![PortId(1), PortId(2)]);
    assert_eq!(world.switch.destination(station), both);
}
