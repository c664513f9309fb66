//! What moderate traffic costs: one guest sends 64-byte frames at an even pace, another polls for them. The
//! pace is relative to the rate at which frames circulate through Hyper-Switch at full load, and the same for
//! everybody.

use super::{Case, Rig, labelled};
use crate::Effort;
use crate::contender::{Contender, HYPERSWITCH, OVS_DPDK};
use crate::machine::on_processor;
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::Result;
use std::time::{Duration, Instant};
use testbed::PollingGuest;
use testbed::polling::{Frame, Traffic};

pub const CASE: Case = Case {
    name: "load",
    about: "processor time of the switch at part of its full load, 64-byte frames one by one",
    axis: "% of full load",
    measures: &[
        ("processor", "% of a core", Lower),
        ("delivered", "%", Higher),
        ("busy cycles", "cycles/packet", Lower),
        ("awake cycles", "cycles/packet", Lower),
    ],
    contenders: &[HYPERSWITCH, OVS_DPDK],
    run,
};

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let mut rigs = Rig::start_all(contenders, record, &["p1", "p2"], |network, ports| {
        PollingGuest::connect(&network.sockets(ports)?, 1514)
    })?;
    let full = rigs[0].turn(|_, guest| {
        let (circulation, _) =
            on_processor(0, || guest.circulate(&Traffic::new(64), effort.short, || Ok(())))?;
        Ok(circulation.rate())
    })?;
    let points = labelled(&[1, 10, 50]);
    Rig::sweep(rigs, record, &points, |network, guest, percent| {
        let pace = Duration::from_secs_f64(100.0 / (full * f64::from(*percent)));
        measure(effort, network, guest, pace)
    })
}

/// Percent of a core that the switch uses, by the scheduler's account, and of frames that arrive, when there
/// is one in every `pace`; busy and awake cycles per packet.
fn measure(effort: &Effort, network: &Network, guest: &mut PollingGuest, pace: Duration) -> Result<[f64; 4]> {
    let frame = Frame::udp(64, 0, 1);
    on_processor(0, || {
        // The other station must be known.
        guest.send(1, &Frame::udp(64, 1, 0))?;
        guest.flush(1);
        let (work, before) = (network.work()?, network.run_time(&[]));
        let begin = Instant::now();
        let (mut sent, mut received) = (0_u32, 0_u32);
        let time = effort.long;
        let mut elapsed = Duration::ZERO;
        while elapsed < time {
            if elapsed >= pace * sent {
                // A full ring is a frame lost.
                guest.send(0, &frame)?;
                guest.flush(0);
                sent += 1;
            }
            received += u32::try_from(guest.receive(1, 64, |_| ())?)?;
            guest.receive(0, 64, |_| ())?;
            elapsed = begin.elapsed();
        }
        let used = network.run_time(&[]).since(&before).as_secs_f64();
        let [busy, awake] = network.work()?.cycles_per_packet(&work)?;
        let delivered = 100.0 * f64::from(received) / f64::from(sent);
        let percent = 100.0 * used / elapsed.as_secs_f64();
        Ok([percent, delivered, busy, awake])
    })
}
