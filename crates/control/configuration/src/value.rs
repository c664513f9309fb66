//! Values that are in range by construction. Each type's `expecting` text is the one sentence that users see
//! for a wrong value, whether it came from a file, a request or the command line.

use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A text that is not a value of the wanted type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not {expected}")]
pub struct InvalidValue {
    /// The text that was given.
    pub value: String,
    /// What is allowed.
    pub expected: &'static str,
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty) = $min:literal ..= $max:literal, default $default:literal, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($inner);

        impl $name {
            /// Smallest value.
            pub const MIN: $inner = $min;
            /// Largest value.
            pub const MAX: $inner = $max;
            /// What is allowed, for users.
            pub const EXPECTED: &'static str = $expected;

            /// `None` when out of range.
            pub fn new(value: $inner) -> Option<Self> {
                ($min..=$max).contains(&value).then_some($name(value))
            }

            /// The number.
            pub fn get(self) -> $inner {
                self.0
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $name($default)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidValue;

            fn from_str(text: &str) -> Result<Self, InvalidValue> {
                let number = text.parse().ok().and_then(Self::new);
                number.ok_or_else(|| InvalidValue { value: text.into(), expected: $expected })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.0.serialize(serializer)
            }
        }

        $crate::json_schema::json_schema!($name, {
            "type": "integer", "minimum": Self::MIN, "maximum": Self::MAX, "description": $expected
        });

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Number;

                impl Visitor<'_> for Number {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_i64<E: de::Error>(self, value: i64) -> Result<$name, E> {
                        let number = value.try_into().ok().and_then($name::new);
                        number.ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
                    }

                    fn visit_u64<E: de::Error>(self, value: u64) -> Result<$name, E> {
                        let number = value.try_into().ok().and_then($name::new);
                        number.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(value), &self))
                    }
                }
                deserializer.deserialize_u64(Number)
            }
        }
    };
}

number! {
    /// VLAN identifier (IEEE 802.1Q-2018 9.6), 1 to 4094.
    VlanId(u16) = 1..=4094, default 1, "a VLAN identifier, 1 to 4094"
}

number! {
    /// Bytes of a frame that a mirror copies, 14 (an Ethernet header) to 65553.
    CopyLength(u32) = 14..=65_553, default 65_553, "a number of bytes, 14 to 65553"
}

number! {
    /// Largest IP packet in bytes, 68 (RFC 791) to 65535.
    Mtu(u16) = 68..=65535, default 1500, "an MTU in bytes, 68 to 65535"
}

number! {
    /// Seconds after which a MAC address that was not seen is forgotten, 10 to 1000000 (IEEE 802.1Q-2018
    /// table 8-6).
    AgeingSeconds(u32) = 10..=1_000_000, default 300, "an ageing time in seconds, 10 to 1000000"
}

number! {
    /// MAC addresses a switch may learn in all, 16 to 1048576.
    TableSize(u32) = 16..=1_048_576, default 16_384, "a number of MAC addresses, 16 to 1048576"
}

number! {
    /// MAC addresses a port may learn, 0 to 65536.
    MacLimit(u32) = 0..=65_536, default 1024, "a number of MAC addresses, 0 to 65536"
}

number! {
    /// Addresses that a port may get by DHCP or first use, 1 to 64.
    AddressLimit(u8) = 1..=64, default 4, "a number of addresses, 1 to 64"
}

number! {
    /// Packets per second of a port that may need a decision of the control process, 1 to 1000000.
    MissRate(u32) = 1..=1_000_000, default 1000, "a number of packets per second, 1 to 1000000"
}

number! {
    /// Packets per second of a port of a class that goes to all ports, 0 to 10000000; 0 for no limit.
    StormRate(u32) = 0..=10_000_000, default 10_000, "a number of packets per second, 0 (no limit) to 10000000"
}

impl StormRate {
    /// No limit.
    pub const NONE: StormRate = StormRate(0);
}

