//! Values of rules: what a rule's keys can be set to.
//!
//! Each is written as a text, or as a number where a number is meant. What is empty, or has bits that
//! would be ignored, is no value: a rule that says less than its author believes is an error, not a
//! surprise.

use crate::value::{InvalidValue, Name, text};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

text! {
    /// An IP address, or all addresses with a prefix: the address with the length of the prefix.
    Network((IpAddr, u8)),
    "an IP address or network like 10.0.0.1, 10.0.0.0/8 or fd00::/64, whose bits behind the prefix are zero",
    parse_network
}

text! {
    /// A MAC address, or all addresses with a prefix: the address in the low 48 bits, and the prefix's
    /// length.
    MacBlock((u64, u8)),
    "a MAC address or block like 52:54:00:00:00:01 or 52:54:00:00:00:00/24, whose bits behind the prefix are zero",
    parse_macs
}

text! {
    /// A network, or the name of a set of addresses.
    AddressMatch(NetworkOrSet),
    "an IP address, a network like 10.0.0.0/8 whose bits behind the prefix are zero, or the name of a set of addresses",
    |text| parse_network(text).map(NetworkOrSet::Network).or_else(|| Some(NetworkOrSet::Set(text.parse().ok()?)))
}

text! {
    /// A block of MAC addresses, or the name of a set of them.
    MacMatch(MacsOrSet),
    "a MAC address, a block like 52:54:00:00:00:00/24 whose bits behind the prefix are zero, or the name of a set of MAC addresses",
    |text| parse_macs(text).map(MacsOrSet::Macs).or_else(|| Some(MacsOrSet::Set(text.parse().ok()?)))
}

text! {
    /// TCP flags: those that are set, and those that a condition is about.
    FlagMatch((u16, u16)),
    "TCP flags like \"syn,!ack\": any of fin syn rst psh ack urg ece cwr ns, each once, ! for those that are not set",
    parse_flags
}

/// What [`AddressMatch`] says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetworkOrSet {
    /// Address and length of the prefix.
    Network((IpAddr, u8)),
    /// Name of a set.
    Set(Name),
}

/// What [`MacMatch`] says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MacsOrSet {
    /// Address and length of the prefix.
    Macs((u64, u8)),
    /// Name of a set.
    Set(Name),
}

macro_rules! get {
    ($($name:ident: $inner:ty),*) => {
        $(impl $name {
            /// What the text says.
            pub fn get(&self) -> &$inner {
                &self.0
            }
        })*
    };
}

get!(Network: (IpAddr, u8), MacBlock: (u64, u8), AddressMatch: NetworkOrSet, MacMatch: MacsOrSet, FlagMatch: (u16, u16));

impl Copy for Network {}
impl Copy for MacBlock {}
impl Copy for FlagMatch {}

/// A type that is written as a number or as a text.
macro_rules! scalar {
    ($(#[$doc:meta])* $name:ident($inner:ty), $expected:literal, $parse:expr, $show:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($inner);

        impl $name {
            /// What is allowed, for users.
            pub const EXPECTED: &'static str = $expected;

            /// What was written.
            pub fn get(self) -> $inner {
                self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidValue;

            fn from_str(text: &str) -> Result<Self, InvalidValue> {
                let parse: fn(&str) -> Option<$inner> = $parse;
                parse(text).map($name).ok_or_else(|| InvalidValue { value: text.into(), expected: $expected })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let show: fn($inner) -> String = $show;
                f.pad(&show(self.0))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let text = self.to_string();
                match text.parse::<u16>() {
                    Ok(number) => serializer.serialize_u16(number),
                    Err(_) => serializer.serialize_str(&text),
                }
            }
        }

        $crate::json_schema::json_schema!($name, { "type": ["integer", "string"], "description": $expected });

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Scalar;

                impl Visitor<'_> for Scalar {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
                    }

                    fn visit_u64<E: de::Error>(self, number: u64) -> Result<$name, E> {
                        number.to_string().parse().map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
                    }

                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$name, E> {
                        number.to_string().parse().map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
                    }
                }
                deserializer.deserialize_any(Scalar)
            }
        }
    };
}

scalar! {
    /// Numbers from the first to the last, both included.
    NumberRange((u16, u16)),
    "a number from 0 to 65535, or a range like \"1000-2000\" with the smaller number first",
    |text| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (number(first)?, number(last)?);
        (first <= last).then_some((first, last))
    },
    |(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") }
}

