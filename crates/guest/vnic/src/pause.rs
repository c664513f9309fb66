//! Pauses after work whose cost the other end determines.
//!
//! The kernel asks all that wait for a descriptor, with interrupts off, when it is signalled, read or closed.
//! That stops everything else on the core, whichever thread does it. So the next such work for the same port
//! waits for a [pause](pause_us), and work that takes far too long waits for the pauses of all ports: a
//! thread that wants that core at any moment waits for 5 us longer on average.
//!
//! An interrupt, or a hypervisor that takes the core, makes any work look costly. So a port waits as long as
//! its second costliest work demands ([`Pace`]): one bad measurement costs a port nothing. The safe direction
//! of error is too long a pause, which only the port notices.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Time in microseconds that work may take without a pause after it.
pub(crate) const FREE_US: u64 = 10;

/// Time in microseconds from which on work is far too long.
const LONG_US: u64 = 1000;

/// The longest pause, as a multiple of the time that the work took.
const LONGEST: u64 = 256;

/// Calls of all ports. They wait for no other work: a driver is called in the end, whatever other ports do.
pub(crate) static LONG_CALLS: LongWork = LongWork(AtomicU64::new(0));

/// What gates and sessions of all ports do.
pub(crate) static LONG_WORK: LongWork = LongWork(AtomicU64::new(0));

/// When work that is far too long may be done for some port, in microseconds of [`cpu::now_us`].
#[derive(Debug)]
pub(crate) struct LongWork(AtomicU64);

impl LongWork {
    #[cfg(test)]
    pub fn for_tests() -> &'static LongWork {
        Box::leak(Box::new(LongWork(AtomicU64::new(0))))
    }

    /// When work may be done that took so long the last time.
    pub fn free_us(&self, last_us: u64) -> u64 {
        if last_us >= LONG_US {
            self.0.load(Relaxed)
        } else {
            0
        }
    }

    /// Notes that work took so long.
    pub fn note(&self, took_us: u64, now_us: u64) {
        if took_us >= LONG_US {
            self.0.fetch_max(now_us + pause_us(took_us), Relaxed);
        }
    }

    /// Has other long work wait until then, unless it is this that has to wait: then returns for how long.
    fn take(&self, until_us: u64, now_us: u64) -> Result<(), u64> {
        let take = |free_us| (free_us <= now_us).then_some(until_us);
        let taken = self.0.fetch_update(Relaxed, Relaxed, take);
        taken.map(drop).map_err(|free_us| free_us - now_us)
    }

    /// Work for which other work was to wait until then was not long.
    fn give_back(&self, until_us: u64, now_us: u64) {
        let _ = self.0.compare_exchange(until_us, now_us, Relaxed, Relaxed);
    }
}

/// How long a port waits after work that took so long, both in microseconds.
pub(crate) fn pause_us(took_us: u64) -> u64 {
    took_us * (took_us / FREE_US).min(LONGEST)
}

/// Time in microseconds that work of a thread of one port's own takes without a pause: several times what a
/// message takes.
const COSTLY_US: u64 = 200;

/// Time in microseconds after the last pause for which work is taken to be as costly as before, and for which
/// the costliest is remembered.
const MEMORY_US: u64 = 10_000_000;

/// What is forgiven, as work may have taken long for other reasons. All in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forgiven {
    /// Pauses that a port may owe.
    pub pauses_us: u64,
    /// Work that takes longer waits for the pauses of other ports.
    pub work_us: u64,
}

/// The pauses of one port whose work several threads do, one after the other. Times are in microseconds of
/// [`cpu::now_us`].
///
/// Work counts for no more than the costliest before it took. So the first costly work counts for nothing.
#[derive(Debug)]
pub(crate) struct Pace {
    long_work: &'static LongWork,
    forgiven: Forgiven,
    /// When all pauses are over.
    over_us: u64,
    /// How long the last costly work took, as it counts.
    last_us: u64,
    /// How long the costliest work took.
    costliest_us: u64,
    /// When both are forgotten.
    forgotten_us: u64,
    /// Until when others wait.
    taken_us: u64,
}

impl Pace {
    pub fn new(long_work: &'static LongWork, forgiven: Forgiven) -> Pace {
        Pace {
            long_work,
            forgiven,
            over_us: 0,
            last_us: 0,
            costliest_us: 0,
            forgotten_us: 0,
            taken_us: 0,
        }
    }

