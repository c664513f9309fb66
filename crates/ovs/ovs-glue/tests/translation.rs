//! Keys and masks of ovs-vswitchd in our words, and back.

#![allow(clippy::unwrap_used)]

#[path = "../../ovs-netlink/tests/strategies/mod.rs"]
mod strategies;

use flow::{Action as Step, Context, Edit, Encapsulation, FieldId, FlowKey, Program, Stage};
use ovs_glue::datapath::{Errno, PortNo};
use ovs_glue::translate::{actions, flow_match, key_of, port_id, port_number};
use ovs_netlink::action::{Action, Change, Conntrack, Set, Userspace};
use ovs_netlink::key::{Ethernet, Ipv4, Ipv6, Key, Match, Network, Nsh, NshContext, NshHeader, ether};
use proptest::prelude::*;

/// What our keys have of a random key: no tunnel, no connection's tuples; ports and labels that there are.
fn ours(mut key: Key) -> Key {
    let metadata = &mut key.metadata;
    metadata.tunnel = None;
    metadata.connection.labels = 0;
    metadata.connection.original = None;
    metadata.in_port = metadata.in_port.map(|port| port % flow::ControllerId::PORTS);
    if let Network::Nsh(Nsh { base, .. }) = &mut key.network {
        base.flags &= 3;
        base.ttl &= 63;
        base.md_type &= 15;
        if base.md_type != 1
            && let Network::Nsh(nsh) = &mut key.network
        {
            nsh.context = 0;
        }
    }
    if let Network::Mpls(labels) = &mut key.network {
        let last = labels.entries().len() - 1;
        let entries: Vec<u32> = labels
            .entries()
            .iter()
            .enumerate()
            .map(|(place, entry)| {
                if place == last {
                    entry | 0x100
                } else {
                    entry & !0x100
                }
            })
            .collect();
        *labels = ovs_netlink::key::Labels::new(&entries).unwrap();
    }
    key
}

fn matches() -> impl Strategy<Value = Match> {
    strategies::keys::flow().prop_map(|Match { key, mut mask }| {
        let key = ours(key);
        // Only packets that ovs-vswitchd makes up come from no port.
        mask.0.metadata.in_port = mask.0.metadata.in_port.filter(|_| key.metadata.in_port.is_some());
        Match { key, mask }
    })
}

/// A packet with the same headers as the flow's: some of its fields are the flow's.
fn packet(matches: &Match, seed: &[u64; 32], pick: u64) -> (FlowKey, Context) {
    let exact = Match {
        key: matches.key.clone(),
        mask: matches.key.exact_mask(),
    };
    let (mut key, _, context) = flow_match(&exact).unwrap();
    let mut of = context.map_or(Context::NONE, |context| context.context);
    for word in 0..flow::KEY_WORDS {
        let change = seed[word] & seed[(word + 7) % 16] & seed[(word + 3) % 16];
        if pick >> word & 1 != 0 {
            key.words[word] ^= change;
        }
        if pick >> (word + 16) & 1 != 0 {
            of.words[word] ^= seed[word + 16] & seed[(word + 5) % 16 + 16];
        }
    }
    // A tag that is not there is zero.
    if key.vlan_tci() & flow::VLAN_PRESENT == 0 {
        key.set_vlan_tci(0);
        key.set_vlan_tpid(0);
    }
    if key.inner_tci() & flow::VLAN_PRESENT == 0 {
        key.set_inner_tci(0);
        key.set_inner_tpid(0);
    }
    (key, of)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn keys_survive_the_way_there_and_back(key in strategies::keys::key()) {
        let key = ours(key);
        let exact = Match { mask: key.exact_mask(), key: key.clone() };
        let (values, _, context) = flow_match(&exact).unwrap();
        let context = context.map_or(Context::NONE, |context| context.context);
        prop_assert_eq!(key_of(&values, &context), key);
    }

    /// What has no place in our keys is refused.
    #[test]
    fn what_gets_lost_is_refused(matches in strategies::keys::flow()) {
        let Match { key, .. } = &matches;
        if *key != ours(key.clone()) {
            prop_assert_eq!(flow_match(&matches), Err(Errno::EINVAL));
        }
    }

    /// A packet matches in our words if all the bits that its key and the flow's key differ in, in
    /// ovs-vswitchd's words, are none that the mask looks at.
    #[test]
    fn masks_look_at_what_they_looked_at(
        matches in matches(),
        seed in any::<[u64; 32]>(),
        pick in any::<u64>(),
    ) {
        let (key, mask, context) = flow_match(&matches).unwrap();
        let (packet, of) = packet(&matches, &seed, pick);
        let wanted = naive::matches(&matches, &key_of(&packet, &of));
        // A packet with other headers is told apart by what says which headers there are, or the mask looks
        // at none.
        if let Some(wanted) = wanted {
            let in_context = context.is_none_or(|context| of.masked(&context.mask) == context.context);
            prop_assert_eq!(packet.masked(&mask) == key && in_context, wanted);
        }
    }
}

