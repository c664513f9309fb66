//! What is to be reached on one machine, in interleaved rounds, and what was.

use super::Results;
use super::table::{digits, spread_text};
use crate::contender::{
    BY_PORTS, HYPERSWITCH, OVS_PORTS, OVS_PORTS_BATCHING, OVS_PORTS_EMC, OVS_PORTS_SMC, TESTPMD, TOGETHER,
};
use crate::record::{Better, Record, Spread};
use std::fmt::Write;

/// A target; of several points, the least favourable one counts.
struct Target {
    what: &'static str,
    case: &'static str,
    measure: &'static str,
    /// A stricter account of the same; the less favourable of both counts, and one alone is no result.
    also: Option<&'static str>,
    /// Which of ours.
    ours: &'static str,
    /// Who is to be outdone, by a factor. Without one, the value itself counts.
    peer: Option<&'static str>,
    /// More of them, of whom the best counts, as the peer does.
    others: &'static [&'static str],
    points: &'static [&'static str],
    floor: f64,
    goal: f64,
}

const fn alone(
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

const fn beside(
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

const TARGETS: &[Target] = &[
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
];

impl Target {
    fn better(&self, record: &Record) -> Better {
        match self.peer {
            // Ratios are turned so that more is better.
            Some(_) => Better::Higher,
            None => record.measure(self.measure).better,
        }
    }

    /// The least favourable of the points that were measured, in the stricter measure.
    fn reached(&self, record: &Record) -> Option<Spread> {
        let first = self.reached_in(record, self.measure)?;
        match self.also {
            None => Some(first),
            Some(also) => Some(self.worse(record, first, self.reached_in(record, also)?)),
        }
    }

    fn reached_in(&self, record: &Record, measure: &str) -> Option<Spread> {
        let at = |point: &&str| -> Vec<Spread> {
            let peers = self.peer.iter().chain(self.others);
            let ratios = peers.filter_map(|peer| record.ratio(point, self.ours, peer, measure));
            let alone = record
                .value(point, self.ours, measure)
                .filter(|_| self.peer.is_none());
            ratios.chain(alone).collect()
        };
        let measured = self.points.iter().flat_map(at);
        measured.reduce(|a, b| self.worse(record, a, b))
    }

    fn worse(&self, record: &Record, a: Spread, b: Spread) -> Spread {
        let a_is_less = a.median < b.median;
        match self.better(record) {
            Better::Higher if a_is_less => a,
            Better::Lower if !a_is_less => a,
            _ => b,
        }
    }

    fn verdict(&self, record: &Record, reached: Spread) -> &'static str {
        let as_good_as = |limit: f64| match self.better(record) {
            Better::Higher => reached.median >= limit,
            Better::Lower => reached.median <= limit,
        };
        if as_good_as(self.goal) {
            "goal"
        } else if as_good_as(self.floor) {
            "floor"
        } else {
            "missed"
        }
    }
}

/// All targets with what was measured.
pub fn table(results: &Results) -> String {
    let mut text = "| measure | floor | goal | measured | reached |\n|---|---|---|---|---|\n".to_owned();
    for target in TARGETS {
        let record = results.cases.get(target.case);
        let reached = record.and_then(|record| Some((record, target.reached(record)?)));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            target.what,
            digits(target.floor),
            digits(target.goal),
            reached.map_or_else(|| "not measured".into(), |(_, spread)| spread_text(spread)),
            reached.map_or("", |(record, spread)| target.verdict(record, spread)),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    #[test]
    fn targets_name_what_cases_measure() {
        for target in TARGETS {
            let case = cases::ALL
                .iter()
                .find(|case| case.name == target.case)
                .unwrap_or_else(|| panic!("no case {}", target.case));
            for measure in [Some(target.measure), target.also].into_iter().flatten() {
                let measured = case.measures.iter().any(|(name, ..)| *name == measure);
                assert!(measured, "{} does not measure {measure}", target.case);
            }
            let names = [Some(target.ours), target.peer].into_iter().flatten();
            for name in names.chain(target.others.iter().copied()) {
                let competes = case.contenders.iter().any(|contender| contender.name == name);
                assert!(competes, "{name} does not compete in {}", target.case);
            }
        }
    }

    #[test]
    fn the_stricter_account_counts() {
        let is_loop = |target: &&Target| target.also.is_some() && target.points == ["1500 io"];
        let target = TARGETS.iter().find(is_loop).expect("a target");
        let case = cases::ALL.iter().find(|case| case.name == target.case);
        let mut record = Record::new(case.expect("a case"), &crate::Effort::new(true, Some(1)));
        let mut add = |contender: &str, measure: &str, value: f64| {
            record
                .add("1500 io", contender, measure, value)
                .expect("a number");
            target.reached(&record).map(|spread| spread.median)
        };
        assert_eq!(add("ovs-dpdk", "busy cycles", 400.0), None);
        assert_eq!(
            add("hyperswitch", "busy cycles", 100.0),
            None,
            "busy cycles alone"
        );
        assert_eq!(add("ovs-dpdk", "awake cycles", 450.0), None);
        assert_eq!(add("hyperswitch", "awake cycles", 150.0), Some(3.0));
    }

    #[test]
    fn the_best_of_several_peers_counts() {
        let is_apart = |target: &&Target| target.case == "flows-apart";
        let target = TARGETS.iter().find(is_apart).expect("a target");
        let case = cases::ALL.iter().find(|case| case.name == target.case);
        let mut record = Record::new(case.expect("a case"), &crate::Effort::new(true, Some(1)));
        for (contender, cycles) in [
            (BY_PORTS, 100.0),
            (OVS_PORTS, 300.0),
            (OVS_PORTS_EMC, 150.0),
            (OVS_PORTS_SMC, 200.0),
        ] {
            for measure in ["busy cycles", "awake cycles"] {
                record
                    .add(target.points[0], contender.name, measure, cycles)
                    .expect("a number");
            }
        }
        assert_eq!(target.reached(&record).map(|spread| spread.median), Some(1.5));
    }

    #[test]
    fn the_least_favourable_point_counts() {
        let case = cases::ALL
            .iter()
            .find(|case| case.name == "idle")
            .expect("a case");
        let mut record = Record::new(case, &crate::Effort::new(true, Some(1)));
        let target = TARGETS
            .iter()
            .find(|target| target.case == "idle")
            .expect("a target");
        assert_eq!(target.reached(&record), None);
        record
            .add("100 unused", "hyperswitch", "processor", 0.0)
            .expect("a number");
        let reached = target.reached(&record).expect("measured");
        assert_eq!(target.verdict(&record, reached), "goal");
        record
            .add("100 connected", "hyperswitch", "processor", 0.1)
            .expect("a number");
        let reached = target.reached(&record).expect("measured");
        assert_eq!((reached.median, target.verdict(&record, reached)), (0.1, "floor"));
    }
}
