//! Policies of ports: from what users state to the rule lists that a data plane has.
//!
//! Nothing here has state. The same configuration makes the same lists with the same numbers, whoever
//! asks and however often: so a control process that was restarted compares what it wants with what the
//! data plane has, and changes only what differs.
//!
//! | stated | made of it | slot |
//! |---|---|---|
//! | guards of a port, its `mac`, `addresses` and `allowed-pairs` | a list for packets from the port | [`GUARDS`] |
//! | `acl-from`, `acl-to`, security groups | a list for each combination and direction, for all its ports | [`ACLS`] |
//! | `vlan-priority`, `dscp` | a list for each combination, for all its ports | [`MARKS`] |
//! | mirrors | mirrors of each source, and a list for mirrors of each access control list that they name | - |
//! | sets; groups that rules name; addresses of a guarded port | sets, which change by member | - |
//!
//! | module | contents |
//! |---|---|
//! | `compile`, `lists` | all of a configuration; the results |
//! | `names` | sets, lists and groups by name; sets that lists need |
//! | `rules` | one rule, and what contradicts itself in it |
//! | `groups` | rules of a port's groups, replies included, and what every member may do |
//! | `guards` | the list that guards a port |
//! | `marks` | the list that marks packets of a port |
//! | `mirrors` | mirrors of ports, and what contradicts itself in them |
//! | `file` | policies of a file, errors with its lines |
//! | `places` | lines of a file that rules come from |
//! | `shadow` | rules that can never match |
//! | `text` | rules as users read them |
//! | `judge` | what lists say about packets that others have judged |
//! | `difference` | what changes from one state to another, in words |
//!
//! # Numbers
//!
//! Numbers of lists, sets and rules are hashes of what they name, so that a change elsewhere leaves them
//! as they are, and with them decisions and counters. Rules next to each other with one verdict have one
//! priority, since their order decides nothing: a rule that is put between them moves no other.
//!
//! # Safe direction of error
//!
//! What contradicts itself is refused as a whole, with its place in the file. A name of a port that does not
//! exist is an empty member of a set, so a rule about it matches nothing. A guard counts what it cannot see
//! against the sender (`guards`).

#![forbid(unsafe_code)]

mod compile;
mod difference;
mod file;
mod groups;
mod guards;
mod judge;
mod lists;
mod marks;
mod mirrors;
mod names;
mod places;
mod rules;
mod shadow;
mod text;

pub use compile::compile;
pub use difference::differences;
pub use file::{findings, parse};
pub use flow::{ACLS, GUARDS, MARKS};
pub use judge::{Judge, Judgement};
pub use lists::{Direction, List, ListRule, Origin, Policies, PortLists, Set, SetMembers};
pub use mirrors::PortMirror;
pub use places::lines;
