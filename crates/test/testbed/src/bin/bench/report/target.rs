//! What is to be reached on one machine, in interleaved rounds, and what was.

mod list;
mod uplinks;

use super::Results;
use super::table::{digits, spread_text};
use crate::record::{Better, Record, Spread};
use list::TARGETS;
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

fn all() -> impl Iterator<Item = &'static Target> {
    TARGETS.iter().chain(uplinks::TARGETS)
}

/// All targets with what was measured.
pub fn table(results: &Results) -> String {
    let mut text =
        "| measure | floor | goal | measured | reached | commit |\n|---|---|---|---|---|---|\n".to_owned();
    for target in all() {
        let record = results.cases.get(target.case);
        let reached = record.and_then(|record| Some((record, target.reached(record)?)));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            target.what,
            digits(target.floor),
            digits(target.goal),
            reached.map_or_else(|| "not measured".into(), |(_, spread)| spread_text(spread)),
            reached.map_or("", |(record, spread)| target.verdict(record, spread)),
            reached.map_or("", |(record, _)| record.commit.as_str()),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;
    use crate::contender::{BY_PORTS, OVS_PORTS, OVS_PORTS_EMC, OVS_PORTS_SMC};

    #[test]
    fn targets_name_what_cases_measure() {
        for target in all() {
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
