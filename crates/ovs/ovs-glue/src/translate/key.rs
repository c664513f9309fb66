//! Keys and masks.
//!
//! A mask has the headers that its key has, so the same code translates both. There are two differences: a
//! mask always covers the VLAN tags, the presence of tags and of an Ethernet header, and the pass; and it
//! covers its port wholly or not at all.

use super::{NOBODY, mac, number, port_id, port_number};
use crate::datapath::{Errno, PortNo};
use flow::{Context, ContextMatch, FlowKey, FlowMask, PortId};
use ovs_netlink::key::{
    Arp, Connection, Ethernet, Icmp, Ipv4, Ipv6, Key, Labels, MAX_LABELS, Match, Metadata,
    NeighbourDiscovery, Network, Nsh, NshBase, Ports as L4Ports, TAG_PRESENT, Transport, Vlan, ether, ip,
};

/// In a label stack entry: it is the last one (RFC 3032).
const BOTTOM: u32 = 0x100;
/// Kind of NSH context that is matched (`NSH_M_TYPE1`).
const FIXED_CONTEXT: u8 = 1;

/// The fields that our data plane is to compare.
///
/// # Errors
///
/// `EINVAL`: the flow matches what our keys do not have.
pub fn flow_match(matches: &Match) -> Result<(FlowKey, FlowMask, Option<Box<ContextMatch>>), Errno> {
    let Match { key, mask } = matches;
    let in_port = match key.metadata.in_port {
        None => NOBODY,
        Some(number) => port_id(PortNo(number)).ok_or(Errno::EINVAL)?.0,
    };
    let values = write(key, in_port);
    // Whatever got lost on the way there is missing on the way back.
    if key_of(&values.0, &values.1) != *key {
        return Err(Errno::EINVAL);
    }
    let port_mask = if mask.0.metadata.in_port.is_some() {
        u32::MAX
    } else {
        0
    };
    let (mut bits, context_bits) = write(&mask.0, port_mask);
    bits.set_recirc_id(u32::MAX);
    bits.set_no_ethernet(1);
    let is_length = mask.0.eth_type != 0 || cut_tag(key).is_some();
    bits.set_eth_type(if is_length { u16::MAX } else { 0 });
    always_look_at_tags(key, &mask.0, &mut bits);
    let mask = FlowMask(bits);
    let context = (!context_bits.is_none()).then(|| {
        Box::new(ContextMatch {
            context: values.1.masked(&context_bits),
            mask: context_bits,
        })
    });
    Ok((values.0.masked(&mask), mask, context))
}

/// The key of a packet, as ovs-vswitchd is told.
pub fn key_of(flow: &FlowKey, context: &Context) -> Key {
    let mut key = Key {
        metadata: Metadata {
            recirc_id: flow.recirc_id(),
            dp_hash: flow.dp_hash(),
            priority: context.skb_priority(),
            in_port: port_number(PortId(flow.in_port())).map(|port| port.0),
            mark: flow.skb_mark(),
            tunnel: None,
            connection: Connection {
                state: flow.ct_state().into(),
                zone: flow.ct_zone(),
                mark: flow.ct_mark(),
                ..Connection::default()
            },
        },
        ethernet: (flow.no_ethernet() == 0).then(|| Ethernet {
            source: mac(flow.eth_src()),
            destination: mac(flow.eth_dst()),
        }),
        vlans: [
            tag(flow.vlan_tpid(), flow.vlan_tci()),
            tag(flow.inner_tpid(), flow.inner_tci()),
        ],
        eth_type: match flow.eth_type() {
            0 => ether::LENGTH,
            eth_type => eth_type,
        },
        network: network(flow),
        transport: Transport::None,
    };
    // The frame ends in a tag.
    if let Some(place) = key.vlans.iter().position(Option::is_none)
        && ether::is_vlan(key.eth_type)
    {
        key.vlans[place] = Some(Vlan {
            tpid: key.eth_type,
            tci: 0,
        });
        key.eth_type = ether::LENGTH;
    }
    key.transport = transport(flow, &key.network);
    key
}

fn nsh(flow: &FlowKey) -> Nsh {
    let [c1, c2, c3, c4] = [flow.nsh_c1(), flow.nsh_c2(), flow.nsh_c3(), flow.nsh_c4()].map(u128::from);
    let is_fixed = flow.nsh_mdtype() == FIXED_CONTEXT;
    Nsh {
        base: NshBase {
            flags: flow.nsh_flags(),
            ttl: flow.nsh_ttl(),
            md_type: flow.nsh_mdtype(),
            next_protocol: flow.nsh_np(),
            path: flow.nsh_path_hdr(),
        },
        context: if is_fixed {
            c1 << 96 | c2 << 64 | c3 << 32 | c4
        } else {
            0
        },
    }
}

