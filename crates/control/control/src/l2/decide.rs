//! One packet's decision, without side effects: the same function serves packets, re-examination and `trace`.

use super::mac_table::Station;
use super::storm;
use super::switch::{LearningSwitch, PortRules, Readiness};
use super::vlan::{self, Egress};
use crate::provider::actions_of;
use flow::{Action, DropReason, FlowKey, PortId, VLAN_PRIORITY};
use management::ContestedMacs;

/// First of the 16 group addresses that bridges do not forward (IEEE 802.1Q-2018 table 8-1).
const RESERVED: u64 = 0x0180_c200_0000;

/// Group bit: the lowest of the first byte.
const GROUP: u64 = 0x0100_0000_0000;

/// What the source address means for the MAC table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The frame may not enter, so nothing is learned from it.
    Refused,
    /// A static address of this port.
    Static,
    /// Known to be here.
    Known,
    /// To be learned.
    New,
    /// Known to be elsewhere; to be learned here as well.
    Contested,
    /// The `mac` of that port, whose driver runs. Nothing is learned, and the frame is forwarded.
    Device(PortId),
    /// Not learned because the port has learned as many as it may; the frame is dropped.
    PortFull,
    /// Not learned because the switch's table is full and the port has its share of it; the frame is
    /// forwarded.
    TableFull,
}

impl Source {
    /// Whether the MAC table is to be changed.
    pub fn is_to_be_learned(self) -> bool {
        matches!(self, Source::New | Source::Contested)
    }

    /// Whether it was not learned for lack of room.
    pub fn is_blocked(self) -> bool {
        matches!(self, Source::PortFull | Source::TableFull)
    }
}

/// What the destination address means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Not examined.
    None,
    /// Kept by every bridge to itself.
    Reserved,
    /// Multicast or broadcast.
    Group,
    /// Known to be on that port.
    Known(PortId),
    /// Seen on these ports, and not known to belong to one of them.
    Contested(Vec<PortId>),
    /// Not known.
    Unknown,
}

/// A decision, and its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// VLAN the frame belongs to, if it may enter.
    pub vlan: Option<u16>,
    /// The primary VLAN, if that is a secondary one: stations are learned there.
    pub primary: Option<u16>,
    /// State of its source address.
    pub source: Source,
    /// State of its destination address.
    pub destination: Destination,
    /// Actions (not empty), or why it is dropped.
    pub verdict: Result<Vec<Action>, DropReason>,
}

impl Decision {
    fn refuse(vlan: Option<u16>, destination: Destination, reason: DropReason) -> Self {
        Decision {
            vlan,
            primary: None,
            source: Source::Refused,
            destination,
            verdict: Err(reason),
        }
    }

    /// Whether it depends on which ports are connected.
    pub(super) fn floods(&self) -> bool {
        matches!(self.destination, Destination::Group | Destination::Unknown)
    }

    /// The actions of a flow that does this.
    pub fn actions(&self) -> Vec<Action> {
        actions_of(&self.verdict)
    }

    /// Source and destination, on whose entries the decision depends; `None` if it depends on rules alone.
    pub(super) fn stations(&self, key: &FlowKey) -> Option<[Station; 2]> {
        let vlan = self
            .primary
            .or(self.vlan)
            .filter(|_| self.source != Source::Refused)?;
        Some([
            Station {
                vlan,
                mac: key.eth_src(),
            },
            Station {
                vlan,
                mac: key.eth_dst(),
            },
        ])
    }
}

/// The outputs that do not expose an inner tag.
fn outermost_kept(
    key: &FlowKey,
    mut outputs: Vec<(PortId, Egress)>,
) -> Result<Vec<(PortId, Egress)>, DropReason> {
    outputs.retain(|(_, egress)| vlan::may_leave(key, *egress));
    match outputs.is_empty() {
        true => Err(DropReason::NestedVlan),
        false => Ok(outputs),
    }
}

impl LearningSwitch {
    /// The decision about a packet with this key in the present state.
    pub fn decide(&self, key: &FlowKey) -> Decision {
        let id = PortId(key.in_port());
        let Some(port) = self.port(id) else {
            return Decision::refuse(None, Destination::None, DropReason::PortRemoved);
        };
        let Some(vlan) = vlan::ingress(&port.vlan, key.vlan_tci()) else {
            return Decision::refuse(None, Destination::None, DropReason::VlanFiltered);
        };
        if !vlan::may_enter(key) {
            return Decision::refuse(Some(vlan), Destination::None, DropReason::NestedVlan);
        }
        let (from, to) = (key.eth_src(), key.eth_dst());
        if from & GROUP != 0 || from == 0 {
            return Decision::refuse(Some(vlan), Destination::None, DropReason::InvalidSource);
        }
        if to & !0xf == RESERVED {
            return Decision::refuse(Some(vlan), Destination::Reserved, DropReason::Policy);
        }
        let primary = self.private_vlans().primary(vlan);
        let learning = primary.unwrap_or(vlan);
        let station = |mac| Station { vlan: learning, mac };
        let source = match self.source(id, port, station(from)) {
            Ok(source) => source,
            Err(reason) => return Decision::refuse(Some(vlan), Destination::None, reason),
        };
        if source == Source::PortFull {
            let verdict = Err(DropReason::MacLimit);
            return Decision {
                vlan: Some(vlan),
                primary,
                source,
                destination: Destination::None,
                verdict,
            };
        }
        let destination = if to & GROUP != 0 {
            Destination::Group
        } else if to == from {
            Destination::Known(id)
        } else {
            self.destination(station(to))
        };
        let verdict = self
            .outputs(id, port, vlan, &destination)
            .and_then(|outputs| outermost_kept(key, outputs))
            .map(|outputs| {
                // With one receiver it costs no more than a frame to a known station.
                let meters = match outputs.len() > 1 {
                    true => storm::meters_of(id, to, &destination, &port.storm),
                    false => Vec::new(),
                };
                // Tags that frames have got their priority in a filter before.
                let priority = u16::from(port.vlan_priority.unwrap_or(0)) << VLAN_PRIORITY.trailing_zeros();
                let tci = match key.vlan_tci() {
                    0 => priority & VLAN_PRIORITY,
                    tci => tci,
                };
                let actions = vlan::actions(tci, vlan, &outputs);
                meters.into_iter().map(Action::Meter).chain(actions).collect()
            });
        Decision {
            vlan: Some(vlan),
            primary,
            source,
            destination,
            verdict,
        }
    }

