//! `make soak`: an hour in which everything happens at once, time and again.
//!
//! Two guests whose traffic must never stop share the switch with visitors: guests, polling drivers,
//! containers and attackers that arrive, put load on and leave, many of them without a word, while processors
//! are taken away from workers for moments and the control process and the driver domain are killed or
//! stopped. A seed decides what happens in which order; the machine decides when.
//!
//! ```text
//!   pair       two guests that stay
//!   visitors   users of the switch that come and go, one module per kind
//!   crowd      all visitors, and the choice of the next event
//!   burners    other tasks that take processor time
//!   footprint  resources of the switch's processes
//! ```
//!
//! All visitors are called up before and after, and must reach each other. When they have gone, every packet
//! is accounted for, and the processes of the switch hold what they held before.

#![forbid(unsafe_code)]

mod burners;
mod crowd;
mod footprint;
mod pair;
mod visitors;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use crowd::Crowd;
use footprint::Footprint;
use pair::Pair;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testbed::Switch;

/// How long the processes of the switch may take to give back what they held for visitors.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the switch among guests that come and go, and checks that it stays what it was.
#[derive(Debug, Parser)]
#[command(name = "soak")]
struct Arguments {
    /// How long
    #[arg(long, value_name = "NUMBER", default_value_t = 60)]
    minutes: u64,
    /// Decides the sequence of events [default: another one each time]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Names every event
    #[arg(long)]
    events: bool,
}

/// What testpmd sends in a loop circulates on a switch of its own. So do the frames that two of the attackers
/// make of whatever lies in their memory; the third one, `hostile3`, does harm by frames alone, on
/// everybody's switch.
const CONFIG: &str = r#"
[[switch]]
name = "sw0"
[[switch.port]]
name = "a"
[[switch.port]]
name = "b"
[[switch.port]]
name = "vm1"
[[switch.port]]
name = "quiet1"
[[switch.port]]
name = "quiet2"
[[switch.port]]
name = "hostile3"
[[switch]]
name = "sw1"
[[switch.port]]
name = "hostile1"
[[switch.port]]
name = "hostile2"
"#;

/// Set by a thread that fails, and at the end.
#[derive(Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// Whether it is over.
    pub fn raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Ends it.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Works until it is over; failing ends it for all.
    pub fn until(&self, mut work: impl FnMut() -> Result<()>) -> Result<()> {
        while !self.raised() {
            work().inspect_err(|_| self.raise())?;
        }
        Ok(())
    }
}

fn soak(arguments: &Arguments, seed: u64) -> Result<()> {
    let switch = Switch::start(CONFIG)?;
    let pair = Pair::boot(&switch)?;
    let mut crowd = Crowd::new(seed, arguments.events);
    println!("warming up");
    crowd.roll_call(&switch, &pair)?;
    switch.wait_until_accounted()?;
    let before = Footprint::of(&switch)?;

    let end = Instant::now() + Duration::from_secs(60 * arguments.minutes);
    let stop = Stop::default();
    thread::scope(|scope| {
        burners::start(scope, seed, &stop);
        let steady = pair.start(scope, seed, &stop);
        let lived = crowd.live(&switch, &pair, end, &stop);
        for thread in steady {
            let Ok(result) = thread.join() else {
                bail!("a thread of the soak panicked");
            };
            result.context("the pair that must never stop")?;
        }
        lived
    })?;

    println!("all are called up once more");
    crowd.roll_call(&switch, &pair)?;
    switch.wait_until_accounted()?;
    print_placement(&switch)?;
    check_footprint(&switch, &before)?;
    check_processes(&switch, &crowd)?;
    drop(pair);
    switch.wait_until_accounted()?;
    switch.stop()
}

/// The processes must come down to what they held before.
fn check_footprint(switch: &Switch, before: &[Footprint]) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let now = Footprint::of(switch)?;
        let grown: Vec<String> = before
            .iter()
            .zip(&now)
            .flat_map(|(before, now)| now.growth(before))
            .collect();
        if grown.is_empty() {
            before
                .iter()
                .zip(&now)
                .for_each(|(before, now)| println!("{now}; before: {before}"));
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the switch has grown: {}",
            grown.join(", ")
        );
        thread::sleep(Duration::from_secs(1));
    }
}

/// Only processes that were killed or stopped have died, none has panicked, and none has warnings.
fn check_processes(switch: &Switch, crowd: &Crowd) -> Result<()> {
    let status = switch.status()?;
    for process in &status.processes {
        let killed = crowd.killed(&process.role);
        ensure!(
            process.restarts == killed,
            "the {} process was killed {killed} times, and started again {} times: {:?}",
            process.role,
            process.restarts,
            process.last_exit
        );
    }
    // Warnings about the attackers' own ports, and about addresses that they use, are right.
    let about_others: Vec<&String> = status
        .warnings
        .iter()
        .filter(|warning| !is_of_attacker(warning))
        .collect();
    ensure!(about_others.is_empty(), "{about_others:?}");
    let log = switch.log();
    let panics: Vec<&str> = log.lines().filter(|line| line.contains("panicked at")).collect();
    ensure!(panics.is_empty(), "{}", panics.join("\n"));
    Ok(())
}

/// Whether a warning of `status` is about an attacker's port.
fn is_of_attacker(warning: &str) -> bool {
    warning.starts_with("port hostile") || warning.contains(" is used on ") && warning.contains("hostile")
}

fn print_placement(switch: &Switch) -> Result<()> {
    for worker in switch.placement()?.workers {
        println!(
            "{}: {} packets, {} offloads, {} aborts, {} sleeps, {} kicks",
            worker.name, worker.packets, worker.offloads, worker.aborts, worker.sleeps, worker.kicks
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(obstacle) = testbed::lab::obstacle() {
        bail!("the soak {obstacle}");
    }
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("{} minutes, --seed {seed}", arguments.minutes);
    soak(&arguments, seed).with_context(|| format!("the soak with --seed {seed} failed"))?;
    println!("passed");
    Ok(())
}
