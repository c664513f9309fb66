//! The configuration of users: schema, checks and file.
//!
//! | module | contents |
//! |---|---|
//! | `schema` | types that describe a TOML file, and the objects that requests add at run time |
//! | `policy`, `mirror` | the parts of the schema about sets, rules and guards; about copies of ports' packets |
//! | `p4` | the part about P4 programs |
//! | `p4runtime` | clients of P4Runtime, and what they may drive |
//! | `access`, `view` | who may connect to the sockets that the switch makes; where metrics are served |
//! | `mark` | marks of packets: the sender's, or a number |
//! | `per_class` | values for each class of frames that go to all ports |
//! | `value`, `policy_value` | values that check themselves: one that exists is in range |
//! | `trunk` | VLANs of a trunk: numbers, ranges, or all |
//! | `private_vlan` | which VLANs belong together, and ports that disagree about it |
//! | `check` | checks that span several values: names that clash, an uplink that is missing |
//! | `json_schema` | schemas of values with a serialization of their own |
//! | `file`, `wanted` | a file, with file, line and column in front of every error; what keys want, for users |

#![forbid(unsafe_code)]

mod access;
mod check;
mod file;
mod json_schema;
mod mark;
mod mirror;
mod p4;
mod p4runtime;
mod per_class;
mod policy;
mod policy_value;
mod private_vlan;
mod schema;
mod trunk;
mod value;
mod view;
mod wanted;

pub use access::{AccessConfig, Group, SocketMode};
pub use check::{CheckError, PathSegment};
pub use file::{ConfigError, error_at, parse};
pub use mark::{Dscp, Mark, VlanPriority};
pub use mirror::{Erspan, MirrorConfig, MirroredPackets};
pub use p4::{P4Config, P4End, P4StageConfig, PlacedPort};
pub use p4runtime::{P4DeviceConfig, P4RuntimeConfig};
pub use per_class::PerClass;
pub use policy::{
    AclConfig, AddressSource, AllowedPair, ConnectionMatch, FragmentMatch, GroupConfig, Guard,
    PortPolicyConfig, RuleAction, RuleConfig, SetConfig,
};
pub use policy_value::{
    AddressMatch, EthernetType, FlagMatch, MacBlock, MacMatch, MacsOrSet, Network, NetworkOrSet, NumberRange,
    Protocol, VlanMatch, VlanTag,
};
pub use schema::{
    Config, ContestedMacs, HostConfig, OvsConfig, PortConfig, PortKind, PortMode, PrivateRole, StormBits,
    StormControl, SwitchConfig, SwitchKind, UplinkBackEnd, VlanConfig,
};
pub use trunk::Trunk;
pub use value::{
    AddressLimit, AgeingSeconds, CopyLength, InterfaceName, InvalidValue, IpPrefix, MacAddr, MacLimit,
    MaxBurst, MaxRate, MissRate, Mtu, Name, Netns, P4Operations, PortName, Priority, StormRate, TableSize,
    UserId, VlanId, Weight,
};
pub use view::{ListenAddress, Place, ViewConfig};
