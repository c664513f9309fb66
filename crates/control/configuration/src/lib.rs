//! The configuration of users: schema, checks and file.
//!
//! * `schema`: the same types describe a TOML file and the objects that requests add at run time, and they
//!   check themselves: a value that exists is in range (`value`). [`Config::check`] makes the checks that
//!   span several values (names that clash, an uplink that is missing).
//! * `policy`, `policy_value`: the part of the schema about sets, rules and guards, and what a rule's
//!   keys can be set to.
//! * [`parse`] reads a file and puts file, line and column in front of every error.

#![forbid(unsafe_code)]

mod check;
mod file;
mod policy;
mod policy_value;
mod schema;
mod value;
mod wanted;

pub use check::{CheckError, PathSegment};
pub use file::{ConfigError, error_at, parse};
pub use policy::{
    AclConfig, AllowedPair, ConnectionMatch, FragmentMatch, GroupConfig, Guard, PortPolicyConfig, RuleAction,
    RuleConfig, SetConfig,
};
pub use policy_value::{
    AddressMatch, EthernetType, FlagMatch, MacBlock, MacMatch, MacsOrSet, Network, NetworkOrSet, NumberRange,
    Protocol, VlanMatch, VlanTag,
};
pub use schema::{
    Config, ContestedMacs, HostConfig, OvsConfig, PortConfig, PortKind, PortMode, SwitchConfig, SwitchKind,
    Trunk, VlanConfig,
};
pub use value::{
    AgeingSeconds, InterfaceName, InvalidValue, IpPrefix, MacAddr, MacLimit, MissRate, Mtu, Name, Netns,
    StormControl, TableSize, UserId, VlanId,
};
