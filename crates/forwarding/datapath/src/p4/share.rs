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
//! Packets of others that come during such a turn wait for its end. So the longer its turns may be, the
//! smaller is its share, which holds while nobody else has packets as well: few packets of others meet such a
//! turn.
//!
//! Programs that packets reach over links are charged for their own runs. Packets that would make one of them
//! go beyond its share wait in the ring that they come from, as long as the ring's last packets met it: those
//! of other rings, which do not, go on.
//!
//! Nobody waits for nothing: a turn is passed on only while rings of others are served. If as many turns in
//! sequence were passed on as rings wait, nobody else has packets.

use super::P4Key;
use flow::PortId;
use std::collections::BTreeMap;
use vnic::Fetched;

/// A P4 switch may take a part of a thread's time that is one divided by this.
const PART: u64 = 16;

/// By how much smaller the share of a P4 switch is whose turns are longer than usual, for each usual length.
const LONG: u64 = 4;

/// How much of the thread's time passes until a P4 switch may take again what it may have at once, in
/// nanoseconds.
const CREDIT_NS: u64 = 1_000_000;

/// Longest time that a P4 switch whose turns have the usual length waits, in nanoseconds, whatever it took.
const MOST_NS: u64 = 20_000_000;

/// Most time between two turns of P4 switches that the thread has had, in nanoseconds.
const GAP_NS: u64 = 1_000_000;

/// P4 switches that a thread remembers. Beyond that it forgets all.
const MOST_SWITCHES: usize = 1024;

/// Ports of which a thread remembers what their packets met. Beyond that it forgets all.
const MOST_PORTS: usize = 1024;

/// What becomes of a turn at a ring whose packets are not looked up.
pub(crate) enum Diverted {
    Fetched(Fetched),
    /// There is no free lane, or the P4 switch has had more than its share of time: the ring is served later.
    PassedOn,
    /// Turns of the P4 switch are long and rare, and a timer is set for the next one.
    Waits,
}

/// When packets have a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Now,
    /// When others have had theirs.
    Later,
    /// After so many nanoseconds.
    After(u64),
}

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
    /// P4 switches that the last packets of ports met over links.
    met: BTreeMap<PortId, Vec<P4Key>>,
}

impl Shares {
    /// Charges time to a P4 switch, whose turns may take `length` times as long as usual.
    pub fn charge(&mut self, (switch, length): (P4Key, u64), took_ns: u64, now_ns: u64) {
        let rarity = if length > 1 { LONG * length } else { 1 };
        self.pass_time(now_ns);
        if self.used_up_ns.len() >= MOST_SWITCHES {
            self.used_up_ns.clear();
        }
        let used_up = self.used_up_ns.entry(switch).or_default();
        let from = (*used_up).max(self.had_ns.saturating_sub(CREDIT_NS));
        *used_up = from
            .saturating_add(took_ns.saturating_mul(PART * rarity))
            .min(self.had_ns + MOST_NS * rarity);
    }

    /// When packets of a port that is bound to a P4 switch have a turn, which may take `length` times as long
    /// as usual. `load` has the rings that wait for a turn, and the packets that the thread has forwarded.
    pub fn due(
        &mut self,
        port: PortId,
        (switch, length): (P4Key, u64),
        now_ns: u64,
        load: (usize, u64),
    ) -> Due {
        let met = self.met.remove(&port);
        let others = met.iter().flatten().copied();
        let mut all = std::iter::once(switch).chain(others);
        let due = all.find_map(|key| match self.due_of((key, length), now_ns, load) {
            Due::Now => None,
            due => Some(due),
        });
        met.and_then(|met| self.met.insert(port, met));
        due.unwrap_or(Due::Now)
    }

    /// As [`due`](Self::due), of one P4 switch alone.
    pub fn due_of(&mut self, turns: (P4Key, u64), now_ns: u64, load: (usize, u64)) -> Due {
        if let Some(wait_ns) = self.wait_ns(turns, now_ns) {
            return Due::After(wait_ns);
        }
        if self.pass_on(turns.0, now_ns, load) {
            Due::Later
        } else {
            Due::Now
        }
    }

    /// Forgets what packets of a port met.
    pub fn forget_met(&mut self, port: PortId) {
        if let Some(met) = self.met.get_mut(&port) {
            met.clear();
        }
    }

    /// Records that packets of a port met a P4 switch over a link.
    pub fn record_met(&mut self, port: PortId, switch: P4Key) {
        if self.met.len() >= MOST_PORTS && !self.met.contains_key(&port) {
            self.met.clear();
        }
        let met = self.met.entry(port).or_default();
        if !met.contains(&switch) {
            met.push(switch);
        }
    }

    /// How long a P4 switch waits whose turns may take `length` times as long as usual, if that is more than
    /// once; others may have packets during its turn that they do not have yet. `None`: it need not wait for
    /// that.
    fn wait_ns(&mut self, (switch, length): (P4Key, u64), now_ns: u64) -> Option<u64> {
        if length == 1 {
            return None;
        }
        self.pass_time(now_ns);
        let used_up_ns = self.used_up_ns.get(&switch)?;
        let left_ns = used_up_ns.saturating_sub(self.had_ns);
        // The thread has no more time than that while it sleeps.
        (left_ns > 0).then_some(left_ns.min(GAP_NS))
    }

    fn pass_time(&mut self, now_ns: u64) {
        self.had_ns += now_ns.saturating_sub(self.at_ns).min(GAP_NS);
        self.at_ns = now_ns;
    }

    /// Passes a turn on if the share is used up and others have packets. `waiting` rings wait for a turn, and
    /// the thread has forwarded so many packets.
    fn pass_on(&mut self, switch: P4Key, now_ns: u64, (waiting, packets): (usize, u64)) -> bool {
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

    /// Turns of 800 us, ten times the usual length, have a 640th of the time, though nobody waits.
    #[test]
    fn long_turns_are_rare() {
        let mut shares = Shares::default();
        let (begin_ns, end_ns) = (1_000_000_000, 11_000_000_000);
        let (mut now_ns, mut turns) = (begin_ns, 0);
        while now_ns < end_ns {
            now_ns += match shares.wait_ns((OWN, 10), now_ns) {
                Some(wait_ns) => wait_ns,
                None => {
                    shares.charge((OWN, 10), 800_000, now_ns + 800_000);
                    turns += 1;
                    800_000
                }
            };
        }
        assert!((19..=21).contains(&turns), "{turns} of 20");
        assert_eq!(shares.wait_ns((OWN, 1), now_ns), None, "usual turns");
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
    fn packets_wait_for_what_the_last_of_their_ring_met() {
        let mut shares = Shares::default();
        let other = (ControllerId::BUILT_IN, P4Id(2));
        let [one, two] = [1, 2].map(PortId);
        shares.record_met(one, other);
        shares.charge((other, 1), MOST_NS, 0);
        let due = |shares: &mut Shares, port| shares.due(port, (OWN, 1), 1_000, (1, 5));
        assert_eq!(due(&mut shares, one), Due::Later);
        assert_eq!(due(&mut shares, two), Due::Now, "its packets do not meet it");
        shares.forget_met(one);
        assert_eq!(due(&mut shares, one), Due::Now);
        shares.record_met(one, other);
        shares.charge((other, 2), MOST_NS, 0);
        let due = shares.due(one, (OWN, 2), 1_000, (0, 5));
        assert!(matches!(due, Due::After(1..=GAP_NS)), "long turns are rare");
        for port in 0..3 * MOST_PORTS as u32 {
            shares.record_met(PortId(port), other);
        }
        assert!(shares.met.len() <= MOST_PORTS);
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
