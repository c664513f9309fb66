//! Entities, and the requests that write and read them.

use super::Uint128;
use prost::{Message, Oneof};
use serde::{Deserialize, Serialize};

/// Values of `Update.type`.
pub mod update_type {
    pub const INSERT: i32 = 1;
    pub const MODIFY: i32 = 2;
    pub const DELETE: i32 = 3;
}

/// Values of `WriteRequest.atomicity`.
pub mod atomicity {
    pub const CONTINUE_ON_ERROR: i32 = 0;
    pub const ROLLBACK_ON_ERROR: i32 = 1;
    pub const DATAPLANE_ATOMIC: i32 = 2;
}

#[derive(Clone, PartialEq, Message)]
pub struct WriteRequest {
    #[prost(uint64, tag = "1")]
    pub device_id: u64,
    #[prost(uint64, tag = "2")]
    pub role_id: u64,
    #[prost(message, optional, tag = "3")]
    pub election_id: Option<Uint128>,
    #[prost(message, repeated, tag = "4")]
    pub updates: Vec<Update>,
    #[prost(int32, tag = "5")]
    pub atomicity: i32,
    #[prost(string, tag = "6")]
    pub role: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct WriteResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct ReadRequest {
    #[prost(uint64, tag = "1")]
    pub device_id: u64,
    #[prost(message, repeated, tag = "2")]
    pub entities: Vec<Entity>,
    #[prost(string, tag = "3")]
    pub role: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ReadResponse {
    #[prost(message, repeated, tag = "1")]
    pub entities: Vec<Entity>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Update {
    #[prost(int32, tag = "1")]
    pub r#type: i32,
    #[prost(message, optional, tag = "2")]
    pub entity: Option<Entity>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Entity {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12")]
    pub kind: Option<Kind>,
}

/// What an [`Entity`] is. Large ones are boxed: a batch of small ones shall not need their room.
#[derive(Clone, PartialEq, Oneof)]
pub enum Kind {
    #[prost(message, tag = "1")]
    Extern(Ignored),
    #[prost(message, boxed, tag = "2")]
    TableEntry(Box<TableEntry>),
    #[prost(message, boxed, tag = "3")]
    ActionProfileMember(Box<ActionProfileMember>),
    #[prost(message, boxed, tag = "4")]
    ActionProfileGroup(Box<ActionProfileGroup>),
    #[prost(message, boxed, tag = "5")]
    MeterEntry(Box<MeterEntry>),
    #[prost(message, boxed, tag = "6")]
    DirectMeterEntry(Box<DirectMeterEntry>),
    #[prost(message, boxed, tag = "7")]
    CounterEntry(Box<CounterEntry>),
    #[prost(message, boxed, tag = "8")]
    DirectCounterEntry(Box<DirectCounterEntry>),
    #[prost(message, boxed, tag = "9")]
    Replication(Box<PacketReplicationEngineEntry>),
    #[prost(message, boxed, tag = "10")]
    ValueSet(Box<ValueSetEntry>),
    #[prost(message, boxed, tag = "11")]
    RegisterEntry(Box<RegisterEntry>),
    #[prost(message, tag = "12")]
    Digest(DigestEntry),
}

/// What a client gets of a digest.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct DigestEntry {
    #[prost(uint32, tag = "1")]
    pub digest_id: u32,
    #[prost(message, optional, tag = "2")]
    pub config: Option<DigestConfig>,
}

/// How digests are gathered in lists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message, Serialize, Deserialize)]
pub struct DigestConfig {
    #[prost(int64, tag = "1")]
    pub max_timeout_ns: i64,
    #[prost(int32, tag = "2")]
    pub max_list_size: i32,
    #[prost(int64, tag = "3")]
    pub ack_timeout_ns: i64,
}

/// A message that nothing here reads.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Ignored {}

#[derive(Clone, PartialEq, Message)]
pub struct TableEntry {
    #[prost(uint32, tag = "1")]
    pub table_id: u32,
    #[prost(message, repeated, tag = "2")]
    pub r#match: Vec<FieldMatch>,
    #[prost(message, optional, tag = "3")]
    pub action: Option<TableAction>,
    #[prost(int32, tag = "4")]
    pub priority: i32,
    #[prost(uint64, tag = "5")]
    pub controller_metadata: u64,
    #[prost(message, optional, tag = "6")]
    pub meter_config: Option<MeterConfig>,
    #[prost(message, optional, tag = "7")]
    pub counter_data: Option<CounterData>,
    #[prost(bool, tag = "8")]
    pub is_default_action: bool,
    #[prost(int64, tag = "9")]
    pub idle_timeout_ns: i64,
    #[prost(message, optional, tag = "10")]
    pub time_since_last_hit: Option<IdleTimeout>,
    #[prost(bytes = "vec", tag = "11")]
    pub metadata: Vec<u8>,
    #[prost(message, optional, tag = "12")]
    pub meter_counter_data: Option<Ignored>,
    #[prost(bool, tag = "13")]
    pub is_const: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct IdleTimeout {
    #[prost(int64, tag = "1")]
    pub elapsed_ns: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct FieldMatch {
    #[prost(uint32, tag = "1")]
    pub field_id: u32,
    #[prost(oneof = "FieldMatchType", tags = "2, 3, 4, 6, 7, 100")]
    pub field_match_type: Option<FieldMatchType>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum FieldMatchType {
    #[prost(message, tag = "2")]
    Exact(ExactMatch),
    #[prost(message, tag = "3")]
    Ternary(TernaryMatch),
    #[prost(message, tag = "4")]
    Lpm(LpmMatch),
    #[prost(message, tag = "6")]
    Range(RangeMatch),
    #[prost(message, tag = "7")]
    Optional(OptionalMatch),
    #[prost(message, tag = "100")]
    Other(Ignored),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ExactMatch {
    #[prost(bytes = "vec", tag = "1")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TernaryMatch {
    #[prost(bytes = "vec", tag = "1")]
    pub value: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub mask: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct LpmMatch {
    #[prost(bytes = "vec", tag = "1")]
    pub value: Vec<u8>,
    #[prost(int32, tag = "2")]
    pub prefix_len: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RangeMatch {
    #[prost(bytes = "vec", tag = "1")]
    pub low: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub high: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct OptionalMatch {
    #[prost(bytes = "vec", tag = "1")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TableAction {
    #[prost(oneof = "TableActionType", tags = "1, 2, 3, 4")]
    pub r#type: Option<TableActionType>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum TableActionType {
    #[prost(message, tag = "1")]
    Action(Action),
    #[prost(uint32, tag = "2")]
    ActionProfileMemberId(u32),
    #[prost(uint32, tag = "3")]
    ActionProfileGroupId(u32),
    #[prost(message, tag = "4")]
    ActionProfileActionSet(ActionProfileActionSet),
}

/// Actions of an entry's own, of which a selector chooses.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ActionProfileActionSet {
    #[prost(message, repeated, tag = "1")]
    pub action_profile_actions: Vec<ActionProfileAction>,
    #[prost(int32, tag = "2")]
    pub action_selection_mode: i32,
    #[prost(int32, tag = "3")]
    pub size_semantics: i32,
    #[prost(message, optional, tag = "5")]
    pub group_action: Option<Action>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ActionProfileAction {
    #[prost(message, optional, tag = "1")]
    pub action: Option<Action>,
    #[prost(int32, tag = "2")]
    pub weight: i32,
    #[prost(oneof = "WatchKind", tags = "3, 4")]
    pub watch_kind: Option<WatchKind>,
}

/// Port without which a member is not chosen, in the form of version 1.0 and in that of later ones.
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum WatchKind {
    #[prost(int32, tag = "3")]
    Watch(i32),
    #[prost(bytes = "vec", tag = "4")]
    WatchPort(Vec<u8>),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ActionProfileGroup {
    #[prost(uint32, tag = "1")]
    pub action_profile_id: u32,
    #[prost(uint32, tag = "2")]
    pub group_id: u32,
    #[prost(message, repeated, tag = "3")]
    pub members: Vec<GroupMember>,
    #[prost(int32, tag = "4")]
    pub max_size: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GroupMember {
    #[prost(uint32, tag = "1")]
    pub member_id: u32,
    #[prost(int32, tag = "2")]
    pub weight: i32,
    #[prost(oneof = "WatchKind", tags = "3, 4")]
    pub watch_kind: Option<WatchKind>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Action {
    #[prost(uint32, tag = "1")]
    pub action_id: u32,
    #[prost(message, repeated, tag = "4")]
    pub params: Vec<Param>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Param {
    #[prost(uint32, tag = "2")]
    pub param_id: u32,
    #[prost(bytes = "vec", tag = "3")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ActionProfileMember {
    #[prost(uint32, tag = "1")]
    pub action_profile_id: u32,
    #[prost(uint32, tag = "2")]
    pub member_id: u32,
    #[prost(message, optional, tag = "3")]
    pub action: Option<Action>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Index {
    #[prost(int64, tag = "1")]
    pub index: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct MeterEntry {
    #[prost(uint32, tag = "1")]
    pub meter_id: u32,
    #[prost(message, optional, tag = "2")]
    pub index: Option<Index>,
    #[prost(message, optional, tag = "3")]
    pub config: Option<MeterConfig>,
    #[prost(message, optional, tag = "4")]
    pub counter_data: Option<Ignored>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DirectMeterEntry {
    #[prost(message, optional, tag = "1")]
    pub table_entry: Option<TableEntry>,
    #[prost(message, optional, tag = "2")]
    pub config: Option<MeterConfig>,
    #[prost(message, optional, tag = "3")]
    pub counter_data: Option<Ignored>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct MeterConfig {
    #[prost(int64, tag = "1")]
    pub cir: i64,
    #[prost(int64, tag = "2")]
    pub cburst: i64,
    #[prost(int64, tag = "3")]
    pub pir: i64,
    #[prost(int64, tag = "4")]
    pub pburst: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CounterEntry {
    #[prost(uint32, tag = "1")]
    pub counter_id: u32,
    #[prost(message, optional, tag = "2")]
    pub index: Option<Index>,
    #[prost(message, optional, tag = "3")]
    pub data: Option<CounterData>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DirectCounterEntry {
    #[prost(message, optional, tag = "1")]
    pub table_entry: Option<TableEntry>,
    #[prost(message, optional, tag = "2")]
    pub data: Option<CounterData>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CounterData {
    #[prost(int64, tag = "1")]
    pub byte_count: i64,
    #[prost(int64, tag = "2")]
    pub packet_count: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PacketReplicationEngineEntry {
    #[prost(oneof = "Replication", tags = "1, 2")]
    pub r#type: Option<Replication>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum Replication {
    #[prost(message, tag = "1")]
    Group(MulticastGroupEntry),
    #[prost(message, tag = "2")]
    Session(CloneSessionEntry),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct MulticastGroupEntry {
    #[prost(uint32, tag = "1")]
    pub multicast_group_id: u32,
    #[prost(message, repeated, tag = "2")]
    pub replicas: Vec<Replica>,
    #[prost(bytes = "vec", tag = "3")]
    pub metadata: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CloneSessionEntry {
    #[prost(uint32, tag = "1")]
    pub session_id: u32,
    #[prost(message, repeated, tag = "2")]
    pub replicas: Vec<Replica>,
    #[prost(uint32, tag = "3")]
    pub class_of_service: u32,
    #[prost(int32, tag = "4")]
    pub packet_length_bytes: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Replica {
    #[prost(oneof = "PortKind", tags = "1, 3")]
    pub port_kind: Option<PortKind>,
    #[prost(uint32, tag = "2")]
    pub instance: u32,
    #[prost(message, repeated, tag = "4")]
    pub backup_replicas: Vec<Ignored>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum PortKind {
    #[prost(uint32, tag = "1")]
    EgressPort(u32),
    #[prost(bytes = "vec", tag = "3")]
    Port(Vec<u8>),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ValueSetEntry {
    #[prost(uint32, tag = "1")]
    pub value_set_id: u32,
    #[prost(message, repeated, tag = "2")]
    pub members: Vec<ValueSetMember>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ValueSetMember {
    #[prost(message, repeated, tag = "1")]
    pub r#match: Vec<FieldMatch>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegisterEntry {
    #[prost(uint32, tag = "1")]
    pub register_id: u32,
    #[prost(message, optional, tag = "2")]
    pub index: Option<Index>,
    #[prost(message, optional, tag = "3")]
    pub data: Option<P4Data>,
}

/// A value. Only bit strings are read: others are what programs have no registers of. Digests are structs.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct P4Data {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub bitstring: Option<Vec<u8>>,
    #[prost(message, optional, tag = "5")]
    pub r#struct: Option<P4StructLike>,
}

/// Members of a struct, in its order.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct P4StructLike {
    #[prost(message, repeated, tag = "1")]
    pub members: Vec<P4Data>,
}
