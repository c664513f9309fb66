//! An example of a provider: drops DHCP replies that come from ports where no server may be.
//!
//! Servers answer from UDP port 67, for IPv6 from port 547 (RFC 2131 4.1, RFC 8415 7.2). A guest that answers
//! before the real server does becomes the router of its neighbours. Fragments of such a reply need no look:
//! the first one has the port, and without it the others are worth nothing.

use control::provider::{Decide, Look, Verdict, pass};
use flow::{DropReason, FieldId, PortId, Stage};
use std::collections::BTreeSet;

const IPV4: u128 = 0x0800;
const IPV6: u128 = 0x86dd;
const UDP: u128 = 17;
/// The ports of servers.
const DHCP: u128 = 67;
const DHCPV6: u128 = 547;

/// The rules of the guard.
pub struct DhcpGuard {
    /// Ports where a server may be.
    pub trusted: BTreeSet<PortId>,
}

impl DhcpGuard {
    fn is_trusted(&self, packet: &Look<'_>) -> bool {
        let port = u32::try_from(packet.get(FieldId::InPort)).map(PortId);
        port.is_ok_and(|port| self.trusted.contains(&port))
    }
}

/// Whether the packet is a server's reply. What need not be read is not read: few flows come of it.
fn is_reply(packet: &Look<'_>) -> bool {
    let server = match packet.get(FieldId::EthType) {
        IPV4 => DHCP,
        IPV6 => DHCPV6,
        _ => return false,
    };
    packet.get(FieldId::IpProto) == UDP && packet.get(FieldId::TpSrc) == server
}

impl Decide for DhcpGuard {
    fn decide(&self, _: Stage, packet: &Look<'_>) -> Verdict {
        if !self.is_trusted(packet) && is_reply(packet) {
            return Err(DropReason::Policy);
        }
        pass()
    }
}
