//! The contract between whoever decides about packets and whoever forwards them.
//!
//! A *flow* is a set of packets that are treated alike: a [`FlowKey`] compared under a [`FlowMask`],
//! and the [`Action`]s applied to what matches. The semantics follow the Open vSwitch kernel datapath
//! (`linux/openvswitch.h`), because that is the contract under which an unmodified OVS control plane can
//! drive this data plane. The data plane's table has no priorities: whoever installs flows keeps them
//! disjoint.
//!
//! Everything a packet can die of is a [`DropReason`]; everything that is counted is in [`PortCounters`].

#![forbid(unsafe_code)]

mod action;
mod counters;
mod drop_reason;
mod exact;
mod id;
mod key;
mod key_format;

pub use action::Action;
pub use counters::PortCounters;
pub use drop_reason::{DropCounts, DropReason};
pub use exact::ExactKey;
pub use id::{FlowId, PortId, SwitchId};
pub use key::{FIELDS, Field, FlowKey, FlowMask, KEY_WORDS, VLAN_PRESENT};

use serde::{Deserialize, Serialize};

/// A megaflow: packets of `switch` that equal `key` wherever `mask` has ones get `actions`, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Unique among the flows of its switch; chosen by whoever installs the flow.
    pub id: FlowId,
    /// The switch whose table holds the flow.
    pub switch: SwitchId,
    /// Values to compare; bits outside `mask` are zero.
    pub key: FlowKey,
    /// Which bits of the key are compared.
    pub mask: FlowMask,
    /// What happens to a matching packet. An empty list drops it as [`DropReason::NoAction`].
    pub actions: Vec<Action>,
}

/// What a flow has seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowStats {
    /// Packets that matched.
    pub packets: u64,
    /// Their bytes, Ethernet header included, without virtio-net header.
    pub bytes: u64,
    /// Milliseconds since the last match; `None` when nothing ever matched.
    pub idle_ms: Option<u64>,
    /// All TCP flags seen, ORed.
    pub tcp_flags: u16,
}
