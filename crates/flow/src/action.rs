//! What can be done to a packet.

use crate::{DropReason, PortId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One step of a verdict. Steps run in order; header changes affect the outputs after them, not before
/// (`linux/openvswitch.h`, `enum ovs_action_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Action {
    /// Append the packet, as it is now, to a port's internal receive queue.
    Output(PortId),
    /// Insert an 802.1Q tag behind the Ethernet source address (IEEE 802.1Q-2018 9.4).
    PushVlan {
        /// Tag protocol identifier: 0x8100 or 0x88a8.
        tpid: u16,
        /// Priority (3 bits), DEI (1 bit) and VLAN identifier (12 bits).
        tci: u16,
    },
    /// Remove the outermost 802.1Q tag; without effect on an untagged packet.
    PopVlan,
    /// Hand a copy to the control process, with a value of its choice to recognise it by.
    Upcall {
        /// Returned unchanged in the upcall.
        cookie: u64,
    },
    /// Drop for a reason the control plane names. Only useful as the single action.
    Drop(DropReason),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Output(port) => write!(f, "output({port})"),
            Action::PushVlan { tpid, tci } => write!(f, "push_vlan(tpid={tpid:#06x},vid={})", tci & 0xfff),
            Action::PopVlan => f.write_str("pop_vlan"),
            Action::Upcall { cookie } => write!(f, "upcall({cookie:#x})"),
            Action::Drop(reason) => write!(f, "drop({reason})"),
        }
    }
}
