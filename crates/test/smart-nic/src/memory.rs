//! Memory that device and driver share: a file without a name, which each of them maps.

use crate::layout::PAGE;
use guest_memory::{GuestMemory, Region};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use std::io;

/// Makes memory of that many pages, full of zeros, which keeps its size.
///
/// # Errors
///
/// The system has none.
pub fn make(pages: u32) -> io::Result<OwnedFd> {
    let file = memfd_create("smart-nic", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, u64::from(pages) * u64::from(PAGE))?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Mapped memory. Others may write to it at any time.
#[derive(Debug)]
pub struct Memory {
    mapped: GuestMemory,
    pages: u32,
}

impl Memory {
    /// Maps all of a file.
    ///
    /// # Errors
    ///
    /// The file is no memory of whole pages.
    pub fn map(file: impl AsFd) -> io::Result<Memory> {
        let size = u64::try_from(fstat(&file)?.st_size).map_err(io::Error::other)?;
        let pages = u32::try_from(size / u64::from(PAGE)).map_err(io::Error::other)?;
        if pages == 0 || !size.is_multiple_of(u64::from(PAGE)) {
            return Err(io::Error::other("memory has whole pages"));
        }
        let region = Region::map(0, 0, size, &file, 0).map_err(io::Error::other)?;
        let mapped = GuestMemory::new().with(region).map_err(io::Error::other)?;
        Ok(Memory { mapped, pages })
    }

    /// Number of pages.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Copies bytes out of the memory. False if they do not lie in it.
    #[must_use]
    pub fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let Ok(len) = u32::try_from(to.len()) else {
            return false;
        };
        let range = self.mapped.range(at, len).filter(|range| range.len() == len);
        len == 0 || range.is_some_and(|range| self.mapped.read(range, to) == to.len())
    }

    /// Copies bytes into the memory. False, and nothing is changed, if they do not fit.
    #[must_use]
    pub fn write(&self, at: u64, from: &[u8]) -> bool {
        let Ok(len) = u32::try_from(from.len()) else {
            return false;
        };
        let range = self.mapped.range(at, len).filter(|range| range.len() == len);
        len == 0 || range.is_some_and(|range| self.mapped.write(range, from) == from.len())
    }

    /// The word at a place; 0 outside the memory.
    pub fn word(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        if self.read(at, &mut bytes) {
            u32::from_le_bytes(bytes)
        } else {
            0
        }
    }
}
