//! The shared memory: one value of a BPF array map.
//!
//! | part | written by | when |
//! |---|---|---|
//! | [`Core::task`], [`Core::since_ns`] | programs | a core switches to another task |
//! | [`Core::blocked`] | programs | a registered thread blocks on the core |
//! | [`Core::waker`] | programs | a task that was there last is woken |
//! | [`Core::woken`] | programs | a task is woken from the core |
//! | [`Core::asked_ns`] | programs, under that core's runqueue lock | a task of `SCHED_BATCH` is woken on it |
//! | [`Area::idle`] | programs | a core becomes idle, or ceases to be |
//! | [`Core::runnable`] | programs, under that core's runqueue lock | it switches, a task is woken on it or pulled from it |
//! | [`Thread::tid`] | the registry | a thread is registered or unregistered |
//! | [`Thread::state`] | programs; the registry only from 0, or to 0 when the thread is unregistered | that thread is switched to or from, or woken |
//! | [`Thread::waits`], [`Thread::child_waits`] | programs; the registry only to 0 | that thread, or a child, is woken or switched to or from |
//!
//! Threads are in a hash table of buckets of four, found by the low bits of their number, which the kernel
//! gives out in sequence. A bucket is a cache line, and a thread has its place in it as long as it is
//! registered: that place is its [`Slot`](crate::Slot). Zero everywhere is "unknown" and "free", as the map
//! begins.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Cores whose state can be published; cores with higher numbers stay unknown.
pub(crate) const CORES: usize = 1024;
/// Buckets of the hash table; a power of two.
pub(crate) const BUCKETS: usize = 1024;
/// Threads per bucket.
pub(crate) const WAYS: usize = 4;

/// A core, on a cache line of its own, since each core writes its own at every switch.
#[repr(C, align(64))]
pub(crate) struct Core {
    /// [`KNOWN`], perhaps [`PREEMPTED`], and the number of the running thread; 0 in the low half is the idle
    /// task.
    pub task: AtomicU64,
    /// The time at which it switched to that task, in nanoseconds of the kernel's monotonic clock.
    pub since_ns: AtomicU64,
    /// Tasks that run or are runnable here, without the idle task.
    pub runnable: AtomicU32,
    /// The number of the registered thread that blocked here last; 0 for none.
    pub blocked: AtomicU32,
    /// The time at which a task that waits for the core until others block (`SCHED_BATCH`) was woken here
    /// last, by the same clock; 0: never.
    pub asked_ns: AtomicU64,
    /// The number of the task that last woke one that was here before. If an interrupt woke it: of the task
    /// that was interrupted.
    pub waker: AtomicU32,
    /// The number of the task that was woken last by the task that had this core, or by an interrupt; in the
    /// upper half the number of wake-ups from here, modulo 2^32.
    pub woken: AtomicU64,
}

/// A registered thread. Its child processes count as the thread itself: User Mode Linux runs its guest's
/// processes in processes of its own, and waits for them meanwhile.
#[repr(C, align(16))]
pub(crate) struct Thread {
    /// The thread's number; 0 when this place is free.
    pub tid: AtomicU32,
    /// A [`Kind`] in the upper half and a core in the lower; 0 while unknown.
    pub state: AtomicU32,
    /// The thread's number while it waits for a core, else 0.
    pub waits: AtomicU32,
    /// The number of the child that began to wait last, while it waits for a core, else 0.
    pub child_waits: AtomicU32,
}

/// A cache line of threads.
#[repr(C, align(64))]
pub(crate) struct Bucket(pub [Thread; WAYS]);

/// The whole shared memory.
#[repr(C)]
pub(crate) struct Area {
    pub cores: [Core; CORES],
    pub buckets: [Bucket; BUCKETS],
    /// A byte for each core: 1 if it is idle. A few loads read many cores, and each byte has one writer.
    pub idle: [Idle; CORES / 64],
}

/// 64 cores on a cache line.
#[repr(C, align(64))]
pub(crate) struct Idle(pub [AtomicU64; 8]);

/// Set in [`Core::task`] once the core has switched.
pub(crate) const KNOWN: u64 = 1 << 63;

/// Set in [`Core::task`] if the task before, other than the idle one, was still runnable, and had had the
/// core for [`LONG_NS`].
pub(crate) const PREEMPTED: u64 = 1 << 62;

/// A time after which most tasks would have blocked, in nanoseconds.
pub(crate) const LONG_NS: usize = 1_000_000;

/// Where a [`Kind`] begins in [`Thread::state`]; below it is a core.
pub(crate) const KIND_SHIFT: u32 = 16;

/// The kind of a thread's state; the upper half of [`Thread::state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Running = 1,
    Runnable = 2,
    Blocked = 3,
    Dead = 4,
}

impl Kind {
    /// The state of a thread of this kind on core 0.
    pub const fn word(self) -> u32 {
        (self as u32) << KIND_SHIFT
    }
}

// Where the programs find things.
pub(crate) const CORE_SIZE: usize = size_of::<Core>();
pub(crate) const TASK: usize = offset_of!(Core, task);
pub(crate) const SINCE_NS: usize = offset_of!(Core, since_ns);
pub(crate) const RUNNABLE: usize = offset_of!(Core, runnable);
pub(crate) const BLOCKED: usize = offset_of!(Core, blocked);
pub(crate) const ASKED_NS: usize = offset_of!(Core, asked_ns);
pub(crate) const WAKER: usize = offset_of!(Core, waker);
pub(crate) const WOKEN: usize = offset_of!(Core, woken);
pub(crate) const THREADS: usize = offset_of!(Area, buckets);
pub(crate) const IDLE: usize = offset_of!(Area, idle);
pub(crate) const BUCKET_SIZE: usize = size_of::<Bucket>();
pub(crate) const THREAD_SIZE: usize = size_of::<Thread>();
pub(crate) const TID: usize = offset_of!(Thread, tid);
pub(crate) const WAITS: usize = offset_of!(Thread, waits);
pub(crate) const CHILD_WAITS: usize = offset_of!(Thread, child_waits);
pub(crate) const STATE: usize = offset_of!(Thread, state);

const _: () =
    assert!(CORE_SIZE == 64 && BUCKET_SIZE == 64 && BUCKETS.is_power_of_two() && CORES <= 1 << KIND_SHIFT);
