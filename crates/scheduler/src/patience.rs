//! Wakeup preemption: whether a worker that is woken takes its core from the task that has it.
//!
//! A kick wakes the worker of the sender's core while the sender runs there. The first packet after a pause is served at
//! once: the worker preempts, and somebody waits for that packet. In a train of packets it is better to wait until the sender blocks, as it
//! mostly does within tens of microseconds: the worker then finds at once all that was sent, and nobody loses time to switches
//! between the two (Hyper-Switch 3.5). So a worker is *patient* (`SCHED_BATCH`) while packets come in close sequence, and no longer than
//! [`PAUSE_NS`] after the last wake-up.
//!
//! Patience is wrong where the core's task does not block: another guest, or any program, keeps the core for a time slice of
//! milliseconds. That is known only afterwards. A worker that got its core only because a slice was used up is not
//! patient for a while, which doubles each time up to [`LONGEST_NS`]: what is waited in vain is a bounded, small part of all
//! time. Rings at home there go to the worker of an idle core meanwhile, for [`CONTENDED_NS`].

use priority::Rest;

/// Time per packet up to which packets are a train.
const TRAIN_NS: u64 = 200_000;

/// A sleep that ends a train; the worker then takes its core at once.
pub(crate) const PAUSE_NS: u64 = 1_000_000;

/// The weight of the newest gap is one of so many.
const WEIGHT: u64 = 8;

/// How long a worker is not patient, once it was so in vain; and at most, if that is so time and again.
const FIRST_NS: u64 = 250_000_000;
const LONGEST_NS: u64 = 64 * FIRST_NS;

/// How long a core counts as contended.
const CONTENDED_NS: u64 = 250_000_000;

/// See the module's description. Times are in nanoseconds of any one clock.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Time per packet, a moving average.
    gap_ns: u64,
    woken_ns: u64,
    /// Packets moved up to then.
    packets: u64,
    /// The worker sleeps patiently.
    waits: bool,
    /// When it was patient in vain last, and for how long it is not from then on.
    failed_ns: Option<u64>,
    pause_ns: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            gap_ns: PAUSE_NS,
            woken_ns: 0,
            packets: 0,
            waits: false,
            failed_ns: None,
            pause_ns: FIRST_NS,
        }
    }
}

impl Patience {
    /// The worker is about to sleep: how it is to be woken.
    pub fn rest(&mut self, now_ns: u64) -> Rest {
        let train = self.gap_ns <= TRAIN_NS && now_ns < self.woken_ns + PAUSE_NS;
        let may = self
            .failed_ns
            .is_none_or(|failed_ns| now_ns >= failed_ns + self.pause_ns);
        self.waits = train && may;
        if self.waits { Rest::Patient } else { Rest::Ready }
    }

    /// The worker was woken by something and has its core. `packets` it has moved in all so far; `preempted`: the
    /// task before had had the core for long and still wanted it.
    pub fn woken(&mut self, now_ns: u64, packets: u64, preempted: bool) {
        let moved = packets.wrapping_sub(self.packets).max(1);
        let gap_ns = (now_ns.saturating_sub(self.woken_ns) / moved).min(PAUSE_NS);
        self.gap_ns = (self.gap_ns * (WEIGHT - 1) + gap_ns) / WEIGHT;
        (self.woken_ns, self.packets) = (now_ns, packets);
        if !self.waits {
            return;
        }
        if preempted {
            let again = self.failed_ns.is_some();
            self.failed_ns = Some(now_ns);
            self.pause_ns = if again {
                (self.pause_ns * 2).min(LONGEST_NS)
            } else {
                FIRST_NS
            };
        } else if self
            .failed_ns
            .is_some_and(|failed_ns| now_ns >= failed_ns + 2 * self.pause_ns)
        {
            // It has been right for as long as it was not tried.
            self.failed_ns = None;
        }
    }

    /// Whether the core is contended: its task does not block, as far as is known.
    pub fn is_contended(&self, now_ns: u64) -> bool {
        self.failed_ns
            .is_some_and(|failed_ns| now_ns < failed_ns + CONTENDED_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that is woken every `gap_ns` for `packets`, until `times` have passed.
    fn train(patience: &mut Patience, now_ns: &mut u64, gap_ns: u64, times: u64, packets: u64) {
        for _ in 0..times {
            *now_ns += gap_ns;
            let moved = patience.packets + packets;
            patience.woken(*now_ns, moved, false);
        }
    }

    #[test]
    fn the_first_packet_after_a_pause_is_served_at_once() {
        let (mut patience, mut now_ns) = (Patience::default(), 0);
        assert_eq!(patience.rest(now_ns), Rest::Ready);
        // Ten pings per second.
        train(&mut patience, &mut now_ns, 100_000_000, 20, 1);
        assert_eq!(patience.rest(now_ns), Rest::Ready);
        train(&mut patience, &mut now_ns, 20_000, 40, 1);
        assert_eq!(patience.rest(now_ns), Rest::Patient);
        assert_eq!(patience.rest(now_ns + PAUSE_NS), Rest::Ready);
    }

    #[test]
    fn a_train_is_one_also_if_the_worker_wakes_seldom() {
        let (mut patience, mut now_ns) = (Patience::default(), 0);
        train(&mut patience, &mut now_ns, 800_000, 40, 64);
        assert_eq!(patience.rest(now_ns), Rest::Patient);
    }

    #[test]
    fn who_waited_in_vain_waits_less_and_less_often() {
        let (mut patience, mut now_ns) = (Patience::default(), 0);
        let mut tries = 0;
        while now_ns < 100_000_000_000 {
            now_ns += 20_000;
            if patience.rest(now_ns) == Rest::Patient {
                tries += 1;
                now_ns += 4_000_000;
                patience.woken(now_ns, now_ns / 10_000, true);
                assert!(patience.is_contended(now_ns));
            } else {
                patience.woken(now_ns, now_ns / 10_000, false);
            }
        }
        assert!((8..16).contains(&tries), "{tries} in 100 s");
        // Somebody who blocks has come instead: after the pause it is as before.
        now_ns += LONGEST_NS;
        train(&mut patience, &mut now_ns, 20_000, 100, 1);
        assert_eq!(patience.rest(now_ns), Rest::Patient);
        now_ns += 2 * LONGEST_NS;
        train(&mut patience, &mut now_ns, 20_000, 100, 1);
        patience.rest(now_ns);
        patience.woken(now_ns, patience.packets + 1, false);
        assert_eq!(patience.failed_ns, None);
        assert!(!patience.is_contended(now_ns));
    }
}
