//! The targets, and what those of a kind have in common.

use super::Target;
use crate::cases::p4::packets::P4;
use crate::cases::policies::packets::POLICIES;
use crate::contender::{
    BY_PORTS, DRIVEN, DRIVEN_FILTERED, HYPERSWITCH, OVS_LEARNING, OVS_PORTS, OVS_PORTS_BATCHING,
    OVS_PORTS_EMC, OVS_PORTS_SMC, OVS_TABLES_BATCHING, OVS_TABLES_EMC, OVS_TABLES_SMC, TAGGING, TESTPMD,
    TOGETHER,
};

pub(super) const fn alone(
    what: &'static str,
    [case, measure]: [&'static str; 2],
    points: &'static [&'static str],
    floor: f64,
    goal: f64,
) -> Target {
    Target {
        what,
        case,
        measure,
        also: None,
        ours: HYPERSWITCH.name,
        peer: None,
        others: &[],
        points,
        floor,
        goal,
    }
}

pub(super) const fn beside(
    what: &'static str,
    [case, measure, peer]: [&'static str; 3],
    points: &'static [&'static str],
    floor: f64,
    goal: f64,
) -> Target {
    Target {
        peer: Some(peer),
        ..alone(what, [case, measure], points, floor, goal)
    }
}

/// By busy and by awake cycles.
const fn in_cycles(
    what: &'static str,
    [case, peer]: [&'static str; 2],
    points: &'static [&'static str],
    floor: f64,
    goal: f64,
) -> Target {
    Target {
        also: Some("awake cycles"),
        ..beside(what, [case, "busy cycles", peer], points, floor, goal)
    }
}

/// With DPDK's own driver.
const fn faster_than_learning(
    what: &'static str,
    points: &'static [&'static str],
    floor: f64,
    goal: f64,
) -> Target {
    let peer = ["testpmd", "rate", "ovs-dpdk-learning"];
    beside(what, peer, points, floor, goal)
}

