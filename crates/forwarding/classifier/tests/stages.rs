//! What filters and later passes change for flows, and what they leave as it was.

#![allow(clippy::unwrap_used, reason = "tests")]

use classifier::{Hint, MegaflowTable, PortFlows, Walked, Walker};
use flow::{
    Action, Context, Edit, FieldId, Filters, Flow, FlowId, FlowKey, FlowMask, Nested, PortId, SetField,
    Stage, SwitchId, Userspace,
};

fn key(port: u32) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(port);
    key
}

/// A flow from a port, or from any, to another one.
fn flow(id: u128, from: Option<u32>, to: u32) -> Flow {
    let mut mask = FlowMask::ANY;
    mask.0.set_in_port(from.map_or(0, |_| u32::MAX));
    mask.0.set_eth_dst(if from.is_none() { 1 } else { 0 });
    let actions = vec![Action::Output(PortId(to))];
    Flow::new(FlowId(id), SwitchId(0), key(from.unwrap_or(0)), mask, actions)
}

fn filters(ingress: u8, egress: u8) -> Filters {
    Filters::of_flows(ingress, egress)
}

/// Composing would cost each flow a second program.
#[test]
fn a_flow_that_no_filter_stands_behind_decides_alone() {
    let mut table = MegaflowTable::default();
    table.insert(flow(1, Some(1), 2)).unwrap();
    let decides_alone = |flows: &PortFlows| {
        let (reading, mut walker) = (flows.read(), Walker::default());
        let walked = reading.walk(Hint::default(), &key(1), &Context::NONE, &mut walker);
        (reading.has_walks(), matches!(walked, Walked::Own(_)))
    };
    let flows = table.port(PortId(1));
    assert_eq!(decides_alone(&flows), (false, true));
    table.set_filters(PortId(3), filters(1, 1));
    assert_eq!(decides_alone(&flows), (true, true));
    table.set_filters(PortId(2), filters(0, 1));
    assert_eq!(decides_alone(&flows), (true, false));
}

/// A decision that was cached before would outlive the first flow of the later pass.
#[test]
fn a_flow_that_recirculates_has_no_decision_while_there_is_no_later_pass() {
    let mut table = MegaflowTable::default();
    let mut first = flow(1, Some(1), 0);
    first.actions = vec![Action::Recirc(1)];
    table.insert(first).unwrap();
    let flows = table.port(PortId(1));
    let (reading, mut walker) = (flows.read(), Walker::default());
    let walked = reading.walk(Hint::default(), &key(1), &Context::NONE, &mut walker);
    assert!(matches!(walked, Walked::Each(Stage::Forward)));
    assert_eq!((reading.has_walks(), walker.uncomposed), (false, 1));
}

#[test]
fn a_packet_that_the_first_filter_has_no_flow_for_is_missing_there() {
    let mut table = MegaflowTable::default();
    table.insert(flow(1, Some(1), 2)).unwrap();
    table.set_filters(PortId(1), filters(1, 0));
    let flows = table.port(PortId(1));
    let (reading, mut walker) = (flows.read(), Walker::default());
    let walked = reading.walk(Hint::default(), &key(1), &Context::NONE, &mut walker);
    assert!(matches!(walked, Walked::Missing(Stage::Ingress(0))), "{walked:?}");
    assert_eq!(walker.uncomposed, 0);
}

/// Whether one decision serves all packets that go through two passes with these actions.
fn is_composed(passes: [Vec<Action>; 2]) -> bool {
    let mut table = MegaflowTable::default();
    for (pass, actions) in passes.into_iter().enumerate() {
        let mut flow = flow(pass as u128, Some(1), 0);
        flow.key.set_recirc_id(pass as u32);
        flow.mask.0.set_recirc_id(u32::MAX);
        flow.actions = actions;
        table.insert(flow).unwrap();
    }
    let flows = table.port(PortId(1));
    let (reading, mut walker) = (flows.read(), Walker::default());
    match reading.walk(Hint::default(), &key(1), &Context::NONE, &mut walker) {
        Walked::Composed(_) => true,
        Walked::Each(Stage::Forward) => false,
        other => panic!("{other:?}"),
    }
}

