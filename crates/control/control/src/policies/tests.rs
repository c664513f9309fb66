//! The way to what is wanted, against a model of a data plane.

use super::held::{Held, Members, Wanted};
use super::*;
use control_protocol::rules::{Base, ListInfo, SetInfo};
use policy::Policies;
use proptest::prelude::*;
use rule_list::{Builder, ListId, Rule, RuleList, RuleLists, SetId, Verdict};
use std::collections::HashMap;

/// Lists and sets as a data plane has them.
#[derive(Default)]
struct Model {
    lists: RuleLists,
    drafts: BTreeMap<ListId, Builder>,
    tags: BTreeMap<ListId, u64>,
    sets: BTreeMap<SetId, Members>,
    /// Requests so far, without questions.
    changes: usize,
    /// Refuses the commit of this list.
    refuses: Option<ListId>,
}

impl Model {
    fn answer(&mut self, request: RuleRequest) -> Result<Option<RuleAnswer>, String> {
        let questions = matches!(
            request,
            RuleRequest::Lists { .. } | RuleRequest::Sets { .. } | RuleRequest::Members { .. }
        );
        self.changes += usize::from(!questions);
        let text = |error: rule_list::Refused| error.to_string();
        match request {
            RuleRequest::Begin { list, base, default } => {
                let mut builder = match base {
                    Base::Empty => Builder::new(default),
                    Base::Present => Builder::from_list(self.lists.get(list).cloned().ok_or("no list")?),
                };
                builder.set_default(default);
                self.drafts.insert(list, builder);
            }
            RuleRequest::Add { list, rules } => {
                let draft = self.drafts.get_mut(&list).ok_or("no draft")?;
                rules
                    .into_iter()
                    .try_for_each(|rule| draft.add(rule))
                    .map_err(text)?;
            }
            RuleRequest::Remove { list, rules } => {
                let draft = self.drafts.get_mut(&list).ok_or("no draft")?;
                assert!(
                    rules.iter().all(|rule| draft.remove(*rule)),
                    "a rule that is not there"
                );
            }
            RuleRequest::Commit { list, tag } => {
                let draft = self.drafts.remove(&list).ok_or("no draft")?;
                if self.refuses == Some(list) {
                    return Err("no room".into());
                }
                let (made, _) = draft.compile().finish().map_err(text)?;
                self.lists.put(list, made).map_err(text)?;
                self.tags.insert(list, tag);
            }
            RuleRequest::Delete { list } => {
                self.lists.remove(list);
                self.tags.remove(&list);
            }
            RuleRequest::SetAdd { set, kind } => {
                self.lists.sets_mut().create(set, kind).map_err(text)?;
                self.sets.insert(set, Members::none(kind));
            }
            RuleRequest::SetChange { set, remove, add } => {
                let members = self.sets.get_mut(&set).ok_or("no set")?;
                for member in remove {
                    assert!(
                        self.lists
                            .sets_mut()
                            .take_out(set, member)
                            .map_err(text)?
                            .is_some()
                    );
                    *members = without(members, member);
                }
                for member in add {
                    assert!(self.lists.sets_mut().insert(set, member).map_err(text)?.is_some());
                    assert!(members.insert(member));
                }
            }
            RuleRequest::SetDel { set } => {
                self.lists.sets_mut().remove(set, usize::MAX).map_err(text)?;
                self.sets.remove(&set);
            }
            RuleRequest::Lists { after } => {
                let mut behind = self.tags.iter().filter(|(list, _)| Some(**list) > after);
                let page = behind.next().map(|(list, tag)| {
                    let found: &RuleList = self.lists.get(*list).unwrap();
                    let (default, rules) = (found.default_verdict(), found.rules().len() as u32);
                    ListInfo {
                        list: *list,
                        tag: *tag,
                        default,
                        rules,
                    }
                });
                let lists = page.into_iter().collect();
                return Ok(Some(RuleAnswer::Lists {
                    lists,
                    more: behind.next().is_some(),
                }));
            }
            RuleRequest::Sets { after } => {
                let mut behind = self.sets.iter().filter(|(set, _)| Some(**set) > after);
                let page = behind.next().map(|(set, members)| SetInfo {
                    set: *set,
                    kind: members.kind(),
                    members: members.len() as u32,
                    lists: 0,
                });
                let sets = page.into_iter().collect();
                return Ok(Some(RuleAnswer::Sets {
                    sets,
                    more: behind.next().is_some(),
                }));
            }
            RuleRequest::Members { set, after } => {
                let all = all(&self.sets[&set]);
                let from = after.map_or(0, |after| {
                    1 + all.iter().position(|member| *member == after).unwrap()
                });
                let members = all[from..].iter().take(1).copied().collect();
                return Ok(Some(RuleAnswer::Members {
                    members,
                    more: all.len() > from + 1,
                }));
            }
            RuleRequest::Discard { .. } | RuleRequest::Rules { .. } | RuleRequest::Judged { .. } => {
                panic!("{request:?}")
            }
        }
        Ok(None)
    }

