//! The executor that receives a vNIC's kicks.
//!
//! To begin or end receiving the kicks of a descriptor takes the lock of those that wait for it, which
//! belongs to the descriptor: a VMM that signals it has the kernel hold this lock while it asks a million
//! waiters. Meanwhile the executor's own thread waits as well. So the processor time of such a change is
//! measured. After a costly one the executor stays the same for a thousand times as long. If a descriptor
//! is costly twice in sequence, new ones are refused for as long: once it may have been an interrupt, or a
//! hypervisor that took the core. A pause changes only the executor's side.

use crate::executor::Executor;
use crate::ring_id::RingId;
use parking_lot::Mutex;
use placement::{Cpu, VnicId};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Processor time in nanoseconds from which on a change is costly.
const COSTLY_NS: u64 = 200_000;

/// Time without changes after a costly one, as a multiple of the time that it took; and the longest, in
/// microseconds.
const REST: u64 = 1000;
const LONGEST_REST_US: u64 = 60_000_000;

/// Place of the descriptor of a queue by which packets come beside the transmit ring.
pub(crate) const ARRIVALS: u32 = RingId::PER_VNIC;

/// See the module's description.
pub(crate) struct KickTarget {
    vnic: VnicId,
    executor: Mutex<Option<Arc<Executor>>>,
    /// Of each ring, and of a queue at [`ARRIVALS`]. Held during changes, for which no forwarding thread
    /// waits.
    watched: Mutex<[Option<OwnedFd>; RingId::PER_VNIC as usize + 1]>,
    /// When the executor may change again, in microseconds of [`cpu::now_us`].
    rests_until_us: AtomicU64,
    /// When new descriptors are accepted again, in microseconds of the same clock.
    refuses_until_us: AtomicU64,
    /// How long the last costly change took, in nanoseconds; the most that fits stands for more.
    costly_ns: AtomicU32,
}

impl KickTarget {
    pub fn new(vnic: VnicId) -> KickTarget {
        KickTarget {
            vnic,
            executor: Mutex::default(),
            watched: Mutex::default(),
            rests_until_us: AtomicU64::new(0),
            refuses_until_us: AtomicU64::new(0),
            costly_ns: AtomicU32::new(0),
        }
    }

    /// The executor, which is decided on now if it was not before.
    pub fn executor(&self, decide: impl FnOnce() -> Arc<Executor>) -> Arc<Executor> {
        self.executor.lock().get_or_insert_with(decide).clone()
    }

    /// The core of the executor, if there is one and it has one.
    pub fn core(&self) -> Option<Cpu> {
        self.executor.lock().as_ref().and_then(|executor| executor.cpu)
    }

    /// How long the last costly change took, in nanoseconds, if new descriptors are refused now.
    pub fn costly_ns(&self) -> Option<u64> {
        (cpu::now_us() < self.refuses_until_us.load(Relaxed)).then(|| self.costly_ns.load(Relaxed).into())
    }

    fn rests(&self) -> bool {
        cpu::now_us() < self.rests_until_us.load(Relaxed)
    }

    /// Receives kicks of a ring from now on.
    ///
    /// # Errors
    /// No descriptors or memory are left, or changes were too costly lately.
    pub fn watch(
        &self,
        queue: u32,
        kick: BorrowedFd<'_>,
        decide: impl FnOnce() -> Arc<Executor>,
    ) -> io::Result<()> {
        let mut watched = self.watched.lock();
        if self.costly_ns().is_some() {
            let text = "kick descriptors of this port were too costly a moment ago";
            return Err(io::Error::other(text));
        }
        // One of our own: an executor knows descriptors by their numbers, and may change.
        let kick = kick.try_clone_to_owned()?;
        let (executor, ring) = (self.executor(decide), self.ring_of(queue));
        let watch = || executor.watch(ring, kick.as_fd());
        if self.measured(watch)? >= COSTLY_NS {
            executor.unwatch(kick.as_fd());
            if self.measured(watch)? >= COSTLY_NS {
                self.refuse();
            }
        }
        if let Some(place) = watched.get_mut(queue as usize)
            && let Some(before) = place.replace(kick)
        {
            // A queue's socket may be open for longer.
            executor.unwatch(before.as_fd());
        }
        Ok(())
    }