scalar! {
    /// Number of an IP protocol.
    Protocol(u8),
    "\"tcp\", \"udp\", \"sctp\", \"icmp\", \"icmpv6\", or the number of a protocol, 0 to 255",
    |text| named(&PROTOCOLS, text).or_else(|| number(text)?.try_into().ok()),
    |protocol| shown(&PROTOCOLS, protocol)
}

scalar! {
    /// An Ethernet type, behind all tags.
    EthernetType(u16),
    "\"ipv4\", \"ipv6\", \"arp\", \"rarp\", or a number from 1536 to 65535",
    |text| named(&ETHERNET_TYPES, text).or_else(|| number(text).filter(|number| *number >= 1536)),
    |kind| shown(&ETHERNET_TYPES, kind)
}

scalar! {
    /// Condition on the outer VLAN tag.
    VlanMatch(VlanTag),
    "a VLAN identifier from 0 to 4094, \"untagged\" or \"tagged\"",
    |text| match text {
        "untagged" => Some(VlanTag::Untagged),
        "tagged" => Some(VlanTag::Tagged),
        _ => number(text).filter(|id| *id < 4095).map(VlanTag::Id),
    },
    |tag| match tag {
        VlanTag::Untagged => "untagged".into(),
        VlanTag::Tagged => "tagged".into(),
        VlanTag::Id(id) => id.to_string(),
    }
}

/// What [`VlanMatch`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VlanTag {
    /// No tag.
    Untagged,
    /// A tag, of any VLAN.
    Tagged,
    /// A tag of this VLAN.
    Id(u16),
}

const PROTOCOLS: [(&str, u8); 5] = [
    ("tcp", 6),
    ("udp", 17),
    ("sctp", 132),
    ("icmp", 1),
    ("icmpv6", 58),
];

const ETHERNET_TYPES: [(&str, u16); 4] = [
    ("ipv4", 0x0800),
    ("ipv6", 0x86dd),
    ("arp", 0x0806),
    ("rarp", 0x8035),
];

const FLAGS: [&str; 9] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns"];

fn named<T: Copy>(names: &[(&str, T)], text: &str) -> Option<T> {
    names
        .iter()
        .find(|(name, _)| *name == text)
        .map(|(_, value)| *value)
}

fn shown<T: Copy + PartialEq + fmt::Display>(names: &[(&str, T)], value: T) -> String {
    let found = names.iter().find(|(_, other)| *other == value);
    found.map_or_else(|| value.to_string(), |(name, _)| (*name).into())
}

/// A decimal number without sign.
fn number(text: &str) -> Option<u16> {
    text.bytes()
        .all(|digit| digit.is_ascii_digit())
        .then(|| text.parse().ok())?
}

fn parse_network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, len) = text
        .split_once('/')
        .map_or((text, None), |(address, len)| (address, Some(len)));
    let address: IpAddr = address.parse().ok()?;
    let (bits, width) = match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let len = match len {
        Some(len) => number(len)?.try_into().ok()?,
        None => width,
    };
    (len <= width && bits.checked_shl(len.into()).unwrap_or(0) == 0).then_some((address, len))
}

fn parse_macs(text: &str) -> Option<(u64, u8)> {
    let (address, len) = text
        .split_once('/')
        .map_or((text, None), |(address, len)| (address, Some(len)));
    let mut bits = 0;
    for part in address.split(':') {
        let is_byte = part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
        bits = bits << 8 | u64::from(u8::from_str_radix(part, 16).ok().filter(|_| is_byte)?);
    }
    let len: u8 = match len {
        Some(len) => number(len)?.try_into().ok()?,
        None => 48,
    };
    let has_six_bytes = address.len() == 17;
    (has_six_bytes && len <= 48 && bits << 16 << len == 0).then_some((bits, len))
}

fn parse_flags(text: &str) -> Option<(u16, u16)> {
    let (mut value, mut mask) = (0, 0);
    for flag in text.split(',') {
        let (flag, is_set) = flag.strip_prefix('!').map_or((flag, true), |flag| (flag, false));
        let bit = 1 << FLAGS.iter().position(|name| *name == flag)?;
        if mask & bit != 0 {
            return None;
        }
        mask |= bit;
        value |= if is_set { bit } else { 0 };
    }
    Some((value, mask))
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&network_text(&self.0))
    }
}

impl fmt::Display for MacBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&macs_text(&self.0))
    }
}