    /// Brings a process to what it wants. Returns what was refused.
    fn serve(&mut self, run: &mut PolicyRun) -> Vec<String> {
        let mut refused = Vec::new();
        loop {
            match run.next() {
                Next::Ask(requests) => {
                    for request in requests {
                        assert_eq!(
                            run.next(),
                            Next::Wait,
                            "a step begins before the last one is answered"
                        );
                        refused.extend(run.answered(self.answer(request)));
                    }
                }
                Next::Filters => {}
                Next::Wait => panic!("nothing is under way"),
                Next::Settled => return refused,
            }
        }
    }

    fn rules(&self) -> BTreeMap<ListId, (Verdict, Vec<Rule>)> {
        let of = |list: &ListId| {
            let list = self.lists.get(*list).unwrap();
            let mut rules = list.rules().to_vec();
            rules.sort_by_key(|rule| rule.number);
            (list.default_verdict(), rules)
        };
        self.tags.keys().map(|list| (*list, of(list))).collect()
    }
}

fn all(members: &Members) -> Vec<Member> {
    match members {
        Members::Addresses(all) => all.iter().map(|it| Member::Address(*it)).collect(),
        Members::Macs(all) => all.iter().map(|it| Member::Mac(*it)).collect(),
        Members::Ports(all) => all.iter().map(|it| Member::Port(*it)).collect(),
    }
}

fn without(members: &Members, member: Member) -> Members {
    let mut rest = Members::none(members.kind());
    all(members)
        .into_iter()
        .filter(|other| *other != member)
        .for_each(|other| assert!(rest.insert(other)));
    rest
}

fn numbers() -> HashMap<&'static str, PortId> {
    HashMap::from([("vm0", PortId(1)), ("vm1", PortId(2)), ("vm2", PortId(3))])
}

fn wanted(policies: &Policies) -> Wanted {
    Wanted::of(policies, &numbers())
}

/// Rules as policies want them, by number.
fn rules_of(policies: &Policies) -> BTreeMap<ListId, (Verdict, Vec<Rule>)> {
    let of = |list: &policy::List| {
        let mut rules: Vec<Rule> = list.rules.iter().map(|rule| rule.rule.clone()).collect();
        rules.sort_by_key(|rule| rule.number);
        (list.default, rules)
    };
    policies
        .lists
        .iter()
        .map(|(number, list)| (*number, of(list)))
        .collect()
}

