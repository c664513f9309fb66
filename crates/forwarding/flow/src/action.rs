//! Actions: what a flow does to a packet.

use crate::edit::Edit;
use crate::program::MAX_NESTING;
use crate::{DropReason, PortId};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::fmt;

/// One step of a list. Steps run in order; header changes affect the outputs after them, not before
/// (`linux/openvswitch.h`, `enum ovs_action_attr`). Actions of connection tracking are not there yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Action {
    /// Send the packet, as it is now, to a port, past the port's egress filters.
    Output(PortId),
    /// Change the packet.
    Edit(Edit),
    /// Hand a copy to the controller.
    Userspace(Userspace),
    /// Drop for a reason the control plane names. Ends the list.
    Drop(DropReason),
    /// Apply a list to copies of some of the packets.
    Sample {
        /// Of 2^32 - 1 packets, about how many.
        probability: u32,
        /// What is done to the copy.
        actions: Nested,
    },
    /// Apply a list to a copy of the packet, which has no effect on what follows.
    Clone(Nested),
    /// Cut the packet to at most that many bytes for the next output or copy to the controller.
    Truncate(u32),
    /// Apply one of two lists to a copy of the packet.
    CheckPktLen {
        /// Length of the longest frame that `otherwise` applies to, in bytes. For a frame to be segmented,
        /// its longest segment counts.
        len: u16,
        /// For longer frames.
        greater: Nested,
        /// For other frames.
        otherwise: Nested,
    },
    /// Look a copy of the packet up again in the forward stage, with that recirculation id in its key.
    Recirc(u32),
    /// Compute `dp_hash` over addresses, protocol and transport ports, of fragments without ports; never 0.
    Hash {
        /// Seed: other numbers make other hashes.
        basis: u32,
    },
    /// Drop the packet, and end the list, when the meter with that number says so. One that does not exist
    /// lets it pass.
    Meter(u32),
    /// Pass a copy on to the next stage; after the last egress filter, to the port.
    Continue,
}

/// What goes to the controller with a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Userspace {
    /// The controller's socket that gets the packet (`OVS_USERSPACE_ATTR_PID`).
    pub pid: u32,
    /// Data that the controller gets back unchanged.
    pub data: Box<[u8]>,
    /// Port of the tunnel through which the packet would leave, if the controller wants the tunnel's
    /// metadata.
    pub egress: Option<PortId>,
    /// Whether the controller wants the flow's actions with the packet.
    pub with_actions: bool,
}

/// A list of actions within an action. Other processes write such lists, so reading one is bounded in depth.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Nested(pub Vec<Action>);

impl<'de> Deserialize<'de> for Nested {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        thread_local! {
            static DEPTH: Cell<usize> = const { Cell::new(0) };
        }
        let depth = DEPTH.get() + 1;
        if depth > MAX_NESTING {
            return Err(serde::de::Error::custom("actions are nested too deeply"));
        }
        DEPTH.set(depth);
        let actions = Vec::deserialize(deserializer);
        DEPTH.set(depth - 1);
        actions.map(Nested)
    }
}

impl fmt::Display for Nested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, action) in self.0.iter().enumerate() {
            let separator = if position == 0 { "" } else { "," };
            write!(f, "{separator}{action}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Output(port) => write!(f, "output({port})"),
            Action::Edit(edit) => edit.fmt(f),
            Action::Userspace(to) => write!(f, "userspace(pid={},{} bytes)", to.pid, to.data.len()),
            Action::Drop(reason) => write!(f, "drop({reason})"),
            Action::Sample { probability, actions } => {
                let percent = f64::from(*probability) * 100.0 / f64::from(u32::MAX);
                write!(f, "sample({percent:.1}%,{actions})")
            }
            Action::Clone(actions) => write!(f, "clone({actions})"),
            Action::Truncate(len) => write!(f, "trunc({len})"),
            Action::CheckPktLen {
                len,
                greater,
                otherwise,
            } => {
                write!(f, "check_pkt_len(size={len},gt({greater}),le({otherwise}))")
            }
            Action::Recirc(id) => write!(f, "recirc({id:#x})"),
            Action::Hash { basis } => write!(f, "hash(l4({basis}))"),
            Action::Meter(meter) => write!(f, "meter({meter})"),
            Action::Continue => f.write_str("continue"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> Action {
        (0..depth).fold(Action::Edit(Edit::PopVlan), |inner, _| {
            Action::Clone(Nested(vec![inner]))
        })
    }

    #[test]
    fn lists_survive_the_wire_up_to_their_depth() {
        for depth in [0, 1, MAX_NESTING] {
            let bytes = postcard::to_stdvec(&nested(depth)).unwrap();
            assert_eq!(postcard::from_bytes(&bytes), Ok(nested(depth)));
        }
        let bytes = postcard::to_stdvec(&nested(MAX_NESTING + 1)).unwrap();
        assert!(postcard::from_bytes::<Action>(&bytes).is_err());
        // A refusal leaves nothing behind.
        let bytes = postcard::to_stdvec(&nested(MAX_NESTING)).unwrap();
        assert!(postcard::from_bytes::<Action>(&bytes).is_ok());
    }
}