number! {
    /// Most operations of one pass of a P4 program, 32768 to 1000000.
    P4Operations(u32) = 32_768..=1_000_000, default 32_768, "a number of operations, 32768 to 1000000"
}

number! {
    /// Weight of a port at a shared bandwidth, 1 to 100.
    Weight(u8) = 1..=100, default 1, "a weight, 1 to 100"
}

number! {
    /// Priority of a port at a shared bandwidth, 0 to 7, which goes first.
    Priority(u8) = 0..=7, default 0, "a priority, 0 to 7 (goes first)"
}

number! {
    /// Number of a user, 0 to 4294967294.
    UserId(u32) = 0..=4_294_967_294, default 0, "the number of a user (`id -u NAME`)"
}

macro_rules! text {
    ($(#[$doc:meta])* $name:ident($inner:ty), $expected:literal, $parse:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($inner);

        impl $name {
            /// What is allowed, for users.
            pub const EXPECTED: &'static str = $expected;
        }

        impl FromStr for $name {
            type Err = InvalidValue;

            fn from_str(text: &str) -> Result<Self, InvalidValue> {
                let parse: fn(&str) -> Option<$inner> = $parse;
                parse(text).map($name).ok_or_else(|| InvalidValue { value: text.into(), expected: $expected })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        $crate::json_schema::json_schema!($name, { "type": "string", "description": $expected });

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;

                impl Visitor<'_> for Text {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }
    };
}

pub(crate) use text;

macro_rules! kebab_text {
    ($type:ident: $($variant:ident $text:literal),*) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $($type::$variant => $text,)* })
            }
        }

        impl std::str::FromStr for $type {
            type Err = crate::InvalidValue;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($text => Ok($type::$variant),)*
                    _ => Err(crate::InvalidValue {
                        value: text.into(),
                        expected: concat!("one of" $(, " ", $text)*),
                    }),
                }
            }
        }
    };
}

pub(crate) use kebab_text;

macro_rules! string {
    ($name:ident) => {
        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

text! {
    /// Name of a switch or port: part of file names and of command lines.
    Name(String),
    "a name: 1 to 63 of the characters a-z A-Z 0-9 . _ -, starting with a letter or digit",
    |text| plain(text, 63).then(|| text.to_owned())
}
string!(Name);

text! {
    /// Name of any port: one that users have named, or a switch's own ports to the host and the world.
    PortName(String),
    "the name of a port, SWITCH:host or SWITCH:uplink",
    |text| {
        let own = text.strip_suffix(":host").or_else(|| text.strip_suffix(":uplink"));
        plain(own.unwrap_or(text), 63).then(|| text.to_owned())
    }
}
string!(PortName);

text! {
    /// Name of a network interface; the kernel keeps 15 bytes.
    InterfaceName(String),
    "an interface name: 1 to 15 of the characters a-z A-Z 0-9 . _ -, starting with a letter or digit",
    |text| plain(text, 15).then(|| text.to_owned())
}
string!(InterfaceName);

text! {
    /// A network namespace.
    Netns(String),
    "a network namespace: a name under /run/netns, or an absolute path",
    |text| (plain(text, 255) || (text.starts_with('/') && text.len() < 4096 && !text.contains('\0')))
        .then(|| text.to_owned())
}
string!(Netns);

text! {
    /// A unicast MAC address.
    MacAddr([u8; 6]), "a unicast MAC address like 52:54:00:00:00:01", parse_mac
}

impl Copy for MacAddr {}

impl Copy for IpPrefix {}

impl MacAddr {
    /// `None` for a multicast address or zero.
    pub fn new(bytes: [u8; 6]) -> Option<Self> {
        (bytes[0] & 1 == 0 && bytes != [0; 6]).then_some(MacAddr(bytes))
    }

    /// Six bytes in the order of transmission.
    pub fn bytes(&self) -> [u8; 6] {
        self.0
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        f.pad(&format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"))
    }
}

text! {
    /// An IP address with the length of its network's prefix.
    IpPrefix((IpAddr, u8)), "an IP address with prefix length like 10.0.0.1/24 or fd00::1/64", parse_prefix
}

impl IpPrefix {
    /// Address and prefix length.
    pub fn parts(&self) -> (IpAddr, u8) {
        self.0
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0.0, self.0.1)
    }
}

fn plain(text: &str, longest: usize) -> bool {
    text.len() <= longest
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts
            .next()
            .filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    if parts.next().is_some() {
        return None;
    }
    MacAddr::new(bytes).map(|mac| mac.bytes())
}

fn parse_prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let length: u8 = length.parse().ok()?;
    (length <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, length))
}

