//! Fixed slots that one thread fills and any thread releases.
//!
//! The owner takes a free slot ([`PoolOwner::take`]), fills it, and turns it into counted read-only
//! references ([`Unique::share`]). Wherever the last reference goes, the slot is pushed on the return list, a
//! linked list that the owner takes as a whole ([`PoolOwner::reclaim`]) to use the slots again.
//!
//! A slot in use keeps the pool's memory alive without a count of its own: when the owner goes, it closes the
//! return list and learns from it how many slots are still out; from then on these count themselves down, and
//! the last one frees the memory. So a unicast packet costs one compare-exchange in its life.

use crate::sync::{AtomicU32, Ordering, UnsafeCell, fence};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// End of the return list.
const END: u32 = u32::MAX;
/// The list's head once the owner has gone.
const ORPHANED: u32 = u32::MAX - 1;

#[repr(C)]
struct Slot<T> {
    value: UnsafeCell<T>,
    references: AtomicU32,
    /// Next slot on the return list.
    next: AtomicU32,
    index: u32,
    /// Owns the pool's memory, as that of the [`PoolOwner`] does.
    pool: NonNull<Pool<T>>,
}

struct Pool<T> {
    slots: Box<[Slot<T>]>,
    /// Head of the return list, [`END`] or [`ORPHANED`].
    returned: AtomicU32,
    /// Meaningful once orphaned: slots that are out, less those that came back before the owner counted.
    /// Wraps below zero in between.
    out: AtomicU32,
}

/// The filling side of a pool.
pub struct PoolOwner<T> {
    pool: NonNull<Pool<T>>,
    free: Vec<NonNull<Slot<T>>>,
    /// Slots just reclaimed, newest first.
    reclaimed: Vec<u32>,
}

/// A slot being filled. Dropping it returns the slot.
pub struct Unique<T>(NonNull<Slot<T>>);

/// A counted reference to a filled slot.
pub struct Shared<T>(NonNull<Slot<T>>);

// SAFETY: handles lead to slots whose values move and are shared between threads as `T` allows; the counts
// and lists around them are atomic.
unsafe impl<T: Send + Sync> Send for PoolOwner<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Unique<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: a `Shared` gives out only `&T`.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> PoolOwner<T> {
    /// A pool of `slots` values made by `make`; they are reused, never dropped before the pool is.
    pub fn new(slots: u32, make: impl Fn() -> T) -> Self {
        assert!(slots < ORPHANED, "slot numbers collide with list marks");
        let pool = Box::new(Pool {
            slots: (0..slots)
                .map(|index| Slot {
                    references: AtomicU32::new(0),
                    next: AtomicU32::new(END),
                    index,
                    pool: NonNull::dangling(),
                    value: UnsafeCell::new(make()),
                })
                .collect(),
            returned: AtomicU32::new(END),
            out: AtomicU32::new(0),
        });
        // The pointer that owns the memory; it is freed through a copy of this one.
        let mut pool = NonNull::from(Box::leak(pool));
        // SAFETY: just made, and no other thread knows it.
        for slot in unsafe { &mut pool.as_mut().slots } {
            slot.pool = pool;
        }
        // SAFETY: as above; from here on there are shared references only.
        let slots_of = unsafe { &pool.as_ref().slots };
        PoolOwner {
            pool,
            free: slots_of.iter().rev().map(NonNull::from).collect(),
            reclaimed: Vec::with_capacity(slots as usize),
        }
    }

    fn pool(&self) -> &Pool<T> {
        // SAFETY: the pool is freed only after the owner is dropped (`free_if_last`, `Drop`).
        unsafe { self.pool.as_ref() }
    }

    /// A free slot, most recently used first; `None` when all are under way.
    #[inline]
    pub fn take(&mut self) -> Option<Unique<T>> {
        self.free.pop().map(Unique)
    }

    /// Number of slots that are out, or back and not yet reclaimed.
    pub fn outstanding(&self) -> usize {
        self.pool().slots.len() - self.free.len()
    }

    /// Takes a slot back that no other thread has seen: no atomic operation is needed. A slot of another pool
    /// is returned to it.
    #[inline(always)]
    pub fn put_back(&mut self, slot: Unique<T>) {
        // Recognised by its address, as free slots need not be in the cache.
        if self
            .pool()
            .slots
            .as_ptr_range()
            .contains(&slot.0.as_ptr().cast_const())
        {
            self.free.push(slot.0);
            std::mem::forget(slot);
        }
    }

    /// Number of free slots.
    #[inline]
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Whether more than `reserve` slots are free.
    #[inline]
    pub fn has_above(&self, reserve: usize) -> bool {
        self.free.len() > reserve
    }

