//! What was measured: values of rounds, by point, contender and measure; their medians, and ratios.
//!
//! Rounds are interleaved, so the values of one round of two contenders were measured within moments of each other. A
//! ratio is the median of the rounds' ratios, with the lowest and the highest as its spread. It is always turned so
//! that more than 1 means that we are better.

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
    pub measures: Vec<Measure>,
    pub points: Vec<Point>,
    /// Who gave up, where and why, a sentence each.
    #[serde(default)]
    pub gave_up: Vec<String>,
}

/// A median and the lowest and highest of what it was taken from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Spread {
    /// Of no values there is none.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Spread { median, low, high })
    }
}

fn commit() -> String {
    let directory = build_dir::workspace();
    let query = format!(
        "git -c safe.directory='*' -C {} describe --always --dirty --exclude '*'",
        directory.display()
    );
    let output = Host.run(&query).map(|output| output.stdout);
    output.map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

impl Record {
    pub fn new(case: &Case, effort: &Effort) -> Record {
        Record {
            case: case.name.into(),
            about: case.about.into(),
            axis: case.axis.into(),
            rounds: effort.rounds,
            commit: commit(),
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
        }
    }

    /// Notes a value of one round. Fails if it is no number.
    ///
    /// # Panics
    /// If the case did not announce the measure.
    pub fn add(&mut self, point: &str, contender: &str, measure: &str, value: f64) -> Result<()> {
        ensure!(value.is_finite(), "{point}: {measure} of {contender} is {value}");
        let unit = &self.measure(measure).unit;
        println!("  {point:<28} {contender:<20} {value:12.3} {unit}");
        let index = match self.points.iter().position(|known| known.label == point) {
            Some(index) => index,
            None => {
                self.points.push(Point {
                    label: point.into(),
                    contenders: Values::new(),
                });
                self.points.len() - 1
            }
        };
        let values = self.points[index].contenders.entry(contender.into()).or_default();
        values.entry(measure.into()).or_default().push(value);
        Ok(())
    }

    /// Notes one round's values of all measures, in the order in which the case announced them.
    ///
    /// # Panics
    /// If there are more or fewer.
    pub fn add_all(&mut self, point: &str, contender: &str, values: &[f64]) -> Result<()> {
        let names: Vec<String> = self.measures.iter().map(|measure| measure.name.clone()).collect();
        assert_eq!(names.len(), values.len(), "cases measure what they announce");
        for (name, value) in names.iter().zip(values) {
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
            measures: vec![Measure {
                name: "rate".into(),
                unit: "1/s".into(),
                better,
            }],
            points: Vec::new(),
            gave_up: Vec::new(),
        };
        for (ours, peer) in [(2.0, 1.0), (9.0, 3.0), (4.0, 4.0)] {
            record.add("64", "hyperswitch", "rate", ours).expect("a number");
            record.add("64", "bridge", "rate", peer).expect("a number");
        }
        record
    }

    #[test]
    fn ratios_are_taken_within_rounds_and_more_is_better() {
        let spread = |median, low, high| Some(Spread { median, low, high });
        let higher = record(Better::Higher);
        assert_eq!(
            higher.ratio("64", "hyperswitch", "bridge", "rate"),
            spread(2.0, 1.0, 3.0)
        );
        let lower = record(Better::Lower);
        assert_eq!(
            lower.ratio("64", "hyperswitch", "bridge", "rate"),
            spread(0.5, 1.0 / 3.0, 1.0)
        );
        assert_eq!(higher.value("64", "bridge", "rate"), spread(3.0, 1.0, 4.0));
        assert_eq!(higher.ratio("64", "hyperswitch", "nobody", "rate"), None);
        assert_eq!(higher.contenders("rate"), ["hyperswitch", "bridge"]);
    }

    #[test]
    fn medians() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(
            Spread::of(&[4.0, 1.0, 2.0, 3.0]).map(|spread| spread.median),
            Some(2.5)
        );
    }
}
