//! Wakeup preemption: whether a worker that is woken takes its core from the task that has it.
//!
//! A kick wakes the worker of the sender's core while the sender runs there. The first packet after a pause
//! is served at once: the worker preempts, as an application waits for that packet. In a train of packets it
//! is better to wait until the sender blocks, as it mostly does within tens of microseconds: the worker then
//! finds at once all that was sent, and no task loses time to switches between the two (Hyper-Switch 3.5). So
//! a worker is *patient* (`SCHED_BATCH`) while packets come in close sequence, and no longer than
//! [`PAUSE_NS`] after the last wake-up.
//!
//! Waiting is wrong where the core's task does not block: another guest, or any program, keeps the core for a
//! time slice of milliseconds. That is known only afterwards. A worker that got its core only because a slice
//! was used up is not patient for a while ([`Backoff`]). Rings at home there go to the worker of an idle core
//! meanwhile, for [`CONTENDED_NS`]. It is wrong as well for guests that go on computing after they kicked, if
//! for less than a slice: that is learned for each port ([`GuestBlocks`](crate::guest_blocks::GuestBlocks)),
//! and a worker is patient only if the ports that woke it last may be waited for.

use crate::backoff::Backoff;
use thread_priority::WakeMode;

/// Time per packet up to which packets are a train.
const TRAIN_NS: u64 = 200_000;

/// A sleep that ends a train; the worker then takes its core at once.
pub(crate) const PAUSE_NS: u64 = 1_000_000;

/// The weight of the newest gap is one of so many.
const WEIGHT: u64 = 8;

/// Time for which a worker is not patient after it waited in vain for a whole slice, at first.
const FIRST_NS: u64 = 250_000_000;

/// Time for which a core counts as contended.
const CONTENDED_NS: u64 = 250_000_000;

/// See the module's description. Times are in nanoseconds of any one clock.
#[derive(Debug)]
pub(crate) struct WakeupPreemption {
    /// Time per packet, a moving average.
    gap_ns: u64,
    woken_ns: u64,
    /// Number of packets moved before that wake-up.
    packets: u64,
    /// Whether the worker sleeps patiently.
    waits: bool,
    /// The time that it waited for the core when it was woken last, if it was patient.
    waited_ns: Option<u64>,
    /// Back-off of waiting until the core's task blocks, whichever task that is.
    backoff: Backoff,
}

impl Default for WakeupPreemption {
    fn default() -> Self {
        WakeupPreemption {
            gap_ns: PAUSE_NS,
            woken_ns: 0,
            packets: 0,
            waits: false,
            waited_ns: None,
            backoff: Backoff::new(FIRST_NS),
        }
    }
}

impl WakeupPreemption {
    /// Chooses how the worker, which is about to sleep, is to be woken. `may`: the guests that woke it last
    /// may be waited for.
    pub fn choose_wake_mode(&mut self, now_ns: u64, may: bool) -> WakeMode {
        let train = self.gap_ns <= TRAIN_NS && now_ns < self.woken_ns + PAUSE_NS;
        self.waits = train && may && self.backoff.may(now_ns);
        if self.waits {
            WakeMode::Patient
        } else {
            WakeMode::Preempting
        }
    }

    /// Notes that the worker was woken and has its core, for which it waited for `waited_ns` if it was
    /// patient. It has moved `packets` in all so far. `preempted`: the task before had had the core for long
    /// and still wanted it.
    pub fn woken(&mut self, now_ns: u64, packets: u64, waited_ns: u64, preempted: bool) {
        let moved = packets.wrapping_sub(self.packets).max(1);
        let gap_ns = (now_ns.saturating_sub(self.woken_ns) / moved).min(PAUSE_NS);
        self.gap_ns = (self.gap_ns * (WEIGHT - 1) + gap_ns) / WEIGHT;
        (self.woken_ns, self.packets) = (now_ns, packets);
        self.waited_ns = self.waits.then_some(waited_ns);
        if !self.waits {
            return;
        }
        if preempted {
            self.backoff.failed(now_ns);
        } else {
            self.backoff.succeeded(now_ns);
        }
    }

