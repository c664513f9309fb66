//! Metadata of a packet: where it came from, and the results of earlier passes.

use super::tunnel::Tunnel;
use super::{Table, Tuple4, Tuple6, attr};
use crate::attribute::Writer;
use crate::error::Error;
use crate::layout::Layout;

/// Port numbers are below this one (`DP_MAX_PORTS`).
pub const NO_PORT: u32 = 0xffff;
/// Bits of a connection's state that have a meaning (`CT_SUPPORTED_MASK`).
const STATES: u32 = 0xff;

/// Metadata of a packet: properties that its bytes do not show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Metadata {
    /// Recirculation number; 0 in the first pass.
    pub recirc_id: u32,
    /// Hash that an action computed; 0 is none.
    pub dp_hash: u32,
    /// Queue or class (`skb->priority`).
    pub priority: u32,
    /// Port it came from, below [`NO_PORT`]. In a mask all ones, or none for a wildcard.
    pub in_port: Option<u32>,
    /// Mark (`skb->mark`).
    pub mark: u32,
    /// Outer headers of a packet that came out of a tunnel.
    ///
    /// In the mask of a key without a tunnel: only packets without a tunnel match.
    pub tunnel: Option<Tunnel>,
    /// Result of connection tracking.
    pub connection: Connection,
}

/// Result of connection tracking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Connection {
    /// `OVS_CS_F_*`, 8 bits; 0 if the packet was not tracked.
    pub state: u32,
    /// Zone.
    pub zone: u16,
    /// Mark of the connection.
    pub mark: u32,
    /// Labels of the connection, in network order.
    pub labels: u128,
    /// Source and destination of the connection's first packet. A mask may match them where the key has none:
    /// they count as zeros then.
    pub original: Option<ConnectionTuple>,
}

/// Source and destination of a connection's first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionTuple {
    /// Over IPv4.
    V4(Tuple4),
    /// Over IPv6.
    V6(Tuple6),
}

impl ConnectionTuple {
    /// The wildcard mask of this tuple.
    fn wildcard(self) -> Self {
        match self {
            Self::V4(_) => Self::V4(Tuple4::default()),
            Self::V6(_) => Self::V6(Tuple6::default()),
        }
    }
}

impl Metadata {
    /// Reads the metadata of a key, and takes it out of `table`.
    pub(super) fn read(table: &mut Table<'_>) -> Result<Self, Error> {
        let in_port = number(table, attr::IN_PORT);
        if in_port.is_some_and(|port| port >= NO_PORT) {
            return Err(value("OVS_KEY_ATTR_IN_PORT", in_port));
        }
        let tunnel = table.remove(attr::TUNNEL).map(Tunnel::read).transpose()?;
        Ok(Self {
            in_port,
            tunnel,
            ..Self::read_common(table)?
        })
    }

    /// As [`Self::read`], for a mask; `key` has been checked.
    pub(super) fn read_mask(table: &mut Table<'_>, key: &Self) -> Result<Self, Error> {
        let in_port = number(table, attr::IN_PORT).map(|_| u32::MAX);
        let tunnel = match (table.remove(attr::TUNNEL), &key.tunnel) {
            (Some(bytes), key) => Some(Tunnel::read_mask(bytes, key.as_ref())?),
            (None, Some(key)) => Some(key.wildcard()),
            (None, None) => None,
        };
        let mut mask = Self {
            in_port,
            tunnel,
            ..Self::read_common(table)?
        };
        let original = &mut mask.connection.original;
        match key.connection.original {
            Some(key) if original.is_none() => *original = Some(key.wildcard()),
            // Nothing but padding was not zero.
            None => *original = original.filter(|mask| *mask != mask.wildcard()),
            Some(_) => {}
        }
        Ok(mask)
    }

