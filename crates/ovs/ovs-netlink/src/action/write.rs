//! Writes lists of actions.

use super::read::LAYER_3;
use super::{Action, Userspace, attr, check_length, sample, userspace};
use crate::attribute::Writer;
use crate::key::attr as field;
use crate::layout::LayoutField;

/// Writes a list of actions, without the attribute that holds them.
pub fn write(actions: &[Action], writer: &mut Writer) {
    for action in actions {
        write_one(action, writer);
    }
}

fn write_one(action: &Action, writer: &mut Writer) {
    match action {
        Action::Output(port) => writer.u32(attr::OUTPUT, *port),
        Action::Userspace(userspace) => writer.nested(attr::USERSPACE, |writer| userspace.write(writer)),
        Action::Set(set) => set.write(writer),
        Action::PushVlan { tpid, tci } => writer.attribute(attr::PUSH_VLAN, &packed(&[tpid, tci])),
        Action::PopVlan => writer.attribute(attr::POP_VLAN, &[]),
        Action::Sample { probability, actions } => writer.nested(attr::SAMPLE, |writer| {
            writer.u32(sample::PROBABILITY, *probability);
            writer.nested(sample::ACTIONS, |writer| write(actions, writer));
        }),
        Action::Recirculate(id) => writer.u32(attr::RECIRC, *id),
        Action::Hash { basis } => {
            writer.attribute(attr::HASH, &[0u32.to_ne_bytes(), basis.to_ne_bytes()].concat());
        }
        Action::PushMpls { entry, eth_type } => {
            writer.attribute(attr::PUSH_MPLS, &mpls(*entry, *eth_type, 0));
        }
        Action::PopMpls(eth_type) => writer.be16(attr::POP_MPLS, *eth_type),
        Action::AddMpls {
            entry,
            eth_type,
            layer_3,
        } => {
            let flags = if *layer_3 { LAYER_3 } else { 0 };
            writer.attribute(attr::ADD_MPLS, &mpls(*entry, *eth_type, flags));
        }
        Action::Conntrack(conntrack) => writer.nested(attr::CT, |writer| conntrack.write(writer)),
        Action::Truncate(length) => writer.u32(attr::TRUNC, *length),
        Action::PushEthernet(addresses) => writer.layout(attr::PUSH_ETH, addresses),
        Action::PopEthernet => writer.attribute(attr::POP_ETH, &[]),
        Action::ClearConnection => writer.attribute(attr::CT_CLEAR, &[]),
        Action::PushNsh(header) => writer.nested(attr::PUSH_NSH, |writer| {
            writer.nested(field::NSH, |writer| header.write(writer));
        }),
        Action::PopNsh => writer.attribute(attr::POP_NSH, &[]),
        Action::Meter(id) => writer.u32(attr::METER, *id),
        Action::Clone(actions) => writer.nested(attr::CLONE, |writer| write(actions, writer)),
        Action::CheckLength {
            length,
            longer,
            others,
        } => writer.nested(attr::CHECK_PKT_LEN, |writer| {
            writer.u16(check_length::PKT_LEN, *length);
            writer.nested(check_length::IF_GREATER, |writer| write(longer, writer));
            writer.nested(check_length::IF_LESS_EQUAL, |writer| write(others, writer));
        }),
    }
}

impl Userspace {
    fn write(&self, writer: &mut Writer) {
        writer.u32(userspace::PID, self.pid);
        if let Some(userdata) = &self.userdata {
            writer.attribute(userspace::USERDATA, userdata);
        }
        if let Some(port) = self.egress_tunnel_port {
            writer.u32(userspace::EGRESS_TUN_PORT, port);
        }
        writer.flag(userspace::ACTIONS, self.actions);
    }
}

fn packed(parts: &[&u16]) -> Vec<u8> {
    let mut bytes = Vec::new();
    parts.iter().for_each(|part| part.put(&mut bytes));
    bytes
}

/// `flags` are in the machine's order, all else in network order.
fn mpls(entry: u32, eth_type: u16, flags: u16) -> Vec<u8> {
    let mut bytes = entry.to_be_bytes().to_vec();
    bytes.extend_from_slice(&eth_type.to_be_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes
}
