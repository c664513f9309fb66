//! Actions of flows and of packets to execute: nested `OVS_ACTION_ATTR_*`, as a tree.
//!
//! Reading refuses lists that are invalid for every packet. [`check()`] refuses actions that do not suit the
//! packets which the flow's key describes, as the kernel does when a flow is installed
//! (`__ovs_nla_copy_actions`). Actions that the kernel has and ovs-vswitchd 3.1 does not send (`dec_ttl`), or
//! that only later kernels have (`drop`, `psample`), are unknown here, so that later versions, which probe
//! for them, do without them.

mod check;
mod connection;
mod read;
mod set;
mod write;

pub use check::check;
pub use connection::{
    Commit, Conntrack, MAX_HELPER_NAME, MAX_TIMEOUT_NAME, Nat, NatAddresses, NatKind, NatRange,
};
pub use read::read;
pub use set::{Change, Set};
pub use write::write;

use crate::key::{Ethernet, NshHeader};

/// Most bytes of a list of actions (`MAX_ACTIONS_BUFSIZE`).
pub const MAX_BYTES: usize = 32 * 1024;
/// How deep lists may be in lists (`OVS_COPY_ACTIONS_MAX_DEPTH`); the outermost has depth 0.
pub const MAX_DEPTH: usize = 16;
/// Least length that packets may be cut to.
pub const LEAST_LENGTH: u32 = 14;

/// One action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends the packet to a port.
    Output(u32),
    /// Sends the packet to user space.
    Userspace(Userspace),
    /// Sets a header or a piece of metadata. Masks of all ones are written as `set`, others as `set_masked`.
    Set(Set),
    /// Puts a VLAN tag in front.
    PushVlan {
        /// Tag protocol identifier: 0x8100 or 0x88a8.
        tpid: u16,
        /// Priority and VLAN number, with [`crate::key::TAG_PRESENT`].
        tci: u16,
    },
    /// Takes the outermost VLAN tag off.
    PopVlan,
    /// Executes actions on a copy of some packets.
    Sample {
        /// Share of the packets, as a fraction of 2^32 - 1.
        probability: u32,
        /// The actions.
        actions: Vec<Action>,
    },
    /// Looks the packet up again, with this recirculation number.
    Recirculate(u32),
    /// Computes `dp_hash` from addresses and ports.
    Hash {
        /// Starting value.
        basis: u32,
    },
    /// Puts an MPLS label between Ethernet and network header.
    PushMpls {
        /// Label stack entry.
        entry: u32,
        /// Ethernet type of MPLS.
        eth_type: u16,
    },
    /// Takes the outermost MPLS label off; the packet then has this Ethernet type.
    PopMpls(u16),
    /// Puts an MPLS label in front.
    AddMpls {
        /// Label stack entry.
        entry: u32,
        /// Ethernet type of MPLS.
        eth_type: u16,
        /// Puts it between Ethernet and network header, else before the Ethernet header.
        layer_3: bool,
    },
    /// Looks up the packet's connection.
    Conntrack(Conntrack),
    /// Cuts the packet at its next output.
    Truncate(u32),
    /// Puts an Ethernet header in front.
    PushEthernet(Ethernet),
    /// Takes the Ethernet header off.
    PopEthernet,
    /// Clears the result of connection tracking.
    ClearConnection,
    /// Puts a network service header in front.
    PushNsh(NshHeader),
    /// Takes the network service header off.
    PopNsh,
    /// Passes the packet through a meter, which may drop it.
    Meter(u32),
    /// Executes actions on a copy.
    Clone(Vec<Action>),
    /// Executes one of two lists, depending on the packet's length.
    CheckLength {
        /// Bytes; not 0.
        length: u16,
        /// For longer packets.
        longer: Vec<Action>,
        /// For others.
        others: Vec<Action>,
    },
}

/// How a packet goes to user space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Userspace {
    /// Netlink port of the socket that receives it, not 0; ignored where sockets are chosen by processor.
    pub pid: u32,
    /// Bytes that are sent with it.
    pub userdata: Option<Vec<u8>>,
    /// Tunnel port whose outer headers are sent with it.
    pub egress_tunnel_port: Option<u32>,
    /// The actions of the flow are sent with it.
    pub actions: bool,
}

/// Attributes of a list of actions.
pub(crate) mod attr {
    pub const OUTPUT: u16 = 1;
    pub const USERSPACE: u16 = 2;
    pub const SET: u16 = 3;
    pub const PUSH_VLAN: u16 = 4;
    pub const POP_VLAN: u16 = 5;
    pub const SAMPLE: u16 = 6;
    pub const RECIRC: u16 = 7;
    pub const HASH: u16 = 8;
    pub const PUSH_MPLS: u16 = 9;
    pub const POP_MPLS: u16 = 10;
    pub const SET_MASKED: u16 = 11;
    pub const CT: u16 = 12;
    pub const TRUNC: u16 = 13;
    pub const PUSH_ETH: u16 = 14;
    pub const POP_ETH: u16 = 15;
    pub const CT_CLEAR: u16 = 16;
    pub const PUSH_NSH: u16 = 17;
    pub const POP_NSH: u16 = 18;
    pub const METER: u16 = 19;
    pub const CLONE: u16 = 20;
    pub const CHECK_PKT_LEN: u16 = 21;
    pub const ADD_MPLS: u16 = 22;
}

/// Attributes of `sample`.
pub(crate) mod sample {
    pub const PROBABILITY: u16 = 1;
    pub const ACTIONS: u16 = 2;
}

/// Attributes of `userspace`.
pub(crate) mod userspace {
    pub const PID: u16 = 1;
    pub const USERDATA: u16 = 2;
    pub const EGRESS_TUN_PORT: u16 = 3;
    pub const ACTIONS: u16 = 4;
}

/// Attributes of `check_pkt_len`.
pub(crate) mod check_length {
    pub const PKT_LEN: u16 = 1;
    pub const IF_GREATER: u16 = 2;
    pub const IF_LESS_EQUAL: u16 = 3;
}
