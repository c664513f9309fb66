//! What the kernel refuses is refused, with its error number, and what it takes is taken.

#![allow(clippy::unwrap_used)]

use ovs_netlink::action::{self, Action, Change, MAX_BYTES, MAX_DEPTH, Set};
use ovs_netlink::attribute::Writer;
use ovs_netlink::key::{self, Ipv4, Key, Match, Network, Ports, Transport, ether};
use ovs_netlink::layout::Layout;
use ovs_netlink::{Errno, Error};

const ENCAP: u16 = 1;
const IN_PORT: u16 = 3;
const ETHERNET: u16 = 4;
const VLAN: u16 = 5;
const ETHERTYPE: u16 = 6;
const IPV4: u16 = 7;
const TCP: u16 = 9;
const UDP: u16 = 10;
const ARP: u16 = 13;
const TUNNEL: u16 = 16;
const TCP_FLAGS: u16 = 18;
const CT_STATE: u16 = 22;

type Attributes<'a> = &'a [(u16, &'a [u8])];

fn bytes(attributes: Attributes<'_>) -> Vec<u8> {
    let mut writer = Writer::new();
    attributes
        .iter()
        .for_each(|(kind, value)| writer.attribute(*kind, value));
    writer.finish().unwrap()
}

fn read(attributes: Attributes<'_>) -> Result<Key, Error> {
    Key::read(&bytes(attributes))
}

fn read_mask(key: Attributes<'_>, mask: Attributes<'_>) -> Result<Match, Error> {
    Match::read(&bytes(key), Some(&bytes(mask)))
}

fn ipv4(protocol: u8, fragment: u8) -> Vec<u8> {
    [10, 0, 0, 1, 10, 0, 0, 2, protocol, 0, 64, fragment].to_vec()
}

const MAC: (u16, &[u8]) = (ETHERNET, &[1; 12]);
const IS_IPV4: (u16, &[u8]) = (ETHERTYPE, &[8, 0]);
const EXACT_TYPE: (u16, &[u8]) = (ETHERTYPE, &[0xff, 0xff]);

fn misplaced(kind: u16) -> Error {
    Error::Misplaced {
        set: "OVS_KEY_ATTR",
        kind,
    }
}

fn missing(kind: u16) -> Error {
    Error::Missing {
        set: "OVS_KEY_ATTR",
        kind,
    }
}

#[test]
fn a_key_has_the_headers_that_its_types_say() {
    let header = ipv4(6, 0);
    let all = [
        MAC,
        IS_IPV4,
        (IPV4, &header),
        (TCP, &[0; 4]),
        (TCP_FLAGS, &[0; 2]),
    ];
    assert!(read(&all).is_ok());
    assert_eq!(read(&all[..2]), Err(missing(IPV4)));
    assert_eq!(read(&all[..3]), Err(missing(TCP)));
    assert_eq!(read(&all[..4]), Err(missing(TCP_FLAGS)));
    // A packet that begins with its network header has no addresses, but an Ethernet type.
    assert_eq!(read(&all[1..]).unwrap().ethernet, None);
    assert_eq!(read(&[(IN_PORT, &[0; 4])]), Err(missing(ETHERTYPE)));
    let later = ipv4(6, 2);
    assert_eq!(
        read(&[MAC, IS_IPV4, (IPV4, &later)]).unwrap().transport,
        Transport::None
    );
    assert_eq!(read(&[MAC, IS_IPV4, (IPV4, &later), all[3]]), Err(misplaced(TCP)));
    assert_eq!(
        read(&[MAC, IS_IPV4, all[2], all[3], all[4], (UDP, &[0; 4])]),
        Err(misplaced(UDP))
    );
}

#[test]
fn an_absent_type_is_an_802_3_frame() {
    assert_eq!(read(&[MAC]).unwrap().eth_type, ether::LENGTH);
    let small = read(&[MAC, (ETHERTYPE, &[0x05, 0xff])]);
    assert!(matches!(small, Err(Error::Value { value: 0x5ff, .. })));
}

#[test]
fn unknown_repeated_and_wrong_attributes_are_refused() {
    for kind in [0, 29, 30, 31, 32, 33, 1000] {
        let error = read(&[MAC, (kind, &[0; 4])]);
        assert!(matches!(error, Err(Error::Unknown { .. })), "{kind}: {error:?}");
    }
    assert!(matches!(
        read(&[MAC, MAC]),
        Err(Error::Repeated { kind: ETHERNET, .. })
    ));
    assert!(matches!(
        read(&[(ETHERNET, &[1; 11])]),
        Err(Error::Size { found: 11, .. })
    ));
    assert!(read(&[MAC, (CT_STATE, &0x1ffu32.to_ne_bytes())]).is_err());
    assert!(read(&[MAC, (IN_PORT, &0xffffu32.to_ne_bytes())]).is_err());
    assert!(read(&[MAC, (IN_PORT, &0xfffeu32.to_ne_bytes())]).is_ok());
    let arp = [[0u8; 8].as_slice(), &[1, 0], &[0; 14]].concat();
    assert!(read(&[MAC, (ETHERTYPE, &[8, 6]), (ARP, &arp)]).is_err());
}

#[test]
fn tags_hold_the_rest() {
    let tagged = |tci: [u8; 2], inner: Attributes<'_>| {
        read(&[MAC, (ETHERTYPE, &[0x81, 0]), (VLAN, &tci), (ENCAP, &bytes(inner))])
    };
    let one = tagged([0x10, 10], &[(ETHERTYPE, &[0x12, 0x34])]).unwrap();
    assert_eq!(
        (one.vlans[0].unwrap().tci, one.vlans[1], one.eth_type),
        (0x100a, None, 0x1234)
    );
    // Without its bit a tag is no tag; zero is a packet that ends in the tag.
    assert!(tagged([0x00, 10], &[]).is_err());
    assert!(tagged([0, 0], &[]).is_ok());
    assert_eq!(
        tagged([0, 0], &[(ETHERTYPE, &[0x12, 0x34])]),
        Err(misplaced(ENCAP))
    );
    let inner = bytes(&[(ETHERTYPE, &[0x81, 0])]);
    let two = tagged(
        [0x10, 1],
        &[(ETHERTYPE, &[0x81, 0]), (VLAN, &[0x10, 2]), (ENCAP, &inner)],
    )
    .unwrap();
    assert_eq!((two.vlans[1].unwrap().tci, two.eth_type), (0x1002, ether::VLAN));
    assert_eq!(tagged([0x10, 1], &[(ETHERTYPE, &[0x81, 0])]), Err(missing(VLAN)));
    assert_eq!(
        read(&[MAC, (ETHERTYPE, &[0x81, 0]), (VLAN, &[0x10, 1])]),
        Err(missing(ENCAP))
    );
    assert_eq!(read(&[MAC, (VLAN, &[0x10, 1])]), Err(misplaced(VLAN)));
    assert!(matches!(tagged([0x10, 1], &[MAC]), Err(Error::Repeated { .. })));
}

#[test]
fn a_mask_looks_at_headers_only_beside_what_says_that_they_are_there() {
    let header = ipv4(17, 0);
    let key: Attributes<'_> = &[MAC, IS_IPV4, (IPV4, &header), (UDP, &[0; 4])];
    let proto = ipv4(0xff, 0);
    let almost = ipv4(0xfe, 0);
    assert!(read_mask(key, &[EXACT_TYPE, (IPV4, &proto), (UDP, &[0xff; 4])]).is_ok());
    assert_eq!(read_mask(key, &[(IPV4, &proto)]), Err(misplaced(IPV4)));
    assert_eq!(
        read_mask(key, &[EXACT_TYPE, (UDP, &[0xff; 4])]),
        Err(misplaced(UDP))
    );
    assert_eq!(
        read_mask(key, &[EXACT_TYPE, (IPV4, &almost), (UDP, &[1; 4])]),
        Err(misplaced(UDP))
    );
    // A mask of zero is a wildcard.
    assert!(read_mask(key, &[(IPV4, &[0; 12]), (UDP, &[0; 4])]).is_ok());
    assert_eq!(
        read_mask(key, &[(CT_STATE, &[1, 0, 0, 0])]),
        Err(misplaced(CT_STATE))
    );
    assert_eq!(read_mask(key, &[(TCP, &[0xff; 4])]), Err(misplaced(TCP)));
}

#[test]
fn type_and_port_match_wholly_or_not_at_all() {
    let key: Attributes<'_> = &[MAC, (ETHERTYPE, &[0x12, 0x34]), (IN_PORT, &[1, 0, 0, 0])];
    let some = read_mask(key, &[(ETHERTYPE, &[0, 1]), (IN_PORT, &[1, 0, 0, 0])]).unwrap();
    assert_eq!(
        (some.mask.0.eth_type, some.mask.0.metadata.in_port),
        (0xffff, Some(u32::MAX))
    );
    let none = read_mask(key, &[]).unwrap();
    assert_eq!((none.mask.0.eth_type, none.mask.0.metadata.in_port), (0, None));
}

#[test]
fn tags_always_match() {
    let inner = bytes(&[(ETHERTYPE, &[0x12, 0x34])]);
    let key: Attributes<'_> = &[MAC, (ETHERTYPE, &[0x81, 0]), (VLAN, &[0x10, 7]), (ENCAP, &inner)];
    let mask = |tpid: &[u8], tci: &[u8]| {
        read_mask(
            key,
            &[(ETHERTYPE, tpid), (VLAN, tci), (ENCAP, &bytes(&[EXACT_TYPE]))],
        )
    };
    assert_eq!(read_mask(key, &[]).unwrap().mask.0.vlans[0].unwrap().tci, 0xffff);
    for tci in [[0x10, 0], [0, 0]] {
        let mask = mask(&[0xff, 0xff], &tci).unwrap().mask.0;
        assert_eq!(mask.vlans[0].unwrap().tci, 0x1000);
    }
    assert!(mask(&[0xff, 0xff], &[0x0f, 0xff]).is_err());
    assert!(mask(&[0xff, 0], &[0xff, 0xff]).is_err());
    assert_eq!(
        read_mask(&[MAC], &[(ENCAP, &bytes(&[EXACT_TYPE]))]),
        Err(misplaced(ENCAP))
    );
}

#[test]
fn tunnels_need_a_destination_and_a_time_to_live() {
    let tunnel = |attributes: Attributes<'_>| read(&[MAC, (TUNNEL, &bytes(attributes))]);
    let v4: (u16, &[u8]) = (2, &[1; 4]);
    let v6: (u16, &[u8]) = (13, &[1; 16]);
    assert!(tunnel(&[v4, (4, &[64])]).is_ok());
    assert!(tunnel(&[v6, (4, &[64])]).is_ok());
    assert!(tunnel(&[v4]).is_err());
    assert!(tunnel(&[(2, &[0; 4]), (4, &[64])]).is_err());
    assert!(tunnel(&[(4, &[64])]).is_err());
    assert!(tunnel(&[v4, v6, (4, &[64])]).is_err());
    assert!(tunnel(&[v4, (4, &[64]), (8, &[0; 3])]).is_err());
    assert!(tunnel(&[v4, (4, &[64]), (8, &[0; 4]), (15, &[0; 4])]).is_err());
    assert!(tunnel(&[v4, (4, &[64]), (17, &[])]).is_err());
    assert!(tunnel(&[(16, &[]), (0, &[0; 8])]).is_ok());
    assert!(tunnel(&[(16, &[]), v4, (4, &[64])]).is_err());
}

/// Found by random changes: a mask with an original tuple of which only padding is set, beside a key without
/// such a tuple.
#[test]
fn a_mask_may_look_at_a_tuple_that_the_key_lacks() {
    let header = ipv4(0, 0);
    let key: Attributes<'_> = &[MAC, IS_IPV4, (IPV4, &header)];
    let original = |tuple: &[u8]| {
        let flow = read_mask(key, &[EXACT_TYPE, (26, tuple)]).unwrap();
        flow.mask.0.metadata.connection.original
    };
    let mut tuple = [0; 16];
    tuple[15] = 1;
    assert_eq!(original(&tuple), None);
    tuple[0] = 1;
    assert!(matches!(original(&tuple), Some(key::ConnectionTuple::V4(mask)) if mask.source == 1 << 24));
}

/// A wildcard of a network service header was once written as zeros, which are refused beside a wildcard of
/// the type.
#[test]
fn a_mask_that_looks_at_no_header_is_taken() {
    let key: Attributes<'_> = &[
        MAC,
        (ETHERTYPE, &[0x89, 0x4f]),
        (28, &[12, 0, 1, 0, 0, 63, 2, 3, 0, 0, 1, 255]),
    ];
    let flow = read_mask(key, &[]).unwrap();
    let mut writer = Writer::new();
    flow.mask.write(&mut writer);
    let mask = writer.finish().unwrap();
    assert_eq!(Match::read(&bytes(key), Some(&mask)), Ok(flow));
}