    /// Begins work. If that must wait, returns for how long at least, after which it is to be tried again.
    pub fn begin(&mut self, now_us: u64) -> Result<(), u64> {
        if now_us > self.forgotten_us {
            (self.last_us, self.costliest_us) = (0, 0);
        }
        let own_us = self.over_us.saturating_sub(now_us + self.forgiven.pauses_us);
        if own_us > 0 {
            return Err(own_us);
        }
        if !self.waits_for_others() {
            return Ok(());
        }
        self.taken_us = now_us + 2 * self.last_us;
        let taken = self.long_work.take(self.taken_us, now_us);
        if taken.is_err() {
            // The time in which it waits for others does not count.
            self.over_us = self.over_us.max(now_us);
            self.forgotten_us = self.forgotten_us.max(now_us + MEMORY_US);
        }
        taken
    }

    /// Work is done that took so long.
    pub fn end(&mut self, took_us: u64, now_us: u64) {
        if took_us >= COSTLY_US {
            let end_us = self.over_us.max(now_us) + pause_us(took_us) + MEMORY_US;
            self.forgotten_us = self.forgotten_us.max(end_us);
        }
        let counts_us = took_us.min(self.costliest_us);
        self.costliest_us = self.costliest_us.max(took_us);
        if counts_us >= COSTLY_US {
            self.over_us = self.over_us.max(now_us) + pause_us(counts_us);
            self.last_us = counts_us;
            if self.waits_for_others() {
                self.long_work.note(counts_us, now_us);
            }
        } else if self.waits_for_others() {
            self.long_work.give_back(self.taken_us, now_us);
        }
    }

    fn waits_for_others(&self) -> bool {
        self.last_us >= self.forgiven.work_us
    }

    /// Whether work lately took far too long, be it once.
    pub fn is_long(&self) -> bool {
        self.costliest_us >= self.forgiven.work_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORGIVEN: Forgiven = Forgiven {
        pauses_us: 500_000,
        work_us: 1000,
    };

    #[test]
    fn a_thread_that_wants_the_core_waits_for_few_microseconds_on_average() {
        assert_eq!(pause_us(FREE_US - 1), 0);
        for took_us in [20, 50, 100, 1000, 2500] {
            let waits_us = took_us * took_us / 2 / (took_us + pause_us(took_us));
            assert!(waits_us <= FREE_US, "{took_us} us: {waits_us}");
        }
        // Work is done in the end, however long that takes.
        assert_eq!(pause_us(1_000_000), LONGEST * 1_000_000);
    }

    /// However bad it is, and whatever other ports do.
    #[test]
    fn cheap_work_is_never_delayed_and_one_bad_measurement_is_forgiven() {
        const BAD_US: u64 = 1_000_000;
        let long_work = LongWork::for_tests();
        let (mut pace, mut now_us) = (Pace::new(long_work, FORGIVEN), 0);
        for round in 0..3 {
            long_work.note(BAD_US, now_us);
            for turn in 0..1000 {
                assert_eq!(pace.begin(now_us), Ok(()), "{round} {turn}");
                let took_us = if turn == 300 { BAD_US } else { COSTLY_US - 1 };
                now_us += took_us;
                pace.end(took_us, now_us);
            }
            assert!(pace.is_long(), "less is read at once");
            now_us += pause_us(BAD_US) + MEMORY_US;
        }
        // Within that time a second one counts, for no more than it took.
        assert_eq!(pace.begin(now_us), Ok(()));
        pace.end(BAD_US, now_us);
        pace.end(2 * COSTLY_US, now_us);
        assert_eq!(pace.begin(now_us), Ok(()));
        pace.end(BAD_US / 2, now_us);
        assert!(pace.begin(now_us).is_err());
    }

    /// Ports that do costly work as often as they may use a small part of the time together, and are forgiven
    /// in the end.
    #[test]
    fn costly_work_takes_a_small_part_of_the_time() {
        const TOOK_US: u64 = 20_000;
        let long_work = LongWork::for_tests();
        let mut paces: Vec<_> = (0..10).map(|_| Pace::new(long_work, FORGIVEN)).collect();
        let (mut now_us, mut done) = (0, 0);
        while now_us < 600_000_000 {
            for pace in &mut paces {
                if pace.begin(now_us).is_ok() {
                    now_us += TOOK_US;
                    pace.end(TOOK_US, now_us);
                    done += 1;
                }
            }
            now_us += 1000;
        }
        let most = 2 * paces.len() as u64 + now_us / pause_us(TOOK_US);
        assert!(done <= most && done > most / 2, "{done}, not {most}");
        let over_us = paces.iter().map(|pace| pace.over_us).max().unwrap_or(0);
        paces[0].begin(over_us + MEMORY_US + 1).expect("long ago");
        assert!(!paces[0].is_long());
    }
}
