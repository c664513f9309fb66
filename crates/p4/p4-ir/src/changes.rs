//! Changes of entries: what differs between two versions of a program, and no more.
//!
//! Batches stand behind the serialised program that they are about ([`crate::setup`]), one behind the other,
//! and are made in it when it is read. So a version with another batch is the bytes of the one before and
//! those of the batch, and who has the version before needs the batch alone.
//!
//! Entries have an order: a new one is the last, and the last one takes the position of one that is removed.

use crate::ids::TableId;
use crate::limits;
use crate::program::Program;
use crate::serial::DecodeError;
use crate::table::{Entry, KeyMatch, Table};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The first bytes of a batch; then come its length and its changes.
const MARK: [u8; 4] = *b"P4CH";

/// Most changes of a batch.
pub const MOST: usize = limits::CONSTANT_ENTRIES;

/// A change of a table's entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryChange {
    /// Adds an entry behind all others.
    Insert(TableId, Entry),
    /// Puts an entry in the place of the one with its keys and priority.
    Modify(TableId, Entry),
    /// Removes an entry, whose position the last one takes.
    Remove(TableId, EntryKey),
}

impl EntryChange {
    /// The table.
    #[must_use]
    pub fn table(&self) -> TableId {
        match self {
            EntryChange::Insert(table, _) | EntryChange::Modify(table, _) | EntryChange::Remove(table, _) => {
                *table
            }
        }
    }
}

/// What an entry matches.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EntryKey {
    /// One per key.
    pub keys: Vec<KeyMatch>,
    /// Of several entries that match, the one with the greatest wins.
    pub priority: u32,
}

impl EntryKey {
    /// What an entry matches.
    #[must_use]
    pub fn of(entry: &Entry) -> EntryKey {
        EntryKey {
            keys: entry.keys.clone(),
            priority: entry.priority,
        }
    }
}

/// Serialises a batch.
#[must_use]
pub fn encode(changes: &[EntryChange]) -> Vec<u8> {
    // Serialising these types into a vector cannot fail, and no length reaches 4 GiB.
    let body = postcard::to_allocvec(changes).expect("changes are serialised into memory");
    let mut bytes = MARK.to_vec();
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// Reads a batch. Its changes are checked when they are made.
///
/// # Errors
/// The bytes are no batch, too long, or damaged.
pub fn decode(bytes: &[u8]) -> Result<Vec<EntryChange>, DecodeError> {
    if bytes.len() > limits::SERIALISED {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    match take(bytes)? {
        (changes, []) => Ok(changes),
        _ => Err(DecodeError::Damaged),
    }
}

/// Reads the first of several batches; also returns the bytes behind it.
fn take(bytes: &[u8]) -> Result<(Vec<EntryChange>, &[u8]), DecodeError> {
    let body = bytes.strip_prefix(&MARK).ok_or(DecodeError::Damaged)?;
    let (len, body) = body.split_first_chunk().ok_or(DecodeError::Damaged)?;
    let (body, rest) = body
        .split_at_checked(u32::from_be_bytes(*len) as usize)
        .ok_or(DecodeError::Damaged)?;
    let (changes, left) =
        postcard::take_from_bytes::<Vec<EntryChange>>(body).map_err(|_| DecodeError::Damaged)?;
    if !left.is_empty() || changes.len() > MOST {
        return Err(DecodeError::Damaged);
    }
    Ok((changes, rest))
}

/// Makes all batches that stand behind a program.
pub(crate) fn make_all(program: &mut Program, mut bytes: &[u8]) -> Result<(), DecodeError> {
    let mut positions = HashMap::new();
    while !bytes.is_empty() {
        let (changes, rest) = take(bytes)?;
        for change in changes {
            make(program, change, &mut positions)?;
        }
        bytes = rest;
    }
    Ok(())
}

/// Positions of a table's entries.
type Positions = HashMap<EntryKey, usize>;

fn make(
    program: &mut Program,
    change: EntryChange,
    all: &mut HashMap<usize, Positions>,
) -> Result<(), DecodeError> {
    let number = change.table().index();
    let table = program.tables.get_mut(number).ok_or(DecodeError::Damaged)?;
    let positions = all.entry(number).or_insert_with(|| positions(table));
    match change {
        EntryChange::Insert(_, entry) => {
            if positions
                .insert(EntryKey::of(&entry), table.entries.len())
                .is_some()
            {
                return Err(DecodeError::Damaged);
            }
            table.entries.push(entry);
        }
        EntryChange::Modify(_, entry) => {
            let at = positions.get(&EntryKey::of(&entry)).ok_or(DecodeError::Damaged)?;
            table.entries[*at] = entry;
        }
        EntryChange::Remove(_, key) => {
            let at = positions.remove(&key).ok_or(DecodeError::Damaged)?;
            table.entries.swap_remove(at);
            if let Some(moved) = table.entries.get(at) {
                positions.insert(EntryKey::of(moved), at);
            }
        }
    }
    Ok(())
}

fn positions(table: &Table) -> Positions {
    let entries = table.entries.iter().enumerate();
    entries.map(|(at, entry)| (EntryKey::of(entry), at)).collect()
}
