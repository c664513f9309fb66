//! Reading the published state, and registering threads.

use crate::area::{Area, BUCKETS, KIND_SHIFT, KNOWN, Kind, PREEMPTED, Thread, WAYS};
use crate::kernel::Mapping;
use crate::vcpus;
use rustix::fd::BorrowedFd;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A place for a registered thread, below [`Slot::LIMIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

impl Slot {
    /// Threads that can be registered at the same time, at most.
    pub const LIMIT: u16 = (BUCKETS * WAYS) as u16;
}

/// A core's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoreState {
    /// The core runs no task.
    Idle,
    /// The core runs this registered thread.
    Vcpu(Slot),
    /// The core runs the thread with this number, which is not registered. (Workers know each other by their
    /// numbers.)
    Task(u32),
    /// Unknown: the core has not switched since the programs were attached, or its number is above 1023.
    Unknown,
}

/// A registered thread's state. The core in each case is the one it is on or was on last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThreadState {
    /// The thread runs on this core.
    Running(u32),
    /// The thread is runnable on this core.
    Runnable(u32),
    /// The thread is blocked, and ran on this core last.
    Blocked(u32),
    /// The thread has ended.
    Dead,
    /// Unknown: the thread was running when it was registered, or does not exist.
    Unknown,
}

/// The thread that was woken last from a core, and the number of threads woken from there so far. The
/// default: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Woken(u64);

impl Woken {
    /// The thread's number; 0 for none.
    #[must_use]
    pub fn thread(self) -> u32 {
        self.0 as u32
    }
}

impl ThreadState {
    fn of(word: u32) -> ThreadState {
        let core = word & ((1 << KIND_SHIFT) - 1);
        match word - core {
            kind if kind == Kind::Running.word() => ThreadState::Running(core),
            kind if kind == Kind::Runnable.word() => ThreadState::Runnable(core),
            kind if kind == Kind::Blocked.word() => ThreadState::Blocked(core),
            kind if kind == Kind::Dead.word() => ThreadState::Dead,
            _ => ThreadState::Unknown,
        }
    }
}

impl Area {
    pub(crate) fn thread(&self, slot: Slot) -> Option<&Thread> {
        let slot = usize::from(slot.0);
        self.buckets.get(slot / WAYS).map(|bucket| &bucket.0[slot % WAYS])
    }

    /// The places in the hash table at which a thread may be.
    fn places(&self, tid: u32) -> impl Iterator<Item = (Slot, &Thread)> {
        let bucket = tid as usize % BUCKETS;
        let first = (bucket * WAYS) as u16;
        self.buckets[bucket]
            .0
            .iter()
            .zip(first..)
            .map(|(thread, slot)| (Slot(slot), thread))
    }

    fn find(&self, tid: u32) -> Option<Slot> {
        let mut places = self.places(tid);
        places
            .find(|(_, thread)| tid != 0 && thread.tid.load(Relaxed) == tid)
            .map(|(slot, _)| slot)
    }

    fn core_state(&self, cpu: u32) -> CoreState {
        let word = self
            .cores
            .get(cpu as usize)
            .map_or(0, |core| core.task.load(Relaxed));
        match word as u32 {
            _ if word & KNOWN == 0 => CoreState::Unknown,
            0 => CoreState::Idle,
            tid => self.find(tid).map_or(CoreState::Task(tid), CoreState::Vcpu),
        }
    }

    /// Of 64 cores, a bit for each of `among` that is idle.
    fn idle(&self, word: usize, among: u64) -> u64 {
        let Some(line) = self.idle.get(word) else { return 0 };
        let (mut idle, mut left) = (0, among);
        while left != 0 {
            // The group of eight cores that has the next one.
            let shift = left.trailing_zeros() & !7;
            left &= !(0xff << shift);
            // Eight bytes of 0 or 1 become eight bits: the product puts byte n at bit 56 + n.
            let cores = &line.0[shift as usize / 8];
            let bytes = u64::from_le(cores.load(Relaxed)) & 0x0101_0101_0101_0101;
            idle |= (bytes.wrapping_mul(0x0102_0408_1020_4080) >> 56) << shift;
        }
        idle & among
    }

    fn expects(&self, cpu: u32) -> bool {
        let last = self
            .cores
            .get(cpu as usize)
            .map_or(0, |core| core.blocked.load(Relaxed));
        let blocked = Kind::Blocked.word() | cpu;
        last != 0
            && self
                .places(last)
                .any(|(_, thread)| thread.tid.load(Relaxed) == last && thread.state.load(Relaxed) == blocked)
    }

    fn thread_state(&self, slot: Slot) -> ThreadState {
        let word = self.thread(slot).map_or(0, |thread| thread.state.load(Relaxed));
        ThreadState::of(word)
    }
}

/// The published state. Any thread may read it at any time; each answer takes a load or two of cache lines
/// that others write.
pub struct VmState(Mapping);

impl VmState {
    /// Maps the shared memory for reading. The descriptor is [`Publisher::area`](crate::Publisher::area), and
    /// is not needed afterwards.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn map(area: BorrowedFd<'_>) -> io::Result<VmState> {
        Mapping::new(area, false).map(VmState)
    }

    /// A core's state.
    #[inline]
    #[must_use]
    pub fn core(&self, cpu: u32) -> CoreState {
        self.0.core_state(cpu)
    }

    /// A registered thread's state.
    #[inline]
    #[must_use]
    pub fn thread(&self, slot: Slot) -> ThreadState {
        self.0.thread_state(slot)
    }

    /// Of the cores from `64 * word` on, a bit for each of `among` that is known to be idle.
    #[inline]
    #[must_use]
    pub fn idle(&self, word: usize, among: u64) -> u64 {
        self.0.idle(word, among)
    }

    /// Whether the registered thread that blocked on this core last is still blocked, and so expected back.
    #[inline]
    #[must_use]
    pub fn expects(&self, cpu: u32) -> bool {
        self.0.expects(cpu)
    }

    /// Whether a task is runnable on this core besides the one that has it, so that a helper there should
    /// give way. It may be any task, also one with a lower priority. False for a core whose state is unknown.
    #[inline]
    #[must_use]
    pub fn wanted(&self, cpu: u32) -> bool {
        self.0.cores.get(cpu as usize).is_some_and(|core| {
            let running = core.task.load(Relaxed) as u32 != 0;
            core.runnable.load(Relaxed) > u32::from(running)
        })
    }

    /// Whether the task that has this core took it from another one that had had it for a millisecond and was
    /// still runnable. False for a core whose state is unknown.
    #[inline]
    #[must_use]
    pub fn preempted(&self, cpu: u32) -> bool {
        let core = self.0.cores.get(cpu as usize);
        core.is_some_and(|core| core.task.load(Relaxed) & PREEMPTED != 0)
    }

    /// The thread that last woke one that had run on this core before, if it is registered.
    #[inline]
    #[must_use]
    pub fn waker(&self, cpu: u32) -> Option<Slot> {
        self.0.find(self.0.cores.get(cpu as usize)?.waker.load(Relaxed))
    }

    /// The thread that was woken last from this core, by the task that has it or by an interrupt.
    #[inline]
    #[must_use]
    pub fn woken(&self, cpu: u32) -> Woken {
        let core = self.0.cores.get(cpu as usize);
        Woken(core.map_or(0, |core| core.woken.load(Relaxed)))
    }

    /// The thread that was woken last from this core, if it is registered and any was woken since `before`.
    #[must_use]
    pub fn woken_since(&self, cpu: u32, before: Woken) -> Option<Slot> {
        let now = self.woken(cpu);
        if now == before {
            None
        } else {
            self.0.find(now.thread())
        }
    }

    /// The time that the task which has this core waited for it, in nanoseconds. Valid only if that task
    /// waits until others block (`SCHED_BATCH`) and is the last such task that was woken here, which the
    /// caller has to know. 0 if no such task was woken.
    #[inline]
    #[must_use]
    pub fn waited_ns(&self, cpu: u32) -> u64 {
        let times = self.0.cores.get(cpu as usize).map(|core| {
            let asked_ns = core.asked_ns.load(Relaxed);
            (core.since_ns.load(Relaxed), asked_ns)
        });
        match times {
            None | Some((_, 0)) => 0,
            Some((since_ns, asked_ns)) => since_ns.saturating_sub(asked_ns),
        }
    }

    /// The state of a guest with these threads: that of the most active one. Unknown without threads, and if
    /// the most active one may be a thread whose state is unknown.
    #[must_use]
    pub fn guest(&self, threads: &[Slot]) -> ThreadState {
        let mut best = ThreadState::Dead;
        for slot in threads {
            best = match (best, self.thread(*slot)) {
                (_, running @ ThreadState::Running(_)) => return running,
                (_, runnable @ ThreadState::Runnable(_)) => runnable,
                (runnable @ ThreadState::Runnable(_), _) => runnable,
                (_, ThreadState::Unknown) | (ThreadState::Unknown, _) => ThreadState::Unknown,
                (blocked @ ThreadState::Blocked(_), _) => blocked,
                (_, other) => other,
            };
        }
        if threads.is_empty() {
            ThreadState::Unknown
        } else {
            best
        }
    }
}

/// Registers the threads whose states are published. There is one registry at a time; a new one starts
/// without threads.
pub struct Registry(Mapping);

impl Registry {
    /// Maps the shared memory for writing, and forgets the threads that a predecessor registered.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn map(area: BorrowedFd<'_>) -> io::Result<Registry> {
        let registry = Registry(Mapping::new(area, true)?);
        (0..Slot::LIMIT).for_each(|slot| registry.remove(Slot(slot)));
        Ok(registry)
    }

    /// Registers a thread of the PID name space that /proc shows, unless it is registered. `None` when its
    /// bucket is full, or if the number is that of no thread: its state then stays unknown.
    ///
    /// The thread's state is known at once if it is blocked, and otherwise from its next switch on.
    pub fn add(&self, tid: u32) -> Option<Slot> {
        let free = || {
            self.0
                .places(tid)
                .find(|(_, thread)| thread.tid.load(Relaxed) == 0)
        };
        if tid == 0 {
            return None;
        }
        if let Some(slot) = self.0.find(tid) {
            return Some(slot);
        }
        let (slot, thread) = free()?;
        thread.waits.store(0, Relaxed);
        thread.child_waits.store(0, Relaxed);
        thread.state.store(0, Relaxed);
        thread.tid.store(tid, Release);
        // Only after that: the states that the programs publish from now on are newer, and stay.
        if let Some(word) = vcpus::state_of(Path::new("/proc"), tid) {
            let _ = thread.state.compare_exchange(0, word, Acquire, Relaxed);
        }
        Some(slot)
    }

    /// Forgets a thread. The state of its slot is `Unknown` from then on, until another thread is registered
    /// there.
    pub fn remove(&self, slot: Slot) {
        if let Some(thread) = self.0.thread(slot) {
            thread.tid.store(0, Release);
            thread.state.store(0, Release);
        }
    }

    /// A registered thread's state.
    #[must_use]
    pub fn thread(&self, slot: Slot) -> ThreadState {
        self.0.thread_state(slot)
    }

    /// A core's state.
    #[must_use]
    pub fn core(&self, cpu: u32) -> CoreState {
        self.0.core_state(cpu)
    }
}
