//! The contents of a table's entries, apart from the structures that find them.
//!
//! Every entry has a handle, the number of its row. A row's parts lie in separate arrays: the parts that
//! packets need (the target and its arguments), the one that controllers need (the pattern), and counters,
//! meters and times only in tables that have them. The arrays are of blocks that copies of a table share
//! ([`crate::blocks`]); counts and times of last packets are shared for good. So a row that is free in one
//! copy may be taken in another one only when no packet meets an entry in it any more. Row 0 is the default
//! entry.
//!
//! Entries have an order, too: a new one is the last, and the last one takes the position of one that is
//! removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::blocks::Blocks;
use crate::key::{Pattern, Words};
use crate::meter::Meter;

/// Rows of a block. A batch copies the blocks in which it changes rows.
const ROWS: usize = 256;

/// Parts of rows.
type Part<T> = Blocks<T, ROWS>;

/// An entry's counts of packets and bytes. Workers add to them without ordering, so one count may be ahead of
/// the other.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    pub(crate) packets: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Counter {
    fn reset(&self) {
        self.packets.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }
}

/// An entry's target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An action with its arguments, in the form of the engine that runs actions.
    Action {
        /// The action's number.
        action: u32,
        /// Arguments of the action.
        arguments: Words,
    },
    /// A member of the table's action profile, by its identifier.
    Member(u32),
    /// A group of the table's action profile, by its identifier.
    Group(u32),
}

/// The target that a look-up found, without copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// None: the default entry of a table without a default action.
    Nothing,
    /// An action. Its arguments are as they were given, and zeros up to the table's limit.
    Action {
        /// The action's number.
        action: u32,
        /// Arguments of the action.
        arguments: &'a [u64],
    },
    /// A place in the table's action profile: see `Profile::member`.
    Member(u32),
    /// A place in the table's action profile: see `Profile::choose`.
    Group(u32),
}

const NOTHING: u64 = 0;
const ACTION: u64 = 1;
const MEMBER: u64 = 2;
const GROUP: u64 = 3;
/// Position of the kind in a row's first word; the number is in the bits below.
const KIND: u32 = 32;
const KIND_BITS: u64 = 3;
const CONSTANT: u64 = 1 << 34;
const LIVE: u64 = 1 << 35;

/// The rows of a table.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// First word: number, kind, marks. Then the arguments.
    targets: Part<u64>,
    /// Value, then mask and high bounds in tables that have them.
    patterns: Part<u64>,
    words: usize,
    /// Value only; value and mask; and high bounds.
    parts: usize,
    ranks: Option<Part<u64>>,
    counters: Option<Part<Counter>>,
    /// Of versions of a table, the same entries share a meter.
    meters: Option<Part<Arc<Meter>>>,
    idle: Option<Idle>,
    /// Rows in the order of their entries.
    order: Part<u32>,
    /// Positions of rows in the order.
    positions: Part<u32>,
    free: Vec<u32>,
    end: u32,
}

/// Idle times of rows, in nanoseconds.
#[derive(Clone, Debug)]
struct Idle {
    /// Times of last packets.
    last: Part<AtomicU64>,
    /// How long rows may be unused; 0 is for ever.
    timeouts: Part<u64>,
}

/// The parts that the rows of a table have.
pub(crate) struct RowShape {
    pub(crate) words: usize,
    pub(crate) exact: bool,
    pub(crate) ranges: bool,
    pub(crate) priorities: bool,
    pub(crate) arguments: usize,
    pub(crate) counters: bool,
    pub(crate) meters: bool,
    pub(crate) idle: bool,
}

