//! Changes of tables, profiles and value sets.

use crate::key::{Pattern, Words};
use crate::rows::Target;
use crate::table::Entry;

/// A change. Tables, profiles and value sets are numbered in the order in which they were added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds an entry.
    Insert {
        /// The table.
        table: u32,
        /// The entry.
        entry: Entry,
    },
    /// Gives the entry with this pattern and priority another target and idle time. Its counts stay.
    Modify {
        /// The table.
        table: u32,
        /// The entry.
        entry: Entry,
    },
    /// Removes an entry.
    Remove {
        /// The table.
        table: u32,
        /// Pattern of the entry.
        pattern: Pattern,
        /// Priority of the entry.
        priority: u32,
    },
    /// Sets the action that a table runs if no entry matches; `None` restores the program's.
    SetDefault {
        /// The table.
        table: u32,
        /// An action.
        target: Option<Target>,
    },
    /// Changes an action profile.
    Profile {
        /// The profile.
        profile: u32,
        /// What is different then.
        change: ProfileChange,
    },
    /// Adds a pattern to a value set.
    AddValue {
        /// The value set.
        set: u32,
        /// The pattern.
        pattern: Pattern,
    },
    /// Removes a pattern from a value set.
    RemoveValue {
        /// The value set.
        set: u32,
        /// The pattern.
        pattern: Pattern,
    },
}

/// A change of an action profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileChange {
    /// Adds a member.
    AddMember {
        /// The member's identifier.
        member: u32,
        /// The action's number.
        action: u32,
        /// Arguments of the action.
        arguments: Words,
    },
    /// Gives a member another action.
    ModifyMember {
        /// The member's identifier.
        member: u32,
        /// The action's number.
        action: u32,
        /// Arguments of the action.
        arguments: Words,
    },
    /// Removes a member that no entry or group refers to.
    RemoveMember {
        /// The member's identifier.
        member: u32,
    },
    /// Adds a group.
    AddGroup {
        /// The group's identifier.
        group: u32,
        /// The members.
        members: Vec<GroupMember>,
    },
    /// Gives a group other members.
    ModifyGroup {
        /// The group's identifier.
        group: u32,
        /// The members.
        members: Vec<GroupMember>,
    },
    /// Removes a group that no entry refers to.
    RemoveGroup {
        /// The group's identifier.
        group: u32,
    },
}

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupMember {
    /// The member's identifier.
    pub member: u32,
    /// How often it stands in the list of which the hash chooses.
    pub weight: u32,
    /// The port without which the member is not chosen.
    pub watch: Option<u16>,
}

impl From<(u32, u32)> for GroupMember {
    /// A member with a weight, which watches no port.
    fn from((member, weight): (u32, u32)) -> GroupMember {
        GroupMember {
            member,
            weight,
            watch: None,
        }
    }
}
