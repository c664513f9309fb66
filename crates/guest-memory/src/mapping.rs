//! Mapping one region.

use crate::fault::Registration;
use rustix::fd::AsFd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ptr::NonNull;

/// Why a region cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// Size 0, or address and size run over the end of the address space.
    #[error("memory region of {size} bytes at {address:#x} is empty or wraps around")]
    Range {
        /// Guest physical or front-end address.
        address: u64,
        /// Size in bytes.
        size: u64,
    },
    /// The file is shorter than the region.
    #[error("memory region needs {needed} bytes of a file that has {file}")]
    Short {
        /// Offset plus size.
        needed: u64,
        /// File size.
        file: u64,
    },
    /// Two regions overlap.
    #[error("memory regions overlap")]
    Overlap,
    /// More than [`MAX_REGIONS`](crate::MAX_REGIONS).
    #[error("too many memory regions")]
    TooMany,
    /// The system refused.
    #[error("cannot map memory region: {0}")]
    Io(#[from] rustix::io::Errno),
}

/// A mapped region of guest memory.
#[derive(Debug)]
pub struct Region {
    pub(crate) guest_address: u64,
    pub(crate) front_end_address: u64,
    pub(crate) size: u64,
    /// Of the mapping, which begins at a page of the file at or before the region.
    mapping: NonNull<u8>,
    mapping_len: usize,
    /// Of the region's first byte in the mapping.
    lead: usize,
    registration: Registration,
}

// SAFETY: a `Region` is an address range and its unmapping; all accesses to the memory itself are byte copies
// that tolerate concurrent writers, which there are anyhow in another process.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `size` bytes at `offset` of `file`, readable and writable, which the guest knows at
    /// `guest_address` and the VMM at `front_end_address`. Any offset will do, page-aligned or not, and any page size.
    pub fn map(
        guest_address: u64,
        front_end_address: u64,
        size: u64,
        file: impl AsFd,
        offset: u64,
    ) -> Result<Region, MapError> {
        for address in [guest_address, front_end_address, offset] {
            if size == 0 || address.checked_add(size).is_none() {
                return Err(MapError::Range { address, size });
            }
        }
        let stat = rustix::fs::fstat(&file)?;
        let (file_size, needed) = (u64::try_from(stat.st_size).unwrap_or(0), offset + size);
        if needed > file_size {
            return Err(MapError::Short {
                needed,
                file: file_size,
            });
        }
        // On hugetlbfs the block size is the page size, to which mappings must be aligned.
        let page = u64::try_from(stat.st_blksize).unwrap_or(0).max(4096);
        let page = if page.is_power_of_two() && page <= 1 << 30 {
            page
        } else {
            4096
        };
        let start = offset & !(page - 1);
        let len = needed.checked_next_multiple_of(page).ok_or(MapError::Range {
            address: offset,
            size,
        })? - start;
        let mapping_len = usize::try_from(len).map_err(|_| MapError::Range {
            address: offset,
            size,
        })?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let mapping = unsafe {
            mmap(
                std::ptr::null_mut(),
                mapping_len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                start,
            )?
        };
        let mapping = NonNull::new(mapping.cast()).expect("mmap does not return null on success");
        let region = Region {
            guest_address,
            front_end_address,
            size,
            mapping,
            mapping_len,
            lead: (offset - start) as usize,
            registration: Registration::new(mapping.as_ptr() as usize, mapping_len),
        };
        if region.registration.is_valid() {
            Ok(region)
        } else {
            Err(MapError::TooMany)
        }
    }

    /// Our address of a byte of the region; `offset` is at most the size.
    #[inline]
    pub(crate) fn pointer(&self, offset: u64) -> NonNull<u8> {
        debug_assert!(offset <= self.size);
        // SAFETY: lead + offset <= lead + size <= mapping_len, so the result is in, or one past, the mapping.
        unsafe { self.mapping.add(self.lead + offset as usize) }
    }

    pub(crate) fn overlaps(&self, other: &Region) -> bool {
        let meet = |a: u64, b: u64| a < b + other.size && b < a + self.size;
        meet(self.guest_address, other.guest_address) || meet(self.front_end_address, other.front_end_address)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.registration.is_broken()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Before unmapping: an address that is mapped anew by somebody else must not be taken for ours.
        self.registration.clear();
        // SAFETY: the mapping is ours, and the last set of memory that could lead to it has gone.
        let unmapped = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapping_len) };
        debug_assert!(unmapped.is_ok(), "unmapping what was mapped cannot fail");
    }
}