/// Policies of a few ports, from few values so that changes meet.
fn policies() -> impl Strategy<Value = Policies> {
    let rules = prop::collection::vec((0..3u8, 0..4u16, any::<bool>()), 0..5);
    let set = prop::collection::vec(0..4u8, 0..4);
    let ports = prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 0..3);
    (rules, set, ports).prop_map(|(rules, set, ports)| {
        let mut text = format!(
            "[[set]]\nname = \"s\"\naddresses = [{}]\n[[set]]\nname = \"p\"\nports = [\"vm1\", \"vm9\"]\n\
             [[security-group]]\nname = \"g\"\nto = [{{ remote-group = \"g\" }}, {{ sender = \"p\" }}]\n",
            set.iter()
                .map(|low| format!("\"10.0.0.{low}\", "))
                .collect::<String>()
        );
        text += "[[acl]]\nname = \"a\"\ndefault = \"allow\"\nrule = [\n";
        for (action, port, with_set) in rules {
            let action = ["allow", "drop", "reject"][usize::from(action)];
            let source = if with_set { ", source = \"s\"" } else { "" };
            text += &format!(
                "{{ action = \"{action}\", protocol = \"tcp\", destination-port = {port}{source} }},\n"
            );
        }
        text += "]\n[[switch]]\nname = \"sw\"\n";
        for (number, (guarded, with_acl, in_group)) in ports.into_iter().enumerate() {
            text += &format!("[[switch.port]]\nname = \"vm{number}\"\n");
            text += if guarded { "guards = [\"dhcp\"]\n" } else { "" };
            text += if with_acl { "acl-to = \"a\"\n" } else { "" };
            text += if in_group {
                "security-groups = [\"g\"]\n"
            } else {
                ""
            };
        }
        policy::compile(&policy::parse(&text, "x").unwrap()).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever was there, and whichever processes died in between, the data plane has in the end what is
    /// wanted, and what it had already was not stated again.
    #[test]
    fn a_data_plane_comes_to_have_what_is_wanted(
        history in prop::collection::vec((policies(), 0..4u8), 1..6),
    ) {
        let (mut model, mut run) = (Model::default(), PolicyRun::default());
        for (policies, event) in history {
            match event {
                // The control process died, and its successor wants the same at first.
                0 => run = PolicyRun::default(),
                // The data plane died.
                1 => {
                    model = Model::default();
                    run.lose();
                }
                _ => {}
            }
            run.want(wanted(&policies));
            let refused = model.serve(&mut run);
            prop_assert_eq!(refused, Vec::<String>::new());
            // A successor that wants nothing does not look for what may be there.
            if run.held.is_some() {
                prop_assert_eq!(model.rules(), rules_of(&policies));
                let sets: Vec<_> = policies.sets.keys().collect();
                prop_assert_eq!(model.sets.keys().collect::<Vec<_>>(), sets);
            }
            let changes = model.changes;
            let mut successor = PolicyRun::default();
            successor.want(wanted(&policies));
            prop_assert!(model.serve(&mut successor).is_empty());
            prop_assert_eq!(model.changes, changes, "a successor changes nothing");
        }
    }
}

fn example(rules: &str) -> Policies {
    let text = format!(
        "[[acl]]\nname = \"a\"\ndefault = \"drop\"\nrule = [{rules}]\n[[switch]]\nname = \"s\"\n\
         [[switch.port]]\nname = \"vm1\"\nacl-to = \"a\"\n"
    );
    policy::compile(&policy::parse(&text, "x").unwrap()).unwrap()
}

#[test]
fn one_rule_of_many_changes_alone() {
    let rules = |last: u16| -> String {
        let ports = (1..1000).chain([last]);
        ports
            .map(|port| format!("{{ action = \"allow\", protocol = \"tcp\", destination-port = {port} }},"))
            .collect()
    };
    let (mut model, mut run) = (Model::default(), PolicyRun::default());
    run.want(wanted(&example(&rules(2000))));
    model.serve(&mut run);
    let changes = model.changes;
    run.want(wanted(&example(&rules(2001))));
    model.serve(&mut run);
    // Begin, remove, add, commit.
    assert_eq!(model.changes - changes, 4);
}

#[test]
fn what_is_refused_is_told_once_and_tried_again_when_something_else_is_wanted() {
    let (one, other) = (
        example("{ action = \"allow\" }"),
        example("{ action = \"reject\" }"),
    );
    let list = *one.lists.keys().next().unwrap();
    let (mut model, mut run) = (
        Model {
            refuses: Some(list),
            ..Model::default()
        },
        PolicyRun::default(),
    );
    run.want(wanted(&one));
    assert_eq!(model.serve(&mut run), ["to: acl a: no room"]);
    assert_eq!(run.state_of(list), "refused: no room");
    assert_eq!(run.refused().count(), 1);
    run.want(wanted(&one));
    assert_eq!(model.serve(&mut run), Vec::<String>::new());
    model.refuses = None;
    run.want(wanted(&other));
    assert_eq!(model.serve(&mut run), Vec::<String>::new());
    assert_eq!(
        (run.state_of(list), run.refused().count()),
        ("in force".into(), 0)
    );
    assert_eq!(model.rules(), rules_of(&other));
}

/// A rule about a port holds for that port while it is there, and for no other one that gets its number.
#[test]
fn a_port_that_comes_and_goes_is_in_sets_while_it_is_there() {
    let policies = example("{ action = \"allow\", sender = \"later\" }");
    let (mut model, mut run) = (Model::default(), PolicyRun::default());
    let mut members = |number: Option<u32>| {
        let numbers = number.map(|number| ("later", PortId(number)));
        run.want(Wanted::of(&policies, &numbers.into_iter().collect()));
        assert_eq!(model.serve(&mut run), Vec::<String>::new());
        model.sets.values().map(all).collect::<Vec<_>>()
    };
    for (number, expected) in [
        (None, vec![]),
        (Some(7), vec![7]),
        (None, vec![]),
        (Some(9), vec![9]),
    ] {
        let expected: Vec<Member> = expected
            .into_iter()
            .map(|number| Member::Port(PortId(number)))
            .collect();
        assert_eq!(members(number), [expected]);
    }
}

#[test]
fn nothing_is_asked_where_nothing_is_wanted() {
    let mut run = PolicyRun::default();
    run.want(Wanted::default());
    assert_eq!(run.next(), Next::Settled);
    assert_eq!(Held::default(), run.held.unwrap_or_default());
}

#[test]
fn lists_of_a_data_plane_that_lies_have_an_end() {
    let mut run = PolicyRun::default();
    run.want(wanted(&example("{ action = \"allow\" }")));
    for _ in 0..3 {
        assert!(matches!(run.next(), Next::Ask(_)));
        let info = ListInfo {
            list: ListId(7),
            tag: 1,
            default: Verdict::Drop,
            rules: 1,
        };
        let more = RuleAnswer::Lists {
            lists: vec![info],
            more: true,
        };
        assert_eq!(run.answered(Ok(Some(more))), None);
    }
    assert!(run.held.is_some(), "the same page again ends the search");
}
