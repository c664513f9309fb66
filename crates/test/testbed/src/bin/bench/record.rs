//! What was measured: values of rounds, by point, contender and measure; their medians, and ratios.
//!
//! Rounds are interleaved, so the values of one round of two contenders were measured within moments of each
//! other. A ratio is the median of the rounds' ratios, with their quartiles as its spread. It is always
//! turned so that more than 1 means that we are better.

use crate::machine::Machine;
use crate::{Case, Effort};
use anyhow::{Error, Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use testbed::build_dir;
use testbed::endpoint::{Endpoint, Host};

/// Which direction is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    Higher,
    Lower,
}

/// A quantity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    pub name: String,
    pub unit: String,
    pub better: Better,
}

/// Values per round, by measure, by contender.
type Values = BTreeMap<String, BTreeMap<String, Vec<f64>>>;

/// One point of a case: a packet size, a number of guests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub label: String,
    pub contenders: Values,
    /// Nanoseconds of a cache line's round trip between the first and the last processor, before each round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cache_line: Vec<f64>,
}

/// Results of one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub case: String,
    pub about: String,
    /// What the points differ in.
    pub axis: String,
    pub rounds: usize,
    /// The commit that was measured.
    pub commit: String,
    /// The machine that it was measured on, if that was noted.
    #[serde(default)]
    pub machine: Option<Machine>,
    /// Whether it was a quick look.
    #[serde(default)]
    pub quick: bool,
    /// How long all of it took.
    #[serde(default)]
    pub seconds: u64,
    /// What is part of the labels of points that are measured.
    #[serde(skip)]
    pub part: String,
    pub measures: Vec<Measure>,
    pub points: Vec<Point>,
    /// Who gave up, where and why, a sentence each.
    #[serde(default)]
    pub gave_up: Vec<String>,
    /// Seconds during which the machine was watched, and processor seconds that others had meanwhile.
    #[serde(default)]
    pub beside: [f64; 2],
}

/// A median and the quartiles of what it was taken from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub lower: f64,
    pub upper: f64,
}

impl Spread {
    /// Of no values there is none. Quartiles between two values are interpolated.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Spread {
            median: quarters(&sorted, 2)?,
            lower: quarters(&sorted, 1)?,
            upper: quarters(&sorted, 3)?,
        })
    }
}

/// What so many quarters of the way from the first to the last of sorted values lead to.
fn quarters(sorted: &[f64], count: usize) -> Option<f64> {
    let way = sorted.len().checked_sub(1)? * count;
    let (low, high) = (sorted[way / 4], sorted[way.div_ceil(4)]);
    let part = [0.0, 0.25, 0.5, 0.75][way % 4];
    Some((high - low).mul_add(part, low))
}

/// In place of a value, of a measure that there is not at this point.
pub const NOT_HERE: f64 = f64::NEG_INFINITY;

/// The last commit that changed more than documents, with `-dirty` if files were changed since. Results are
/// documents: those of one case would make the next one another commit's.
pub fn commit() -> String {
    let git = format!(
        "git -c safe.directory='*' -C {}",
        build_dir::workspace().display()
    );
    let run = |query: &str| Host.run(&format!("{git} {query}")).ok();
    let measured = "-- . ':(exclude)docs' ':(exclude)*.md'";
    let head = run(&format!("log -1 --format=%h {measured}")).filter(|output| output.success());
    let changes = run(&format!("status --porcelain --untracked-files=no {measured}"));
    match (head, changes.filter(|output| output.success())) {
        (Some(head), Some(changes)) => {
            let dirty = if changes.stdout.trim().is_empty() {
                ""
            } else {
                "-dirty"
            };
            format!("{}{dirty}", head.stdout.trim())
        }
        _ => "unknown".into(),
    }
}

impl Record {
    pub fn new(case: &Case, effort: &Effort) -> Record {
        Record {
            case: case.name.into(),
            about: case.about.into(),
            axis: case.axis.into(),
            rounds: effort.rounds,
            commit: commit(),
            machine: Some(Machine::this()),
            quick: effort.quick,
            seconds: 0,
            part: String::new(),
            measures: case
                .measures
                .iter()
                .map(|&(name, unit, better)| Measure {
                    name: name.into(),
                    unit: unit.into(),
                    better,
                })
                .collect(),
            points: Vec::new(),
            gave_up: Vec::new(),
            beside: [0.0; 2],
        }
    }