    /// Whether slots are waiting to be reclaimed.
    #[inline]
    pub fn has_returned(&self) -> bool {
        self.pool().returned.load(Ordering::Relaxed) != END
    }

    /// Makes all returned slots free again, after showing each value to `f`, oldest return first. Returns
    /// their number.
    pub fn reclaim(&mut self, mut f: impl FnMut(&mut T)) -> usize {
        if !self.has_returned() {
            return 0;
        }
        // SAFETY: as in `pool`; taken from the pointer so that `reclaimed` can be borrowed beside it.
        let pool = unsafe { self.pool.as_ref() };
        let mut next = pool.returned.swap(END, Ordering::Acquire);
        while next != END {
            self.reclaimed.push(next);
            next = pool.slots[next as usize].next.load(Ordering::Relaxed);
        }
        let count = self.reclaimed.len();
        while let Some(index) = self.reclaimed.pop() {
            let slot = &pool.slots[index as usize];
            // SAFETY: a slot is on the list only after its last reference has gone, and was taken off by the
            // swap above; so no other thread can reach its value. The swap's acquire pairs with the release
            // of the thread that dropped that reference.
            slot.value.with_mut(|value| f(unsafe { &mut *value }));
            self.free.push(NonNull::from(slot));
        }
        count
    }
}

impl<T> Drop for PoolOwner<T> {
    fn drop(&mut self) {
        let pool = self.pool();
        let mut next = pool.returned.swap(ORPHANED, Ordering::AcqRel);
        let mut back = self.free.len();
        while next != END {
            back += 1;
            next = pool.slots[next as usize].next.load(Ordering::Relaxed);
        }
        let out = (pool.slots.len() - back) as u32;
        let before = pool.out.fetch_add(out, Ordering::AcqRel);
        free_if_last(self.pool, before.wrapping_add(out));
    }
}

/// Puts a slot whose last reference has gone on its pool's return list, or counts it down if the owner has
/// gone and that list is not read any more.
fn release<T>(slot: NonNull<Slot<T>>) {
    // SAFETY: a slot that is out keeps its pool alive; it stops being out by the exchange or subtraction
    // below, after which only the thread that frees the pool touches anything.
    let (slot, pool) = unsafe { (slot.as_ref(), slot.as_ref().pool) };
    // SAFETY: as above.
    let Pool { returned, out, .. } = unsafe { pool.as_ref() };
    let mut head = returned.load(Ordering::Relaxed);
    while head != ORPHANED {
        slot.next.store(head, Ordering::Relaxed);
        match returned.compare_exchange_weak(head, slot.index, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
    let before = out.fetch_sub(1, Ordering::AcqRel);
    free_if_last(pool, before.wrapping_sub(1));
}

/// Frees an orphaned pool when nothing of it is out. `out` is the count after the caller's own change: it is
/// zero only after the last of these changes, since before the owner adds the number of slots out, returning
/// ones can only take it from zero downwards.
fn free_if_last<T>(pool: NonNull<Pool<T>>, out: u32) {
    if out == 0 {
        // SAFETY: the owner has gone and all slots are back: no handle is left, and exactly one change
        // arrives at zero. The pointer is that of `Box::leak`, which may write and owns the memory.
        drop(unsafe { Box::from_raw(pool.as_ptr()) });
    }
}

impl<T> Unique<T> {
    /// The filled slot, with one reference.
    #[inline]
    pub fn share(self) -> Shared<T> {
        let slot = self.0;
        std::mem::forget(self);
        // SAFETY: the slot is taken, hence its pool is alive.
        unsafe { slot.as_ref() }.references.store(1, Ordering::Relaxed);
        Shared(slot)
    }
}

impl<T> Deref for Unique<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: as in `deref_mut`.
        unsafe { self.0.as_ref() }.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for Unique<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: a taken slot is reachable only through its one `Unique` until that is shared, and keeps its
        // pool alive.
        unsafe { self.0.as_ref() }
            .value
            .with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for Unique<T> {
    fn drop(&mut self) {
        release(self.0);
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a counted reference keeps the slot taken, hence the pool alive, and no thread writes a
        // shared slot.
        unsafe { self.0.as_ref() }.value.with(|value| unsafe { &*value })
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        // SAFETY: as in `deref`. The count cannot overflow: a packet has at most one reference per port, of
        // which there are fewer than 2^32.
        unsafe { self.0.as_ref() }
            .references
            .fetch_add(1, Ordering::Relaxed);
        Shared(self.0)
    }
}

impl<T> Drop for Shared<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as in `deref`.
        let references = unsafe { &self.0.as_ref().references };
        // The only reference needs no read-modify-write: no other thread can add one to it meanwhile.
        if references.load(Ordering::Acquire) == 1 {
            release(self.0);
        } else if references.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            release(self.0);
        }
    }
}

