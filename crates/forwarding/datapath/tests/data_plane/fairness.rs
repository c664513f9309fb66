//! Ports that have little to send beside ports whose rings are never empty.

use crate::support::frames::plain;
use crate::support::memory::Memory;
use crate::support::{Guest, Setup, Switch, eventually};
use flow::{Action, DropReason};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A guest whose transmit ring is full again as soon as anything is taken from it.
struct Flood {
    end: Arc<AtomicBool>,
    thread: JoinHandle<Guest>,
}

impl Flood {
    fn start(switch: &mut Switch, port: u32) -> Flood {
        let setup = Setup {
            transmit_size: 1024,
            ..Setup::default()
        };
        let mut guest = Guest::start(switch, port, setup);
        let (ring, at) = (&mut guest.transmit, guest.data);
        let mut bytes = vec![0; 12];
        bytes.extend(plain(port, 7, 64, 0));
        guest.memory.write(at, &bytes);
        for head in 0..ring.size {
            ring.descriptor(head, Memory::guest(at), bytes.len() as u32, 0, 0);
            ring.offer(head);
        }
        let end = Arc::new(AtomicBool::new(false));
        let ending = end.clone();
        let thread = std::thread::spawn(move || {
            while !ending.load(Ordering::Relaxed) {
                let ring = &mut guest.transmit;
                // The entries of the available ring are as they have to be already.
                ring.next = ring.used_index().wrapping_add(ring.size);
                ring.publish_and_kick();
                std::thread::yield_now();
            }
            guest
        });
        Flood { end, thread }
    }

    /// Ends when all that it sent is done.
    fn end(self) {
        self.end.store(true, Ordering::Relaxed);
        let guest = self.thread.join().unwrap();
        eventually("the ring is empty", || {
            guest.transmit.used_index() == guest.transmit.next
        });
    }
}

#[test]
fn rings_that_are_never_empty_hide_no_other() {
    const FLOODS: u32 = 3;
    const QUIET: [u32; 2] = [4, 5];
    let mut switch = Switch::with_ports(5);
    let [mut a, mut b] = QUIET.map(|port| Guest::usual(&mut switch, port));
    switch.join(QUIET[0], QUIET[1]);
    (1..=FLOODS).for_each(|port| switch.flow(port, &[Action::Drop(DropReason::Policy)]));
    let floods: Vec<_> = (1..=FLOODS).map(|port| Flood::start(&mut switch, port)).collect();
    for seed in 0..200 {
        let frame = plain(QUIET[0], QUIET[1], 100, seed);
        a.send(&frame);
        b.expect_plain(&frame);
    }
    for port in 1..=FLOODS {
        switch.until(port, "the flood goes on", |counters| counters.received > 1024);
    }
    a.all_sent();
    floods.into_iter().for_each(Flood::end);
    switch.finish();
}
