//! What keeps packets from the kernel path, for users: of a port in `port show`, of a flow in `flow list`, of
//! a packet in `trace`.

use crate::port::Port;
use classifier::{FlowEntry, Shape};

/// Why packets from one port to another have to go through the data plane, if they have.
pub(crate) fn obstacle(from: &Port, to: &Port) -> Option<&'static str> {
    from.obstacle().or_else(|| to.obstacle())
}

/// Why the kernel cannot do what a flow does, if that is so.
pub(crate) fn of_shape(entry: &FlowEntry) -> Option<&'static str> {
    match &entry.decision.shape {
        Shape::Plain(_) if entry.flow.key.vlan_tci() != 0 => Some("its packets have a VLAN tag"),
        Shape::Plain(_) => None,
        Shape::Edited(_) => Some("it changes packets"),
        Shape::Metered(_) => Some("a meter has to see its packets"),
        Shape::Run if entry.flow.actions.is_empty() => Some("it drops its packets"),
        Shape::Run => Some("it does more than to send packets to one port"),
    }
}
