//! The cost of a placement decision with the product's own view: the ports, executors and published states of
//! machines from 2 to 256 cores with 2 to 2,000 ports, every guest's thread blocked on some core, a quarter
//! of the cores busy.
//!
//! `cargo test --release -p scheduler decision_cost -- --ignored --nocapture`

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::home::Home;
use crate::placement::Placement;
use crate::testing::Table;
use ::placement::{Backlog, Config, Costs, Cpu, Policy, Shape, Topology, VnicId};
use std::hint::black_box;
use std::time::Instant;
use vm_state::{TestArea, ThreadState, VmState};

const DECISIONS: u32 = 20_000;
const RUNS: usize = 32;

/// Task numbers of guests' threads begin here, and those of others.
const GUEST: u32 = 1_000;
const OTHER: u32 = 1;

struct Rig {
    placement: Placement,
    table: Table,
    cores: u16,
}

impl Rig {
    /// Nodes of 64 cores, with last-level caches of eight.
    fn new(cores: u16, ports: u32) -> Rig {
        let shape = Shape {
            nodes: cores.div_ceil(64),
            llcs: cores.min(64).div_ceil(8),
            modules: cores.min(8),
            cpus: 1,
        };
        let area = TestArea::new().unwrap();
        let mut table = Table::default();
        for cpu in 0..u32::from(cores) {
            area.runs(cpu, if cpu % 4 == 0 { OTHER } else { 0 });
        }
        for number in 0..ports {
            let home = Home::new(VnicId(number), None);
            let state = ThreadState::Blocked(number % u32::from(cores));
            let slot = area.thread(GUEST + number, state).unwrap();
            home.set_threads(Box::new([slot]));
            table.0.push(home);
        }
        let facts = VmState::map(area.descriptor()).unwrap();
        Rig {
            placement: placement(shape, Some(facts)),
            table,
            cores,
        }
    }

    /// Which thread copies, and when the receiver is notified: the questions for each burst.
    fn decide(&self, number: u32) {
        let view = self.placement.view(&self.table);
        let receiver = VnicId(number % self.table.0.len() as u32);
        let backlog = Backlog {
            packets: 32,
            bytes: 32 * 64 * 1024,
        };
        let here = Cpu(number as u16 % self.cores);
        black_box(self.placement.policy.copier(&view, here, receiver, backlog));
    }

    /// Nanoseconds per decision, the lower quartile of some runs: others on the machine only make it slower.
    fn cost(&self) -> f64 {
        let run = |_| {
            let start = Instant::now();
            (0..DECISIONS).for_each(|number| self.decide(number.wrapping_mul(0x9E37_79B9) >> 8));
            start.elapsed().as_nanos() as f64 / f64::from(DECISIONS)
        };
        let mut runs: [f64; RUNS] = std::array::from_fn(run);
        runs.sort_by(f64::total_cmp);
        runs[RUNS / 4]
    }
}

fn placement(shape: Shape, facts: Option<VmState>) -> Placement {
    let policy = Policy::new(Config::default(), Topology::regular(shape), Costs::default());
    Placement::new(policy, facts).unwrap()
}

#[test]
#[ignore = "a measurement"]
fn decisions_cost_the_same_on_all_machines() {
    println!("nanoseconds per decision\ncores  ports:     2    20   200  2000");
    for cores in [2, 8, 64, 256] {
        let costs = [2, 20, 200, 2000].map(|ports| Rig::new(cores, ports).cost());
        println!(
            "{cores:5} {:12.0} {:5.0} {:5.0} {:5.0}",
            costs[0], costs[1], costs[2], costs[3]
        );
    }
}

/// The cost does not grow with ports and cores beyond the misses of caches.
#[test]
fn a_decision_does_not_ask_all_ports() {
    let (small, large) = (Rig::new(64, 20), Rig::new(64, 1000));
    let (few, many) = (small.cost(), large.cost());
    // Asking all of them would take fifty times as long.
    assert!(
        many < 10.0 * few,
        "{few:.0} ns with 20 ports, {many:.0} ns with 1000"
    );
}
