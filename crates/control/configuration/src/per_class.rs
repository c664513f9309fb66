//! Values for each class of frames that go to all ports: one for all three, or a table by class.

use crate::value::InvalidValue;
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// A value for each class of frames that go to all ports. Classes that a table does not name have the
/// default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(with = "Written<T>", bound = "T: JsonSchema + Default")]
pub struct PerClass<T> {
    /// Frames to the broadcast address.
    pub broadcast: T,
    /// Frames to other group addresses.
    pub multicast: T,
    /// Frames to unicast addresses that the switch has not seen.
    pub unknown: T,
}

/// What is allowed in text, for users.
const EXPECTED: &str =
    "one value, or CLASS=VALUE for some of broadcast, multicast and unknown, separated by commas";

impl<T: Clone> PerClass<T> {
    /// One value for all classes.
    pub fn all(value: T) -> PerClass<T> {
        PerClass {
            broadcast: value.clone(),
            multicast: value.clone(),
            unknown: value,
        }
    }
}

impl<T> PerClass<T> {
    /// The values in the order broadcast, multicast, unknown.
    pub fn values(&self) -> [&T; 3] {
        [&self.broadcast, &self.multicast, &self.unknown]
    }
}

impl<T: fmt::Display + PartialEq> fmt::Display for PerClass<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [broadcast, multicast, unknown] = self.values();
        if broadcast == multicast && multicast == unknown {
            return broadcast.fmt(f);
        }
        write!(f, "broadcast={broadcast},multicast={multicast},unknown={unknown}")
    }
}

impl<T: FromStr<Err = InvalidValue> + Default + Clone> FromStr for PerClass<T> {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<PerClass<T>, InvalidValue> {
        if !text.contains('=') {
            return text.parse().map(PerClass::all);
        }
        let invalid = || InvalidValue {
            value: text.into(),
            expected: EXPECTED,
        };
        let mut found: [Option<T>; 3] = [None, None, None];
        for part in text.split(',') {
            let (class, value) = part.split_once('=').ok_or_else(invalid)?;
            let place = ["broadcast", "multicast", "unknown"]
                .iter()
                .position(|name| *name == class);
            let place = &mut found[place.ok_or_else(invalid)?];
            if place.replace(value.parse()?).is_some() {
                return Err(invalid());
            }
        }
        let [broadcast, multicast, unknown] = found.map(Option::unwrap_or_default);
        Ok(PerClass {
            broadcast,
            multicast,
            unknown,
        })
    }
}

/// Names in a file.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "kebab-case",
    deny_unknown_fields,
    bound(deserialize = "T: Deserialize<'de> + Default")
)]
#[schemars(bound = "T: JsonSchema + Default")]
struct Table<T> {
    #[serde(default)]
    broadcast: T,
    #[serde(default)]
    multicast: T,
    #[serde(default)]
    unknown: T,
}

/// What is written: a value alone where it is that of all classes.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(bound = "T: JsonSchema + Default")]
enum Written<T> {
    One(T),
    Each(Table<T>),
}

impl<T: Serialize + PartialEq> Serialize for PerClass<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [broadcast, multicast, unknown] = self.values();
        let written = match broadcast == multicast && multicast == unknown {
            true => Written::One(broadcast),
            false => Written::Each(Table {
                broadcast,
                multicast,
                unknown,
            }),
        };
        written.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de> + Default + Clone> Deserialize<'de> for PerClass<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PerClass<T>, D::Error> {
        deserializer.deserialize_any(ValueOrTable(PhantomData))
    }
}

struct ValueOrTable<T>(PhantomData<T>);

impl<T> ValueOrTable<T> {
    /// One value for all classes.
    fn one<'de, E: de::Error>(value: impl IntoDeserializer<'de, E>) -> Result<PerClass<T>, E>
    where
        T: Deserialize<'de> + Clone,
    {
        T::deserialize(value.into_deserializer()).map(PerClass::all)
    }
}

impl<'de, T: Deserialize<'de> + Default + Clone> Visitor<'de> for ValueOrTable<T> {
    type Value = PerClass<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one value, or a table with some of broadcast, multicast and unknown")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<PerClass<T>, E> {
        Self::one(value)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<PerClass<T>, E> {
        Self::one(value)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<PerClass<T>, E> {
        Self::one(value)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PerClass<T>, A::Error> {
        let Table {
            broadcast,
            multicast,
            unknown,
        } = Table::deserialize(MapAccessDeserializer::new(map))?;
        Ok(PerClass {
            broadcast,
            multicast,
            unknown,
        })
    }
}
