//! What a port's calls cost, and which thread makes them.
//!
//! The front end determines the cost of a call: the kernel walks all that wait for the descriptor, with
//! interrupts off, and a descriptor of which nobody else knows may have a million waiters. So calls are
//! timed, and a port whose calls cost too much gets them from a thread that does nothing else
//! (`call_thread`).
//!
//! | state | a call is made by | the state ends |
//! |---|---|---|
//! | [`Usual`](Maker::Usual) | the thread that owes it, which reads the cycle counter before and after | with a call of more than [`LIMIT_US`], after which the port is `Watched` |
//! | [`Watched`](Maker::Watched) | the same thread, which also asks the kernel for its processor time: a thread that merely lost its core to another one has used none | after a while, or with more debt than [`BURST_NS`], with which the port is `Apart` |
//! | [`Apart`](Maker::Apart) | the call thread | when half of that is left and the last [`CHEAP`] calls were cheap, after which the port is `Watched` |
//!
//! A costly call is a *debt* of the port: the time beyond the limit, and more than proportionally more for a
//! long one, as a thread that waits for the core at any moment waits for half of it on average. The port pays
//! with time, at [`PAYMENT`], and at most [`PAYING`] ports at full rate: so all ports together cannot have
//! forwarding threads make costly calls for more than a small part of the time, whatever they do to be
//! `Usual` again. A watch is longer each time that it begins soon after the last one, since the first costly
//! call is not charged, nor the costliest one of a watch: processor time includes what interrupts and
//! hypervisors take. The safe direction of error is `Apart`, which costs a port some latency.
//!
//! An attacker may have many ports. It takes three calls to tell that a port's calls are costly; while that
//! was found of one port a moment ago, others are `Apart` as soon as they are suspected.

use crate::call_thread::{self, Waiting};
use cpu::{Deadline, processor_ns};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Time in microseconds that a call may take: several times that of waking a thread on a core that halts.
const LIMIT_US: u64 = 20;

/// Debt in nanoseconds up to which a port stays with the threads that owe the calls.
const BURST_NS: u64 = 1_000_000;

/// Time beyond the limit, in nanoseconds, that counts double.
const DOUBLE_NS: u64 = 100_000;

/// Most debt that a port can have, in nanoseconds: it lasts for ten minutes.
const MOST_NS: u64 = 6_000_000_000;

/// Time that pays for as much debt, as a multiple of it.
const PAYMENT: u64 = 100;

/// Ports apart that pay at this rate. More of them pay less each.
const PAYING: u64 = 4;

/// Cheap calls in sequence after which a port may be `Watched` again.
const CHEAP: u32 = 8;

/// Length of a watch in microseconds: the first one, and the longest.
const WATCH_US: (u64, u64) = (1_000_000, 1 << 30);

/// Time in microseconds that a call takes in an attack.
const ATTACK_US: u64 = 1000;

/// For how long others are suspected after such a call in microseconds: by the cycle counter, and by
/// processor time.
const SUSPICION_US: (u64, u64) = (1_000_000, 10_000_000);

/// Until when a port that is suspected is `Apart` at once, in microseconds of [`cpu::now_us`].
static ATTACKED_UNTIL_US: AtomicU64 = AtomicU64::new(0);

/// Ports whose calls are made by the call thread.
static APART: AtomicU32 = AtomicU32::new(0);

/// Which thread makes a port's calls, and how it times them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Maker {
    /// The thread that owes a call, by the cycle counter.
    #[default]
    Usual,
    /// The thread that owes a call, by its processor time.
    Watched,
    /// The call thread.
    Apart,
}

impl Maker {
    const ALL: [Maker; 3] = [Maker::Usual, Maker::Watched, Maker::Apart];
}

/// The calls of one port, of both rings.
#[derive(Debug, Default)]
pub(crate) struct CallCost {
    maker: AtomicU8,
    record: Mutex<Record>,
    /// Processor time of the last call by the call thread, in nanoseconds.
    last_ns: AtomicU64,
    pub waiting: Waiting,
}

