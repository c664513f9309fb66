//! The learning switch, as pure logic: no I/O, and the clock is an argument.
//!
//! A [`LearningSwitch`] knows its ports' rules, which stations are where (`mac_table`), and the flows it has had
//! installed (`flows`). [`LearningSwitch::packet`] decides about a packet without a flow: it learns the source, finds
//! the destination, and returns actions together with the changes this makes to the flow table: the
//! packet's own flow, and those flows that relied on what is no longer true.
//!
//! # Why flows may be cached
//!
//! A decision is a function of (ingress port, source, destination, VLAN tag, whether there is an inner tag) and of the switch's state. All
//! flows compare exactly these fields, hence are disjoint, and live in a single subtable of the data plane. Of
//! the state, a decision reads: the rules of the ports (any change re-examines all flows), the entries of
//! source and destination (flows are indexed by both, and a change re-examines those), and, if
//! learning was refused, how full the tables are (such flows are re-examined when an entry goes) and whether the
//! station is held (`moves`; re-examined when that ends). A flow
//! whose source would have to be learned is removed rather than changed, so that the next packet is seen here.
//!
//! # Safe direction of error
//!
//! Not knowing a station means flooding to ports of its VLAN: more packets, never fewer, and never into
//! another VLAN. Times are in milliseconds of any clock that does not go backwards.

mod decide;
mod flows;
mod mac_table;
mod moves;
mod switch;
mod vlan;

#[cfg(test)]
mod twin;

pub use decide::{Decision, Destination, Source};
pub use flows::{FlowChange, MASK, flow_id};
pub use mac_table::Station;
pub use moves::MoveCounts;
pub use switch::{DROP_FLOW_IDLE_MS, FLOW_IDLE_MS, LearningSwitch, MacEntry, PortRules, SwitchRules};
