//! Outlines: what is known of the packets that a decision holds for, in few bytes.
//!
//! A change of one rule concerns few of the decisions that stand on a list. The class of a decision is large,
//! and lies somewhere else in memory for each of them. An outline has the values by which rules tell packets
//! apart most, and stands beside the outlines of other decisions: a change reads all of these in the order of
//! memory, and looks at the few classes that it may meet.
//!
//! Safe direction of error: an outline that knows too little costs looks at classes. An outline must know no
//! bit that packets of the class may differ in, and no other rule than the one that decided.

use crate::condition::{Condition, Conditions};
use crate::dimension::Dimension;
use crate::list::{Class, RuleList};
use crate::rule::Range;
use crate::sets::{Family, SetChange};
use crate::trie::Prefix;
use flow::{FlowKey, FlowMask, PortId};

/// Words of both addresses, and of what else is in outlines.
const WORDS: usize = 5;

/// The word of protocol, version, and ports.
const REST: usize = 4;

/// Bit of the last word that says IPv6.
const IS_IPV6: u64 = 1 << 48;

// Ports have 16 bits of the last word.
const _: () = assert!(PortId::LIMIT <= 1 << 16);

/// What decided in a list about the packets of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No rule.
    Default,
    /// The rule with this number alone.
    Rule(u32),
    /// Several rules, as on trial, or rules that are not known.
    Several,
}

/// What is known of the packets that a decision holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outline {
    bits: Bits,
    standing: Standing,
}

/// Values, and which bits of these are known or wanted: source and destination address from the highest bit
/// on, then protocol, version of IP, input port, and the ports of sender and receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bits {
    value: [u64; WORDS],
    mask: [u64; WORDS],
}

/// The outlines of decisions that a change may concern.
#[derive(Clone, Copy, Debug)]
pub struct Sought {
    bits: Bits,
    /// A rule that went: concerns what stands on it.
    gone: Option<u32>,
}

impl Bits {
    /// Whether some packet has the values of both.
    fn may_meet(&self, other: &Bits) -> bool {
        let differ = (0..WORDS).fold(0, |differ, word| {
            differ | (self.value[word] ^ other.value[word]) & self.mask[word] & other.mask[word]
        });
        differ == 0
    }

    /// Adds known bits of a dimension's value, which begin at the highest bit. Nothing is added of dimensions
    /// that outlines do not have.
    fn add(&mut self, dimension: Dimension, value: u128, mask: u128) {
        let (word, shift) = match dimension {
            Dimension::IpSrc => (0, 0),
            Dimension::IpDst => (2, 0),
            Dimension::IpProto => (REST, 0),
            // Numbers of ports have no higher bits.
            Dimension::InPort => return self.add_rest(value << 16, mask << 16, 16),
            Dimension::TpSrc => (REST, 32),
            Dimension::TpDst => (REST, 48),
            _ => return,
        };
        if word == REST {
            return self.add_rest(value, mask, shift);
        }
        for (at, (value, mask)) in (word..).zip([(value >> 64, mask >> 64), (value, mask)]) {
            self.value[at] = value as u64 & mask as u64;
            self.mask[at] = mask as u64;
        }
    }

    fn add_rest(&mut self, value: u128, mask: u128, shift: u32) {
        let [value, mask] = [value & mask, mask].map(|bits| (bits >> 64) as u64 >> shift);
        self.value[REST] |= value;
        self.mask[REST] |= mask;
    }

    fn add_version(&mut self, is_ipv6: bool) {
        self.mask[REST] |= IS_IPV6;
        self.value[REST] |= if is_ipv6 { IS_IPV6 } else { 0 };
    }
}

/// The dimensions that outlines have.
const OUTLINED: [Dimension; 6] = [
    Dimension::IpSrc,
    Dimension::IpDst,
    Dimension::IpProto,
    Dimension::InPort,
    Dimension::TpSrc,
    Dimension::TpDst,
];

impl Outline {
    /// The outline of packets that agree with `key` in the bits `noted`.
    pub fn new(key: &FlowKey, noted: &FlowMask, standing: Standing) -> Outline {
        let (class, mut bits) = (Class { key, noted }, Bits::default());
        let knows_version = class.knows_version();
        for dimension in OUTLINED {
            let (value, known, long_address) = class.value(dimension);
            if !dimension.is_address() || knows_version {
                bits.add(dimension, value, known);
            }
            if dimension.is_address() && knows_version {
                bits.add_version(long_address);
            }
        }
        Outline { bits, standing }
    }

    /// The outline of packets whose values are not known, as they were changed before a list saw them.
    pub fn of_any(standing: Standing) -> Outline {
        let bits = Bits::default();
        Outline { bits, standing }
    }
}

impl Sought {
    /// Outlines of packets that a rule with these conditions may match. Of a rule that went, its number.
    pub(crate) fn of_rule(conditions: &Conditions, gone: Option<u32>) -> Sought {
        let mut bits = Bits::default();
        for &(dimension, condition) in conditions {
            let prefix = match condition {
                Condition::Prefix(prefix) | Condition::LongPrefix(prefix) => prefix,
                Condition::Range(range) => common(range),
                Condition::Ip | Condition::Set(_) | Condition::Flags(_) => continue,
            };
            bits.add(dimension, prefix.value, prefix.mask());
            if dimension.is_address() {
                bits.add_version(matches!(condition, Condition::LongPrefix(_)));
            }
        }
        Sought { bits, gone }
    }

