//! Who did the work, and what it cost: each forwarding thread keeps its own account.
//!
//! Busy is meant as `ovs-appctl dpif-netdev/pmd-stats-show` means "processing cycles": the time of steps that moved
//! at least one packet, however it was spent, and no others. The clock is read twice per step, not per packet, and
//! twice per sleep. An account has one writer, so adding to it takes no locked instruction; readers see each counter
//! as it was a moment ago, and not all of the same moment.

use crate::pipeline::Pipeline;
use crate::state::PortTable;
use clock::{Rate, cycles};
use control_protocol::work::{WorkReport, WorkerReport};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a pipeline moved since it was asked last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub bursts: u64,
    pub packets: u64,
    pub delivered: u64,
    /// Times that somebody else was told to copy.
    pub offloads: u64,
    /// Times that work was left to somebody else because this core was wanted.
    pub aborts: u64,
}

/// The account of the thread that opened it. On cache lines of its own: neighbours are written by other threads.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Work {
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

/// All accounts.
pub(crate) struct Ledger {
    rate: Rate,
    works: Mutex<Vec<Arc<Work>>>,
}

/// Adds to a counter whose only writer is the calling thread.
#[inline]
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(amount), Relaxed);
}

impl Work {
    /// Lets the pipeline do something, and accounts for it if packets were moved.
    #[inline]
    pub fn run<R>(&self, pipeline: &mut Pipeline, step: impl FnOnce(&mut Pipeline) -> R) -> R {
        let start = cycles();
        let result = step(pipeline);
        let moved = std::mem::take(&mut pipeline.moved);
        if moved.packets + moved.delivered > 0 {
            add(&self.busy_cycles, cycles().wrapping_sub(start));
        }
        if moved != Moved::default() {
            add(&self.bursts, moved.bursts);
            add(&self.packets, moved.packets);
            add(&self.delivered, moved.delivered);
            add(&self.offloads, moved.offloads);
            add(&self.aborts, moved.aborts);
        }
        result
    }

    /// A round of looks at rings that are polled.
    #[inline]
    pub fn polled(&self) {
        add(&self.polls, 1);
    }

    /// Packets taken from rings so far.
    pub fn packets(&self) -> u64 {
        self.packets.load(Relaxed)
    }

    /// A guest kicked.
    #[inline]
    pub fn kicked(&self) {
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
    pub fn awake(&self) {
        let now = cycles();
        add(
            &self.awake_cycles,
            now.wrapping_sub(self.awake_since.load(Relaxed)),
        );
        self.awake_since.store(now, Relaxed);
    }

    fn report(&self) -> WorkerReport {
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
        }
    }
}

impl Ledger {
    /// Ends an account, with its thread.
    pub fn close(&self, work: &Arc<Work>) {
        self.works.lock().retain(|other| !Arc::ptr_eq(other, work));
    }

    pub fn new() -> Ledger {
        Ledger {
            rate: Rate::begin(),
            works: Mutex::default(),
        }
    }

    /// An account for the calling thread.
    pub fn open(&self, name: &str) -> Arc<Work> {
        let zero = || AtomicU64::new(0);
        let work = Arc::new(Work {
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
        self.works.lock().push(work.clone());
        work
    }

    /// All accounts as they are, and what the ports say about calls.
    pub fn report(&self, ports: &PortTable) -> WorkReport {
        let mut report = WorkReport {
            cycles_per_second: self.rate.per_second(),
            workers: self.works.lock().iter().map(|work| work.report()).collect(),
            ..WorkReport::default()
        };
        // Threads open their accounts in any order.
        report.workers.sort_by_key(|worker| worker.tid);
        for port in ports.iter().flatten() {
            let counters = port.vnic.account.read();
            report.calls += counters.calls;
            report.calls_suppressed += counters.calls_suppressed;
        }
        report
    }
}
