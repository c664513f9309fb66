//! Fields that can be set, actions as text, and the fields of a packet that actions read.

#![allow(clippy::unwrap_used)]

use flow::{
    Action, DropReason, Edit, Encapsulation, FIELDS, FieldId, Layer, Nested, NshHeader, PortId, SetField,
    Userspace,
};

#[test]
fn fields_that_the_kernel_lets_be_set_can_be_set() {
    // `ovs_key_attr` values that `validate_set` of the kernel refuses, and metadata that say where a packet
    // came from.
    let refused = |field: FieldId| {
        let layer = field.field().layer;
        matches!(
            field,
            FieldId::InPort
                | FieldId::RecircId
                | FieldId::DpHash
                | FieldId::EthType
                | FieldId::VlanTci
                | FieldId::VlanTpid
                | FieldId::InnerTci
                | FieldId::InnerTpid
                | FieldId::IpFrag
                | FieldId::TcpFlags
                | FieldId::NshMdtype
                | FieldId::NshNp
        ) || layer == Layer::Connection
            || layer == Layer::Mpls && field != FieldId::MplsLse
            || layer == Layer::Metadata && !matches!(field, FieldId::SkbMark | FieldId::SkbPriority)
    };
    for &field in FieldId::ALL {
        let set = SetField::whole(field, u128::MAX);
        assert_eq!(
            (set.value, set.mask),
            (set.mask, field.field().ones()),
            "{field:?}"
        );
        assert_eq!(set.is_valid(), !refused(field), "{field:?}");
        assert_eq!(SetField::whole(field, 0).value, 0);
    }
    assert_eq!(FieldId::ALL.len(), FIELDS.len());
}

#[test]
fn bits_outside_the_field_or_its_mask_are_refused() {
    let set = |value, mask| SetField {
        field: FieldId::TpDst,
        value,
        mask,
    };
    assert!(set(0x80, 0xff).is_valid() && set(0, 0).is_valid());
    assert!(!set(0, 0x1_0000).is_valid(), "the mask has a bit too many");
    assert!(
        !set(0x100, 0xff).is_valid(),
        "the value has a bit that is not changed"
    );
}

/// The shortest one: metadata type 2 with a bit beside it that has no meaning, path 0x10203, index 254.
const SERVICE_HEADER: [u8; 8] = [0x0f, 0xc2, 0x12, 0, 1, 2, 3, 254];

#[test]
fn service_headers_come_over_the_wire_if_they_can_be_pushed() {
    let read = |header: &[u8]| postcard::from_bytes::<NshHeader>(&postcard::to_stdvec(header).unwrap());
    let header = NshHeader::new(&SERVICE_HEADER).unwrap();
    assert_eq!(header.bytes(), SERVICE_HEADER);
    assert_eq!(read(&SERVICE_HEADER), Ok(header));
    assert_eq!(
        postcard::from_bytes(&postcard::to_stdvec(&header).unwrap()),
        Ok(header)
    );
    // Another version, a wrong length, the wrong length for metadata type 1, an unknown type.
    for (at, byte) in [(0, 0x4f), (1, 0xc3), (2, 1), (2, 3)] {
        let mut other = SERVICE_HEADER;
        other[at] = byte;
        assert!(NshHeader::new(&other).is_none() && read(&other).is_err(), "{at}");
    }
    assert_eq!(NshHeader::new(&SERVICE_HEADER[..7]), None);
}

#[test]
fn actions_read_as_those_of_open_vswitch() {
    let pop = || Nested(vec![Action::Edit(Edit::PopVlan), Action::Truncate(64)]);
    let cases = [
        (Action::Output(PortId(7)), "output(7)"),
        (
            Action::Edit(Edit::PushVlan {
                tpid: 0x8100,
                tci: 0xa00a,
            }),
            "push_vlan(tpid=0x8100,vid=10,pcp=5)",
        ),
        (
            Action::Edit(Edit::PushVlan {
                tpid: 0x88a8,
                tci: 10,
            }),
            "push_vlan(tpid=0x88a8,vid=10)",
        ),
        (
            Action::Userspace(Userspace {
                pid: 5,
                data: [1, 2].into(),
                ..Userspace::default()
            }),
            "userspace(pid=5,2 bytes)",
        ),
        (
            Action::Edit(Edit::PushMpls {
                lse: 0x5740,
                eth_type: 0x8847,
            }),
            "push_mpls(label=5,tc=3,ttl=64,bos=1,eth_type=0x8847)",
        ),
        (Action::Edit(Edit::PopMpls(0x800)), "pop_mpls(eth_type=0x0800)"),
        (
            Action::Edit(Edit::Encapsulate(Encapsulation::PushEth { dst: 0xa, src: 0xb })),
            "push_eth(src=00000000000b,dst=00000000000a)",
        ),
        (Action::Edit(Edit::Encapsulate(Encapsulation::PopEth)), "pop_eth"),
        (
            Action::Edit(Edit::Encapsulate(Encapsulation::PushNsh(
                NshHeader::new(&SERVICE_HEADER).unwrap(),
            ))),
            "push_nsh(mdtype=2,spi=0x10203,si=254)",
        ),
        (Action::Edit(Edit::Encapsulate(Encapsulation::PopNsh)), "pop_nsh"),
        (
            Action::Edit(Edit::Encapsulate(Encapsulation::AddMpls {
                lse: 0x6240,
                eth_type: 0x8848,
            })),
            "add_mpls(label=6,tc=1,ttl=64,bos=0,eth_type=0x8848)",
        ),
        (
            Action::Edit(Edit::Encapsulate(Encapsulation::PopMplsToEth)),
            "pop_mpls(eth_type=0x6558)",
        ),
        (Action::Drop(DropReason::Metered), "drop(meter)"),
        (
            Action::Edit(Edit::Set(SetField::whole(FieldId::IpTtl, 64))),
            "set(ip_ttl=0x40)",
        ),
        (
            Action::Edit(Edit::Set(SetField {
                field: FieldId::IpTtl,
                value: 4,
                mask: 0xc,
            })),
            "set(ip_ttl=0x4/0xc)",
        ),
        (
            Action::Sample {
                probability: u32::MAX / 4,
                actions: pop(),
            },
            "sample(25.0%,pop_vlan,trunc(64))",
        ),
        (Action::Clone(pop()), "clone(pop_vlan,trunc(64))"),
        (
            Action::CheckPktLen {
                len: 1500,
                greater: pop(),
                otherwise: Nested::default(),
            },
            "check_pkt_len(size=1500,gt(pop_vlan,trunc(64)),le())",
        ),
        (Action::Recirc(0x1f), "recirc(0x1f)"),
        (Action::Hash { basis: 3 }, "hash(l4(3))"),
        (Action::Meter(9), "meter(9)"),
        (Action::Continue, "continue"),
    ];
    for (action, text) in cases {
        assert_eq!(action.to_string(), text);
    }
}
