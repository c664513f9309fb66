//! What a burst costs a worker: its whole loop - look, serve, account - with two guests on the worker's own
//! thread, which have their turn whenever the worker looks at a ring that is empty. So no wake-up, no other
//! core and no look that finds nothing is in the figures. Beside it, `cycles.rs` drives the pipeline alone.
//!
//! `cargo test --release -p datapath --lib worker_cycles -- --ignored --nocapture worker_cycles::cycles`
//!
//! And the number of instructions, which does not depend on what else the machine does: a test counts them
//! under valgrind and compares them with `docs/performance/instructions.md`, which `HYPERSWITCH_UPDATE=1`
//! writes. For the program that is counted time passes more slowly, as valgrind makes it slower: what workers
//! do by time, as looking for news every 20 us, is not in the count.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::cycles::{Guests, pair};
use crate::pipeline::Pipeline;
use crate::state::{Datapath, Ports};
use ::placement::{Config, Costs, Policy, Priority, Shape, Topology, VnicId};
use parking_lot::Mutex;
use scheduler::{Placement, RingId, Rings, Schedule, Scheduler, start_all};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, mpsc};
use vm_state::{TestArea, ThreadState, VmState};

const FRAME: usize = 64;
const BURSTS: [usize; 4] = [1, 2, 4, 32];
/// Task numbers: of the worker, and from there on of guests' threads.
const WORKER: u32 = 1;
const GUEST: u32 = 1000;

/// Guests that send a number of bursts, one after the other.
struct Play {
    guests: Guests,
    burst: usize,
    left: usize,
    /// When the guests' last turn ended.
    since: u64,
    /// The cycles that each burst took.
    taken: Vec<u64>,
    done: mpsc::Sender<Vec<u64>>,
}

impl Play {
    /// Takes the last burst, and sends the next one. When all were sent, the worker stands still for ever: it
    /// would go on looking.
    #[inline(never)]
    fn guests_turn(&mut self) {
        let now = cpu::cycles();
        if self.since > 0 {
            self.taken.push(now.wrapping_sub(self.since));
            self.guests.collect(FRAME, self.burst);
        }
        if self.left == 0 {
            self.done.send(std::mem::take(&mut self.taken)).unwrap();
            loop {
                std::thread::park();
            }
        }
        self.left -= 1;
        self.guests.send(self.burst, || None);
        self.since = cpu::cycles();
    }
}

/// The pipeline, and the guests whose turn it is when there is nothing in the sender's ring.
struct Driven {
    pipeline: Pipeline,
    play: Play,
    is_empty: bool,
}

impl Driven {
    #[inline]
    fn before_look(&mut self) {
        if self.is_empty {
            self.is_empty = false;
            self.play.guests_turn();
        }
    }
}

impl Rings for Driven {
    type Homes = Ports;

    fn refresh(&mut self) {
        self.pipeline.refresh();
    }

    fn homes(&self) -> &Ports {
        self.pipeline.homes()
    }

    fn serve(&mut self, ring: RingId, schedule: &mut Schedule) {
        self.pipeline.serve(ring, schedule);
        if ring.is_transmit() {
            self.is_empty = true;
        } else {
            // What the worker was told to begin with.
            schedule.later(RingId::transmit(ring.vnic()));
        }
    }

    fn on_kick(&mut self, ring: RingId) -> Option<u64> {
        self.pipeline.on_kick(ring)
    }

    fn has_work(&mut self, ring: RingId) -> bool {
        self.before_look();
        self.pipeline.has_work(ring)
    }

    fn serve_found(&mut self, ring: RingId, looked: usize, schedule: &mut Schedule) -> bool {
        self.before_look();
        let served = self.pipeline.serve_found(ring, looked, schedule);
        self.is_empty |= served;
        served
    }

    fn give_up_claims(&mut self, schedule: &mut Schedule) {
        self.pipeline.give_up_claims(schedule);
    }

    fn enable_kicks(&mut self, ring: RingId) -> bool {
        self.pipeline.enable_kicks(ring)
    }

    fn kicks_paused(&mut self, ring: RingId) {
        self.pipeline.kicks_paused(ring);
    }

    fn missed_threads(&mut self, vnic: VnicId) {
        self.pipeline.missed_threads(vnic);
    }

    fn flush_stats(&mut self) {
        self.pipeline.flush_stats();
    }

    fn before_sleep(&mut self) {
        self.pipeline.before_sleep();
    }
}

/// A worker on a core of its own, which knows that its guests run elsewhere. `start` is called when the
/// guests are up. Returns the cycles of each burst.
fn forward(burst: usize, count: usize, start: impl FnOnce()) -> Vec<u64> {
    let config = Config {
        priority: Priority::Normal,
        // Under valgrind, the guests' turn takes long.
        hysteresis_us: 10_000,
        ..Config::default()
    };
    let shape = Shape {
        nodes: 1,
        llcs: 1,
        modules: 1,
        cpus: 1,
    };
    let area = TestArea::new().unwrap();
    area.runs(0, WORKER);
    let facts = VmState::map(area.descriptor()).unwrap();
    let policy = Policy::new(config, Topology::regular(shape), Costs::default());
    let datapath = Datapath::new(Placement::new(policy, Some(facts)).unwrap()).unwrap();
    let shared = datapath.shared.clone();
    let (ports, mut guests) = pair(&datapath);
    for (port, thread) in ports.iter().zip(GUEST..) {
        let slot = area.thread(thread, ThreadState::Running(1)).unwrap();
        port.home.set_threads(Box::new([slot]));
    }
    guests.prepare(FRAME);
    let (done, taken) = mpsc::channel();
    let play = Arc::new(Mutex::new(Some(Play {
        guests,
        burst,
        left: count,
        since: 0,
        taken: Vec::with_capacity(count),
        done,
    })));
    // A message, which a worker reads before it waits for the first time: valgrind does not know how workers
    // wait.
    let home = &ports[0].home;
    let mut teller = Scheduler::new(shared.clone(), None, Pipeline::new(datapath.clone()));
    assert!(
        teller
            .schedule
            .tell_copier(home, &shared.placement.executor_of(home))
    );
    start();
    start_all(&shared, move || Driven {
        pipeline: Pipeline::new(datapath.clone()),
        play: play.lock().take().expect("one worker"),
        is_empty: false,
    })
    .unwrap();
    taken.recv().unwrap()
}

