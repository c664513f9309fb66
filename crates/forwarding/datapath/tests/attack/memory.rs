//! Memory that is huge, vanishes under the data plane, or gets holes.

use crate::measure::{FIRST, hold};
use crate::support::Guest;
use crate::support::frames::plain;
use crate::support::memory::{FILE_OFFSET, USER_BASE, memfd};
use crate::support::session::RegionSpec;
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use std::time::Duration;

/// Regions of a sparse file of 2^46 bytes, added and removed again.
#[test]
fn address_space_used_up() {
    hold(
        "memory: sparse regions of 64 TiB",
        |switch, attackers| {
            let start = |port| {
                switch.add(port);
                let guest = Guest::usual(switch, port);
                let file = memfd(1 << 46);
                attackers.repeat((guest, file), Duration::from_millis(1), |(guest, file)| {
                    for number in 1..4 {
                        let spec = RegionSpec(number << 46, 1 << 46, USER_BASE.wrapping_add(number << 46), 0);
                        if guest.session.stream.peer_addr().is_ok() {
                            guest.session.add_region(spec, &*file);
                            guest.session.remove_region(spec);
                        }
                    }
                })
            };
            (FIRST..FIRST + 4).map(start).collect()
        },
        |_| (),
    );
}

/// Files cut short one after the other, while packets lie in them.
#[test]
fn memory_that_vanishes() {
    hold(
        "memory: files that are cut short",
        |switch, attackers| {
            let start = |port| {
                switch.add(port);
                let mut guest = Guest::usual(switch, port);
                switch.flow(port, &[flow::Action::Output(flow::PortId(port))]);
                guest.send(&plain(port, port, 1000, 1));
                let mut turns = 5 * (port - FIRST + 1);
                attackers.repeat(guest, Duration::from_millis(2), move |guest| {
                    turns = turns.saturating_sub(1);
                    if turns == 0 {
                        ftruncate(&guest.memory.file, 0).unwrap();
                    }
                    guest.transmit.kick();
                    guest.receive.kick();
                })
            };
            (FIRST..FIRST + 6).map(start).collect()
        },
        |_| (),
    );
}

/// Pages given back under a guest's packets: each touch is a fault and a zeroed page.
#[test]
fn memory_with_holes() {
    hold(
        "memory: holes punched all the time",
        |switch, attackers| {
            let start = |port| {
                switch.add(port);
                let mut guest = Guest::usual(switch, port);
                switch.flow(port, &[flow::Action::Output(flow::PortId(port))]);
                guest.repost = false;
                attackers.repeat(guest, Duration::from_micros(200), move |guest| {
                    for seed in 0..4 {
                        if guest.outstanding() < 4 {
                            guest.send(&plain(port, port, 1400, seed));
                        }
                    }
                    // The data only: the rings stay whole.
                    let start = FILE_OFFSET + guest.data as u64 - 64 * 1024;
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(&guest.memory.file, flags, start, 64 * 1024).unwrap();
                })
            };
            (FIRST..FIRST + 3).map(start).collect()
        },
        |_| (),
    );
}
