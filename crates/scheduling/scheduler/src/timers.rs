//! Rings that a thread serves when their time has come.
//!
//! There is one per receiver that is stalled or slow, per ring that is owed a notification or whose kicks are
//! not received, and per port that waits for its bandwidth, which may be hundreds. So timers of one reason
//! are a heap that knows the place of each ring: what is set, moved or has expired costs a few comparisons,
//! however many others wait.

use crate::ring_id::RingId;

/// Why a ring is to be served when its time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Packets that are queued wait for buffers, and will then have waited too long.
    Stall,
    /// Packets that are queued wait for buffers, and will then have waited too long if their senders serve
    /// others.
    Slow,
    /// The driver is owed a notification, which is due then.
    Notify,
    /// The ring's kicks are received again then.
    Kicks,
    /// The port has sent as much as its bandwidth allows, and may go on then.
    Bandwidth,
}

impl Due {
    /// All reasons, in their order.
    const ALL: [Due; 5] = [Due::Stall, Due::Slow, Due::Notify, Due::Kicks, Due::Bandwidth];
}

/// One timer per ring and reason at most. Times are in nanoseconds of any one clock.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    by_reason: [Heap; Due::ALL.len()],
    count: usize,
}

impl Timers {
    /// Sets a timer, or brings it forward.
    pub fn set(&mut self, at_ns: u64, ring: RingId, due: Due) {
        self.put(at_ns, ring, due, true);
    }

    /// Sets a timer, or puts it off or forward.
    pub fn reset(&mut self, at_ns: u64, ring: RingId, due: Due) {
        self.put(at_ns, ring, due, false);
    }

    fn put(&mut self, at_ns: u64, ring: RingId, due: Due, only_earlier: bool) {
        let is_new = self.by_reason[due as usize].put(Timer { at_ns, ring }, only_earlier);
        self.count += usize::from(is_new);
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes the timers whose time has come, and returns the time to the next one.
    pub fn expire(&mut self, now_ns: u64, mut expired: impl FnMut(RingId, Due)) -> Option<u64> {
        let mut next_ns: Option<u64> = None;
        for (heap, due) in self.by_reason.iter_mut().zip(Due::ALL) {
            while let Some(timer) = heap.first() {
                if timer.at_ns > now_ns {
                    let left_ns = timer.at_ns - now_ns;
                    next_ns = Some(next_ns.map_or(left_ns, |next_ns| next_ns.min(left_ns)));
                    break;
                }
                heap.remove(0);
                self.count -= 1;
                expired(timer.ring, due);
            }
        }
        next_ns
    }

    /// Takes the timers for this reason that `wanted` selects, before their time.
    pub fn take_early(
        &mut self,
        due: Due,
        wanted: impl FnMut(RingId) -> bool,
        mut taken: impl FnMut(RingId),
    ) {
        self.by_reason[due as usize].take(wanted, |ring| {
            self.count -= 1;
            taken(ring);
        });
    }
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    at_ns: u64,
    ring: RingId,
}

const NOWHERE: u32 = u32::MAX;

/// Timers of one reason: a binary heap whose first is the earliest.
#[derive(Debug, Default)]
struct Heap {
    timers: Vec<Timer>,
    /// Where each ring is in the heap, or [`NOWHERE`]; up to the highest number of a ring that had a timer.
    places: Vec<u32>,
}

impl Heap {
    fn first(&self) -> Option<Timer> {
        self.timers.first().copied()
    }

    /// Sets or moves a ring's timer, only to an earlier time if so asked. Returns whether it is a new one.
    fn put(&mut self, timer: Timer, only_earlier: bool) -> bool {
        let ring = timer.ring.0 as usize;
        if self.places.len() <= ring {
            self.places.resize(ring + 1, NOWHERE);
        }
        let at = self.places[ring] as usize;
        if at == NOWHERE as usize {
            self.timers.push(timer);
            self.move_up(self.timers.len() - 1);
            return true;
        }
        if !only_earlier || timer.at_ns < self.timers[at].at_ns {
            self.timers[at] = timer;
            self.restore_order(at);
        }
        false
    }

