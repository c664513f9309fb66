//! The scheduler's state of a vNIC: which executor receives its kicks, which one copies to it, and the state
//! of its guest.

use crate::executor::Executor;
use crate::guest_blocks::GuestBlocks;
use crate::kick_limit::KickLimit;
use crate::kick_target::{ARRIVALS, KickTarget};
use crate::majority::Majority;
use crate::ring_id::RingId;
use crate::threads::Threads;
use cpu::{Access, prefetch};
use lock_free::Assignment;
use parking_lot::Mutex;
use placement::{Cpu, VnicId};
use rustix::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use vm_state::Slot;

/// Number of misdirected kicks in sequence after which a vNIC's home moves.
const MISDIRECTED: u16 = 16;

/// Number of waits in sequence, of a sender whose known threads all sleep, after which it must have a thread
/// that is not known.
const UNSEEN: u32 = 16;

/// Least time from one such suspicion to the next, in nanoseconds. It doubles as long as nothing new is
/// found.
const UNSEEN_PAUSE_NS: u64 = 1_000_000_000;
const LONGEST_UNSEEN_PAUSE_NS: u64 = 64 * UNSEEN_PAUSE_NS;

/// All vNICs, as the placement policy sees them.
pub trait Homes {
    /// The home of a vNIC, if it exists.
    fn home(&self, vnic: VnicId) -> Option<&Home>;

    /// The number of vNICs.
    fn count(&self) -> u32;

    /// The homes one after the other, from 0 to below [`count`](Self::count): numbers of vNICs have gaps.
    fn nth(&self, place: u32) -> Option<&Home>;
}

/// One vNIC's place among executors.
pub struct Home {
    vnic: VnicId,
    /// The executor of its own thread, if each vNIC has one.
    own: Option<Arc<Executor>>,
    /// Whether that thread is to end.
    ending: Arc<AtomicBool>,
    /// The core whose worker copies to it, or was told to.
    copier: Assignment,
    /// When its driver may have been notified last, in nanoseconds of the placement's clock.
    notified_ns: AtomicU64,
    /// Number of kicks in sequence of which a worker found that another one should have received them.
    misdirected: AtomicU16,
    /// How often in sequence the guest waited for the core on which its ring was served, and when it did
    /// last, in nanoseconds of the placement's clock.
    waits: AtomicU32,
    waited_ns: AtomicU64,
    /// When it may be suspected again that the guest has threads that are not known, and how long after that.
    suspect_ns: AtomicU64,
    suspect_pause_ns: AtomicU64,
    /// Whether there is a suspicion that no thread has taken.
    suspected: AtomicBool,
    /// How long workers wait until the guest blocks.
    guest_blocks: Mutex<GuestBlocks>,
    kicks: KickTarget,
    /// Of each ring.
    kick_limits: [KickLimit; RingId::PER_VNIC as usize],
    /// Threads of the guest, as far as they are known.
    threads: Threads,
    /// Which of them kicks, and which one takes the vNIC's interrupts.
    kicker: Majority,
    interrupted: Majority,
}

impl Home {
    /// The home of a vNIC whose own thread, if it has one, serves `own`.
    pub fn new(vnic: VnicId, own: Option<Arc<Executor>>) -> Home {
        Home {
            vnic,
            own,
            ending: Arc::default(),
            copier: Assignment::nobody(),
            notified_ns: AtomicU64::new(0),
            misdirected: AtomicU16::new(0),
            waits: AtomicU32::new(0),
            waited_ns: AtomicU64::new(0),
            suspect_ns: AtomicU64::new(0),
            suspect_pause_ns: AtomicU64::new(UNSEEN_PAUSE_NS),
            suspected: AtomicBool::new(false),
            guest_blocks: Mutex::default(),
            kicks: KickTarget::new(vnic),
            kick_limits: Default::default(),
            threads: Threads::default(),
            kicker: Majority::default(),
            interrupted: Majority::default(),
        }
    }

    /// The vNIC's number.
    pub fn vnic(&self) -> VnicId {
        self.vnic
    }

    /// The executor of its own thread, if each vNIC has one.
    pub fn own(&self) -> Option<&Arc<Executor>> {
        self.own.as_ref()
    }

    /// The flag that is set when its own thread is to end.
    pub(crate) fn ending(&self) -> &Arc<AtomicBool> {
        &self.ending
    }

