//! Why a rule, a list or a set was refused.

use crate::rule::SetId;
use crate::sets::SetKind;
use crate::{
    MAX_FLAG_CONDITIONS, MAX_LISTS, MAX_LOGGING_RULES, MAX_MEMBERS, MAX_MEMBERS_PER_SET, MAX_RULES,
    MAX_RULES_OF_ALL, MAX_SETS, MAX_SETS_PER_LIST,
};
use flow::ListId;
use thiserror::Error;

/// Why a change was refused. Lists and sets are as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// A list has [`MAX_RULES`] rules.
    #[error("a list has at most {MAX_RULES} rules")]
    TooManyRules,
    /// Lists have [`MAX_RULES_OF_ALL`] rules together.
    #[error("all lists together have at most {MAX_RULES_OF_ALL} rules")]
    TooManyRulesOfAll,
    /// Lists have [`MAX_LOGGING_RULES`] rules together that log.
    #[error("at most {MAX_LOGGING_RULES} rules of all lists together may log")]
    TooManyLoggingRules,
    /// There are [`MAX_LISTS`] lists.
    #[error("there are at most {MAX_LISTS} lists")]
    TooManyLists,
    /// There are [`MAX_SETS`] sets.
    #[error("there are at most {MAX_SETS} sets")]
    TooManySets,
    /// A set has [`MAX_MEMBERS_PER_SET`] members.
    #[error("a set has at most {MAX_MEMBERS_PER_SET} members")]
    TooManyMembersOfSet,
    /// Rules of a list name [`MAX_SETS_PER_LIST`] sets in one dimension.
    #[error("a list names at most {MAX_SETS_PER_LIST} sets for one field")]
    TooManySetsOfList,
    /// Sets have [`MAX_MEMBERS`] members together.
    #[error("all sets together have at most {MAX_MEMBERS} members")]
    TooManyMembers,
    /// A list has [`MAX_FLAG_CONDITIONS`] different conditions on TCP flags.
    #[error("a list has at most {MAX_FLAG_CONDITIONS} different conditions on TCP flags")]
    TooManyFlagConditions,
    /// Two rules of a list have one number.
    #[error("rule {0} is there already")]
    SameNumber(u32),
    /// A prefix is longer than its address, or the address has bits behind the prefix.
    #[error("the prefix is longer than the address, or the address has bits behind it")]
    BadPrefix,
    /// A range's first number is greater than its last, or a number is greater than its field allows.
    #[error("the range is empty, or its numbers are too large")]
    BadRange,
    /// The rule asks for TCP flags outside the mask, which no packet has.
    #[error("the value of TCP flags has bits outside the mask, or the mask is empty")]
    BadFlags,
    /// A port number that no port has.
    #[error("there is no such port number")]
    BadPort,
    /// An address, and an Ethernet type or another address that does not go with it.
    #[error("IP addresses, Ethernet type and protocol exclude each other")]
    Contradiction,
    /// Conditions on the transport header, or on a message of ARP or neighbour discovery, without the
    /// protocol.
    #[error("ports, ICMP types, TCP flags and link-layer addresses need a protocol that has them")]
    NeedsProtocol,
    /// Connections are not tracked.
    #[error("the state of connections is not known: connections are not tracked")]
    NoConnections,
    /// There is no such set.
    #[error("there is no set {}", .0.0)]
    NoSuchSet(SetId),
    /// There is no such list.
    #[error("there is no list {}", .0.0)]
    NoSuchList(ListId),
    /// There is a set with that number already.
    #[error("set {} is there already", .0.0)]
    SetExists(SetId),
    /// The set has members of another kind.
    #[error("set {} has {kind} as members", .set.0)]
    WrongKind {
        /// The set.
        set: SetId,
        /// Kind of the set's members.
        kind: SetKind,
    },
    /// A list has a rule about the set.
    #[error("a list uses set {}", .0.0)]
    SetInUse(SetId),
}
