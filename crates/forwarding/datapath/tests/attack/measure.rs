//! The bystanders, and what an attack costs them.

use crate::support::frames::plain;
use crate::support::{Guest, Switch, is_long};
use flow::DropReason;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What an attack may add to the bystanders' round trips in a long run.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// The part of the round trips that the bound is for, in thousandths.
    pub part: usize,
    pub added: Duration,
}

impl Bound {
    fn added_by(self, without: &Trips, under: &Trips) -> Duration {
        under.part(self.part).saturating_sub(without.part(self.part))
    }

    fn part_name(self) -> String {
        match self.part {
            1000 => "worst".into(),
            part => format!("p{}", part as f64 / 10.0),
        }
    }
}

/// The usual bound, for the worst round trip. Attackers, workers and bystanders share the machine's cores, so
/// this has room for a few time slices of the scheduler.
pub const WORST: Bound = Bound {
    part: 1000,
    added: Duration::from_millis(20),
};

/// What use of descriptors with many waiters may add to 99 of 100 round trips.
pub const P99: Bound = Bound {
    part: 990,
    added: Duration::from_millis(2),
};

/// The bystanders' ports. Attackers have those from [`FIRST`] on.
pub const PORTS: [u32; 2] = [8, 9];
pub const FIRST: u32 = 10;

fn window() -> Duration {
    Duration::from_millis(if is_long() { 3000 } else { 250 })
}

/// Round trips of one window, sorted, and how many did not come back.
#[derive(Debug, Default)]
struct Trips {
    times: Vec<Duration>,
    lost: u64,
}

impl Trips {
    fn part(&self, thousandths: usize) -> Duration {
        let last = self.times.len().saturating_sub(1);
        self.times
            .get(last * thousandths / 1000)
            .copied()
            .unwrap_or_default()
    }
}

/// Two guests of which one sends and the other answers.
#[derive(Debug)]
struct Bystanders {
    guests: [Guest; 2],
    sent: u64,
}

impl Bystanders {
    fn start(switch: &mut Switch) -> Bystanders {
        PORTS.iter().for_each(|&port| switch.add(port));
        let guests = PORTS.map(|port| Guest::usual(switch, port));
        switch.join(PORTS[0], PORTS[1]);
        Bystanders { guests, sent: 0 }
    }

    /// One packet there and one back; false when either does not arrive.
    fn round_trip(&mut self) -> bool {
        let [a, b] = &mut self.guests;
        let frame = plain(PORTS[0], PORTS[1], 100, self.sent as u8);
        self.sent += 1;
        a.send(&frame);
        let there = b.wait_for(&frame).is_some();
        if there {
            b.send(&frame);
        }
        there && a.wait_for(&frame).is_some()
    }

    fn measure(&mut self, until: Instant) -> Trips {
        let mut trips = Trips::default();
        while Instant::now() < until && trips.lost == 0 {
            let start = Instant::now();
            if self.round_trip() {
                trips.times.push(start.elapsed());
            } else {
                trips.lost += 1;
            }
            // They leave the cores to those who are tested.
            std::thread::sleep(Duration::from_micros(300));
        }
        trips.times.sort();
        trips
    }
}

/// Threads of attackers, who do their harm until the case ends.
#[derive(Clone, Default)]
pub struct Attackers {
    stop: Arc<AtomicBool>,
}

impl Attackers {
    /// Repeats `harm` with some rest in between: an attack should not need much processor time of its own.
    pub fn repeat<T: Send + 'static>(
        &self,
        mut attacker: T,
        rest: Duration,
        mut harm: impl FnMut(&mut T) + Send + 'static,
    ) -> JoinHandle<()> {
        let stop = self.stop.clone();
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                harm(&mut attacker);
                std::thread::sleep(rest);
            }
        })
    }
}

/// One case: `start` brings up the attackers; `also` is what the control process's side goes on doing.
pub fn hold(
    name: &str,
    start: impl FnOnce(&mut Switch, &Attackers) -> Vec<JoinHandle<()>>,
    also: impl FnMut(&mut Switch),
) {
    hold_to(name, WORST, start, also);
}

/// As [`hold`], with a bound of its own.
pub fn hold_to(
    name: &str,
    bound: Bound,
    start: impl FnOnce(&mut Switch, &Attackers) -> Vec<JoinHandle<()>>,
    mut also: impl FnMut(&mut Switch),
) {
    let mut switch = Switch::start();
    let mut bystanders = Bystanders::start(&mut switch);
    let without = bystanders.measure(Instant::now() + window());
    let attackers = Attackers::default();
    let threads = start(&mut switch, &attackers);
    let watch = std::thread::spawn(move || {
        let trips = bystanders.measure(Instant::now() + window());
        (bystanders, trips)
    });
    // The control process goes on reading, as it does in the product.
    while !watch.is_finished() {
        also(&mut switch);
        if let Some(upcall) = switch.upcall_within(Duration::from_millis(1)) {
            switch.discard(upcall.id, DropReason::Policy);
        }
        switch.states.clear();
    }
    let (mut bystanders, under) = watch.join().expect("the bystanders live");
    attackers.stop.store(true, Ordering::Relaxed);
    let ended: Vec<_> = threads.into_iter().map(JoinHandle::join).collect();
    row(name, bound, &without, &under);
    let starved = if is_long() { 0 } else { starved(&mut switch) };
    assert_eq!(without.lost, 0, "{name}: packets of bystanders before the attack");
    assert!(under.lost <= starved, "{name}: packets of bystanders");
    assert!(
        ended.iter().all(Result::is_ok),
        "{name}: an attacker failed by itself"
    );
    bystanders.guests.iter_mut().for_each(Guest::all_sent);
    for port in PORTS {
        let counters = switch.counters(port);
        // Packets that are dropped on their way to a bystander are the other one's, whose counter tells, or
        // an attacker's.
        let stalled = counters.dropped.get(DropReason::ReceiverStalled);
        // Attackers who receive copies of their packets end first.
        let gone = counters.dropped.get(DropReason::PortRemoved);
        let expected = gone + if is_long() { 0 } else { stalled };
        assert_eq!(counters.dropped.total(), expected, "{name}: {counters:?}");
    }
    if is_long() {
        let added = bound.added_by(&without, &under);
        assert!(added < bound.added, "{name}: {added:?} more, of {bound:?}");
    }
    drop(bystanders);
    switch.stop();
}

/// Packets of bystanders whose receiver posted no buffers for too long. Its thread gets no processor for a
/// while now and then, where other tests keep all of them busy.
fn starved(switch: &mut Switch) -> u64 {
    let stalled = |port| switch.counters(port).dropped.get(DropReason::ReceiverStalled);
    PORTS.into_iter().map(stalled).sum()
}

/// Prints what a case has cost, and in a long run what its bound allows.
fn row(name: &str, bound: Bound, without: &Trips, under: &Trips) {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let times = |trips: &Trips| {
        let [p50, p99, worst] = [500, 990, 1000].map(|part| ms(trips.part(part)));
        format!("{p50:7.3} {p99:7.3} {worst:7.3}")
    };
    let reached = if is_long() {
        let (added, most) = (ms(bound.added_by(without, under)), ms(bound.added));
        format!(" | {} + {added:.3} of {most} ms", bound.part_name())
    } else {
        String::new()
    };
    println!(
        "attack {name:<50} | lost {} of {:>6} | ms p50, p99, worst: {} | without: {}{reached}",
        under.lost,
        under.times.len(),
        times(under),
        times(without)
    );
}
