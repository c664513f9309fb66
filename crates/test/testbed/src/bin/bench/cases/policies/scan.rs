//! A guest that scans ports at full rate against 1,000 rules: the rate that is left to two bystanders,
//! compared with as many frames of one connection.

use super::text::{PORT, policies};
use super::{KEPT, NAME, is_wanted};
use crate::Effort;
use crate::machine::on_processor;
use crate::record::{Record, Spread};
use anyhow::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use testbed::polling::{Frame, Traffic};
use testbed::{PollingGuest, Switch};

const LABEL: &str = "a guest scans ports under 1,000 rules";
const NAMES: [&str; 4] = ["p1", "p2", "scanner", "scanned"];
/// Runs of each kind in a round.
const RUNS: usize = 8;
const STATIONS: [u32; 2] = [77, 78];
/// Frames that are sent at a time, as many as a ring has.
const BATCH: usize = 256;

pub fn run(effort: &Effort, record: &mut Record) -> Result<()> {
    if !is_wanted(record, LABEL) {
        return Ok(());
    }
    let mut text = format!("{}\n[[switch]]\nname = \"sw0\"\n", policies());
    for name in NAMES {
        text += &format!("[[switch.port]]\nname = \"{name}\"\nstorm-control = 0\n{PORT}");
    }
    let switch = Switch::start(&text)?;
    let sockets = NAMES.map(|name| switch.socket(name));
    let mut bystanders = PollingGuest::connect(&sockets[..2], 1514)?;
    let mut scanner = PollingGuest::connect(&sockets[2..], 1514)?;
    for name in NAMES {
        switch.wait_port(name, "running")?;
    }
    let traffic = Traffic {
        flows: 1000,
        ..Traffic::new(64)
    };
    for round in 0..record.rounds {
        println!("  round {} of {}", round + 1, record.rounds);
        let mut kept = Vec::new();
        for _ in 0..RUNS {
            let mut rate = |scans| {
                beside(&mut scanner, scans, || {
                    on_processor(0, || {
                        let (circulation, _) = bystanders.circulate(&traffic, effort.short, || Ok(()))?;
                        Ok(circulation.rate())
                    })
                })
            };
            let (equal, scanned) = (rate(false)?, rate(true)?);
            kept.push(100.0 * scanned / equal);
        }
        let median = Spread::of(&kept).map_or(f64::NAN, |spread| spread.median);
        record.add(LABEL, NAME, KEPT, median)?;
    }
    drop((bystanders, scanner));
    switch.stop()
}

/// Runs `work` while frames are sent as fast as they are taken, all of one connection or each of another.
pub fn beside<T>(scanner: &mut PollingGuest, scans: bool, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sending = scope.spawn(|| on_processor(0, || send_until(&stop, scanner, scans)));
        // Tables fill up.
        thread::sleep(Duration::from_millis(50));
        let result = work();
        stop.store(true, Ordering::Relaxed);
        sending.join().expect("the scanner does not panic")?;
        result
    })
}

fn send_until(stop: &AtomicBool, scanner: &mut PollingGuest, scans: bool) -> Result<()> {
    let [from, to] = STATIONS;
    let (mut frame, answer) = (Frame::udp(64, from, to), Frame::udp(64, to, from));
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        // The other end makes itself known.
        scanner.send(1, &answer)?;
        scanner.flush(1);
        for _ in 0..BATCH {
            if scans {
                number += 1;
                frame.set_flow(number & 0x00ff_ffff);
            }
            // What does not fit is not sent.
            scanner.send(0, &frame)?;
        }
        scanner.flush(0);
        for port in 0..2 {
            scanner.receive(port, 256, |_| ())?;
        }
        // As much of the processor as the bystanders have is theirs.
        thread::yield_now();
    }
    Ok(())
}
