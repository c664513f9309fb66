//! Verdicts of programs, kept for packets of the same kind.
//!
//! A run of a program whose [notes](crate::Notes) are exact gives a [`Verdict`]: the port by which the
//! packet left, or why it was dropped; changes of its headers; and the bits that decided this, among the
//! first [`KEY`] bytes. A packet that came by the same port, has as many bytes as the parser went through,
//! agrees in those bits, and whose verified checksums are right, ends the same way. So it need not run: the
//! changes are made, updated checksums are made again, and entries and counters count it
//! ([`Engine::repeat`]).
//!
//! A worker keeps verdicts of all its programs in one table ([`Verdicts`]). What is looked up is the packet
//! under all bits that decided for any packet of the program so far ([`Mask`]), so one look finds the verdict
//! or there is none; a program that looks at further bits begins anew. A verdict is right as long as tables
//! do not change: other entries are another version of the program, which has a mask of its own. A verdict of
//! a mask that is gone is found by nobody and makes room for others.
//!
//! The safe direction of error is to keep nothing: what was not followed exactly, what uses state, digests,
//! copies, further passes, wrong checksums, parser errors and headers that grow or shrink are for a run.

use crate::context::Context;
use crate::engine::Engine;
use crate::packet::Drop;
use crate::state::{CounterValue, ReadGuard};
use p4_ir::TableId;
use p4_tables::Handle;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Bytes at the beginning of packets that verdicts are looked up by.
pub const KEY: usize = 64;
const WORDS: usize = KEY / 8;

/// Most bytes of headers and metadata of a program with verdicts.
const MAX_PHV: u32 = 1024;

/// Verdicts that a worker keeps at most.
const SLOTS: usize = 8192;

/// Verdicts that have their place in common.
const WAYS: usize = 4;

/// Bytes of a frame that say what follows the Ethernet header.
const ETHER_TYPE: std::ops::Range<usize> = 12..14;

/// How packets of a kind end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By this port.
    Leaves(u32),
    /// Nowhere.
    Dropped(Drop),
}

/// A change of eight bytes: those bits stay that `keep` has, in the order of bytes in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    pub at: u8,
    pub keep: u64,
    pub value: u64,
}

/// A one's complement sum of words, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    pub parts: Box<[Part]>,
    pub at: u8,
}

/// Words of a sum among eight bytes that begin with one, or end with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// First of the eight bytes.
    pub at: u8,
    /// The bits of the words, in the order of bytes in memory.
    pub mask: u64,
}

/// What counts packets of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Entry(TableId, Handle),
    Cell(u16, u64),
}

/// What happens to packets of a kind. See the module's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub(crate) end: End,
    /// Bytes that packets of the kind have at least.
    pub(crate) at_least: usize,
    /// The bits that decided.
    pub(crate) mask: [u8; KEY],
    pub(crate) edits: Vec<Edit>,
    /// Sums that are right in packets of the kind.
    pub(crate) guards: Vec<Sum>,
    /// Sums that are written behind the edits.
    pub(crate) updates: Vec<Sum>,
    pub(crate) uses: Box<[Use]>,
    /// No byte of the Ethernet type is changed.
    pub(crate) keeps_ether_type: bool,
}

impl Sum {
    /// The sum as it lies in memory: one's complement sums do not depend on the order of bytes (RFC 1071).
    fn of(&self, head: &[u8]) -> [u8; 2] {
        let mut sum = 0_u64;
        for part in &self.parts {
            let bytes = head.get(usize::from(part.at)..);
            let bytes = bytes.and_then(|bytes| bytes.first_chunk());
            let words = bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes)) & part.mask;
            sum += (words & 0xFFFF_FFFF) + (words >> 32);
        }
        sum = (sum & 0xFFFF_FFFF) + (sum >> 32);
        sum = (sum & 0xFFFF) + (sum >> 16);
        sum = (sum & 0xFFFF) + (sum >> 16);
        (!((sum & 0xFFFF) + (sum >> 16)) as u16).to_ne_bytes()
    }

    fn is_right(&self, head: &[u8]) -> bool {
        let found = head
            .get(usize::from(self.at)..)
            .and_then(|bytes| bytes.first_chunk());
        found.is_some_and(|found| *found == self.of(head))
    }

    fn write(&self, head: &mut [u8]) {
        let sum = self.of(head);
        let at = head.get_mut(usize::from(self.at)..);
        if let Some(at) = at.and_then(|bytes| bytes.first_chunk_mut()) {
            *at = sum;
        }
    }
}

