//! Programs at their bounds, what they say of themselves, and how refusals, stages and fields read.

#![allow(clippy::unwrap_used)]

use flow::{
    Action, BadActions, Builder, DropReason, Edit, Encapsulation, FieldId, Filters, FlowKey, FlowMask, Layer,
    MAX_BYTES, MAX_FILTERS, MAX_OPS, Nested, Op, PortId, Program, SetField, Stage, Userspace,
};

fn compile(actions: &[Action]) -> Result<Program, BadActions> {
    Program::compile(actions, Stage::Forward)
}

fn userspace(pid: u32, bytes: usize) -> Action {
    Action::Userspace(Userspace {
        pid,
        data: vec![0; bytes].into(),
        ..Userspace::default()
    })
}

#[test]
fn programs_may_be_as_large_as_their_bounds() {
    let all = |count| compile(&vec![Action::Edit(Edit::PopVlan); count]);
    // The end of the program is an operation more.
    assert_eq!(all(MAX_OPS).unwrap().ops().len(), MAX_OPS + 1);
    assert_eq!(all(MAX_OPS + 1), Err(BadActions::TooLong));
    assert!(compile(&[userspace(1, MAX_BYTES - 1), userspace(2, 1)]).is_ok());
    let one_more = [userspace(1, MAX_BYTES - 1), userspace(2, 2)];
    assert_eq!(compile(&one_more), Err(BadActions::TooManyBytes));
}

#[test]
fn data_for_the_controller_is_found_at_its_place() {
    let program = compile(&[userspace(7, 1), userspace(8, 2)]).unwrap();
    assert_eq!(program.ops(), [Op::Userspace(0), Op::Userspace(1), Op::End]);
    let pids = [0, 1].map(|place| program.userspace(place).unwrap().pid);
    assert_eq!(pids, [7, 8]);
    assert!(program.userspace(2).is_none());
}

#[test]
fn a_program_knows_its_outputs_look_ups_and_hashed_fields() {
    let to = |port| Action::Output(PortId(port));
    let program = compile(&[
        to(3),
        Action::Clone(Nested(vec![to(4)])),
        Action::Drop(DropReason::Policy),
    ])
    .unwrap();
    assert_eq!(program.outputs().collect::<Vec<_>>(), [PortId(3), PortId(4)]);
    assert!(!program.looks_up());
    assert_eq!(program.looks_at(), FlowMask::ANY);
    let program = compile(&[Action::Hash { basis: 1 }, Action::Recirc(2)]).unwrap();
    assert!(program.looks_up() && program.outputs().next().is_none());
    let mask = program.looks_at();
    for field in [
        FieldId::EthType,
        FieldId::IpSrc,
        FieldId::IpDst,
        FieldId::IpProto,
        FieldId::IpFrag,
        FieldId::TpSrc,
        FieldId::TpDst,
    ] {
        assert!(mask.is_exact(field.field()), "{field:?}");
    }
    assert!(!mask.is_exact(FieldId::EthDst.field()));
}

#[test]
fn a_program_looks_at_what_tells_whether_a_field_is_there() {
    let looks_at = |field, actions: &[Action]| {
        let set = Action::Edit(Edit::Set(SetField::whole(field, 1)));
        compile(&[&[set], actions].concat()).unwrap().looks_at()
    };
    let mask = |set: fn(&mut FlowKey)| {
        let mut mask = FlowMask::ANY;
        mask.0.set_eth_type(u16::MAX);
        mask.0.set_ip_proto(u8::MAX);
        set(&mut mask.0);
        mask
    };
    let recirculates = [Action::Recirc(1)];
    assert_eq!(looks_at(FieldId::EthSrc, &recirculates), FlowMask::ANY);
    assert_eq!(looks_at(FieldId::IpTos, &recirculates), mask(|_| ()));
    // The other port as well, by which a look-up tells it from a packet without ports.
    let other = mask(|key| key.set_tp_dst(u16::MAX));
    assert_eq!(looks_at(FieldId::TpSrc, &recirculates), other);
    let other = mask(|key| key.set_tp_src(u16::MAX));
    assert_eq!(looks_at(FieldId::TpDst, &recirculates), other);
}

/// Tags decide what becomes the outer and the inner one, the type whether a third tag or a label is there.
#[test]
fn a_program_looks_at_the_tags_that_it_moves() {
    let looks_at = |action: Action| compile(&[action]).unwrap().looks_at();
    let mut tags = FlowMask::ANY;
    tags.0.set_vlan_tpid(u16::MAX);
    tags.0.set_vlan_tci(u16::MAX);
    tags.0.set_inner_tpid(u16::MAX);
    tags.0.set_inner_tci(u16::MAX);
    tags.0.set_eth_type(u16::MAX);
    let (tpid, tci) = (0x8100, 0x1001);
    assert_eq!(looks_at(Action::Edit(Edit::PushVlan { tpid, tci })), tags);
    assert_eq!(looks_at(Action::Edit(Edit::PopVlan)), tags);
    let mut label = FlowMask::ANY;
    label.0.set_eth_type(u16::MAX);
    assert_eq!(looks_at(Action::Edit(Edit::PopMpls(0x0800))), label);
    assert_eq!(tags.of_kinds(), tags, "a link has few of them");
    assert!(!FlowMask::EXACT.of_kinds().tells_connections_apart());
}

#[test]
fn a_program_takes_the_bytes_of_all_its_parts() {
    let program = compile(&[userspace(1, 10), userspace(2, 100)]).unwrap();
    let parts = size_of_val(program.ops()) + 2 * size_of::<Userspace>();
    assert_eq!(program.bytes(), parts + 110);
}

