//! Rings that a thread serves when their time has come.
//!
//! There are few: one per receiver that is stalled or slow, and per ring that is owed a notification or whose
//! kicks are not received. So they are a list, and setting one is a search.

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

/// Times are in nanoseconds of any one clock.
#[derive(Clone, Copy, Debug)]
struct Timer {
    at_ns: u64,
    ring: RingId,
    due: Due,
}

/// One timer per ring and reason at most.
#[derive(Debug, Default)]
pub(crate) struct Timers(Vec<Timer>);

impl Timers {
    /// Sets a timer, or brings it forward.
    pub fn set(&mut self, at_ns: u64, ring: RingId, due: Due) {
        let timer = self.timer(at_ns, ring, due);
        timer.at_ns = timer.at_ns.min(at_ns);
    }

    /// Sets a timer, or puts it off or forward.
    pub fn reset(&mut self, at_ns: u64, ring: RingId, due: Due) {
        self.timer(at_ns, ring, due).at_ns = at_ns;
    }

    /// The timer of that ring and reason, if need be a new one.
    fn timer(&mut self, at_ns: u64, ring: RingId, due: Due) -> &mut Timer {
        let known = (self.0.iter()).position(|timer| (timer.ring, timer.due) == (ring, due));
        let at = known.unwrap_or_else(|| {
            self.0.push(Timer { at_ns, ring, due });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the timers whose time has come, and returns the time to the next one.
    pub fn expire(&mut self, now_ns: u64, mut expired: impl FnMut(RingId, Due)) -> Option<u64> {
        while let Some(due) = self.0.iter().position(|timer| timer.at_ns <= now_ns) {
            let timer = self.0.swap_remove(due);
            expired(timer.ring, timer.due);
        }
        self.0.iter().map(|timer| timer.at_ns - now_ns).min()
    }

    /// Takes the timers for this reason that `wanted` selects, before their time.
    pub fn take_early(
        &mut self,
        due: Due,
        mut wanted: impl FnMut(RingId) -> bool,
        mut taken: impl FnMut(RingId),
    ) {
        for at in (0..self.0.len()).rev() {
            if self.0[at].due == due && wanted(self.0[at].ring) {
                taken(self.0.swap_remove(at).ring);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
