//! Fields that a parser could not see.
//!
//! A frame's headers may reach further than the bytes that a parser is given. The fields behind those bytes
//! are *unknown*, which is not zero: a rule about a port decides neither that the port matches nor that it
//! does not. A frame that ends before a field is another matter: such a frame does not have the field, and
//! every parser says zero.
//!
//! The maker of a key says with an [`Unseen`] which fields of the key are unknown. Nothing may be decided by
//! such a field, and no flow may be made from such a key that compares the field.

use crate::field::{FIELDS, FieldId, Layer};
use crate::key::FlowMask;
use std::sync::LazyLock;

/// The fields that are unknown, from none to all. Headers follow each other, so each value adds fields to
/// those of the value before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Unseen {
    /// All fields are known.
    #[default]
    Nothing,
    /// The addresses of a neighbour discovery message.
    NeighbourDiscovery,
    /// The transport header.
    Transport,
    /// The end of a chain of IPv6 extension headers: all fields of IP except the addresses.
    Extensions,
    /// The network header, or what stands in its place.
    Network,
    /// All headers.
    Link,
}

impl Unseen {
    /// All values, by number.
    pub const ALL: [Unseen; 6] = [
        Unseen::Nothing,
        Unseen::NeighbourDiscovery,
        Unseen::Transport,
        Unseen::Extensions,
        Unseen::Network,
        Unseen::Link,
    ];

    /// Whether all fields are known.
    #[inline]
    pub fn is_nothing(self) -> bool {
        self == Unseen::Nothing
    }

    /// Whether the field, one of a key, is unknown.
    pub fn hides(self, field: FieldId) -> bool {
        let hidden_with = match field.field().layer {
            Layer::Metadata | Layer::Tunnel | Layer::Connection => return false,
            Layer::Link => Unseen::Link,
            Layer::Network if matches!(field, FieldId::IpSrc | FieldId::IpDst) => Unseen::Network,
            Layer::Network => Unseen::Extensions,
            Layer::Mpls | Layer::Nsh => Unseen::Network,
            Layer::Transport => Unseen::Transport,
            Layer::NeighbourDiscovery => Unseen::NeighbourDiscovery,
        };
        self >= hidden_with
    }

    /// The bits of a key that are unknown.
    pub fn bits(self) -> &'static FlowMask {
        static BITS: LazyLock<[FlowMask; Unseen::ALL.len()]> = LazyLock::new(|| {
            Unseen::ALL.map(|unseen| {
                let mut bits = FlowMask::ANY;
                for (id, field) in FieldId::ALL.iter().zip(FIELDS) {
                    if unseen.hides(*id) {
                        field.set(&mut bits.0.words, u128::MAX, u128::MAX);
                    }
                }
                bits
            })
        });
        &BITS[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_hides_more_fields_than_the_one_before() {
        assert_eq!(*Unseen::Nothing.bits(), FlowMask::ANY);
        for (number, pair) in Unseen::ALL.windows(2).enumerate() {
            assert_eq!((pair[0] as usize, pair[0] < pair[1]), (number, true));
            let [fewer, more] = [pair[0].bits(), pair[1].bits()];
            assert!(fewer.union(more) == *more && fewer != more, "{pair:?}");
        }
        // What no byte of the packet holds is always known.
        for (id, field) in FieldId::ALL.iter().zip(FIELDS) {
            assert_eq!(Unseen::Link.hides(*id), !field.is_metadata(), "{}", field.name);
        }
    }
}
