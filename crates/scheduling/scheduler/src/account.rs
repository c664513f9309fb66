//! An account for each forwarding thread: its work, and the time that it took.
//!
//! Busy is meant as `ovs-appctl dpif-netdev/pmd-stats-show` means "processing cycles", which count whole
//! iterations of the poll loop that moved packets: the time of a step that moved at least one packet, and of
//! all that led to it since the thread woke, since the step before, or since it last looked in vain. The
//! clock is read once per step and per look in vain, not per packet, and twice per sleep. An account has one
//! writer, so adding to it takes no locked instruction; readers see each counter as it was a moment ago, and
//! not all of the same moment.

use control_protocol::work::WorkerReport;
use cpu::{Rate, cycles};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Work of a forwarder since the last time it was accounted for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bursts taken from transmit rings.
    pub bursts: u64,
    /// Packets in them.
    pub packets: u64,
    /// Packets (and copies) written into receive rings.
    pub delivered: u64,
    /// Times another worker was told to copy.
    pub offloads: u64,
    /// Times work was left to another worker because this core was wanted.
    pub aborts: u64,
}

/// The account of the thread that opened it. It lies on cache lines of its own, since other threads write its
/// neighbours.
#[derive(Debug)]
#[repr(align(128))]
pub struct Account {
    name: String,
    tid: u32,
    busy_cycles: AtomicU64,
    awake_cycles: AtomicU64,
    bursts: AtomicU64,
    packets: AtomicU64,
    delivered: AtomicU64,
    offloads: AtomicU64,
    aborts: AtomicU64,
    polls: AtomicU64,
    sleeps: AtomicU64,
    wakeups: AtomicU64,
    kicks: AtomicU64,
    idle_poll_cycles: AtomicU64,
    /// The cycle up to which `awake_cycles` counts.
    awake_since: AtomicU64,
    /// The cycle up to which time was charged, to packets or to looks in vain.
    charged_until: AtomicU64,
}

/// All accounts.
pub struct Ledger {
    rate: Rate,
    accounts: Mutex<Vec<Arc<Account>>>,
}

/// Adds to a counter whose only writer is the calling thread.
#[inline]
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(amount), Relaxed);
}

impl Account {
    /// Adds the work done since time was charged last. The time counts as busy only if packets were progress.
    #[inline]
    pub(crate) fn add(&self, progress: Progress) {
        let now = cycles();
        if progress.packets + progress.delivered > 0 {
            let since = self.charged_until.load(Relaxed);
            add(&self.busy_cycles, now.wrapping_sub(since));
        }
        self.charged_until.store(now, Relaxed);
        if progress != Progress::default() {
            add(&self.bursts, progress.bursts);
            add(&self.packets, progress.packets);
            add(&self.delivered, progress.delivered);
            add(&self.offloads, progress.offloads);
            add(&self.aborts, progress.aborts);
        }
    }

    /// Charges the time since the last charge to a look in vain: it led to no packets.
    #[inline]
    pub(crate) fn in_vain(&self) {
        self.charged_until.store(cycles(), Relaxed);
    }

    /// The cycle up to which time was charged.
    #[inline]
    pub(crate) fn charged_until(&self) -> u64 {
        self.charged_until.load(Relaxed)
    }

    /// Counts a round of looks at rings that are polled.
    #[inline]
    pub(crate) fn polled(&self) {
        add(&self.polls, 1);
    }

    /// Packets taken from rings so far.
    pub(crate) fn packets(&self) -> u64 {
        self.packets.load(Relaxed)
    }

    /// Counts a kick of a guest.
    #[inline]
    pub(crate) fn count_kick(&self) {
        add(&self.kicks, 1);
    }

    /// Adds a time for which the core was kept from halting.
    pub(crate) fn kept_from_halting(&self, cycles: u64) {
        add(&self.idle_poll_cycles, cycles);
    }

    /// Accounts for a sleep: `sleep` waits, and returns whether work came. It calls [`woken`](Self::woken)
    /// before it does more than wait.
    pub fn asleep(&self, sleep: impl FnOnce() -> bool) {
        self.awake();
        let since = self.awake_since.load(Relaxed);
        add(&self.sleeps, 1);
        let woken = sleep();
        add(&self.wakeups, u64::from(woken));
        if self.awake_since.load(Relaxed) == since {
            self.woken();
        }
    }

    /// Begins time awake: the thread was asleep until now.
    pub(crate) fn woken(&self) {
        let now = cycles();
        self.awake_since.store(now, Relaxed);
        self.charged_until.store(now, Relaxed);
    }

