//! Random keys, and masks that suit them.

use ovs_netlink::key::*;
use ovs_netlink::layout::Layout;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::{layout, number};

pub fn tunnel() -> BoxedStrategy<Tunnel> {
    let v4 =
        (any::<u32>(), 1u32..).prop_map(|(source, destination)| TunnelAddresses::V4 { source, destination });
    let v6 = (any::<u128>(), 1u128..)
        .prop_map(|(source, destination)| TunnelAddresses::V6 { source, destination });
    let options = prop_oneof![
        Just(TunnelOptions::None),
        geneve().prop_map(TunnelOptions::Geneve),
        any::<u32>().prop_map(|group_policy| TunnelOptions::Vxlan { group_policy }),
        vec(any::<u8>(), 0..=MAX_TUNNEL_OPTIONS).prop_map(TunnelOptions::Erspan),
    ];
    let bridge = option::of(any::<u64>()).prop_map(|id| Tunnel {
        id,
        bridge: true,
        ..Tunnel::default()
    });
    prop_oneof![9 => fields(prop_oneof![v4, v6], options), 1 => bridge].boxed()
}

/// Whole Geneve options.
fn geneve() -> BoxedStrategy<Vec<u8>> {
    let option = (any::<[u8; 3]>(), 0u8..8, any::<[u8; 32]>());
    vec(option, 0..4)
        .prop_map(|options| {
            let option = |(head, words, body): ([u8; 3], u8, [u8; 32])| {
                let body = &body[..4 * usize::from(words)];
                [head.as_slice(), &[words], body].concat()
            };
            options.into_iter().flat_map(option).collect()
        })
        .boxed()
}

fn fields(
    addresses: impl Strategy<Value = TunnelAddresses>,
    options: impl Strategy<Value = TunnelOptions>,
) -> impl Strategy<Value = Tunnel> {
    let flags = any::<[bool; 3]>().prop_map(|[dont_fragment, checksum, oam]| TunnelFlags {
        dont_fragment,
        checksum,
        oam,
    });
    let numbers = (option::of(any::<u64>()), any::<[u8; 2]>(), any::<[u16; 2]>());
    (numbers, addresses, flags, options).prop_map(
        |((id, [tos, ttl], [source_port, destination_port]), addresses, flags, options)| Tunnel {
            id,
            addresses,
            tos,
            ttl,
            flags,
            source_port,
            destination_port,
            options,
            bridge: false,
        },
    )
}

/// The mask of `key`; a key without a tunnel may have one as well.
fn tunnel_mask(key: Option<Tunnel>) -> BoxedStrategy<Option<Tunnel>> {
    let v4 = |source, destination| TunnelAddresses::V4 { source, destination };
    let v6 = |source, destination| TunnelAddresses::V6 { source, destination };
    let addresses = match key.as_ref().map(|key| key.addresses) {
        None | Some(TunnelAddresses::None) => Just(TunnelAddresses::None).boxed(),
        Some(TunnelAddresses::V4 { .. }) => any::<[u32; 2]>().prop_map(move |[a, b]| v4(a, b)).boxed(),
        Some(TunnelAddresses::V6 { .. }) => any::<[u128; 2]>().prop_map(move |[a, b]| v6(a, b)).boxed(),
    };
    let length = match key.as_ref().map(|key| &key.options) {
        Some(TunnelOptions::Geneve(options)) => options.len(),
        _ => 0,
    };
    let options = prop_oneof![
        Just(TunnelOptions::None),
        vec(any::<u8>(), length).prop_map(TunnelOptions::Geneve),
        any::<u32>().prop_map(|group_policy| TunnelOptions::Vxlan { group_policy }),
    ];
    let mask = fields(addresses, options);
    if key.is_some() {
        mask.prop_map(Some).boxed()
    } else {
        option::of(mask).boxed()
    }
}

pub fn metadata() -> BoxedStrategy<Metadata> {
    let original = option::of(prop_oneof![
        layout().prop_map(ConnectionTuple::V4),
        layout().prop_map(ConnectionTuple::V6),
    ]);
    let connection = (0u32..=0xff, any::<u16>(), number(), any::<u128>(), original);
    let connection = connection.prop_map(|(state, zone, mark, labels, original)| Connection {
        state,
        zone,
        mark,
        labels,
        original,
    });
    let numbers = [number(), number(), number(), number()];
    (numbers, option::of(0..NO_PORT), option::of(tunnel()), connection)
        .prop_map(
            |([recirc_id, dp_hash, priority, mark], in_port, tunnel, connection)| Metadata {
                recirc_id,
                dp_hash,
                priority,
                in_port,
                mark,
                tunnel,
                connection,
            },
        )
        .boxed()
}