/// As `ovs_flow_cmp` in the kernel, written anew: field by field, in ovs-vswitchd's words.
mod naive {
    use super::*;
    use ovs_netlink::key::{TAG_PRESENT, Transport, Vlan};
    use ovs_netlink::layout::Layout;

    fn equal<T: Layout>(key: &T, packet: &T, mask: &T) -> bool {
        let bytes = |of: &T| of.to_bytes();
        let (key, packet, mask) = (bytes(key), bytes(packet), bytes(mask));
        (0..key.len()).all(|at| (key[at] ^ packet[at]) & mask[at] == 0)
    }

    fn metadata(of: &Match, packet: &Key) -> bool {
        let (key, mask, packet) = (&of.key.metadata, &of.mask.0.metadata, &packet.metadata);
        let port = mask.in_port.is_none() || key.in_port == packet.in_port;
        let numbers = [
            (key.dp_hash, packet.dp_hash, mask.dp_hash),
            (key.priority, packet.priority, mask.priority),
            (key.mark, packet.mark, mask.mark),
            // Always: flows are for one pass.
            (key.recirc_id, packet.recirc_id, u32::MAX),
            (
                key.connection.state,
                packet.connection.state,
                mask.connection.state,
            ),
            (
                key.connection.zone.into(),
                packet.connection.zone.into(),
                mask.connection.zone.into(),
            ),
            (key.connection.mark, packet.connection.mark, mask.connection.mark),
        ];
        port && numbers.iter().all(|(a, b, mask)| (a ^ b) & mask == 0)
    }

    fn tags(of: &Match, packet: &Key) -> bool {
        (0..2).all(|place| {
            let present = |tag: Option<Vlan>| tag.filter(|tag| tag.tci & TAG_PRESENT != 0);
            match (present(of.key.vlans[place]), present(packet.vlans[place])) {
                (None, None) => true,
                (Some(key), Some(packet)) => {
                    let mask = of.mask.0.vlans[place].unwrap_or(Vlan {
                        tpid: 0,
                        tci: u16::MAX,
                    });
                    (key.tpid ^ packet.tpid) & mask.tpid == 0 && (key.tci ^ packet.tci) & mask.tci == 0
                }
                _ => false,
            }
        })
    }