    /// Adds the time awake so far. To be called now and then, so that readers need not wait for the next
    /// sleep.
    #[inline]
    pub(crate) fn awake(&self) {
        let now = cycles();
        add(
            &self.awake_cycles,
            now.wrapping_sub(self.awake_since.load(Relaxed)),
        );
        self.awake_since.store(now, Relaxed);
    }

    fn record(&self) -> WorkerReport {
        WorkerReport {
            name: self.name.clone(),
            tid: self.tid,
            busy_cycles: self.busy_cycles.load(Relaxed),
            awake_cycles: self.awake_cycles.load(Relaxed),
            bursts: self.bursts.load(Relaxed),
            packets: self.packets.load(Relaxed),
            delivered: self.delivered.load(Relaxed),
            offloads: self.offloads.load(Relaxed),
            aborts: self.aborts.load(Relaxed),
            polls: self.polls.load(Relaxed),
            sleeps: self.sleeps.load(Relaxed),
            wakeups: self.wakeups.load(Relaxed),
            kicks: self.kicks.load(Relaxed),
            idle_poll_cycles: self.idle_poll_cycles.load(Relaxed),
        }
    }
}

impl Ledger {
    /// Ends an account, with its thread.
    pub fn close(&self, account: &Arc<Account>) {
        self.accounts.lock().retain(|other| !Arc::ptr_eq(other, account));
    }

    pub(crate) fn new() -> Ledger {
        Ledger {
            rate: Rate::begin(),
            accounts: Mutex::default(),
        }
    }

    /// Opens an account for the calling thread.
    pub fn open(&self, name: &str) -> Arc<Account> {
        let zero = || AtomicU64::new(0);
        let now = cycles();
        let account = Arc::new(Account {
            name: name.into(),
            tid: rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(),
            busy_cycles: zero(),
            awake_cycles: zero(),
            bursts: zero(),
            packets: zero(),
            delivered: zero(),
            offloads: zero(),
            aborts: zero(),
            polls: zero(),
            sleeps: zero(),
            wakeups: zero(),
            kicks: zero(),
            idle_poll_cycles: zero(),
            awake_since: AtomicU64::new(now),
            charged_until: AtomicU64::new(now),
        });
        self.accounts.lock().push(account.clone());
        account
    }

    /// All accounts as they are, in the order in which their threads were started.
    pub fn records(&self) -> Vec<WorkerReport> {
        let mut records: Vec<_> = self
            .accounts
            .lock()
            .iter()
            .map(|account| account.record())
            .collect();
        // Threads open their accounts in any order.
        records.sort_by_key(|record| record.tid);
        records
    }

    /// The rate of the cycle counter, per second.
    pub fn cycles_per_second(&self) -> u64 {
        self.rate.per_second()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spend(least: u64) {
        let start = cycles();
        while cycles().wrapping_sub(start) < least {
            std::hint::spin_loop();
        }
    }

    const PACKET: Progress = Progress {
        packets: 1,
        bursts: 1,
        delivered: 0,
        offloads: 0,
        aborts: 0,
    };

    /// A busy machine makes every period longer, so what must not count is compared with all that passed.
    #[test]
    fn what_leads_to_packets_is_busy_and_what_leads_to_none_is_not() {
        const LONG: u64 = 1_000_000;
        let begin = cycles();
        let ledger = Ledger::new();
        let account = ledger.open("test");
        spend(LONG);
        account.in_vain();
        spend(LONG);
        account.add(Progress::default());
        account.asleep(|| {
            spend(LONG);
            account.woken();
            // The wake-up leads to the packet.
            spend(LONG);
            true
        });
        spend(LONG);
        account.add(PACKET);
        account.awake();
        let all = cycles().wrapping_sub(begin);
        let record = &ledger.records()[0];
        assert!(record.busy_cycles >= 2 * LONG, "{record:?}");
        assert!(record.busy_cycles + 3 * LONG <= all, "{record:?} of {all}");
        assert!(record.awake_cycles >= record.busy_cycles + 2 * LONG, "{record:?}");
        assert!(record.awake_cycles + LONG <= all, "{record:?} of {all}");
        assert_eq!((record.sleeps, record.wakeups), (1, 1));
    }

    #[test]
    fn a_sleep_that_ends_without_work_is_not_awake() {
        const LONG: u64 = 1_000_000;
        let begin = cycles();
        let ledger = Ledger::new();
        let account = ledger.open("test");
        account.asleep(|| {
            spend(LONG);
            false
        });
        account.add(PACKET);
        account.awake();
        let all = cycles().wrapping_sub(begin);
        let record = &ledger.records()[0];
        assert!(record.awake_cycles + LONG <= all, "{record:?} of {all}");
        assert!(record.busy_cycles <= record.awake_cycles, "{record:?}");
        assert_eq!((record.sleeps, record.wakeups), (1, 0));
    }
}