fn write(actions: &[Action]) -> Vec<u8> {
    let mut writer = Writer::new();
    action::write(actions, &mut writer);
    writer.finish().unwrap()
}

#[test]
fn lists_of_actions_are_bounded() {
    let nest = |depth| (0..depth).fold(vec![], |inner, _| vec![Action::Clone(inner)]);
    assert!(action::read(&write(&nest(MAX_DEPTH))).is_ok());
    let error = action::read(&write(&nest(MAX_DEPTH + 1))).unwrap_err();
    assert_eq!(error.errno(), Errno::EOVERFLOW);
    let many = vec![Action::PopVlan; MAX_BYTES / 4];
    assert_eq!(action::read(&write(&many)).as_deref(), Ok(many.as_slice()));
    let error = action::read(&write(&[many, vec![Action::PopVlan]].concat())).unwrap_err();
    assert_eq!(error.errno(), Errno::EMSGSIZE);
}

#[test]
fn nesting_without_end_is_an_error() {
    let mut inner = Vec::new();
    for _ in 0..4000 {
        let mut writer = Writer::new();
        writer.attribute(20, &inner);
        inner = writer.finish().unwrap();
    }
    assert!(matches!(action::read(&inner), Err(Error::TooDeep { .. })));
}

#[test]
fn actions_that_are_unknown_or_make_no_sense() {
    let refused: &[(u16, &[u8])] = &[
        (0, &[]),
        (23, &[]),
        (24, &[0; 4]),
        (25, &[]),
        (1, &0xffffu32.to_ne_bytes()),
        (1, &[0; 8]),
        (13, &13u32.to_ne_bytes()),
        (8, &[1, 0, 0, 0, 0, 0, 0, 0]),
        (4, &[0x81, 0, 0, 1]),
        (4, &[8, 0, 0x10, 1]),
        (9, &[0, 0, 0, 0, 8, 0, 0, 0]),
        (2, &[8, 0, 1, 0, 0, 0, 0, 0]),
        (2, &[]),
        (6, &[]),
        (21, &[]),
        // Neighbour discovery extensions, by which ovs-vswitchd probes.
        (11, &[12, 0, 30, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        // A connection's mark is not settable.
        (3, &[8, 0, 24, 0, 0, 0, 0, 0]),
        // A value beyond its mask.
        (11, &[12, 0, 15, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
    ];
    for (kind, value) in refused {
        let error = action::read(&bytes(&[(*kind, value)]));
        assert_eq!(
            error.map_err(|error| error.errno()),
            Err(Errno::EINVAL),
            "{kind} {value:?}"
        );
    }
    assert!(action::read(&bytes(&[(11, &[12, 0, 15, 0, 1, 0, 0, 0, 1, 0, 0, 0])])).is_ok());
}

fn udp_flow() -> Match {
    let header = Ipv4::from_bytes(&ipv4(17, 0)).unwrap();
    let key = Key {
        ethernet: Some(key::Ethernet::default()),
        eth_type: ether::IPV4,
        network: Network::Ipv4(header),
        transport: Transport::Udp(Ports::default()),
        ..Key::default()
    };
    let mask = key.exact_mask();
    Match { key, mask }
}

#[test]
fn actions_must_suit_the_flow() {
    let flow = udp_flow();
    let ports = |set: fn(Change<Ports>) -> Set| Action::Set(set(Change::all(Ports::default())));
    assert!(action::check(&[ports(Set::Udp)], &flow).is_ok());
    assert!(action::check(&[ports(Set::Tcp)], &flow).is_err());
    let mut unseen = flow.clone();
    if let Network::Ipv4(header) = &mut unseen.mask.0.network {
        header.protocol = 0;
    }
    assert!(action::check(&[ports(Set::Udp)], &unseen).is_err());
    let ttl = |ttl, protocol| {
        let header = Ipv4 {
            ttl,
            protocol,
            ..Ipv4::default()
        };
        vec![Action::Set(Set::Ipv4(Change {
            value: header,
            mask: Some(header),
        }))]
    };
    assert!(action::check(&ttl(9, 0), &flow).is_ok());
    assert!(action::check(&ttl(9, 17), &flow).is_err());
    assert!(action::check(&[Action::Clone(ttl(9, 17))], &flow).is_err());
    assert!(action::check(&[Action::PopEthernet, Action::PopVlan], &flow).is_err());
    assert!(action::check(&[Action::PopNsh], &flow).is_err());
    assert!(action::check(&[Action::Conntrack(action::Conntrack::default())], &flow).is_ok());
}

#[test]
fn labels_are_pushed_and_popped_in_order() {
    let flow = udp_flow();
    let push = Action::PushMpls {
        entry: 1,
        eth_type: ether::MPLS,
    };
    let pop = |eth_type| Action::PopMpls(eth_type);
    let tag = Action::PushVlan {
        tpid: ether::VLAN,
        tci: 0x1001,
    };
    assert!(
        action::check(
            &[push.clone(), push.clone(), pop(ether::MPLS), pop(ether::IPV4)],
            &flow
        )
        .is_ok()
    );
    assert!(action::check(&[push.clone(), pop(ether::MPLS), pop(ether::IPV4)], &flow).is_err());
    assert!(action::check(&[tag, push], &flow).is_err());
    assert!(action::check(&[pop(ether::IPV4)], &flow).is_err());
}
