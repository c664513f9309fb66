//! What P4 switches may take of a forwarding thread's time while others wait for it.
//!
//! A tenant decides what its program costs, and how many ports are bound to it. Turns that are equal per ring
//! would give it as many turns as it has ports. So a thread charges all time for packets of bound ports, the
//! program's and that of delivery, to their P4 switch. While that has had more than its share, a ring of it
//! that is given a turn passes it on: packets stay in their ring, none is lost, and the guest waits.
//!
//! The thread's time is that in which it works: a thread that loses its core for some milliseconds has not
//! had them, and gives nobody a part of them.
//!
//! A program that is allowed more than the usual operations may take longer than others can wait in one turn.
//! The longer its turns may be, the smaller is its share: turns of ten times the usual length are a hundred
//! times as rare, so that few packets of others meet one.
//!
//! Nobody waits for nothing: a turn is passed on only while rings of others are served. If as many turns in
//! sequence were passed on as rings wait, nobody else has packets.

use super::P4Key;
use std::collections::BTreeMap;

/// A P4 switch may take a part of a thread's time that is one divided by this.
const PART: u64 = 16;

/// How much of the thread's time passes until a P4 switch may take again what it may have at once, in
/// nanoseconds.
const CREDIT_NS: u64 = 1_000_000;

/// Longest time that a P4 switch whose turns have the usual length waits, in nanoseconds, whatever it took.
const MOST_NS: u64 = 20_000_000;

/// Most time between two turns of P4 switches that the thread has had, in nanoseconds.
const GAP_NS: u64 = 1_000_000;

/// P4 switches that a thread remembers. Beyond that it forgets all.
const MOST_SWITCHES: usize = 1024;

/// A thread's accounts of P4 switches.
#[derive(Default)]
pub(crate) struct Shares {
    /// Up to which time of `had_ns` a share is used up.
    used_up_ns: BTreeMap<P4Key, u64>,
    /// Time that the thread has had.
    had_ns: u64,
    /// When `had_ns` was brought up to date.
    at_ns: u64,
    passed_on: usize,
    /// Packets that the thread had forwarded when a turn was passed on last.
    packets: u64,
}

impl Shares {
    /// Charges time to a P4 switch, whose turns may take `length` times as long as usual.
    pub fn charge(&mut self, (switch, length): (P4Key, u64), took_ns: u64, now_ns: u64) {
        self.pass_time(now_ns);
        if self.used_up_ns.len() >= MOST_SWITCHES {
            self.used_up_ns.clear();
        }
        let used_up = self.used_up_ns.entry(switch).or_default();
        let from = (*used_up).max(self.had_ns.saturating_sub(CREDIT_NS));
        *used_up = from
            .saturating_add(took_ns.saturating_mul(PART * length))
            .min(self.had_ns + MOST_NS * length);
    }

    fn pass_time(&mut self, now_ns: u64) {
        self.had_ns += now_ns.saturating_sub(self.at_ns).min(GAP_NS);
        self.at_ns = now_ns;
    }

    /// Passes a turn on if the share is used up and others have packets. `waiting` rings wait for a turn, and
    /// the thread has forwarded so many packets.
    pub fn pass_on(&mut self, switch: P4Key, now_ns: u64, (waiting, packets): (usize, u64)) -> bool {
        self.pass_time(now_ns);
        let is_used_up = self.used_up_ns.get(&switch).is_some_and(|at| *at > self.had_ns);
        if !is_used_up || waiting == 0 {
            return false;
        }
        if self.packets != packets {
            (self.passed_on, self.packets) = (0, packets);
        }
        if self.passed_on > waiting {
            self.passed_on = 0;
            return false;
        }
        self.passed_on += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{ControllerId, P4Id};

    const OWN: P4Key = (ControllerId::BUILT_IN, P4Id(1));

    #[test]
    fn a_switch_has_its_part_of_the_time_while_others_forward() {
        let mut shares = Shares::default();
        let (mut now_ns, mut busy_ns) = (1_000_000_000, 0);
        for packets in 0..10_000 {
            now_ns += 80_000;
            if !shares.pass_on(OWN, now_ns, (1, packets)) {
                shares.charge((OWN, 1), 80_000, now_ns);
                busy_ns += 80_000;
            }
        }
        let part = f64::from(busy_ns) / 800_000_000.0 * PART as f64;
        assert!((0.9..1.1).contains(&part), "{part}");
    }

    /// Turns of 800 us, ten times the usual length, fill less than a hundredth of the time.
    #[test]
    fn long_turns_are_rare() {
        let mut shares = Shares::default();
        let (mut now_ns, mut turns) = (1_000_000_000, 0);
        for packets in 0..20_000 {
            now_ns += 50_000;
            if !shares.pass_on(OWN, now_ns, (1, packets)) {
                now_ns += 800_000;
                shares.charge((OWN, 10), 800_000, now_ns);
                turns += 1;
            }
        }
        assert!((5..=8).contains(&turns), "{turns} of 7.8");
    }

    #[test]
    fn nobody_waits_for_nothing() {
        let mut shares = Shares::default();
        let other = (ControllerId::BUILT_IN, P4Id(2));
        let now_ns = 1_000_000_000;
        shares.charge((OWN, 1), MOST_NS, now_ns);
        shares.charge((other, 1), MOST_NS, now_ns);
        assert!(!shares.pass_on(OWN, now_ns, (0, 5)), "no ring waits");
        // Both wait, and nothing is forwarded meanwhile.
        let served = (0..40).filter(|turn| {
            let switch = if turn % 2 == 0 { OWN } else { other };
            !shares.pass_on(switch, now_ns, (1, 5))
        });
        assert!(served.count() >= 10);
    }

    #[test]
    fn whatever_it_took_the_wait_is_bounded() {
        let mut shares = Shares::default();
        shares.charge((OWN, 1), u64::MAX, 0);
        let turns = MOST_NS / 100_000;
        for turn in 1..turns {
            assert!(shares.pass_on(OWN, turn * 100_000, (1, turn)), "{turn}");
        }
        assert!(!shares.pass_on(OWN, turns * 100_000, (1, turns)));
    }

    #[test]
    fn time_that_a_thread_has_not_had_is_no_part_of_a_share() {
        let mut shares = Shares::default();
        shares.charge((OWN, 1), u64::MAX, 0);
        for slice in 1..10 {
            assert!(shares.pass_on(OWN, slice * 20 * MOST_NS, (1, slice)), "{slice}");
        }
    }
}