/// The controller gets the key with its copy. A later pass's cannot be made from the packet, so such packets
/// walk.
#[test]
fn decisions_send_copies_of_the_first_pass_only() {
    let copy = || Action::Userspace(Userspace::default());
    let output = || Action::Output(PortId(2));
    assert!(is_composed([vec![copy(), Action::Recirc(1)], vec![output()]]));
    assert!(!is_composed([vec![Action::Recirc(1)], vec![copy(), output()]]));
}

/// Whether packets with this key get a decision that changes them and then passes them on to a port with an
/// egress filter, which compares these bits.
fn is_composed_before_a_filter(key: &FlowKey, changes: &[Action], compared: fn(&mut FlowKey)) -> bool {
    let mut table = MegaflowTable::default();
    let to = PortId(2);
    table.set_filters(to, filters(0, 1));
    let mut mask = FlowMask::ANY;
    mask.0.set_in_port(u32::MAX);
    let actions = [changes, &[Action::Output(to)]].concat();
    let first = Flow::new(FlowId(1), SwitchId(0), *key, mask, actions);
    table.insert(first).unwrap();
    // For any packet: the subject is what is compared, and not which flow matches.
    for (id, bits) in [(2, FlowKey::default()), (3, key_of(compared))] {
        let filter = Flow {
            stage: Stage::Egress(to, 0),
            ..Flow::new(
                FlowId(id),
                SwitchId(0),
                FlowKey::default(),
                FlowMask(bits),
                vec![Action::Continue],
            )
        };
        table.insert(filter).unwrap();
    }
    let flows = table.port(PortId(1));
    let (reading, mut walker) = (flows.read(), Walker::default());
    let walked = reading.walk(Hint::default(), key, &Context::NONE, &mut walker);
    matches!(walked, Walked::Composed(_))
}

fn key_of(set: impl Fn(&mut FlowKey)) -> FlowKey {
    let mut key = FlowKey::default();
    set(&mut key);
    key
}

/// A frame of IPv4 with so many tags; behind a third one its type is not seen.
fn tagged(tags: u16) -> FlowKey {
    let mut key = key(1);
    key.set_eth_type(if tags > 2 { 0x8100 } else { 0x0800 });
    if tags > 0 {
        key.set_vlan_tpid(0x8100);
        key.set_vlan_tci(0x1001);
    }
    if tags > 1 {
        key.set_inner_tpid(0x8100);
        key.set_inner_tci(0x1002);
    }
    key
}

/// A tag that cost each packet a walk would make a VLAN's filters ten times as dear.
#[test]
fn filters_behind_changed_tags_are_composed() {
    let push = || {
        Action::Edit(Edit::PushVlan {
            tpid: 0x8100,
            tci: 0x1003,
        })
    };
    let all = |key: &mut FlowKey| {
        let mut words = FlowMask::EXACT.0.words;
        // The port, which the other look-ups compare, too.
        words[0] = 0;
        key.words = words;
    };
    for tags in 0..=3 {
        assert!(
            is_composed_before_a_filter(&tagged(tags), &[push()], all),
            "{tags} tags"
        );
    }
    for tags in 0..=2 {
        assert!(
            is_composed_before_a_filter(&tagged(tags), &[Action::Edit(Edit::PopVlan)], all),
            "{tags} tags"
        );
    }
    let there_and_back = [
        push(),
        push(),
        Action::Edit(Edit::PopVlan),
        Action::Edit(Edit::PopVlan),
    ];
    assert!(is_composed_before_a_filter(&tagged(0), &there_and_back, all));
    let many = vec![push(); 9];
    assert!(
        !is_composed_before_a_filter(&tagged(0), &many, all),
        "there may be no room for all"
    );
    let labelled = [Action::Edit(Edit::PushMpls {
        lse: 0x1140,
        eth_type: 0x8847,
    })];
    assert!(!is_composed_before_a_filter(&tagged(0), &labelled, |key| key.set_eth_dst(1)));
}

