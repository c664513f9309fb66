//! Beginnings of values: an index of decisions by the values that sets are about.
//!
//! A decision holds for packets that agree in some first bits of their addresses, MACs or port
//! ([`Beginning`]). A changed member of a set may concern those decisions whose beginnings the member has, or
//! that begin with the member ([`SetChange::beginning`]); others stay right. An index of decisions by their
//! beginnings finds the first kind by one look for each length of beginnings that there is. Decisions of the
//! second kind are those about a single value where a member is a whole network.
//!
//! Safe direction of error: a beginning that is shorter than what is known costs looks at decisions that stay
//! right. No decision may lack a beginning in a field of its list's sets.

use crate::dimension::{Dimension, Dimensions, IPV6};
use crate::list::RuleList;
use crate::rule::SetId;
use crate::sets::{Family, SetChange};
use crate::trie::Prefix;
use flow::{FieldId, FlowKey, FlowMask};
use smallvec::SmallVec;

/// Fields for which rules name sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetFields(Dimensions);

/// A field, and for addresses the version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    dimension: Dimension,
    family: Family,
}

/// What the values of all packets of a class begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Beginning {
    /// The value's field.
    pub place: Place,
    /// Number of bits.
    pub len: u8,
    /// The bits, the first one highest.
    pub bits: u128,
}

impl SetFields {
    /// No field.
    pub const NONE: SetFields = SetFields(Dimensions::NONE);

    /// The fields as a number, and back.
    pub fn bits(self) -> u16 {
        self.0.bits()
    }

    /// See [`bits`](Self::bits).
    pub fn from_bits(bits: u16) -> SetFields {
        SetFields(Dimensions::from_bits(bits))
    }

    /// The beginnings of values in these fields of packets that agree with `key` in the bits `noted`, if
    /// these have a bit of the field.
    pub fn beginnings(self, key: &FlowKey, noted: &FlowMask) -> SmallVec<[Beginning; 2]> {
        let knows_version = noted.is_exact(FieldId::EthType.field());
        let is_noted = |dimension: &Dimension| dimension.field().field().get(&noted.0.words) != 0;
        let of_dimension = move |dimension: Dimension| {
            let long_address = dimension.is_address() && key.eth_type() == IPV6;
            let known = dimension.value(&noted.0, long_address);
            let len = known.leading_ones();
            let value = Prefix::new(dimension.value(key, long_address), 128, len);
            let families = families(dimension);
            families.filter_map(move |(family, long)| {
                let place = Place { dimension, family };
                match (dimension.is_address() && !knows_version, long == long_address) {
                    (true, _) => Some(place.of_any_value()),
                    (false, false) => None,
                    (false, true) => Some(Beginning {
                        place,
                        len: value.len,
                        bits: value.value,
                    }),
                }
            })
        };
        self.0.iter().filter(is_noted).flat_map(of_dimension).collect()
    }

    /// Beginnings that every value has in these fields: of packets whose values are not known.
    pub fn of_any_value(self) -> impl Iterator<Item = Beginning> {
        let dimensions = self.0.iter();
        dimensions.flat_map(|dimension| {
            families(dimension).map(move |(family, _)| Place { dimension, family }.of_any_value())
        })
    }
}

impl Place {
    /// A number that no other place has.
    pub fn number(self) -> u8 {
        (self.dimension as u8) << 2 | self.family as u8
    }

    fn of_any_value(self) -> Beginning {
        Beginning {
            place: self,
            len: 0,
            bits: 0,
        }
    }
}

/// Kinds of values that the dimension has, and whether these are IPv6 addresses.
fn families(dimension: Dimension) -> impl Iterator<Item = (Family, bool)> {
    let both = [false, true].map(|long| (Family::of(dimension, long), long));
    let count = if dimension.is_address() { 2 } else { 1 };
    both.into_iter()
        .take(count)
        .filter_map(|(family, long)| Some((family?, long)))
}

impl RuleList {
    /// The fields for which rules name sets.
    pub fn set_fields(&self) -> SetFields {
        self.fields_where(|index| index.sets().next().is_some())
    }

    /// The fields for which rules name this set.
    pub fn fields_of(&self, set: SetId) -> SetFields {
        self.fields_where(|index| index.has_set(set))
    }