fn transport(protocol: u8, over_ipv6: bool) -> BoxedStrategy<Transport> {
    let icmpv6 = || {
        let kinds = prop_oneof![Just(135), Just(136), Just(128), any::<u8>()];
        (kinds, any::<u8>(), layout()).prop_map(|(kind, code, neighbour)| Transport::Icmpv6 {
            icmp: Icmp { kind, code },
            neighbour: ip::NEIGHBOUR.contains(&kind).then_some(neighbour),
        })
    };
    match protocol {
        ip::TCP => (layout(), any::<u16>())
            .prop_map(|(ports, flags)| Transport::Tcp { ports, flags })
            .boxed(),
        ip::UDP => layout().prop_map(Transport::Udp).boxed(),
        ip::SCTP => layout().prop_map(Transport::Sctp).boxed(),
        ip::ICMP if !over_ipv6 => layout().prop_map(Transport::Icmp).boxed(),
        ip::ICMPV6 if over_ipv6 => icmpv6().boxed(),
        _ => Just(Transport::None).boxed(),
    }
}

/// Ethernet type with network and transport header.
fn headers() -> BoxedStrategy<(u16, Network, Transport)> {
    let protocol = || prop_oneof![Just(1u8), Just(6), Just(17), Just(58), Just(132), any::<u8>()];
    let carried = |protocol, fragment, over_ipv6| {
        if fragment == ip::LATER_FRAGMENT {
            Just(Transport::None).boxed()
        } else {
            transport(protocol, over_ipv6)
        }
    };
    let ipv4 = (layout::<Ipv4>(), protocol(), 0..=ip::MAX_FRAGMENT).prop_flat_map(
        move |(header, protocol, fragment)| {
            let network = Network::Ipv4(Ipv4 {
                protocol,
                fragment,
                ..header
            });
            (
                Just(ether::IPV4),
                Just(network),
                carried(protocol, fragment, false),
            )
        },
    );
    let ipv6 = (layout::<Ipv6>(), protocol(), 0..=ip::MAX_FRAGMENT).prop_flat_map(
        move |(header, protocol, fragment)| {
            let network = Network::Ipv6(Ipv6 {
                protocol,
                fragment,
                label: header.label >> 12,
                ..header
            });
            (
                Just(ether::IPV6),
                Just(network),
                carried(protocol, fragment, true),
            )
        },
    );
    let arp =
        (prop_oneof![Just(ether::ARP), Just(ether::RARP)], layout::<Arp>()).prop_map(|(kind, header)| {
            let operation = header.operation & 0xff;
            (kind, Network::Arp(Arp { operation, ..header }), Transport::None)
        });
    let mpls_kind = prop_oneof![Just(ether::MPLS), Just(ether::MPLS_MULTICAST)];
    let mpls = (mpls_kind, vec(any::<u32>(), 1..=MAX_LABELS)).prop_map(|(kind, labels)| {
        (
            kind,
            Network::Mpls(Labels::new(&labels).unwrap()),
            Transport::None,
        )
    });
    let nsh = (layout(), any::<u128>())
        .prop_map(|(base, context)| (ether::NSH, Network::Nsh(nsh_key(base, context)), Transport::None));
    let other = prop_oneof![Just(ether::LENGTH), Just(0x1234), Just(0x88cc)]
        .prop_map(|kind| (kind, Network::None, Transport::None));
    prop_oneof![3 => ipv4, 3 => ipv6, 1 => arp, 1 => mpls, 1 => nsh, 1 => other].boxed()
}

pub fn nsh_key(base: NshBase, context: u128) -> Nsh {
    Nsh {
        base,
        context: if base.md_type == 1 { context } else { 0 },
    }
}

pub fn key() -> BoxedStrategy<Key> {
    let tag = || {
        let tpid = prop_oneof![Just(ether::VLAN), Just(ether::SERVICE_VLAN)];
        (tpid, any::<u16>()).prop_map(|(tpid, tci)| Vlan {
            tpid,
            tci: tci | TAG_PRESENT,
        })
    };
    let cut_tag = Vlan {
        tpid: ether::VLAN,
        tci: 0,
    };
    let shape = (0..6, tag(), tag());
    (metadata(), layout(), shape, headers())
        .prop_map(move |(metadata, ethernet, (shape, outer, inner), headers)| {
            let (eth_type, network, transport) = headers;
            let key = Key {
                metadata,
                ethernet: Some(ethernet),
                vlans: [None, None],
                eth_type,
                network,
                transport,
            };
            let bare = |key| Key {
                network: Network::None,
                transport: Transport::None,
                ..key
            };
            match shape {
                0 if eth_type != ether::LENGTH => Key {
                    ethernet: None,
                    ..key
                },
                1 => Key {
                    vlans: [Some(outer), None],
                    ..key
                },
                2 => Key {
                    vlans: [Some(outer), Some(inner)],
                    ..key
                },
                3 => bare(Key {
                    vlans: [Some(outer), Some(inner)],
                    eth_type: ether::VLAN,
                    ..key
                }),
                4 => bare(Key {
                    vlans: [Some(cut_tag), None],
                    eth_type: ether::LENGTH,
                    ..key
                }),
                5 => bare(Key {
                    vlans: [Some(outer), Some(cut_tag)],
                    eth_type: ether::LENGTH,
                    ..key
                }),
                _ => key,
            }
        })
        .boxed()
}

