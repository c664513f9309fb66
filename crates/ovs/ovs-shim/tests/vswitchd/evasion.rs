//! Frames by which a guest tries to get past OpenFlow's rules: one that is allowed comes first, so that its
//! decision is a flow, and then others that are forbidden and look alike as far as a switch cares to look.

use crate::forwarding::{Guest, SIZE, TIMEOUT, begin};
use crate::world::World;
use std::time::{Duration, Instant};
use testbed::polling::Frame;

/// So many forbidden frames are sent behind an allowed one.
const FORBIDDEN: usize = 10;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// 02:50:00:00:00:02 from 02:50:00:00:00:01.
fn ethernet(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let addresses = [2, 0x50, 0, 0, 0, 2, 2, 0x50, 0, 0, 0, 1];
    [&addresses, &ethertype.to_be_bytes()[..], packet].concat()
}

/// A frame with a length in the place of the type, and the type behind such a header.
fn snap(control: u8, ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let [high, low] = ethertype.to_be_bytes();
    ethernet(60, &[&[0xaa, 0xaa, control, 0, 0, 0, high, low], packet].concat())
}

fn tcp(port: u8) -> Vec<u8> {
    let mut segment = vec![
        3, 0xe8, 0, port, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0,
    ];
    segment.extend([0x5a; 40]);
    segment
}