impl fmt::Display for AddressMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            NetworkOrSet::Network(network) => f.pad(&network_text(network)),
            NetworkOrSet::Set(name) => name.fmt(f),
        }
    }
}

impl fmt::Display for MacMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            MacsOrSet::Macs(macs) => f.pad(&macs_text(macs)),
            MacsOrSet::Set(name) => name.fmt(f),
        }
    }
}

impl fmt::Display for FlagMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, mask) = self.0;
        let named = FLAGS.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
        let texts: Vec<String> = named
            .map(|(bit, name)| format!("{}{name}", if value >> bit & 1 == 1 { "" } else { "!" }))
            .collect();
        f.pad(&texts.join(","))
    }
}

fn network_text((address, len): &(IpAddr, u8)) -> String {
    let width = if address.is_ipv4() { 32 } else { 128 };
    if *len == width {
        address.to_string()
    } else {
        format!("{address}/{len}")
    }
}

fn macs_text((address, len): &(u64, u8)) -> String {
    let bytes: Vec<String> = address.to_be_bytes()[2..]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let address = bytes.join(":");
    if *len == 48 {
        address
    } else {
        format!("{address}/{len}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that are values and are shown as they were written, and texts that are none.
    fn check<T: FromStr<Err = InvalidValue> + fmt::Display + PartialEq + fmt::Debug>(
        good: &[&str],
        bad: &[&str],
    ) {
        for text in good {
            assert_eq!(text.parse::<T>().unwrap().to_string(), *text);
        }
        for text in bad {
            assert!(text.parse::<T>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_is_empty_or_would_be_ignored_is_no_value() {
        check::<Network>(
            &[
                "10.0.0.1",
                "10.0.0.0/8",
                "0.0.0.0/0",
                "fd00::/64",
                "::/0",
                "fe80::1",
            ],
            &[
                "",
                "10.0.0.1/8",
                "10.0.0.0/33",
                "10.0.0.0/+8",
                "fd00::1/64",
                "x",
                "10.0.0.0/",
            ],
        );
        check::<MacBlock>(
            &[
                "52:54:00:00:00:01",
                "52:54:00:00:00:00/24",
                "00:00:00:00:00:00/0",
                "01:80:c2:00:00:00",
            ],
            &[
                "52:54:00:00:00:01/24",
                "52:54:00",
                "52:54:00:00:00:00/49",
                "+2:54:00:00:00:01",
                "52:54:00:00:00:00:00",
            ],
        );
        check::<NumberRange>(
            &["0", "443", "1000-2000", "0-65535"],
            &["", "-", "2000-1000", "65536", "1-", "+1", "-1"],
        );
        check::<Protocol>(&["tcp", "icmpv6", "47", "0", "255"], &["TCP", "256", "-1", ""]);
        check::<EthernetType>(&["arp", "ipv6", "35020"], &["1535", "65536", "ip"]);
        check::<VlanMatch>(&["tagged", "untagged", "0", "4094"], &["4095", "x", ""]);
        check::<FlagMatch>(
            &["syn,!ack", "!fin", "ns"],
            &["", "syn,syn", "syn,!syn", "x", "syn,"],
        );
        check::<AddressMatch>(&["10.0.0.0/8", "office"], &["10.0.0.1/8", "a b"]);
        check::<MacMatch>(&["52:54:00:00:00:00/24", "phones"], &["52:54:00:00:00:01/24"]);
    }

    #[test]
    fn numbers_may_be_written_as_numbers() {
        assert_eq!(serde_json::from_str::<NumberRange>("22").unwrap().get(), (22, 22));
        assert_eq!(
            serde_json::from_str::<NumberRange>("\"22-23\"").unwrap().get(),
            (22, 23)
        );
        assert_eq!(serde_json::from_str::<Protocol>("\"udp\"").unwrap().get(), 17);
        for wrong in ["-1", "70000", "\"2-1\"", "true"] {
            let error = serde_json::from_str::<NumberRange>(wrong)
                .unwrap_err()
                .to_string();
            assert!(error.contains("the smaller number first"), "{error}");
        }
        assert_eq!(
            serde_json::to_string(&"1-2".parse::<NumberRange>().unwrap()).unwrap(),
            "\"1-2\""
        );
        assert_eq!(
            serde_json::to_string(&"7".parse::<NumberRange>().unwrap()).unwrap(),
            "7"
        );
    }
}
