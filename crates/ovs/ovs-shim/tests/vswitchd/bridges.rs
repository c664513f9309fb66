//! Bonds, mirrors and groups of OpenFlow: what a bridge does beyond learning.

use crate::forwarding::{Guest, TIMEOUT, begin};
use crate::world::World;
use std::time::{Duration, Instant};
use testbed::polling::Frame;

const GUESTS: [&str; 3] = ["vm1", "vm2", "vm3"];
/// Flows, or senders, of which each sends a packet.
const ALL: usize = 64;

pub fn bonds_mirrors_and_groups(world: &mut World) {
    let guests = begin(world, &GUESTS);
    let [mut a, mut b, mut c] = guests.try_into().ok().unwrap();
    for guest in GUESTS {
        link_becomes(world, guest, "up");
    }
    mirrored(world, &mut a, &mut b, &mut c);
    to_all(world, &mut a, &mut b, &mut c);
    selected(world, &mut a, &mut b, &mut c);
    let b = watched(world, &mut a, b, &mut c);
    bonded(world, &mut a, b, c);
    assert!(world.glue("counters").contains("violations: 0"));
    world.check_log();
}

fn link_becomes(world: &World, guest: &str, wanted: &str) {
    world.until(&format!("the link of {guest} is {wanted}"), |world| {
        world.vsctl(&format!("get Interface {guest} link_state")) == wanted
    });
}

/// A guest ends, and the switch has seen it.
fn end(world: &World, name: &str, guest: Guest) {
    drop(guest);
    link_becomes(world, name, "down");
}

fn come_back(world: &World, name: &'static str, station: u32) -> Guest {
    let guest = Guest::connect(world, name, station);
    link_becomes(world, name, "up");
    guest
}

/// What differs between packets.
#[derive(Clone, Copy)]
enum Many {
    Flows,
    Senders,
}

/// Sends a packet of each kind to a station; returns how many of them came to each of these guests.
fn spread<const N: usize>(a: &mut Guest, many: Many, to: u32, guests: &mut [&mut Guest; N]) -> [usize; N] {
    for guest in guests.iter_mut() {
        guest.take();
    }
    let before = (a.station, a.flow);
    for number in 0..ALL as u32 {
        match many {
            Many::Flows => a.flow = number << 8 | 7,
            Many::Senders => a.station = 100 + number,
        }
        a.send_to(to);
    }
    (a.station, a.flow) = before;
    std::thread::sleep(Duration::from_millis(200));
    guests.each_mut().map(|guest| guest.take().len())
}

/// Waits until packets spread as wanted: ovs-vswitchd changes its flows a moment after it was told.
fn spreads<const N: usize>(
    a: &mut Guest,
    many: Many,
    to: u32,
    mut guests: [&mut Guest; N],
    wanted: impl Fn([usize; N]) -> bool,
) {
    let end = Instant::now() + TIMEOUT;
    loop {
        let found = spread(a, many, to, &mut guests);
        if wanted(found) {
            return;
        }
        assert!(Instant::now() < end, "{found:?}");
    }
}

/// All of them come to some, and a fair part to each.
fn are_divided([to_b, to_c]: [usize; 2]) -> bool {
    to_b + to_c == ALL && to_b > ALL / 8 && to_c > ALL / 8
}

/// What one port sends and gets is shown at another, which is then no port like others.
fn mirrored(world: &World, a: &mut Guest, b: &mut Guest, c: &mut Guest) {
    a.reach(b);
    b.reach(a);
    a.misses(b, true, c);
    world.vsctl(
        "set Bridge br0 mirrors=@m -- --id=@vm1 get Port vm1 -- --id=@vm3 get Port vm3 \
         -- --id=@m create Mirror name=m select-src-port=@vm1 select-dst-port=@vm1 output-port=@vm3",
    );
    // ovs-vswitchd 3.1 leaves flows as they are when there is a new mirror.
    world.appctl("revalidator/purge");
    spreads(a, Many::Flows, b.station, [b, c], |found| found == [ALL; 2]);
    spreads(b, Many::Flows, a.station, [a, c], |found| found == [ALL; 2]);
    let sent = b.reach(a);
    assert!(c.take().contains(&sent), "the copy is what was sent");
    c.loses(a);
    world.vsctl("clear Bridge br0 mirrors");
    world.appctl("revalidator/purge");
    c.reach(a);
    a.reach(c);
    a.misses(b, true, c);
}

fn group(world: &World, words: &str) {
    world.ofctl(&format!("add-group br0 group_id=1,{words}"));
    world.ofctl("add-flow br0 priority=50,in_port=vm1,actions=group:1");
}

fn no_group(world: &World, a: &mut Guest, b: &mut Guest, c: &mut Guest) {
    // OpenFlow removes the flow with it.
    world.ofctl("del-groups br0 group_id=1");
    b.reach(a);
    a.misses(b, true, c);
}

/// Each bucket has a copy of its own to change.
fn to_all(world: &World, a: &mut Guest, b: &mut Guest, c: &mut Guest) {
    group(
        world,
        "type=all,bucket=actions=mod_nw_tos:32,output:vm2,bucket=output:vm3",
    );
    spreads(a, Many::Flows, b.station, [b, c], |found| found == [ALL; 2]);
    assert_eq!(a.reach(b)[15], 32, "type of service");
    assert_eq!(a.reach(c)[15], 0);
    no_group(world, a, b, c);
}

