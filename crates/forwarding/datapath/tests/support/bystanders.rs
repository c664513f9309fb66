//! Two guests that exchange packets all the time and want to lose none, whatever others do.

use super::frames::plain;
use super::{Guest, Switch, TIMEOUT, guest::Layout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::VnetHeader;

/// Ports of the bystanders.
pub const PORTS: [u32; 2] = [8, 9];

pub struct Bystanders {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<u64>,
}

impl Bystanders {
    pub fn start(switch: &mut Switch) -> Bystanders {
        let [a, b] = PORTS;
        switch.add(a);
        switch.add(b);
        let mut guests = [Guest::usual(switch, a), Guest::usual(switch, b)];
        switch.join(a, b);
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let (ending, counting) = (stop.clone(), rounds.clone());
        let thread = std::thread::spawn(move || {
            let mut sent = 0;
            while !ending.load(Ordering::Relaxed) {
                sent += exchange(&mut guests, sent);
                counting.fetch_add(1, Ordering::Relaxed);
                // They are not the test: leave the processor to those who are.
                std::thread::sleep(Duration::from_micros(300));
            }
            guests.iter_mut().for_each(Guest::all_sent);
            sent
        });
        Bystanders { stop, rounds, thread }
    }

    /// Fails unless they have exchanged something since the call, so that they are alive.
    #[track_caller]
    pub fn alive(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        let end = Instant::now() + TIMEOUT;
        while self.rounds.load(Ordering::Relaxed) < before + 2 {
            let died = self.thread.is_finished();
            assert!(!died && Instant::now() < end, "the bystanders do not get on");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Ends them; nothing was lost.
    #[track_caller]
    pub fn finish(self, switch: &mut Switch) {
        self.alive();
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.thread.join().expect("the bystanders lost nothing");
        for port in PORTS {
            let counters = switch.counters(port);
            assert_eq!(counters.received, sent / 2, "{counters:?}");
            assert_eq!((counters.delivered, counters.transmitted), (sent / 2, sent / 2));
            assert_eq!(
                (counters.dropped.total(), counters.egress_dropped.total()),
                (0, 0)
            );
            assert_eq!(counters.upcalls, 0);
        }
    }
}

/// A few packets each way, small and large.
fn exchange(guests: &mut [Guest; 2], sent: u64) -> u64 {
    let [a, b] = guests;
    let [first, second] = PORTS;
    let frames: Vec<_> = (0..4u8)
        .map(|number| plain(first, second, 60 + usize::from(number) * 450, number ^ sent as u8))
        .collect();
    for frame in &frames {
        a.send_as(&VnetHeader::default(), frame, &Layout::Apart);
        b.send_as(&VnetHeader::default(), frame, &Layout::One);
    }
    for frame in &frames {
        a.expect_plain(frame);
        b.expect_plain(frame);
    }
    2 * frames.len() as u64
}
