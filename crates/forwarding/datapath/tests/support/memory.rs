//! A guest's memory: a memfd, mapped here as a VMM does it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// Where the region lies in its file: not at the beginning, as with User Mode Linux.
pub const FILE_OFFSET: u64 = 0x3000;
/// Where the guest sees it.
pub const GUEST_BASE: u64 = 0x1_0000_0000;
/// Where the VMM sees it.
pub const USER_BASE: u64 = 0x7f12_3456_0000;

#[derive(Debug)]
pub struct Memory {
    pub file: File,
    pub len: usize,
    map: MmapRegion,
}

pub fn memfd(len: u64) -> File {
    let fd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    fd.into()
}

impl Memory {
    pub fn new(len: usize) -> Memory {
        Memory::of(memfd(FILE_OFFSET + len as u64))
    }

    /// The memory that another one has in this file.
    pub fn of(file: File) -> Memory {
        let len = (file.metadata().unwrap().len() - FILE_OFFSET) as usize;
        let map =
            MmapRegion::from_file(FileOffset::new(file.try_clone().unwrap(), FILE_OFFSET), len).unwrap();
        Memory { file, len, map }
    }

    /// The number of its file in this process.
    pub fn number(&self) -> i32 {
        self.file.as_raw_fd()
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.map.as_volatile_slice().write_slice(bytes, at).unwrap();
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.as_volatile_slice().read_slice(&mut bytes, at).unwrap();
        bytes
    }

    pub fn store16(&self, at: usize, value: u16) {
        let slice = self.map.as_volatile_slice();
        slice.store(value.to_le(), at, Ordering::SeqCst).unwrap();
    }

    pub fn load16(&self, at: usize) -> u16 {
        let slice = self.map.as_volatile_slice();
        u16::from_le(slice.load(at, Ordering::SeqCst).unwrap())
    }

    pub fn load32(&self, at: usize) -> u32 {
        let slice = self.map.as_volatile_slice();
        u32::from_le(slice.load(at, Ordering::SeqCst).unwrap())
    }

    pub fn guest(at: usize) -> u64 {
        GUEST_BASE + at as u64
    }

    pub fn user(at: usize) -> u64 {
        USER_BASE + at as u64
    }
}