    /// Has its own thread, if there is one, end soon.
    pub fn end_own(&self) {
        self.ending.store(true, Ordering::Release);
        if let Some(executor) = &self.own {
            executor.wake();
        }
    }

    /// The core whose worker copies to the vNIC, or was told to and has not begun.
    #[inline]
    pub fn copier(&self) -> Option<Cpu> {
        self.copier.get().map(Cpu)
    }

    /// Names the executor that copies. After `None` the caller must look at the queue once more.
    pub fn set_copier(&self, cpu: Option<Cpu>) {
        self.copier.set(cpu.map(|cpu| cpu.0));
    }

    /// To be called between queueing packets for the vNIC and leaving them to its copier.
    pub fn announce_queued(&self) {
        self.copier.announce();
    }

    /// Asks the processor for what [`core`](Self::core) reads.
    pub fn prefetch_core(&self) {
        prefetch(&raw const self.kicks, Access::Read);
    }

    /// The core whose worker receives its kicks, if one does.
    pub fn core(&self) -> Option<Cpu> {
        self.kicks.core()
    }

    pub(crate) fn notified_ns(&self) -> u64 {
        self.notified_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn set_notified_ns(&self, now_ns: u64) {
        self.notified_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Notes that a kick should have been received by another executor. If that happens time and again, later
    /// kicks are.
    pub(crate) fn prefer(&self, executor: &Arc<Executor>) {
        if self.misdirected.fetch_add(1, Ordering::Relaxed) >= MISDIRECTED && self.kicks.move_to(executor) {
            self.misdirected.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that a kick was received where it should be.
    pub(crate) fn keep(&self) {
        if self.misdirected.load(Ordering::Relaxed) != 0 {
            self.misdirected.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that the guest waits for the core on which its ring was served. Returns the number of such waits
    /// in sequence, of those after `since_ns`.
    pub(crate) fn count_wait(&self, now_ns: u64, since_ns: u64) -> u32 {
        let last_ns = self.waited_ns.swap(now_ns, Ordering::Relaxed);
        if last_ns < since_ns {
            self.forget_waits();
        }
        self.waits.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes that the guest does not wait, which ends the sequence.
    pub(crate) fn forget_waits(&self) {
        if self.waits.load(Ordering::Relaxed) != 0 {
            self.waits.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that the guest sends although all its known threads sleep. True if it has waited for its core so
    /// often meanwhile that it must have a thread that is not known, and a look-up is due.
    pub(crate) fn suspect_threads(&self, now_ns: u64) -> bool {
        if self.waits.load(Ordering::Relaxed) < UNSEEN || now_ns < self.suspect_ns.load(Ordering::Relaxed) {
            return false;
        }
        let pause_ns = self.suspect_pause_ns.load(Ordering::Relaxed);
        self.suspect_ns.store(now_ns + pause_ns, Ordering::Relaxed);
        let next_ns = (2 * pause_ns).min(LONGEST_UNSEEN_PAUSE_NS);
        self.suspect_pause_ns.store(next_ns, Ordering::Relaxed);
        self.suspected.store(true, Ordering::Relaxed);
        true
    }

    /// Whether it was noticed since the last call that the guest must have threads which are not known.
    pub fn take_missed_threads(&self) -> bool {
        self.suspected.swap(false, Ordering::Relaxed)
    }

    /// Notes how long a worker that the guest had woken waited for its core, for each packet that it found
    /// then.
    pub(crate) fn waited_for(&self, now_ns: u64, per_packet_ns: u64) {
        self.guest_blocks.lock().note(now_ns, per_packet_ns);
    }

    /// Whether a worker that the guest wakes should wait until the guest blocks.
    pub(crate) fn may_be_waited_for(&self, now_ns: u64) -> bool {
        self.guest_blocks.lock().may(now_ns)
    }

    /// Receives kicks of a ring of this vNIC from now on. `decide` names the executor, if that is not
    /// decided.
    ///
    /// # Errors
    /// No descriptors or memory are left, or the vNIC's descriptors were too costly to watch lately.
    pub fn watch(
        &self,
        queue: u32,
        kick: BorrowedFd<'_>,
        decide: impl FnOnce() -> Arc<Executor>,
    ) -> std::io::Result<()> {
        self.kicks.watch(queue, kick, decide)
    }

    /// Has the transmit ring served from now on when this descriptor becomes readable, in the place of the
    /// one before. `decide` as in [`watch`](Self::watch).
    ///
    /// # Errors
    /// As [`watch`](Self::watch).
    pub fn watch_arrivals(
        &self,
        descriptor: BorrowedFd<'_>,
        decide: impl FnOnce() -> Arc<Executor>,
    ) -> std::io::Result<()> {
        self.kicks.watch(ARRIVALS, descriptor, decide)
    }

    /// Waits for that descriptor no longer.
    pub fn unwatch_arrivals(&self) {
        self.kicks.unwatch(ARRIVALS);
    }

    /// Receives kicks of the ring no longer.
    pub fn unwatch(&self, queue: u32) {
        self.kicks.unwatch(queue);
    }

    /// Processor time in nanoseconds that it took last to begin or end receiving kicks, if that was so costly
    /// that it is not done now.
    pub fn costly_kick_ns(&self) -> Option<u64> {
        self.kicks.costly_ns()
    }

    /// A ring was kicked, when so many packets had gone through it. True if too many kicks were in vain: the
    /// ring's kicks are not received until [`resume_kicks`](Self::resume_kicks).
    pub(crate) fn pauses_kicks(&self, ring: RingId, packets: u64, now_ns: impl FnOnce() -> u64) -> bool {
        let limit = self.kick_limits.get(ring.queue() as usize);
        if !limit.is_some_and(|limit| limit.count_kick(packets, now_ns)) {
            return false;
        }
        // While a thread sets up the ring, no forwarding thread waits for it.
        self.kicks.receive(ring, false) == Some(true)
    }

    /// Receives a ring's kicks again. The executor is told at once that there was one, whether there was or
    /// not. False if another thread sets up the ring, so that the caller has to try again.
    pub(crate) fn resume_kicks(&self, ring: RingId) -> bool {
        if let Some(limit) = self.kick_limits.get(ring.queue() as usize) {
            limit.forgive();
        }
        self.kicks.receive(ring, true).is_some()
    }

    /// Has a worker look at all rings of the vNIC. `decide` as in [`watch`](Self::watch).
    pub fn post(&self, decide: impl FnOnce() -> Arc<Executor>) {
        let rings = (0..RingId::PER_VNIC).map(|queue| RingId::of(self.vnic, queue));
        self.kicks.executor(decide).post(rings);
    }

    /// Calls `look` with the threads of the guest, or with that of an interface of the driver domain, and
    /// returns its result. There are no threads while they are not known.
    #[inline]
    pub(crate) fn with_threads<R>(&self, look: impl FnOnce(&[Slot]) -> R) -> R {
        self.threads.with(look)
    }

    /// Notes that a thread has kicked, perhaps one of the guest's.
    pub(crate) fn kicked_by(&self, thread: Slot) {
        if self.is_one_of_several(thread) {
            self.kicker.vote(thread);
        }
    }

    /// Notes that an interrupt of this vNIC has woken a thread, perhaps one of the guest's.
    pub(crate) fn interrupted(&self, thread: Slot) {
        if self.is_one_of_several(thread) {
            self.interrupted.vote(thread);
        }
    }

    /// Whether the guest has several threads, so that there is something to learn of each.
    pub(crate) fn is_of_several(&self) -> bool {
        self.with_threads(|threads| threads.len() > 1)
    }

    fn is_one_of_several(&self, thread: Slot) -> bool {
        self.with_threads(|threads| threads.len() > 1 && threads.contains(&thread))
    }

    /// The one of several threads that kicks, if that is known.
    #[inline]
    pub(crate) fn kicker(&self) -> Option<Slot> {
        self.kicker.get()
    }

    /// The one of several threads that takes the vNIC's interrupts, if that is known.
    #[inline]
    pub(crate) fn interrupted_thread(&self) -> Option<Slot> {
        self.interrupted.get()
    }

    /// Sets the threads of the guest that are its vCPUs.
    pub fn set_threads(&self, threads: Box<[Slot]>) {
        self.kicker.forget();
        self.interrupted.forget();
        self.threads.set(threads);
        self.suspect_ns.store(0, Ordering::Relaxed);
        self.suspect_pause_ns.store(UNSEEN_PAUSE_NS, Ordering::Relaxed);
    }
}

/// A single vNIC, which is not in a table (yet).
impl Homes for Home {
    fn home(&self, vnic: VnicId) -> Option<&Home> {
        Some(self).filter(|home| home.vnic == vnic)
    }

    fn count(&self) -> u32 {
        1
    }

    fn nth(&self, place: u32) -> Option<&Home> {
        Some(self).filter(|_| place == 0)
    }
}
