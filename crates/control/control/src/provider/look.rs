//! Reading a packet's key so that it is known what was read.

use flow::{FieldId, FlowKey, FlowMask};
use std::cell::Cell;

/// A packet's key for a provider. Each bit that is read is noted. Fields of the context are 0: packets of the
/// built-in switch come through no tunnel and have no connections.
#[derive(Debug)]
pub struct Look<'a> {
    key: &'a FlowKey,
    seen: Cell<FlowMask>,
}

impl<'a> Look<'a> {
    /// The key, of which nothing was read.
    pub fn new(key: &'a FlowKey) -> Self {
        Look {
            key,
            seen: Cell::default(),
        }
    }

    /// The value of a field.
    pub fn get(&self, field: FieldId) -> u128 {
        self.bits(field, u128::MAX)
    }

    /// Bits of a field that are in `mask`; others are 0.
    pub fn bits(&self, field: FieldId, mask: u128) -> u128 {
        let field = field.field();
        if field.is_in_context() {
            return 0;
        }
        let mut seen = self.seen.get();
        field.set(&mut seen.0.words, u128::MAX, mask);
        self.seen.set(seen);
        field.get(&self.key.words) & mask
    }

    /// The bits that were read.
    pub fn seen(&self) -> FlowMask {
        self.seen.get()
    }
}