    pub(crate) fn dimensions_of(&self, set: SetId) -> impl Iterator<Item = Dimension> {
        self.fields_of(set).0.iter()
    }

    fn fields_where(&self, is_it: impl Fn(&crate::index::Index) -> bool) -> SetFields {
        let indices = self.indices.iter().zip(Dimension::ALL);
        let mut fields = Dimensions::default();
        indices
            .filter(|(index, _)| index.as_ref().is_some_and(|index| is_it(index)))
            .for_each(|(_, dimension)| fields.insert(dimension));
        SetFields(fields)
    }
}

impl SetChange {
    /// Whether decisions with a beginning in this place may be concerned, if rules name the set for these
    /// fields.
    pub fn is_about(&self, place: Place, fields: SetFields) -> bool {
        place.family == self.value.family && fields.0.contains(place.dimension)
    }

    /// The beginning of so many bits that concerned decisions have in this place. `None` if the member is
    /// shorter, so that they may have any of many.
    pub fn beginning(&self, place: Place, len: u8) -> Option<Beginning> {
        let member = self.value.prefix;
        (len <= member.len).then(|| Beginning {
            place,
            len,
            bits: Prefix::new(member.value, 128, len.into()).value,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Addresses, Builder, IpPrefix, Match, Member, Rule, RuleLists, SetKind, Verdict};
    use flow::ListId;
    use std::net::{IpAddr, Ipv4Addr};

    const SET: SetId = SetId(1);

    fn member(address: u32, len: u8) -> Member {
        let address = IpAddr::V4(Ipv4Addr::from_bits(address));
        Member::Address(IpPrefix { address, len })
    }

    /// For all lengths of members and of what is known: a decision that a change concerns is where it is
    /// sought.
    #[test]
    fn what_a_change_concerns_is_at_one_of_the_beginnings() {
        let mut lists = RuleLists::default();
        lists.sets_mut().create(SET, SetKind::Addresses).unwrap();
        let matches = Match {
            ip_src: Some(Addresses::Set(SET)),
            ..Match::default()
        };
        let verdict = Verdict::Allow;
        let rule = Rule {
            number: 1,
            priority: 1,
            matches,
            verdict,
            trial: false,
            log: false,
        };
        let mut builder = Builder::new(Verdict::Drop);
        builder.add(rule).unwrap();
        lists
            .put(ListId(1), builder.compile().finish().unwrap().0)
            .unwrap();
        let list = lists.get(ListId(1)).unwrap().clone();
        let fields = list.set_fields();
        assert_eq!(fields, list.fields_of(SET));
        assert_eq!(SetFields::from_bits(fields.bits()), fields);
        assert_eq!(list.fields_of(SetId(2)), SetFields::NONE);

        let (mut found, mut not) = (0, 0);
        for known in 0..=32u32 {
            for address in [0x0a00_0001u32, 0x0a00_0003, 0x0b00_0001] {
                let (mut key, mut noted) = (FlowKey::default(), FlowMask::ANY);
                key.set_eth_type(0x0800);
                key.set_ip_src(u128::from(address));
                noted
                    .0
                    .set_eth_type(if known.is_multiple_of(2) { u16::MAX } else { 0x00ff });
                noted
                    .0
                    .set_ip_src(u128::from(u32::MAX.checked_shl(32 - known).unwrap_or(0)));
                let beginnings = fields.beginnings(&key, &noted);
                assert_eq!(beginnings.is_empty(), known == 0);
                for len in 1..=32 {
                    let first = 0x0a00_0001 & u32::MAX << (32 - len);
                    let member = member(first, len as u8);
                    let change = lists.sets_mut().insert(SET, member).unwrap().unwrap();
                    lists.sets_mut().take_out(SET, member).unwrap().unwrap();
                    let is_sought = beginnings.iter().any(|one| {
                        change.is_about(one.place, fields)
                            && change
                                .beginning(one.place, one.len)
                                .is_none_or(|sought| sought == *one)
                    });
                    let is_concerned = list.may_concern(&change, &key, &noted);
                    assert!(
                        is_sought || !is_concerned,
                        "{known} of {address:x}, member of {len}"
                    );
                    found += u32::from(is_concerned);
                    not += u32::from(!is_sought);
                }
            }
        }
        assert!(found > 500 && not > 200, "{found} {not}");
    }
}