/// The guests see to it that each burst arrives before the next one is sent.
#[test]
fn bursts_are_served_at_the_look_that_finds_them() {
    for burst in BURSTS {
        assert_eq!(forward(burst, 300, || {}).len(), 300);
    }
}

#[test]
#[ignore = "a measurement"]
fn cycles() {
    println!("burst  cycles/packet  median  90th percentile");
    for burst in BURSTS {
        let mut taken = forward(burst, 50_000, || {});
        taken.sort_unstable();
        let [low, median, high] =
            [1, 5, 9].map(|tenths| taken[taken.len() * tenths / 10] as f64 / burst as f64);
        println!("{burst:5} {low:14.0} {median:7.0} {high:16.0}");
    }
}

/// Assumed under valgrind: some hundred times too much.
const CYCLES_PER_US: u64 = 1_000_000;
/// Bursts before the count begins, and bursts that are counted.
const UNCOUNTED: usize = 1_000;
const COUNTED: usize = 2_000;
const ATTEMPTS: usize = 5;
/// Growth in percent that needs no new figures: compilers and processors differ.
const TOLERANCE: f64 = 1.0;

#[test]
#[ignore = "played for the test below"]
fn play() {
    let [case, bursts] = ["CASE", "BURSTS"].map(|name| std::env::var(name).unwrap());
    forward(
        case.split(',').nth(2).unwrap().parse().unwrap(),
        bursts.parse().unwrap(),
        || cpu::assume_cycles_per_us(CYCLES_PER_US),
    );
}

/// Instructions per packet of a measurement, or of this function alone.
fn instructions(measurement: &str, burst: usize, function: Option<&str>) -> f64 {
    let run = |bursts: usize| -> Option<f64> {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .args(function.map(|name| format!("--toggle-collect=*{name}*")))
            .arg(std::env::current_exe().unwrap())
            .args([measurement, "--exact", "--ignored", "--test-threads=1"])
            .env("CASE", format!("{FRAME},1,{burst},0"))
            .env("BURSTS", bursts.to_string())
            .output()
            .expect("valgrind, which scripts/setup --bench installs");
        let said = String::from_utf8_lossy(&output.stderr);
        let collected = said.lines().find_map(|line| line.split_once("Collected : "));
        let collected = collected.filter(|_| output.status.success())?.1;
        collected.trim().parse().ok()
    };
    // On a busy machine it takes a guest too long to come up.
    let run = |bursts| (0..ATTEMPTS).find_map(|_| run(bursts)).expect("a count");
    // What comes once is in both.
    let counted = (run(UNCOUNTED + COUNTED) - run(UNCOUNTED)) / (COUNTED * burst) as f64;
    assert!(counted > 0.0, "no function has the name {function:?}");
    counted
}

#[test]
#[ignore = "takes long, and only counts of optimised programs say something"]
fn instructions_are_as_published() {
    let mut text = String::from(
        "# Instructions per packet\n\n\
         Frames of 64 bytes of one flow, between two ports of a learning switch. *Worker* is the whole loop of a forwarding thread: look, serve,\n\
         account. *Pipeline* is what it calls for each burst. Counted by `make bench-instructions`, without the worker's looks for kicks and messages\n\
         every 20 us.\n\n\
         | burst | worker | pipeline |\n|---|---|---|\n",
    );
    for burst in BURSTS {
        let count = |measurement, function| instructions(measurement, burst, function);
        let worker = count("worker_cycles::play", None) - count("worker_cycles::play", Some("guests_turn"));
        let pipeline = count("cycles::cycles", Some("Scheduler*::step"));
        writeln!(text, "| {burst} | {worker:.0} | {pipeline:.0} |").unwrap();
    }
    println!("{text}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/performance/instructions.md");
    if std::env::var_os("HYPERSWITCH_UPDATE").is_some() {
        return std::fs::write(path, text).unwrap();
    }
    let published = std::fs::read_to_string(path).unwrap();
    let figures = |text: &str| -> Vec<f64> {
        let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
        rows.flat_map(|row| row.split('|').skip(2))
            .filter_map(|cell| cell.trim().parse().ok())
            .collect()
    };
    let (found, published) = (figures(&text), figures(&published));
    assert_eq!(found.len(), 2 * BURSTS.len());
    assert_eq!(found.len(), published.len());
    for (found, published) in found.into_iter().zip(published) {
        assert!(
            found <= published * (1.0 + TOLERANCE / 100.0),
            "{found} instructions instead of {published}: {text}"
        );
    }
}
