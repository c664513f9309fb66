//! Actions: what a flow does to a packet.

use crate::field::{Field, FieldId, Layer};
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
    /// Insert an 802.1Q tag behind the Ethernet source address (IEEE 802.1Q-2018 9.4).
    PushVlan {
        /// Tag protocol identifier: 0x8100 or 0x88a8.
        tpid: u16,
        /// Priority (3 bits), DEI (1 bit) and VLAN identifier (12 bits).
        tci: u16,
    },
    /// Remove the outermost 802.1Q tag; without effect on an untagged packet.
    PopVlan,
    /// Insert an MPLS label stack entry behind the Ethernet header and its tags, before any others (RFC 3032
    /// 2.1). A packet without an Ethernet type is dropped.
    PushMpls {
        /// Label (20 bits), traffic class (3), bottom of stack (1) and time to live (8).
        lse: u32,
        /// Ethernet type of the packet from then on: 0x8847 or 0x8848.
        eth_type: u16,
    },
    /// Remove the outermost MPLS label stack entry, and give the packet that Ethernet type; without effect on
    /// a packet that has none.
    PopMpls(u16),
    /// Change what a packet begins with. A packet that does not begin as the change needs it is dropped, and
    /// so is one that is sent to a port without an Ethernet header.
    Encapsulate(Encapsulation),
    /// Hand a copy to the controller.
    Userspace(Userspace),
    /// Drop for a reason the control plane names. Ends the list.
    Drop(DropReason),
    /// Change bits of a field. A packet without the field is dropped.
    Set(SetField),
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

/// A change of what a packet begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Encapsulation {
    /// Gives a packet without an Ethernet header one.
    PushEth {
        /// Destination address, first byte in the highest bits of the 48.
        dst: u64,
        /// Source address.
        src: u64,
    },
    /// Removes the Ethernet header of a packet without VLAN tags.
    PopEth,
    /// Puts a network service header before the packet, which has no Ethernet header then (RFC 8300 2).
    PushNsh(NshHeader),
    /// Removes the network service header that a packet without an Ethernet header begins with.
    PopNsh,
    /// Puts an MPLS label stack entry before the packet, which has no Ethernet header then.
    AddMpls {
        /// See [`Action::PushMpls`].
        lse: u32,
        /// See [`Action::PushMpls`].
        eth_type: u16,
    },
    /// Removes the label stack entry that a packet without an Ethernet header begins with, behind which one
    /// follows.
    PopMplsToEth,
}

/// A network service header, as on the wire (RFC 8300 2.2 to 2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct NshHeader {
    len: u8,
    bytes: [u8; NshHeader::MAX_LEN],
}

impl NshHeader {
    /// Most bytes of a header that is pushed: base, service path and 36 bytes of context.
    pub const MAX_LEN: usize = 44;

    /// The header; `None` if its length is not what it says, it is too long, or its version or metadata type
    /// is not known.
    pub fn new(header: &[u8]) -> Option<NshHeader> {
        let (&[high, low, kind, ..], len) = (header.first_chunk::<8>()?, header.len());
        let said = usize::from(low & 0x3f) * 4;
        let fits = match kind & 0xf {
            1 => len == 24,
            2 => (8..=Self::MAX_LEN).contains(&len),
            _ => false,
        };
        let mut bytes = [0; Self::MAX_LEN];
        bytes.get_mut(..len)?.copy_from_slice(header);
        (fits && said == len && high >> 6 == 0).then_some(NshHeader {
            len: len as u8,
            bytes,
        })
    }

    /// The bytes. Who pushes it fills in the next protocol.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl TryFrom<Vec<u8>> for NshHeader {
    type Error = &'static str;

    fn try_from(header: Vec<u8>) -> Result<NshHeader, Self::Error> {
        NshHeader::new(&header).ok_or("not a network service header that can be pushed")
    }
}

