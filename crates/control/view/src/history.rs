//! Rates of the last 15 minutes, from the figures that came meanwhile.

use management::{Counters, Snapshot};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// The time that is remembered, and the least one between two samples.
const REMEMBERED: Duration = Duration::from_secs(15 * 60);
const PERIOD: Duration = Duration::from_secs(5);

/// Ports whose rates are remembered: 1,440 bytes each.
const MAX_PORTS: usize = 1_024;

/// Packets per second from a guest and to it.
type Rates = (f32, f32);

/// See the module.
#[derive(Debug, Default)]
pub struct History {
    /// Times of samples, oldest first; the first one has no rates.
    times: VecDeque<Instant>,
    /// Rates of each port; the last one is that of the last sample.
    ports: BTreeMap<String, VecDeque<Rates>>,
    /// Counts of each port as of the last sample.
    before: HashMap<String, (u64, u64)>,
}

impl History {
    /// Takes a sample, unless the last one is not long ago.
    pub fn take(&mut self, snapshot: &Snapshot, now: Instant) {
        let last = self.times.back().copied();
        if last.is_some_and(|last| now.saturating_duration_since(last) < PERIOD) {
            return;
        }
        let counted = snapshot.ports.iter().take(MAX_PORTS).filter_map(|port| {
            let counters: &Counters = port.counters.as_ref()?;
            Some((port.name.clone(), (counters.received, counters.transmitted)))
        });
        let counted: HashMap<String, (u64, u64)> = counted.collect();
        if let Some(last) = last {
            let seconds = (now - last).as_secs_f32();
            // A port that was added again, or a new data plane, begins at 0.
            let rate = |before: u64, now: u64| now.saturating_sub(before) as f32 / seconds;
            self.ports.retain(|name, _| counted.contains_key(name));
            for (name, (received, transmitted)) in &counted {
                let before = self
                    .before
                    .get(name)
                    .copied()
                    .unwrap_or((*received, *transmitted));
                let rates = (rate(before.0, *received), rate(before.1, *transmitted));
                self.ports.entry(name.clone()).or_default().push_back(rates);
            }
        }
        self.before = counted;
        self.times.push_back(now);
        let is_old = |time: &Instant| now.saturating_duration_since(*time) > REMEMBERED;
        while self.times.front().is_some_and(is_old) {
            self.times.pop_front();
        }
        let samples = self.times.len().saturating_sub(1);
        for rates in self.ports.values_mut() {
            rates.drain(..rates.len().saturating_sub(samples));
        }
    }

    /// Ages of the samples in seconds, and of each port the rates at the last ones of them.
    pub fn json(&self, now: Instant) -> String {
        let age = |time: &Instant| now.saturating_duration_since(*time).as_secs();
        let ages: Vec<u64> = self.times.iter().skip(1).map(age).collect();
        let round = |rate: f32| f64::from((rate * 10.0).round()) / 10.0;
        let ports: serde_json::Map<String, Value> = self
            .ports
            .iter()
            .map(|(name, rates)| {
                let rates = rates.iter().map(|(from, to)| json!([round(*from), round(*to)]));
                (name.clone(), rates.collect())
            })
            .collect();
        json!({ "ages": ages, "ports": ports }).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use management::PortFigures;

    fn snapshot(ports: &[(&str, u64)]) -> Snapshot {
        let port = |(name, received): &(&str, u64)| PortFigures {
            device: None,
            name: (*name).into(),
            switch: "s".into(),
            state: "running".into(),
            has_problem: false,
            core: None,
            counters: Some(Counters {
                received: *received,
                ..Counters::default()
            }),
        };
        Snapshot {
            version: String::new(),
            warnings: 0,
            processes: Vec::new(),
            switches: Vec::new(),
            ports: ports.iter().map(port).collect(),
            work: None,
        }
    }

    #[test]
    fn rates_of_the_last_quarter_of_an_hour_are_known() {
        let (mut history, start) = (History::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        history.take(&snapshot(&[("a", 100)]), at(0));
        assert_eq!(history.json(at(0)), r#"{"ages":[],"ports":{}}"#);
        // Too early.
        history.take(&snapshot(&[("a", 9999)]), at(4));
        history.take(&snapshot(&[("a", 200), ("b", 5)]), at(10));
        assert_eq!(
            history.json(at(11)),
            r#"{"ages":[1],"ports":{"a":[[10.0,0.0]],"b":[[0.0,0.0]]}}"#
        );
        // A new data plane counts from 0.
        history.take(&snapshot(&[("b", 0)]), at(20));
        assert_eq!(
            history.json(at(20)),
            r#"{"ages":[10,0],"ports":{"b":[[0.0,0.0],[0.0,0.0]]}}"#
        );
        for sample in 0..1000 {
            history.take(&snapshot(&[("b", sample)]), at(30 + 5 * sample));
        }
        assert_eq!((history.times.len(), history.ports["b"].len()), (181, 180));
    }

    #[test]
    fn no_more_ports_are_remembered_than_may_be() {
        let names: Vec<String> = (0..MAX_PORTS + 10).map(|number| number.to_string()).collect();
        let ports: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let (mut history, start) = (History::default(), Instant::now());
        history.take(&snapshot(&ports), start);
        history.take(&snapshot(&ports), start + PERIOD);
        assert_eq!(history.ports.len(), MAX_PORTS);
    }
}
