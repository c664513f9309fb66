//! What exceeds a bound or names what is missing is refused, and changes nothing; a change takes bounded
//! steps.

#![allow(clippy::unwrap_used)]

use flow::{FlowKey, PortId, Unseen};
use rule_list::{
    Addresses, Builder, ListId, MAX_FLAG_CONDITIONS, MAX_LISTS, MAX_RULES, MAX_SETS_PER_LIST, Macs, Match,
    Member, Outcome, Ports, Refused, Rule, RuleList, RuleLists, SetId, SetKind, TcpFlags, Verdict,
};

const LIST: ListId = ListId(1);
const SET: SetId = SetId(1);

fn rule(number: u32, matches: Match) -> Rule {
    Rule {
        number,
        priority: 0,
        matches,
        verdict: Verdict::Allow,
        trial: false,
        log: false,
    }
}

fn from_port(port: u32) -> Match {
    Match {
        in_port: Some(Ports::One(PortId(port))),
        ..Match::default()
    }
}

fn from_set(set: SetId) -> Match {
    Match {
        ip_src: Some(Addresses::Set(set)),
        ..Match::default()
    }
}

fn list(rules: impl IntoIterator<Item = Rule>) -> Result<RuleList, Refused> {
    let mut builder = Builder::new(Verdict::Drop);
    for rule in rules {
        builder.add(rule)?;
    }
    Ok(builder.compile().finish()?.0)
}

fn port_key(port: u32) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(port);
    key
}

#[test]
fn a_list_has_a_bounded_number_of_rules_all_of_which_count() {
    let full = (0..MAX_RULES as u32).map(|port| rule(port, from_port(port % PortId::LIMIT)));
    let more = full.clone().chain([rule(u32::MAX, Match::default())]);
    assert_eq!(list(more).err(), Some(Refused::TooManyRules));
    let mut lists = RuleLists::default();
    lists.put(LIST, list(full).unwrap()).unwrap();
    for port in [0, 63, 64, MAX_RULES as u32 - 1] {
        let answer = lists.look_up(LIST, &port_key(port), Unseen::Nothing).unwrap();
        assert_eq!(answer.outcome, Outcome::Rule(port as u16));
    }
    let memory = lists.get(LIST).unwrap().memory();
    assert!(memory < 600 * MAX_RULES, "{memory} bytes");
}

#[test]
fn a_number_stands_for_one_rule() {
    let twice = [rule(1, from_port(1)), rule(1, from_port(2))];
    assert_eq!(list(twice).err(), Some(Refused::SameNumber(1)));
}

#[test]
fn conditions_that_cost_a_step_each_are_few() {
    let flags = |count: u16| {
        (1..=count).map(|value| {
            let tcp_flags = Some(TcpFlags { value, mask: 0xfff });
            let matches = Match {
                ip_proto: Some(6),
                tcp_flags,
                ..Match::default()
            };
            rule(value.into(), matches)
        })
    };
    assert!(list(flags(MAX_FLAG_CONDITIONS as u16)).is_ok());
    let beyond = list(flags(MAX_FLAG_CONDITIONS as u16 + 1)).err();
    assert_eq!(beyond, Some(Refused::TooManyFlagConditions));
    let sets = |count: u32| (0..count).map(|set| rule(set, from_set(SetId(set))));
    assert!(list(sets(MAX_SETS_PER_LIST as u32)).is_ok());
    let beyond = list(sets(MAX_SETS_PER_LIST as u32 + 1)).err();
    assert_eq!(beyond, Some(Refused::TooManySetsOfList));
}

#[test]
fn lists_are_bounded_and_a_list_that_is_missing_has_no_answer() {
    let mut lists = RuleLists::default();
    for id in 0..MAX_LISTS as u32 {
        lists.put(ListId(id), list([]).unwrap()).unwrap();
    }
    let beyond = ListId(MAX_LISTS as u32);
    assert_eq!(
        lists.put(beyond, list([]).unwrap()).err(),
        Some(Refused::TooManyLists)
    );
    assert_eq!(lists.look_up(beyond, &port_key(1), Unseen::Nothing), None);
    assert!(lists.put(LIST, list([]).unwrap()).unwrap().is_some());
    assert!(lists.remove(LIST).is_some() && lists.put(beyond, list([]).unwrap()).is_ok());
    let answer = lists.look_up(beyond, &port_key(1), Unseen::Nothing).unwrap();
    assert_eq!(answer.outcome, Outcome::Default);
}

