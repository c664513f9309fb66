//! Actions.
//!
//! A `set` of several fields becomes one change per field. Its order among them has no meaning: no field's
//! change depends on another's.

use super::{OWN_METERS, number, port_id};
use crate::datapath::{Errno, PortNo};
use flow::{Action as Step, DropReason, Edit, Encapsulation, FieldId, Nested, SetField, Userspace};
use ovs_netlink::action::{Action, Change, Set};
use ovs_netlink::key::{
    Ethernet, Ipv4, Ipv6, Nsh, NshBase, NshContext, NshHeader, Ports as L4Ports, TAG_PRESENT, ether,
};
use ovs_netlink::layout::{Layout, Mac};

/// The actions of our data plane.
///
/// # Errors
///
/// `EINVAL`: there is no such action, or no such port.
pub fn actions(actions: &[Action]) -> Result<Vec<Step>, Errno> {
    let mut steps = Vec::with_capacity(actions.len());
    for action in actions {
        if let Action::Conntrack(_) = action {
            // As where the kernel's tracking fails: the packet ends here.
            steps.push(Step::Drop(DropReason::NotTracked));
            break;
        }
        push(action, &mut steps)?;
    }
    Ok(steps)
}

fn push(action: &Action, steps: &mut Vec<Step>) -> Result<(), Errno> {
    let nested = |list: &[Action]| actions(list).map(Nested);
    let port = |number| port_id(PortNo(number)).ok_or(Errno::EINVAL);
    let encapsulate = |change| Step::Edit(Edit::Encapsulate(change));
    let step = match action {
        Action::Output(number) => Step::Output(port(*number)?),
        Action::Userspace(to) => Step::Userspace(Userspace {
            pid: to.pid,
            data: to.userdata.clone().unwrap_or_default().into(),
            egress: to.egress_tunnel_port.map(port).transpose()?,
            with_actions: to.actions,
        }),
        Action::Set(set) => return push_set(set, steps),
        Action::PushVlan { tpid, tci } => Step::Edit(Edit::PushVlan {
            tpid: *tpid,
            tci: tci & !TAG_PRESENT,
        }),
        Action::PopVlan => Step::Edit(Edit::PopVlan),
        Action::PushMpls { entry, eth_type }
        | Action::AddMpls {
            entry,
            eth_type,
            layer_3: true,
        } => Step::Edit(Edit::PushMpls {
            lse: *entry,
            eth_type: *eth_type,
        }),
        Action::AddMpls { entry, eth_type, .. } => encapsulate(Encapsulation::AddMpls {
            lse: *entry,
            eth_type: *eth_type,
        }),
        Action::PopMpls(ether::BRIDGED) => encapsulate(Encapsulation::PopMplsToEth),
        Action::PopMpls(eth_type) => Step::Edit(Edit::PopMpls(*eth_type)),
        Action::Sample { probability, actions } => Step::Sample {
            probability: *probability,
            actions: nested(actions)?,
        },
        Action::Recirculate(id) => Step::Recirc(*id),
        Action::Hash { basis } => Step::Hash { basis: *basis },
        Action::Truncate(length) => Step::Truncate(*length),
        Action::Clone(list) => Step::Clone(nested(list)?),
        Action::CheckLength {
            length,
            longer,
            others,
        } => Step::CheckPktLen {
            len: *length,
            greater: nested(longer)?,
            otherwise: nested(others)?,
        },
        Action::Meter(meter) if *meter < OWN_METERS => Step::Meter(*meter),
        Action::PushEthernet(addresses) => encapsulate(Encapsulation::PushEth {
            dst: number(addresses.destination),
            src: number(addresses.source),
        }),
        Action::PopEthernet => encapsulate(Encapsulation::PopEth),
        Action::PushNsh(header) => encapsulate(Encapsulation::PushNsh(nsh_header(header)?)),
        Action::PopNsh => encapsulate(Encapsulation::PopNsh),
        // Not ovs-vswitchd's, or not yet.
        Action::Meter(_) | Action::Conntrack(_) | Action::ClearConnection => {
            return Err(Errno::EINVAL);
        }
    };
    steps.push(step);
    Ok(())
}