fn network(flow: &FlowKey) -> Network {
    match flow.eth_type() {
        ether::IPV4 => Network::Ipv4(Ipv4 {
            source: flow.ip_src() as u32,
            destination: flow.ip_dst() as u32,
            protocol: flow.ip_proto(),
            tos: flow.ip_tos(),
            ttl: flow.ip_ttl(),
            fragment: flow.ip_frag(),
        }),
        ether::IPV6 => Network::Ipv6(Ipv6 {
            source: flow.ip_src(),
            destination: flow.ip_dst(),
            label: flow.ipv6_label(),
            protocol: flow.ip_proto(),
            traffic_class: flow.ip_tos(),
            hop_limit: flow.ip_ttl(),
            fragment: flow.ip_frag(),
        }),
        ether::ARP | ether::RARP => Network::Arp(Arp {
            source_ip: flow.ip_src() as u32,
            target_ip: flow.ip_dst() as u32,
            operation: flow.ip_proto().into(),
            source_mac: mac(flow.nd_sll()),
            target_mac: mac(flow.nd_tll()),
        }),
        kind if ether::is_mpls(kind) => Network::Mpls(labels(flow)),
        ether::NSH => Network::Nsh(nsh(flow)),
        _ => Network::None,
    }
}

/// The label stack entries down to the last one of the stack.
fn labels(flow: &FlowKey) -> Labels {
    let entries = [flow.mpls_lse(), flow.mpls_lse1(), flow.mpls_lse2()];
    let bottom = entries.iter().position(|entry| entry & BOTTOM != 0);
    let depth = bottom.map_or(MAX_LABELS, |place| place + 1);
    Labels::new(&entries[..depth]).unwrap_or_default()
}

fn transport(flow: &FlowKey, network: &Network) -> Transport {
    let (protocol, fragment, over_ipv6) = match network {
        Network::Ipv4(header) => (header.protocol, header.fragment, false),
        Network::Ipv6(header) => (header.protocol, header.fragment, true),
        _ => return Transport::None,
    };
    if fragment == ip::LATER_FRAGMENT {
        return Transport::None;
    }
    let ports = L4Ports {
        source: flow.tp_src(),
        destination: flow.tp_dst(),
    };
    let icmp = Icmp {
        kind: flow.tp_src() as u8,
        code: flow.tp_dst() as u8,
    };
    match protocol {
        ip::TCP => Transport::Tcp {
            ports,
            flags: flow.tcp_flags(),
        },
        ip::UDP => Transport::Udp(ports),
        ip::SCTP => Transport::Sctp(ports),
        ip::ICMP if !over_ipv6 => Transport::Icmp(icmp),
        ip::ICMPV6 if over_ipv6 => Transport::Icmpv6 {
            icmp,
            neighbour: ip::NEIGHBOUR.contains(&icmp.kind).then(|| NeighbourDiscovery {
                target: flow.nd_target(),
                source_mac: mac(flow.nd_sll()),
                target_mac: mac(flow.nd_tll()),
            }),
        },
        _ => Transport::None,
    }
}

/// A key or mask in our terms. Fields that have no place there are left out.
fn write(key: &Key, in_port: u32) -> (FlowKey, Context) {
    let (mut flow, mut context) = (FlowKey::default(), Context::default());
    let metadata = &key.metadata;
    flow.set_in_port(in_port);
    flow.set_recirc_id(metadata.recirc_id);
    flow.set_dp_hash(metadata.dp_hash);
    flow.set_skb_mark(metadata.mark);
    flow.set_ct_state(metadata.connection.state as u16);
    flow.set_ct_zone(metadata.connection.zone);
    flow.set_ct_mark(metadata.connection.mark);
    context.set_skb_priority(metadata.priority);
    flow.set_no_ethernet(key.ethernet.is_none().into());
    if let Some(ethernet) = &key.ethernet {
        flow.set_eth_src(number(ethernet.source));
        flow.set_eth_dst(number(ethernet.destination));
    }
    let present = |tag: Option<Vlan>| tag.filter(|tag| tag.tci & TAG_PRESENT != 0);
    let [outer, inner] = key.vlans.map(present).map(Option::unwrap_or_default);
    flow.set_vlan_tpid(outer.tpid);
    flow.set_vlan_tci(outer.tci);
    flow.set_inner_tpid(inner.tpid);
    flow.set_inner_tci(inner.tci);
    flow.set_eth_type(match (key.eth_type, cut_tag(key)) {
        (ether::LENGTH, Some(tag)) => tag.tpid,
        (ether::LENGTH, None) => 0,
        (eth_type, _) => eth_type,
    });
    write_network(&key.network, &mut flow);
    write_transport(&key.transport, &mut flow);
    (flow, context)
}

