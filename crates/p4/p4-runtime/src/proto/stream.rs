//! What travels on a stream.

use super::{Any, P4Data, Status, TableEntry, Uint128};
use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Eq, Message)]
pub struct StreamMessageRequest {
    #[prost(oneof = "stream_request::Update", tags = "1, 2, 3, 4")]
    pub update: Option<stream_request::Update>,
}

pub mod stream_request {
    use super::*;

    #[derive(Clone, PartialEq, Eq, Oneof)]
    pub enum Update {
        #[prost(message, tag = "1")]
        Arbitration(MasterArbitrationUpdate),
        #[prost(message, tag = "2")]
        Packet(PacketOut),
        #[prost(message, tag = "3")]
        DigestAck(DigestListAck),
        #[prost(message, tag = "4")]
        Other(Any),
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct StreamMessageResponse {
    #[prost(oneof = "stream_response::Update", tags = "1, 2, 3, 4, 6")]
    pub update: Option<stream_response::Update>,
}

pub mod stream_response {
    use super::*;

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Update {
        #[prost(message, tag = "1")]
        Arbitration(MasterArbitrationUpdate),
        #[prost(message, tag = "2")]
        Packet(PacketIn),
        #[prost(message, tag = "3")]
        Digest(DigestList),
        #[prost(message, tag = "4")]
        Idle(IdleTimeoutNotification),
        #[prost(message, tag = "6")]
        Error(StreamError),
    }
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct MasterArbitrationUpdate {
    #[prost(uint64, tag = "1")]
    pub device_id: u64,
    #[prost(message, optional, tag = "2")]
    pub role: Option<Role>,
    #[prost(message, optional, tag = "3")]
    pub election_id: Option<Uint128>,
    #[prost(message, optional, tag = "4")]
    pub status: Option<Status>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Role {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(message, optional, tag = "2")]
    pub config: Option<Any>,
    #[prost(string, tag = "3")]
    pub name: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PacketOut {
    #[prost(bytes = "vec", tag = "1")]
    pub payload: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    pub metadata: Vec<PacketMetadata>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PacketIn {
    #[prost(bytes = "vec", tag = "1")]
    pub payload: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    pub metadata: Vec<PacketMetadata>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PacketMetadata {
    #[prost(uint32, tag = "1")]
    pub metadata_id: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct DigestList {
    #[prost(uint32, tag = "1")]
    pub digest_id: u32,
    #[prost(uint64, tag = "2")]
    pub list_id: u64,
    #[prost(message, repeated, tag = "3")]
    pub data: Vec<P4Data>,
    #[prost(int64, tag = "4")]
    pub timestamp: i64,
}

/// Entries that no packet has met for their time.
#[derive(Clone, PartialEq, Message)]
pub struct IdleTimeoutNotification {
    #[prost(message, repeated, tag = "1")]
    pub table_entry: Vec<TableEntry>,
    #[prost(int64, tag = "2")]
    pub timestamp: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct DigestListAck {
    #[prost(uint32, tag = "1")]
    pub digest_id: u32,
    #[prost(uint64, tag = "2")]
    pub list_id: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct StreamError {
    #[prost(int32, tag = "1")]
    pub canonical_code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(string, tag = "3")]
    pub space: String,
    #[prost(int32, tag = "4")]
    pub code: i32,
    #[prost(oneof = "stream_error::Details", tags = "5, 6, 7")]
    pub details: Option<stream_error::Details>,
}

pub mod stream_error {
    use super::*;

    #[derive(Clone, PartialEq, Eq, Oneof)]
    pub enum Details {
        #[prost(message, tag = "5")]
        PacketOut(PacketOutError),
        #[prost(message, tag = "6")]
        DigestListAck(DigestListAckError),
        #[prost(message, tag = "7")]
        Other(StreamOtherError),
    }
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PacketOutError {
    #[prost(message, optional, tag = "1")]
    pub packet_out: Option<PacketOut>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct DigestListAckError {
    #[prost(message, optional, tag = "1")]
    pub digest_list_ack: Option<DigestListAck>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct StreamOtherError {
    #[prost(message, optional, tag = "1")]
    pub other: Option<Any>,
}
