//! Packets from which a port's addresses are learned, by DHCP or by first use.
//!
//! | packet | from | what becomes of it |
//! |---|---|---|
//! | a client's request | a port with `address-source = "dhcp"` | its number waits for the lease |
//! | a server's ACK or reply | a port with `dhcp-server` | the port that asked has the address for as long as the lease says |
//! | a client's release or decline | a port that has the address so | the port has it no longer |
//! | any, from another address | a port with `address-source = "first-use"` | the port has the address, and the packet goes on; or it is dropped (`address-taken`, `address-limit`) |
//!
//! An address that another port states, or has by first use, is nobody else's. A lease that another port
//! has is the server's to give: it moves. What is learned is saved with the intent, so that it outlives this
//! process.

use crate::control::Control;
use crate::dhcp::{self, Kind, Message};
use crate::intent::LearnedAddress;
use crate::learning::{self, NotLearned};
use crate::state::desired;
use control_protocol::data_plane::{Execute, Request, Upcall, UpcallCause};
use flow::{Action, DropReason, FlowKey, GUARDS, PortId, Stage};
use management::{AddressSource, PortConfig};
use rule_list::Verdict;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The filter that asked.
const GUARD: Stage = Stage::Ingress(GUARDS as u8);

const IPV6: u16 = 0x86dd;
const ICMPV6: u8 = 58;
const NEIGHBOUR_SOLICITATION: u16 = 135;
const NEIGHBOUR_ADVERTISEMENT: u16 = 136;

/// What a rule wants of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Copied,
    Asked,
}

/// The rule's wish, if a rule sent the packet.
pub(crate) fn told_by_rule(upcall: &Upcall) -> Option<Told> {
    match &upcall.cause {
        UpcallCause::Action(userspace) if *userspace.data == *Verdict::COPIED => Some(Told::Copied),
        UpcallCause::Action(userspace) if *userspace.data == *Verdict::ASKED => Some(Told::Asked),
        UpcallCause::Action(_) | UpcallCause::Miss { .. } => None,
    }
}

impl Control {
    /// A rule has sent a packet.
    pub fn on_packet_of_source(&mut self, upcall: Upcall, told: Told, now_ms: u64) {
        let id = upcall.id;
        let request = match told {
            Told::Copied => {
                if let Some(message) = dhcp::parse(&upcall.packet.frame) {
                    self.on_dhcp(PortId(upcall.key.in_port()), &message, now_ms);
                }
                Request::Taken { upcall: id }
            }
            Told::Asked => match self.use_first(&upcall.key) {
                Ok(()) => Request::Execute(Execute {
                    upcall: Some(id),
                    in_port: PortId(upcall.key.in_port()),
                    stage: GUARD,
                    recirc_id: 0,
                    dp_hash: 0,
                    no_ethernet: false,
                    actions: vec![Action::Continue],
                    packet: upcall.packet,
                }),
                Err(reason) => Request::Discard { upcall: id, reason },
            },
        };
        self.data_plane.client.end_upcall(request);
    }

    fn on_dhcp(&mut self, from: PortId, message: &Message, now_ms: u64) {
        let client = number(message.client);
        let name = match message.kind {
            Kind::Request | Kind::Release => self.names.get(&from).cloned(),
            Kind::Ack => self.client_of(from, client),
        };
        let Some((name, limit)) = name.and_then(|name| {
            let port = self.learns(&name, AddressSource::Dhcp)?;
            let is_own = port.mac.map(|mac| number(mac.bytes())) == Some(client);
            is_own.then(|| (name, usize::from(port.address_limit.get())))
        }) else {
            return;
        };
        let transaction = message.transaction;
        match message.kind {
            Kind::Request => self.learning.ask(&name, transaction, now_ms),
            Kind::Release => {
                for (address, _) in &message.addresses {
                    if learning::remove(&mut self.intent.learned, &name, *address) {
                        self.learning.mark();
                    }
                }
            }
            Kind::Ack => {
                if self.learning.take_question(&name, transaction, now_ms) {
                    let addresses = message.addresses.iter();
                    let addresses = addresses.filter(|(address, _)| is_of_host(*address));
                    addresses.for_each(|lease| self.on_lease(from, &name, *lease, limit));
                }
            }
        }
    }

    /// A server has granted an address, for so many seconds, that the guest has asked for.
    fn on_lease(&mut self, from: PortId, name: &str, lease: (IpAddr, Option<u32>), limit: usize) {
        let (address, lease_s) = lease;
        let until = lease_s.map(|lease_s| now_s() + u64::from(lease_s));
        let new = LearnedAddress { address, until };
        let refused = if self.is_of_another(name, address, false) {
            Some(NotLearned::Taken)
        } else {
            learning::take_from_others(&mut self.intent.learned, name, address);
            learning::add(&mut self.intent.learned, name, new, limit).err()
        };
        self.learning.mark();
        if let Some(reason) = refused {
            telemetry::limited_by!(
                from.0,
                log::Level::Warn,
                "port {name}: the lease of {address} does not count: {reason:?}"
            );
        }
    }

    /// The port of the same switch whose guest has that MAC address and gets leases.
    fn client_of(&self, server: PortId, client: u64) -> Option<String> {
        let switch = &self.ports.get(self.names.get(&server)?)?.wanted.switch;
        let beside = self.ports.iter().filter(|(_, run)| run.wanted.switch == *switch);
        let mut clients = beside.filter(|(name, _)| {
            let port = self.learns(name, AddressSource::Dhcp);
            port.and_then(|port| port.mac).map(|mac| number(mac.bytes())) == Some(client)
        });
        clients.next().map(|(name, _)| name.clone())
    }