    /// The ring to be served when the descriptor at this place is readable.
    fn ring_of(&self, place: u32) -> RingId {
        match place {
            ARRIVALS => RingId::transmit(self.vnic),
            queue => RingId::of(self.vnic, queue),
        }
    }

    /// Receives kicks of the ring no longer.
    pub fn unwatch(&self, queue: u32) {
        let mut watched = self.watched.lock();
        let kick = watched.get_mut(queue as usize).and_then(Option::take);
        let executor = self.executor.lock().clone();
        if let (Some(executor), Some(kick)) = (executor, kick) {
            let _ = self.measured(|| {
                executor.unwatch(kick.as_fd());
                Ok(())
            });
        }
    }

    /// Has another executor receive the kicks; false if another thread makes a change, or changes are too
    /// costly.
    pub fn move_to(&self, executor: &Arc<Executor>) -> bool {
        let Some(watched) = self.watched.try_lock().filter(|_| !self.rests()) else {
            return false;
        };
        let Some(old) = self.executor.lock().replace(executor.clone()) else {
            return true;
        };
        for (queue, kick) in (0..).zip(&*watched) {
            let Some(kick) = kick else { continue };
            let moved = self.measured(|| {
                old.unwatch(kick.as_fd());
                executor.watch(self.ring_of(queue), kick.as_fd())
            });
            if let Err(error) = moved {
                telemetry::limited_by!(
                    self.vnic.0,
                    log::Level::Error,
                    "port {}: kicks are not received: {error}",
                    self.vnic.0
                );
            }
        }
        true
    }

    /// Receives the ring's kicks again, or not until then. `None` if another thread makes a change; false if
    /// they are not watched.
    pub fn receive(&self, ring: RingId, receives: bool) -> Option<bool> {
        let watched = self.watched.try_lock()?;
        let kick = watched.get(ring.queue() as usize).and_then(Option::as_ref);
        let executor = self.executor.lock().clone();
        let (Some(executor), Some(kick)) = (executor, kick) else {
            return Some(false);
        };
        executor.receive_kicks(ring, kick.as_fd(), receives);
        Some(true)
    }

    /// Makes a change, and returns its processor time in nanoseconds.
    fn measured(&self, change: impl FnOnce() -> io::Result<()>) -> io::Result<u64> {
        let start_ns = cpu::processor_ns();
        let result = change();
        let took_ns = cpu::processor_ns().saturating_sub(start_ns);
        self.note(took_ns);
        result.map(|()| took_ns)
    }

    fn note(&self, took_ns: u64) {
        if took_ns >= COSTLY_NS {
            let rest_us = (took_ns / 1000 * REST).min(LONGEST_REST_US);
            self.costly_ns
                .store(u32::try_from(took_ns).unwrap_or(u32::MAX), Relaxed);
            self.rests_until_us.store(cpu::now_us() + rest_us, Relaxed);
        }
    }

    /// Refuses new descriptors for as long as the executor stays the same.
    fn refuse(&self) {
        self.refuses_until_us
            .store(self.rests_until_us.load(Relaxed), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn one_costly_change_alone_refuses_nothing() {
        let target = KickTarget::new(VnicId(1));
        let executor = Arc::new(Executor::new().unwrap());
        let kick = || eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let watch = |queue| target.watch(queue, kick().as_fd(), || executor.clone());
        // A minute's rest, which no delay of this test outlasts.
        target.note(LONGEST_REST_US * 1000 / REST);
        assert!(!target.move_to(&executor), "right after a costly change");
        watch(0).unwrap();
        assert_eq!(target.costly_ns(), None);
        target.refuse();
        assert!(watch(1).is_err());
        assert!(target.costly_ns().is_some());
    }
}