/// One change per field; without a mask all of each.
fn push_set(set: &Set, steps: &mut Vec<Step>) -> Result<(), Errno> {
    match set {
        Set::Priority(change) => whole(FieldId::SkbPriority, change, steps),
        Set::Mark(change) => whole(FieldId::SkbMark, change, steps),
        Set::Mpls(change) => whole(FieldId::MplsLse, change, steps),
        Set::Ethernet(change) => {
            put(FieldId::EthSrc, change, |of: &Ethernet| mac(of.source), steps);
            put(
                FieldId::EthDst,
                change,
                |of: &Ethernet| mac(of.destination),
                steps,
            );
        }
        Set::Ipv4(change) => {
            put(FieldId::IpSrc, change, |of: &Ipv4| of.source.into(), steps);
            put(FieldId::IpDst, change, |of: &Ipv4| of.destination.into(), steps);
            put(FieldId::IpTos, change, |of: &Ipv4| of.tos.into(), steps);
            put(FieldId::IpTtl, change, |of: &Ipv4| of.ttl.into(), steps);
        }
        Set::Ipv6(change) => {
            put(FieldId::IpSrc, change, |of: &Ipv6| of.source, steps);
            put(FieldId::IpDst, change, |of: &Ipv6| of.destination, steps);
            put(FieldId::Ipv6Label, change, |of: &Ipv6| of.label.into(), steps);
            put(FieldId::IpTos, change, |of: &Ipv6| of.traffic_class.into(), steps);
            put(FieldId::IpTtl, change, |of: &Ipv6| of.hop_limit.into(), steps);
        }
        Set::Tcp(change) | Set::Udp(change) | Set::Sctp(change) => {
            put(FieldId::TpSrc, change, |of: &L4Ports| of.source.into(), steps);
            put(
                FieldId::TpDst,
                change,
                |of: &L4Ports| of.destination.into(),
                steps,
            );
        }
        // The kind of metadata and the next protocol cannot be set.
        Set::Nsh(change) => {
            let mask = change.mask.unwrap_or(Nsh {
                base: NshBase::ones(),
                context: 0,
            });
            let mut put = |field, get: fn(&Nsh) -> u128| {
                push_field(field, get(&change.value), get(&mask), steps);
            };
            put(FieldId::NshFlags, |of| of.base.flags.into());
            put(FieldId::NshTtl, |of| of.base.ttl.into());
            put(FieldId::NshPathHdr, |of| of.base.path.into());
            put(FieldId::NshC1, |of| of.context >> 96);
            put(FieldId::NshC2, |of| of.context >> 64 & 0xffff_ffff);
            put(FieldId::NshC3, |of| of.context >> 32 & 0xffff_ffff);
            put(FieldId::NshC4, |of| of.context & 0xffff_ffff);
        }
        Set::Tunnel(_) | Set::Icmp(_) | Set::Icmpv6(_) | Set::Arp(_) | Set::NeighbourDiscovery(_) => {
            return Err(Errno::EINVAL);
        }
    }
    Ok(())
}

fn whole(field: FieldId, change: &Change<u32>, steps: &mut Vec<Step>) {
    push_field(
        field,
        change.value.into(),
        change.mask.unwrap_or(u32::MAX).into(),
        steps,
    );
}

fn put<T: Layout + Copy>(
    field: FieldId,
    change: &Change<T>,
    get: impl Fn(&T) -> u128,
    steps: &mut Vec<Step>,
) {
    let mask = change.mask.unwrap_or_else(T::ones);
    push_field(field, get(&change.value), get(&mask), steps);
}

/// A change of one field, unless no bit of it is changed.
fn push_field(field: FieldId, value: u128, mask: u128, steps: &mut Vec<Step>) {
    let mask = mask & field.field().ones();
    if mask != 0 {
        let value = value & mask;
        steps.push(Step::Edit(Edit::Set(SetField { field, value, mask })));
    }
}

/// The header as on the wire (RFC 8300 2.2).
fn nsh_header(header: &NshHeader) -> Result<flow::NshHeader, Errno> {
    let (kind, context) = match &header.context {
        NshContext::Fixed(context) => (1, context.to_be_bytes().to_vec()),
        NshContext::Variable(context) => (2, context.clone()),
    };
    let words = u16::try_from(2 + context.len().div_ceil(4)).map_err(|_| Errno::EINVAL)?;
    let first = u16::from(header.flags) << 12 | u16::from(header.ttl) << 6 | words;
    let mut bytes = first.to_be_bytes().to_vec();
    bytes.extend([kind, header.next_protocol]);
    bytes.extend(header.path.to_be_bytes());
    bytes.extend(context);
    bytes.resize(4 * usize::from(words), 0);
    flow::NshHeader::new(&bytes).ok_or(Errno::EINVAL)
}

fn mac(address: Mac) -> u128 {
    number(address).into()
}
