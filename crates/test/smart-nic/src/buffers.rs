//! The buffer table: which page of whose memory a number names.
//!
//! A number can be given away and used again while a transfer that named it is on its way. So a transfer
//! keeps the *registration* that it began with, and both are compared when bytes move.

use crate::device::INTERFACES;
use crate::layout::PAGE;

/// Numbers of the table.
const NUMBERS: usize = 2048;

/// Numbers that one VI has at most.
pub(crate) const SHARE: usize = NUMBERS / INTERFACES;

/// Checks that tests can leave out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Omitted {
    /// Whose number it is.
    pub owner: bool,
    /// Whether the number was given to somebody else meanwhile.
    pub registration: bool,
    /// Whether the bytes lie in the page.
    pub bounds: bool,
}

/// A number as a transfer found it.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    number: u32,
    registration: u64,
}

/// Bytes in the memory of a VI's owner.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The VI.
    pub owner: u32,
    /// Bytes from the begin of the owner's memory.
    pub at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    owner: u32,
    page: u64,
    registration: u64,
}

/// The table. Set by the control driver only.
#[derive(Debug)]
pub struct BufferTable {
    entries: Vec<Option<Entry>>,
    registrations: u64,
    pub(crate) omitted: Omitted,
}

impl BufferTable {
    /// Without buffers.
    pub fn new() -> BufferTable {
        BufferTable {
            entries: vec![None; NUMBERS],
            registrations: 0,
            omitted: Omitted::default(),
        }
    }

    /// Gives a page of a VI's memory the lowest free number; `None` if there is none, or the VI has its
    /// share.
    pub fn add(&mut self, owner: u32, page: u64) -> Option<u32> {
        let of_owner = |entry: &&Entry| entry.owner == owner;
        if self.entries.iter().flatten().filter(of_owner).count() >= SHARE {
            return None;
        }
        let free = self.entries.iter().position(Option::is_none)?;
        self.registrations += 1;
        self.entries[free] = Some(Entry {
            owner,
            page,
            registration: self.registrations,
        });
        u32::try_from(free).ok()
    }

    /// Frees a number. False if it is not this VI's.
    pub fn remove(&mut self, owner: u32, number: u32) -> bool {
        let entry = self.entries.get_mut(number as usize);
        let own = entry.filter(|entry| entry.is_some_and(|entry| entry.owner == owner));
        own.and_then(Option::take).is_some()
    }

    /// Frees all numbers of a VI.
    pub fn remove_all(&mut self, owner: u32) {
        let of_owner = |entry: &Option<Entry>| entry.is_some_and(|entry| entry.owner == owner);
        for entry in self.entries.iter_mut().filter(|entry| of_owner(entry)) {
            *entry = None;
        }
    }

    /// A number that a VI names; `None` if it has no such buffer.
    pub fn find(&self, owner: u32, number: u32) -> Option<Buffer> {
        let entry = self.entries.get(number as usize).copied().flatten()?;
        (entry.owner == owner || self.omitted.owner).then_some(Buffer {
            number,
            registration: entry.registration,
        })
    }

    /// Where bytes of a buffer lie, if the number still has the page that it had, and they lie in it.
    pub fn place(&self, owner: u32, buffer: Buffer, offset: u32, len: u32) -> Option<Place> {
        let entry = self.entries.get(buffer.number as usize).copied().flatten()?;
        let is_owner = entry.owner == owner || self.omitted.owner || self.omitted.registration;
        let is_same = entry.registration == buffer.registration || self.omitted.registration;
        let is_inside = offset <= PAGE && len <= PAGE - offset || self.omitted.bounds;
        (is_owner && is_same && is_inside).then(|| Place {
            owner: entry.owner,
            at: entry.page + u64::from(offset),
        })
    }
}