/// What a third tag hides is known of no packet; filters that compare other fields are composed.
#[test]
fn what_is_unknown_behind_a_popped_tag_is_known_bit_by_bit() {
    let is_composed =
        |compared| is_composed_before_a_filter(&tagged(3), &[Action::Edit(Edit::PopVlan)], compared);
    assert!(is_composed(|key| key.set_eth_dst(u64::MAX)));
    assert!(is_composed(|key| key.set_vlan_tci(u16::MAX)));
    assert!(!is_composed(|key| key.set_inner_tci(u16::MAX)));
    assert!(!is_composed(|key| key.set_eth_type(u16::MAX)));
    assert!(!is_composed(|key| key.set_ip_dst(1)));
    let mut short = tagged(1);
    short.set_eth_type(0);
    assert!(
        !is_composed_before_a_filter(&short, &[Action::Edit(Edit::PopVlan)], |key| key.set_eth_dst(1)),
        "a frame that ends with its tag keeps it"
    );
}

/// Length is no part of a kind: both ways are in the decision, unless flows are found on one of them.
#[test]
fn branches_by_length_are_composed_if_nothing_is_looked_up_behind() {
    let branch = |greater, otherwise| Action::CheckPktLen {
        len: 100,
        greater: Nested(vec![greater]),
        otherwise: Nested(vec![otherwise]),
    };
    let (to, on) = (|port| Action::Output(PortId(port)), Action::Recirc(1));
    let second = vec![branch(to(2), to(3))];
    assert!(is_composed([vec![on.clone()], second]));
    let aside = vec![branch(to(2), to(3)), on.clone()];
    assert!(
        is_composed([aside, vec![to(4)]]),
        "that looks up behind both ways"
    );
    assert!(!is_composed([vec![branch(on.clone(), to(3))], vec![to(4)]]));
    assert!(!is_composed([vec![branch(to(2), on)], vec![to(4)]]));
}

#[test]
fn fields_that_all_packets_have_are_set_in_decisions() {
    for (field, expected) in [
        (FieldId::SkbMark, true),
        (FieldId::SkbPriority, true),
        (FieldId::EthDst, true),
        // The packet is none of IP.
        (FieldId::IpTtl, false),
    ] {
        let first = vec![
            Action::Edit(Edit::Set(SetField::whole(field, 1))),
            Action::Recirc(1),
        ];
        let composed = is_composed([first, vec![Action::Output(PortId(2))]]);
        assert_eq!(composed, expected, "{field:?}");
    }
}

#[test]
fn filters_end_the_decisions_that_were_made_without_them() {
    let egress = Flow {
        stage: Stage::Egress(PortId(2), 0),
        actions: vec![Action::Continue],
        ..flow(4, None, 0)
    };
    let all = [flow(1, Some(1), 2), flow(2, Some(3), 4), flow(3, None, 5), egress];
    for (port, filters, expected) in [
        (2, filters(0, 1), vec![1, 4]),
        (4, filters(0, 1), vec![2]),
        (5, filters(0, 1), vec![3]),
        // Packets for any port may be those of this one.
        (1, filters(1, 0), vec![1, 3, 4]),
        (3, filters(1, 0), vec![2, 3, 4]),
        (6, filters(0, 1), vec![]),
        (2, filters(0, 0), vec![]),
    ] {
        let mut table = MegaflowTable::default();
        for flow in &all {
            table.insert(flow.clone()).unwrap();
        }
        let before: Vec<_> = table.iter().cloned().collect();
        before.iter().for_each(|entry| entry.record(1, 100, 0, 0));
        table.set_filters(PortId(port), filters);
        let ended = before.iter().filter(|entry| !entry.is_live());
        let ended: Vec<_> = ended.map(|entry| entry.flow.id.0).collect();
        assert_eq!(ended, expected, "port {port}, {filters:?}");
        assert_eq!(table.len(), all.len());
        assert!(
            table
                .iter()
                .all(|entry| entry.is_live() && entry.stats(0).packets == 1)
        );
    }
}
