//! Tables: their keys, their actions, and the program's own entries.

use crate::bits::Bits;
use crate::expr::Place;
use crate::identity::Identity;
use crate::ids::{ActionId, CalculationId, CounterId, ExprId, MeterId, ProfileId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
    /// Rates of the table's direct meter for packets that no entry matches; `None`: all are green.
    pub rates: Option<Rates>,
}

/// A rate of a meter with its burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Packets or bytes a second.
    pub per_second: u64,
    /// Packets or bytes.
    pub burst: u64,
}

/// Rates of a meter's cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// Up to which packets are green.
    pub committed: Rate,
    /// Up to which packets are yellow.
    pub peak: Rate,
}

/// An entry of the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// One per key.
    pub keys: Vec<KeyMatch>,
    /// What the entry leads to.
    pub target: EntryTarget,
    /// Rates of the entry's direct meter; `None`: all its packets are green.
    pub rates: Option<Rates>,
    /// Nanoseconds without a packet after which controllers are told; 0 is never.
    pub idle_timeout_ns: u64,
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

/// What an entry leads to. In tables without an action profile it is an action, in others it is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryTarget {
    /// An action.
    Action(EntryAction),
    /// A member of the table's profile, by its number.
    Member(u32),
    /// A group of the table's profile, by its number.
    Group(u32),
    /// Actions of the entry's own, of which the profile's selector chooses one: members and a group without
    /// numbers.
    Choices(Vec<Choice>),
}

/// An action of which a selector may choose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The action.
    pub action: EntryAction,
    /// Part of the packets.
    pub share: Share,
}

/// A member's part of a group's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// How often the member counts among those of which one is chosen, 1 or more.
    pub weight: u32,
    /// Port without which the member is not chosen, below 512.
    pub watch: Option<u16>,
}

/// A group of an action profile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionGroup {
    /// Members by their numbers.
    pub members: BTreeMap<u32, Share>,
    /// Greatest sum of weights, 0 if not given.
    pub max_size: u32,
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
    /// Members by their numbers.
    pub members: BTreeMap<u32, EntryAction>,
    /// Groups by their numbers; none without a selector.
    pub groups: BTreeMap<u32, ActionGroup>,
}

impl ActionProfile {
    /// Greatest sum of a group's weights, 0 without a selector.
    #[must_use]
    pub fn group_limit(&self) -> u32 {
        match (self.selector, self.max_group_size) {
            (None, _) => 0,
            (Some(_), 0) => self.size,
            (Some(_), limit) => limit,
        }
    }
}

impl Table {
    /// Whether an entry of the table runs an action, or may.
    #[must_use]
    pub fn runs(&self, profiles: &[ActionProfile], action: ActionId) -> bool {
        let of_profile = match self.implementation {
            Implementation::Direct => None,
            Implementation::Profile(profile) => profiles.get(profile.index()),
        };
        let members = || {
            of_profile
                .into_iter()
                .flat_map(|profile| profile.members.values())
        };
        let is_meant = |entry: &Entry| match &entry.target {
            EntryTarget::Action(own) => own.action == action,
            EntryTarget::Choices(all) => all.iter().any(|one| one.action.action == action),
            EntryTarget::Member(_) | EntryTarget::Group(_) => members().any(|own| own.action == action),
        };
        self.entries.iter().any(is_meant)
    }

    /// Whether an entry of the table has an idle time. Otherwise, times of last packets are not kept.
    #[must_use]
    pub fn has_idle_times(&self) -> bool {
        self.idle_timeout && self.entries.iter().any(|entry| entry.idle_timeout_ns > 0)
    }

    /// Ports that entries of the table watch, of their own.
    pub fn watched(&self) -> impl Iterator<Item = u16> + '_ {
        let choices = self.entries.iter().filter_map(|entry| match &entry.target {
            EntryTarget::Choices(all) => Some(all.iter()),
            _ => None,
        });
        choices.flatten().filter_map(|one| one.share.watch)
    }
}

/// The choice of a member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selector {
    /// The hash; the member is its value modulo the number of members.
    pub calculation: CalculationId,
}
