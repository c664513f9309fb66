//! Descriptor chains, buffers, segments and indices that cost as much as they can.

use crate::measure::{Attackers, Bound, FIRST, hold, hold_to};
use crate::support::frames::{Tcp, plain};
use crate::support::guest::{INDIRECT, LEAST, NEXT, RECEIVE, TRANSMIT, WRITE};
use crate::support::memory::Memory;
use crate::support::ring::Ring;
use crate::support::session::{SET_VRING_ENABLE, state};
use crate::support::{Guest, Layout, Setup, Switch, is_long};
use flow::{Action, DropReason};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::VnetHeader;

/// Sizes of indirect tables: usual ones, those around the bound of what is walked, and the largest.
const TABLES: [u32; 7] = [1, 2, 112, 256, 257, 1024, 32768];
const REST: Duration = Duration::from_millis(1);

/// What many rings that are never empty may add to half of the round trips.
const HALF: Bound = Bound {
    part: 500,
    added: Duration::from_micros(500),
};

/// A table of `entries` descriptors of one byte each, the last one of `last`; it lies below the guest's data.
fn table(guest: &Guest, entries: u32, last: u32, flags: u16) -> u64 {
    let at = guest.data - 700 * 1024;
    let mut bytes = Vec::new();
    for number in 0..entries {
        let ends = number + 1 == entries;
        let more = if ends { 0 } else { NEXT };
        // Every second byte, so that neighbours cannot be joined.
        let address = Memory::guest(guest.data + 2 * number as usize % 4096);
        let len = if ends { last } else { 1 };
        let next = (number + 1) as u16;
        bytes.extend(Ring::descriptor_bytes(address, len, flags | more, next));
    }
    guest.memory.write(at, &bytes);
    Memory::guest(at)
}

/// All chains of the ring are this one table.
fn fill(ring: &mut Ring, table: u64, entries: u32) {
    for head in 0..ring.size {
        ring.descriptor(head, table, 16 * entries, INDIRECT, 0);
        ring.offer(head);
    }
    ring.publish_and_kick();
}

/// Offers again whatever came back; the entries of the available ring are as they have to be already.
fn again(ring: &mut Ring) {
    ring.next = ring.used_index().wrapping_add(ring.size);
    ring.publish_and_kick();
}

fn attacker(switch: &mut Switch, port: u32, setup: Setup) -> Guest {
    switch.add(port);
    Guest::start(switch, port, setup)
}

fn large() -> Setup {
    Setup {
        transmit_size: 1024,
        ..Setup::default()
    }
}

/// Guests whose transmit rings are always full of chains of one table.
fn senders_of_tables(switch: &mut Switch, attackers: &Attackers, entries: u32) -> Vec<JoinHandle<()>> {
    let start = |port| {
        let mut guest = attacker(switch, port, large());
        switch.flow(port, &[Action::Drop(DropReason::Policy)]);
        let at = table(&guest, entries, 1, 0);
        fill(&mut guest.transmit, at, entries);
        attackers.repeat(guest, REST, |guest| again(&mut guest.transmit))
    };
    (FIRST..FIRST + 3).map(start).collect()
}

#[test]
fn indirect_tables_of_all_sizes_sent() {
    for entries in TABLES {
        hold(
            &format!("sent: indirect tables of {entries}"),
            |switch, attackers| senders_of_tables(switch, attackers, entries),
            |_| (),
        );
    }
}

/// A sender whose ring is always full of small packets.
fn flood(switch: &mut Switch, attackers: &Attackers, from: u32, to: u32, len: usize) -> JoinHandle<()> {
    let mut guest = attacker(switch, from, large());
    switch.flow(from, &[Action::Output(flow::PortId(to))]);
    let mut bytes = vec![0; 12];
    bytes.extend(plain(from, to, len, 0));
    guest.memory.write(guest.data, &bytes);
    let (ring, at) = (&mut guest.transmit, guest.data);
    for head in 0..ring.size {
        ring.descriptor(head, Memory::guest(at), bytes.len() as u32, 0, 0);
        ring.offer(head);
    }
    attackers.repeat(guest, REST, |guest| again(&mut guest.transmit))
}

fn deaf() -> Setup {
    Setup {
        posted: 0,
        receive_size: 1024,
        ..Setup::default()
    }
}

#[test]
fn indirect_tables_of_all_sizes_posted() {
    for entries in TABLES {
        hold(
            &format!("posted: indirect tables of {entries}"),
            |switch, attackers| {
                let mut guest = attacker(switch, FIRST, deaf());
                let at = table(&guest, entries, 2000, WRITE);
                fill(&mut guest.receive, at, entries);
                let taker = attackers.repeat(guest, REST, |guest| again(&mut guest.receive));
                vec![taker, flood(switch, attackers, FIRST + 1, FIRST, 60)]
            },
            |_| (),
        );
    }
}

/// One-byte buffers and kicks, while a large frame waits for buffers that could hold it.
#[test]
fn kicks_over_tiny_buffers() {
    hold(
        "posted: one-byte buffers, a kick each ms",
        |switch, attackers| {
            let mut guest = attacker(switch, FIRST, deaf());
            let ring = &mut guest.receive;
            for head in 0..ring.size - 1 {
                ring.descriptor(head, Memory::guest(guest.data), 1, WRITE, 0);
                ring.offer(head);
            }
            let _ = ring.publish();
            let kicker = attackers.repeat(guest, REST, |guest| guest.receive.kick());
            vec![kicker, flood(switch, attackers, FIRST + 1, FIRST, 1400)]
        },
        |_| (),
    );
}