impl Verdict {
    /// How packets of the kind end.
    #[must_use]
    pub fn end(&self) -> End {
        self.end
    }

    /// Whether packets leave as they came.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.edits.is_empty() && self.updates.is_empty()
    }

    /// Whether no byte of the Ethernet type is changed.
    #[must_use]
    pub fn keeps_ether_type(&self) -> bool {
        self.keeps_ether_type
    }

    pub(crate) fn note_ether_type(&mut self) {
        let is_beside = |at: usize, keep: &[u8; 8]| {
            let changed = keep.iter().enumerate().filter(|(_, keep)| **keep != 0xFF);
            changed
                .map(|(byte, _)| at + byte)
                .all(|at| !ETHER_TYPE.contains(&at))
        };
        let mut edits = self.edits.iter();
        let mut updates = self.updates.iter().map(|sum| usize::from(sum.at));
        self.keeps_ether_type = edits.all(|edit| is_beside(usize::from(edit.at), &edit.keep.to_ne_bytes()))
            && updates.all(|at| !ETHER_TYPE.contains(&at) && !ETHER_TYPE.contains(&(at + 1)));
    }

    /// Changes the head of a packet of the kind, which has all bytes that the parser went through.
    pub fn edit(&self, head: &mut [u8]) {
        for edit in &self.edits {
            let at = head.get_mut(usize::from(edit.at)..);
            if let Some(at) = at.and_then(|bytes| bytes.first_chunk_mut()) {
                *at = (u64::from_ne_bytes(*at) & edit.keep | edit.value).to_ne_bytes();
            }
        }
        self.updates.iter().for_each(|sum| sum.write(head));
    }

    fn holds(&self, head: &[u8]) -> bool {
        self.guards.iter().all(|sum| sum.is_right(head))
    }
}

impl Engine {
    /// Whether verdicts may be looked for: a program with value sets has none, and what decides for one with
    /// much metadata would take long to note.
    #[must_use]
    pub fn may_have_verdicts(&self) -> bool {
        let program = self.program();
        program.value_sets.is_empty() && program.phv.bytes <= MAX_PHV
    }

    /// Counts packets whose verdict was found, as if they had run at that time.
    pub fn repeat(
        &self,
        guard: &ReadGuard<'_>,
        ctx: &mut Context,
        verdict: &Verdict,
        train: CounterValue,
        now: u64,
    ) {
        ctx.counts.packets += train.packets;
        match verdict.end {
            End::Leaves(_) => ctx.counts.outputs += train.packets,
            End::Dropped(reason) => ctx.counts.drops[reason as usize] += train.packets,
        }
        for one in &verdict.uses {
            match *one {
                Use::Entry(table, entry) => guard.tables().use_entry(table, entry, train, now),
                Use::Cell(counter, index) => guard.state().count(usize::from(counter), index, train),
            }
        }
    }
}

/// The bits of packets by which verdicts of a program's version are looked up.
#[derive(Debug, Default)]
pub struct Mask {
    words: [u64; WORDS],
    /// Words that have bits, rounded to an even number.
    used: usize,
    /// Verdicts of no other mask have this number; 0 before there is one.
    tag: u64,
}

#[derive(Debug)]
struct Slot {
    key: [u64; WORDS],
    tag: u64,
    port: u32,
    at_least: u32,
    verdict: Option<Box<Verdict>>,
}

/// A worker's verdicts. See the module's description.
#[derive(Debug)]
pub struct Verdicts {
    /// None until the first verdict is kept.
    slots: Vec<Slot>,
    secret: [u64; WORDS + 2],
    tags: u64,
    /// Which of those in one place makes room next.
    turn: usize,
}

impl Default for Verdicts {
    fn default() -> Self {
        Verdicts {
            slots: Vec::new(),
            // Such a hasher is keyed from the system's random number generator.
            secret: std::array::from_fn(|_| RandomState::new().build_hasher().finish()),
            tags: 0,
            turn: 0,
        }
    }
}

impl Verdicts {
    /// The place of the verdict about a packet that came by a port and begins with `head`, if it is kept.
    /// `likely` is the place of the packet before it, which often is the same.
    #[inline]
    #[must_use]
    pub fn find(&self, mask: &Mask, port: u32, head: &[u8], likely: u32) -> Option<u32> {
        if mask.tag == 0 {
            return None;
        }
        let mut short = [0; KEY];
        let bytes = head.first_chunk().unwrap_or_else(|| {
            short[..head.len()].copy_from_slice(head);
            &short
        });
        let is_about = |slot: &Slot| {
            mask.is_key_of(&slot.key, bytes)
                && slot.tag == mask.tag
                && slot.port == port
                && slot.at_least as usize <= head.len()
                && slot.verdict.as_ref().is_some_and(|verdict| verdict.holds(head))
        };
        if self.slots.get(likely as usize).is_some_and(is_about) {
            return Some(likely);
        }
        let first = self.first(mask, port, &mask.key(bytes));
        let mut slots = self.slots.get(first..first + WAYS)?.iter();
        slots.position(is_about).map(|at| (first + at) as u32)
    }

