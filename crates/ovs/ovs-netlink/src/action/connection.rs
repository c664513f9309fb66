//! `ct`: looks up the packet's connection, commits it, translates addresses. Nested `OVS_CT_ATTR_*` and
//! `OVS_NAT_ATTR_*`.

use crate::attribute::{self, Rule, Writer};
use crate::error::Error;
use crate::layout::Layout;
use crate::name::Name;

/// Most bytes of a helper's name (`NF_CT_HELPER_NAME_LEN`, less the zero).
pub const MAX_HELPER_NAME: usize = 15;
/// Most bytes of a timeout policy's name (`CTNL_TIMEOUT_NAME_MAX`, less the zero).
pub const MAX_TIMEOUT_NAME: usize = 31;

const COMMIT: u16 = 1;
const ZONE: u16 = 2;
const MARK: u16 = 3;
const LABELS: u16 = 4;
const HELPER: u16 = 5;
const NAT: u16 = 6;
const FORCE_COMMIT: u16 = 7;
const EVENTMASK: u16 = 8;
const TIMEOUT: u16 = 9;

static SET: attribute::AttributeSet<10> = attribute::AttributeSet {
    name: "OVS_CT_ATTR",
    rules: {
        use Rule::{Any, Between, Exactly, Unknown};
        [
            Unknown,
            Exactly(0),
            Exactly(2),
            Exactly(8),
            Exactly(32),
            Between(1, MAX_HELPER_NAME + 1),
            Any,
            Exactly(0),
            Exactly(4),
            Between(1, MAX_TIMEOUT_NAME + 1),
        ]
    },
};

mod nat {
    pub const SRC: u16 = 1;
    pub const DST: u16 = 2;
    pub const IP_MIN: u16 = 3;
    pub const IP_MAX: u16 = 4;
    pub const PROTO_MIN: u16 = 5;
    pub const PROTO_MAX: u16 = 6;
    pub const PERSISTENT: u16 = 7;
    pub const PROTO_HASH: u16 = 8;
    pub const PROTO_RANDOM: u16 = 9;
}

static NAT_SET: attribute::AttributeSet<10> = attribute::AttributeSet {
    name: "OVS_NAT_ATTR",
    rules: {
        use Rule::{Between, Exactly, Unknown};
        [
            Unknown,
            Exactly(0),
            Exactly(0),
            Between(4, 16),
            Between(4, 16),
            Exactly(2),
            Exactly(2),
            Exactly(0),
            Exactly(0),
            Exactly(0),
        ]
    },
};

type Table<'a> = attribute::Table<'a, 10>;

/// Looks up the packet's connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// Whether the connection is committed.
    pub commit: Commit,
    /// Zone.
    pub zone: u16,
    /// Mark of the connection: value and mask, which is not 0. Only with commit.
    pub mark: Option<(u32, u32)>,
    /// Labels of the connection, in network order: value and mask, which is not 0. Only with commit.
    pub labels: Option<(u128, u128)>,
    /// Name of the helper that expects related connections.
    pub helper: Option<Name>,
    /// Address translation.
    pub nat: Option<Nat>,
    /// Events that are reported (`IPCT_*`); all if none is given.
    pub events: Option<u32>,
    /// Name of the timeout policy. A name without a policy is no error.
    pub timeout: Option<Name>,
}

/// Whether a connection is committed, that is, kept in the connection table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commit {
    /// No.
    #[default]
    No,
    /// Yes.
    Yes,
    /// Yes, and it replaces one that began in the other direction.
    Force,
}

/// Address translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nat {
    /// The translation that the connection has already.
    Existing,
    /// New connections get this translation. Only with commit.
    New {
        /// Which side is translated.
        kind: NatKind,
        /// The addresses and ports that replace the packet's.
        range: NatRange,
    },
}

/// Which side is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatKind {
    /// Source address and port.
    Source,
    /// Destination address and port.
    Destination,
}

/// The addresses and ports that replace the packet's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatRange {
    /// Addresses; the packet's own if none are given.
    pub addresses: Option<NatAddresses>,
    /// Least and greatest port.
    pub ports: Option<(u16, u16)>,
    /// A client gets the same address each time.
    pub persistent: bool,
    /// Ports are chosen by a hash.
    pub hash: bool,
    /// Ports are chosen at random.
    pub random: bool,
}

/// Least and greatest address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatAddresses {
    /// IPv4.
    V4(u32, u32),
    /// IPv6.
    V6(u128, u128),
}

impl Conntrack {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Error> {
        let table = Table::read(&SET, bytes)?;
        let commit = match (table.has(COMMIT), table.has(FORCE_COMMIT)) {
            (_, true) => Commit::Force,
            (true, false) => Commit::Yes,
            (false, false) => Commit::No,
        };
        let name = |kind, most| {
            let value = table.bytes(kind);
            value
                .map(|value| Name::read(SET.name, kind, value, most))
                .transpose()
        };
        let conntrack = Self {
            commit,
            zone: table.u16(ZONE).unwrap_or(0),
            mark: table.bytes(MARK).and_then(mark),
            labels: table.bytes(LABELS).and_then(labels),
            helper: name(HELPER, MAX_HELPER_NAME)?,
            nat: table.bytes(NAT).map(Nat::read).transpose()?,
            events: table.u32(EVENTMASK),
            timeout: name(TIMEOUT, MAX_TIMEOUT_NAME)?,
        };
        conntrack.check(&table)?;
        Ok(conntrack)
    }

