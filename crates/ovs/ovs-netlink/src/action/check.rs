//! Checks that actions suit the packets of a flow, as the kernel does when the flow is installed
//! (`__ovs_nla_copy_actions`).

use super::{Action, Change, Conntrack, Nat, NatAddresses, Set, read::wrong};
use crate::error::Error;
use crate::key::{Match, Network, TAG_PRESENT, ether, ip};

/// The properties of the packet that are known before an action.
#[derive(Clone, Copy)]
struct Packet<'a> {
    /// The flow.
    flow: &'a Match,
    /// The packet begins with an Ethernet header.
    ethernet: bool,
    /// The packet has a VLAN tag.
    tagged: bool,
    /// Ethernet type behind tags; 0 if it is not known.
    eth_type: u16,
    /// MPLS labels.
    labels: usize,
}

/// Checks that `actions` suit all packets of `flow`. Of the packets, only the bits that the mask matches are
/// known. For a packet to execute, `flow` is its key and [`crate::key::Key::exact_mask`].
///
/// In a nested list, the kernel knows only whether the flow's packets have an Ethernet header; here a nested
/// list begins with the packet as the actions before it left it.
///
/// # Errors
///
/// An action changes a header that the packets need not have, or one that it may not change.
pub fn check(actions: &[Action], flow: &Match) -> Result<(), Error> {
    let tag = |key: &crate::key::Key| key.vlans[0].map_or(0, |tag| tag.tci);
    let labels = match &flow.key.network {
        Network::Mpls(labels) => labels.entries().len(),
        _ => 0,
    };
    let packet = Packet {
        flow,
        ethernet: flow.key.ethernet.is_some(),
        tagged: tag(&flow.key) & tag(&flow.mask.0) & TAG_PRESENT != 0,
        eth_type: flow.key.eth_type & flow.mask.0.eth_type,
        labels,
    };
    check_list(actions, packet)
}

fn check_list(actions: &[Action], mut packet: Packet<'_>) -> Result<(), Error> {
    actions.iter().try_for_each(|action| packet.pass(action))
}

