//! Guest memory as the data plane sees it. Unsafe code lives here.
//!
//! A [`GuestMemory`] is an immutable set of mapped regions. Changing a guest's memory makes a new set that
//! shares the mappings that stayed. A mapping ends with the last set that has it, so a packet that is still
//! queued keeps the memory it lies in. Everything outside names memory by [`GuestRange`] - region, offset,
//! length, never a pointer - and every access checks the range against the set it is used with. Guests write
//! their memory whenever they like; accesses here are plain byte copies of which each byte is some value the
//! guest had there, and callers never read a byte twice to decide.
//!
//! A VMM can shorten the file behind a mapping. Touching a page that is gone raises SIGBUS;
//! [`survive_truncation`] installs a handler that replaces the whole mapping by anonymous zero pages,
//! remembers that it did ([`GuestMemory::is_broken`]), and lets the access go on. So the worst a VMM can do
//! this way is to break its own port. How much may be mapped is bounded (`budget.rs`), and a thread of its
//! own unmaps (`unmap.rs`).
//!
//! A VMM can still punch holes. The next thread that touches such a page gets a zeroed one from the kernel,
//! which takes 7 us for 4 KiB (Linux 6.18) and grows with the size of huge pages: a page of 2 MiB costs as
//! much as copying it, one of 1 GiB holds a forwarding thread for a tenth of a second or more. No seal
//! forbids it as long as the guest may write, and pages that a guest has never touched are as good as holes,
//! so they cannot be refused. A turn's time bounds it for pages up to 2 MiB; guests with larger pages are
//! trusted so far. The kernel charges pages to the process that touched them first, so the data plane must
//! not be given a memory limit that guests can fill.

mod budget;
mod copy;
mod fault;
mod mapping;
mod messages;
mod unmap;

pub use budget::{Account, Bound};
pub use copy::copy;
pub use cpu::{Access, prefetch};
pub use fault::{fault_count, survive_truncation};
pub use mapping::{MapError, Region};
pub use messages::Messages;
pub use unmap::unmap_apart;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most regions a guest may have; VMMs use up to 8 with one message and up to this with memory slots.
pub const MAX_REGIONS: usize = 64;

/// A guest's memory at one time. Cheap to change by copying: regions are shared.
#[derive(Debug, Default)]
pub struct GuestMemory {
    regions: Vec<Mapped>,
    /// The [`fault_count`] at which all regions were last found whole.
    whole_at: AtomicUsize,
}

/// A region, with the values that translation needs in one place.
#[derive(Clone, Debug)]
struct Mapped {
    guest_address: u64,
    size: u64,
    /// Our address of the region's first byte.
    base: NonNull<u8>,
    region: Arc<Region>,
}

// SAFETY: `base` leads into the mapping that `region`, which is `Send`, keeps.
unsafe impl Send for Mapped {}
// SAFETY: as above; `Region` is `Sync`.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(region: Region) -> Mapped {
        Mapped {
            guest_address: region.guest_address,
            size: region.size,
            base: region.pointer(0),
            region: Arc::new(region),
        }
    }

    /// Our address of a byte of the region; `offset` is at most the size.
    #[inline]
    fn pointer(&self, offset: u64) -> NonNull<u8> {
        debug_assert!(offset <= self.size);
        // SAFETY: the region is mapped from `base` on for `size` bytes, so the result is in, or one past, it.
        unsafe { self.base.add(offset as usize) }
    }
}

/// Bytes in one region of a guest's memory. Only meaningful with the [`GuestMemory`] it was made by; with any
/// other one it names other bytes of that one, or none, but never memory outside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestRange {
    region: u32,
    len: u32,
    offset: u64,
}

impl GuestRange {
    /// Length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// The first `at` bytes (at most all) and the remaining ones.
    #[inline]
    pub fn split_at(self, at: u32) -> (GuestRange, GuestRange) {
        let at = at.min(self.len);
        (
            GuestRange { len: at, ..self },
            GuestRange {
                offset: self.offset + u64::from(at),
                len: self.len - at,
                ..self
            },
        )
    }

