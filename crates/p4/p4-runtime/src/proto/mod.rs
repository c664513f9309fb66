//! Messages of P4Runtime (packages `p4.v1` and `google.rpc`), as they are on the wire.
//!
//! Names and numbers of fields are those of the specification. P4Info stays bytes: `p4-bmv2` reads it, and a
//! client gets back what another one has sent. Values of enumerations stay numbers, since a client may send
//! others than the specification has.
//!
//! | module | contents |
//! |---|---|
//! | `entity` | what is written and read |
//! | `pipeline` | programs |
//! | `stream` | arbitration, packets, errors of a stream |

#![expect(missing_docs, reason = "the specification says what the fields are")]

mod entity;
mod pipeline;
mod stream;

pub use entity::*;
pub use pipeline::*;
pub use stream::*;

use prost::Message;

/// A number of 128 bits.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Uint128 {
    #[prost(uint64, tag = "1")]
    pub high: u64,
    #[prost(uint64, tag = "2")]
    pub low: u64,
}

impl From<Uint128> for u128 {
    fn from(number: Uint128) -> u128 {
        u128::from(number.high) << 64 | u128::from(number.low)
    }
}

impl From<u128> for Uint128 {
    #[expect(clippy::cast_possible_truncation, reason = "each half is taken")]
    fn from(number: u128) -> Uint128 {
        Uint128 {
            high: (number >> 64) as u64,
            low: number as u64,
        }
    }
}

/// `google.protobuf.Any`: a message with the name of its type.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Any {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<Any>,
}

/// How one update, or one request of a read, ended.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Error {
    #[prost(int32, tag = "1")]
    pub canonical_code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(string, tag = "3")]
    pub space: String,
    #[prost(int32, tag = "4")]
    pub code: i32,
    #[prost(message, optional, tag = "5")]
    pub details: Option<Any>,
}

impl Error {
    /// The name of the type in an [`Any`].
    pub const TYPE_URL: &str = "type.googleapis.com/p4.v1.Error";
}

/// Which entities a role may write, in `Role.config`: `hyperswitch.p4.v1.RoleConfig`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RoleConfig {
    /// Numbers of P4Info that the role may write and read.
    #[prost(uint32, repeated, tag = "1")]
    pub p4_ids: Vec<u32>,
    /// Numbers of P4Info that the role may read.
    #[prost(uint32, repeated, tag = "2")]
    pub read_p4_ids: Vec<u32>,
    /// Whether the role may write multicast groups and clone sessions.
    #[prost(bool, tag = "3")]
    pub may_replicate: bool,
    /// Whether the role may set programs.
    #[prost(bool, tag = "4")]
    pub may_set_pipeline: bool,
    /// Whether the role may send packets, and gets those of the program.
    #[prost(bool, tag = "5")]
    pub has_packets: bool,
}

impl RoleConfig {
    /// The name of the type in an [`Any`].
    pub const TYPE_URL: &str = "type.googleapis.com/hyperswitch.p4.v1.RoleConfig";
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CapabilitiesRequest {
    #[prost(uint64, tag = "1")]
    pub device_id: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CapabilitiesResponse {
    #[prost(string, tag = "1")]
    pub p4runtime_api_version: String,
}
