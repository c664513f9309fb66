//! Flows that outlive data planes.

use super::*;

/// Flows that are put again without an answer, at most.
const MAX_OPEN: usize = 256;

/// More than are under way at one time, or are told in one page.
const MANY: u16 = 600;

fn long_name(number: u16) -> FlowId {
    FlowId::Ufid(Ufid::new(&number.to_be_bytes()).unwrap())
}

fn long_put(number: u16) -> Question {
    let [high, low] = number.to_be_bytes();
    let mut matches = matches(low);
    matches.key.ethernet.as_mut().unwrap().source[4] = high;
    let spec = FlowSpec {
        id: long_name(number),
        matches,
        actions: vec![Action::Output(1)],
    };
    Question::PutFlow(spec, PutMode::Create)
}

fn list(flows: Vec<(Id, FlowStats)>, more: bool) -> Told {
    Told::FlowStats { flows, more }
}

impl World {
    /// The next request, which puts a flow.
    fn hear_put(&mut self) -> (ToDataPlane, Id) {
        let asked = self.hear();
        match &asked.request {
            Request::FlowPut { flow, .. } => {
                let id = flow.id;
                (asked, id)
            }
            other => panic!("{other:?}"),
        }
    }

    /// All requests that wait, which put flows.
    fn hear_puts(&mut self) -> Vec<(ToDataPlane, Id)> {
        self.plane.exchange();
        let mut puts = Vec::new();
        while let Ok((asked, _)) = self.peer.try_recv::<ToDataPlane>() {
            let Request::FlowPut { flow, mode } = &asked.request else {
                panic!("{asked:?}")
            };
            assert_eq!(*mode, flow::PutMode::Create);
            let id = flow.id;
            puts.push((asked, id));
        }
        puts
    }

    /// Flows that the data plane has, and what it calls them.
    fn flows(&mut self, numbers: std::ops::RangeInclusive<u8>) -> Vec<Id> {
        numbers.map(|number| self.flow(number)).collect()
    }

    fn many_flows(&mut self) -> Vec<Id> {
        let install = |number| {
            self.ask(long_put(number));
            let (asked, id) = self.hear_put();
            self.answer(&asked, ended(&[]));
            assert!(matches!(self.plane.next_answer(), Some((_, Ok(Answer::Done)))));
            id
        };
        (0..MANY).map(install).collect()
    }

    /// What a question comes to that the data plane is not asked.
    fn at_once(&mut self, question: Question) -> Result<Answer, Errno> {
        let ticket = self.ask(question);
        let (told, answer) = self.plane.next_answer().unwrap();
        assert_eq!(told, ticket);
        answer
    }

    /// Has the data plane tell of flow 1 that it has counted so much.
    fn count(&mut self, id: Id, packets: u64) -> Option<(Ticket, Result<Answer, Errno>)> {
        self.ask(Question::Flow(name(1), Detail::Seen));
        let asked = self.hear();
        self.answer(&asked, list(vec![(id, counted(packets))], false));
        self.plane.next_answer()
    }
}