    /// Outlines of packets with values of a member that came to a set, or left it.
    fn of_member(change: &SetChange, dimension: Dimension) -> Sought {
        let (mut bits, value) = (Bits::default(), change.value);
        bits.add(dimension, value.prefix.value, value.prefix.mask());
        if dimension.is_address() {
            bits.add_version(value.family == Family::Ipv6);
        }
        Sought { bits, gone: None }
    }

    /// Whether this is the outline of such a decision.
    pub fn finds(&self, outline: &Outline) -> bool {
        let stands = match (self.gone, outline.standing) {
            (None, _) | (_, Standing::Several) => true,
            (Some(_), Standing::Default) => false,
            (Some(gone), Standing::Rule(rule)) => gone == rule,
        };
        stands && self.bits.may_meet(&outline.bits)
    }
}

impl RuleList {
    /// The outlines of decisions that a change of a set may concern, of those that stand on this list.
    pub fn sought(&self, change: &SetChange) -> impl Iterator<Item = Sought> {
        let fields = self.dimensions_of(change.set);
        fields.map(move |dimension| Sought::of_member(change, dimension))
    }
}

/// The bits that all numbers of a range begin with.
fn common(range: Range) -> Prefix {
    let equal = (range.first ^ range.last).leading_zeros();
    Prefix::new(range.first.into(), 16, equal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Addresses, IpPrefix, Match, Ports, Transport};
    use std::net::IpAddr;

    const TCP: u8 = 6;

    fn web() -> Match {
        Match {
            ip_src: prefix("10.0.0.0", 8),
            ip_proto: Some(TCP),
            transport: Some(Transport::Ports {
                source: Range::ALL,
                destination: Range {
                    first: 440,
                    last: 447,
                },
            }),
            ..Match::default()
        }
    }

    fn prefix(address: &str, len: u8) -> Option<Addresses> {
        let address = address.parse().unwrap();
        Some(Addresses::Prefix(IpPrefix { address, len }))
    }

    /// The outline of a connection that was compared in all its bits, or in those that `cut` leaves.
    fn outline(from: &str, to: u16, cut: impl Fn(&mut FlowMask)) -> Outline {
        let mut key = FlowKey::default();
        let (eth_type, source) = match from.parse().unwrap() {
            IpAddr::V4(address) => (0x0800, address.to_bits().into()),
            IpAddr::V6(address) => (0x86dd, address.to_bits()),
        };
        key.set_in_port(5);
        key.set_eth_type(eth_type);
        key.set_ip_src(source);
        key.set_ip_proto(TCP);
        key.set_tp_dst(to);
        let mut noted = FlowMask::EXACT;
        cut(&mut noted);
        Outline::new(&key.masked(&noted), &noted, Standing::Rule(1))
    }

    fn sought(matches: &Match) -> Sought {
        Sought::of_rule(&matches.conditions().unwrap(), None)
    }

    #[test]
    fn outlines_tell_apart_what_a_rule_cannot_match() {
        let whole = |from, to| sought(&web()).finds(&outline(from, to, |_| ()));
        assert!(whole("10.1.2.3", 443) && whole("10.0.0.0", 440));
        assert!(!whole("11.1.2.3", 443) && !whole("10.1.2.3", 448) && !whole("a00::1", 443));
        let other = |change: fn(&mut Match)| {
            let mut matches = web();
            change(&mut matches);
            sought(&matches).finds(&outline("10.1.2.3", 443, |_| ()))
        };
        assert!(other(|_| ()) && other(|matches| matches.in_port = Some(Ports::One(PortId(5)))));
        assert!(!other(|matches| matches.in_port = Some(Ports::One(PortId(6)))));
        assert!(!other(|matches| matches.ip_proto = Some(17)));
        assert!(!other(|matches| matches.ip_dst = prefix("10.1.2.3", 32)));
        assert!(!other(|matches| matches.ip_src = prefix("a01::", 16)));
    }

    #[test]
    fn bits_that_are_not_known_tell_nothing_apart() {
        let finds = |from, to, cut: fn(&mut FlowMask)| sought(&web()).finds(&outline(from, to, cut));
        assert!(finds("11.1.2.3", 443, |noted| noted.0.set_ip_src(0xfe00_0000)));
        assert!(!finds("12.1.2.3", 443, |noted| noted.0.set_ip_src(0xfe00_0000)));
        assert!(finds("10.1.2.3", 448, |noted| noted.0.set_tp_dst(0xfc00)));
        assert!(finds("a00::1", 443, |noted| noted.0.set_eth_type(0xff)));
        assert!(sought(&web()).finds(&Outline::of_any(Standing::Default)));
    }

    #[test]
    fn a_rule_that_went_concerns_what_stood_on_it() {
        let gone = Sought::of_rule(&web().conditions().unwrap(), Some(1));
        let standing = |standing| Outline {
            standing,
            ..outline("10.1.2.3", 443, |_| ())
        };
        assert!(gone.finds(&standing(Standing::Rule(1))) && gone.finds(&standing(Standing::Several)));
        assert!(!gone.finds(&standing(Standing::Rule(2))) && !gone.finds(&standing(Standing::Default)));
    }
}
