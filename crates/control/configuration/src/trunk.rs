//! The VLANs of a trunk: a list of numbers and ranges, or all.

use crate::json_schema::json_schema;
use crate::value::{InvalidValue, VlanId};
use serde::de::{self, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// What is allowed, for users.
const EXPECTED: &str = "a list of VLAN identifiers, 1 to 4094, and ranges like \"100-199\", or \"all\"";

/// Which VLANs a trunk carries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Trunk {
    /// All of them, and untagged frames.
    All,
    /// The VLANs listed.
    Listed(BTreeSet<VlanId>),
}

/// The VLANs of `10`, or of `100-199`.
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let [first, last] = [first, last].map(|number| number.parse::<VlanId>().ok());
    let range = first?.get()..=last?.get();
    (!range.is_empty()).then_some(range)
}

fn add(vlans: &mut BTreeSet<VlanId>, range: RangeInclusive<u16>) {
    vlans.extend(range.filter_map(VlanId::new));
}

impl FromStr for Trunk {
    type Err = InvalidValue;

    /// Reads `all` or `10,20,100-199`.
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if text == "all" {
            return Ok(Trunk::All);
        }
        let mut vlans = BTreeSet::new();
        for part in text.split(',') {
            let range = range(part).ok_or_else(|| InvalidValue {
                value: part.into(),
                expected: EXPECTED,
            })?;
            add(&mut vlans, range);
        }
        Ok(Trunk::Listed(vlans))
    }
}

/// The ranges of a list, the shortest way to write it: neighbours of two stay apart.
fn ranges(vlans: &BTreeSet<VlanId>) -> Vec<RangeInclusive<u16>> {
    let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
    for vlan in vlans.iter().map(|vlan| vlan.get()) {
        match ranges.last_mut() {
            Some(last) if *last.end() + 1 == vlan => *last = *last.start()..=vlan,
            _ => ranges.push(vlan..=vlan),
        }
    }
    let split = ranges.into_iter().flat_map(|range| match range.len() {
        2 => vec![*range.start()..=*range.start(), *range.end()..=*range.end()],
        _ => vec![range],
    });
    split.collect()
}

impl fmt::Display for Trunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Trunk::Listed(vlans) = self else {
            return f.write_str("all");
        };
        for (position, range) in ranges(vlans).into_iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            match range.start() == range.end() {
                true => write!(f, "{comma}{}", range.start())?,
                false => write!(f, "{comma}{}-{}", range.start(), range.end())?,
            }
        }
        Ok(())
    }
}

/// A number, or a range as text.
enum Element {
    Number(VlanId),
    Range(RangeInclusive<u16>),
}

impl Serialize for Element {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Element::Number(vlan) => vlan.serialize(serializer),
            Element::Range(range) => {
                serializer.collect_str(&format_args!("{}-{}", range.start(), range.end()))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}, or a range like \"100-199\"", VlanId::EXPECTED)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Element, E> {
                let vlan = u16::try_from(number).ok().and_then(VlanId::new);
                let wrong = || E::invalid_value(Unexpected::Signed(number), &self);
                vlan.map(Element::Number).ok_or_else(wrong)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Element, E> {
                let vlan = u16::try_from(number).ok().and_then(VlanId::new);
                let wrong = || E::invalid_value(Unexpected::Unsigned(number), &self);
                vlan.map(Element::Number).ok_or_else(wrong)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Element, E> {
                let found = text.contains('-').then(|| range(text)).flatten();
                let wrong = || E::invalid_value(Unexpected::Str(text), &self);
                found.map(Element::Range).ok_or_else(wrong)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

json_schema!(Trunk, {
    "description": "VLANs as numbers and ranges like \"100-199\", or \"all\"",
    "type": ["array", "string"],
    "items": { "type": ["integer", "string"] }
});

impl Serialize for Trunk {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Trunk::Listed(vlans) = self else {
            return serializer.serialize_str("all");
        };
        let elements = ranges(vlans)
            .into_iter()
            .map(|range| match VlanId::new(*range.start()) {
                Some(vlan) if range.start() == range.end() => Element::Number(vlan),
                _ => Element::Range(range),
            });
        serializer.collect_seq(elements)
    }
}

impl<'de> Deserialize<'de> for Trunk {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Trunk;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Trunk, E> {
                match text {
                    "all" => Ok(Trunk::All),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Trunk, A::Error> {
                let mut vlans = BTreeSet::new();
                while let Some(element) = seq.next_element()? {
                    match element {
                        Element::Number(vlan) => drop(vlans.insert(vlan)),
                        Element::Range(range) => add(&mut vlans, range),
                    }
                }
                if vlans.is_empty() {
                    return Err(de::Error::invalid_length(0, &self));
                }
                Ok(Trunk::Listed(vlans))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_written_the_shortest_way() {
        for (text, json, shown) in [
            ("all", r#""all""#, "all"),
            ("10", "[10]", "10"),
            ("20,10,11", "[10,11,20]", "10,11,20"),
            ("10-12", r#"["10-12"]"#, "10-12"),
            ("1-4094", r#"["1-4094"]"#, "1-4094"),
            ("5-7,8,100-101,6-9", r#"["5-9",100,101]"#, "5-9,100,101"),
        ] {
            let trunk: Trunk = text.parse().unwrap();
            assert_eq!(trunk.to_string(), shown);
            assert_eq!(serde_json::to_string(&trunk).unwrap(), json);
            assert_eq!(serde_json::from_str::<Trunk>(json).unwrap(), trunk);
        }
        let mixed: Trunk = serde_json::from_str(r#"["100-102", 7, 101]"#).unwrap();
        assert_eq!(mixed.to_string(), "7,100-102");
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in [
            "", "0", "4095", "9-8", "1-4095", "-5", "5-", "1-2-3", "a-b", "10,,11", "1 - 2",
        ] {
            assert!(text.parse::<Trunk>().is_err(), "{text}");
            assert!(
                serde_json::from_value::<Trunk>(serde_json::json!([text])).is_err(),
                "{text}"
            );
        }
        for json in [
            "[]",
            "[0]",
            "[-1]",
            "[4095]",
            r#"["10"]"#,
            r#""10""#,
            "7",
            "[[1]]",
        ] {
            assert!(serde_json::from_str::<Trunk>(json).is_err(), "{json}");
        }
    }
}
