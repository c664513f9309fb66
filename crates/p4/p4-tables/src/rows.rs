//! The contents of a table's entries, apart from the structures that find them.
//!
//! Every entry has a handle, the number of its row. A row's parts lie in separate arrays: the parts that
//! packets need (the target and its arguments), the one that controllers need (the pattern), and counters,
//! meters and times only in tables that have them. The arrays grow by chunks, so that no growth copies a
//! whole table while readers wait. Row 0 is the default entry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::key::{Pattern, Words};
use crate::meter::Meter;

/// Rows of a chunk.
const CHUNK: usize = 4096;

/// Rows of `stride` elements, in chunks that do not move. The first chunk grows as it is needed.
#[derive(Debug)]
pub(crate) struct Chunked<T> {
    chunks: Vec<Vec<T>>,
    stride: usize,
}

impl<T: Default> Chunked<T> {
    pub(crate) fn new(stride: usize) -> Chunked<T> {
        Chunked {
            chunks: Vec::new(),
            stride,
        }
    }

    #[inline]
    pub(crate) fn row(&self, row: u32) -> &[T] {
        let at = row as usize % CHUNK * self.stride;
        &self.chunks[row as usize / CHUNK][at..at + self.stride]
    }

    fn row_mut(&mut self, row: u32) -> &mut [T] {
        let at = row as usize % CHUNK * self.stride;
        &mut self.chunks[row as usize / CHUNK][at..at + self.stride]
    }

    /// Adds a row, the next one, unless it exists.
    fn reach(&mut self, row: u32) {
        let chunk = row as usize / CHUNK;
        if chunk == self.chunks.len() {
            self.chunks.push(Vec::with_capacity(if chunk == 0 {
                0
            } else {
                CHUNK * self.stride
            }));
        }
        let end = (row as usize % CHUNK + 1) * self.stride;
        if self.chunks[chunk].len() < end {
            self.chunks[chunk].resize_with(end, T::default);
        }
    }

    fn memory(&self) -> usize {
        self.chunks.iter().map(Vec::capacity).sum::<usize>() * size_of::<T>()
            + self.chunks.capacity() * size_of::<Vec<T>>()
    }
}

/// An entry's counts of packets and bytes. Workers add to them without ordering, so one count may be ahead of
/// the other.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    pub(crate) packets: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// The time of an entry's last use, and the time that it may be unused, in nanoseconds; 0 is for ever.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    pub(crate) last: AtomicU64,
    pub(crate) timeout_ns: u64,
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

/// The words of a row that packets need.
pub(crate) type Stored = SmallVec<[u64; 3]>;

/// The rows of a table.
#[derive(Debug)]
pub(crate) struct Rows {
    /// First word: number, kind, marks. Then the arguments.
    targets: Chunked<u64>,
    /// Value, then mask and high bounds in tables that have them.
    patterns: Chunked<u64>,
    words: usize,
    /// Value only; value and mask; and high bounds.
    parts: usize,
    ranks: Option<Chunked<u64>>,
    counters: Option<Chunked<Counter>>,
    /// Of versions of a table, the same entries share a meter.
    meters: Option<Chunked<Arc<Meter>>>,
    idle: Option<Chunked<Idle>>,
    free: Vec<u32>,
    end: u32,
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
            targets: Chunked::new(1 + shape.arguments),
            patterns: Chunked::new(shape.words * parts),
            words: shape.words,
            parts,
            ranks: shape.priorities.then(|| Chunked::new(1)),
            counters: shape.counters.then(|| Chunked::new(1)),
            meters: shape.meters.then(|| Chunked::new(1)),
            idle: shape.idle.then(|| Chunked::new(1)),
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
        self.patterns.reach(row);
        if let Some(ranks) = &mut self.ranks {
            ranks.reach(row);
        }
        if let Some(counters) = &mut self.counters {
            counters.reach(row);
            counters.row_mut(row)[0] = Counter::default();
        }
        if let Some(meters) = &mut self.meters {
            meters.reach(row);
            meters.row_mut(row)[0] = Arc::default();
        }
        if let Some(idle) = &mut self.idle {
            idle.reach(row);
            idle.row_mut(row)[0] = Idle::default();
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

    /// Gives a row a target, and returns the words it had.
    pub(crate) fn set_found(&mut self, row: u32, found: Found<'_>) -> Stored {
        let words = self.targets.row_mut(row);
        let before = Stored::from_slice(words);
        let (kind, number, arguments) = match found {
            Found::Nothing => (NOTHING, 0, &[][..]),
            Found::Action { action, arguments } => (ACTION, action, arguments),
            Found::Member(place) => (MEMBER, place, &[][..]),
            Found::Group(place) => (GROUP, place, &[][..]),
        };
        words[0] = words[0] & (CONSTANT | LIVE) | kind << KIND | u64::from(number);
        words[1..].fill(0);
        words[1..=arguments.len()].copy_from_slice(arguments);
        before
    }

    /// Gives a row back the words that [`Rows::set_found`] returned.
    pub(crate) fn restore(&mut self, row: u32, stored: &Stored) {
        self.targets.row_mut(row).copy_from_slice(stored);
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

    #[inline]
    pub(crate) fn idle(&self, row: u32) -> Option<&Idle> {
        Some(&self.idle.as_ref()?.row(row)[0])
    }

    /// Sets an entry's idle time, and returns the one it had. `now` counts as its last use.
    pub(crate) fn set_idle(&mut self, row: u32, timeout_ns: u64, now: u64) -> u64 {
        let Some(idle) = &mut self.idle else { return 0 };
        let idle = &mut idle.row_mut(row)[0];
        idle.last.store(now, Ordering::Relaxed);
        std::mem::replace(&mut idle.timeout_ns, timeout_ns)
    }

    pub(crate) fn memory(&self) -> usize {
        self.targets.memory()
            + self.patterns.memory()
            + self.ranks.as_ref().map_or(0, Chunked::memory)
            + self.counters.as_ref().map_or(0, Chunked::memory)
            + self.meters.as_ref().map_or(0, |meters| {
                meters.memory() + self.end as usize * (size_of::<Meter>() + 2 * size_of::<usize>())
            })
            + self.idle.as_ref().map_or(0, Chunked::memory)
            + self.free.capacity() * size_of::<u32>()
    }
}
