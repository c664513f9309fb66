//! Which flow a packet belongs to.
//!
//! Two levels, as in Pfaff et al., *The Design and Implementation of Open vSwitch* (NSDI 2015): each worker
//! thread remembers keys in a [`MicroflowCache`] of its own; behind it stands the switch's
//! [`MegaflowTable`], searched mask by mask. Nothing has a priority: whoever installs flows keeps them
//! disjoint, and where they are not, any match is as good as another.
//!
//! A flow is a [`FlowEntry`] that both levels share. Removing it from the table marks it dead, and a dead
//! entry is a miss wherever it still lies, so that nobody has to reach into another thread's cache.
//!
//! Guests choose the keys. What they must not be able to choose is the cost: hashing is keyed by a secret,
//! tables are bounded, and the masks made for one port are never searched for another (CVE-2019-25076 is what
//! happens otherwise).
//!
//! Only the megaflow table is shared between threads: one changes it, others look up through [`PortFlows`], behind a lock
//! per port that changes hold for less than a microsecond.

#![forbid(unsafe_code)]

mod entry;
mod hash;
mod list;
mod megaflow;
mod microflow;
mod port_flows;
mod prefixes;
mod significant;
mod subtable;

pub use entry::FlowEntry;
pub use megaflow::{DEFAULT_MAX_FLOWS, DEFAULT_MAX_MASKS, MegaflowTable, TableFull};
pub use microflow::{DEFAULT_CACHE_ENTRIES, MicroflowCache, Train};
pub use port_flows::{PortFlows, Reading};