    /// Notes seconds, and processor seconds that others had meanwhile.
    pub fn beside(&mut self, seen: [f64; 2]) {
        for (sum, seen) in self.beside.iter_mut().zip(seen) {
            *sum += seen;
        }
    }

    /// Percent of a core that others had while this was measured, if that is known.
    pub fn others(&self) -> Option<f64> {
        let [seconds, others] = self.beside;
        (seconds > 0.0).then(|| (100.0 * others / seconds).max(0.0))
    }

    /// Whether this is what measuring on this machine would find: the same commit, without changes, and as
    /// thoroughly.
    pub fn is_of(&self, machine: &Machine, commit: &str, quick: bool) -> bool {
        let known = commit != "unknown" && !commit.ends_with("-dirty");
        known && self.commit == commit && self.machine.as_ref() == Some(machine) && (quick || !self.quick)
    }

    /// Notes a value of one round. Fails if it is no number.
    ///
    /// # Panics
    /// If the case did not announce the measure.
    pub fn add(&mut self, point: &str, contender: &str, measure: &str, value: f64) -> Result<()> {
        ensure!(value.is_finite(), "{point}: {measure} of {contender} is {value}");
        let unit = &self.measure(measure).unit;
        println!("  {point:<28} {contender:<20} {value:12.3} {unit}");
        let values = self.point(point).contenders.entry(contender.into()).or_default();
        values.entry(measure.into()).or_default().push(value);
        Ok(())
    }

    /// Notes how long a cache line's round trip takes before a round, if that is known.
    pub fn cache_line(&mut self, point: &str, nanoseconds: Option<f64>) {
        self.point(point).cache_line.extend(nanoseconds);
    }

    fn point(&mut self, label: &str) -> &mut Point {
        let known = self.points.iter().position(|point| point.label == label);
        let index = known.unwrap_or_else(|| {
            self.points.push(Point {
                label: label.into(),
                contenders: Values::new(),
                cache_line: Vec::new(),
            });
            self.points.len() - 1
        });
        &mut self.points[index]
    }

    /// Notes one round's values of all measures, in the order in which the case announced them. [`NOT_HERE`]
    /// is left out.
    ///
    /// # Panics
    /// If there are more or fewer.
    pub fn add_all(&mut self, point: &str, contender: &str, values: &[f64]) -> Result<()> {
        let names: Vec<String> = self.measures.iter().map(|measure| measure.name.clone()).collect();
        assert_eq!(names.len(), values.len(), "cases measure what they announce");
        for (name, value) in names.iter().zip(values).filter(|(_, value)| **value != NOT_HERE) {
            self.add(point, contender, name, *value)?;
        }
        Ok(())
    }

    /// Notes that a contender failed at a point and is measured no further.
    pub fn give_up(&mut self, point: &str, contender: &str, error: &Error) {
        let sentence = format!("{contender} gave up at {point}: {error:#}");
        println!("  {sentence}");
        self.gave_up.push(sentence);
    }

    /// Points at which a measure was taken.
    pub fn points_of(&self, measure: &str) -> impl Iterator<Item = &str> {
        let points = self.points.iter().filter(move |point| {
            let mut contenders = point.contenders.values();
            contenders.any(|values| values.contains_key(measure))
        });
        points.map(|point| point.label.as_str())
    }

    /// A measure that the case announced.
    ///
    /// # Panics
    /// If it did not.
    pub fn measure(&self, name: &str) -> &Measure {
        self.measures
            .iter()
            .find(|measure| measure.name == name)
            .expect("cases measure what they announce")
    }