#[test]
fn labels_have_a_type_of_mpls() {
    let push = |eth_type| Action::Edit(Edit::PushMpls { lse: 1, eth_type });
    let change = |eth_type| Encapsulation::AddMpls { lse: 1, eth_type };
    for eth_type in [0x8847, 0x8848] {
        let program = compile(&[push(eth_type), Action::Edit(Edit::Encapsulate(change(eth_type)))]).unwrap();
        let edits = [
            Edit::PushMpls { lse: 1, eth_type },
            Edit::Encapsulate(change(eth_type)),
        ];
        assert_eq!(program.ops()[..2], edits.map(Op::Edit));
    }
    let refused = Err(BadActions::BadMplsType(0x800));
    assert_eq!(compile(&[push(0x800)]), refused);
    assert_eq!(
        compile(&[Action::Edit(Edit::Encapsulate(change(0x800)))]),
        refused
    );
}

#[test]
fn a_place_behind_the_last_operation_gets_an_end() {
    let mut builder = Builder::default();
    assert!(builder.is_empty());
    assert_eq!(builder.len(), 0);
    let sample = builder.push(Op::Sample {
        probability: 1,
        otherwise: 0,
    });
    builder.push(Op::Drop(DropReason::Policy));
    builder.name_next(sample);
    assert!(!builder.is_empty());
    assert_eq!(builder.len(), 2);
    let program = builder.finish();
    assert_eq!(
        program.ops()[0],
        Op::Sample {
            probability: 1,
            otherwise: 2
        }
    );
    assert_eq!(program.ops()[2], Op::End, "the place that the sample names");
    // Without such a place a drop ends the program.
    let mut builder = Builder::default();
    builder.push(Op::Drop(DropReason::Policy));
    assert_eq!(builder.finish().ops().len(), 1);
}

#[test]
fn refusals_and_stages_say_what_they_mean() {
    let texts = [
        (BadActions::TooDeep, "actions are nested more than 8 deep"),
        (BadActions::TooLong, "actions have more than 16384 steps"),
        (
            BadActions::TooManyBytes,
            "actions hold more than 32768 bytes of data",
        ),
        (
            BadActions::NotSettable(FieldId::InPort),
            "in_port cannot be set, or not to this value",
        ),
        (
            BadActions::BadTpid(0x800),
            "0x0800 is no VLAN tag's protocol identifier",
        ),
        (
            BadActions::BadMplsType(0x800),
            "0x0800 is no Ethernet type of MPLS",
        ),
        (
            BadActions::WrongStage(Stage::Egress(PortId(3), 1)),
            "an action of these has no meaning in stage egress(3,1)",
        ),
        (
            BadActions::WrongStage(Stage::Ingress(2)),
            "an action of these has no meaning in stage ingress(2)",
        ),
        (
            BadActions::WrongStage(Stage::Forward),
            "an action of these has no meaning in stage forward",
        ),
    ];
    for (refusal, text) in texts {
        assert_eq!(refusal.to_string(), text);
    }
}

#[test]
fn stages_are_valid_up_to_their_bounds() {
    let last = MAX_FILTERS - 1;
    let (port, beyond) = (PortId(PortId::LIMIT - 1), PortId(PortId::LIMIT));
    for stage in [Stage::Forward, Stage::Ingress(last), Stage::Egress(port, last)] {
        assert!(stage.is_valid(), "{stage}");
    }
    for stage in [
        Stage::Ingress(MAX_FILTERS),
        Stage::Egress(port, MAX_FILTERS),
        Stage::Egress(beyond, 0),
    ] {
        assert!(!stage.is_valid(), "{stage}");
    }
    let none = Filters::default();
    assert_eq!(Stage::Ingress(0).next(&none), Some(Stage::Forward));
    assert_eq!(Stage::Forward.next(&none), None);
    assert_eq!(Stage::Egress(port, 0).next(&none), None);
}

#[test]
fn fields_belong_to_packets_with_their_headers() {
    const IPV4: u16 = 0x0800;
    for &id in FieldId::ALL {
        let field = id.field();
        let metadata = [Layer::Metadata, Layer::Tunnel, Layer::Connection];
        assert_eq!(field.is_metadata(), metadata.contains(&field.layer), "{id:?}");
        let [ip, mpls, multicast, nsh] =
            [IPV4, 0x8847, 0x8848, 0x894f].map(|eth_type| field.applies_to(eth_type));
        let expected = match field.layer {
            Layer::Network | Layer::Transport => [true, false, false, false],
            Layer::Mpls => [false, true, true, false],
            Layer::Nsh => [false, false, false, true],
            _ => [true; 4],
        };
        assert_eq!([ip, mpls, multicast, nsh], expected, "{id:?}");
    }
}

#[test]
fn masks_are_applied_and_united_bit_by_bit() {
    let mut key = FlowKey::default();
    key.set_ip_tos(0b1100);
    let mask = |bits| {
        let mut mask = FlowMask::ANY;
        mask.0.set_ip_tos(bits);
        mask
    };
    assert_eq!(key.masked(&mask(0b0110)).ip_tos(), 0b0100);
    assert_eq!(mask(0b0110).union(&mask(0b0011)), mask(0b0111));
    assert!(mask(0xff).is_exact(FieldId::IpTos.field()));
    assert!(!mask(0x7f).is_exact(FieldId::IpTos.field()));
}