impl From<NshHeader> for Vec<u8> {
    fn from(header: NshHeader) -> Vec<u8> {
        header.bytes().to_vec()
    }
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

/// A change of some bits of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SetField {
    /// The field.
    pub field: FieldId,
    /// New values of the bits in `mask`; others are zero.
    pub value: u128,
    /// Bits to change.
    pub mask: u128,
}

impl SetField {
    /// Gives the whole field a value.
    pub fn whole(field: FieldId, value: u128) -> SetField {
        let mask = field.field().ones();
        SetField {
            field,
            value: value & mask,
            mask,
        }
    }

    /// Whether the field can be set at all, and has these bits. The fields are those of the kernel's
    /// `OVS_ACTION_ATTR_SET`, and those that the kernel leaves to user space: ARP, neighbour discovery, ICMP.
    pub fn is_valid(&self) -> bool {
        let Field { layer, .. } = self.field.field();
        let settable = match layer {
            Layer::Metadata => matches!(self.field, FieldId::SkbMark | FieldId::SkbPriority),
            Layer::Link => matches!(self.field, FieldId::EthDst | FieldId::EthSrc),
            // The protocol that can be set is ARP's operation.
            Layer::Network => self.field != FieldId::IpFrag,
            Layer::Transport => self.field != FieldId::TcpFlags,
            Layer::NeighbourDiscovery | Layer::Tunnel => true,
            Layer::Mpls => self.field == FieldId::MplsLse,
            Layer::Nsh => !matches!(self.field, FieldId::NshMdtype | FieldId::NshNp),
            Layer::Connection => false,
        };
        settable && self.mask & !self.field.field().ones() == 0 && self.value & !self.mask == 0
    }
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

impl fmt::Display for SetField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = self.field.field();
        write!(f, "set({}={:#x}", field.name, self.value)?;
        if self.mask != field.ones() {
            write!(f, "/{:#x}", self.mask)?;
        }
        f.write_str(")")
    }
}

/// An MPLS label stack entry, as Open vSwitch writes it.
struct Label(u32);

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (label, class, bottom, ttl) = (self.0 >> 12, self.0 >> 9 & 7, self.0 >> 8 & 1, self.0 & 0xff);
        write!(f, "label={label},tc={class},ttl={ttl},bos={bottom}")
    }
}

impl fmt::Display for Encapsulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encapsulation::PushEth { dst, src } => write!(f, "push_eth(src={src:012x},dst={dst:012x})"),
            Encapsulation::PopEth => f.write_str("pop_eth"),
            Encapsulation::PushNsh(header) => {
                let path = header.bytes.first_chunk::<8>().map_or(0, |bytes| {
                    u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]])
                });
                let (spi, si) = (path >> 8, path & 0xff);
                write!(
                    f,
                    "push_nsh(mdtype={},spi={spi:#x},si={si})",
                    header.bytes[2] & 0xf
                )
            }
            Encapsulation::PopNsh => f.write_str("pop_nsh"),
            Encapsulation::AddMpls { lse, eth_type } => {
                write!(f, "add_mpls({},eth_type={eth_type:#06x})", Label(*lse))
            }
            Encapsulation::PopMplsToEth => f.write_str("pop_mpls(eth_type=0x6558)"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Output(port) => write!(f, "output({port})"),
            Action::PushVlan { tpid, tci } => write!(f, "push_vlan(tpid={tpid:#06x},vid={})", tci & 0xfff),
            Action::PopVlan => f.write_str("pop_vlan"),
            Action::PushMpls { lse, eth_type } => {
                write!(f, "push_mpls({},eth_type={eth_type:#06x})", Label(*lse))
            }
            Action::PopMpls(eth_type) => write!(f, "pop_mpls(eth_type={eth_type:#06x})"),
            Action::Encapsulate(change) => change.fmt(f),
            Action::Userspace(to) => write!(f, "userspace(pid={},{} bytes)", to.pid, to.data.len()),
            Action::Drop(reason) => write!(f, "drop({reason})"),
            Action::Set(set) => set.fmt(f),
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
        (0..depth).fold(Action::PopVlan, |inner, _| Action::Clone(Nested(vec![inner])))
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