impl Rows {
    pub(crate) fn new(shape: &RowShape) -> Rows {
        let parts = if shape.ranges {
            3
        } else {
            2 - usize::from(shape.exact)
        };
        let mut rows = Rows {
            targets: Part::new(1 + shape.arguments),
            patterns: Part::new(shape.words * parts),
            words: shape.words,
            parts,
            ranks: shape.priorities.then(|| Part::new(1)),
            counters: shape.counters.then(|| Part::new(1)),
            meters: shape.meters.then(|| Part::new(1)),
            idle: shape.idle.then(|| Idle {
                last: Part::new(1),
                timeouts: Part::new(1),
            }),
            order: Part::new(1),
            positions: Part::new(1),
            free: Vec::new(),
            end: 0,
        };
        rows.take();
        rows
    }

    /// A free row, with fresh counters.
    pub(crate) fn take(&mut self) -> u32 {
        let row = self.free.pop().unwrap_or(self.end);
        self.end = self.end.max(row + 1);
        self.targets.reach(row);
        // The mark of the program's entries, too, goes with the entry.
        self.targets.row_mut(row)[0] = 0;
        self.patterns.reach(row);
        if let Some(ranks) = &mut self.ranks {
            ranks.reach(row);
        }
        self.positions.reach(row);
        if let Some(counters) = &mut self.counters {
            counters.reach_block(row);
            counters.row(row)[0].reset();
        }
        if let Some(meters) = &mut self.meters {
            meters.reach(row);
            meters.row_mut(row)[0] = Arc::default();
        }
        if let Some(idle) = &mut self.idle {
            idle.last.reach_block(row);
            idle.timeouts.reach(row);
        }
        row
    }

    /// Gives a row back.
    pub(crate) fn give(&mut self, row: u32) {
        self.free.push(row);
    }

    /// Marks whether look-ups find a row.
    pub(crate) fn set_live(&mut self, row: u32, live: bool) {
        let word = &mut self.targets.row_mut(row)[0];
        *word = if live { *word | LIVE } else { *word & !LIVE };
    }

    pub(crate) fn is_live(&self, row: u32) -> bool {
        row > 0 && row < self.end && self.targets.row(row)[0] & LIVE != 0
    }

    pub(crate) fn is_constant(&self, row: u32) -> bool {
        self.targets.row(row)[0] & CONSTANT != 0
    }

