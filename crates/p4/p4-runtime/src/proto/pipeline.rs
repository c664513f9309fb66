//! Programs: setting them, and asking for them.

use super::Uint128;
use prost::Message;

/// Values of `SetForwardingPipelineConfigRequest.action`.
pub mod pipeline_action {
    pub const VERIFY: i32 = 1;
    pub const VERIFY_AND_SAVE: i32 = 2;
    pub const VERIFY_AND_COMMIT: i32 = 3;
    pub const COMMIT: i32 = 4;
    pub const RECONCILE_AND_COMMIT: i32 = 5;
}

/// Values of `GetForwardingPipelineConfigRequest.response_type`.
pub mod response_type {
    pub const ALL: i32 = 0;
    pub const COOKIE_ONLY: i32 = 1;
    pub const P4INFO_AND_COOKIE: i32 = 2;
    pub const DEVICE_CONFIG_AND_COOKIE: i32 = 3;
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct SetForwardingPipelineConfigRequest {
    #[prost(uint64, tag = "1")]
    pub device_id: u64,
    #[prost(uint64, tag = "2")]
    pub role_id: u64,
    #[prost(message, optional, tag = "3")]
    pub election_id: Option<Uint128>,
    #[prost(int32, tag = "4")]
    pub action: i32,
    #[prost(message, optional, tag = "5")]
    pub config: Option<ForwardingPipelineConfig>,
    #[prost(string, tag = "6")]
    pub role: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SetForwardingPipelineConfigResponse {}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ForwardingPipelineConfig {
    /// The message `p4.config.v1.P4Info`, encoded. Absent and empty are two things.
    #[prost(bytes = "vec", optional, tag = "1")]
    pub p4info: Option<Vec<u8>>,
    #[prost(bytes = "vec", tag = "2")]
    pub p4_device_config: Vec<u8>,
    #[prost(message, optional, tag = "3")]
    pub cookie: Option<Cookie>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Cookie {
    #[prost(uint64, tag = "1")]
    pub cookie: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct GetForwardingPipelineConfigRequest {
    #[prost(uint64, tag = "1")]
    pub device_id: u64,
    #[prost(int32, tag = "2")]
    pub response_type: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetForwardingPipelineConfigResponse {
    #[prost(message, optional, tag = "1")]
    pub config: Option<ForwardingPipelineConfig>,
}