    /// The time that the worker waited for each packet that it has moved since it was woken, if it was
    /// patient. `None` the second time.
    pub fn waited_per_packet_ns(&mut self, packets: u64) -> Option<u64> {
        let moved = packets.wrapping_sub(self.packets).max(1);
        self.waited_ns.take().map(|waited_ns| waited_ns / moved)
    }

    /// Whether the core is contended: its task does not block, as far as is known.
    pub fn is_contended(&self, now_ns: u64) -> bool {
        self.backoff.failed_within(now_ns, CONTENDED_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that is woken every `gap_ns` for `packets`, until `times` have passed.
    fn train(preemption: &mut WakeupPreemption, now_ns: &mut u64, gap_ns: u64, times: u64, packets: u64) {
        for _ in 0..times {
            *now_ns += gap_ns;
            let moved = preemption.packets + packets;
            preemption.woken(*now_ns, moved, 10_000, false);
        }
    }

    #[test]
    fn the_first_packet_after_a_pause_is_served_at_once() {
        let (mut preemption, mut now_ns) = (WakeupPreemption::default(), 0);
        assert_eq!(preemption.choose_wake_mode(now_ns, true), WakeMode::Preempting);
        // Ten pings per second.
        train(&mut preemption, &mut now_ns, 100_000_000, 20, 1);
        assert_eq!(preemption.choose_wake_mode(now_ns, true), WakeMode::Preempting);
        train(&mut preemption, &mut now_ns, 20_000, 40, 1);
        assert_eq!(preemption.choose_wake_mode(now_ns, true), WakeMode::Patient);
        assert_eq!(
            preemption.choose_wake_mode(now_ns + PAUSE_NS, true),
            WakeMode::Preempting
        );
    }

    #[test]
    fn a_train_is_one_also_if_the_worker_wakes_seldom() {
        let (mut preemption, mut now_ns) = (WakeupPreemption::default(), 0);
        train(&mut preemption, &mut now_ns, 800_000, 40, 64);
        assert_eq!(preemption.choose_wake_mode(now_ns, true), WakeMode::Patient);
    }

    #[test]
    fn who_waited_in_vain_waits_less_and_less_often() {
        let (mut preemption, mut now_ns) = (WakeupPreemption::default(), 0);
        let mut tries = 0;
        while now_ns < 100_000_000_000 {
            now_ns += 20_000;
            if preemption.choose_wake_mode(now_ns, true) == WakeMode::Patient {
                tries += 1;
                now_ns += 4_000_000;
                preemption.woken(now_ns, now_ns / 10_000, 4_000_000, true);
                assert!(preemption.is_contended(now_ns));
            } else {
                preemption.woken(now_ns, now_ns / 10_000, 0, false);
            }
        }
        assert!((8..16).contains(&tries), "{tries} in 100 s");
        // Somebody who blocks has come instead: after the pause it is as before.
        now_ns += 64 * FIRST_NS;
        train(&mut preemption, &mut now_ns, 20_000, 100, 1);
        assert_eq!(preemption.choose_wake_mode(now_ns, true), WakeMode::Patient);
        now_ns += 128 * FIRST_NS;
        train(&mut preemption, &mut now_ns, 20_000, 100, 1);
        preemption.choose_wake_mode(now_ns, true);
        preemption.woken(now_ns, preemption.packets + 1, 0, false);
        assert!(!preemption.backoff.failed_within(now_ns, now_ns), "forgotten");
        assert!(!preemption.is_contended(now_ns));
    }

    #[test]
    fn a_patient_wait_is_held_against_what_it_found() {
        let (mut preemption, mut now_ns) = (WakeupPreemption::default(), 0);
        train(&mut preemption, &mut now_ns, 20_000, 40, 1);
        assert_eq!(preemption.waited_per_packet_ns(40), None, "it took the core");
        assert_eq!(
            preemption.choose_wake_mode(now_ns, false),
            WakeMode::Preempting,
            "a guest that computes"
        );
        assert_eq!(preemption.choose_wake_mode(now_ns, true), WakeMode::Patient);
        preemption.woken(now_ns + 30_000, 40, 300_000, false);
        assert_eq!(preemption.waited_per_packet_ns(46), Some(50_000));
        assert_eq!(preemption.waited_per_packet_ns(46), None);
    }
}