    /// The two as one, if `next` begins where this ends and the sum fits.
    #[inline]
    pub fn join(self, next: GuestRange) -> Option<GuestRange> {
        let adjacent = self.region == next.region && self.offset + u64::from(self.len) == next.offset;
        let len = self.len.checked_add(next.len)?;
        adjacent.then_some(GuestRange { len, ..self })
    }
}

impl GuestMemory {
    /// No memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// A copy with one region more. Errors when it overlaps another one, in guest physical or front-end
    /// addresses, or there are [`MAX_REGIONS`] already.
    pub fn with(&self, region: Region) -> Result<GuestMemory, MapError> {
        if self.regions.len() >= MAX_REGIONS {
            return Err(MapError::TooMany);
        }
        if self.regions.iter().any(|other| other.region.overlaps(&region)) {
            return Err(MapError::Overlap);
        }
        let mut regions = self.regions.clone();
        regions.push(Mapped::new(region));
        Ok(GuestMemory::of(regions))
    }

    /// A copy without the region that has exactly this place and size; `None` if there is none.
    pub fn without(&self, guest_address: u64, front_end_address: u64, size: u64) -> Option<GuestMemory> {
        let position = self.regions.iter().position(|mapped| {
            let region = &mapped.region;
            region.guest_address == guest_address
                && region.front_end_address == front_end_address
                && region.size == size
        })?;
        let mut regions = self.regions.clone();
        regions.remove(position);
        Some(GuestMemory::of(regions))
    }

    /// Number of regions.
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    fn of(regions: Vec<Mapped>) -> Self {
        GuestMemory {
            regions,
            whole_at: AtomicUsize::new(0),
        }
    }

    /// Whether memory of this set vanished under us and was replaced by zeros. The regions are checked once
    /// for each mapping that any guest of the process loses, and otherwise this is a comparison.
    #[inline]
    pub fn is_broken(&self) -> bool {
        let faults = fault_count();
        faults != self.whole_at.load(Ordering::Relaxed) && self.has_broken(faults)
    }

    #[cold]
    fn has_broken(&self, faults: usize) -> bool {
        let broken = self.regions.iter().any(|mapped| mapped.region.is_broken());
        if !broken {
            self.whole_at.store(faults, Ordering::Relaxed);
        }
        broken
    }

    /// The part of `len` bytes at a guest physical address that lies in one region: all of it, or the
    /// beginning if the region ends before. `None` if the address is not in any region, or `len` is 0.
    #[inline]
    pub fn range(&self, guest_address: u64, len: u32) -> Option<GuestRange> {
        self.range_ahead(guest_address, len, 0, Access::Read)
    }

    /// As [`range`](Self::range), and prefetches its first `ahead` bytes.
    #[inline]
    pub fn range_ahead(
        &self,
        guest_address: u64,
        len: u32,
        ahead: u32,
        access: Access,
    ) -> Option<GuestRange> {
        for (index, region) in self.regions.iter().enumerate() {
            let offset = guest_address.wrapping_sub(region.guest_address);
            if offset < region.size && len != 0 {
                let len = u64::from(len).min(region.size - offset) as u32;
                copy::prefetch_bytes(region.pointer(offset), 0, len.min(ahead), access);
                return Some(GuestRange {
                    region: index as u32,
                    len,
                    offset,
                });
            }
        }
        None
    }

    /// Where `len` bytes at a front-end (VMM user space) address lie in our address space, for rings. The
    /// address must be a multiple of `align`, and the bytes lie in one region. Valid as long as this set or a
    /// set made from it with that region lives.
    pub fn host_address(&self, front_end_address: u64, len: u64, align: u64) -> Option<NonNull<u8>> {
        self.regions.iter().find_map(|region| {
            let offset = front_end_address.wrapping_sub(region.region.front_end_address);
            let fits = offset < region.size && len <= region.size - offset;
            let address = fits.then(|| region.pointer(offset))?;
            ((address.as_ptr() as u64).is_multiple_of(align)).then_some(address)
        })
    }

    /// The range's address, if it lies in this set.
    #[inline]
    fn pointer(&self, range: GuestRange) -> Option<NonNull<u8>> {
        let region = self.regions.get(range.region as usize)?;
        let behind = region.size.checked_sub(range.offset)?;
        (u64::from(range.len) <= behind).then(|| region.pointer(range.offset))
    }
}

#[cfg(test)]
mod tests;
