//! What users can configure.
//!
//! * `schema`: the same types describe a TOML file and the objects that requests add at run time, and they check
//!   themselves: a value that exists is in range (`value`). What spans several values (names that clash, an uplink that is
//!   missing) is checked by [`Config::check`].
//! * [`parse`] reads a file and puts file, line and column in front of every complaint.

#![forbid(unsafe_code)]

mod check;
mod file;
mod schema;
mod value;

pub use check::{CheckError, PathSegment};
pub use file::{ConfigError, parse};
pub use schema::{
    Config, HostConfig, PortConfig, PortKind, PortMode, SwitchConfig, SwitchKind, Trunk, VlanConfig,
};
pub use value::{
    AgeingSeconds, InterfaceName, InvalidValue, IpPrefix, MacAddr, MacLimit, MissRate, Mtu, Name, Netns,
    TableSize, VlanId,
};