/// A flow for each pair of UDP ports, whatever guests and caches are like.
const fn apart(what: &'static str, points: &'static [&'static str]) -> Target {
    Target {
        ours: BY_PORTS.name,
        others: &[OVS_PORTS_EMC.name, OVS_PORTS_SMC.name, OVS_PORTS_BATCHING.name],
        ..in_cycles(what, ["flows-apart", OVS_PORTS.name], points, 1.3, 1.8)
    }
}

/// Both have one set of `OpenFlow` tables.
const fn same_tables(what: &'static str, points: &'static [&'static str]) -> Target {
    Target {
        ours: DRIVEN.name,
        others: &[OVS_TABLES_SMC.name, OVS_TABLES_BATCHING.name],
        ..in_cycles(what, ["ovs-tables", OVS_TABLES_EMC.name], points, 1.6, 2.1)
    }
}

/// Through P4 programs, beside the built-in switch.
const fn through_p4(what: &'static str, points: &'static [&'static str], floor: f64, goal: f64) -> Target {
    Target {
        ours: P4.name,
        ..beside(
            what,
            ["p4-packets", "busy cycles", HYPERSWITCH.name],
            points,
            1.0 / floor,
            1.0 / goal,
        )
    }
}

/// TCP through P4 programs, beside the built-in switch.
const fn stream_through_p4(
    what: &'static str,
    points: &'static [&'static str],
    floor: f64,
    goal: f64,
) -> Target {
    let peer = ["p4-stream", "throughput", HYPERSWITCH.name];
    Target {
        ours: P4.name,
        ..beside(what, peer, points, floor, goal)
    }
}

/// Under ovs-vswitchd.
const fn driven(target: Target) -> Target {
    Target {
        ours: DRIVEN.name,
        ..target
    }
}

/// With guests on the same processor as the peer's.
const fn beside_together(
    what: &'static str,
    case_measure_peer: [&'static str; 3],
    points: &'static [&'static str],
    floor: f64,
    goal: f64,
) -> Target {
    Target {
        ours: TOGETHER.name,
        ..beside(what, case_measure_peer, points, floor, goal)
    }
}

const LOOP: [&str; 2] = ["loop", "ovs-dpdk"];
const MANY_FLOWS: &[&str] = &["64 io, 1000 flows", "64 io, 100000 flows"];
const LARGE: &[&str] = &["65536"];
const BESIDE_HOSTILE: &[&str] = &[
    "beside clone_doubling",
    "beside clone_to_itself",
    "beside digest_per_packet",
    "beside growing_packet",
    "beside multicast_storm",
    "beside recirculate_always",
    "beside resubmit_always",
];

pub(super) const TARGETS: &[Target] = &[
    in_cycles(
        "busy or awake cycles per packet, the stricter, 64 B, 1 flow: OVS-DPDK / ours",
        LOOP,
        &["64 io", "64 touch"],
        1.8,
        2.4,
    ),
    in_cycles("same, 512 B", LOOP, &["512 io", "512 touch"], 1.7, 2.1),
    in_cycles("same, 1500 B, touch", LOOP, &["1500 touch"], 1.6, 1.9),
    in_cycles("same, 1500 B, io", LOOP, &["1500 io"], 1.9, 2.2),
    in_cycles(
        "same, 64 B, bursts of 1 to 4 packets",
        LOOP,
        &["64 io, bursts of 1", "64 io, bursts of 2", "64 io, bursts of 4"],
        1.4,
        2.2,
    ),
    in_cycles(
        "same, 64 B, 1,000 and 100,000 flows between two stations, which are one entry for ours",
        LOOP,
        MANY_FLOWS,
        1.6,
        2.1,
    ),
    in_cycles(
        "same, OVS-DPDK as a learning switch / ours",
        ["loop", "ovs-dpdk-learning"],
        MANY_FLOWS,
        1.6,
        2.1,
    ),
    apart(
        "same, 64 B, 1,000 flows told apart, OVS-DPDK at its best, any guest",
        &[
            "64 io, 1000 flows",
            "64 io, 1000 flows, huge pages, 1024 entries",
            "64 io, 1000 flows, huge pages, 1024 entries, no mrg_rxbuf",
        ],
    ),
    apart(
        "same, 100,000 flows told apart",
        &[
            "64 io, 100000 flows",
            "64 io, 100000 flows, huge pages, 1024 entries",
            "64 io, 100000 flows, huge pages, 1024 entries, no mrg_rxbuf",
        ],
    ),
    in_cycles(
        "busy or awake cycles per packet, 64 B, 1 flow: testpmd with two vhost ports / ours",
        ["loop", TESTPMD.name],
        &["64 io", "64 touch"],
        1.0,
        1.5,
    ),
    in_cycles(
        "testpmd, busy or awake cycles per packet, 64 to 1500 B: OVS-DPDK / ours",
        ["testpmd", "ovs-dpdk"],
        &["64", "128", "256", "512", "1500"],
        1.5,
        2.0,
    ),
    faster_than_learning(
        "testpmd, packets per second, 64 B: ours / OVS-DPDK as a learning switch",
        &["64"],
        2.1,
        3.0,
    ),
    faster_than_learning("same, 512 B", &["512"], 3.0, 4.0),
    faster_than_learning("same, 1500 B", &["1500"], 2.8, 4.0),
    beside(
        "UML pair TCP: ours / bridge and TAP",
        ["stream", "throughput", "bridge"],
        LARGE,
        1.0,
        1.4,
    ),
    beside(
        "same, processor time per GB: bridge / ours",
        ["stream", "processor time", "bridge"],
        LARGE,
        1.0,
        1.43,
    ),
    beside(
        "UML pair TCP, 128 KiB per write: ours / bridge and TAP",
        ["pairs", "throughput", "bridge"],
        &["1"],
        1.0,
        1.4,
    ),
    beside(
        "same, processor time per GB: bridge / ours",
        ["pairs", "processor time", "bridge"],
        &["1"],
        1.0,
        1.43,
    ),
    beside(
        "UML pair TCP: ours / OVS-DPDK",
        ["stream", "throughput", "ovs-dpdk"],
        LARGE,
        1.5,
        2.0,
    ),
    beside(
        "UDP RR 64 B: ours / bridge and TAP",
        ["rr", "transactions", "bridge"],
        &["64"],
        1.0,
        1.5,
    ),
    beside(
        "UDP RR 64 B: ours / OVS-DPDK",
        ["rr", "transactions", "ovs-dpdk"],
        &["64"],
        0.9,
        1.2,
    ),
    beside_together(
        "same, guests on one processor with both",
        ["rr", "transactions", "ovs-dpdk"],
        &["64"],
        0.9,
        1.2,
    ),
    beside(
        "default / `thread-per-vnic`, UDP RR 64 B",
        ["rr", "transactions", "hyperswitch-thread-per-vnic"],
        &["64"],
        2.0,
        3.2,
    ),
    beside(
        "default / `thread-per-vnic`, TCP",
        ["stream", "throughput", "hyperswitch-thread-per-vnic"],
        LARGE,
        1.3,
        1.6,
    ),
    beside(
        "default / `driver-domain`, UDP RR 64 B",
        ["rr", "transactions", "hyperswitch-driver-domain"],
        &["64"],
        1.5,
        2.2,
    ),
    beside_together(
        "same, guests on one processor with both",
        ["rr", "transactions", "hyperswitch-driver-domain"],
        &["64"],
        1.5,
        2.2,
    ),
    beside(
        "default / `driver-domain`, TCP",
        ["stream", "throughput", "hyperswitch-driver-domain"],
        LARGE,
        1.3,
        1.6,
    ),
    in_cycles(
        "32 KB frames: one copy / two copies (`driver-domain`), busy or awake cycles, the stricter",
        ["copies", "hyperswitch-driver-domain"],
        &["32768 touch"],
        1.25,
        1.4,
    ),
    beside(
        "8 pairs, TCP added up: ours / OVS-DPDK",
        ["pairs", "throughput", "ovs-dpdk"],
        &["8"],
        1.5,
        2.0,
    ),
    alone(
        "idle, 100 ports, % of a core",
        ["idle", "processor"],
        &["100 unused", "100 connected"],
        0.2,
        0.01,
    ),
    beside(
        "UML pair, a loop on each processor, ping p90: bridge and TAP / ours",
        ["full-host", "p90", "bridge"],
        &["all, nice 0", "all, nice 19"],
        1.0 / 1.3,
        1.0,
    ),
    beside(
        "same, p99",
        ["full-host", "p99", "bridge"],
        &["all, nice 0", "all, nice 19"],
        1.0 / 1.2,
        1.0,
    ),
    beside(
        "UML pair, free processors, ping p50: bridge and TAP / ours",
        ["full-host", "p50", "bridge"],
        &["none"],
        1.0 / 1.1,
        1.0 / 0.9,
    ),
    beside(
        "container pair, a loop on each processor, ping p50: bridge and veth / ours",
        ["full-host-containers", "p50", "bridge"],
        &["all, nice 0", "all, nice 19"],
        0.25,
        0.5,
    ),
    beside(
        "same, p90",
        ["full-host-containers", "p90", "bridge"],
        &["all, nice 0", "all, nice 19"],
        0.2,
        0.5,
    ),
    beside(
        "same, p99",
        ["full-host-containers", "p99", "bridge"],
        &["all, nice 0", "all, nice 19"],
        1.0 / 6.0,
        1.0 / 3.0,
    ),
    beside(
        "processor time at 1,000 and 10,000 packets/s: bridge and TAP / ours",
        ["rate", "processor", "bridge"],
        &["1000", "10000"],
        1.0 / 1.3,
        1.0 / 0.8,
    ),
    alone(
        "what a flood takes from a computing task, % of its fair share",
        ["flood", "taken"],
        &["0", "1"],
        10.0,
        2.0,
    ),
    alone(
        "bystanders under tuple-space attack against a benign run of equal load, %",
        ["attack-victim", "kept"],
        &["1, 1,000/s", "1000, 1,000/s"],
        92.0,
        98.0,
    ),
    alone(
        "bystanders' throughput under tuple-space attack, %",
        ["attack", "kept"],
        &["1, 1,000/s", "1000, 1,000/s"],
        90.0,
        98.0,
    ),
    same_tables(
        "ovs-vswitchd, 1,000 flows told apart, 64 B, busy or awake cycles per packet, the stricter: OVS-DPDK / ours, NORMAL",
        &["NORMAL, 1000 flows"],
    ),
    same_tables("same, 1,000 rules", &["1000 rules, 1000 flows"]),
    same_tables("same, 10 tables with resubmit", &["10 tables, 1000 flows"]),
    same_tables(
        "same, meter and group (indirect; select)",
        &[
            "meter, group indirect, 1000 flows",
            "meter, group select, 1000 flows",
        ],
    ),
    same_tables(
        "same, 20,000 flows told apart, any of these tables",
        &[
            "NORMAL, 20000 flows",
            "1000 rules, 20000 flows",
            "10 tables, 20000 flows",
            "meter, group indirect, 20000 flows",
            "meter, group select, 20000 flows",
        ],
    ),
    driven(in_cycles(
        "64 B, 1 and 1,000 flows, busy or awake cycles per packet, the stricter: built-in switch / NORMAL set by ovs-vswitchd",
        ["ovs-normal", HYPERSWITCH.name],
        &["64 io", "64 io, 1000 flows"],
        1.0 / 1.05,
        1.0,
    )),
    Target {
        ours: TAGGING.name,
        ..beside(
            "64 B, busy cycles per packet: untagged / from access port to trunk",
            ["tag", "busy cycles", HYPERSWITCH.name],
            &["64"],
            1.0 / 1.1,
            1.0 / 1.03,
        )
    },
    driven(beside(
        "new flows per second through ovs-vswitchd: ours / OVS-DPDK, which decides in its poll thread",
        ["ovs-misses", "new flows", OVS_LEARNING.name],
        &["64"],
        0.25,
        0.5,
    )),
    Target {
        ours: POLICIES.name,
        others: &[OVS_TABLES_SMC.name, OVS_TABLES_BATCHING.name],
        ..in_cycles(
            "guards and 1,000 rules at both ports, connections told apart, 64 B, busy or awake cycles per packet, the stricter: OVS-DPDK with the same rules / ours",
            ["policy-loop", OVS_TABLES_EMC.name],
            MANY_FLOWS,
            1.7,
            2.1,
        )
    },
    through_p4(
        "busy cycles per packet, 64 B: built-in switch / L2 switch in P4",
        &["switch, 1 pair"],
        1.1,
        1.0,
    ),
    through_p4("same, 64 programs", &["switch, 64 pairs"], 1.2, 1.05),
    stream_through_p4(
        "TCP between two guests through an L2 switch in P4",
        &["switch"],
        0.95,
        1.0,
    ),
    stream_through_p4("same, through a router in P4", &["router"], 0.8, 0.95),
    through_p4(
        "same, router in P4, 1,000 prefixes",
        &["router, 1 pair"],
        1.3,
        1.1,
    ),
    alone(
        "a P4 router from the file, first packet after, ms",
        ["p4-changes", "first packet after"],
        &["a router of 2 prefixes, from the file"],
        20.0,
        5.0,
    ),
    alone(
        "same, in the place of one, 10,000 prefixes",
        ["p4-changes", "first packet after"],
        &["a router in the place of one, 10,000 prefixes"],
        300.0,
        100.0,
    ),
    alone(
        "100 replacements of a P4 router under load, packets lost",
        ["p4-changes", "lost"],
        &["100 replacements of a router, full load"],
        0.0,
        0.0,
    ),
    alone(
        "a tenant with a hostile P4 program, bystanders keep, %",
        ["p4-changes", "bystanders keep"],
        BESIDE_HOSTILE,
        90.0,
        98.0,
    ),
    alone(
        "same, bystanders' p99, times that beside a sound program",
        ["p4-changes", "bystanders' p99"],
        BESIDE_HOSTILE,
        2.0,
        1.2,
    ),
    alone(
        "first packet of a connection under 10,000 rules, more than a later one, us",
        ["policy-changes", "more for a first packet"],
        &["new connections, 10,000 rules"],
        3.0,
        1.0,
    ),
    alone(
        "one rule of 10,000 with 100,000 connections cached, answered after, ms",
        ["policy-changes", "answered after"],
        &["one rule of 10,000"],
        20.0,
        5.0,
    ),
    alone(
        "one member of a set of 100,000, entries lost, %",
        ["policy-changes", "entries lost"],
        &["one member of 100,000"],
        2.0,
        0.5,
    ),
    alone(
        "1,000 rules for 1,000 ports by one reload, ms",
        ["policy-changes", "answered after"],
        &["1,000 rules for 1,000 ports"],
        1000.0,
        200.0,
    ),
    alone(
        "a guest scans ports under 1,000 rules, bystanders keep, %",
        ["policy-changes", "bystanders keep"],
        &["a guest scans ports under 1,000 rules"],
        95.0,
        98.0,
    ),
    driven(alone(
        "first packet's time through ovs-vswitchd, us",
        ["ovs-misses", "first packet"],
        &["64"],
        400.0,
        200.0,
    )),
    driven(alone(
        "199,000 flows under ovs-vswitchd: one terse dump, s",
        ["ovs-dump", "dump"],
        &["199000"],
        1.0,
        0.3,
    )),
    driven(alone(
        "same, longest delay of other ports' packets meanwhile, ms",
        ["ovs-dump", "longest delay"],
        &["199000"],
        1.0,
        0.1,
    )),
    driven(alone(
        "TCP while ovs-vswitchd or the process `ovs` is killed, worst second, % of the mean before",
        ["ovs-deaths", "worst second"],
        &["ovs-vswitchd", "the process `ovs`"],
        50.0,
        95.0,
    )),
    driven(alone(
        "same, UDP datagrams lost, %",
        ["ovs-deaths", "datagrams lost"],
        &["ovs-vswitchd", "the process `ovs`"],
        0.01,
        0.0,
    )),
    Target {
        ours: DRIVEN_FILTERED.name,
        ..alone(
            "bystanders' throughput while another port makes up flows under ovs-vswitchd, %",
            ["ovs-attack", "kept"],
            &["1, 1,000/s", "1000, 1,000/s"],
            90.0,
            98.0,
        )
    },
    driven(alone(
        "idle, 100 ports under ovs-vswitchd, glue and data plane, % of a core",
        ["ovs-idle", "processor"],
        &["100 connected"],
        0.3,
        0.2,
    )),
];