    fn remove(&mut self, at: usize) -> Timer {
        let timer = self.timers.swap_remove(at);
        self.places[timer.ring.0 as usize] = NOWHERE;
        if at < self.timers.len() {
            self.restore_order(at);
        }
        timer
    }

    /// Takes the timers that `wanted` selects.
    fn take(&mut self, mut wanted: impl FnMut(RingId) -> bool, mut taken: impl FnMut(RingId)) {
        let before = self.timers.len();
        for at in (0..before).rev() {
            if wanted(self.timers[at].ring) {
                let timer = self.timers.swap_remove(at);
                self.places[timer.ring.0 as usize] = NOWHERE;
                taken(timer.ring);
            }
        }
        if self.timers.len() < before {
            (0..self.timers.len()).for_each(|at| self.move_up(at));
        }
    }

    /// Moves the timer at a place, which alone may be out of order, to where it belongs.
    fn restore_order(&mut self, at: usize) {
        let timer = self.timers[at];
        self.move_up(at);
        if self.timers[at].ring == timer.ring {
            self.move_down(at);
        }
    }

    fn move_up(&mut self, mut at: usize) {
        let timer = self.timers[at];
        while at > 0 && timer.at_ns < self.timers[(at - 1) / 2].at_ns {
            self.place(at, self.timers[(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        self.place(at, timer);
    }

    fn move_down(&mut self, mut at: usize) {
        let timer = self.timers[at];
        loop {
            let children = 2 * at + 1..(2 * at + 3).min(self.timers.len());
            let earliest = children.min_by_key(|&child| self.timers[child].at_ns);
            match earliest {
                Some(child) if self.timers[child].at_ns < timer.at_ns => {
                    self.place(at, self.timers[child]);
                    at = child;
                }
                _ => break,
            }
        }
        self.place(at, timer);
    }

    fn place(&mut self, at: usize, timer: Timer) {
        self.timers[at] = timer;
        self.places[timer.ring.0 as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RING: RingId = RingId(4);

    fn expired(timers: &mut Timers, now_ns: u64) -> (Vec<u32>, Option<u64>) {
        let mut rings = Vec::new();
        let next = timers.expire(now_ns, |ring, _| rings.push(ring.0));
        rings.sort_unstable();
        (rings, next)
    }

    #[test]
    fn rings_come_when_their_time_has_come_and_not_before() {
        let mut timers = Timers::default();
        assert_eq!(expired(&mut timers, 0), (vec![], None));
        for ring in [1, 2, 3] {
            timers.set(u64::from(ring) * 100, RingId(ring), Due::Stall);
        }
        assert_eq!(expired(&mut timers, 99), (vec![], Some(1)));
        assert_eq!(expired(&mut timers, 200), (vec![1, 2], Some(100)));
        assert_eq!(expired(&mut timers, 1000), (vec![3], None));
        assert!(timers.is_empty());
    }

    #[test]
    fn the_earlier_time_counts_for_each_reason() {
        let mut timers = Timers::default();
        timers.set(300, RING, Due::Stall);
        timers.set(200, RING, Due::Stall);
        timers.set(400, RING, Due::Stall);
        timers.set(500, RING, Due::Notify);
        assert_eq!(expired(&mut timers, 250), (vec![4], Some(250)));
        assert_eq!(expired(&mut timers, 500), (vec![4], None));
    }

    #[test]
    fn a_timer_that_is_set_anew_comes_at_the_new_time_only() {
        let mut timers = Timers::default();
        timers.reset(300, RING, Due::Notify);
        timers.reset(500, RING, Due::Notify);
        assert_eq!(expired(&mut timers, 300), (vec![], Some(200)));
        timers.reset(400, RING, Due::Notify);
        assert_eq!(expired(&mut timers, 400), (vec![4], None));
    }

    #[test]
    fn only_those_for_the_reason_come_early() {
        let mut timers = Timers::default();
        timers.set(100, RING, Due::Stall);
        timers.set(100, RING, Due::Notify);
        timers.set(100, RingId(6), Due::Notify);
        let mut early = Vec::new();
        timers.take_early(Due::Notify, |ring| ring == RING, |ring| early.push(ring));
        assert_eq!(early, [RING]);
        assert_eq!(expired(&mut timers, 100).0, [4, 6]);
    }

    proptest! {
        /// Beside a list that is searched.
        #[test]
        fn timers_are_a_list(
            steps in prop::collection::vec((0..5u8, 0..40u32, 0..5usize, 0..1000u64), 1..400),
        ) {
            let (mut timers, mut list) = (Timers::default(), Vec::<(RingId, Due, u64)>::new());
            let mut now_ns = 0;
            for (what, ring, due, time) in steps {
                let (ring, due, at_ns) = (RingId(ring), Due::ALL[due], now_ns + time);
                let known = list.iter().position(|timer| (timer.0, timer.1) == (ring, due));
                match what {
                    0 | 1 => {
                        let is_set = what == 0;
                        if is_set { timers.set(at_ns, ring, due) } else { timers.reset(at_ns, ring, due) }
                        match known {
                            Some(at) if is_set => list[at].2 = list[at].2.min(at_ns),
                            Some(at) => list[at].2 = at_ns,
                            None => list.push((ring, due, at_ns)),
                        }
                    }
                    2 | 3 => {
                        now_ns += time / 4;
                        let mut seen = Vec::new();
                        let mut last_ns = [0; Due::ALL.len()];
                        let next_ns = timers.expire(now_ns, |ring, due| {
                            let at = list.iter().position(|timer| (timer.0, timer.1) == (ring, due));
                            let (.., at_ns) = list[at.expect("a timer that was set")];
                            assert!(at_ns >= last_ns[due as usize], "in order");
                            last_ns[due as usize] = at_ns;
                            seen.push((ring, due));
                        });
                        let is_due = |timer: &(RingId, Due, u64)| timer.2 <= now_ns;
                        prop_assert_eq!(seen.len(), list.iter().filter(|timer| is_due(timer)).count());
                        prop_assert!(list.iter().filter(|timer| is_due(timer))
                            .all(|timer| seen.contains(&(timer.0, timer.1))));
                        list.retain(|timer| !is_due(timer));
                        prop_assert_eq!(next_ns, list.iter().map(|timer| timer.2 - now_ns).min());
                    }
                    _ => {
                        let is_odd = |ring: RingId| ring.0 % 2 == 1;
                        let mut taken = Vec::new();
                        timers.take_early(due, is_odd, |ring| taken.push(ring));
                        let is_taken = |timer: &(RingId, Due, u64)| timer.1 == due && is_odd(timer.0);
                        prop_assert_eq!(taken.len(), list.iter().filter(|timer| is_taken(timer)).count());
                        list.retain(|timer| !is_taken(timer));
                    }
                }
                prop_assert_eq!(timers.is_empty(), list.is_empty());
            }
        }
    }

    /// Nanoseconds for a ring that expires and is set again, among that many others.
    #[test]
    #[ignore = "a measurement"]
    fn a_timer_among_many() {
        for rings in [1, 8, 100, 500, 2000] {
            let mut timers = Timers::default();
            (0..rings).for_each(|ring| timers.set(u64::from(ring) * 1000, RingId(ring), Due::Bandwidth));
            let (mut now_ns, mut expired, begin) = (0, Vec::new(), std::time::Instant::now());
            const ROUNDS: u32 = 100_000;
            for _ in 0..ROUNDS {
                now_ns += 1000;
                timers.expire(now_ns, |ring, due| expired.push((ring, due)));
                for (ring, due) in expired.drain(..) {
                    timers.set(now_ns + u64::from(rings) * 1000, ring, due);
                }
            }
            println!(
                "{rings} rings: {} ns",
                begin.elapsed().as_nanos() / u128::from(ROUNDS)
            );
        }
    }
}
