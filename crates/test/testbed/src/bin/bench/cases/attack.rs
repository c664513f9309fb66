//! Bystanders while others attack the switch's classifier: 64-byte frames circulate between two ports, and a
//! third sends frames to a fourth in which every field that a flow table can look at, except the destination,
//! is random. Open vSwitch has rules that look at addresses and ports, which make such traffic spread over
//! many masks (CVE-2019-25076); Hyper-Switch has its learning switch.
//!
//! What counts is the share of the bystanders' rate that is left, measured without and under attack in turn,
//! many times in each round, of which the median is taken. The attacker sends in batches, once per
//! millisecond, so that it takes next to nothing of the bystanders' processor.

use super::{Case, Rig};
use crate::Effort;
use crate::contender::{Contender, DRIVEN_FILTERED, HYPERSWITCH, OVS_FILTERED};
use crate::machine::on_processor;
use crate::record::Better::Higher;
use crate::record::{Record, Spread};
use anyhow::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use testbed::PollingGuest;
use testbed::polling::{Frame, Traffic};

pub const CASE: Case = Case {
    name: "attack",
    about: "bystanders' throughput while another port sends frames with random headers",
    axis: "bystanders' flows, attack",
    measures: &[
        ("kept", "% of the rate without attack", Higher),
        ("rate under attack", "million packets/s", Higher),
    ],
    contenders: &[HYPERSWITCH, OVS_FILTERED],
    run,
};

/// What the attack does beyond its load: the same number of frames with the same headers each is the
/// comparison.
pub const VICTIM: Case = Case {
    name: "attack-victim",
    about: "the same, against as many frames with headers that do not change",
    measures: &[
        ("kept", "% of the rate with equal load", Higher),
        ("rate under attack", "million packets/s", Higher),
    ],
    run: |effort, contenders, record| compare(effort, contenders, record, Load::Benign),
    ..CASE
};

pub const DRIVEN: Case = Case {
    name: "ovs-attack",
    about: "bystanders' throughput while another port sends frames with random headers, with ovs-vswitchd on our data plane and on its own",
    contenders: &[DRIVEN_FILTERED, OVS_FILTERED],
    ..CASE
};

/// What the other port sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Nothing.
    None,
    /// One frame time and again.
    Benign,
    /// Frames with random headers.
    Attack,
}

/// Runs without and runs under attack in a round.
const RUNS: u32 = 8;

/// Which part of a measurement of a switch alone a run is.
const PART: u32 = 10;

/// Frames per millisecond of the attack: 1 is 0.5 Mb/s.
const ATTACKS: [u16; 3] = [1, 10, 100];

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    compare(effort, contenders, record, Load::None)
}

/// Measures bystanders beside `other`, and under attack.
fn compare(effort: &Effort, contenders: &[Contender], record: &mut Record, other: Load) -> Result<()> {
    let rigs = Rig::start_all(contenders, record, &["p1", "p2", "p3", "p4"], |network, ports| {
        let bystanders = PollingGuest::connect(&network.sockets(&ports[..2])?, 1514)?;
        let attacker = PollingGuest::connect(&network.sockets(&ports[2..])?, 1514)?;
        Ok((bystanders, attacker))
    })?;
    let mut points = Vec::new();
    for flows in [1, 1000] {
        let traffic = Traffic {
            flows,
            ..Traffic::new(64)
        };
        for batch in ATTACKS {
            points.push((format!("{flows}, {batch},000/s"), (traffic, batch)));
        }
    }
    Rig::sweep(
        rigs,
        record,
        &points,
        |_, (bystanders, attacker), (traffic, batch)| {
            // Short runs, because packets that are lost in one do not come back in it, and because a rate on
            // a shared machine is another one a second later.
            let (mut kept, mut rates) = (Vec::new(), Vec::new());
            for _ in 0..RUNS {
                let mut beside = |load| beside(attacker, load, *batch, || rate(effort, bystanders, traffic));
                let (before, during) = (beside(other)?, beside(Load::Attack)?);
                kept.push(100.0 * during / before);
                rates.push(during / 1e6);
            }
            let median = |values: &[f64]| Spread::of(values).map_or(f64::NAN, |spread| spread.median);
            Ok([median(&kept), median(&rates)])
        },
    )
}

/// Packets per second that circulate.
fn rate(effort: &Effort, bystanders: &mut PollingGuest, traffic: &Traffic) -> Result<f64> {
    on_processor(0, || {
        let (circulation, _) = bystanders.circulate(traffic, effort.short / PART, || Ok(()))?;
        Ok(circulation.rate())
    })
}

/// Runs `work` while the attacker sends `batch` frames per millisecond, or nothing.
fn beside<T>(
    attacker: &mut PollingGuest,
    load: Load,
    batch: u16,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if load == Load::None {
        return work();
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let attack = scope.spawn(|| on_processor(0, || send_until(&stop, attacker, load, batch)));
        // Tables fill up.
        thread::sleep(Duration::from_millis(100));
        let result = work();
        stop.store(true, Ordering::Relaxed);
        attack.join().expect("the attacker does not panic")?;
        result
    })
}

fn send_until(stop: &AtomicBool, attacker: &mut PollingGuest, load: Load, batch: u16) -> Result<()> {
    let (mut frame, answer) = (Frame::udp(64, 77, 78), Frame::udp(64, 78, 77));
    let mut seed = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..batch {
            seed += 1;
            if load == Load::Attack {
                frame.scramble(seed);
            }
            // What does not fit is not sent.
            attacker.send(0, &frame)?;
        }
        attacker.flush(0);
        // The other end makes itself known.
        attacker.send(1, &answer)?;
        attacker.flush(1);
        for port in 0..2 {
            attacker.receive(port, 256, |_| ())?;
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