fn write_network(network: &Network, flow: &mut FlowKey) {
    match network {
        Network::None => {}
        Network::Ipv4(header) => {
            flow.set_ip_src(header.source.into());
            flow.set_ip_dst(header.destination.into());
            flow.set_ip_proto(header.protocol);
            flow.set_ip_tos(header.tos);
            flow.set_ip_ttl(header.ttl);
            flow.set_ip_frag(header.fragment);
        }
        Network::Ipv6(header) => {
            flow.set_ip_src(header.source);
            flow.set_ip_dst(header.destination);
            flow.set_ipv6_label(header.label);
            flow.set_ip_proto(header.protocol);
            flow.set_ip_tos(header.traffic_class);
            flow.set_ip_ttl(header.hop_limit);
            flow.set_ip_frag(header.fragment);
        }
        Network::Arp(header) => {
            flow.set_ip_src(header.source_ip.into());
            flow.set_ip_dst(header.target_ip.into());
            flow.set_ip_proto(header.operation as u8);
            flow.set_nd_sll(number(header.source_mac));
            flow.set_nd_tll(number(header.target_mac));
        }
        Network::Mpls(labels) => {
            let entry = |place: usize| labels.entries().get(place).copied().unwrap_or(0);
            flow.set_mpls_lse(entry(0));
            flow.set_mpls_lse1(entry(1));
            flow.set_mpls_lse2(entry(2));
        }
        Network::Nsh(header) => write_nsh(header, flow),
    }
}

fn write_nsh(header: &Nsh, flow: &mut FlowKey) {
    flow.set_nsh_flags(header.base.flags);
    flow.set_nsh_ttl(header.base.ttl);
    flow.set_nsh_mdtype(header.base.md_type);
    flow.set_nsh_np(header.base.next_protocol);
    flow.set_nsh_path_hdr(header.base.path);
    flow.set_nsh_c1((header.context >> 96) as u32);
    flow.set_nsh_c2((header.context >> 64) as u32);
    flow.set_nsh_c3((header.context >> 32) as u32);
    flow.set_nsh_c4(header.context as u32);
}

fn write_transport(transport: &Transport, flow: &mut FlowKey) {
    let mut ports = |ports: &L4Ports| {
        flow.set_tp_src(ports.source);
        flow.set_tp_dst(ports.destination);
    };
    let icmp_ports = |icmp: &Icmp| L4Ports {
        source: icmp.kind.into(),
        destination: icmp.code.into(),
    };
    match transport {
        Transport::None => {}
        Transport::Tcp { ports: of_tcp, flags } => {
            ports(of_tcp);
            flow.set_tcp_flags(*flags);
        }
        Transport::Udp(of_udp) => ports(of_udp),
        Transport::Sctp(of_sctp) => ports(of_sctp),
        Transport::Icmp(icmp) => ports(&icmp_ports(icmp)),
        Transport::Icmpv6 { icmp, neighbour } => {
            ports(&icmp_ports(icmp));
            if let Some(neighbour) = neighbour {
                flow.set_nd_target(neighbour.target);
                flow.set_nd_sll(number(neighbour.source_mac));
                flow.set_nd_tll(number(neighbour.target_mac));
            }
        }
    }
}

/// As in the kernel, which always matches both tags (`ovs_nla_get_match`).
fn always_look_at_tags(key: &Key, mask: &Key, bits: &mut FlowKey) {
    let is_there = |tag: Option<Vlan>| tag.is_some_and(|tag| tag.tci & TAG_PRESENT != 0);
    if !is_there(key.vlans[0]) || mask.vlans[0].is_none() {
        bits.set_vlan_tci(u16::MAX);
    }
    if !is_there(key.vlans[1]) || mask.vlans[1].is_none() {
        bits.set_inner_tci(u16::MAX);
    }
}

/// The tag that the frame ends in.
fn cut_tag(key: &Key) -> Option<Vlan> {
    let mut tags = key.vlans.into_iter().flatten();
    tags.find(|tag| tag.tci & TAG_PRESENT == 0)
}

fn tag(tpid: u16, tci: u16) -> Option<Vlan> {
    (tci & TAG_PRESENT != 0).then_some(Vlan { tpid, tci })
}