    /// The verdict at a place.
    #[inline]
    #[must_use]
    pub fn get(&self, place: u32) -> Option<&Verdict> {
        self.slots.get(place as usize)?.verdict.as_deref()
    }

    /// Keeps a verdict for packets that agree with this one. Verdicts of the program are forgotten if this
    /// one looks at further bits.
    pub fn keep(&mut self, mask: &mut Mask, port: u32, head: &[u8], verdict: Verdict) {
        if self.slots.is_empty() {
            self.slots.resize_with(SLOTS, Slot::default);
        }
        if mask.tag == 0 || mask.adds(&verdict.mask) {
            self.tags += 1;
            mask.extend(&verdict.mask, self.tags);
        }
        let mut bytes = [0; KEY];
        let length = head.len().min(KEY);
        bytes[..length].copy_from_slice(&head[..length]);
        let key = mask.key(&bytes);
        let first = self.first(mask, port, &key);
        let slots = &mut self.slots[first..first + WAYS];
        let is_same = |slot: &Slot| slot.tag == mask.tag && slot.port == port && slot.key == key;
        let place = slots.iter().position(is_same);
        let place = place.or_else(|| slots.iter().position(|slot| slot.tag == 0));
        let place = place.unwrap_or_else(|| {
            self.turn = (self.turn + 1) % WAYS;
            self.turn
        });
        slots[place] = Slot {
            key,
            tag: mask.tag,
            port,
            // A packet's length is far below 4 GiB.
            at_least: verdict.at_least as u32,
            verdict: Some(Box::new(verdict)),
        };
    }

    /// The first place where a key may be. The hash is keyed, since guests choose keys.
    #[inline]
    fn first(&self, mask: &Mask, port: u32, key: &[u64; WORDS]) -> usize {
        let pair = |at: usize, a: u64, b: u64| {
            u128::from(a.wrapping_add(self.secret[at])) * u128::from(b.wrapping_add(self.secret[at + 1]) | 1)
        };
        let mut sum = pair(WORDS, mask.tag, u64::from(port));
        for at in (0..mask.used).step_by(2) {
            sum = sum.wrapping_add(pair(at, key[at], key[at + 1]));
        }
        let hash = (sum >> 64) as u64 ^ sum as u64;
        let hash = hash ^ hash >> 32;
        (hash as usize % SLOTS) & !(WAYS - 1)
    }
}

impl Default for Slot {
    fn default() -> Self {
        Slot {
            key: [0; WORDS],
            tag: 0,
            port: 0,
            at_least: 0,
            verdict: None,
        }
    }
}

impl Mask {
    /// The bits of a packet that are looked up.
    #[inline]
    fn key(&self, bytes: &[u8; KEY]) -> [u64; WORDS] {
        let words = bytes.as_chunks::<8>().0;
        std::array::from_fn(|at| u64::from_ne_bytes(words[at]) & self.words[at])
    }

    /// Whether these are the bits of a packet that are looked up.
    #[inline]
    fn is_key_of(&self, key: &[u64; WORDS], bytes: &[u8; KEY]) -> bool {
        let words = bytes.as_chunks::<8>().0.iter().zip(&self.words).zip(key);
        let differences = words.map(|((word, mask), key)| u64::from_ne_bytes(*word) & mask ^ key);
        differences.fold(0, std::ops::BitOr::bitor) == 0
    }

    fn adds(&self, mask: &[u8; KEY]) -> bool {
        let known = self.words.iter().flat_map(|word| word.to_ne_bytes());
        known.zip(mask).any(|(known, bits)| bits & !known != 0)
    }

    fn extend(&mut self, mask: &[u8; KEY], tag: u64) {
        for (word, bits) in self.words.iter_mut().zip(mask.as_chunks::<8>().0) {
            *word |= u64::from_ne_bytes(*bits);
        }
        let used = self.words.iter().rposition(|word| *word != 0);
        self.used = used.map_or(0, |last| (last + 1).next_multiple_of(2));
        self.tag = tag;
    }
}
