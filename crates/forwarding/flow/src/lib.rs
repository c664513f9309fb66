//! The contract between the control plane, which decides about packets, and the data plane, which forwards
//! them.
//!
//! A *flow* is a set of packets that are treated alike: a [`FlowKey`] compared under a [`FlowMask`],
//! and the [`Action`]s applied to what matches. The semantics follow the Open vSwitch kernel datapath
//! (`linux/openvswitch.h`), because that is the contract under which an unmodified OVS control plane can
//! drive this data plane. The data plane's table has no priorities: the control plane keeps flows disjoint.
//!
//! | module | contents |
//! |---|---|
//! | `key`, `exact`, `key_format` | the flow key; its shortest form for exact matches; keys as text |
//! | `field`, `context`, `unseen` | the table of fields; metadata that few packets have; fields that a parser could not see |
//! | `action`, `edit`, `program`, `meter` | actions; changes of a packet; actions as they run; meters |
//! | `rate_limit` | bandwidths of ports |
//! | `stage`, `id` | stages of look-up; identifiers that cross process boundaries |
//! | `mirror` | copies of a port's packets for another port |
//! | `named_policy` | rule lists that any controller may give to its ports |
//! | `counters`, `drop_reason` | counters of a port; every way a packet can end undelivered |
//!
//! Each reason for which a packet can be dropped is a [`DropReason`]; all counters of a port are in
//! [`PortCounters`].

#![forbid(unsafe_code)]

mod action;
mod context;
mod counters;
mod drop_reason;
mod edit;
mod exact;
mod field;
mod id;
mod key;
mod key_format;
mod meter;
mod mirror;
mod named_policy;
mod program;
mod rate_limit;
mod stage;
mod unseen;

pub use action::{Action, Nested, Userspace};
pub use context::{Context, ContextMatch};
pub use counters::PortCounters;
pub use drop_reason::{DropCounts, DropReason};
pub use edit::{Edit, Encapsulation, NshHeader, SetField, VLAN_PRIORITY};
pub use exact::ExactKey;
pub use field::{FIELDS, Field, FieldId, Layer, is_mpls, is_vlan};
pub use id::{ControllerId, FlowId, ListId, P4Id, PortId, ProviderId, SwitchId};
pub use key::{FlowKey, FlowMask, KEY_WORDS, VLAN_PRESENT};
pub use meter::{MAX_METERS, MeterBand, MeterSpec, MeterStats, MeterUnit};
pub use mirror::{MAX_MIRRORS, Mirror, MirrorPoint, Mirrored};
pub use named_policy::{ACLS, GUARDS, MARKS, NamedPolicy};
pub use program::{BadActions, Builder, MAX_BYTES, MAX_NESTING, MAX_OPS, Op, Program};
pub use rate_limit::{PortRates, RateClass, RateLimit, Share};
pub use stage::{Filter, Filters, MAX_FILTERS, Stage};
pub use unseen::Unseen;

use serde::{Deserialize, Serialize};

/// A megaflow: packets of `switch` that equal `key` wherever `mask` has ones get `actions`, in order, when
/// they come to `stage`. Those of the forward stage are for one pass, that of the key's recirculation id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Unique among the flows of its switch; chosen by the control plane.
    pub id: FlowId,
    /// The switch whose table holds the flow.
    pub switch: SwitchId,
    /// The stage that the flow belongs to.
    pub stage: Stage,
    /// Values to compare; bits outside `mask` are zero.
    pub key: FlowKey,
    /// Which bits of the key are compared.
    pub mask: FlowMask,
    /// The bits of the context that are compared, if any.
    pub context: Option<Box<ContextMatch>>,
    /// What happens to a matching packet. An empty list drops it as [`DropReason::NoAction`].
    pub actions: Vec<Action>,
}

impl Flow {
    /// A flow of the forward stage that does not match contexts.
    pub fn new(id: FlowId, switch: SwitchId, key: FlowKey, mask: FlowMask, actions: Vec<Action>) -> Flow {
        Flow {
            id,
            switch,
            stage: Stage::Forward,
            key,
            mask,
            context: None,
            actions,
        }
    }
}

/// The statistics of a flow that takes the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Statistics {
    /// The new flow begins at zero.
    New,
    /// The new flow goes on from the old one's statistics.
    Kept,
}

/// How a flow is put into a table that may have one with the same identifier, and one that matches the same
/// packets (equal stage, mask and masked key).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PutMode {
    /// Neither must exist.
    Create,
    /// One must exist, and is replaced.
    Modify(Statistics),
    /// Flows that exist are replaced.
    CreateOrModify(Statistics),
}

/// A flow's statistics so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowStats {
    /// Packets that matched.
    pub packets: u64,
    /// Bytes of these packets, Ethernet header included, without virtio-net header.
    pub bytes: u64,
    /// Milliseconds since the last match; `None` when nothing ever matched.
    pub idle_ms: Option<u64>,
    /// All TCP flags of packets as they came from their ports, ORed.
    pub tcp_flags: u16,
}
