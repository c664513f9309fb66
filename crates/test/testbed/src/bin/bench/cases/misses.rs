//! Flows that nobody has seen before: how many can be set up per second, and how long the first packet takes,
//! beside one of a flow that is known. A flow is a pair of hardware addresses here, which is new to any
//! learning switch; sources repeat, so that no table of stations is what is measured. As it comes,
//! Hyper-Switch bounds the rate of each port (`miss-rate`), so that is what shows; without the bound, what it
//! could do.

use super::{Case, Rig, labelled};
use crate::Effort;
use crate::contender::{Contender, DRIVEN, HYPERSWITCH, OVS_LEARNING, UNBOUNDED};
use crate::machine::on_processor;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use testbed::polling::{Frame, HEADER_LEN};
use testbed::{PollingGuest, percentile};

pub const CASE: Case = Case {
    name: "misses",
    about: "flows set up per second, and one-way time of a flow's first packet and of later ones",
    axis: "frame bytes",
    measures: &[
        ("new flows", "1/s", Higher),
        ("first packet", "us", Lower),
        ("next packet", "us", Lower),
    ],
    contenders: &[HYPERSWITCH, UNBOUNDED, OVS_LEARNING],
    run: |effort, contenders, record| {
        run(effort, contenders, record, |guest, flows, time| {
            let [first, _, next] = one_way_times(guest, flows, SAMPLES)?;
            Ok([flows_per_second(guest, flows, time)?, first, next])
        })
    },
};

/// Misses where ovs-vswitchd decides; only Open vSwitch's own data plane asks it without leaving the poll
/// thread.
pub const DRIVEN_CASE: Case = Case {
    name: "ovs-misses",
    about: "the same where ovs-vswitchd decides, for our data plane and for its own",
    axis: "frame bytes",
    measures: &[
        ("new flows", "1/s", Higher),
        ("first packet", "us", Lower),
        ("first packet p99", "us", Lower),
        ("next packet", "us", Lower),
    ],
    contenders: &[DRIVEN, OVS_LEARNING],
    run: |effort, contenders, record| {
        run(effort, contenders, record, |guest, flows, time| {
            let [first, p99, next] = one_way_times(guest, flows, SAMPLES_FOR_P99)?;
            Ok([flows_per_second(guest, flows, time)?, first, p99, next])
        })
    },
};

/// Stations that send.
const SOURCES: u32 = 1000;
/// How addresses of stations begin.
const STATIONS: [u8; 2] = [0x02, 0x50];
/// Packets under way, as many as a port may have waiting for a decision.
const WINDOW: u32 = 32;
/// Packets timed per round.
const SAMPLES: usize = 25;
const SAMPLES_FOR_P99: usize = 200;
/// Packets of a window that have not arrived by then are lost; a single one is waited for longer.
const LATE: Duration = Duration::from_millis(100);
const TIMEOUT: Duration = Duration::from_secs(5);

/// Makes flows that have not been seen.
struct NewFlows {
    number: u32,
}

impl NewFlows {
    fn frame(&mut self) -> Frame {
        self.number += 1;
        // Destinations are nobody's addresses: frames go to all ports, and flows differ.
        Frame::udp(64, 2 + self.number % SOURCES, 0x0100_0000 + self.number)
    }
}

fn run<const N: usize>(
    effort: &Effort,
    contenders: &[Contender],
    record: &mut Record,
    measure: impl Fn(&mut PollingGuest, &mut NewFlows, Duration) -> Result<[f64; N]>,
) -> Result<()> {
    let rigs = Rig::start_all(contenders, record, &["p1", "p2"], |network, ports| {
        let guest = PollingGuest::connect(&network.sockets(ports)?, 1514)?;
        Ok((guest, NewFlows { number: 0 }))
    })?;
    Rig::sweep(rigs, record, &labelled(&[64]), |_, (guest, flows), _| {
        on_processor(0, || measure(guest, flows, effort.short))
    })
}

/// Sends frames of new flows, a window at a time.
fn flows_per_second(guest: &mut PollingGuest, flows: &mut NewFlows, time: Duration) -> Result<f64> {
    let (begin, mut arrived) = (Instant::now(), 0_u32);
    while begin.elapsed() < time {
        for _ in 0..WINDOW {
            guest.send(0, &flows.frame())?;
        }
        guest.flush(0);
        arrived += wait_for(guest, WINDOW, &STATIONS, LATE)?;
    }
    let elapsed = begin.elapsed();
    ensure!(arrived > 0, "no packet of a new flow arrives");
    Ok(f64::from(arrived) / elapsed.as_secs_f64())
}

/// Waits for frames at the other port, to destinations that begin like this: hosts send frames to everybody,
/// too. Returns how many came in time.
fn wait_for(guest: &mut PollingGuest, count: u32, to: &[u8], time: Duration) -> Result<u32> {
    let (begin, mut arrived) = (Instant::now(), 0);
    while arrived < count && begin.elapsed() < time {
        guest.receive(1, 64, |frame| arrived += u32::from(frame.starts_with(to)))?;
    }
    Ok(arrived)
}

/// Times in microseconds, medians of so many: of first packets, with their 99th percentile, and of second
/// ones a moment later.
fn one_way_times(guest: &mut PollingGuest, flows: &mut NewFlows, samples: usize) -> Result<[f64; 3]> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..samples {
        let frame = flows.frame();
        for times in &mut times {
            let begin = Instant::now();
            guest.send(0, &frame)?;
            guest.flush(0);
            let arrived = wait_for(guest, 1, &frame.bytes()[HEADER_LEN..][..6], TIMEOUT)?;
            ensure!(arrived == 1, "a packet arrives {arrived} times");
            times.push(begin.elapsed().as_secs_f64() * 1e6);
            // The flow gets into the tables, and the switch goes to sleep or not, as it likes.
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    for times in &mut times {
        times.sort_by(f64::total_cmp);
    }
    let [first, next] = times;
    Ok([
        percentile(&first, 0.5),
        percentile(&first, 0.99),
        percentile(&next, 0.5),
    ])
}
