//! A full table: how long it takes to be told of all flows, as ovs-vswitchd asks twice per second, and what
//! that does to packets of others. Eight ports make the flows, through ovs-vswitchd; between two others
//! single frames of one flow are sent, one after the other, and the longest time that one takes is noted,
//! during a dump and without one.

use super::delay::{during, longest, one_way};
use super::{Case, Rig};
use crate::Effort;
use crate::contender::{Contender, DRIVEN, with_tables};
use crate::machine::on_processor;
use crate::network::Network;
use crate::record::Better::Lower;
use crate::record::Record;
use anyhow::{Result, ensure};
use std::thread;
use std::time::{Duration, Instant};
use testbed::PollingGuest;
use testbed::ovs::{Driven, Forwarding};
use testbed::polling::{Frame, HEADER_LEN};

pub const CASE: Case = Case {
    name: "ovs-dump",
    about: "a table full of flows under ovs-vswitchd: one terse dump, and the longest time of another port's packet meanwhile",
    axis: "flows",
    measures: &[
        ("dump", "s", Lower),
        ("longest delay", "ms", Lower),
        ("longest delay without a dump", "ms", Lower),
    ],
    contenders: &[DRIVEN],
    run,
};

/// What the table holds.
const TABLE: usize = 200_000;
/// A port may have as many flows as are still free then: of eight ports that make flows, each takes half of
/// what is left.
const MAKERS: usize = 8;
const FLOWS: u32 = 199_000;
const QUICK_FLOWS: u32 = 20_000;
/// Some are of the bystanders, and of the host's own frames.
const MARGIN: usize = 32;
/// How long it may take to make them.
const FILLING: Duration = Duration::from_secs(120);
/// Frames under way while they are made, as many as a port may have waiting for a decision.
const WINDOW: u32 = 32;
/// Packets that have not arrived by then are lost, and sent again.
const LATE: Duration = Duration::from_millis(5);
/// The first of the makers' stations, each at a port of its own.
const STATION: u32 = 20;

struct Guests {
    makers: PollingGuest,
    bystander: PollingGuest,
}

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let flows = *effort.choose(&[FLOWS], &[QUICK_FLOWS]).first().unwrap_or(&FLOWS);
    let contenders = with_tables(contenders, Forwarding::LearningByPorts);
    let names: Vec<String> = (0..MAKERS + 2).map(|port| format!("p{port}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let rigs = Rig::start_all(&contenders, record, &names, |network, ports| {
        let sockets = network.sockets(ports)?;
        Ok(Guests {
            makers: PollingGuest::connect(&sockets[..MAKERS], 1514)?,
            bystander: PollingGuest::connect(&sockets[MAKERS..], 1514)?,
        })
    })?;
    let points = [(flows.to_string(), flows)];
    Rig::sweep(rigs, record, &points, |network, guests, flows| {
        measure(network, guests, *flows)
    })
}

fn measure(network: &Network, guests: &mut Guests, flows: u32) -> Result<[f64; 3]> {
    let (there, back) = (Frame::udp(64, 10, 11), Frame::udp(64, 11, 10));
    for (port, frame) in [(1, &back), (0, &there)].repeat(10) {
        one_way(&mut guests.bystander, [port, 1 - port], frame)?;
        thread::sleep(Duration::from_millis(10));
    }
    fill(network, &mut guests.makers, usize::try_from(flows)?)?;
    let (delay, dump) = during(&mut guests.bystander, || {
        let begin = Instant::now();
        let count = network.driven().and_then(Driven::dump_flows);
        Ok((count?, begin.elapsed()))
    })?;
    let (count, elapsed) = dump;
    ensure!(count >= usize::try_from(flows)?, "only {count} flows were told");
    let begin = Instant::now();
    let without = on_processor(0, || {
        longest(&mut guests.bystander, &there, || begin.elapsed() >= elapsed)
    })?;
    Ok([
        elapsed.as_secs_f64(),
        delay.as_secs_f64() * 1e3,
        without.as_secs_f64() * 1e3,
    ])
}

/// Makes flows until ovs-vswitchd has so many in the data plane.
fn fill(network: &Network, makers: &mut PollingGuest, wanted: usize) -> Result<()> {
    let begin = Instant::now();
    // Who is not known is looked for at all ports.
    for (port, station) in (0..MAKERS).zip(STATION..) {
        makers.send(port, &Frame::udp(64, station, STATION - 1))?;
        makers.flush(port);
    }
    for port in 0..MAKERS {
        let there = network.flows()?;
        let enough = wanted.min(there + (TABLE.saturating_sub(there) / 2).saturating_sub(MARGIN));
        while network.flows()? < enough {
            ensure!(
                begin.elapsed() < FILLING,
                "only {} of {enough} flows can be made",
                network.flows()?
            );
            send_flows(makers, port, u32::try_from(enough - there)?)?;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("    {} flows after {seconds:.1} s", network.flows()?);
    Ok(())
}

/// Sends a frame of each of so many flows from a port to its neighbour.
fn send_flows(makers: &mut PollingGuest, port: usize, count: u32) -> Result<()> {
    let neighbour = port ^ 1;
    let [from, to] = [port, neighbour].map(|port| u32::try_from(port).map(|port| STATION + port));
    let mut frame = Frame::udp(64, from?, to?);
    let destination = frame.bytes()[HEADER_LEN..][..6].to_owned();
    let mut sent = 0;
    while sent < count {
        let end = count.min(sent + WINDOW);
        for number in sent..end {
            frame.set_flow(number);
            makers.send(port, &frame)?;
        }
        makers.flush(port);
        let (begin, mut left) = (Instant::now(), end - sent);
        while left > 0 && begin.elapsed() < LATE {
            makers.receive(neighbour, 64, |bytes| {
                left = left.saturating_sub(bytes.starts_with(&destination).into());
            })?;
        }
        sent = end;
    }
    Ok(())
}
