//! Bits of rule lists' answers that mask unions have, so that packets which lists judge have one look at the
//! cache.
//!
//! Most bits that a list notes are those of a connection, and lists are asked about few of a switch's
//! packets: these bits are compared at a further look ([`crate::behind`]). But all packets of a sender agree
//! in some fields, or are of few kinds. Such bits make few cache entries more, and are compared at the first
//! look:
//!
//! | bits | in the union of |
//! |---|---|
//! | of kinds: Ethernet type, VLAN, protocol, fragment | each port whose packets may come to a list |
//! | source addresses, MAC and IP | a port, once an ingress list has noted them for a packet from there |
//!
//! All decisions about a port's packets end when its ingress filters change, and those about packets to a
//! port when its egress filters do. A union loses bits afterwards, so decisions may rely on it.

use flow::{FieldId, FlowMask};

/// Source addresses.
const SOURCES: [FieldId; 2] = [FieldId::EthSrc, FieldId::IpSrc];

/// Bits by which lists tell kinds of packets apart.
pub(crate) fn of_kinds() -> FlowMask {
    let mut kinds = FlowMask::ANY;
    kinds.0.set_eth_type(u16::MAX);
    // Lists look at the VLAN, and at no priority.
    kinds.0.set_vlan_tci(flow::VLAN_PRESENT | 0xfff);
    kinds.0.set_ip_proto(u8::MAX);
    kinds.0.set_ip_frag(u8::MAX);
    kinds
}

/// Source addresses that lists have noted, as one bit per field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sources(pub u8);

impl Sources {
    /// Fields of which the mask has a bit.
    pub fn in_mask(mask: &FlowMask) -> Sources {
        let fields = (0..).zip(SOURCES);
        let found = fields.filter(|(_, field)| field.field().get(&mask.0.words) != 0);
        Sources(found.fold(0, |bits, (number, _)| bits | 1 << number))
    }

    /// All bits of them.
    pub fn mask(self) -> FlowMask {
        let mut mask = FlowMask::ANY;
        for (number, field) in (0..).zip(SOURCES) {
            if self.0 >> number & 1 == 1 {
                field.field().set(&mut mask.0.words, u128::MAX, u128::MAX);
            }
        }
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_is_noted_in_part_is_compared_whole() {
        let mut noted = FlowMask::ANY;
        assert_eq!(Sources::in_mask(&noted).mask(), FlowMask::ANY);
        noted.0.set_ip_src(0xff00_0000);
        noted.0.set_ip_dst(u128::MAX);
        let mask = Sources::in_mask(&noted).mask();
        assert_eq!(
            (mask.0.ip_src(), mask.0.ip_dst(), mask.0.eth_src()),
            (u128::MAX, 0, 0)
        );
    }
}