/// An IPv4 packet that says it has that many bytes more than it has.
fn ipv4(options: usize, more: i16, port: u8) -> Vec<u8> {
    let len = (20 + options + 60) as i16 + more;
    let mut packet = vec![0x45 + (options / 4) as u8, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend(vec![1; options]);
    packet.extend(tcp(port));
    packet
}

/// A frame of IPv6, with headers of these types and lengths before TCP.
fn ipv6(headers: &[(u8, usize)], more: i16, port: u8) -> Vec<u8> {
    let kinds: Vec<u8> = headers.iter().map(|(kind, _)| *kind).chain([6]).collect();
    let mut rest = Vec::new();
    for ((kind, len), next) in headers.iter().zip(&kinds[1..]) {
        let units = match kind {
            44 => 0,
            51 => len / 4 - 2,
            _ => len / 8 - 1,
        };
        let start = rest.len();
        rest.extend([*next, units as u8]);
        rest.resize(start + len, 0);
    }
    rest.extend(tcp(port));
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((rest.len() as i16 + more).to_be_bytes());
    packet.extend([kinds[0], 64]);
    for host in [1, 2] {
        packet.extend([[0xfd; 15].as_slice(), &[host]].concat());
    }
    packet.extend(rest);
    packet
}

type Make = fn(u8) -> Vec<u8>;

/// Frames to a TCP port.
const SOUND: [(&str, Make); 6] = [
    ("options", |port| ethernet(IPV6, &ipv6(&[(60, 64)], 0, port))),
    ("long options", |port| {
        ethernet(IPV6, &ipv6(&[(60, 800)], 0, port))
    }),
    ("a chain", |port| {
        ethernet(
            IPV6,
            &ipv6(&[(0, 8), (60, 16), (43, 24), (51, 12), (60, 8), (60, 8)], 0, port),
        )
    }),
    ("a whole fragment", |port| {
        ethernet(IPV6, &ipv6(&[(60, 40), (44, 8)], 0, port))
    }),
    ("IPv4 options", |port| ethernet(IPV4, &ipv4(40, 0, port))),
    ("SNAP", |port| snap(3, IPV4, &ipv4(0, 0, port))),
];

/// Frames that contradict themselves, so that parsers differ about them, each with the sound one that it
/// resembles.
const CONTRADICTORY: [(&str, Make, Make); 7] = [
    (
        "SNAP with another control field",
        |port| snap(0, IPV4, &ipv4(0, 0, port)),
        |port| snap(3, IPV4, &ipv4(0, 0, port)),
    ),
    (
        "shorter than it is",
        |port| ethernet(IPV4, &ipv4(0, -60, port)),
        |port| ethernet(IPV4, &ipv4(0, 0, port)),
    ),
    (
        "shorter than its header",
        |port| ethernet(IPV4, &ipv4(0, -70, port)),
        |port| ethernet(IPV4, &ipv4(0, 0, port)),
    ),
    (
        "longer than it is",
        |port| ethernet(IPV4, &ipv4(0, 1, port)),
        |port| ethernet(IPV4, &ipv4(0, 0, port)),
    ),
    (
        "IPv6, shorter",
        |port| ethernet(IPV6, &ipv6(&[], -60, port)),
        |port| ethernet(IPV6, &ipv6(&[], 0, port)),
    ),
    (
        "IPv6, longer",
        |port| ethernet(IPV6, &ipv6(&[], 1, port)),
        |port| ethernet(IPV6, &ipv6(&[], 0, port)),
    ),
    (
        "a chain that leaves the packet",
        |port| ethernet(IPV6, &ipv6(&[(60, 64)], -100, port)),
        |port| ethernet(IPV6, &ipv6(&[(60, 64)], 0, port)),
    ),
];

pub fn rules_are_not_evaded(world: &mut World) {
    let guests = begin(world, &["vm1", "vm2"]);
    let [mut a, mut b] = guests.try_into().ok().unwrap();
    a.reach(&mut b);
    b.reach(&mut a);
    let deny = ["tcp", "tcp6"].map(|kind| format!("priority=100,{kind},tp_dst=22,actions=drop"));
    rules(world, &deny, "priority=0,actions=NORMAL");
    for (name, make) in SOUND {
        evade(world, [&mut a, &mut b], name, &make(80), &make(22));
    }
    for (name, make, sound) in CONTRADICTORY {
        evade(world, [&mut a, &mut b], name, &make(22), &sound(22));
        evade(world, [&mut a, &mut b], name, &make(80), &sound(22));
    }
    let allow = ["tcp", "tcp6"].map(|kind| format!("priority=100,{kind},tp_dst=80,actions=NORMAL"));
    rules(world, &allow, "priority=0,udp,actions=NORMAL");
    for (name, make) in SOUND {
        evade(world, [&mut a, &mut b], name, &make(80), &make(22));
        // However it was packed before, and from then on.
        for (other, make_other) in SOUND {
            let name = format!("{name} and {other}");
            evade(world, [&mut a, &mut b], &name, &make(80), &make_other(22));
        }
    }
    for (name, make, sound) in CONTRADICTORY {
        evade(world, [&mut a, &mut b], name, &sound(80), &make(22));
        evade(world, [&mut a, &mut b], name, &sound(80), &make(80));
    }
    assert!(world.glue("counters").contains("violations: 0"));
    world.check_log();
}

fn rules(world: &World, rules: &[String], last: &str) {
    world.ofctl("del-flows br0");
    for rule in rules {
        world.ofctl(&format!("add-flow br0 {rule}"));
    }
    world.ofctl(&format!("add-flow br0 {last}"));
}

/// The allowed frame goes first, and then the forbidden one many times: none of them arrives. Both ways
/// round, as flows are made of either.
fn evade(world: &World, guests: [&mut Guest; 2], name: &str, allowed: &[u8], forbidden: &[u8]) {
    let [a, b] = guests;
    for is_forbidden_first in [false, true] {
        world.appctl("revalidator/purge");
        b.take();
        let mut seen = Vec::new();
        if is_forbidden_first {
            a.send_frame(&Frame::raw(forbidden));
            seen.extend(settled(a, b));
        }
        a.send_frame(&Frame::raw(allowed));
        seen.extend(settled(a, b));
        for _ in 0..FORBIDDEN {
            a.send_frame(&Frame::raw(forbidden));
        }
        seen.extend(settled(a, b));
        let passed = seen.iter().filter(|frame| *frame == forbidden).count();
        assert_eq!(
            passed, 0,
            "{name}: of {FORBIDDEN}, forbidden first: {is_forbidden_first}"
        );
        // A sound frame that is allowed arrives, however deep its headers are.
        let is_sound = SOUND.iter().any(|(_, make)| make(80) == allowed);
        let end = Instant::now() + TIMEOUT;
        while is_sound && !seen.iter().any(|frame| frame == allowed) {
            seen = settled(a, b);
            assert!(Instant::now() < end, "{name}: {allowed:02x?} does not arrive");
        }
    }
}

/// What arrives until frames that are sent behind it do, twice: ovs-vswitchd may still have had the first
/// ones.
fn settled(a: &mut Guest, b: &mut Guest) -> Vec<Vec<u8>> {
    let mut seen: Vec<Vec<u8>> = Vec::new();
    for _ in 0..2 {
        let (before, end) = (seen.len(), Instant::now() + TIMEOUT);
        while !seen[before..].iter().any(|frame| is_marker(frame)) {
            a.send(b);
            std::thread::sleep(Duration::from_millis(5));
            seen.extend(b.take());
            assert!(Instant::now() < end, "nothing arrives");
        }
    }
    seen
}

/// Whether it is one of the frames that a guest sends by itself.
fn is_marker(frame: &[u8]) -> bool {
    frame.len() == SIZE && frame[23] == 17
}
