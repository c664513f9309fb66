//! Numbers of `linux/genetlink.h` and `linux/openvswitch.h`, Linux 6.1, and what attributes the families' messages may hold.

use ovs_netlink::attribute::Rule::{Any, Between, Exactly, Padding, Unknown};
use ovs_netlink::attribute::{Rule, Set};

/// A generic netlink family.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Family {
    pub name: &'static str,
    /// Message type. The kernel gives such numbers out at run time.
    pub number: u16,
    pub version: u8,
    /// Bytes of the family's own header.
    pub header: u32,
    pub max_attribute: u32,
    /// Its multicast group has the family's name and this number; 0: it has none.
    pub group: u32,
}

const fn family(name: &'static str, number: u16, version: u8, max_attribute: u32) -> Family {
    Family {
        name,
        number,
        version,
        header: 4,
        max_attribute,
        // Groups' numbers only need to differ.
        group: number as u32,
    }
}

pub(crate) static CONTROL: Family = Family {
    name: "nlctrl",
    number: 0x10,
    version: 2,
    header: 0,
    max_attribute: 10,
    group: 0,
};
pub(crate) static DATAPATH: Family = family("ovs_datapath", 0x20, 2, dp::IFINDEX as u32);
pub(crate) static VPORT: Family = family("ovs_vport", 0x21, 1, vport::NETNSID as u32);
pub(crate) static FLOW: Family = family("ovs_flow", 0x22, 1, flow::PAD as u32);
pub(crate) static PACKET: Family = Family {
    group: 0,
    ..family("ovs_packet", 0x23, 1, packet::HASH as u32)
};
pub(crate) static METER: Family = family("ovs_meter", 0x24, 1, meter::PAD as u32);
pub(crate) static CT_LIMIT: Family = family("ovs_ct_limit", 0x25, 1, ct_limit::ZONE_LIMIT as u32);

pub(crate) static FAMILIES: [&Family; 7] = [&CONTROL, &DATAPATH, &VPORT, &FLOW, &PACKET, &METER, &CT_LIMIT];

/// An interface's name with its final zero.
const NAME: Rule = Between(2, 16);

/// `CTRL_ATTR_*` and `CTRL_CMD_*`.
pub(crate) mod control {
    use super::*;
    pub const NEW_FAMILY: u8 = 1;
    pub const GET_FAMILY: u8 = 3;
    pub const FAMILY_ID: u16 = 1;
    pub const FAMILY_NAME: u16 = 2;
    pub const VERSION: u16 = 3;
    pub const HEADER_SIZE: u16 = 4;
    pub const MAX_ATTRIBUTE: u16 = 5;
    pub const GROUPS: u16 = 7;
    pub const GROUP_NAME: u16 = 1;
    pub const GROUP_ID: u16 = 2;
    pub static SET: Set<3> = Set {
        name: "CTRL_ATTR",
        rules: [Unknown, Exactly(2), NAME],
    };
}

/// `OVS_DP_*`.
pub(crate) mod dp {
    use super::*;
    pub const NEW: u8 = 1;
    pub const DEL: u8 = 2;
    pub const GET: u8 = 3;
    pub const SET: u8 = 4;
    pub const NAME: u16 = 1;
    pub const UPCALL_PID: u16 = 2;
    pub const STATS: u16 = 3;
    pub const MEGAFLOW_STATS: u16 = 4;
    pub const USER_FEATURES: u16 = 5;
    pub const MASKS_CACHE_SIZE: u16 = 7;
    pub const PER_CPU_PIDS: u16 = 8;
    pub const IFINDEX: u16 = 9;
    pub const F_UNALIGNED: u32 = 1;
    pub const F_VPORT_PIDS: u32 = 2;
    pub const F_DISPATCH_UPCALL_PER_CPU: u32 = 8;
    pub static ATTRIBUTES: Set<10> = Set {
        name: "OVS_DP_ATTR",
        rules: [
            Unknown,
            super::NAME,
            Exactly(4),
            Unknown,
            Unknown,
            Exactly(4),
            Padding,
            Exactly(4),
            Any,
            Exactly(4),
        ],
    };
}

/// `OVS_VPORT_*`.
pub(crate) mod vport {
    use super::*;
    pub const NEW: u8 = 1;
    pub const DEL: u8 = 2;
    pub const GET: u8 = 3;
    pub const SET: u8 = 4;
    pub const PORT_NO: u16 = 1;
    pub const TYPE: u16 = 2;
    pub const NAME: u16 = 3;
    pub const OPTIONS: u16 = 4;
    pub const UPCALL_PID: u16 = 5;
    pub const STATS: u16 = 6;
    pub const IFINDEX: u16 = 8;
    pub const NETNSID: u16 = 9;
    pub static ATTRIBUTES: Set<10> = Set {
        name: "OVS_VPORT_ATTR",
        rules: [
            Unknown,
            Exactly(4),
            Exactly(4),
            super::NAME,
            Any,
            Any,
            Exactly(64),
            Padding,
            Exactly(4),
            Exactly(4),
        ],
    };
}