    /// The configuration of a port that gets addresses so.
    fn learns(&self, name: &str, source: AddressSource) -> Option<&PortConfig> {
        let port = self.ports.get(name)?.wanted.config.as_ref()?;
        (port.address_source == source).then_some(port)
    }

    /// Gives the port the addresses that its packet uses. `Err` is the reason to drop the packet.
    fn use_first(&mut self, key: &FlowKey) -> Result<(), DropReason> {
        let name = self.names.get(&PortId(key.in_port())).cloned();
        let name = name.ok_or(DropReason::PortRemoved)?;
        let port = self
            .learns(&name, AddressSource::FirstUse)
            .ok_or(DropReason::Policy)?;
        let limit = usize::from(port.address_limit.get());
        let used = addresses_of(key);
        if used.is_empty() || !used.iter().all(|address| is_of_host(*address)) {
            return Err(DropReason::Policy);
        }
        if used
            .iter()
            .any(|address| self.is_of_another(&name, *address, true))
        {
            return Err(DropReason::AddressTaken);
        }
        for address in used {
            let new = LearnedAddress { address, until: None };
            match learning::add(&mut self.intent.learned, &name, new, limit) {
                Ok(true) => self.learning.mark(),
                Ok(false) => {}
                Err(_) => return Err(DropReason::AddressLimit),
            }
        }
        Ok(())
    }

    /// Whether another port of the switch has an address: one that it states, one by first use, or with
    /// `leases` also one by DHCP.
    fn is_of_another(&self, name: &str, address: IpAddr, leases: bool) -> bool {
        let Some(switch) = self.ports.get(name).map(|run| &run.wanted.switch) else {
            return true;
        };
        let others = self
            .ports
            .iter()
            .filter(|(other, run)| *other != name && run.wanted.switch == *switch);
        others.into_iter().any(|(other, run)| {
            let Some(port) = &run.wanted.config else {
                return false;
            };
            let counts = leases || port.address_source == AddressSource::FirstUse;
            let learned = self.intent.learned.get(other).into_iter().flatten();
            port.addresses.iter().any(|own| own.parts().0 == address)
                || port
                    .allowed_pairs
                    .iter()
                    .any(|pair| is_in(address, *pair.address.get()))
                || counts && learned.into_iter().any(|known| known.address == address)
        })
    }

    /// When policies have to be made anew for addresses that came or go.
    pub fn sources_due_ms(&self) -> Option<u64> {
        let ends = self
            .intent
            .learned
            .values()
            .flatten()
            .filter_map(|known| known.until);
        let end = ends.min().map(|until| {
            let left_s = until.saturating_sub(now_s());
            self.now_ms() + left_s * 1000
        });
        end.into_iter().chain(self.learning.due_ms()).min()
    }

    /// Makes policies anew if addresses came or go, and saves the addresses.
    pub fn renew_sources(&mut self) {
        let is_known = |port: &str| {
            let source = self.ports.get(port).and_then(|run| run.wanted.config.as_ref());
            source.is_some_and(|port| port.address_source != AddressSource::Configuration)
        };
        if !self.intent.learned.is_empty() && learning::expire(&mut self.intent.learned, now_s(), is_known) {
            self.learning.mark();
        }
        let now_ms = self.now_ms();
        if self.learning.due_ms().is_none_or(|due_ms| due_ms > now_ms) {
            return;
        }
        let begun = Instant::now();
        let intent = self.intent.clone();
        match desired(&intent, &self.options) {
            Ok(state) => {
                self.state.policies = state.policies;
                self.policies_changed();
                // The error is kept for `status`.
                let _ = self.save(&intent);
            }
            Err(error) => telemetry::limited!(log::Level::Error, "addresses of ports: {error}"),
        }
        self.learning.made(now_ms, begun.elapsed());
    }
}

/// The addresses that a packet says are its sender's.
fn addresses_of(key: &FlowKey) -> Vec<IpAddr> {
    let ip = |address: u128| match key.eth_type() {
        IPV6 => IpAddr::V6(Ipv6Addr::from_bits(address)),
        // The low bits have it.
        _ => IpAddr::V4(Ipv4Addr::from_bits(address as u32)),
    };
    let source = ip(key.ip_src());
    if key.eth_type() != IPV6 || key.ip_proto() != ICMPV6 {
        return vec![source];
    }
    let target = ip(key.nd_target());
    match key.tp_src() {
        // Duplicate address detection.
        NEIGHBOUR_SOLICITATION if source.is_unspecified() => vec![target],
        NEIGHBOUR_ADVERTISEMENT => [source, target]
            .into_iter()
            .filter(|address| !is_link_local(*address))
            .collect(),
        _ => vec![source],
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Whether a host may have the address.
fn is_of_host(address: IpAddr) -> bool {
    let is_broadcast =
        matches!(address, IpAddr::V4(address) if address.is_broadcast() || address.octets()[0] == 0);
    !(address.is_unspecified() || address.is_multicast() || address.is_loopback() || is_broadcast)
}

fn is_in(address: IpAddr, (network, len): (IpAddr, u8)) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            len == 0 || (address.to_bits() ^ network.to_bits()) >> (32 - u32::from(len.min(32))) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            len == 0 || (address.to_bits() ^ network.to_bits()) >> (128 - u32::from(len.min(128))) == 0
        }
        _ => false,
    }
}

fn number(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}