    /// `None`: the packet has other headers than the flow's key, which its key cannot be compared with field
    /// by field.
    pub fn matches(of: &Match, packet: &Key) -> Option<bool> {
        let ethernet = match (of.key.ethernet, packet.ethernet) {
            (Some(key), Some(packet)) => equal(&key, &packet, &of.mask.0.ethernet.unwrap_or_default()),
            (key, packet) => key.is_none() == packet.is_none(),
        };
        let cut = |key: &Key| {
            key.vlans
                .into_iter()
                .flatten()
                .any(|tag| tag.tci & TAG_PRESENT == 0)
        };
        if cut(&of.key) || cut(packet) {
            return None;
        }
        let eth_type = of.mask.0.eth_type == 0 || of.key.eth_type == packet.eth_type;
        let rest = metadata(of, packet) && tags(of, packet) && ethernet && eth_type;
        let network = match (&of.key.network, &packet.network, &of.mask.0.network) {
            (Network::None, Network::None, _) => true,
            (Network::Ipv4(a), Network::Ipv4(b), Network::Ipv4(mask)) => equal(a, b, mask),
            (Network::Ipv6(a), Network::Ipv6(b), Network::Ipv6(mask)) => equal(a, b, mask),
            (Network::Arp(a), Network::Arp(b), Network::Arp(mask)) => equal(a, b, mask),
            _ => return None,
        };
        let transport = match (&of.key.transport, &packet.transport, &of.mask.0.transport) {
            (Transport::None, Transport::None, _) => true,
            (
                Transport::Tcp { ports: a, flags: c },
                Transport::Tcp { ports: b, flags: d },
                Transport::Tcp { ports, flags },
            ) => equal(a, b, ports) && (c ^ d) & flags == 0,
            (Transport::Udp(a), Transport::Udp(b), Transport::Udp(mask))
            | (Transport::Sctp(a), Transport::Sctp(b), Transport::Sctp(mask)) => equal(a, b, mask),
            (Transport::Icmp(a), Transport::Icmp(b), Transport::Icmp(mask)) => equal(a, b, mask),
            _ => return None,
        };
        Some(rest && network && transport)
    }
}

#[test]
fn ports_are_numbers_of_our_own() {
    assert_eq!(port_id(PortNo(0)), Some(flow::PortId(4096)));
    assert_eq!(port_number(flow::PortId(4099)), Some(PortNo(3)));
    assert_eq!(
        (port_id(PortNo(4096)), port_number(flow::PortId(4095))),
        (None, None)
    );
    assert_eq!(actions(&[Action::Output(4096)]), Err(Errno::EINVAL));
}

fn fields(action: Action) -> Vec<(FieldId, u128, u128)> {
    let steps = actions(&[action]).unwrap();
    Program::compile(&steps, Stage::Forward).unwrap();
    let change = |step: Step| match step {
        Step::Edit(Edit::Set(set)) => (set.field, set.value, set.mask),
        other => panic!("{other:?}"),
    };
    steps.into_iter().map(change).collect()
}

#[test]
fn a_set_changes_each_of_its_fields() {
    let value = Ipv4 {
        source: 0x0a00_0001,
        destination: 0x0a00_0002,
        protocol: 6,
        tos: 4,
        ttl: 63,
        fragment: 0,
    };
    let all = Action::Set(Set::Ipv4(Change::all(value)));
    let addresses = u128::from(u32::MAX);
    assert_eq!(
        fields(all),
        [
            (FieldId::IpSrc, 0x0a00_0001, addresses),
            (FieldId::IpDst, 0x0a00_0002, addresses),
            (FieldId::IpTos, 4, 0xff),
            (FieldId::IpTtl, 63, 0xff),
        ]
    );
    let mask = Ipv4 {
        ttl: 0xff,
        ..Ipv4::default()
    };
    let masked = Action::Set(Set::Ipv4(Change {
        value,
        mask: Some(mask),
    }));
    assert_eq!(fields(masked), [(FieldId::IpTtl, 63, 0xff)]);
    let label = Action::Set(Set::Ipv6(Change::all(Ipv6 {
        label: 0x12345,
        ..Ipv6::default()
    })));
    assert!(fields(label).contains(&(FieldId::Ipv6Label, 0x12345, 0xf_ffff)));
    let ethernet = Action::Set(Set::Ethernet(Change {
        value: Ethernet {
            source: [0; 6],
            destination: [1, 0, 0, 0, 0, 2],
        },
        mask: Some(Ethernet {
            source: [0; 6],
            destination: [0xff, 0, 0, 0, 0, 0xff],
        }),
    }));
    let masked = (FieldId::EthDst, 0x0100_0000_0002, 0xff00_0000_00ff);
    assert_eq!(fields(ethernet), [masked]);
    let mark = Action::Set(Set::Mark(Change::all(7)));
    assert_eq!(fields(mark), [(FieldId::SkbMark, 7, 0xffff_ffff)]);
}