text! {
    /// A bandwidth in bits per second, 100k to 100G; or none.
    MaxRate(Option<u64>),
    "a bandwidth in bits per second like \"100M\", \"100k\" to \"100G\", or \"none\"",
    |text| match text {
        "none" => Some(None),
        _ => parse_amount(text).filter(|rate| MaxRate::RANGE.contains(rate)).map(Some),
    }
}

impl Copy for MaxRate {}

impl MaxRate {
    /// Bits per second that are allowed.
    pub const RANGE: RangeInclusive<u64> = 100_000..=100_000_000_000;

    /// No limit.
    pub const NONE: MaxRate = MaxRate(None);

    /// Bits per second.
    pub fn get(self) -> Option<u64> {
        self.0
    }
}

impl Default for MaxRate {
    fn default() -> Self {
        MaxRate::NONE
    }
}

impl fmt::Display for MaxRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(rate) => f.pad(&amount(rate)),
            None => f.pad("none"),
        }
    }
}

text! {
    /// Bytes that pass at once after a pause, 1600 to 100M; or as many as 10 ms of the rate bring.
    MaxBurst(Option<u32>),
    "a number of bytes like \"64k\", \"1600\" to \"100M\", or \"default\"",
    |text| match text {
        "default" => Some(None),
        _ => {
            let bytes = parse_amount(text).and_then(|bytes| u32::try_from(bytes).ok());
            bytes.filter(|bytes| MaxBurst::RANGE.contains(bytes)).map(Some)
        }
    }
}

impl Copy for MaxBurst {}

impl MaxBurst {
    /// Bytes that are allowed.
    pub const RANGE: RangeInclusive<u32> = 1600..=100_000_000;

    /// As many bytes as 10 ms of the rate bring.
    pub const DEFAULT: MaxBurst = MaxBurst(None);

    /// Bytes, if a number was given.
    pub fn get(self) -> Option<u32> {
        self.0
    }
}

impl Default for MaxBurst {
    fn default() -> Self {
        MaxBurst::DEFAULT
    }
}

impl fmt::Display for MaxBurst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => f.pad(&amount(bytes.into())),
            None => f.pad("default"),
        }
    }
}

/// Suffixes of large numbers.
const SUFFIXES: [(char, u64); 3] = [('G', 1_000_000_000), ('M', 1_000_000), ('k', 1000)];