impl Packet<'_> {
    /// Checks an action, and applies its effect on the packet to the known properties.
    fn pass(&mut self, action: &Action) -> Result<(), Error> {
        match action {
            Action::Set(set) => self.set(set),
            Action::PushVlan { .. } => {
                self.needs(self.ethernet, "push_vlan")?;
                self.tagged = true;
                Ok(())
            }
            Action::PopVlan => {
                self.needs(self.ethernet, "pop_vlan")?;
                self.tagged = false;
                Ok(())
            }
            Action::PushMpls { eth_type, .. } => self.push_mpls(*eth_type),
            Action::AddMpls {
                eth_type,
                layer_3: true,
                ..
            } => self.push_mpls(*eth_type),
            Action::AddMpls { eth_type, .. } => {
                self.labels = if self.ethernet { 1 } else { self.labels + 1 };
                self.ethernet = false;
                self.eth_type = *eth_type;
                Ok(())
            }
            Action::PopMpls(eth_type) => self.pop_mpls(*eth_type),
            Action::PushEthernet(_) => {
                self.needs(!self.ethernet, "push_eth")?;
                self.ethernet = true;
                Ok(())
            }
            Action::PopEthernet => {
                self.needs(self.ethernet && !self.tagged, "pop_eth")?;
                self.ethernet = false;
                Ok(())
            }
            Action::PushNsh(_) => {
                self.needs(self.ethernet || next_protocol(self.eth_type), "push_nsh")?;
                self.ethernet = false;
                Ok(())
            }
            Action::PopNsh => self.pop_nsh(),
            Action::Conntrack(conntrack) => self.conntrack(conntrack),
            Action::Sample { actions, .. } | Action::Clone(actions) => check_list(actions, *self),
            Action::CheckLength { longer, others, .. } => {
                check_list(longer, *self)?;
                check_list(others, *self)
            }
            Action::Output(_)
            | Action::Userspace(_)
            | Action::Recirculate(_)
            | Action::Hash { .. }
            | Action::Truncate(_)
            | Action::ClearConnection
            | Action::Meter(_) => Ok(()),
        }
    }

    /// Unless `holds`, an error that names the action and the packet's Ethernet type.
    fn needs(&self, holds: bool, action: &'static str) -> Result<(), Error> {
        if holds {
            Ok(())
        } else {
            wrong(action, self.eth_type)
        }
    }

    fn push_mpls(&mut self, eth_type: u16) -> Result<(), Error> {
        let known = matches!(
            self.eth_type,
            ether::IPV4 | ether::IPV6 | ether::ARP | ether::RARP
        );
        self.needs(
            !self.tagged && (known || ether::is_mpls(self.eth_type)),
            "push_mpls",
        )?;
        self.eth_type = eth_type;
        self.labels += 1;
        Ok(())
    }

    /// Behind the last label the Ethernet type counts as unknown: the header there has not been parsed.
    fn pop_mpls(&mut self, eth_type: u16) -> Result<(), Error> {
        self.needs(!self.tagged && ether::is_mpls(self.eth_type), "pop_mpls")?;
        self.needs(!self.ethernet || eth_type != ether::BRIDGED, "pop_mpls")?;
        self.labels = self.labels.saturating_sub(1);
        let more = ether::is_mpls(eth_type) && self.labels > 0;
        self.eth_type = if more { eth_type } else { 0 };
        Ok(())
    }

    fn pop_nsh(&mut self) -> Result<(), Error> {
        let (Network::Nsh(key), Network::Nsh(mask)) = (&self.flow.key.network, &self.flow.mask.0.network)
        else {
            return self.needs(false, "pop_nsh");
        };
        self.needs(self.eth_type == ether::NSH, "pop_nsh")?;
        let inner = key.base.next_protocol & mask.base.next_protocol;
        self.needs((IN_NSH_FIRST..=IN_NSH_LAST).contains(&inner), "pop_nsh")?;
        self.ethernet = inner == IN_NSH_ETHERNET;
        Ok(())
    }

    fn conntrack(&self, conntrack: &Conntrack) -> Result<(), Error> {
        let family = self.flow.key.eth_type & self.flow.mask.0.eth_type;
        let over_ipv6 = match family {
            ether::IPV4 => false,
            ether::IPV6 => true,
            _ => return self.needs(false, "ct"),
        };
        let Some(Nat::New { range, .. }) = &conntrack.nat else {
            return Ok(());
        };
        let fits = match range.addresses {
            None => true,
            Some(NatAddresses::V4(..)) => !over_ipv6,
            Some(NatAddresses::V6(..)) => over_ipv6,
        };
        self.needs(fits, "ct with nat")
    }

    fn set(&self, set: &Set) -> Result<(), Error> {
        let over_ip = matches!(self.eth_type, ether::IPV4 | ether::IPV6);
        let carries = |wanted| over_ip && self.protocol() == wanted;
        match set {
            Set::Priority(_) | Set::Mark(_) | Set::Tunnel(_) => Ok(()),
            Set::Ethernet(_) => self.needs(self.ethernet, "set(eth)"),
            Set::Ipv4(Change { value, mask }) => {
                let mask = mask.map(|mask| (mask.protocol, mask.fragment));
                let fixed = self.keeps((value.protocol, value.fragment), mask);
                self.needs(self.eth_type == ether::IPV4 && fixed, "set(ipv4)")
            }
            Set::Ipv6(Change { value, mask }) => {
                let label = mask.map_or(value.label, |mask| mask.label | value.label);
                let mask = mask.map(|mask| (mask.protocol, mask.fragment));
                let fixed = self.keeps((value.protocol, value.fragment), mask);
                self.needs(
                    self.eth_type == ether::IPV6 && fixed && label >> 20 == 0,
                    "set(ipv6)",
                )
            }
            Set::Tcp(_) => self.needs(carries(ip::TCP), "set(tcp)"),
            Set::Udp(_) => self.needs(carries(ip::UDP), "set(udp)"),
            Set::Sctp(_) => self.needs(carries(ip::SCTP), "set(sctp)"),
            Set::Mpls(_) => self.needs(ether::is_mpls(self.eth_type), "set(mpls)"),
            Set::Nsh(_) => self.needs(self.eth_type == ether::NSH, "set(nsh)"),
            Set::Icmp(_) | Set::Icmpv6(_) | Set::Arp(_) | Set::NeighbourDiscovery(_) => {
                self.needs(false, "set(icmp, arp, nd)")
            }
        }
    }

    /// Transport protocol that the flow matches, else 0.
    fn protocol(&self) -> u8 {
        self.ip().0
    }

    /// Transport protocol and fragment type that the flow matches, else 0.
    fn ip(&self) -> (u8, u8) {
        match (&self.flow.key.network, &self.flow.mask.0.network) {
            (Network::Ipv4(key), Network::Ipv4(mask)) => {
                (key.protocol & mask.protocol, key.fragment & mask.fragment)
            }
            (Network::Ipv6(key), Network::Ipv6(mask)) => {
                (key.protocol & mask.protocol, key.fragment & mask.fragment)
            }
            _ => (0, 0),
        }
    }

    /// Whether protocol and fragment type stay as they are.
    fn keeps(&self, value: (u8, u8), mask: Option<(u8, u8)>) -> bool {
        match mask {
            Some(mask) => mask == (0, 0),
            None => value == self.ip(),
        }
    }
}

/// `TUN_P_IPV4` to `TUN_P_MPLS_UC`: the protocols that a network service header can carry.
const IN_NSH_FIRST: u8 = 1;
const IN_NSH_LAST: u8 = 5;
/// `TUN_P_ETHERNET`.
const IN_NSH_ETHERNET: u8 = 3;

/// Whether a network service header can name this Ethernet type (`tun_p_from_eth_p`).
fn next_protocol(eth_type: u16) -> bool {
    matches!(
        eth_type,
        ether::IPV4 | ether::IPV6 | ether::BRIDGED | ether::NSH | ether::MPLS
    )
}
