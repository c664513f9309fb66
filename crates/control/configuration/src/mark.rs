//! Marks of a port's packets: what the sender wrote, or a number in its place.

use crate::value::InvalidValue;
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A mark from 0 to `MAX` that all packets get, or none: the sender is trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark<const MAX: u8>(Option<u8>);

/// Priority in VLAN tags (IEEE 802.1Q-2018 6.9.3).
pub type VlanPriority = Mark<7>;

/// Differentiated services codepoint (RFC 2474).
pub type Dscp = Mark<63>;

const TRUST: &str = "trust";

impl<const MAX: u8> Mark<MAX> {
    /// What is allowed, for users.
    pub const EXPECTED: &'static str = if MAX == 7 {
        "\"trust\", or a number from 0 to 7"
    } else {
        "\"trust\", or a number from 0 to 63"
    };

    /// The mark; `None` if the sender is trusted.
    pub fn get(self) -> Option<u8> {
        self.0
    }

    fn of(number: u64) -> Option<Self> {
        let number = u8::try_from(number).ok().filter(|number| *number <= MAX);
        number.map(|number| Mark(Some(number)))
    }
}

impl<const MAX: u8> fmt::Display for Mark<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => number.fmt(f),
            None => f.pad(TRUST),
        }
    }
}

impl<const MAX: u8> FromStr for Mark<MAX> {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if text == TRUST {
            return Ok(Mark(None));
        }
        text.parse().ok().and_then(Mark::of).ok_or_else(|| InvalidValue {
            value: text.into(),
            expected: Self::EXPECTED,
        })
    }
}

impl<const MAX: u8> Serialize for Mark<MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(number) => number.serialize(serializer),
            None => TRUST.serialize(serializer),
        }
    }
}

impl<const MAX: u8> schemars::JsonSchema for Mark<MAX> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Mark{MAX}").into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["integer", "string"], "description": Self::EXPECTED })
    }
}

impl<'de, const MAX: u8> Deserialize<'de> for Mark<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TrustOrNumber)
    }
}

struct TrustOrNumber<const MAX: u8>;

impl<const MAX: u8> Visitor<'_> for TrustOrNumber<MAX> {
    type Value = Mark<MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Mark::<MAX>::EXPECTED)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Mark<MAX>, E> {
        let number = u64::try_from(value).ok().and_then(Mark::of);
        number.ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Mark<MAX>, E> {
        Mark::of(value).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(value), &self))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Mark<MAX>, E> {
        match value {
            TRUST => Ok(Mark(None)),
            _ => Err(E::invalid_value(Unexpected::Str(value), &self)),
        }
    }
}
