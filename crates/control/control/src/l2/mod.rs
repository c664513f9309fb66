//! The learning switch, as pure logic: no I/O, and the clock is an argument.
//!
//! A [`LearningSwitch`] knows its ports' rules, which stations are where (`mac_table`), and the flows it has
//! had installed (`flows`). [`LearningSwitch::packet`] decides about a packet without a flow: it learns the
//! source, finds the destination, and returns actions together with the changes this makes to the flow table:
//! the packet's own flow, and those flows that relied on what is no longer true.
//!
//! # Why flows may be cached
//!
//! A decision is a function of (ingress port, source, destination, VLAN tag, whether there is an inner tag)
//! and of the switch's state. All flows compare exactly these fields, hence are disjoint, and live in a
//! single subtable of the data plane. Of the state, a decision reads: the rules of the ports (any change
//! re-examines all flows), the places of source and destination (flows are indexed by both, and a change
//! re-examines those), whether ports are connected or run (a change re-examines flows that flood, and those
//! of the port's contested stations and device), and, if learning was refused, how full the tables are (such
//! flows are re-examined when a place goes). A flow whose source would have to be learned is removed rather
//! than changed, so that the next packet is seen here. Where a change concerns many flows, some are
//! re-examined a little later (`moves`).
//!
//! # Who owns an address
//!
//! 1. `static-macs`: the address is on that port. Frames that come from it elsewhere are dropped.
//! 2. `mac` of a port, while the port's driver runs: the address is there. Frames that come from it elsewhere
//!    are forwarded, and nothing is learned from them.
//! 3. Otherwise the address is wherever it was seen (`mac_table`). Of several ports those count whose driver
//!    runs. If that leaves more than one, the address is contested and nobody owns it: frames for it go to
//!    all of these ports, or are dropped, as configured.
//!
//! Bounds on costs do not enter: whoever sends as often as each rival receives all frames for the address,
//! whatever the others do, and whoever came first.
//!
//! # Safe direction of error
//!
//! Not knowing a station means flooding to ports of its VLAN: more packets, never fewer, and never into
//! another VLAN. Not knowing whose a contested one is means sending to all who may own it. Times are in
//! milliseconds of any clock that does not go backwards.

mod decide;
mod flows;
mod mac_table;
mod moves;
mod notes;
mod private_vlan;
mod provide;
pub mod storm;
mod switch;
mod vlan;

#[cfg(test)]
mod owner_tests;
#[cfg(test)]
mod twin;

pub use decide::{Decision, Destination, Source};
pub use flows::{MASK, flow_id};
pub use mac_table::Station;
pub use moves::MoveCounts;
pub use notes::{Note, Notes};
pub use switch::{DROP_FLOW_IDLE_MS, LearningSwitch, MacEntry, PortRules, Readiness, SwitchRules};
