//! Rates, from one reading of all figures to the next, with what each port did lately.

use super::super::rate::Rate;
use crate::cli::SortBy;
use control_protocol::work::WorkerReport;
use management::{Counters, PortFigures, Snapshot};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Readings that are remembered of each port.
pub const REMEMBERED: usize = 60;

/// Ports that are named beside a core.
const NAMED: usize = 4;

/// A port's figures.
#[derive(Debug)]
pub struct Port {
    pub figures: PortFigures,
    pub rate: Rate,
    /// Packets per second from the guest and to it, oldest first, [`REMEMBERED`] at most.
    pub lately: VecDeque<(f64, f64)>,
}

impl Port {
    /// Packets per second both ways.
    pub fn packets(&self) -> f64 {
        self.rate.received + self.rate.transmitted
    }
}

/// What a forwarding thread did.
#[derive(Debug, PartialEq)]
pub struct Core {
    /// Name of the thread: that of a worker ends with the number of its core.
    pub name: String,
    /// Fraction of the time in which it moved packets, 0 to 1.
    pub busy: f64,
    /// Fraction of the time in which it was awake and found none.
    pub polling: f64,
    /// Ports with packets whose kicks it receives, the busiest first, some of them.
    pub ports: Vec<String>,
}

/// All figures, as of the last reading.
#[derive(Debug, Default)]
pub struct Figures {
    pub latest: Option<Snapshot>,
    pub ports: Vec<Port>,
    pub cores: Vec<Core>,
    pub total: Rate,
}

impl Figures {
    /// Takes in a reading, so long after the one before. The first one has no rates.
    pub fn take(&mut self, now: Snapshot, elapsed: Duration) {
        let is_first = self.latest.is_none();
        let mut old: HashMap<String, Port> = std::mem::take(&mut self.ports)
            .into_iter()
            .map(|port| (port.figures.name.clone(), port))
            .collect();
        self.total = Rate::default();
        for figures in &now.ports {
            let before = old.remove(&figures.name);
            let (counters, mut lately) = match before {
                Some(port) => (port.figures.counters, port.lately),
                None => (None, VecDeque::new()),
            };
            let rate = rate(counters.as_ref(), figures.counters.as_ref(), elapsed, is_first);
            if !is_first {
                if lately.len() == REMEMBERED {
                    lately.pop_front();
                }
                lately.push_back((rate.received, rate.transmitted));
            }
            self.total.add(&rate);
            self.ports.push(Port {
                figures: figures.clone(),
                rate,
                lately,
            });
        }
        self.cores = self.cores_between(&now, elapsed);
        self.latest = Some(now);
    }

    fn cores_between(&self, now: &Snapshot, elapsed: Duration) -> Vec<Core> {
        let before = self.latest.as_ref().and_then(|latest| latest.work.as_ref());
        let (Some(before), Some(work)) = (before, &now.work) else {
            return Vec::new();
        };
        let cycles = work.cycles_per_second as f64 * elapsed.as_secs_f64();
        let before: HashMap<&str, &WorkerReport> = before
            .workers
            .iter()
            .map(|worker| (worker.name.as_str(), worker))
            .collect();
        let core = |worker: &WorkerReport| {
            let old = before.get(worker.name.as_str())?;
            let part = |of: fn(&WorkerReport) -> u64| {
                let cycles_spent = of(worker).saturating_sub(of(old)) as f64;
                (cycles_spent / cycles.max(1.0)).min(1.0)
            };
            let (busy, awake) = (part(|it| it.busy_cycles), part(|it| it.awake_cycles));
            Some(Core {
                name: worker.name.clone(),
                busy,
                polling: (awake - busy).max(0.0),
                ports: self.ports_of(&worker.name),
            })
        };
        work.workers.iter().filter_map(core).collect()
    }

    /// Ports with packets whose kicks the thread receives.
    fn ports_of(&self, thread: &str) -> Vec<String> {
        let number = thread
            .strip_prefix("worker-")
            .and_then(|number| number.parse().ok());
        let Some(core) = number else {
            return Vec::new();
        };
        let served = |port: &&Port| port.figures.core == Some(core) && port.packets() > 0.0;
        let mut ports: Vec<&Port> = self.ports.iter().filter(served).collect();
        ports.sort_by(|a, b| b.packets().total_cmp(&a.packets()));
        let names = ports.iter().take(NAMED).map(|port| port.figures.name.clone());
        names.collect()
    }