impl CallCost {
    #[inline]
    pub fn maker(&self) -> Maker {
        Maker::ALL[usize::from(self.maker.load(Relaxed))]
    }

    /// Makes a call of a port that is [`Usual`](Maker::Usual).
    #[inline]
    pub fn time<T>(&self, call: impl FnOnce() -> T) -> T {
        let limit = Deadline::after_us(LIMIT_US);
        let result = call();
        if limit.has_passed() {
            self.suspect(limit.late_us());
        }
        result
    }

    /// Makes a call of a port that is [`Watched`](Maker::Watched).
    pub fn measure<T>(&self, call: impl FnOnce() -> T) -> T {
        let start_ns = processor_ns();
        let result = call();
        let took_ns = processor_ns().saturating_sub(start_ns);
        let now_us = cpu::now_us();
        if took_ns >= ATTACK_US * 1000 {
            ATTACKED_UNTIL_US.fetch_max(now_us + SUSPICION_US.1, Relaxed);
        }
        self.change(|record| record.note(took_ns, now_us, 0));
        result
    }

    /// Makes a call of a port that is [`Apart`](Maker::Apart); returns how long it took, in nanoseconds. For
    /// the call thread.
    pub fn measure_apart(&self, call: impl FnOnce()) -> u64 {
        let start_ns = processor_ns();
        call();
        let took_ns = processor_ns().saturating_sub(start_ns);
        self.last_ns.store(took_ns, Relaxed);
        let others = u64::from(APART.load(Relaxed));
        self.change(|record| record.note(took_ns, cpu::now_us(), others));
        took_ns
    }

    /// Processor time of the last call in nanoseconds, if the call thread makes them.
    pub fn apart_ns(&self) -> Option<u64> {
        (self.maker() == Maker::Apart).then(|| self.last_ns.load(Relaxed))
    }

    /// Has the call thread make the calls, or nothing if there is no such thread.
    #[cfg(test)]
    pub fn be_apart(&self) {
        self.maker.store(Maker::Apart as u8, Relaxed);
        APART.fetch_add(1, Relaxed);
    }

    /// A call took longer than it may, by the cycle counter.
    #[cold]
    fn suspect(&self, late_us: u64) {
        let now_us = cpu::now_us();
        let is_attacked = now_us < ATTACKED_UNTIL_US.load(Relaxed);
        if late_us >= ATTACK_US {
            ATTACKED_UNTIL_US.fetch_max(now_us + SUSPICION_US.0, Relaxed);
        }
        self.change(|record| record.suspect(now_us, is_attacked));
    }

    #[cold]
    fn change(&self, f: impl FnOnce(&mut Record)) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let before = record.maker;
        f(&mut record);
        if record.maker == Maker::Apart && !call_thread::is_running() {
            record.maker = Maker::Watched;
        }
        match (before == Maker::Apart, record.maker == Maker::Apart) {
            (false, true) => drop(APART.fetch_add(1, Relaxed)),
            (true, false) => drop(APART.fetch_sub(1, Relaxed)),
            _ => {}
        }
        self.maker.store(record.maker as u8, Relaxed);
    }
}

impl Drop for CallCost {
    fn drop(&mut self) {
        if self.maker() == Maker::Apart {
            APART.fetch_sub(1, Relaxed);
        }
    }
}

/// The state of a port's calls. Times are in microseconds of any one clock.
#[derive(Debug, Default)]
struct Record {
    maker: Maker,
    debt_ns: u64,
    /// The time up to which the debt has been paid.
    paid_us: u64,
    /// Cheap calls in sequence.
    cheap: u32,
    /// What the costliest call took beyond the limit, in nanoseconds. Others are charged for no more.
    costliest_ns: u64,
    watch_us: u64,
    watch_ends_us: u64,
}

impl Record {
    /// A call took long by the cycle counter. `is_attacked`: those of another port did so on purpose.
    fn suspect(&mut self, now_us: u64, is_attacked: bool) {
        if self.maker != Maker::Usual {
            return;
        }
        let is_soon = now_us < self.watch_ends_us + 2 * self.watch_us;
        if is_soon {
            self.watch_us = (2 * self.watch_us).min(WATCH_US.1);
        } else {
            (self.watch_us, self.costliest_ns) = (WATCH_US.0, 0);
        }
        self.watch(now_us);
        if is_attacked {
            self.cheap = 0;
            self.maker = Maker::Apart;
        }
    }

