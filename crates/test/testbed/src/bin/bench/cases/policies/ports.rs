//! A policy that 1,000 ports get by one reload, and the longest time of packets between two other ports
//! meanwhile.

use super::text::{PORT, policies};
use super::{ANSWERED, LONGEST, LONGEST_WITHOUT, NAME, is_wanted};
use crate::Effort;
use crate::cases::dump::longest;
use crate::machine::on_processor;
use crate::record::Record;
use anyhow::Result;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testbed::polling::Frame;
use testbed::{PollingGuest, Switch};

const LABEL: &str = "1,000 rules for 1,000 ports";
const PORTS: usize = 1000;
const OTHERS: [&str; 2] = ["other1", "other2"];

pub fn run(_: &Effort, record: &mut Record) -> Result<()> {
    if !is_wanted(record, LABEL) {
        return Ok(());
    }
    let (without, with) = (configuration(""), configuration(PORT));
    let switch = Switch::start(&without)?;
    let sockets = OTHERS.map(|port| switch.socket(port));
    let mut guest = PollingGuest::connect(&sockets, 1514)?;
    for port in OTHERS {
        switch.wait_port(port, "running")?;
    }
    for round in 0..record.rounds {
        println!("  round {} of {}", round + 1, record.rounds);
        let (delay, elapsed) = during(&mut guest, || switch.reload(&with).map(drop))?;
        let (usual, _) = during(&mut guest, || {
            thread::sleep(elapsed);
            Ok(())
        })?;
        record.add(LABEL, NAME, ANSWERED, elapsed.as_secs_f64() * 1e3)?;
        record.add(LABEL, NAME, LONGEST, delay.as_secs_f64() * 1e6)?;
        record.add(LABEL, NAME, LONGEST_WITHOUT, usual.as_secs_f64() * 1e6)?;
        switch.reload(&without)?;
    }
    drop(guest);
    switch.stop()
}

/// The longest time of a packet while `work` is done, and how long that takes.
fn during(
    guest: &mut PollingGuest,
    work: impl FnOnce() -> Result<()> + Send,
) -> Result<(Duration, Duration)> {
    let done = AtomicBool::new(false);
    let frame = Frame::udp(64, 10, 11);
    thread::scope(|scope| {
        let working = scope.spawn(|| {
            let begin = Instant::now();
            let result = work();
            let elapsed = begin.elapsed();
            done.store(true, Ordering::Relaxed);
            result.map(|()| elapsed)
        });
        let delay = on_processor(0, || longest(guest, &frame, || done.load(Ordering::Relaxed)));
        let elapsed = working.join().expect("the work does not panic")?;
        Ok((delay?, elapsed))
    })
}

/// A switch with all ports. `of_each` are lines of each but the others.
fn configuration(of_each: &str) -> String {
    let mut text = format!("{}\n[[switch]]\nname = \"sw0\"\n", policies());
    for port in OTHERS {
        writeln!(text, "[[switch.port]]\nname = \"{port}\"").expect("strings grow");
    }
    for number in 0..PORTS {
        write!(text, "[[switch.port]]\nname = \"p{number}\"\n{of_each}").expect("strings grow");
    }
    text
}