    /// Ports whose names contain a text, in an order; equal ones in that of their names.
    pub fn sorted(&self, sort: SortBy, filter: &str) -> Vec<&Port> {
        let mut ports: Vec<&Port> = self.ports.iter().collect();
        ports.retain(|port| port.figures.name.contains(filter));
        ports.sort_by(|a, b| sort.key(&b.rate).total_cmp(&sort.key(&a.rate)));
        ports
    }
}

fn rate(before: Option<&Counters>, now: Option<&Counters>, elapsed: Duration, is_first: bool) -> Rate {
    match now {
        Some(now) if !is_first => Rate::between(before.unwrap_or(&Counters::default()), now, elapsed),
        _ => Rate::default(),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use control_protocol::work::WorkReport;
    use management::Process;

    /// A reading in which each port has sent as many packets as its number times `step`.
    pub fn reading(ports: u32, step: u64) -> Snapshot {
        let port = |number: u32| PortFigures {
            device: None,
            name: format!("vm{number}"),
            switch: "sw0".into(),
            state: "running".into(),
            has_problem: number == 2,
            core: Some((number % 2) as u16),
            counters: Some(Counters {
                received: u64::from(number) * step,
                received_bytes: u64::from(number) * step * 100,
                transmitted: u64::from(number) * step / 2,
                dropped: [("port-down".to_owned(), u64::from(number) * step)].into(),
                ..Counters::default()
            }),
        };
        let worker = |number: u64| WorkerReport {
            name: format!("worker-{number}"),
            busy_cycles: step * (number + 1),
            awake_cycles: step * (number + 1) * 2,
            ..WorkerReport::default()
        };
        Snapshot {
            version: "1.2.3".into(),
            warnings: 1,
            processes: vec![Process {
                role: "data-plane".into(),
                pid: Some(7),
                restarts: 2,
                last_exit: None,
                missing: None,
                trouble: None,
                serves: None,
                started_ms: Some(1),
            }],
            switches: Vec::new(),
            ports: (1..=ports).map(port).collect(),
            work: Some(WorkReport {
                cycles_per_second: 4_000,
                workers: (0..2).map(worker).collect(),
                ..WorkReport::default()
            }),
        }
    }

    #[test]
    fn rates_come_with_the_second_reading() {
        let mut figures = Figures::default();
        figures.take(reading(3, 1000), Duration::ZERO);
        assert_eq!(figures.total, Rate::default());
        assert!(figures.cores.is_empty() && figures.ports[0].lately.is_empty());
        figures.take(reading(4, 2000), Duration::from_secs(1));
        let rates: Vec<f64> = figures.ports.iter().map(|port| port.rate.received).collect();
        // The fourth port is new.
        assert_eq!(rates, [1000.0, 2000.0, 3000.0, 8000.0]);
        assert_eq!(figures.total.dropped["port-down"], 14_000.0);
        let cores: Vec<_> = figures
            .cores
            .iter()
            .map(|core| (core.busy, core.polling))
            .collect();
        assert_eq!(cores, [(0.25, 0.25), (0.5, 0.5)]);
        assert_eq!(figures.cores[1].ports, ["vm3", "vm1"]);
        let names = |sort, filter| -> Vec<String> {
            let ports = figures.sorted(sort, filter);
            ports.iter().map(|port| port.figures.name.clone()).collect()
        };
        assert_eq!(names(SortBy::Rx, ""), ["vm4", "vm3", "vm2", "vm1"]);
        assert_eq!(names(SortBy::Name, "3"), ["vm3"]);
    }

    #[test]
    fn no_more_readings_are_kept_than_are_shown() {
        let mut figures = Figures::default();
        for step in 0..2 * REMEMBERED as u64 {
            figures.take(reading(1, step), Duration::from_secs(1));
        }
        assert_eq!(figures.ports[0].lately.len(), REMEMBERED);
    }
}