    fn watch(&mut self, now_us: u64) {
        self.maker = Maker::Watched;
        self.watch_us = self.watch_us.max(WATCH_US.0);
        self.watch_ends_us = now_us + self.watch_us;
    }

    /// A call used so much processor time. `apart`: ports whose calls are made by the call thread.
    fn note(&mut self, took_ns: u64, now_us: u64, apart: u64) {
        self.pay(now_us, apart);
        let over_ns = took_ns.saturating_sub(LIMIT_US * 1000);
        self.cheap = if over_ns == 0 {
            self.cheap.saturating_add(1)
        } else {
            0
        };
        let charged_ns = over_ns.min(self.costliest_ns);
        self.costliest_ns = self.costliest_ns.max(over_ns);
        let weight = 1 + charged_ns / DOUBLE_NS;
        self.debt_ns = (self.debt_ns + charged_ns.saturating_mul(weight)).min(MOST_NS);
        match self.maker {
            Maker::Usual => {}
            Maker::Watched if self.debt_ns > BURST_NS => self.maker = Maker::Apart,
            Maker::Watched if now_us >= self.watch_ends_us => self.maker = Maker::Usual,
            Maker::Watched => {}
            Maker::Apart if self.debt_ns <= BURST_NS / 2 && self.cheap >= CHEAP => self.watch(now_us),
            Maker::Apart => {}
        }
    }