/// `OVS_FLOW_*`.
pub(crate) mod flow {
    use super::*;
    pub const NEW: u8 = 1;
    pub const DEL: u8 = 2;
    pub const GET: u8 = 3;
    pub const SET: u8 = 4;
    pub const KEY: u16 = 1;
    pub const ACTIONS: u16 = 2;
    pub const STATS: u16 = 3;
    pub const TCP_FLAGS: u16 = 4;
    pub const USED: u16 = 5;
    pub const CLEAR: u16 = 6;
    pub const MASK: u16 = 7;
    pub const UFID: u16 = 9;
    pub const UFID_FLAGS: u16 = 10;
    pub const PAD: u16 = 11;
    pub const OMIT_KEY: u32 = 1;
    pub const OMIT_MASK: u32 = 2;
    pub const OMIT_ACTIONS: u32 = 4;
    pub static ATTRIBUTES: Set<12> = Set {
        name: "OVS_FLOW_ATTR",
        rules: [
            Unknown,
            Any,
            Any,
            Unknown,
            Unknown,
            Unknown,
            Exactly(0),
            Any,
            Exactly(0),
            Between(1, 16),
            Exactly(4),
            Padding,
        ],
    };
}

/// `OVS_PACKET_*`.
pub(crate) mod packet {
    use super::*;
    pub const MISS: u8 = 1;
    pub const ACTION: u8 = 2;
    pub const EXECUTE: u8 = 3;
    pub const PACKET: u16 = 1;
    pub const KEY: u16 = 2;
    pub const ACTIONS: u16 = 3;
    pub const USERDATA: u16 = 4;
    pub const EGRESS_TUN_KEY: u16 = 5;
    pub const PROBE: u16 = 8;
    pub const MRU: u16 = 9;
    pub const LEN: u16 = 10;
    pub const HASH: u16 = 11;
    pub static ATTRIBUTES: Set<12> = Set {
        name: "OVS_PACKET_ATTR",
        rules: [
            Unknown,
            Between(14, ovs_netlink::attribute::MAX_VALUE),
            Any,
            Any,
            Unknown,
            Unknown,
            Unknown,
            Unknown,
            Exactly(0),
            Exactly(2),
            Exactly(4),
            Exactly(8),
        ],
    };
}

/// `OVS_METER_*` and `OVS_BAND_*`.
pub(crate) mod meter {
    use super::*;
    pub const FEATURES: u8 = 1;
    pub const SET: u8 = 2;
    pub const DEL: u8 = 3;
    pub const GET: u8 = 4;
    pub const ID: u16 = 1;
    pub const KBPS: u16 = 2;
    pub const STATS: u16 = 3;
    pub const BANDS: u16 = 4;
    pub const USED: u16 = 5;
    pub const MAX_METERS: u16 = 7;
    pub const MAX_BANDS: u16 = 8;
    pub const PAD: u16 = 9;
    pub const BAND_TYPE: u16 = 1;
    pub const BAND_RATE: u16 = 2;
    pub const BAND_BURST: u16 = 3;
    pub const BAND_STATS: u16 = 4;
    pub const TYPE_DROP: u32 = 1;
    pub static ATTRIBUTES: Set<10> = Set {
        name: "OVS_METER_ATTR",
        rules: [
            Unknown,
            Exactly(4),
            Exactly(0),
            Exactly(16),
            Any,
            Exactly(8),
            Exactly(0),
            Exactly(4),
            Exactly(4),
            Padding,
        ],
    };
    pub static BAND: Set<5> = Set {
        name: "OVS_BAND_ATTR",
        rules: [Unknown, Exactly(4), Exactly(4), Exactly(4), Exactly(16)],
    };
}

/// `OVS_CT_LIMIT_*`.
pub(crate) mod ct_limit {
    use super::*;
    pub const SET: u8 = 1;
    pub const DEL: u8 = 2;
    pub const GET: u8 = 3;
    pub const ZONE_LIMIT: u16 = 1;
    pub static ATTRIBUTES: Set<2> = Set {
        name: "OVS_CT_LIMIT_ATTR",
        rules: [Unknown, Any],
    };
}
