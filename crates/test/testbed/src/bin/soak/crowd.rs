//! All visitors, and the choice of the next event: one after the other, by the seed.

use crate::Stop;
use crate::footprint::Footprint;
use crate::pair::{Pair, v4};
use crate::visitors::{Attacker, Container, Polling, VirtualMachine, Visitor};
use anyhow::{Context, Result};
use fastrand::Rng;
use rustix::process::Signal;
use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};
use testbed::ping::reachable;
use testbed::switch::{Role, TIMEOUT};
use testbed::{Endpoint, Switch};

/// One in so many events is the death or the hang of one of the switch's processes.
const DEATH: usize = 20;

/// Longest pause between two events.
const PAUSE_MS: u64 = 2000;

const MINUTE: Duration = Duration::from_secs(60);

/// Events printed when something fails.
const HISTORY: usize = 20;

/// See the module's description.
pub struct Crowd {
    visitors: Vec<Box<dyn Visitor>>,
    random: Rng,
    history: History,
    killed: Vec<Role>,
}

/// Counts of events.
#[derive(Default)]
struct History {
    /// Print it.
    tell: bool,
    events: u64,
    last: VecDeque<String>,
}

impl History {
    fn note(&mut self, who: &str, what: &str) {
        let event = format!("{who} {what}");
        if self.tell {
            println!("{event}");
        }
        self.events += 1;
        if self.last.len() == HISTORY {
            self.last.pop_front();
        }
        self.last.push_back(event);
    }

    fn text(&self) -> String {
        let last: Vec<&str> = self.last.iter().map(String::as_str).collect();
        last.join(", ")
    }
}

impl Crowd {
    /// Nobody has arrived yet. `tell` has every event printed.
    pub fn new(seed: u64, tell: bool) -> Crowd {
        Crowd {
            visitors: vec![
                Box::new(VirtualMachine::configured("vm1", 11)),
                Box::new(VirtualMachine::by_command("vm2", 12)),
                Box::new(Container::new("ct1", 21)),
                Box::new(Container::new("ct2", 22)),
                Box::new(Polling::quiet(["quiet1", "quiet2"])),
                Box::new(Polling::in_a_loop("loop", ["loop1", "loop2"])),
                Box::new(Attacker::by_rings("hostile1")),
                Box::new(Attacker::by_rings("hostile2")),
                Box::new(Attacker::by_frames("hostile3")),
            ],
            random: Rng::with_seed(seed),
            history: History {
                tell,
                ..History::default()
            },
            killed: Vec::new(),
        }
    }

    /// How often a process of this role was killed or stopped.
    pub fn killed(&self, role: &str) -> u32 {
        self.killed
            .iter()
            .map(|killed| u32::from(killed.name() == role))
            .sum()
    }

    /// Lets things happen until the end.
    pub fn live(&mut self, switch: &Switch, pair: &Pair, end: Instant, stop: &Stop) -> Result<()> {
        let begin = Instant::now();
        let mut minutes = 0;
        let result = stop.until(|| {
            self.event(switch, pair)?;
            thread::sleep(Duration::from_millis(self.random.u64(..PAUSE_MS)));
            if begin.elapsed() >= MINUTE * (minutes + 1) {
                minutes += 1;
                self.report(minutes, switch)?;
            }
            if Instant::now() >= end {
                stop.raise();
            }
            Ok(())
        });
        result.with_context(|| format!("the last events were: {}", self.history.text()))
    }

    fn event(&mut self, switch: &Switch, pair: &Pair) -> Result<()> {
        if self.random.usize(..DEATH) == 0 {
            return self.end_process(switch);
        }
        let chosen = self.random.usize(..self.visitors.len());
        let (visitor, random) = (&mut self.visitors[chosen], &mut self.random);
        let name = visitor.name();
        if !visitor.is_here() {
            self.history.note(name, "arrives");
            visitor.arrive(switch, random)
        } else if random.bool() {
            self.history.note(name, "works");
            visitor.work(switch, pair, random)
        } else {
            self.history.note(name, "leaves");
            visitor.leave(switch, random)
        }
    }

    /// Kills or stops a process, which is replaced in both cases.
    fn end_process(&mut self, switch: &Switch) -> Result<()> {
        let role = match (self.random.bool(), self.random.bool()) {
            (true, _) => Role::Control,
            (false, true) => Role::Driver,
            (false, false) => Role::Taps,
        };
        let (signal, what) = if self.random.bool() {
            (Signal::KILL, "is killed")
        } else {
            (Signal::STOP, "is stopped")
        };
        self.history.note(role.name(), what);
        self.killed.push(role);
        let old = switch.signal(role, signal)?;
        switch.wait_replaced(role, old)
    }

    /// Has all visitors come and work, and everybody reach everybody; then all go.
    pub fn roll_call(&mut self, switch: &Switch, pair: &Pair) -> Result<()> {
        for visitor in &mut self.visitors {
            if !visitor.is_here() {
                visitor.arrive(switch, &mut self.random)?;
            }
        }
        for visitor in &mut self.visitors {
            visitor.work(switch, pair, &mut self.random)?;
        }
        let visitors = self.visitors.iter().filter_map(|visitor| visitor.endpoint());
        let steady: [(&dyn Endpoint, u8); 2] = [(&pair.a, 1), (&pair.b, 2)];
        let endpoints: Vec<(&dyn Endpoint, u8)> = steady.into_iter().chain(visitors).collect();
        reach_each_other(&endpoints)?;
        for visitor in &mut self.visitors {
            visitor.leave(switch, &mut self.random)?;
        }
        Ok(())
    }

    /// One line: what has happened, and what the switch counts, on the ports there are, and holds.
    fn report(&self, minutes: u32, switch: &Switch) -> Result<()> {
        let total = switch.stats()?.total;
        let held = Footprint::of_data_plane(switch)?;
        let drops: Vec<String> = total
            .dropped
            .iter()
            .map(|(reason, count)| format!("{reason} {count}"))
            .collect();
        println!(
            "{minutes:3} min {:5} events {:12} packets; {held}; dropped: {}",
            self.history.events,
            total.delivered,
            drops.join(", ")
        );
        Ok(())
    }
}

/// Every visitor must reach every other one.
fn reach_each_other(endpoints: &[(&dyn Endpoint, u8)]) -> Result<()> {
    let reaches_all = |from: &dyn Endpoint, own: u8| {
        let mut others = endpoints.iter().filter(|(_, number)| *number != own);
        others.try_for_each(|(_, number)| reachable(from, &v4(*number), TIMEOUT))
    };
    thread::scope(|scope| {
        let threads: Vec<_> = endpoints
            .iter()
            .map(|&(from, own)| scope.spawn(move || reaches_all(from, own)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("pings do not panic"))
    })
}
