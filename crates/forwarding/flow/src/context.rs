//! Metadata that few packets have: the tunnel they came through, labels and first packet of their connection,
//! priority.
//!
//! A context stands beside the key, so that keys and caches of other packets carry none of it. A packet
//! without such metadata has [`Context::NONE`].

use crate::key::KEY_WORDS;
use serde::{Deserialize, Serialize};

/// The fields of words [`KEY_WORDS`] and above in [`FIELDS`](crate::FIELDS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Context {
    /// The packed words.
    pub words: [u64; KEY_WORDS],
}

impl Context {
    /// The context of a packet without such metadata.
    pub const NONE: Context = Context {
        words: [0; KEY_WORDS],
    };

    /// Whether there are no such metadata.
    pub fn is_none(&self) -> bool {
        *self == Context::NONE
    }

    /// The context with every bit outside `mask` cleared.
    #[must_use]
    pub fn masked(&self, mask: &Context) -> Context {
        let mut words = self.words;
        for (word, mask) in words.iter_mut().zip(&mask.words) {
            *word &= mask;
        }
        Context { words }
    }
}

/// The bits of contexts that a flow compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContextMatch {
    /// Values to compare; bits outside `mask` are zero.
    pub context: Context,
    /// Which bits are compared.
    pub mask: Context,
}
