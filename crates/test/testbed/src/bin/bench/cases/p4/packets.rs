//! Frames of 64 bytes through P4 programs and through the built-in switch, from each first port of a pair to
//! its second one, in bursts. Many pairs have a program each, as many tenants have; the built-in switch has
//! all of them at one switch.

use super::entries::{self, PREFIXES};
use super::{load, program};
use crate::Effort;
use crate::cases::delay::one_way;
use crate::cases::{Case, Rig};
use crate::contender::{Contender, HYPERSWITCH, with_lines};
use crate::machine::on_processor;
use crate::network::{Network, float};
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::{Result, ensure};
use std::thread;
use std::time::{Duration, Instant};
use testbed::polling::{Frame, HEADER_LEN};
use testbed::{PollingGuest, Switch};

pub const CASE: Case = Case {
    name: "p4-packets",
    about: "64 B through P4 programs, one for each pair of ports, and through the built-in switch",
    axis: "program, pairs of ports",
    measures: &[
        ("busy cycles", "cycles/packet", Lower),
        ("rate", "million packets/s", Higher),
    ],
    contenders: &[P4, HYPERSWITCH],
    run,
};

/// Ours with a program at each pair of ports.
pub const P4: Contender = with_lines(HYPERSWITCH, "hyperswitch-p4", [""; 2]);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    Switch,
    Router,
    /// Before the built-in switch.
    Stage,
}

const POINTS: [(&str, Program, u32); 5] = [
    ("switch, 1 pair", Program::Switch, 1),
    ("switch, 64 pairs", Program::Switch, 64),
    ("router, 1 pair", Program::Router, 1),
    ("router, 64 pairs", Program::Router, 64),
    ("a firewall as stage, 1 pair", Program::Stage, 1),
];
/// Frames of a pair that are sent at a time.
const BURST: usize = 32;
/// Turns until all is learnt and kept.
const WARMING: usize = 200;
/// A station is known this long after its first frame.
const LEARNING: Duration = Duration::from_millis(20);
const LATE: Duration = Duration::from_secs(1);

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let effort = &effort.finely(record);
    for (label, what, pairs) in POINTS {
        if !super::is_wanted(record, label) {
            continue;
        }
        let names: Vec<String> = (0..2 * pairs).map(|port| format!("p{port}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let start = |contender: &Contender| {
            Rig::start(contender, &names, |network, ports| {
                let guest = PollingGuest::connect(&network.sockets(ports)?, 1514)?;
                if contender.name == P4.name {
                    load_all(network, what, ports)?;
                }
                Ok(guest)
            })
        };
        let rigs: Result<Vec<Rig<PollingGuest>>> = contenders.iter().map(start).collect();
        let point = [(label.to_owned(), pairs)];
        Rig::sweep(rigs?, record, &point, |network, guest, &pairs| {
            on_processor(0, || measure(effort, network, guest, pairs))
        })?;
    }
    Ok(())
}

/// A program for each pair of ports.
fn load_all(network: &Network, what: Program, ports: &[&str]) -> Result<()> {
    for (number, pair) in (0..).zip(ports.chunks_exact(2)) {
        let [from, to] = stations(number);
        let (switch, name, pair) = (network.ours()?, format!("tenant{number}"), [pair[0], pair[1]]);
        match what {
            Program::Switch => load(
                switch,
                &name,
                &program("l2_switch")?,
                &entries::switch([from, to]),
                pair,
            ),
            Program::Router => load(
                switch,
                &name,
                &program("router")?,
                &entries::router(to, to, PREFIXES),
                pair,
            ),
            Program::Stage => load_stage(switch, &name, &entries::firewall(), pair),
        }?;
    }
    Ok(())
}

/// A firewall as a stage of both ports.
fn load_stage(switch: &Switch, name: &str, entries: &str, ports: [&str; 2]) -> Result<()> {
    let file = switch.run_dir().join(format!("{name}.commands"));
    std::fs::write(&file, entries)?;
    let (program, file) = (program("firewall")?, file.to_string_lossy().into_owned());
    let program = program.to_string_lossy().into_owned();
    switch.verb(&["p4", "load", &program, "--name", name, "--entries", &file])?;
    let ports = [format!("1={}", ports[0]), format!("2={}", ports[1])];
    let add = [
        "p4", "stage", "add", name, "--port", &ports[0], "--port", &ports[1],
    ];
    switch.verb(&add).map(drop)
}

fn stations(pair: u32) -> [u32; 2] {
    [2 * pair, 2 * pair + 1]
}

fn measure(effort: &Effort, network: &Network, guest: &mut PollingGuest, pairs: u32) -> Result<[f64; 2]> {
    let mut traffic = Traffic::between(pairs);
    traffic.introduce(guest)?;
    for _ in 0..WARMING {
        traffic.turn(guest)?;
    }
    let (before, begin) = (network.work()?, Instant::now());
    let mut packets = 0;
    while begin.elapsed() < effort.short {
        packets += traffic.turn(guest)?;
    }
    let elapsed = begin.elapsed();
    let [busy, _] = network.work()?.cycles_per_packet(&before)?;
    Ok([busy, float(packets) / elapsed.as_secs_f64() / 1e6])
}

/// A frame for each pair.
struct Traffic {
    frames: Vec<Frame>,
}

impl Traffic {
    fn between(pairs: u32) -> Traffic {
        let frame = |[from, to]: [u32; 2]| Frame::udp(64, from, to);
        let frames = (0..pairs).map(stations).map(frame).collect();
        Traffic { frames }
    }

    /// Receivers make themselves known to a switch that learns, one after the other, and are rid of what was
    /// for others.
    fn introduce(&self, guest: &mut PollingGuest) -> Result<()> {
        for (pair, number) in (0..self.frames.len()).zip(0..) {
            let [from, to] = stations(number);
            // A router without entries for this way drops it.
            guest.send(2 * pair + 1, &Frame::udp(64, to, from))?;
            guest.flush(2 * pair + 1);
            thread::sleep(LEARNING);
            one_way(guest, [2 * pair, 2 * pair + 1], &self.frames[pair])?;
        }
        for port in 0..2 * self.frames.len() {
            guest.receive(port, usize::MAX, |_| ())?;
        }
        Ok(())
    }

    /// A burst of each pair, until all of it is there. Returns the number of frames.
    fn turn(&mut self, guest: &mut PollingGuest) -> Result<u64> {
        for (pair, frame) in self.frames.iter().enumerate() {
            for _ in 0..BURST {
                ensure!(guest.send(2 * pair, frame)?, "a ring without frames has room");
            }
            guest.flush(2 * pair);
        }
        let begin = Instant::now();
        for (pair, frame) in self.frames.iter().enumerate() {
            let (ours, mut left) = (&frame.bytes()[HEADER_LEN..][..6], BURST);
            while left > 0 {
                guest.receive(2 * pair + 1, left, |bytes| {
                    left -= usize::from(bytes.starts_with(ours));
                })?;
                ensure!(begin.elapsed() < LATE, "{left} packets do not arrive");
            }
        }
        Ok((self.frames.len() * BURST) as u64)
    }
}
