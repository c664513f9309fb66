//! Reads lists of actions.

use super::{
    Action, Conntrack, LEAST_LENGTH, MAX_BYTES, MAX_DEPTH, Set, Userspace, attr, check_length, sample,
    userspace,
};
use crate::attribute::{self, Attribute, Rule, attributes};
use crate::error::Error;
use crate::key::{Ethernet, NO_PORT, NshHeader, TAG_PRESENT, attr as field, ether};
use crate::layout::{Layout, layouts};

const NAME: &str = "OVS_ACTION_ATTR";

static SAMPLE: attribute::AttributeSet<3> = attribute::AttributeSet {
    name: "OVS_SAMPLE_ATTR",
    rules: [Rule::Unknown, Rule::Exactly(4), Rule::Any],
};

static USERSPACE: attribute::AttributeSet<5> = attribute::AttributeSet {
    name: "OVS_USERSPACE_ATTR",
    rules: [
        Rule::Unknown,
        Rule::Exactly(4),
        Rule::Any,
        Rule::Exactly(4),
        Rule::Exactly(0),
    ],
};

static CHECK_LENGTH: attribute::AttributeSet<4> = attribute::AttributeSet {
    name: "OVS_CHECK_PKT_LEN_ATTR",
    rules: [Rule::Unknown, Rule::Exactly(2), Rule::Any, Rule::Any],
};

layouts! {
    /// `struct ovs_action_push_vlan`.
    PushVlan (4) {
        /// Tag protocol identifier.
        tpid: u16,
        /// The tag.
        tci: u16,
    }

    /// `struct ovs_action_push_mpls`, `struct ovs_action_add_mpls`.
    PushMpls (8) {
        /// Label stack entry.
        entry: u32,
        /// Ethernet type.
        eth_type: u16,
        /// Flags, in the latter struct only, in the machine's order.
        flags: u16,
    }
}

/// `OVS_MPLS_L3_TUNNEL_FLAG_MASK`.
pub(super) const LAYER_3: u16 = 1;

/// Reads a list of actions.
///
/// # Errors
///
/// The list is too long or too deep; an action is unknown or invalid for every packet.
pub fn read(bytes: &[u8]) -> Result<Vec<Action>, Error> {
    if bytes.len() > MAX_BYTES {
        return Err(Error::TooLong {
            what: "list of actions",
            found: bytes.len(),
            limit: MAX_BYTES,
        });
    }
    list(bytes, 0)
}

fn list(bytes: &[u8], depth: usize) -> Result<Vec<Action>, Error> {
    if depth > MAX_DEPTH {
        return Err(Error::TooDeep {
            what: "actions",
            limit: MAX_DEPTH,
        });
    }
    attributes(bytes)
        .map(|attribute| action(attribute?, depth))
        .collect()
}

fn action(Attribute { kind, value }: Attribute<'_>, depth: usize) -> Result<Action, Error> {
    Ok(match kind {
        attr::OUTPUT => Action::Output(port(number(kind, value)?)?),
        attr::USERSPACE => Action::Userspace(read_userspace(value)?),
        attr::SET => Action::Set(Set::read(value, false)?),
        attr::SET_MASKED => Action::Set(Set::read(value, true)?),
        attr::PUSH_VLAN => push_vlan(fixed(kind, value)?)?,
        attr::POP_VLAN => empty(kind, value, Action::PopVlan)?,
        attr::SAMPLE => read_sample(value, depth)?,
        attr::RECIRC => Action::Recirculate(number(kind, value)?),
        attr::HASH => hash(kind, value)?,
        attr::PUSH_MPLS => push_mpls(fixed(kind, value)?)?,
        attr::POP_MPLS => Action::PopMpls(fixed(kind, value)?),
        attr::ADD_MPLS => add_mpls(fixed(kind, value)?)?,
        attr::CT => Action::Conntrack(Conntrack::read(value)?),
        attr::TRUNC => truncate(number(kind, value)?)?,
        attr::PUSH_ETH => Action::PushEthernet(fixed::<Ethernet>(kind, value)?),
        attr::POP_ETH => empty(kind, value, Action::PopEthernet)?,
        attr::CT_CLEAR => empty(kind, value, Action::ClearConnection)?,
        attr::PUSH_NSH => push_nsh(value)?,
        attr::POP_NSH => empty(kind, value, Action::PopNsh)?,
        attr::METER => Action::Meter(number(kind, value)?),
        attr::CLONE => Action::Clone(list(value, depth + 1)?),
        attr::CHECK_PKT_LEN => read_check_length(value, depth)?,
        _ => return Err(Error::Unknown { set: NAME, kind }),
    })
}

fn size(kind: u16, value: &[u8]) -> Error {
    Error::Size {
        set: NAME,
        kind,
        found: value.len(),
    }
}

fn number(kind: u16, value: &[u8]) -> Result<u32, Error> {
    let bytes = value.try_into().map_err(|_| size(kind, value))?;
    Ok(u32::from_ne_bytes(bytes))
}

