//! More guests than processors: pairs side by side (Figure 7 of the paper), and all to all (Figure 8). All
//! streams run at the same time, which each begins when a clock says so, and are added up.

use super::guests::{address, boot, cpu_during, names};
use super::{Case, Rig};
use crate::Effort;
use crate::contender::{BRIDGE, Contender, HYPERSWITCH, OVS_DPDK, OVS_LEARNING};
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::{Context as _, Result};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use testbed::{Guest, IperfOptions, iperf};

pub const PAIRS: Case = Case {
    name: "pairs",
    about: "TCP between 1 or 8 pairs of User Mode Linux guests at a time, added up",
    axis: "pairs",
    measures: &[
        ("throughput", "Gb/s", Higher),
        ("processor time", "s/GB, all of the machine", Lower),
    ],
    contenders: &[HYPERSWITCH, BRIDGE, OVS_DPDK],
    run: |effort, contenders, record| {
        let counts = effort.choose(&[1, 8], &[1, 4]);
        run(effort, contenders, record, counts, Layout::of_pairs)
    },
};

pub const MESH: Case = Case {
    name: "mesh",
    about: "TCP from each to each of 2 or 6 User Mode Linux guests at a time, added up",
    axis: "guests",
    measures: PAIRS.measures,
    contenders: &[HYPERSWITCH, BRIDGE, OVS_LEARNING],
    run: |effort, contenders, record| {
        let counts = effort.choose(&[2, 6], &[3]);
        run(effort, contenders, record, counts, |guests| Layout {
            guests,
            streams: (0..guests)
                .flat_map(|from| {
                    (0..guests)
                        .filter(move |to| *to != from)
                        .map(move |to| (from, to))
                })
                .collect(),
        })
    },
};

pub const CROWD: Case = Case {
    name: "crowd",
    about: "TCP between 1 or 32 pairs of User Mode Linux guests at a time, added up",
    run: |effort, contenders, record| {
        let counts = effort.choose(&[1, 32], &[1, 4]);
        run(effort, contenders, record, counts, Layout::of_pairs)
    },
    contenders: &[HYPERSWITCH, BRIDGE],
    ..PAIRS
};

/// Who sends to whom.
struct Layout {
    guests: usize,
    streams: Vec<(usize, usize)>,
}

impl Layout {
    /// Every other pair sends the other way round, so that no processor has all the senders.
    fn of_pairs(pairs: usize) -> Layout {
        let stream = |pair: usize| {
            let (first, second) = (2 * pair, 2 * pair + 1);
            if pair.is_multiple_of(2) {
                (first, second)
            } else {
                (second, first)
            }
        };
        Layout {
            guests: 2 * pairs,
            streams: (0..pairs).map(stream).collect(),
        }
    }
}

fn run(
    effort: &Effort,
    contenders: &[Contender],
    record: &mut Record,
    counts: &[usize],
    layout: fn(usize) -> Layout,
) -> Result<()> {
    let layouts: Vec<(String, Layout)> = counts
        .iter()
        .map(|count| (count.to_string(), layout(*count)))
        .collect();
    let most = layouts.iter().map(|(_, layout)| layout.guests).max().unwrap_or(0);
    let rigs = Rig::start_all(contenders, record, names(most), boot)?;
    Rig::sweep(rigs, record, &layouts, |network, guests, layout| {
        measure(effort, network, guests, layout)
    })
}

/// So many streams are started in a second, at least.
const STARTED_PER_SECOND: usize = 8;

/// Gigabits per second, and processor seconds per gigabyte.
fn measure(effort: &Effort, network: &Network, guests: &[Guest], layout: &Layout) -> Result<[f64; 2]> {
    // Streams begin within 0.1 s, of which little is to be seen.
    let time = 3 * effort.long;
    let mut prepared = Vec::new();
    for &(from, to) in &layout.streams {
        // Streams to the same guest need servers of their own.
        let options = IperfOptions {
            port: 5201 + u16::try_from(from)?,
            ..IperfOptions::seconds(u32::try_from(time.as_secs())?)
        };
        prepared.push(iperf::prepare(
            &guests[from],
            &guests[to],
            &address(to),
            &options,
        )?);
    }
    let starting = Duration::from_secs((1 + layout.streams.len().div_ceil(STARTED_PER_SECOND)) as u64);
    let begin = Duration::from_secs((SystemTime::now().duration_since(UNIX_EPOCH)? + starting).as_secs());
    let running: Vec<_> = prepared
        .into_iter()
        .map(|stream| stream.start_at(begin.as_secs()))
        .collect::<Result<_>>()?;
    let left = begin.checked_sub(SystemTime::now().duration_since(UNIX_EPOCH)?);
    thread::sleep(left.context("starting the streams took too long")?);
    let cpu = cpu_during(time, network, guests);
    let mut gigabits = 0.0;
    for stream in running {
        gigabits += stream.wait()?.gigabits();
    }
    Ok([gigabits, cpu.machine / (gigabits / 8.0)])
}
