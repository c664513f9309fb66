//! A policy that 1,000 ports get by one reload, and the longest time of packets between two other ports
//! meanwhile.

use super::text::{PORT, policies};
use super::{ANSWERED, LONGEST, LONGEST_WITHOUT, NAME, is_wanted};
use crate::Effort;
use crate::cases::delay::during;
use crate::record::Record;
use anyhow::Result;
use std::fmt::Write as _;
use std::thread;
use std::time::Instant;
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
        let (delay, elapsed) = during(&mut guest, || {
            let begin = Instant::now();
            switch.reload(&with)?;
            Ok(begin.elapsed())
        })?;
        let (usual, ()) = during(&mut guest, || {
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
