//! Dimensions: the fields by which a list tells packets apart.

use flow::{FieldId, FlowKey, FlowMask};

/// A field of the key, or the part of one that rules are about. The order is that in which a look-up asks
/// for them: fields that few packets of one sender differ in come first, so that it ends before it has
/// compared a connection's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Dimension {
    EthType,
    InPort,
    Vlan,
    EthDst,
    EthSrc,
    IpProto,
    IpFrag,
    IpDst,
    IpSrc,
    TpDst,
    TpSrc,
    TcpFlags,
    NdTarget,
    NdSll,
    NdTll,
}

/// Number of dimensions.
pub(crate) const DIMENSIONS: usize = 15;

/// IPv6's Ethernet type. Addresses of packets with another one are IPv4's.
pub(crate) const IPV6: u16 = 0x86dd;

impl Dimension {
    /// All of them, in order.
    pub const ALL: [Dimension; DIMENSIONS] = [
        Dimension::EthType,
        Dimension::InPort,
        Dimension::Vlan,
        Dimension::EthDst,
        Dimension::EthSrc,
        Dimension::IpProto,
        Dimension::IpFrag,
        Dimension::IpDst,
        Dimension::IpSrc,
        Dimension::TpDst,
        Dimension::TpSrc,
        Dimension::TcpFlags,
        Dimension::NdTarget,
        Dimension::NdSll,
        Dimension::NdTll,
    ];

    /// The field that the dimension is, or is a part of.
    pub fn field(self) -> FieldId {
        match self {
            Dimension::EthType => FieldId::EthType,
            Dimension::InPort => FieldId::InPort,
            Dimension::Vlan => FieldId::VlanTci,
            Dimension::EthDst => FieldId::EthDst,
            Dimension::EthSrc => FieldId::EthSrc,
            Dimension::IpProto => FieldId::IpProto,
            Dimension::IpFrag => FieldId::IpFrag,
            Dimension::IpDst => FieldId::IpDst,
            Dimension::IpSrc => FieldId::IpSrc,
            Dimension::TpDst => FieldId::TpDst,
            Dimension::TpSrc => FieldId::TpSrc,
            Dimension::TcpFlags => FieldId::TcpFlags,
            Dimension::NdTarget => FieldId::NdTarget,
            Dimension::NdSll => FieldId::NdSll,
            Dimension::NdTll => FieldId::NdTll,
        }
    }

    /// Whether this is an IP address.
    pub fn is_address(self) -> bool {
        matches!(self, Dimension::IpSrc | Dimension::IpDst)
    }

    /// Lowest bits of the field that belong to the dimension.
    pub fn width(self, long_address: bool) -> u32 {
        match self {
            // "Tag present" and the VLAN, without the priority.
            Dimension::Vlan => 13,
            Dimension::IpSrc | Dimension::IpDst if !long_address => 32,
            _ => self.field().field().bits,
        }
    }

    /// The dimension's value in a key, its first bit highest.
    pub fn value(self, key: &FlowKey, long_address: bool) -> u128 {
        self.field().field().get(&key.words) << (128 - self.width(long_address))
    }

    /// Adds bits of the dimension, the first one highest, to a mask.
    pub fn add_to(self, mask: &mut FlowMask, bits: u128, long_address: bool) {
        let bits = bits >> (128 - self.width(long_address));
        self.field().field().set(&mut mask.0.words, bits, bits);
    }
}

/// The fields that rules may be about.
pub fn fields() -> FlowMask {
    let mut mask = FlowMask::ANY;
    for dimension in Dimension::ALL {
        dimension
            .field()
            .field()
            .set(&mut mask.0.words, u128::MAX, u128::MAX);
    }
    mask
}

/// Several dimensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dimensions(u16);

impl Dimensions {
    pub const NONE: Dimensions = Dimensions(0);

    pub fn bits(self) -> u16 {
        self.0
    }

    pub fn from_bits(bits: u16) -> Dimensions {
        Dimensions(bits)
    }

    pub fn contains(self, dimension: Dimension) -> bool {
        self.0 >> dimension as u16 & 1 == 1
    }

    pub fn insert(&mut self, dimension: Dimension) {
        self.0 |= 1 << dimension as u16;
    }

    #[must_use]
    pub fn without(self, other: Dimensions) -> Dimensions {
        Dimensions(self.0 & !other.0)
    }

    /// In order.
    pub fn iter(self) -> impl Iterator<Item = Dimension> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let next = Dimension::ALL.get(left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(*next)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::VLAN_PRESENT;

    #[test]
    fn numbers_are_places_in_the_list_of_all() {
        for (number, dimension) in Dimension::ALL.into_iter().enumerate() {
            assert_eq!(dimension as usize, number);
        }
    }

    #[test]
    fn values_begin_at_the_highest_bit_and_masks_at_the_fields() {
        let mut key = FlowKey::default();
        key.set_vlan_tci(0xe000 | VLAN_PRESENT | 5);
        assert_eq!(Dimension::Vlan.value(&key, false) >> 115, 0x1005);
        key.set_ip_src(0x0a00_0001);
        assert_eq!(Dimension::IpSrc.value(&key, false) >> 96, 0x0a00_0001);
        let mut mask = FlowMask::ANY;
        Dimension::IpSrc.add_to(&mut mask, 0xff << 120, false);
        Dimension::Vlan.add_to(&mut mask, 1 << 127, false);
        assert_eq!((mask.0.ip_src(), mask.0.vlan_tci()), (0xff00_0000, VLAN_PRESENT));
    }
}
