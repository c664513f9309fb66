//! Tables: their keys, their actions, and the program's own entries.

use crate::bits::Bits;
use crate::expr::Place;
use crate::identity::Identity;
use crate::ids::{ActionId, CalculationId, CounterId, ExprId, MeterId, ProfileId};
use serde::{Deserialize, Serialize};

/// The way in which a key is matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MatchKind {
    /// Equal.
    Exact,
    /// Longest prefix.
    Lpm,
    /// Value and mask.
    Ternary,
    /// From, to, both included.
    Range,
    /// Equal, or anything.
    Optional,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Names of the table.
    pub identity: Identity,
    /// The keys in the order of the program. Without keys every look-up is a miss.
    pub keys: Vec<Key>,
    /// The kind that decides which of several matching entries wins: exact (there is only one), longest
    /// prefix, or priority (ternary, range, optional).
    pub kind: MatchKind,
    /// Greatest number of entries.
    pub size: u32,
    /// Actions that entries and the default may run.
    pub actions: Vec<TableAction>,
    /// The action that runs if no entry matches, if there is one.
    pub default: Option<DefaultEntry>,
    /// Entries of the program.
    pub entries: Vec<Entry>,
    /// Whether controllers may not change the entries.
    pub constant: bool,
    /// The place of the entries' actions.
    pub implementation: Implementation,
    /// The counter of each entry's packets.
    pub counter: Option<CounterId>,
    /// The meter of each entry's packets, and the place to which the colour is written before the action
    /// runs.
    pub meter: Option<(MeterId, Place)>,
    /// Whether entries may have an idle time.
    pub idle_timeout: bool,
    /// Whether the compiler made the table for a bare statement: controllers do not see it.
    pub hidden: bool,
}

/// A key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The name for controllers.
    pub name: String,
    /// The number that P4Info gives, or the position counted from 1.
    pub id: u32,
    /// How it is matched.
    pub kind: MatchKind,
    /// The key's value: bits as wide as `width`.
    pub value: ExprId,
    /// Width in bits.
    pub width: u16,
}

/// An action of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableAction {
    /// The action.
    pub action: ActionId,
    /// The action may only be the default.
    pub default_only: bool,
    /// The action may not be the default.
    pub table_only: bool,
}

/// The place of the actions of a table's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Implementation {
    /// In the entries.
    Direct,
    /// In members (and groups, if it has a selector) of a profile.
    Profile(ProfileId),
}

/// An action with its arguments, one per parameter and as wide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryAction {
    /// The action.
    pub action: ActionId,
    /// The arguments.
    pub arguments: Vec<Bits>,
}

/// The action that runs if no entry matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultEntry {
    /// The action.
    pub entry: EntryAction,
    /// Controllers may not choose another action.
    pub constant_action: bool,
    /// Controllers may not choose other arguments.
    pub constant_arguments: bool,
}

/// An entry of the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// One per key.
    pub keys: Vec<KeyMatch>,
    /// Action of the entry.
    pub action: EntryAction,
    /// Of several entries that match, the one with the greatest priority wins (as in P4Runtime). 0 in tables
    /// without priorities.
    pub priority: u32,
}

/// An entry's match of a key. All values are as wide as the key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KeyMatch {
    /// One value.
    Exact(Bits),
    /// A prefix: the value, whose other bits are zero, and the number of its bits that matter.
    Lpm(Bits, u16),
    /// Value and mask. No bit of the value is outside of the mask.
    Ternary(Bits, Bits),
    /// From, to, both included.
    Range(Bits, Bits),
    /// One value, or anything if `None`.
    Optional(Option<Bits>),
}

/// An action profile: members that entries of tables refer to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionProfile {
    /// Names of the action profile.
    pub identity: Identity,
    /// Greatest number of members (of all groups' weights, if there is a selector).
    pub size: u32,
    /// Greatest size of a group, 0 if not given.
    pub max_group_size: u32,
    /// With groups: the choice of a member.
    pub selector: Option<Selector>,
}

/// The choice of a member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selector {
    /// The hash; the member is its value modulo the number of members.
    pub calculation: CalculationId,
}
