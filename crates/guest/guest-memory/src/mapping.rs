//! Mapping one region.

use crate::budget::{Account, Bound, Charge};
use crate::fault::Registration;
use crate::unmap;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::Stat;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// How long to wait between two looks whether memory that a port at its bound has given up is unmapped.
const PAUSE: Duration = Duration::from_millis(10);

/// How often to look.
const LOOKS: u32 = 100;

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
    /// The file does not live in memory.
    #[error("memory must be a memory file (memfd, tmpfs or hugetlbfs)")]
    Kind,
    /// A bound of the budget is reached.
    #[error("cannot map memory region of {bytes} bytes: {bound}")]
    Budget {
        /// With whole pages.
        bytes: u64,
        /// The bound that it would exceed.
        bound: Bound,
    },
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
    /// Of the region's first byte in the mapping.
    lead: usize,
    /// How long mapping took.
    took: Duration,
    mapping: ManuallyDrop<Mapping>,
}

/// Pages of a file, mapped until this is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    registration: Registration,
    /// Given back after unmapping.
    _charge: Option<Charge>,
}

// SAFETY: a `Mapping` is an address range and its unmapping, which any thread may do.
unsafe impl Send for Mapping {}
// SAFETY: a `Region` is an address range and its unmapping; all accesses to the memory itself are byte copies
// that tolerate concurrent writers, which there are anyhow in another process.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `size` bytes at `offset` of `file`, readable and writable, which the guest knows at
    /// `guest_address` and the VMM at `front_end_address`. Any offset will do, page-aligned or not, and any
    /// page size. The file must be one that lives in memory: other files may make a thread that touches their
    /// pages wait, even for ever. (Swapped pages are read by our own system.)
    pub fn map(
        guest_address: u64,
        front_end_address: u64,
        size: u64,
        file: impl AsFd,
        offset: u64,
    ) -> Result<Region, MapError> {
        Span {
            guest_address,
            front_end_address,
            size,
            offset,
        }
        .map(file.as_fd(), None)
    }

    /// Our address of a byte of the region; `offset` is at most the size.
    #[inline]
    pub(crate) fn pointer(&self, offset: u64) -> NonNull<u8> {
        debug_assert!(offset <= self.size);
        // SAFETY: lead + offset <= lead + size <= the length, so the result is in, or one past, the mapping.
        unsafe { self.mapping.start.add(self.lead + offset as usize) }
    }

    /// How long the kernel took to map it. Meanwhile nothing else could be mapped in this process.
    pub fn took(&self) -> Duration {
        self.took
    }

    pub(crate) fn overlaps(&self, other: &Region) -> bool {
        let meet = |a: u64, b: u64| a < b + other.size && b < a + self.size;
        meet(self.guest_address, other.guest_address) || meet(self.front_end_address, other.front_end_address)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.mapping.registration.is_broken()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used afterwards.
        unmap::hand_over(unsafe { ManuallyDrop::take(&mut self.mapping) });
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before unmapping: an address that is mapped anew for another purpose must not be taken for ours.
        self.registration.clear();
        // SAFETY: the mapping is ours, and the last set of memory that could lead to it has gone.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping what was mapped cannot fail");
    }
}

impl Account {
    /// As [`Region::map`], counted for a port, whose bounds it must keep within.
    ///
    /// A port that has just given up memory may have to wait, about a second at most, until that is unmapped.
    pub fn map(
        &self,
        guest_address: u64,
        front_end_address: u64,
        size: u64,
        file: impl AsFd,
        offset: u64,
    ) -> Result<Region, MapError> {
        Span {
            guest_address,
            front_end_address,
            size,
            offset,
        }
        .map(file.as_fd(), Some(self))
    }

    fn charge_soon(&self, bytes: u64) -> Result<Charge, MapError> {
        let mut result = self.charge(bytes);
        for _ in 0..LOOKS {
            if !(result.as_ref().is_err_and(|bound| bound.is_own()) && unmap::is_waiting()) {
                break;
            }
            std::thread::sleep(PAUSE);
            result = self.charge(bytes);
        }
        result.map_err(|bound| MapError::Budget { bytes, bound })
    }
}

/// A region to be mapped, as the VMM describes it.
struct Span {
    guest_address: u64,
    front_end_address: u64,
    size: u64,
    /// In the file.
    offset: u64,
}

impl Span {
    fn map(self, file: BorrowedFd<'_>, account: Option<&Account>) -> Result<Region, MapError> {
        let (start, len) = self.pages(&memory_file(file)?)?;
        let charge = account
            .map(|account| account.charge_soon(len as u64))
            .transpose()?;
        let begun = Instant::now();
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let mapped = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                start,
            )?
        };
        let address = NonNull::new(mapped.cast()).expect("mmap does not return null on success");
        let region = Region {
            guest_address: self.guest_address,
            front_end_address: self.front_end_address,
            size: self.size,
            lead: (self.offset - start) as usize,
            took: begun.elapsed(),
            mapping: ManuallyDrop::new(Mapping {
                start: address,
                len,
                registration: Registration::new(mapped as usize, len),
                _charge: charge,
            }),
        };
        if region.mapping.registration.is_valid() {
            Ok(region)
        } else {
            Err(MapError::TooMany)
        }
    }

    /// The pages of the file in which it lies: offset and length in bytes.
    fn pages(&self, file: &Stat) -> Result<(u64, usize), MapError> {
        let &Span { size, offset, .. } = self;
        for address in [self.guest_address, self.front_end_address, offset] {
            if size == 0 || address.checked_add(size).is_none() {
                return Err(MapError::Range { address, size });
            }
        }
        let (file_size, needed) = (u64::try_from(file.st_size).unwrap_or(0), offset + size);
        if needed > file_size {
            return Err(MapError::Short {
                needed,
                file: file_size,
            });
        }
        // On hugetlbfs the block size is the page size, to which mappings must be aligned.
        let page = u64::try_from(file.st_blksize).unwrap_or(0).max(4096);
        let page = if page.is_power_of_two() && page <= 1 << 30 {
            page
        } else {
            4096
        };
        let start = offset & !(page - 1);
        let range = MapError::Range {
            address: offset,
            size,
        };
        let len = needed.checked_next_multiple_of(page).map(|end| end - start);
        match len.map(usize::try_from) {
            Some(Ok(len)) => Ok((start, len)),
            _ => Err(range),
        }
    }
}

/// The kernel's description of a file, if that lives in memory. No other file is asked: only the kernel's own
/// memory files have seals, and the kernel recognises them by their kind (fcntl(2), F_GET_SEALS).
fn memory_file(file: BorrowedFd<'_>) -> Result<Stat, MapError> {
    rustix::fs::fcntl_get_seals(file).map_err(|_| MapError::Kind)?;
    Ok(rustix::fs::fstat(file)?)
}