fn fixed<T: Layout>(kind: u16, value: &[u8]) -> Result<T, Error> {
    let exact = value.len() == T::SIZE;
    T::from_bytes(value).filter(|_| exact).ok_or(size(kind, value))
}

fn empty(kind: u16, value: &[u8], action: Action) -> Result<Action, Error> {
    if value.is_empty() {
        Ok(action)
    } else {
        Err(size(kind, value))
    }
}

pub(super) fn wrong<T>(what: &'static str, value: impl Into<u64>) -> Result<T, Error> {
    let value = value.into();
    Err(Error::Value { what, value })
}

fn port(port: u32) -> Result<u32, Error> {
    if port >= NO_PORT {
        wrong("output port", port)
    } else {
        Ok(port)
    }
}

fn truncate(length: u32) -> Result<Action, Error> {
    if length < LEAST_LENGTH {
        return wrong("truncated length", length);
    }
    Ok(Action::Truncate(length))
}

/// `struct ovs_action_hash`: algorithm, starting value. The kernel has one algorithm, `OVS_HASH_ALG_L4`.
fn hash(kind: u16, value: &[u8]) -> Result<Action, Error> {
    let (algorithm, basis) = value.split_at_checked(4).ok_or(size(kind, value))?;
    let basis = basis.try_into().map_err(|_| size(kind, value))?;
    match number(kind, algorithm)? {
        0 => Ok(Action::Hash {
            basis: u32::from_ne_bytes(basis),
        }),
        other => wrong("hash algorithm", other),
    }
}

fn push_vlan(PushVlan { tpid, tci }: PushVlan) -> Result<Action, Error> {
    if !ether::is_vlan(tpid) {
        return wrong("tag protocol identifier", tpid);
    }
    if tci & TAG_PRESENT == 0 {
        return wrong("tag to push", tci);
    }
    Ok(Action::PushVlan { tpid, tci })
}

fn mpls_type(eth_type: u16) -> Result<u16, Error> {
    if ether::is_mpls(eth_type) {
        Ok(eth_type)
    } else {
        wrong("Ethernet type of MPLS", eth_type)
    }
}

fn push_mpls(push: PushMpls) -> Result<Action, Error> {
    Ok(Action::PushMpls {
        entry: push.entry,
        eth_type: mpls_type(push.eth_type)?,
    })
}

fn add_mpls(add: PushMpls) -> Result<Action, Error> {
    let flags = u16::from_ne_bytes(add.flags.to_be_bytes());
    if flags & !LAYER_3 != 0 {
        return wrong("flags of add_mpls", flags);
    }
    Ok(Action::AddMpls {
        entry: add.entry,
        eth_type: mpls_type(add.eth_type)?,
        layer_3: flags & LAYER_3 != 0,
    })
}

fn push_nsh(value: &[u8]) -> Result<Action, Error> {
    match super::set::only(value)? {
        (field::NSH, header) => Ok(Action::PushNsh(NshHeader::read(header)?)),
        (kind, _) => Err(Error::Unknown {
            set: "OVS_ACTION_ATTR_PUSH_NSH",
            kind,
        }),
    }
}

fn read_userspace(value: &[u8]) -> Result<Userspace, Error> {
    let table = attribute::Table::read(&USERSPACE, value)?;
    let pid = table.required(userspace::PID, table.u32(userspace::PID))?;
    if pid == 0 {
        return wrong("OVS_USERSPACE_ATTR_PID", pid);
    }
    Ok(Userspace {
        pid,
        userdata: table.bytes(userspace::USERDATA).map(<[u8]>::to_vec),
        egress_tunnel_port: table.u32(userspace::EGRESS_TUN_PORT),
        actions: table.has(userspace::ACTIONS),
    })
}

fn read_sample(value: &[u8], depth: usize) -> Result<Action, Error> {
    let table = attribute::Table::read(&SAMPLE, value)?;
    let actions = table.required(sample::ACTIONS, table.bytes(sample::ACTIONS))?;
    Ok(Action::Sample {
        probability: table.required(sample::PROBABILITY, table.u32(sample::PROBABILITY))?,
        actions: list(actions, depth + 1)?,
    })
}

fn read_check_length(value: &[u8], depth: usize) -> Result<Action, Error> {
    let table = attribute::Table::read(&CHECK_LENGTH, value)?;
    let length = table.required(check_length::PKT_LEN, table.u16(check_length::PKT_LEN))?;
    if length == 0 {
        return wrong("OVS_CHECK_PKT_LEN_ATTR_PKT_LEN", length);
    }
    let nested = |kind| list(table.required(kind, table.bytes(kind))?, depth + 1);
    Ok(Action::CheckLength {
        length,
        longer: nested(check_length::IF_GREATER)?,
        others: nested(check_length::IF_LESS_EQUAL)?,
    })
}