impl<T> fmt::Debug for PoolOwner<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PoolOwner({} of {} free)",
            self.free.len(),
            self.pool().slots.len()
        )
    }
}

impl<T: fmt::Debug> fmt::Debug for Unique<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};

    struct Counted(Arc<Count>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn slots_are_counted_where_they_are() {
        let mut owner = PoolOwner::new(3, || 0);
        let counts = |owner: &PoolOwner<i32>| (owner.available(), owner.outstanding(), owner.has_returned());
        assert_eq!(counts(&owner), (3, 0, false));
        assert!(owner.has_above(2) && !owner.has_above(3) && !owner.has_above(4));
        let [one, other] = [owner.take().unwrap(), owner.take().unwrap()];
        assert_eq!(counts(&owner), (1, 2, false));
        drop(one.share());
        assert_eq!(counts(&owner), (1, 2, true), "back and not yet reclaimed");
        assert_eq!(owner.reclaim(|_| {}), 1);
        assert_eq!(counts(&owner), (2, 1, false));
        owner.put_back(other);
        assert_eq!(counts(&owner), (3, 0, false));
        assert_eq!(format!("{owner:?}"), "PoolOwner(3 of 3 free)");
    }

    #[test]
    fn a_slot_put_back_elsewhere_goes_home() {
        let (mut home, mut other) = (PoolOwner::new(1, || 7), PoolOwner::new(1, || 8));
        let slot = home.take().unwrap();
        assert_eq!(format!("{slot:?}"), "7");
        other.put_back(slot);
        assert_eq!((other.available(), home.has_returned()), (1, true));
        assert_eq!(home.reclaim(|value| assert_eq!(*value, 7)), 1);
        assert_eq!(format!("{:?}", home.take().unwrap().share()), "7");
    }

    #[test]
    fn slots_come_back_in_order_and_only_after_the_last_reference() {
        let mut pool = PoolOwner::new(4, || 0u32);
        let handles: Vec<_> = (1..=4)
            .map(|value| {
                let mut slot = pool.take().unwrap();
                *slot = value;
                slot.share()
            })
            .collect();
        assert!(pool.take().is_none());
        let copy = handles[1].clone();
        drop(handles);
        let mut seen = Vec::new();
        assert_eq!(pool.reclaim(|value| seen.push(*value)), 3);
        assert_eq!((*copy, pool.outstanding()), (2, 1));
        drop(copy);
        assert_eq!(pool.reclaim(|value| seen.push(*value)), 1);
        assert_eq!(seen, [1, 3, 4, 2]);
    }

    #[test]
    fn memory_lives_as_long_as_owner_or_any_slot() {
        let drops = Arc::new(Count::new(0));
        let pool = || PoolOwner::new(3, || Counted(drops.clone()));
        drop(pool());
        assert_eq!(drops.swap(0, Relaxed), 3);

        let mut owner = pool();
        let early = owner.take().unwrap().share();
        let late = owner.take().unwrap();
        drop(early);
        drop(owner);
        assert_eq!(drops.load(Relaxed), 0);
        drop(late);
        assert_eq!(drops.load(Relaxed), 3);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn owner_and_references_go_in_any_order() {
        loom::model(|| {
            let mut owner = PoolOwner::new(2, || loom::sync::Arc::new(()));
            let first = owner.take().unwrap().share();
            let second = owner.take().unwrap().share();
            let copy = first.clone();
            let threads = [
                loom::thread::spawn(move || drop((first, second))),
                loom::thread::spawn(move || drop(copy)),
            ];
            owner.reclaim(|_| ());
            drop(owner);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            // A pool that is not freed leaks loom's Arcs, which loom reports.
        });
    }

    #[test]
    fn a_reclaimed_slot_can_be_filled_again() {
        loom::model(|| {
            let mut owner = PoolOwner::new(1, || 0usize);
            let mut slot = owner.take().unwrap();
            *slot = 1;
            let shared = slot.share();
            let copy = shared.clone();
            let thread = loom::thread::spawn(move || assert_eq!(*copy, 1));
            drop(shared);
            if owner.reclaim(|value| assert_eq!(*value, 1)) == 1 {
                *owner.take().unwrap() = 2;
            }
            thread.join().unwrap();
        });
    }
}