#[test]
fn lists_keep_their_shape() {
    let userspace = Userspace {
        pid: 5,
        userdata: Some(vec![1, 2, 3]),
        egress_tunnel_port: None,
        actions: true,
    };
    let inner = vec![Action::Userspace(userspace), Action::Output(2)];
    let wanted = [
        Action::PushVlan {
            tpid: ether::VLAN,
            tci: 0x1000 | 0xe000 | 5,
        },
        Action::Sample {
            probability: 9,
            actions: inner.clone(),
        },
        Action::CheckLength {
            length: 100,
            longer: Vec::new(),
            others: vec![Action::Clone(inner)],
        },
        Action::Meter(7),
        Action::Recirculate(3),
    ];
    let steps = actions(&wanted).unwrap();
    let text = steps
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",");
    let inner = "userspace(pid=5,3 bytes),output(4098)";
    assert_eq!(
        text,
        format!(
            "push_vlan(tpid=0x8100,vid=5,pcp=7),sample(0.0%,{inner}),\
             check_pkt_len(size=100,gt(),le(clone({inner}))),meter(7),recirc(0x3)"
        )
    );
    assert_eq!(
        steps[0],
        Step::Edit(Edit::PushVlan {
            tpid: ether::VLAN,
            tci: 0xe005
        })
    );
    let refused = Action::Clone(vec![Action::ClearConnection]);
    assert_eq!(actions(&[refused]), Err(Errno::EINVAL));
}

#[test]
fn headers_are_pushed_as_they_are_on_the_wire() {
    let nsh = |context| NshHeader {
        flags: 1,
        ttl: 63,
        next_protocol: 3,
        path: 0x0001_02ff,
        context,
    };
    let pushed = |context| actions(&[Action::PushNsh(nsh(context))]);
    let header = |bytes: &[u8]| {
        let header = flow::NshHeader::new(bytes).unwrap();
        Ok(vec![Step::Edit(Edit::Encapsulate(Encapsulation::PushNsh(
            header,
        )))])
    };
    let fixed = NshContext::Fixed(u128::from_be_bytes(*b"0123456789abcdef"));
    let bytes = [&[0x1f, 0xc6, 1, 3, 0, 1, 2, 255][..], b"0123456789abcdef"].concat();
    assert_eq!(pushed(fixed), header(&bytes));
    let variable = NshContext::Variable(vec![7; 36]);
    let bytes = [&[0x1f, 0xcb, 2, 3, 0, 1, 2, 255][..], &[7; 36]].concat();
    assert_eq!(pushed(variable), header(&bytes));
    // Longer than there is room for, up to what the kernel takes.
    for len in [37, 248] {
        assert_eq!(pushed(NshContext::Variable(vec![7; len])), Err(Errno::EINVAL));
    }
    let labels = |layer_3| {
        [
            Action::AddMpls {
                entry: 0x5140,
                eth_type: ether::MPLS,
                layer_3,
            },
            Action::PopMpls(if layer_3 { ether::IPV4 } else { ether::BRIDGED }),
        ]
    };
    let label = "label=5,tc=0,ttl=64,bos=1,eth_type=0x8847";
    for (layer_3, push, eth_type) in [(true, "push_mpls", "0x0800"), (false, "add_mpls", "0x6558")] {
        let steps = actions(&labels(layer_3)).unwrap();
        let text: Vec<_> = steps.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                format!("{push}({label})"),
                format!("pop_mpls(eth_type={eth_type})")
            ]
        );
    }
    let addresses = Ethernet {
        source: [1, 2, 3, 4, 5, 6],
        destination: [7, 8, 9, 10, 11, 12],
    };
    let steps = actions(&[
        Action::PopEthernet,
        Action::PushEthernet(addresses),
        Action::PopNsh,
    ]);
    let text: Vec<_> = steps.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        [
            "pop_eth",
            "push_eth(src=010203040506,dst=0708090a0b0c)",
            "pop_nsh"
        ]
    );
}

#[test]
fn a_packet_ends_where_it_would_be_tracked() {
    let track = || Action::Conntrack(Conntrack::default());
    let copy = Action::Clone(vec![track(), Action::Output(2)]);
    let steps = actions(&[copy, Action::Output(1), track(), Action::Recirculate(3)]).unwrap();
    let text: Vec<String> = steps.iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        ["clone(drop(not-tracked))", "output(4097)", "drop(not-tracked)"]
    );
}