    pub(crate) fn set_constant(&mut self, row: u32) {
        self.targets.row_mut(row)[0] |= CONSTANT;
    }

    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    #[inline]
    pub(crate) fn found(&self, row: u32) -> Found<'_> {
        let words = self.targets.row(row);
        let number = words[0] as u32;
        match words[0] >> KIND & KIND_BITS {
            ACTION => Found::Action {
                action: number,
                arguments: &words[1..],
            },
            MEMBER => Found::Member(number),
            GROUP => Found::Group(number),
            _ => Found::Nothing,
        }
    }

    /// Gives a row a target.
    pub(crate) fn set_found(&mut self, row: u32, found: Found<'_>) {
        let words = self.targets.row_mut(row);
        let (kind, number, arguments) = match found {
            Found::Nothing => (NOTHING, 0, &[][..]),
            Found::Action { action, arguments } => (ACTION, action, arguments),
            Found::Member(place) => (MEMBER, place, &[][..]),
            Found::Group(place) => (GROUP, place, &[][..]),
        };
        words[0] = words[0] & (CONSTANT | LIVE) | kind << KIND | u64::from(number);
        words[1..].fill(0);
        words[1..=arguments.len()].copy_from_slice(arguments);
    }

    /// Makes a row the last one of so many entries.
    pub(crate) fn append(&mut self, row: u32, len: u32) {
        self.order.reach(len);
        self.order.row_mut(len)[0] = row;
        self.positions.row_mut(row)[0] = len;
    }

    /// Takes a row out of the order of so many entries. The last one takes its position.
    pub(crate) fn take_out(&mut self, row: u32, len: u32) {
        let position = self.positions.row(row)[0];
        let last = self.order.row(len - 1)[0];
        self.order.row_mut(position)[0] = last;
        self.positions.row_mut(last)[0] = position;
    }

    /// The row of the entry at a position, which is less than the number of entries.
    pub(crate) fn at(&self, position: u32) -> u32 {
        self.order.row(position)[0]
    }

    pub(crate) fn set_pattern(&mut self, row: u32, pattern: &Pattern) {
        let parts = [&pattern.value, &pattern.mask, &pattern.high];
        if self.words > 0 {
            for (to, from) in self.patterns.row_mut(row).chunks_mut(self.words).zip(parts) {
                to.copy_from_slice(from);
            }
        }
    }

    /// The value of an entry's pattern.
    #[inline]
    pub(crate) fn value(&self, row: u32) -> &[u64] {
        &self.patterns.row(row)[..self.words]
    }

    /// The pattern of an entry. `exact` is the mask of all entries of an exact table.
    pub(crate) fn pattern(&self, row: u32, exact: &Words) -> Pattern {
        let mut parts = self
            .patterns
            .row(row)
            .chunks(self.words.max(1))
            .map(Words::from_slice);
        let value = parts.next().unwrap_or_default();
        let mask = if self.parts == 1 {
            exact.clone()
        } else {
            parts.next().unwrap_or_default()
        };
        Pattern {
            value,
            mask,
            high: parts.next().unwrap_or_default(),
        }
    }

    /// See `tuples::rank`; 0 in tables without priorities.
    #[inline]
    pub(crate) fn rank(&self, row: u32) -> u64 {
        self.ranks.as_ref().map_or(0, |ranks| ranks.row(row)[0])
    }

    pub(crate) fn set_rank(&mut self, row: u32, rank: u64) {
        if let Some(ranks) = &mut self.ranks {
            ranks.row_mut(row)[0] = rank;
        }
    }

    #[inline]
    pub(crate) fn counter(&self, row: u32) -> Option<&Counter> {
        Some(&self.counters.as_ref()?.row(row)[0])
    }

    #[inline]
    pub(crate) fn meter(&self, row: u32) -> Option<&Meter> {
        self.shared_meter(row).map(|meter| &**meter)
    }

    #[inline]
    pub(crate) fn shared_meter(&self, row: u32) -> Option<&Arc<Meter>> {
        Some(&self.meters.as_ref()?.row(row)[0])
    }

    /// Gives a row a meter; whether rows have meters.
    pub(crate) fn set_meter(&mut self, row: u32, meter: Arc<Meter>) -> bool {
        let meters = self.meters.as_mut().filter(|_| row < self.end);
        meters.map(|meters| meters.row_mut(row)[0] = meter).is_some()
    }

    /// The time of a row's last packet.
    #[inline]
    pub(crate) fn last_use(&self, row: u32) -> Option<&AtomicU64> {
        Some(&self.idle.as_ref()?.last.row(row)[0])
    }

    /// How long a row may be unused; 0 is for ever.
    pub(crate) fn timeout(&self, row: u32) -> u64 {
        self.idle.as_ref().map_or(0, |idle| idle.timeouts.row(row)[0])
    }

    /// Sets an entry's idle time. `now` counts as its last use.
    pub(crate) fn set_idle(&mut self, row: u32, timeout_ns: u64, now: u64) {
        if let Some(idle) = &mut self.idle {
            idle.last.row(row)[0].store(now, Ordering::Relaxed);
            idle.timeouts.row_mut(row)[0] = timeout_ns;
        }
    }

    pub(crate) fn memory(&self) -> usize {
        self.targets.memory()
            + self.patterns.memory()
            + self.ranks.as_ref().map_or(0, Part::memory)
            + self.counters.as_ref().map_or(0, Part::memory)
            + self.meters.as_ref().map_or(0, |meters| {
                meters.memory() + self.end as usize * (size_of::<Meter>() + 2 * size_of::<usize>())
            })
            + self
                .idle
                .as_ref()
                .map_or(0, |idle| idle.last.memory() + idle.timeouts.memory())
            + self.order.memory()
            + self.positions.memory()
            + self.free.capacity() * size_of::<u32>()
    }
}
