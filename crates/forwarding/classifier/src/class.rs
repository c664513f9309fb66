//! The packets that a decision holds for, if it stands on rules.
//!
//! Decisions that stand on flows alone end with their flows. A list of rules outlives most changes of it, and
//! sets change by member, so these decisions say about which packets they are: a change then ends those that
//! it may concern and no others.

use crate::hash::{PAIRS, Seed};
use flow::{FlowKey, FlowMask};

/// Packets that rule lists judge alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    /// The port that packets come from.
    pub in_port: u32,
    /// The key of packets as they came, under `noted`.
    pub key: FlowKey,
    /// The bits that decided in any list.
    pub noted: FlowMask,
    /// Packets were changed before a list saw them, so that their key does not say what it saw.
    pub was_changed: bool,
}

impl Class {
    /// Guests choose keys, so the hash is keyed by a secret.
    pub fn hash(&self) -> u64 {
        let seed = Seed::process();
        let key = seed.pairs::<PAIRS>(|word| self.key.words[word]);
        let noted = seed.finish(seed.context(|word| self.noted.0.words[word]));
        key ^ noted ^ u64::from(self.in_port) << 1 ^ u64::from(self.was_changed)
    }
}