/// A mask that matches network headers only together with the Ethernet type, and so on.
fn mask(key: &Key) -> BoxedStrategy<Mask> {
    let look = any::<[bool; 4]>();
    let noise = (
        metadata(),
        layout::<Ethernet>(),
        any::<[u16; 2]>(),
        vec(any::<u8>(), 128),
    );
    let key = key.clone();
    (look, noise, tunnel_mask(key.metadata.tunnel.clone()))
        .prop_map(move |(look, noise, tunnel)| {
            let [port, eth_type, protocol, kind] = look;
            let (metadata, ethernet, tags, bytes) = noise;
            let network = mask_network(&key.network, eth_type, protocol, &bytes);
            let protocol = eth_type && protocol;
            let discovers = matches!(
                key.transport,
                Transport::Icmpv6 {
                    neighbour: Some(_),
                    ..
                }
            );
            let original = key
                .metadata
                .connection
                .original
                .map(|tuple| match (tuple, &key.network) {
                    (ConnectionTuple::V4(_), Network::Ipv4(_)) if eth_type => {
                        ConnectionTuple::V4(Tuple4::from_bytes(&bytes).unwrap())
                    }
                    (ConnectionTuple::V6(_), Network::Ipv6(_)) if eth_type && !discovers => {
                        ConnectionTuple::V6(Tuple6::from_bytes(&bytes).unwrap())
                    }
                    (ConnectionTuple::V4(_), _) => ConnectionTuple::V4(Tuple4::default()),
                    (ConnectionTuple::V6(_), _) => ConnectionTuple::V6(Tuple6::default()),
                });
            let tags = [0, 1].map(|place| {
                key.vlans[place].filter(|tag| tag.tci != 0)?;
                Some(Vlan {
                    tpid: u16::MAX,
                    tci: tags[place] | TAG_PRESENT,
                })
            });
            Mask(Key {
                metadata: Metadata {
                    in_port: port.then_some(u32::MAX),
                    tunnel,
                    connection: Connection {
                        original,
                        ..metadata.connection
                    },
                    ..metadata
                },
                ethernet: key.ethernet.map(|_| ethernet),
                vlans: tags,
                eth_type: if eth_type { u16::MAX } else { 0 },
                network,
                transport: mask_transport(&key.transport, protocol, kind, &bytes),
            })
        })
        .boxed()
}

fn mask_network(key: &Network, look: bool, protocol: bool, bytes: &[u8]) -> Network {
    let zeros = [0; 128];
    let bytes = if look { bytes } else { &zeros };
    let protocol = match (look, protocol) {
        (true, true) => u8::MAX,
        (true, false) => 0x7f,
        (false, _) => 0,
    };
    match key {
        Network::None => Network::None,
        Network::Ipv4(_) => Network::Ipv4(Ipv4 {
            protocol,
            ..Ipv4::from_bytes(bytes).unwrap()
        }),
        Network::Ipv6(_) => Network::Ipv6(Ipv6 {
            protocol,
            ..Ipv6::from_bytes(bytes).unwrap()
        }),
        Network::Arp(_) => Network::Arp(Arp::from_bytes(bytes).unwrap()),
        Network::Mpls(labels) => {
            let masks: Vec<u32> = labels.entries().iter().map(|_| 0xffff_f000).collect();
            Network::Mpls(Labels::new(if look { &masks } else { &[] }).unwrap())
        }
        Network::Nsh(_) => Network::Nsh(Nsh {
            base: NshBase::from_bytes(bytes).unwrap(),
            context: u128::from_bytes(&bytes[8..]).unwrap(),
        }),
    }
}

fn mask_transport(key: &Transport, look: bool, kind: bool, bytes: &[u8]) -> Transport {
    let zeros = [0; 128];
    let bytes = if look { bytes } else { &zeros };
    let ports = Ports::from_bytes(bytes).unwrap();
    let icmp = Icmp::from_bytes(bytes).unwrap();
    match key {
        Transport::None => Transport::None,
        Transport::Tcp { .. } => Transport::Tcp {
            ports,
            flags: u16::from_bytes(&bytes[4..]).unwrap(),
        },
        Transport::Udp(_) => Transport::Udp(ports),
        Transport::Sctp(_) => Transport::Sctp(ports),
        Transport::Icmp(_) => Transport::Icmp(icmp),
        Transport::Icmpv6 { neighbour, .. } => {
            let looks = look && kind;
            let from = if looks { bytes } else { &zeros };
            Transport::Icmpv6 {
                icmp: Icmp {
                    kind: if looks { u8::MAX } else { icmp.kind & 0x7f },
                    ..icmp
                },
                neighbour: neighbour.map(|_| NeighbourDiscovery::from_bytes(from).unwrap()),
            }
        }
    }
}

pub fn flow() -> BoxedStrategy<Match> {
    key()
        .prop_flat_map(|key| {
            let mask = mask(&key);
            (Just(key), mask).prop_map(|(key, mask)| Match { key, mask })
        })
        .boxed()
}