    fn pay(&mut self, now_us: u64, apart: u64) {
        let us = now_us.saturating_sub(self.paid_us);
        self.paid_us = self.paid_us.max(now_us);
        let paid_ns = us.saturating_mul(1000) / PAYMENT * PAYING / apart.max(PAYING);
        self.debt_ns = self.debt_ns.saturating_sub(paid_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHEAP_NS: u64 = 3_000;
    const COSTLY_NS: u64 = 20_000_000;
    const SECOND_US: u64 = 1_000_000;

    /// A port that is `Apart`, and when.
    fn apart() -> (Record, u64) {
        let mut record = Record::default();
        record.suspect(1, false);
        record.note(COSTLY_NS, 2, 0);
        assert_eq!(record.maker, Maker::Watched, "it may be an accident");
        record.note(COSTLY_NS, 3, 0);
        assert_eq!(record.maker, Maker::Apart);
        (record, 3)
    }

    #[test]
    fn a_thread_that_lost_its_core_says_nothing_about_the_port() {
        let mut record = Record::default();
        record.suspect(0, false);
        for call in 0..=20 {
            record.note(CHEAP_NS, call * SECOND_US / 20, 0);
        }
        assert_eq!(record.maker, Maker::Usual, "after the watch");
        record.suspect(SECOND_US + 1, false);
        record.note(CHEAP_NS, 2 * SECOND_US + 1, 0);
        assert_eq!(record.maker, Maker::Watched, "the second watch is longer");
        record.note(CHEAP_NS, 3 * SECOND_US + 1, 0);
        assert_eq!(record.maker, Maker::Usual);
        record.suspect(60 * SECOND_US, false);
        record.note(CHEAP_NS, 61 * SECOND_US, 0);
        assert_eq!(
            record.maker,
            Maker::Usual,
            "long after that one it is short again"
        );
    }

    /// An interrupt, or a hypervisor that takes the core, makes one call look costly.
    #[test]
    fn one_bad_measurement_is_forgiven() {
        let mut record = Record::default();
        record.suspect(0, false);
        for call in 1..=20 {
            record.note(
                if call == 7 { MOST_NS } else { CHEAP_NS },
                call * SECOND_US / 20,
                0,
            );
            assert!(record.maker != Maker::Apart && record.debt_ns == 0, "{call}");
        }
        // A further one of a port whose calls are costly counts for what they take otherwise.
        let mut record = Record::default();
        record.suspect(0, false);
        let debts = [200_000, 200_000, MOST_NS].map(|took_ns| {
            record.note(took_ns, 1, 0);
            record.debt_ns
        });
        assert_eq!(debts, [0, debts[1], 2 * debts[1]]);
    }

    #[test]
    fn calls_slightly_above_the_limit_are_borne() {
        let mut record = Record::default();
        record.suspect(0, false);
        // 25 us, a thousand times per second.
        for call in 0..100_000 {
            record.note(25_000, call * 1000, 0);
            assert_ne!(record.maker, Maker::Apart);
        }
    }

    #[test]
    fn a_port_returns_when_its_debt_is_paid_and_its_calls_are_cheap() {
        let (mut record, mut now_us) = apart();
        let paid_us = now_us + record.debt_ns / 1000 * PAYMENT;
        while record.maker == Maker::Apart {
            now_us += SECOND_US;
            record.note(CHEAP_NS, now_us, 1);
        }
        assert!(
            now_us.abs_diff(paid_us) < 2 * SECOND_US,
            "{now_us} us, not {paid_us}"
        );
        // One costly call among cheap ones begins all that again.
        let (mut record, mut now_us) = apart();
        for call in 0..10_000 {
            now_us += SECOND_US;
            record.note(if call % 100 == 0 { COSTLY_NS } else { CHEAP_NS }, now_us, 1);
            assert_eq!(record.maker, Maker::Apart);
        }
    }

    #[test]
    fn who_is_suspected_during_an_attack_is_apart_until_its_calls_are_seen_to_be_cheap() {
        let mut record = Record::default();
        record.suspect(1, true);
        assert_eq!(record.maker, Maker::Apart);
        for call in 1..=CHEAP {
            assert_eq!(record.maker, Maker::Apart, "{call}");
            record.note(CHEAP_NS, 100 + u64::from(call), 1);
        }
        assert_eq!(record.maker, Maker::Watched);
    }

    #[test]
    fn many_that_are_apart_pay_less_each() {
        let returns = |others| {
            let (mut record, mut now_us) = apart();
            while record.maker == Maker::Apart {
                now_us += SECOND_US;
                record.note(CHEAP_NS, now_us, others);
            }
            now_us
        };
        assert_eq!(returns(1), returns(PAYING));
        assert!(returns(10 * PAYING) > 9 * returns(PAYING));
    }

    proptest! {
        /// Whatever a front end does, also if it knows who makes its calls and how, the threads that owe them
        /// spend a small part of their time on costly ones.
        #[test]
        fn the_time_of_forwarding_threads_is_bounded(
            calls in prop::collection::vec((0u64..30_000_000, 20u64..200_000), 1..3000),
            hides in any::<bool>(),
            is_attacked in any::<bool>(),
        ) {
            let (mut record, mut now_us, mut spent_ns) = (Record::default(), 0, 0);
            for (took_ns, pause_us) in calls {
                now_us += pause_us;
                // Cheap while that brings the port back, and perhaps while a costly call would be charged.
                let took_ns = match record.maker {
                    Maker::Apart => CHEAP_NS,
                    Maker::Watched if hides => CHEAP_NS,
                    _ => took_ns,
                };
                let over_ns = took_ns.saturating_sub(LIMIT_US * 1000);
                match record.maker {
                    Maker::Usual if over_ns > 0 => record.suspect(now_us, is_attacked),
                    maker => {
                        record.note(took_ns, now_us, 1);
                        if maker == Maker::Apart {
                            continue;
                        }
                    }
                }
                spent_ns += over_ns;
            }
            // What a port may owe, a call that is charged and two that are not each time the watch gets
            // longer, and a hundredth of all time.
            let watches = 2 + (now_us / WATCH_US.0).max(1).ilog2();
            let most_ns = BURST_NS + 30_000_000 * 3 * u64::from(watches) + now_us * 1000 / PAYMENT;
            prop_assert!(spent_ns <= most_ns, "{spent_ns} ns of {now_us} us, not {most_ns}");
        }
    }
}