    fn read_common(table: &mut Table<'_>) -> Result<Self, Error> {
        let mut get = |kind| number(table, kind).unwrap_or(0);
        let metadata = Self {
            recirc_id: get(attr::RECIRC_ID),
            dp_hash: get(attr::DP_HASH),
            priority: get(attr::PRIORITY),
            mark: get(attr::SKB_MARK),
            connection: Connection {
                state: get(attr::CT_STATE),
                mark: get(attr::CT_MARK),
                ..Connection::default()
            },
            ..Self::default()
        };
        let state = metadata.connection.state;
        if state & !STATES != 0 {
            return Err(value("OVS_KEY_ATTR_CT_STATE", Some(state)));
        }
        let zone = table
            .remove(attr::CT_ZONE)
            .and_then(|bytes| bytes.try_into().ok());
        let labels = table.remove(attr::CT_LABELS).and_then(u128::from_bytes);
        let connection = Connection {
            zone: zone.map_or(0, u16::from_ne_bytes),
            labels: labels.unwrap_or(0),
            original: original(table)?,
            ..metadata.connection
        };
        Ok(Self {
            connection,
            ..metadata
        })
    }

    /// The exact mask of this key; `has` tells which attributes the key has.
    pub(super) fn exact(&self, has: impl Fn(u16) -> bool) -> Self {
        let ones = |kind| if has(kind) { u32::MAX } else { 0 };
        Self {
            recirc_id: ones(attr::RECIRC_ID),
            dp_hash: ones(attr::DP_HASH),
            priority: ones(attr::PRIORITY),
            in_port: self.in_port.map(|_| u32::MAX),
            mark: ones(attr::SKB_MARK),
            tunnel: self.tunnel.as_ref().map(Tunnel::exact),
            connection: Connection {
                state: ones(attr::CT_STATE) & STATES,
                zone: if has(attr::CT_ZONE) { u16::MAX } else { 0 },
                mark: ones(attr::CT_MARK),
                labels: if has(attr::CT_LABELS) { u128::MAX } else { 0 },
                original: self.connection.original.map(|tuple| match tuple {
                    ConnectionTuple::V4(_) => ConnectionTuple::V4(Tuple4::ones()),
                    ConnectionTuple::V6(_) => ConnectionTuple::V6(Tuple6::ones()),
                }),
            },
        }
    }

    /// Writes the key of a packet to execute, without the attribute that holds it.
    pub(crate) fn write_execute(&self, eth_type: Option<u16>, writer: &mut Writer) {
        self.write(writer);
        if let Some(eth_type) = eth_type {
            writer.be16(attr::ETHERTYPE, eth_type);
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.u32(attr::RECIRC_ID, self.recirc_id);
        writer.u32(attr::DP_HASH, self.dp_hash);
        writer.u32(attr::PRIORITY, self.priority);
        if let Some(tunnel) = &self.tunnel {
            writer.nested(attr::TUNNEL, |writer| tunnel.write(writer));
        }
        if let Some(port) = self.in_port {
            writer.u32(attr::IN_PORT, port);
        }
        writer.u32(attr::SKB_MARK, self.mark);
        let connection = &self.connection;
        writer.u32(attr::CT_STATE, connection.state);
        writer.u16(attr::CT_ZONE, connection.zone);
        writer.u32(attr::CT_MARK, connection.mark);
        writer.layout(attr::CT_LABELS, &connection.labels);
        match &connection.original {
            Some(ConnectionTuple::V4(tuple)) => writer.layout(attr::CT_ORIG_TUPLE_IPV4, tuple),
            Some(ConnectionTuple::V6(tuple)) => writer.layout(attr::CT_ORIG_TUPLE_IPV6, tuple),
            None => {}
        }
    }
}

/// The kernel keeps both tuples in one place, so a key has at most one.
fn original(table: &mut Table<'_>) -> Result<Option<ConnectionTuple>, Error> {
    let v4 = table
        .remove(attr::CT_ORIG_TUPLE_IPV4)
        .and_then(Tuple4::from_bytes);
    let v6 = table
        .remove(attr::CT_ORIG_TUPLE_IPV6)
        .and_then(Tuple6::from_bytes);
    match (v4, v6) {
        (Some(_), Some(_)) => Err(table.misplaced(attr::CT_ORIG_TUPLE_IPV6)),
        (Some(tuple), None) => Ok(Some(ConnectionTuple::V4(tuple))),
        (None, Some(tuple)) => Ok(Some(ConnectionTuple::V6(tuple))),
        (None, None) => Ok(None),
    }
}

fn number(table: &mut Table<'_>, kind: u16) -> Option<u32> {
    let bytes = table.remove(kind)?;
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

fn value(what: &'static str, value: Option<u32>) -> Error {
    Error::Value {
        what,
        value: value.map_or(0, u64::from),
    }
}