fn page(answer: Result<Answer, Errno>) -> (Vec<(FlowId, u64)>, Option<u64>) {
    match answer {
        Ok(Answer::Flows { flows, more_after }) => {
            let told = flows
                .into_iter()
                .map(|(_, flow)| (flow.id, flow.seen.stats.packets));
            (told.collect(), more_after)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_next_data_plane_gets_the_flows_in_their_order_and_some_at_a_time() {
    let mut world = World::new();
    let wanted = world.many_flows();
    world.add_port(1, "vm1");
    world.hear();
    world.lose();
    let ports = world.connect_silent();
    world.hears_nothing();
    world.answer(
        &ports,
        Told::Ports {
            ports: Vec::new(),
            more: false,
        },
    );
    // Packets come to ports that are there.
    assert!(matches!(world.hear().request, Request::PortAdd(_)));
    let mut open = std::collections::VecDeque::from(world.hear_puts());
    assert_eq!(open.len(), MAX_OPEN);
    let mut got = Vec::new();
    while let Some((asked, id)) = open.pop_front() {
        got.push(id);
        world.answer(&asked, ended(&[]));
        open.extend(world.hear_puts());
        assert!(open.len() <= MAX_OPEN);
    }
    assert_eq!(got, wanted);
    assert_eq!((world.violations(), world.plane.counters().flows_refused), (0, 0));
    assert_eq!(world.plane.next_answer(), None);
}

#[test]
fn no_statistics_go_back_when_a_data_plane_dies() {
    let mut world = World::new();
    let ids = world.flows(1..=2);
    assert_eq!(packets(world.count(ids[0], 5)), 5);
    world.ask(Question::FlowsAfter(0, Detail::Seen));
    let asked = world.hear();
    let told = vec![(ids[0], counted(7)), (ids[1], counted(3))];
    world.answer(&asked, list(told, false));
    let seen = page(world.plane.next_answer().unwrap().1);
    assert_eq!(seen, (vec![(name(1), 7), (name(2), 3)], None));
    for death in 1..=2 {
        world.lose();
        // In between, it is as it was told last.
        assert_eq!(page(world.at_once(Question::FlowsAfter(0, Detail::Seen))), seen);
        world.connect(Vec::new());
        let puts = world.hear_puts();
        assert_eq!(puts.iter().map(|(_, id)| *id).collect::<Vec<_>>(), ids);
        for (asked, _) in puts {
            world.answer(&asked, ended(&[]));
        }
        assert_eq!(packets(world.count(ids[0], 0)), 7, "death {death}");
    }
    let Some((_, Ok(Answer::Flow(flow)))) = world.count(ids[0], 4) else {
        panic!()
    };
    assert_eq!((flow.seen.stats.packets, flow.seen.stats.bytes), (11, 11 * 60));
    assert_eq!(flow.seen.tcp_flags, 0x12);
    // Nor do the last ones, whether it counts more or not.
    world.ask(Question::RemoveFlow(name(1), Detail::Seen));
    let asked = world.hear();
    world.answer(&asked, ended(&[(ids[0], 6)]));
    assert_eq!(packets(world.plane.next_answer()), 13);
    world.ask(Question::RemoveFlow(name(2), Detail::Seen));
    let asked = world.hear();
    world.answer(&asked, ended(&[]));
    assert_eq!(packets(world.plane.next_answer()), 3);
}

#[test]
fn flags_and_times_of_a_data_plane_that_has_gone_are_remembered() {
    let mut world = World::new();
    let ids = world.flows(1..=1);
    let Some((_, Ok(Answer::Flow(before)))) = world.count(ids[0], 5) else {
        panic!()
    };
    world.lose();
    world.connect(Vec::new());
    world.hear_puts();
    world.ask(Question::Flow(name(1), Detail::Seen));
    let asked = world.hear();
    world.answer(&asked, list(vec![(ids[0], FlowStats::default())], false));
    let Some((_, Ok(Answer::Flow(after)))) = world.plane.next_answer() else {
        panic!()
    };
    assert_eq!(after, before);
}

#[test]
fn statistics_that_are_cleared_begin_from_zero_again() {
    let mut world = World::new();
    let ids = world.flows(1..=1);
    world.count(ids[0], 5);
    world.lose();
    world.connect(Vec::new());
    let (asked, _) = world.hear_put();
    world.answer(&asked, ended(&[]));
    let clear = |clear| Question::SetFlow {
        id: name(1),
        actions: None,
        clear,
    };
    for (clears, wanted) in [(false, 7), (true, 2)] {
        world.ask(clear(clears));
        let (asked, _) = world.hear_put();
        world.answer(&asked, ended(&[]));
        world.plane.next_answer();
        assert_eq!(packets(world.count(ids[0], 2)), wanted);
    }
}

#[test]
fn what_was_asked_about_flows_is_answered_when_the_data_plane_dies() {
    let mut world = World::new();
    let ids = world.flows(1..=3);
    world.count(ids[0], 5);
    let change = Question::SetFlow {
        id: name(3),
        actions: Some(vec![Action::PopVlan]),
        clear: false,
    };
    let tickets = [
        Question::Flow(name(1), Detail::Seen),
        Question::RemoveFlow(name(1), Detail::Seen),
        change,
        put(4, PutMode::Create),
        Question::FlowsAfter(0, Detail::Seen),
        Question::FlushFlows,
    ]
    .map(|question| world.ask(question));
    world.lose();
    let answers: BTreeMap<_, _> = std::iter::from_fn(|| world.plane.next_answer()).collect();
    assert_eq!(answers.len(), tickets.len());
    let answer = |at: usize| answers.get(&tickets[at]).unwrap().clone();
    // Gone since.
    assert_eq!(answer(0), Err(Errno::ENOENT));
    assert_eq!(packets(Some((tickets[1], answer(1)))), 5);
    for done in [2, 3, 5] {
        assert_eq!(answer(done), Ok(Answer::Done));
    }
    assert_eq!(page(answer(4)), (Vec::new(), None));
    // All were flushed.
    world.connect(Vec::new());
    world.hears_nothing();
}

#[test]
fn what_was_put_or_changed_when_the_data_plane_died_comes_with_the_next_one() {
    let mut world = World::new();
    world.flows(1..=1);
    let change = |number| Question::SetFlow {
        id: name(number),
        actions: Some(vec![Action::PopVlan]),
        clear: false,
    };
    world.ask(change(1));
    world.ask(put(2, PutMode::Create));
    world.lose();
    while let Some((_, answer)) = world.plane.next_answer() {
        assert_eq!(answer, Ok(Answer::Done));
    }
    // Nor is a data plane needed.
    assert_eq!(world.at_once(put(3, PutMode::Create)), Ok(Answer::Done));
    assert_eq!(world.at_once(change(3)), Ok(Answer::Done));
    assert_eq!(world.at_once(put(3, PutMode::Create)), Err(Errno::EEXIST));
    assert_eq!(world.at_once(put(4, PutMode::Create)), Ok(Answer::Done));
    assert_eq!(packets_at_once(&mut world, 4), 0);
    world.connect(Vec::new());
    let actions = |(asked, _): &(ToDataPlane, Id)| match &asked.request {
        Request::FlowPut { flow, .. } => flow.actions.clone(),
        other => panic!("{other:?}"),
    };
    let got: Vec<_> = world.hear_puts().iter().map(actions).collect();
    let output = vec![flow::Action::Output(PortId(FIRST + 1))];
    let changed = vec![flow::Action::Edit(flow::Edit::PopVlan)];
    assert_eq!(got, [changed.clone(), output, changed]);
}

/// Removes a flow without the data plane's help.
fn packets_at_once(world: &mut World, number: u8) -> u64 {
    let answer = world.at_once(Question::RemoveFlow(name(number), Detail::Seen));
    packets(Some((Ticket(0), answer)))
}

#[test]
fn flows_that_wait_are_asked_for_changed_and_removed_here() {
    let mut world = World::new();
    world.many_flows();
    world.lose();
    world.connect(Vec::new());
    let open = world.hear_puts();
    // The rest waits.
    let last = long_name(MANY - 1);
    assert!(world.at_once(Question::Flow(last.clone(), Detail::Whole)).is_ok());
    assert_eq!(world.at_once(long_put(MANY - 1)), Err(Errno::EEXIST));
    let change = Question::SetFlow {
        id: last.clone(),
        actions: Some(vec![Action::PopVlan]),
        clear: true,
    };
    assert_eq!(world.at_once(change), Ok(Answer::Done));
    let removed = long_name(MANY - 2);
    assert!(
        world
            .at_once(Question::RemoveFlow(removed.clone(), Detail::Seen))
            .is_ok()
    );
    assert_eq!(
        world.at_once(Question::Flow(removed, Detail::Seen)),
        Err(Errno::ENOENT)
    );
    // The data plane is asked for those that it has, and gets new ones.
    world.ask(Question::RemoveFlow(long_name(0), Detail::Seen));
    assert!(matches!(world.hear().request, Request::FlowDel { .. }));
    world.ask(long_put(MANY));
    let (_, new) = world.hear_put();
    // A dump tells each flow once.
    world.ask(Question::FlowsAfter(0, Detail::Seen));
    let asked = world.hear();
    let mut told: Vec<_> = open[1..].iter().map(|(_, id)| (*id, counted(9))).collect();
    told.push((new, counted(8)));
    world.answer(&asked, list(told, false));
    let (mut dumped, mut more) = page(world.plane.next_answer().unwrap().1);
    assert_eq!(dumped.len(), MAX_OPEN - 1);
    while let Some(after) = more {
        let ticket = world.ask(Question::FlowsAfter(after, Detail::Seen));
        let answer = world.plane.next_answer().unwrap_or_else(|| {
            let asked = world.hear();
            world.answer(&asked, list(vec![(new, counted(8))], false));
            world.plane.next_answer().unwrap()
        });
        assert_eq!(answer.0, ticket);
        let (flows, next) = page(answer.1);
        dumped.extend(flows);
        more = next;
    }
    let wanted = (1..=MANY).filter(|number| *number != MANY - 2);
    let packets = |number| match number {
        MANY => 8,
        number if usize::from(number) < MAX_OPEN => 9,
        _ => 0,
    };
    let wanted: Vec<_> = wanted
        .map(|number| (long_name(number), packets(number)))
        .collect();
    assert_eq!(dumped, wanted);
    // What was changed is put as it is now, and what was removed is not.
    let mut puts = std::collections::VecDeque::from(open);
    let mut seen = Vec::new();
    while let Some((asked, _)) = puts.pop_front() {
        world.answer(&asked, ended(&[]));
        seen.push(asked.request);
        puts.extend(world.hear_puts());
    }
    assert_eq!(seen.len(), usize::from(MANY) - 1);
    let Some(Request::FlowPut { flow, .. }) = seen.last() else {
        panic!()
    };
    assert_eq!(flow.actions, [flow::Action::Edit(flow::Edit::PopVlan)]);
}

#[test]
fn a_flow_that_the_next_data_plane_refuses_idles_until_ovs_vswitchd_removes_it() {
    let mut world = World::new();
    let ids = world.flows(1..=3);
    world.count(ids[0], 5);
    world.lose();
    world.connect(Vec::new());
    let puts = world.hear_puts();
    world.refuse(&puts[0].0, 28);
    world.answer(&puts[1].0, ended(&[]));
    // No answer to a put, which is a violation as well.
    world.answer(&puts[2].0, Told::Trace(Vec::new()));
    assert_eq!(world.plane.counters().flows_refused, 2);
    assert_eq!(world.violations(), 1);
    // They come last.
    world.ask(Question::FlowsAfter(0, Detail::Seen));
    let asked = world.hear();
    world.answer(&asked, list(vec![(ids[1], counted(1))], false));
    let (told, more) = page(world.plane.next_answer().unwrap().1);
    assert_eq!(told, [(name(2), 1)]);
    let rest = page(world.at_once(Question::FlowsAfter(more.unwrap(), Detail::Seen)));
    assert_eq!(rest, (vec![(name(1), 5), (name(3), 0)], None));
    assert_eq!(world.plane.stats(DATAPATH).0.flows, 3);
    assert_eq!(packets_at_once(&mut world, 1), 5);
    // From now on it is one as any other: the data plane decides about it.
    let id = world.flow(1);
    assert!(id > ids[2]);
    assert_eq!(packets(world.count(id, 2)), 2);
    // One that was refused may be put without having been removed.
    world.flow(3);
    // Others are tried again with the data plane after that one.
    world.lose();
    world.connect(Vec::new());
    let puts = world.hear_puts();
    assert_eq!(puts.len(), 3);
    world.refuse(&puts[0].0, 28);
    world.lose();
    world.connect(Vec::new());
    assert_eq!(world.hear_puts().len(), 3);
}

#[test]
fn a_data_plane_may_die_while_it_is_given_its_flows() {
    let mut world = World::new();
    let ids = world.many_flows();
    for answered in [0, 1, MAX_OPEN] {
        world.lose();
        world.connect(Vec::new());
        let puts = world.hear_puts();
        assert!(puts.iter().map(|(_, id)| id).eq(&ids[..MAX_OPEN]));
        for (asked, _) in &puts[..answered] {
            world.answer(asked, ended(&[]));
        }
        assert_eq!(world.hear_puts().len(), answered);
    }
    // Flushed meanwhile: nothing more is put.
    world.lose();
    world.connect(Vec::new());
    let puts = world.hear_puts();
    world.ask(Question::FlushFlows);
    assert!(matches!(world.hear().request, Request::FlowFlush { .. }));
    for (asked, _) in puts {
        world.refuse(&asked, 28);
    }
    world.hears_nothing();
    assert_eq!(world.plane.stats(DATAPATH).0.flows, 0);
}

#[test]
fn a_glue_without_datapath_leaves_the_flows_of_an_earlier_one() {
    let mut world = World::new();
    world.plane.remove(DATAPATH);
    let (ours, theirs) = Channel::pair().unwrap();
    world.plane.connect(ours).unwrap();
    world.peer = theirs;
    assert!(matches!(world.hear().request, Request::Hello { .. }));
    assert_eq!(world.hear().request, Request::PortList);
    world.hears_nothing();
}
