//! Misses and packets of a controller in filters: the stage that they name.

use crate::support::control::{Controller, SWITCH, miss};
use crate::support::frames::plain;
use crate::support::{Guest, Switch};
use control_protocol::data_plane::{Answer, Request, TraceStep};
use flow::{Action, DropReason, Filters, Flow, FlowId, FlowKey, FlowMask, PortId, Stage};

const EGRESS: Stage = Stage::Egress(PortId(2), 0);

fn output(port: u32) -> Action {
    Action::Output(PortId(port))
}

/// A flow of that stage for all packets.
fn any(id: u128, stage: Stage, action: Action) -> Flow {
    let flow = Flow::new(
        FlowId(id),
        SWITCH,
        FlowKey::default(),
        FlowMask::ANY,
        vec![action],
    );
    Flow { stage, ..flow }
}

/// Two ingress filters at port 1, one egress filter at port 2, and no flows.
fn filtered() -> (Switch, Guest, Guest) {
    let mut switch = Switch::start();
    for (port, ingress, egress) in [(1, 2, 0), (2, 0, 1)] {
        switch.add_with(port, Filters::of_flows(ingress, egress));
    }
    let a = Guest::usual(&mut switch, 1);
    let b = Guest::usual(&mut switch, 2);
    (switch, a, b)
}

/// A miss comes from each stage in turn, and the packet goes on from there.
#[test]
fn a_packet_goes_on_in_the_stage_where_it_missed() {
    let (mut switch, mut a, mut b) = filtered();
    let frame = plain(1, 2, 300, 1);
    a.send(&frame);
    let ways = [
        (Stage::Ingress(0), Action::Continue),
        (Stage::Ingress(1), Action::Continue),
        (Stage::Forward, output(2)),
        (EGRESS, Action::Continue),
    ];
    for (stage, action) in ways {
        let upcall = switch.upcall();
        assert_eq!((upcall.cause.clone(), upcall.id.port), (miss(stage), PortId(1)));
        assert_eq!(upcall.packet.frame, frame);
        switch.execute_in(stage, upcall, &[action]);
    }
    b.expect_plain(&frame);
    switch.until(1, "all four are counted", |counters| counters.upcalls == 4);
    switch.finish();
}

/// The controller decides for several stages at once: their flows are not looked up.
#[test]
fn a_packet_that_goes_on_in_a_later_stage_meets_no_earlier_flow() {
    let (mut switch, mut a, mut b) = filtered();
    switch.put(any(1, Stage::Ingress(1), Action::Drop(DropReason::Policy)));
    switch.put(any(2, EGRESS, Action::Continue));
    let frame = plain(1, 2, 300, 1);
    a.send(&frame);
    let upcall = switch.upcall();
    assert_eq!(upcall.cause, miss(Stage::Ingress(0)));
    switch.execute(upcall, &[output(2)]);
    b.expect_plain(&frame);
    a.send(&frame);
    let upcall = switch.upcall();
    switch.execute_in(Stage::Ingress(0), upcall, &[Action::Continue]);
    switch.until_dropped(1, DropReason::Policy, 1);
    switch.finish();
}

/// A controller can name any stage, and gets no packet out of the switch by that, nor harms the data plane.
#[test]
fn stages_that_do_not_exist_end_a_packet() {
    let (mut switch, mut a, _b) = filtered();
    let nowhere = [
        (Stage::Ingress(200), Action::Continue, DropReason::BadActions),
        (
            Stage::Egress(PortId(u32::MAX), 0),
            Action::Continue,
            DropReason::BadActions,
        ),
        (
            Stage::Egress(PortId(2), 255),
            Action::Continue,
            DropReason::BadActions,
        ),
        (Stage::Forward, Action::Continue, DropReason::BadActions),
        (Stage::Ingress(0), Action::Recirc(1), DropReason::BadActions),
        (
            Stage::Egress(PortId(9), 0),
            Action::Continue,
            DropReason::NoSuchPort,
        ),
    ];
    for (stage, action, reason) in nowhere {
        a.send(&plain(1, 2, 300, 1));
        let upcall = switch.upcall();
        let before = switch.counters(1).dropped.get(reason);
        switch.execute_in(stage, upcall, &[action]);
        switch.until_dropped(1, reason, before + 1);
    }
    switch.finish();
}

/// A filter that is removed meanwhile stops nobody: the packet goes on behind the last one.
#[test]
fn a_packet_of_a_filter_that_is_no_more_goes_on() {
    let (mut switch, mut a, mut b) = filtered();
    let frame = plain(1, 2, 300, 1);
    a.send(&frame);
    let upcall = switch.upcall();
    for port in [1, 2].map(PortId) {
        let filters = Filters::default();
        switch.done(Request::PortFilters { port, filters });
        assert_eq!(switch.port(port.0).spec.filters, filters);
    }
    switch.put(any(1, Stage::Forward, output(2)));
    switch.execute_in(Stage::Ingress(1), upcall, &[Action::Continue]);
    b.expect_plain(&frame);
    switch.finish();
}

#[test]
fn traces_name_the_stage_and_go_on_there() {
    let (mut switch, _a, _b) = filtered();
    let frame = plain(1, 2, 300, 1);
    let trace = |switch: &mut Controller, request| match switch.ask(request) {
        Ok(Answer::Trace(steps)) => steps,
        other => panic!("{other:?}"),
    };
    let missed = |steps: &[TraceStep]| match steps.last() {
        Some(TraceStep::Miss { stage, .. }) => Some(*stage),
        _ => None,
    };
    let (in_port, first) = (PortId(1), frame.clone());
    let steps = trace(
        &mut switch,
        Request::Trace {
            in_port,
            frame: first,
        },
    );
    assert_eq!(missed(&steps), Some(Stage::Ingress(0)));
    switch.put(any(1, Stage::Forward, output(2)));
    let second = Request::TraceActions {
        in_port,
        stage: Stage::Ingress(1),
        frame,
        actions: vec![Action::Continue],
    };
    let steps = trace(&mut switch, second);
    assert_eq!(missed(&steps), Some(EGRESS));
    switch.finish();
}

/// What was asked for before has been done.
#[test]
fn a_barrier_is_answered_behind_earlier_requests() {
    let mut switch = Switch::with_ports(1);
    switch.put(any(1, Stage::Forward, output(1)));
    assert_eq!(switch.ask(Request::Barrier), Ok(Answer::Done));
    assert_eq!(switch.flows().len(), 1);
    switch.finish();
}
