//! Finds the flow that a packet belongs to.
//!
//! There are two levels, as in Pfaff et al., *The Design and Implementation of Open vSwitch* (NSDI 2015):
//! each worker thread remembers keys in a [`MicroflowCache`] of its own; behind it stands the switch's
//! [`MegaflowTable`], searched mask by mask. Flows have no priorities: the control plane keeps flows
//! disjoint, and where they overlap, any match is as good as another.
//!
//! The outcome of a flow, or of a walk through several flows, is a [`Decision`] that both levels share.
//! Removing a flow from the table ends the decisions that depend on it. A decision that has ended is a miss
//! in every cache that still holds it, so no thread has to reach into another thread's cache.
//!
//! | module | contents |
//! |---|---|
//! | `microflow`, `train`, `tally` | a worker's cache; packets that are counted at once; counts on their way to flows |
//! | `mask_union` | the bits of a key that flows match |
//! | `behind`, `behind_bits` | the cache for what later look-ups compare; the bits of these |
//! | `megaflow`, `port_flows` | the table of a switch; the flows of one input port, between threads |
//! | `rules`, `class` | rule lists of filters, and what a change of them ends; packets that they judge alike |
//! | `judged` | kinds of packets that cached decisions of a list are about, for users |
//! | `rule_logs` | packets that rules note for users |
//! | `rule_bits`, `promotion` | bits of lists' answers that mask unions have; when others come to them |
//! | `stages`, `list` | flows of filters and later passes; subtables that are searched together |
//! | `subtable`, `prefixes`, `hash` | flows with one mask; beginnings of keys that it has; keyed hashing |
//! | `entry`, `decision` | an installed flow; what is decided about packets of one kind |
//! | `dependents` | the decisions that a flow, or a rule list, is a part of |
//! | `walk`, `compose`, `stand_in` | from flow to flow; the flows of a walk as one decision; a packet that stands for its kind |
//! | `refused` | why the table refuses a flow |
//!
//! Guests choose the keys, and must not be able to choose the cost: hashing is keyed by a secret, tables are
//! bounded, and the masks made for one port are never searched for another (CVE-2019-25076 shows what happens
//! otherwise).
//!
//! Only the megaflow table is shared between threads: one thread changes it, others look up through
//! [`PortFlows`], behind a lock per port that changes hold for less than a microsecond.

#![forbid(unsafe_code)]

mod behind;
mod behind_bits;
mod class;
mod compose;
mod decision;
mod dependents;
mod entry;
mod hash;
mod judged;
mod list;
mod mask_union;
mod megaflow;
mod microflow;
mod port_flows;
mod prefixes;
mod promotion;
mod refused;
mod rule_bits;
mod rule_logs;
mod rules;
mod stages;
mod stand_in;
mod subtable;
mod tally;
mod train;
mod walk;

pub use behind_bits::Words;
pub use compose::{MAX_PARTS, Walked, Walker, dp_hash};
pub use decision::{Copied, Decision, Edited, Metered, Shape};
pub use entry::{FlowEntry, Found, RuleOrigin};
pub use megaflow::{DEFAULT_MAX_FLOWS, DEFAULT_MAX_MASKS, MegaflowTable};
pub use microflow::{DEFAULT_CACHE_ENTRIES, FIRST_CACHE_ENTRIES, MicroflowCache, Place, second};
pub use port_flows::{Hint, PortFlows, Reading};
pub use refused::Refused;
pub use rule_logs::RuleLogs;
pub use rules::{Ending, Rules};
pub use train::Train;
pub use walk::{Branch, MAX_LOOKS, MAX_STEPS, NoTables, Stack, Start, Subject, Tables, run};