    /// Contenders that have values of a measure, ours first.
    pub fn contenders(&self, measure: &str) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .points
            .iter()
            .flat_map(|point| &point.contenders)
            .filter(|(_, measures)| measures.contains_key(measure))
            .map(|(name, _)| name.as_str())
            .collect();
        names.sort_by_key(|name| (!name.starts_with(crate::contender::HYPERSWITCH.name), *name));
        names.dedup();
        names
    }

    fn rounds_of(&self, point: &str, contender: &str, measure: &str) -> Option<&[f64]> {
        let point = self.points.iter().find(|known| known.label == point)?;
        Some(point.contenders.get(contender)?.get(measure)?)
    }

    /// Median and spread of a contender.
    pub fn value(&self, point: &str, contender: &str, measure: &str) -> Option<Spread> {
        Spread::of(self.rounds_of(point, contender, measure)?)
    }

    /// A cache line's round trip at a point in nanoseconds, if that is known.
    pub fn cache_line_of(&self, label: &str) -> Option<Spread> {
        let point = self.points.iter().find(|known| known.label == label)?;
        Spread::of(&point.cache_line)
    }

    /// How many times better `ours` is than `peer`.
    pub fn ratio(&self, point: &str, ours: &str, peer: &str, measure: &str) -> Option<Spread> {
        let [ours, peer] = [ours, peer].map(|name| self.rounds_of(point, name, measure));
        let better = self.measures.iter().find(|known| known.name == measure)?.better;
        let ratios: Vec<f64> = ours?
            .iter()
            .zip(peer?)
            .map(|(ours, peer)| match better {
                Better::Higher => ours / peer,
                Better::Lower => peer / ours,
            })
            .filter(|ratio| ratio.is_finite())
            .collect();
        Spread::of(&ratios)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(better: Better) -> Record {
        let mut record = Record {
            case: "case".into(),
            about: String::new(),
            axis: String::new(),
            rounds: 3,
            commit: String::new(),
            machine: None,
            quick: false,
            seconds: 0,
            part: String::new(),
            measures: vec![Measure {
                name: "rate".into(),
                unit: "1/s".into(),
                better,
            }],
            points: Vec::new(),
            gave_up: Vec::new(),
            beside: [0.0; 2],
        };
        for (ours, peer) in [(2.0, 1.0), (9.0, 3.0), (4.0, 4.0)] {
            record.add("64", "hyperswitch", "rate", ours).expect("a number");
            record.add("64", "bridge", "rate", peer).expect("a number");
        }
        record
    }

    #[test]
    fn ratios_are_taken_within_rounds_and_more_is_better() {
        let spread = |median, lower, upper| Some(Spread { median, lower, upper });
        let higher = record(Better::Higher);
        assert_eq!(
            higher.ratio("64", "hyperswitch", "bridge", "rate"),
            spread(2.0, 1.5, 2.5)
        );
        let lower = record(Better::Lower);
        assert_eq!(
            lower.ratio("64", "hyperswitch", "bridge", "rate"),
            spread(0.5, (1.0_f64 / 3.0).midpoint(0.5), 0.75)
        );
        assert_eq!(higher.value("64", "bridge", "rate"), spread(3.0, 2.0, 3.5));
        assert_eq!(higher.ratio("64", "hyperswitch", "nobody", "rate"), None);
        assert_eq!(higher.contenders("rate"), ["hyperswitch", "bridge"]);
        assert_eq!(higher.cache_line_of("64"), None);
    }

    #[test]
    fn others_are_known_where_somebody_looked() {
        let mut record = record(Better::Higher);
        assert_eq!(record.others(), None);
        record.beside([1.0, 0.5]);
        record.beside([3.0, 0.5]);
        assert_eq!(record.others(), Some(25.0));
        record.beside([1.0, -2.0]);
        assert_eq!(record.others(), Some(0.0), "ticks are coarse");
    }

    #[test]
    fn medians_and_quartiles() {
        let of = |values: &[f64]| {
            let spread = Spread::of(values)?;
            Some([spread.lower, spread.median, spread.upper])
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[7.0]), Some([7.0; 3]));
        assert_eq!(of(&[2.0, 1.0]), Some([1.25, 1.5, 1.75]));
        assert_eq!(of(&[3.0, 1.0, 2.0]), Some([1.5, 2.0, 2.5]));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), Some([1.75, 2.5, 3.25]));
        // One value that is far off moves none of the three.
        assert_eq!(of(&[5.0, 1.0, 1000.0, 2.0, 3.0]), Some([2.0, 3.0, 5.0]));
    }

    #[test]
    fn what_was_measured_on_this_commit_need_not_be_measured_again() {
        let machine = Machine::this();
        let mut record = record(Better::Higher);
        record.commit = "abc".into();
        assert!(!record.is_of(&machine, "abc", false), "nobody knows where");
        record.machine = Some(machine.clone());
        assert!(record.is_of(&machine, "abc", false) && record.is_of(&machine, "abc", true));
        assert!(!record.is_of(&machine, "abd", false));
        let other = Machine {
            cores: machine.cores + 1,
            ..machine.clone()
        };
        assert!(!record.is_of(&other, "abc", false));
        record.quick = true;
        assert!(!record.is_of(&machine, "abc", false) && record.is_of(&machine, "abc", true));
        for commit in ["unknown", "abc-dirty"] {
            record.commit = commit.into();
            assert!(!record.is_of(&machine, commit, true), "{commit}");
        }
    }
}
