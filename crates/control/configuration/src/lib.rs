//! The configuration of users: schema, checks and file.
//!
//! * `schema`: the same types describe a TOML file and the objects that requests add at run time, and they
//!   check themselves: a value that exists is in range (`value`). [`Config::check`] makes the checks that
//!   span several values (names that clash, an uplink that is missing).
//! * [`parse`] reads a file and puts file, line and column in front of every error.

#![forbid(unsafe_code)]

mod check;
mod file;
mod schema;
mod value;
mod wanted;

pub use check::{CheckError, PathSegment};
pub use file::{ConfigError, error_at, parse};
pub use schema::{
    Config, ContestedMacs, HostConfig, OvsConfig, PortConfig, PortKind, PortMode, SwitchConfig, SwitchKind,
    Trunk, VlanConfig,
};
pub use value::{
    AgeingSeconds, InterfaceName, InvalidValue, IpPrefix, MacAddr, MacLimit, MissRate, Mtu, Name, Netns,
    StormControl, TableSize, UserId, VlanId,
};
