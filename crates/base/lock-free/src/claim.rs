//! Exclusive access without waiting.
//!
//! A ring has one writer at any time, but which thread that is changes from burst to burst. A [`Claim`] is a
//! lock of which only the "try" half is used on the data path: a thread that finds it taken leaves a mark and
//! goes on to other work, and the holder, on release, learns that it was wanted and must look again.
//! So a thread sees the work that was announced (a packet queued, a chain completed) before a failed claim.
//!
//! | state | allowed |
//! |---|---|
//! | `FREE` | claim -> `HELD` |
//! | `HELD` | failed claim -> `HELD_WANTED`; release -> `FREE`, nothing to do; its holder keeps it |
//! | `HELD_WANTED` | release -> `FREE`, and the releaser must have the work done |
//!
//! A thread that will claim the value again in a moment *keeps* the claim instead of releasing it
//! ([`Guard::keep`]): a claim that is kept is held, as other threads see it, and to go on with it takes no
//! locked operation. The thread gives it up within a bounded time, at once if it is marked, and answers the
//! mark then.
//!
//! Direction of error: a spurious mark costs one useless look; a lost mark would strand packets, so the mark
//! is set with an atomic read-modify-write that orders all earlier writes before it.

use crate::sync::{AtomicU8, AtomicU32, Ordering, UnsafeCell, yield_now};
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

const FREE: u8 = 0;
const HELD: u8 = 1;
const HELD_WANTED: u8 = 3;

/// No keeper has this number.
const NOBODY: u32 = 0;

/// A value that one thread at a time may use. See the module's description.
#[derive(Debug)]
pub struct Claim<T> {
    state: AtomicU8,
    /// Number of the keeper while the claim is kept, and so held without a guard. The holder writes it.
    keeper: AtomicU32,
    value: UnsafeCell<T>,
}

/// The right to go on with the claims that were [kept](Guard::keep) with it. One thread at a time has it.
#[derive(Debug)]
pub struct Keeper {
    number: u32,
    not_sync: PhantomData<Cell<()>>,
}

impl Default for Keeper {
    /// A keeper unlike any other one.
    fn default() -> Keeper {
        // Not one of `sync`, which `loom` could not have as a static: nothing but numbers depends on it.
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(NOBODY + 1);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        assert!(number < u32::MAX, "each thread has one keeper");
        Keeper {
            number,
            not_sync: PhantomData,
        }
    }
}

// SAFETY: the value is reached only through a `Guard`, and at most one exists at a time (`state`, and
// `resume`), so moving access between threads needs `T: Send` and no more.
unsafe impl<T: Send> Sync for Claim<T> {}

/// Exclusive access to a claimed value. [`Guard::release`] ends it, and says whether another thread wanted
/// it. Dropping the guard instead loses that answer, which is right only where no other thread can have work
/// for the value.
#[derive(Debug)]
pub struct Guard<'a, T> {
    claim: &'a Claim<T>,
}

impl<T> Claim<T> {
    /// A free claim.
    pub fn new(value: T) -> Self {
        Claim {
            state: AtomicU8::new(FREE),
            keeper: AtomicU32::new(NOBODY),
            value: UnsafeCell::new(value),
        }
    }

    /// Whether a thread holds the claim at the moment.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.state.load(Ordering::Relaxed) != FREE
    }

    /// Takes the claim, or marks it as wanted.
    #[inline]
    pub fn try_claim(&self) -> Option<Guard<'_, T>> {
        // fetch_or would be one instruction less, but could not tell FREE from HELD without a second one to
        // clear the mark it set itself.
        match self
            .state
            .compare_exchange(FREE, HELD, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => Some(Guard { claim: self }),
            Err(_) => self.mark_or_claim(),
        }
    }

    #[cold]
    fn mark_or_claim(&self) -> Option<Guard<'_, T>> {
        let before = self.state.fetch_or(HELD_WANTED, Ordering::AcqRel);
        // The holder may have released it in between: then the claim is ours, with a mark of our own on it.
        (before == FREE).then(|| Guard { claim: self })
    }

    /// Whether the claim was kept with this keeper and not given up since.
    #[inline]
    pub fn is_kept_with(&self, keeper: &Keeper) -> bool {
        self.keeper.load(Ordering::Relaxed) == keeper.number
    }

    /// Goes on with a claim that was kept with this keeper and not given up since.
    #[inline]
    pub fn resume(&self, keeper: &Keeper) -> Option<Guard<'_, T>> {
        // Only `keeper`, which one thread at a time has, writes this number, and only while it holds the
        // claim. The number is gone before there is a guard, so there is no second one.
        if !self.is_kept_with(keeper) {
            return None;
        }
        self.keeper.store(NOBODY, Ordering::Relaxed);
        Some(Guard { claim: self })
    }

    /// Takes the claim, marking it as wanted and yielding until it is free. For set-up and tear-down, not for
    /// the data path.
    pub fn claim_blocking(&self) -> Guard<'_, T> {
        loop {
            if let Some(guard) = self.try_claim() {
                return guard;
            }
            yield_now();
        }
    }
}

