//! Edits: what an action changes in a packet, headers and metadata.

use crate::field::{Field, FieldId, Layer};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The bits of a tag that say its priority.
pub const VLAN_PRIORITY: u16 = 0xe000;

/// A change of a packet's headers or metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Edit {
    /// Change bits of a field. A packet without the field is dropped.
    Set(SetField),
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
    /// Put the packet in that class ([`RateClass`](crate::RateClass)) of the port that it is sent to.
    Class(u8),
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
        /// See [`Edit::PushMpls`].
        lse: u32,
        /// See [`Edit::PushMpls`].
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
            Layer::Link => match self.field {
                FieldId::EthDst | FieldId::EthSrc => true,
                // The bit behind them says in keys that there is a tag.
                FieldId::VlanTci => self.mask & !u128::from(VLAN_PRIORITY) == 0,
                _ => false,
            },
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

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Edit::Set(set) => set.fmt(f),
            Edit::PushVlan { tpid, tci } => {
                write!(f, "push_vlan(tpid={tpid:#06x},vid={}", tci & 0xfff)?;
                match (tci & VLAN_PRIORITY) >> VLAN_PRIORITY.trailing_zeros() {
                    0 => f.write_str(")"),
                    priority => write!(f, ",pcp={priority})"),
                }
            }
            Edit::PopVlan => f.write_str("pop_vlan"),
            Edit::PushMpls { lse, eth_type } => {
                write!(f, "push_mpls({},eth_type={eth_type:#06x})", Label(*lse))
            }
            Edit::PopMpls(eth_type) => write!(f, "pop_mpls(eth_type={eth_type:#06x})"),
            Edit::Encapsulate(change) => change.fmt(f),
            Edit::Class(number) => write!(f, "class({number})"),
        }
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