/// Flows are divided, each goes one way, and weights count.
fn selected(world: &World, a: &mut Guest, b: &mut Guest, c: &mut Guest) {
    group(
        world,
        "type=select,bucket=weight:100,output:vm2,bucket=weight:100,output:vm3",
    );
    let to = b.station;
    spreads(a, Many::Flows, to, [b, c], are_divided);
    let first = spread(a, Many::Flows, to, &mut [b, c]);
    for _ in 0..3 {
        let again = spread(a, Many::Flows, to, &mut [b, c]);
        assert_eq!(again, first, "another way for the same flows");
    }
    for kind in [4, 6] {
        fragments_stay_together(kind, a, b, c);
    }
    world.ofctl(
        "mod-group br0 group_id=1,type=select,bucket=weight:0,output:vm2,bucket=weight:100,output:vm3",
    );
    spreads(a, Many::Flows, to, [b, c], |found| found == [0, ALL]);
    no_group(world, a, b, c);
}

/// First, middle and last fragment of a UDP datagram, by IP version; address and port differ with its number.
fn fragments(version: u8, number: u8) -> [Frame; 3] {
    let udp = [3, number, 0, 53, 0, 32, 0, 0];
    // In units of 8 bytes: where it begins, and whether more follow.
    [(0, 1), (2, 1), (4, 0)].map(|(offset, more)| {
        let payload = [if offset == 0 { udp } else { [0x5a; 8] }, [0x5a; 8]].concat();
        let mut frame = vec![2, 0x50, 0, 0, 0, 2, 2, 0x50, 0, 0, 0, 1];
        if version == 4 {
            frame.extend([8, 0, 0x45, 0, 0, 36, 0, number, more << 5, offset, 64, 17, 0, 0]);
            frame.extend([10, 0, 1, number, 10, 0, 0, 2]);
        } else {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 44, 64]);
            frame.extend([[0xfd; 15].as_slice(), &[number], &[0xfd; 15], &[2]].concat());
            frame.extend([17, 0, 0, offset << 3 | more, 0, 0, 0, number]);
        }
        Frame::raw(&[frame, payload].concat())
    })
}

/// Only the first fragment of a datagram has ports, and all go one way.
fn fragments_stay_together(version: u8, a: &mut Guest, b: &mut Guest, c: &mut Guest) {
    b.take();
    c.take();
    let mut ways = [0; 2];
    for number in 0..ALL as u8 {
        fragments(version, number)
            .iter()
            .for_each(|frame| a.send_frame(frame));
        let (end, mut arrived) = (Instant::now() + TIMEOUT, [0; 2]);
        // One datagram after the other, as few packets may wait for ovs-vswitchd.
        while arrived[0] + arrived[1] < 3 {
            assert!(Instant::now() < end, "of datagram {number} {arrived:?} arrived");
            arrived[0] += b.take().len();
            arrived[1] += c.take().len();
        }
        assert!(
            arrived == [3, 0] || arrived == [0, 3],
            "IPv{version}: {arrived:?}"
        );
        ways[usize::from(arrived[0] == 0)] += 1;
    }
    assert!(are_divided(ways), "{ways:?}");
}

/// The first bucket whose port is there ("fast failover").
fn watched(world: &World, a: &mut Guest, mut b: Guest, c: &mut Guest) -> Guest {
    group(
        world,
        "type=ff,bucket=watch_port:vm2,output:vm2,bucket=watch_port:vm3,output:vm3",
    );
    let to = b.station;
    spreads(a, Many::Flows, to, [&mut b, c], |found| found == [ALL, 0]);
    end(world, "vm2", b);
    spreads(a, Many::Flows, to, [c], |found| found == [ALL]);
    let mut b = come_back(world, "vm2", to);
    spreads(a, Many::Flows, to, [&mut b, c], |found| found == [ALL, 0]);
    no_group(world, a, &mut b, c);
    b
}

/// Two ports as one, of which either may fail.
fn bonded(world: &World, a: &mut Guest, b: Guest, c: Guest) {
    let stations = [b.station, c.station];
    drop([b, c]);
    world.vsctl(
        "del-port vm2 -- del-port vm3 -- add-bond br0 bond0 vm2 vm3 bond_mode=active-backup other_config:bond-primary=vm2 \
         -- set Interface vm2 type=internal -- set Interface vm3 type=internal",
    );
    let [mut b, mut c] =
        [("vm2", stations[0]), ("vm3", stations[1])].map(|(name, station)| come_back(world, name, station));
    // A station behind the bond that nobody knows yet.
    let to = 50;
    spreads(a, Many::Flows, to, [&mut b, &mut c], |found| found == [ALL, 0]);
    // What comes through the one that waits is no traffic.
    c.loses(a);
    b.reach(a);
    end(world, "vm2", b);
    spreads(a, Many::Flows, to, [&mut c], |found| found == [ALL]);
    c.reach(a);
    let mut b = come_back(world, "vm2", stations[0]);
    spreads(a, Many::Flows, to, [&mut b, &mut c], |found| found == [ALL, 0]);
    // Senders are divided.
    world.vsctl("set Port bond0 bond_mode=balance-slb");
    spreads(a, Many::Senders, to, [&mut b, &mut c], are_divided);
    end(world, "vm3", c);
    spreads(a, Many::Senders, to, [&mut b], |found| found == [ALL]);
    let mut c = come_back(world, "vm3", stations[1]);
    spreads(a, Many::Senders, to, [&mut b, &mut c], are_divided);
}