impl<T> Guard<'_, T> {
    /// Ends the access. True when another thread failed to claim in the meantime: the caller must then make
    /// sure that the value is claimed and its work is looked for again.
    #[inline]
    #[must_use = "somebody may have left work behind"]
    pub fn release(self) -> bool {
        let this = ManuallyDrop::new(self);
        this.claim.state.swap(FREE, Ordering::AcqRel) == HELD_WANTED
    }

    /// Ends the access, as [`release`](Self::release) does, but keeps the claim unless another thread wants
    /// it: for a thread that [resumes](Claim::resume) and releases it soon.
    #[inline]
    #[must_use = "somebody may have left work behind"]
    pub fn keep(self, keeper: &Keeper) -> bool {
        if self.claim.state.load(Ordering::Relaxed) != HELD {
            return self.release();
        }
        let this = ManuallyDrop::new(self);
        this.claim.keeper.store(keeper.number, Ordering::Relaxed);
        false
    }

    /// Access to the value.
    #[inline]
    pub fn with<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: a `Guard` exists only between a successful claim and its release, at most one at a time, so
        // no other thread has a reference; `&mut self` excludes a second one through this guard; the
        // reference does not leave the closure.
        self.claim.value.with_mut(|value| f(unsafe { &mut *value }))
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.claim.state.swap(FREE, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_failed_claim_is_seen_on_release() {
        let claim = Claim::new(0);
        let guard = claim.try_claim().unwrap();
        assert!(claim.try_claim().is_none());
        assert!(guard.release());
        let guard = claim.try_claim().unwrap();
        assert!(!guard.release());
    }

    #[test]
    fn a_claim_is_held_until_its_guard_is_released_or_dropped() {
        let claim = Claim::new(0);
        assert!(!claim.is_held());
        let guard = claim.try_claim().unwrap();
        assert!(claim.is_held());
        let _ = guard.release();
        assert!(!claim.is_held());
        drop(claim.try_claim().unwrap());
        assert!(!claim.is_held());
        drop(claim.claim_blocking());
        assert!(claim.try_claim().is_some());
    }

    #[test]
    fn a_kept_claim_is_held_until_its_keeper_releases_it() {
        let (claim, keeper, other) = (Claim::new(0), Keeper::default(), Keeper::default());
        assert!(claim.resume(&keeper).is_none(), "nothing was kept");
        assert!(!claim.try_claim().unwrap().keep(&keeper));
        assert!(claim.is_held());
        assert!(claim.resume(&other).is_none());
        let mut guard = claim.resume(&keeper).unwrap();
        assert!(claim.resume(&keeper).is_none(), "no second guard");
        guard.with(|value| *value = 7);
        assert!(!guard.keep(&keeper));
        assert!(!claim.resume(&keeper).unwrap().release());
        assert!(claim.resume(&keeper).is_none());
        assert_eq!(claim.try_claim().unwrap().with(|value| *value), 7);
    }

    #[test]
    fn a_claim_that_is_wanted_is_not_kept() {
        let (claim, keeper) = (Claim::new(0), Keeper::default());
        assert!(!claim.try_claim().unwrap().keep(&keeper));
        assert!(claim.try_claim().is_none());
        assert!(claim.resume(&keeper).unwrap().keep(&keeper), "it was wanted");
        assert!(!claim.is_held());
    }

    #[test]
    fn a_thread_that_waits_for_a_kept_claim_gets_it() {
        let (claim, keeper) = (Claim::new(0), Keeper::default());
        assert!(!claim.try_claim().unwrap().keep(&keeper));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| drop(claim.claim_blocking()));
            while !waits.is_finished() {
                let guard = claim.resume(&keeper).or_else(|| claim.try_claim());
                let _ = guard.is_some_and(|guard| guard.keep(&keeper));
                std::thread::yield_now();
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;

    /// Announces one unit of work, then makes sure that it is done.
    fn produce(claim: &Claim<usize>, announced: &AtomicUsize) {
        announced.fetch_add(1, Ordering::Release);
        while let Some(mut guard) = claim.try_claim() {
            guard.with(|done| *done += announced.swap(0, Ordering::Acquire));
            if !guard.release() {
                break;
            }
        }
    }

    #[test]
    fn no_announced_work_is_left() {
        loom::model(|| {
            let claim = Arc::new(Claim::new(0usize));
            let announced = Arc::new(AtomicUsize::new(0));
            let thread = {
                let (claim, announced) = (claim.clone(), announced.clone());
                loom::thread::spawn(move || produce(&claim, &announced))
            };
            produce(&claim, &announced);
            thread.join().unwrap();
            assert_eq!(announced.load(Ordering::Relaxed), 0);
            assert_eq!(claim.try_claim().unwrap().with(|done| *done), 2);
        });
    }

    /// A thread that keeps the claim, and does what was announced when it goes on with it.
    #[test]
    fn no_announced_work_is_left_by_a_keeper() {
        loom::model(|| {
            let claim = Arc::new(Claim::new(0usize));
            let announced = Arc::new(AtomicUsize::new(0));
            let thread = {
                let (claim, announced) = (claim.clone(), announced.clone());
                loom::thread::spawn(move || produce(&claim, &announced))
            };
            let keeper = Keeper::default();
            let mut wanted = claim.try_claim().is_some_and(|guard| guard.keep(&keeper));
            if let Some(mut guard) = claim.resume(&keeper) {
                guard.with(|done| *done += announced.swap(0, Ordering::Acquire));
                wanted |= guard.keep(&keeper);
            }
            wanted |= claim.resume(&keeper).is_some_and(|guard| guard.release());
            while wanted {
                let Some(mut guard) = claim.try_claim() else { break };
                guard.with(|done| *done += announced.swap(0, Ordering::Acquire));
                wanted = guard.release();
            }
            thread.join().unwrap();
            assert_eq!(announced.load(Ordering::Relaxed), 0);
            assert_eq!(claim.try_claim().unwrap().with(|done| *done), 1);
        });
    }
}