    fn source(&self, id: PortId, port: &PortRules, station: Station) -> Result<Source, DropReason> {
        match self.static_port(station.mac) {
            Some(home) if home == id => return Ok(Source::Static),
            Some(_) => return Err(DropReason::Policy),
            None => {}
        }
        let device = self.device_port(station).filter(|owner| *owner != id);
        Ok(match device {
            Some(owner) => Source::Device(owner),
            None if self.macs().is_at(station, id) => Source::Known,
            None if self.macs().on_port(id) >= port.mac_limit => Source::PortFull,
            None if self.is_full() && self.macs().on_port(id) >= self.fair_share() => Source::TableFull,
            None if self.macs().ports_of(station).next().is_some() => Source::Contested,
            None => Source::New,
        })
    }

    /// Where a station is: what is configured decides, then where it was seen.
    pub(super) fn destination(&self, station: Station) -> Destination {
        let configured = self.static_port(station.mac);
        if let Some(owner) = configured.or_else(|| self.device_port(station)) {
            return Destination::Known(owner);
        }
        let mut places: Vec<PortId> = self.macs().ports_of(station).collect();
        if places.len() > 1 && places.iter().any(|port| self.is_running(*port)) {
            places.retain(|port| self.is_running(*port));
        }
        match places[..] {
            [] => Destination::Unknown,
            [port] => Destination::Known(port),
            _ => Destination::Contested(places),
        }
    }

    /// Where a packet goes to whose destination several ports claim: to those of them that may get it.
    fn rivals(
        &self,
        from: PortId,
        port: &PortRules,
        vlan: u16,
        places: &[PortId],
    ) -> Result<Vec<(PortId, Egress)>, DropReason> {
        let rivals = places.iter().filter(|place| **place != from);
        let allowed = rivals.filter_map(|place| Some((*place, self.port(*place)?)));
        let allowed = allowed.filter(|(_, receiver)| !(receiver.isolated && port.isolated));
        let outputs: Vec<_> = allowed
            .filter_map(|(place, receiver)| Some((place, vlan::egress(&receiver.vlan, vlan)?)))
            .collect();
        match outputs.is_empty() {
            false => Ok(outputs),
            true => Err(DropReason::Isolated),
        }
    }

    fn outputs(
        &self,
        from: PortId,
        port: &PortRules,
        vlan: u16,
        destination: &Destination,
    ) -> Result<Vec<(PortId, Egress)>, DropReason> {
        match destination {
            Destination::Known(to) if *to == from => Err(DropReason::NoDestination),
            Destination::Known(to) => {
                let receiver = self.port(*to).ok_or(DropReason::NoSuchPort)?;
                let is_private = self.private_vlans().is_part(&receiver.vlan, vlan);
                let refused = match is_private {
                    true => DropReason::Isolated,
                    false => DropReason::VlanFiltered,
                };
                let egress = vlan::egress(&receiver.vlan, vlan).ok_or(refused)?;
                if receiver.isolated && port.isolated {
                    return Err(DropReason::Isolated);
                }
                Ok(vec![(*to, egress)])
            }
            Destination::Contested(_) if self.rules().contested == ContestedMacs::Drop => {
                Err(DropReason::Contested)
            }
            Destination::Contested(places) => self.rivals(from, port, vlan, places),
            Destination::Unknown if !self.rules().flood => Err(DropReason::FloodDisabled),
            Destination::Unknown => {
                let outputs = self.members(from, port, vlan, |receiver| receiver.flood);
                match outputs.is_empty() {
                    false => Ok(outputs),
                    true if self.members(from, port, vlan, |_| true).is_empty() => {
                        Err(DropReason::NoDestination)
                    }
                    true => Err(DropReason::FloodDisabled),
                }
            }
            Destination::Group => {
                let outputs = self.members(from, port, vlan, |_| true);
                if outputs.is_empty() {
                    Err(DropReason::NoDestination)
                } else {
                    Ok(outputs)
                }
            }
            Destination::None | Destination::Reserved => Err(DropReason::Policy),
        }
    }

    /// Connected ports other than `from` that carry the VLAN and may talk to it.
    fn members(
        &self,
        from: PortId,
        port: &PortRules,
        vlan: u16,
        wanted: impl Fn(&PortRules) -> bool,
    ) -> Vec<(PortId, Egress)> {
        self.ports()
            .filter(|(id, receiver)| *id != from && receiver.readiness != Readiness::Disconnected)
            .filter(|(_, receiver)| !(receiver.isolated && port.isolated) && wanted(receiver))
            .filter_map(|(id, receiver)| Some((id, vlan::egress(&receiver.vlan, vlan)?)))
            .collect()
    }
}
