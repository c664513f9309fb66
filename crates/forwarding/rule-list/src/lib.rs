//! Rule lists: which packets a policy lets pass, found in the data plane on the first packet of a kind.
//!
//! A *list* is rules in an order, and a default for packets that match none. The order is by priority, then
//! by age. A *security group* is a list too: rules that allow, of one priority, and a default that drops;
//! several groups of a port are one list with the rules of all. A *set* is addresses, MACs or ports under a
//! number that rules of any list may name. Nothing that a guest sends makes an entry here, and nothing here
//! asks a controller.
//!
//! | module | contents |
//! |---|---|
//! | `rule`, `refused` | what a controller states, and why it is refused |
//! | `record`, `judged` | packets that rules note for users; kinds of packets that a list has judged |
//! | `dimension`, `condition` | fields that rules are about; from a rule to conditions on them |
//! | `trie`, `ranges` | values that share prefixes; ranges of ports |
//! | `rule_bits` | rules as bits |
//! | `index`, `list` | one field's rules; a finished list and its look-up |
//! | `builder` | making lists in pieces |
//! | `sets`, `lists` | sets that lists share; all lists and sets, with their bounds |
//! | `beginnings`, `outline` | an index of decisions by the values that sets are about; what changes read of all |
//!
//! # Look-up
//!
//! Each field that rules are about is a *dimension*. A dimension has an index from values to the rules that
//! allow the value, as one bit per rule (Lakshman and Stiliadis, *High-Speed Policy-based Packet
//! Forwarding*, SIGCOMM 1998). A look-up keeps the rules that may still match, the *candidates*, at first
//! all. It takes the first candidate, asks the first dimension that this rule has a condition on and that
//! was not asked yet, and leaves those candidates that allow the packet's value. When the first candidate
//! has no condition left, it is the answer. So at most fifteen questions are asked, for one rule or ten
//! thousand, and none that the answer does not need. Once few candidates are left, they are looked at one
//! by one, whatever number of rules has ranges with the packet's port. A rule *on trial* that would be the
//! answer is noted ([`Trials`]), and the look-up goes on without it.
//!
//! Tuple space search has one table per combination of masks. Ranges and sets multiply its combinations: a
//! rule about two sets of a thousand addresses is a million entries. Here such a rule is one bit in two
//! indices, and a set changes by member.
//!
//! # Noted bits
//!
//! An answer says which bits of the key decided ([`Answer::noted`]), so that it may be remembered for all
//! packets that agree in them. Values are compared as prefixes, and a walk through an index notes the bits
//! up to where no other condition could be told apart: a list about one /8 and port 443 makes a handful of
//! kinds of packets, not one for each connection. Dimensions in which connections of one sender differ are
//! asked last.
//!
//! # Safe direction of error
//!
//! | in doubt | answer |
//! |---|---|
//! | a field that the parser could not see | neither match nor mismatch: [`Outcome::Unknown`], unless a rule before decides without it |
//! | a later fragment, which has no ports | matches no rule about ports, ICMP types or TCP flags |
//! | a packet without IP addresses, or of the other version | matches no rule about these addresses |
//! | a rule about connections, or about a set that is missing | the list is refused, and the former version stays |
//! | a list that is missing | [`RuleLists::look_up`] has no answer: the packet must not pass |
//! | noted bits | too many cost entries; too few would let packets pass, and are what the twin looks for |
//! | a change | [`RuleList::may_concern`] and [`ListChange::may_concern`] say yes for decisions that stay right, never no for others |
//!
//! # Changes
//!
//! Lists never change: a [`Builder`] collects rules one by one, a [`Compiler`] makes the list in steps from
//! its former version, and [`RuleLists::put`] exchanges it for that one at once. Sets change in place, a
//! member in the time of one path ([`Sets`]). Both kinds of change say which decisions they may concern.
//!
//! # Bounds
//!
//! | what | at most | takes |
//! |---|---|---|
//! | rules of a list | [`MAX_RULES`] | a look-up: one step per rule and dimension at worst, one word operation per 64 rules usually |
//! | rules of all lists, lists | [`MAX_RULES_OF_ALL`], [`MAX_LISTS`] | about 600 bytes a rule |
//! | members of a set, of all sets | [`MAX_MEMBERS_PER_SET`], [`MAX_MEMBERS`] | about 200 bytes a member |
//! | rules on trial that are noted | [`MAX_TRIALS`] | each that matches: one step |
//! | rules of all lists that log | [`MAX_LOGGING_RULES`] | one operation in decisions about their packets |
//! | sets, sets that a list names for one field | [`MAX_SETS`], [`MAX_SETS_PER_LIST`] | - |
//! | conditions on TCP flags in a list | [`MAX_FLAG_CONDITIONS`] | a step each, if asked |
//!
//! What is beyond is [`Refused`], and nothing is changed. Times: `cargo run --release -p rule-list
//! --example speed-of-rule-lists`.

#![forbid(unsafe_code)]

mod beginnings;
mod builder;
mod condition;
mod dimension;
mod index;
mod judged;
mod list;
mod lists;
mod outline;
mod ranges;
mod record;
mod refused;
mod rule;
mod rule_bits;
mod sets;
mod trie;

pub use beginnings::{Beginning, Place, SetFields};
pub use builder::{Builder, Compiler, ListChange};
pub use dimension::fields;
pub use flow::ListId;
pub use judged::JudgedPackets;
pub use list::{Answer, Outcome, RuleList, Trials};
pub use lists::RuleLists;
pub use outline::{Outline, Sought, Standing};
pub use record::{LogRecord, LoggedPacket};
pub use refused::Refused;
pub use rule::{
    Addresses, ConnectionState, Fragment, IpPrefix, MacPrefix, Macs, Marks, Match, Ports, Range, Rule, SetId,
    TcpFlags, Transport, Verdict, Vlan,
};
pub use sets::{Member, SetChange, SetKind, SetState, Sets};

/// Most rules of a list.
pub const MAX_RULES: usize = 16_384;

/// Most rules on trial that an answer notes.
pub const MAX_TRIALS: usize = 8;

/// Most rules of all lists.
pub const MAX_RULES_OF_ALL: usize = 1 << 20;

/// Most rules of all lists that log.
pub const MAX_LOGGING_RULES: usize = 32_768;

/// Most lists.
pub const MAX_LISTS: usize = 4096;

/// Most sets.
pub const MAX_SETS: usize = 16_384;

/// Most sets that rules of a list name in one dimension.
pub const MAX_SETS_PER_LIST: usize = 1024;

/// Most members of a set.
pub const MAX_MEMBERS_PER_SET: usize = 1 << 18;

/// Most members of all sets.
pub const MAX_MEMBERS: usize = 1 << 20;

/// Most different conditions on TCP flags in a list.
pub const MAX_FLAG_CONDITIONS: usize = 64;