/// No attack: what four tasks cost that have nothing to do with the switch, on as few cores.
#[test]
fn computing_for_comparison() {
    hold(
        "for comparison: four tasks that compute",
        |_, attackers| {
            let compute = |_| attackers.repeat((), Duration::ZERO, |()| compute(Duration::from_micros(500)));
            (0..4).map(compute).collect()
        },
        |_| (),
    );
}

fn compute(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

#[test]
fn kicks_without_end() {
    hold(
        "kicks without end",
        |switch, attackers| {
            let start = |port| {
                let guest = attacker(switch, port, Setup::default());
                attackers.repeat(guest, Duration::ZERO, |guest| {
                    guest.transmit.kick();
                    guest.receive.kick();
                })
            };
            (FIRST..FIRST + 4).map(start).collect()
        },
        |_| (),
    );
}

/// Ports that offer a full ring and a kick each millisecond, a write each, of frames that are dropped.
#[test]
fn full_rings_of_many_ports() {
    let ports = if is_long() { 64 } else { 16 };
    hold_to(
        &format!("full rings and kicks of {ports} ports, each ms"),
        HALF,
        |switch, attackers| {
            let start = |port| {
                let mut guest = attacker(switch, port, large());
                switch.flow(port, &[Action::Drop(DropReason::Policy)]);
                let (ring, at) = (&mut guest.transmit, guest.data);
                for head in 0..ring.size {
                    ring.descriptor(head, Memory::guest(at), 76, 0, 0);
                    ring.offer(head);
                }
                guest
            };
            let guests: Vec<Guest> = (FIRST..FIRST + ports).map(start).collect();
            vec![attackers.repeat(guests, REST, |guests| {
                for guest in guests {
                    let ring = &mut guest.transmit;
                    ring.next = ring.used_index().wrapping_add(ring.size);
                    let _ = ring.publish();
                    ring.kick();
                }
            })]
        },
        |_| (),
    );
}

/// Frames of 64 KiB in segments of few bytes, to a receiver that wants them segmented.
#[test]
fn segments_of_few_bytes() {
    hold(
        "sent: 64 KiB in segments of 8 bytes",
        |switch, attackers| {
            let guest = attacker(switch, FIRST, large());
            let receiver = attacker(switch, FIRST + 1, Setup::features(LEAST));
            switch.join(FIRST, FIRST + 1);
            let frame = Tcp::new(false, 60_000).frame(FIRST, FIRST + 1, false);
            let header = VnetHeader {
                flags: wire::NEEDS_CSUM,
                gso_type: 1,
                hdr_len: 54,
                gso_size: 8,
                csum_start: 34,
                csum_offset: 16,
                ..VnetHeader::default()
            };
            let taker = attackers.repeat(
                receiver,
                REST,
                |receiver| while receiver.try_receive().is_some() {},
            );
            let sender = attackers.repeat(guest, REST, move |guest| {
                for _ in 0..8 {
                    if guest.outstanding() < 16 {
                        guest.offer_packet(&header, &frame, &Layout::Apart);
                    }
                }
                guest.transmit.publish_and_kick();
            });
            vec![taker, sender]
        },
        |_| (),
    );
}

/// Indices that jump, and rings that are started again at once.
#[test]
fn indices_that_jump() {
    hold(
        "indices that jump, rings that start again",
        |switch, attackers| {
            let start = |port| {
                let guest = attacker(switch, port, Setup::default());
                attackers.repeat(guest, REST, |guest| {
                    for ring in [&mut guest.transmit, &mut guest.receive] {
                        ring.next = ring.next.wrapping_add(5000);
                        ring.publish_and_kick();
                    }
                    for index in [RECEIVE, TRANSMIT] {
                        guest.session.tell(SET_VRING_ENABLE, &state(index, 0), &[]);
                        guest.session.tell(SET_VRING_ENABLE, &state(index, 1), &[]);
                    }
                })
            };
            (FIRST..FIRST + 4).map(start).collect()
        },
        |_| (),
    );
}

/// Packets of ever new senders, each of which the control process has to see.
#[test]
fn misses_without_end() {
    hold(
        "misses without end",
        |switch, attackers| {
            let start = |port| {
                let mut guest = attacker(switch, port, large());
                let ring = &mut guest.transmit;
                for head in 0..ring.size {
                    ring.descriptor(head, Memory::guest(guest.data), 76, 0, 0);
                    ring.offer(head);
                }
                attackers.repeat((guest, 0u32), REST, move |(guest, seed)| {
                    *seed = seed.wrapping_add(1);
                    let mut frame = plain(port, 7, 64, *seed as u8);
                    frame[8..12].copy_from_slice(&seed.to_be_bytes());
                    guest.memory.write(guest.data, &[vec![0; 12], frame].concat());
                    again(&mut guest.transmit);
                })
            };
            (FIRST..FIRST + 3).map(start).collect()
        },
        |_| (),
    );
}