/// A number like `1500`, `64k`, `100M` or `5G`.
fn parse_amount(text: &str) -> Option<u64> {
    let suffix = SUFFIXES.into_iter().find(|(suffix, _)| text.ends_with(*suffix));
    let (digits, factor) = suffix.map_or((text, 1), |(suffix, factor)| {
        (text.trim_end_matches(suffix), factor)
    });
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// The shortest text of a number, as [`parse_amount`] reads it.
fn amount(number: u64) -> String {
    let suffix = SUFFIXES
        .into_iter()
        .find(|(_, factor)| number > 0 && number.is_multiple_of(*factor));
    suffix.map_or(number.to_string(), |(suffix, factor)| {
        format!("{}{suffix}", number / factor)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths() {
        for (text, rate) in [
            ("100k", 100_000),
            ("1500k", 1_500_000),
            ("5G", 5_000_000_000),
            ("1000000", 1_000_000),
        ] {
            assert_eq!(text.parse::<MaxRate>().unwrap().get(), Some(rate));
        }
        assert_eq!("1500k".parse::<MaxRate>().unwrap().to_string(), "1500k");
        assert_eq!("1000000".parse::<MaxRate>().unwrap().to_string(), "1M");
        assert_eq!("none".parse::<MaxRate>(), Ok(MaxRate::NONE));
        for bad in [
            "",
            "0",
            "1",
            "99k",
            "101G",
            "k",
            "1kk",
            "-1M",
            "+1M",
            "1.5M",
            "18446744073709551615G",
            "1 M",
            "1m",
        ] {
            let error = bad.parse::<MaxRate>().unwrap_err().to_string();
            assert!(error.contains("\"100k\" to \"100G\""), "{bad}: {error}");
        }
        for bad in ["0", "1", "1599", "101M", "5G"] {
            let error = bad.parse::<MaxBurst>().unwrap_err().to_string();
            assert!(error.contains("\"1600\" to \"100M\""), "{bad}: {error}");
        }
        let burst = |text: &str| text.parse::<MaxBurst>().unwrap().get();
        assert_eq!((burst("64k"), burst("default")), (Some(64_000), None));
    }

    #[test]
    fn names() {
        for good in ["a", "vm1", "web.example_1-x", &"x".repeat(63)] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "-x", "a/b", "a b", "a:b", "ä", &"x".repeat(64)] {
            let error = bad.parse::<Name>().unwrap_err().to_string();
            assert!(error.contains("1 to 63"), "{error}");
        }
        assert!("sixteen-bytes-xx".parse::<InterfaceName>().is_err());
        assert!("fifteen-bytes-x".parse::<InterfaceName>().is_ok());
        assert!("/proc/7/ns/net".parse::<Netns>().is_ok());
        assert!("../x".parse::<Netns>().is_err());
    }

    #[test]
    fn names_of_ports() {
        for good in ["a", "lan:host", "lan:uplink"] {
            assert_eq!(good.parse::<PortName>().unwrap().as_str(), good);
        }
        for bad in ["", ":host", "lan:", "lan:guest", "lan:host:host"] {
            assert!(bad.parse::<PortName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(
            "52:54:00:aB:00:01".parse::<MacAddr>().unwrap().to_string(),
            "52:54:00:ab:00:01"
        );
        for bad in [
            "",
            "52:54:00:00:00",
            "52:54:00:00:00:01:02",
            "+2:54:00:00:00:01",
            "01:00:5e:00:00:01",
        ] {
            assert!(bad.parse::<MacAddr>().is_err(), "{bad}");
        }
        assert!("00:00:00:00:00:00".parse::<MacAddr>().is_err());
        assert_eq!(
            "10.0.0.1/24".parse::<IpPrefix>().unwrap().to_string(),
            "10.0.0.1/24"
        );
        for bad in ["10.0.0.1", "10.0.0.1/33", "fd00::1/129", "x/8"] {
            assert!(bad.parse::<IpPrefix>().is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_keep_their_range() {
        assert_eq!("4094".parse::<VlanId>().unwrap().get(), 4094);
        for bad in ["0", "4095", "-1", "x", "70000"] {
            assert_eq!(
                bad.parse::<VlanId>().unwrap_err().to_string(),
                format!("{bad:?} is not a VLAN identifier, 1 to 4094")
            );
        }
        assert!(
            serde_json::from_str::<Mtu>("67")
                .unwrap_err()
                .to_string()
                .contains("68 to 65535")
        );
        assert!(
            serde_json::from_str::<Mtu>("-67")
                .unwrap_err()
                .to_string()
                .contains("68 to 65535")
        );
        assert_eq!(serde_json::from_str::<Mtu>("9000").unwrap().get(), 9000);
    }
}