    /// A mark or labels must have a mask that is not zero, and they need a connection that is committed.
    fn check(&self, table: &Table<'_>) -> Result<(), Error> {
        let empty_mask = |what| Error::Value { what, value: 0 };
        if self.mark.is_some_and(|(_, mask)| mask == 0) {
            return Err(empty_mask("mask of OVS_CT_ATTR_MARK"));
        }
        if self.labels.is_some_and(|(_, mask)| mask == 0) {
            return Err(empty_mask("mask of OVS_CT_ATTR_LABELS"));
        }
        if self.commit != Commit::No {
            return Ok(());
        }
        let changes = [
            (MARK, self.mark.is_some()),
            (LABELS, self.labels.is_some()),
            (NAT, matches!(self.nat, Some(Nat::New { .. }))),
        ];
        match changes.into_iter().find(|(_, there)| *there) {
            Some((kind, _)) => Err(table.misplaced(kind)),
            None => Ok(()),
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.flag(COMMIT, self.commit == Commit::Yes);
        writer.flag(FORCE_COMMIT, self.commit == Commit::Force);
        writer.u16(ZONE, self.zone);
        if let Some((value, mask)) = self.mark {
            writer.attribute(MARK, &[value.to_ne_bytes(), mask.to_ne_bytes()].concat());
        }
        if let Some((value, mask)) = self.labels {
            writer.attribute(LABELS, &[value.to_bytes(), mask.to_bytes()].concat());
        }
        if let Some(helper) = &self.helper {
            writer.attribute(HELPER, &helper.terminated());
        }
        if let Some(events) = self.events {
            writer.u32(EVENTMASK, events);
        }
        if let Some(timeout) = &self.timeout {
            writer.attribute(TIMEOUT, &timeout.terminated());
        }
        if let Some(nat) = &self.nat {
            writer.nested(NAT, |writer| nat.write(writer));
        }
    }
}

fn mark(bytes: &[u8]) -> Option<(u32, u32)> {
    let (value, mask) = bytes.split_first_chunk()?;
    Some((
        u32::from_ne_bytes(*value),
        u32::from_ne_bytes(mask.try_into().ok()?),
    ))
}

fn labels(bytes: &[u8]) -> Option<(u128, u128)> {
    let (value, mask) = bytes.split_first_chunk()?;
    Some((
        u128::from_be_bytes(*value),
        u128::from_be_bytes(mask.try_into().ok()?),
    ))
}

impl Nat {
    fn read(bytes: &[u8]) -> Result<Self, Error> {
        let table = Table::read(&NAT_SET, bytes)?;
        let kind = match (table.has(nat::SRC), table.has(nat::DST)) {
            (true, true) => return Err(table.misplaced(nat::DST)),
            (true, false) => NatKind::Source,
            (false, true) => NatKind::Destination,
            (false, false) => {
                return match table.kinds().next() {
                    Some(other) => Err(table.misplaced(other)),
                    None => Ok(Self::Existing),
                };
            }
        };
        let range = NatRange {
            addresses: addresses(&table)?,
            ports: ports(&table)?,
            persistent: table.has(nat::PERSISTENT),
            hash: table.has(nat::PROTO_HASH),
            random: table.has(nat::PROTO_RANDOM),
        };
        Ok(Self::New { kind, range })
    }

    fn write(&self, writer: &mut Writer) {
        let Self::New { kind, range } = self else {
            return;
        };
        writer.flag(nat::SRC, *kind == NatKind::Source);
        writer.flag(nat::DST, *kind == NatKind::Destination);
        match range.addresses {
            Some(NatAddresses::V4(min, max)) => write_addresses(writer, min, max),
            Some(NatAddresses::V6(min, max)) => write_addresses(writer, min, max),
            None => {}
        }
        if let Some((min, max)) = range.ports {
            writer.u16(nat::PROTO_MIN, min);
            if max != min {
                writer.u16(nat::PROTO_MAX, max);
            }
        }
        writer.flag(nat::PERSISTENT, range.persistent);
        writer.flag(nat::PROTO_HASH, range.hash);
        writer.flag(nat::PROTO_RANDOM, range.random);
    }
}

/// If the greatest address is absent, it equals the least.
fn addresses(table: &Table<'_>) -> Result<Option<NatAddresses>, Error> {
    let max = table.bytes(nat::IP_MAX);
    let Some(min) = table.bytes(nat::IP_MIN) else {
        return if max.is_some() {
            Err(table.missing(nat::IP_MIN))
        } else {
            Ok(None)
        };
    };
    let max = max.unwrap_or(min);
    let wrong = |found| Error::Size {
        set: NAT_SET.name,
        kind: nat::IP_MIN,
        found,
    };
    if let (Ok(min), Ok(max)) = (<[u8; 4]>::try_from(min), <[u8; 4]>::try_from(max)) {
        return Ok(Some(NatAddresses::V4(
            u32::from_be_bytes(min),
            u32::from_be_bytes(max),
        )));
    }
    if let (Ok(min), Ok(max)) = (<[u8; 16]>::try_from(min), <[u8; 16]>::try_from(max)) {
        return Ok(Some(NatAddresses::V6(
            u128::from_be_bytes(min),
            u128::from_be_bytes(max),
        )));
    }
    Err(wrong(min.len()))
}

fn ports(table: &Table<'_>) -> Result<Option<(u16, u16)>, Error> {
    match (table.u16(nat::PROTO_MIN), table.u16(nat::PROTO_MAX)) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(table.missing(nat::PROTO_MIN)),
        (Some(min), max) => Ok(Some((min, max.unwrap_or(min)))),
    }
}

fn write_addresses<T: Layout + PartialEq>(writer: &mut Writer, min: T, max: T) {
    writer.layout(nat::IP_MIN, &min);
    if max != min {
        writer.layout(nat::IP_MAX, &max);
    }
}
