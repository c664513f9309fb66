//! Checksums that a packet's verdict need not know: those that are verified are conditions, which each packet
//! of the kind is asked for; those that are updated are made again over the headers as they leave.
//!
//! Both hold for one's complement sums over whole words of headers. All others are followed as any
//! computation: their inputs decide.

use super::{METADATA, Notes, Origin};
use crate::code::Op;
use crate::engine::HashKind;
use crate::hash::Algorithm;
use crate::observe::Phase;

/// Bits of a word of a sum.
const WORD: usize = 16;

/// A one's complement sum over words, and the word that it is compared with or written to: each by its place
/// in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub words: Vec<u16>,
    pub at: u16,
}

/// A sum that an update has made, in bits of the packet header vector.
#[derive(Clone, Debug)]
pub(super) struct Update {
    /// First bit and width of each run of its input.
    pub inputs: Vec<(u32, u16)>,
    pub target: u32,
}

#[derive(Debug, Default)]
pub(super) struct Sums {
    phase: Option<Phase>,
    /// Input of the next sum: runs of bits of the packet header vector.
    inputs: Vec<(u32, u16)>,
    /// The input has other parts.
    has_others: bool,
    /// Words of the sum just made, which is being verified.
    verified: Option<Vec<u16>>,
    /// Input of the sum just made, which is being written.
    updated: Option<Vec<(u32, u16)>>,
    /// Sums that were right.
    pub guards: Vec<Sum>,
    pub updates: Vec<Update>,
}

impl Sums {
    pub fn phase(&mut self, phase: Phase) {
        self.phase = Some(phase);
    }

    pub fn begin(&mut self) {
        self.inputs.clear();
        self.has_others = false;
        self.verified = None;
        self.updated = None;
    }

    pub fn add(&mut self, bit: u32, width: u16) {
        self.inputs.push((bit, width));
    }

    pub fn add_other(&mut self) {
        self.has_others = true;
    }
}

impl Notes<'_> {
    /// The gathered bits are summed up.
    pub(super) fn sum_up(&mut self, kind: &HashKind) {
        if self.sums.has_others || !matches!(kind, HashKind::Fixed(Algorithm::Csum16)) {
            return;
        }
        match self.sums.phase {
            Some(Phase::Verify) => {
                let inputs = self.sums.inputs.iter();
                let bits = inputs.flat_map(|&(bit, width)| bit as usize..bit as usize + usize::from(width));
                let origins: Vec<_> = bits.map(|bit| self.input_bit(bit)).collect();
                self.sums.verified = words(&origins);
            }
            Some(Phase::Deparser) => self.sums.updated = Some(self.sums.inputs.clone()),
            _ => {}
        }
    }

    fn input_bit(&self, bit: usize) -> Option<u32> {
        match self.phv.get(bit)? {
            Origin::Bit(bit) if *bit < METADATA => Some(*bit),
            _ => None,
        }
    }

    /// Whether the sum just made is compared with a word of the packet, and so is a condition; it is noted
    /// then. That it is not right is noted elsewhere.
    pub(super) fn is_right_sum(&mut self, field: u8) -> bool {
        let Some(words_of_sum) = self.sums.verified.take() else {
            return false;
        };
        let field = self.regs[usize::from(field)].iter().rev();
        let bits: Vec<_> = field
            .map(|origin| match origin {
                Origin::Bit(bit) if *bit < METADATA => Some(*bit),
                _ => None,
            })
            .collect();
        let Some(&[at]) = words(&bits).as_deref() else {
            return false;
        };
        self.sums.guards.push(Sum {
            words: words_of_sum,
            at,
        });
        true
    }

    /// Notes that the sum just made is written to a word of a header.
    pub(super) fn follow_sum(&mut self, op: &Op) {
        let Some(inputs) = self.sums.updated.take() else {
            return;
        };
        match *op {
            Op::Slice {
                low: 0, width: 16, ..
            }
            | Op::JumpUnlessValid { .. } => {
                self.sums.updated = Some(inputs);
            }
            Op::Store16 { from, at } => {
                self.set(from, Vec::new());
                self.sums.updates.push(Update {
                    inputs,
                    target: at * 8,
                });
            }
            _ => {}
        }
    }
}

/// Bits as words of whole bytes, by the first byte of each; `None` if they are not.
pub(super) fn words(bits: &[Option<u32>]) -> Option<Vec<u16>> {
    if bits.is_empty() || !bits.len().is_multiple_of(WORD) {
        return None;
    }
    let word = |bits: &[Option<u32>]| {
        let first = bits[0].filter(|first| first.is_multiple_of(8))?;
        let follows = bits.iter().zip(first..).all(|(bit, wanted)| *bit == Some(wanted));
        u16::try_from(first / 8).ok().filter(|_| follows)
    };
    bits.chunks_exact(WORD).map(word).collect()
}
