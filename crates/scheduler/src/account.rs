//! What each forwarding thread did, and what it cost, in an account of its own.
//!
//! Busy is meant as `ovs-appctl dpif-netdev/pmd-stats-show` means "processing cycles": the time of steps that moved
//! at least one packet, however it was spent, and no others. The clock is read twice per step, not per packet, and
//! twice per sleep. An account has one writer, so adding to it takes no locked instruction; readers see each counter
//! as it was a moment ago, and not all of the same moment.

use clock::{Rate, cycles};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a forwarder did since that was accounted for last.
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

/// The account of the thread that opened it. On cache lines of its own: neighbours are written by other threads.
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
    /// Up to when `awake_cycles` counts.
    awake_since: AtomicU64,
}

/// What an account says; all but `name` and `tid` only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Name of the thread.
    pub name: String,
    /// Number of the thread.
    pub tid: u32,
    /// Cycles in turns that moved at least one packet.
    pub busy_cycles: u64,
    /// Cycles not asleep.
    pub awake_cycles: u64,
    /// As in [`Progress`], and the following four.
    pub bursts: u64,
    /// Packets taken from transmit rings.
    pub packets: u64,
    /// Packets written into receive rings.
    pub delivered: u64,
    /// Copying left to others.
    pub offloads: u64,
    /// Work left to others since the core was wanted.
    pub aborts: u64,
    /// Rounds of looks at polled rings.
    pub polls: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
    /// Times it was woken because there was work.
    pub wakeups: u64,
    /// Kicks that it received.
    pub kicks: u64,
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
    /// Adds what was done since the cycle counter showed `start`: the time only if packets were progress.
    #[inline]
    pub(crate) fn add(&self, start: u64, progress: Progress) {
        if progress.packets + progress.delivered > 0 {
            add(&self.busy_cycles, cycles().wrapping_sub(start));
        }
        if progress != Progress::default() {
            add(&self.bursts, progress.bursts);
            add(&self.packets, progress.packets);
            add(&self.delivered, progress.delivered);
            add(&self.offloads, progress.offloads);
            add(&self.aborts, progress.aborts);
        }
    }

    /// A round of looks at rings that are polled.
    #[inline]
    pub(crate) fn polled(&self) {
        add(&self.polls, 1);
    }

    /// Packets taken from rings so far.
    pub(crate) fn packets(&self) -> u64 {
        self.packets.load(Relaxed)
    }

    /// A guest kicked.
    #[inline]
    pub(crate) fn kicked(&self) {
        add(&self.kicks, 1);
    }

    /// Around a sleep: `sleep` waits, and says whether work came.
    pub fn asleep(&self, sleep: impl FnOnce() -> bool) {
        self.awake();
        add(&self.sleeps, 1);
        let woken = sleep();
        add(&self.wakeups, u64::from(woken));
        self.awake_since.store(cycles(), Relaxed);
    }

    /// To be called now and then while awake, so that readers need not wait for the next sleep.
    #[inline]
    pub(crate) fn awake(&self) {
        let now = cycles();
        add(
            &self.awake_cycles,
            now.wrapping_sub(self.awake_since.load(Relaxed)),
        );
        self.awake_since.store(now, Relaxed);
    }

    fn record(&self) -> Record {
        Record {
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

    /// An account for the calling thread.
    pub fn open(&self, name: &str) -> Arc<Account> {
        let zero = || AtomicU64::new(0);
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
            awake_since: AtomicU64::new(cycles()),
        });
        self.accounts.lock().push(account.clone());
        account
    }

    /// All accounts as they are, in the order in which their threads were started.
    pub fn records(&self) -> Vec<Record> {
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

    /// How fast the counter of cycles counts, per second.
    pub fn cycles_per_second(&self) -> u64 {
        self.rate.per_second()
    }
}