/// No rule stands on a set that is missing: such a rule would match nothing, and one that drops would let
/// packets pass.
#[test]
fn a_set_outlives_the_lists_that_name_it() {
    let mut lists = RuleLists::default();
    let named = || list([rule(1, from_set(SET))]).unwrap();
    assert_eq!(lists.put(LIST, named()).err(), Some(Refused::NoSuchSet(SET)));
    lists.sets_mut().create(SET, SetKind::Macs).unwrap();
    let wrong = Refused::WrongKind {
        set: SET,
        kind: SetKind::Macs,
    };
    assert_eq!(lists.put(LIST, named()).err(), Some(wrong));
    let port = Member::Port(PortId(1));
    assert_eq!(lists.sets_mut().insert(SET, port).err(), Some(wrong));
    assert_eq!(lists.sets_mut().remove(SET, 1), Ok(true));
    lists.sets_mut().create(SET, SetKind::Addresses).unwrap();
    assert_eq!(
        lists.sets_mut().create(SET, SetKind::Macs),
        Err(Refused::SetExists(SET))
    );
    for _ in 0..2 {
        lists.put(LIST, named()).unwrap();
        assert_eq!(lists.sets_mut().remove(SET, 1), Err(Refused::SetInUse(SET)));
    }
    lists.put(LIST, list([]).unwrap()).unwrap();
    assert_eq!(lists.sets_mut().remove(SET, 1), Ok(true));
}

#[test]
fn a_set_goes_in_pieces_and_leaves_nothing() {
    let mut lists = RuleLists::default();
    let sets = lists.sets_mut();
    for round in 0..2 {
        sets.create(SET, SetKind::Ports).unwrap();
        (0..5).for_each(|port| assert!(sets.insert(SET, Member::Port(PortId(port))).unwrap().is_some()));
        assert_eq!(sets.insert(SET, Member::Port(PortId(0))), Ok(None));
        assert_eq!(sets.take_out(SET, Member::Port(PortId(9))), Ok(None));
        assert_eq!(
            (sets.remove(SET, 2), sets.members(SET)),
            (Ok(false), Some(3)),
            "{round}"
        );
        assert_eq!((sets.remove(SET, 2), sets.remove(SET, 2)), (Ok(false), Ok(true)));
        assert_eq!(sets.members(SET), None);
    }
}

/// The steps of a list that has no former version: ten rules get places, then each dimension, then ten rules
/// get into the indices. A version with one rule more does the last for one rule.
#[test]
fn a_step_takes_no_more_rules_than_it_may() {
    const DIMENSIONS: usize = 15;
    let steps = |builder: Builder| {
        let mut compiler = builder.compile();
        let steps = 1 + (0..100).take_while(|_| !compiler.step(4).unwrap()).count();
        (steps, compiler.finish().unwrap().0)
    };
    let mut builder = Builder::new(Verdict::Drop);
    (0..10).for_each(|port| builder.add(rule(port, from_port(port))).unwrap());
    let (taken, list) = steps(builder);
    assert_eq!(taken, 3 + DIMENSIONS + 3);
    let mut builder = Builder::from_list(list.into());
    builder.add(rule(10, from_port(10))).unwrap();
    assert!(builder.remove(3));
    assert_eq!(steps(builder).0, 3 + DIMENSIONS + 1 + 1);
}

/// Packets are told apart no further than rules ask: a list about one port of one network makes few kinds
/// of packets.
#[test]
fn connections_share_an_answer_unless_rules_are_about_what_tells_them_apart() {
    let web = Match {
        ip_proto: Some(6),
        transport: Some(rule_list::Transport::Ports {
            source: rule_list::Range::ALL,
            destination: rule_list::Range::one(443),
        }),
        ..Match::default()
    };
    let by_mac = Match {
        eth_src: Some(Macs::Set(SET)),
        ..Match::default()
    };
    let mut lists = RuleLists::default();
    lists.sets_mut().create(SET, SetKind::Macs).unwrap();
    lists
        .put(LIST, list([rule(1, web), rule(2, by_mac)]).unwrap())
        .unwrap();
    let mut kinds = std::collections::HashSet::new();
    for source in 0..1000u32 {
        for destination in [80, 443, 22] {
            let mut key = port_key(source % 7);
            key.set_eth_type(0x0800);
            key.set_ip_proto(6);
            key.set_ip_src(source.into());
            key.set_tp_src(source as u16);
            key.set_tp_dst(destination);
            let answer = lists.look_up(LIST, &key, Unseen::Nothing).unwrap();
            kinds.insert((answer.noted, key.masked(&answer.noted)));
        }
    }
    // Ports 22 and 80 differ from 443 in one and the same bit.
    assert_eq!(kinds.len(), 2);
}
