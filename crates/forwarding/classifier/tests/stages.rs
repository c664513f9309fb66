//! What filters and later passes change for flows, and what they leave as it was.

#![allow(clippy::unwrap_used, reason = "tests")]

use classifier::{Hint, MegaflowTable, PortFlows, Walked, Walker};
use flow::{
    Action, Context, FieldId, Filters, Flow, FlowId, FlowKey, FlowMask, PortId, SetField, Stage, SwitchId,
    Userspace,
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
    Filters { ingress, egress }
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

/// The controller gets the key with its copy. A later pass's cannot be made from the packet, so such packets walk.
#[test]
fn decisions_send_copies_of_the_first_pass_only() {
    let copy = || Action::Userspace(Userspace::default());
    let output = || Action::Output(PortId(2));
    assert!(is_composed([vec![copy(), Action::Recirc(1)], vec![output()]]));
    assert!(!is_composed([vec![Action::Recirc(1)], vec![copy(), output()]]));
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
        let first = vec![Action::Set(SetField::whole(field, 1)), Action::Recirc(1)];
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
