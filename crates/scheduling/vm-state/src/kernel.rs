//! The map with the states of cores, mapped.

use crate::area::Area;
use rustix::fd::BorrowedFd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

/// The kernel's description of itself, readable by all users.
pub(crate) const BTF: &str = "/sys/kernel/btf/vmlinux";

/// Name of map and programs for users of `bpftool`.
pub(crate) const NAME: &str = "hs_vm_state";

/// The mapped area. It stays readable when all other processes have closed the map.
pub(crate) struct Mapping {
    area: NonNull<Area>,
}

// SAFETY: the area consists of atomics, and the mapping is changed only by `drop`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the area of a map that has one; any other descriptor is refused. Without `writable`,
    /// writing to it ends the process.
    pub fn new(map: BorrowedFd<'_>, writable: bool) -> io::Result<Mapping> {
        let write = if writable {
            ProtFlags::WRITE
        } else {
            ProtFlags::empty()
        };
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                size_of::<Area>(),
                ProtFlags::READ | write,
                MapFlags::SHARED,
                map,
                0,
            )
        }?;
        let area = NonNull::new(address.cast()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Mapping { area })
    }
}

impl std::ops::Deref for Mapping {
    type Target = Area;

    fn deref(&self) -> &Area {
        // SAFETY: the mapping is as long as an `Area`, page-aligned, lives as long as `self`, and cannot
        // shrink, as BPF maps cannot. Any bytes are an `Area`, which consists of integers that are read and
        // written atomically, by the programs as well (aligned stores). Readers use plain loads, which
        // read-only pages allow.
        unsafe { self.area.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no reference outlives `self`. It fails only for other
        // addresses.
        let _ = unsafe { munmap(self.area.as_ptr().cast::<c_void>(), size_of::<Area>()) };
    }
}
