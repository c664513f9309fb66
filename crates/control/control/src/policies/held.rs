//! Lists and sets as a data plane has them or should have them, and the steps from one to the other.

use control_protocol::rules::{Base, MAX_MEMBERS_PER_REQUEST, MAX_RULES_PER_REQUEST, RuleRequest};
use flow::PortId;
use policy::{List, Policies, SetMembers};
use rule_list::{IpPrefix, ListId, MacPrefix, Member, Rule, SetId, SetKind};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// Members of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Members {
    Addresses(BTreeSet<IpPrefix>),
    Macs(BTreeSet<MacPrefix>),
    Ports(BTreeSet<PortId>),
}

/// Lists and sets that are wanted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    lists: BTreeMap<ListId, (u64, Arc<List>)>,
    sets: BTreeMap<SetId, (String, Members)>,
}

/// Lists and sets that a data plane has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub lists: BTreeMap<ListId, HeldList>,
    pub sets: BTreeMap<SetId, Members>,
}

/// A list that a data plane has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HeldList {
    pub tag: u64,
    /// Rules of the list, if this process has stated them or knows them by the tag.
    pub list: Option<Arc<List>>,
}

/// What a step is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    List(ListId),
    Set(SetId),
}

/// What a data plane has once a step is done.
#[derive(Debug)]
pub(crate) enum Effect {
    List(ListId, Option<HeldList>),
    Set(SetId, Option<Members>),
}

/// A change that is answered before the next one begins.
#[derive(Debug)]
pub(crate) enum Step {
    Change {
        effect: Effect,
        requests: Vec<RuleRequest>,
    },
    /// Ports get the filters that they should have.
    Filters,
}

impl Effect {
    pub fn subject(&self) -> Subject {
        match self {
            Effect::List(list, _) => Subject::List(*list),
            Effect::Set(set, _) => Subject::Set(*set),
        }
    }
}

impl Step {
    pub fn subject(&self) -> Option<Subject> {
        match self {
            Step::Change { effect, .. } => Some(effect.subject()),
            Step::Filters => None,
        }
    }
}

impl Members {
    pub fn kind(&self) -> SetKind {
        match self {
            Members::Addresses(_) => SetKind::Addresses,
            Members::Macs(_) => SetKind::Macs,
            Members::Ports(_) => SetKind::Ports,
        }
    }

    /// A set without members.
    pub fn none(kind: SetKind) -> Members {
        match kind {
            SetKind::Addresses => Members::Addresses(BTreeSet::new()),
            SetKind::Macs => Members::Macs(BTreeSet::new()),
            SetKind::Ports => Members::Ports(BTreeSet::new()),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Members::Addresses(all) => all.len(),
            Members::Macs(all) => all.len(),
            Members::Ports(all) => all.len(),
        }
    }

    /// Adds a member of the set's kind; false for one of another kind, or one that is there.
    pub fn insert(&mut self, member: Member) -> bool {
        match (self, member) {
            (Members::Addresses(all), Member::Address(it)) => all.insert(it),
            (Members::Macs(all), Member::Mac(it)) => all.insert(it),
            (Members::Ports(all), Member::Port(it)) => all.insert(it),
            _ => false,
        }
    }

    /// Removes a port. False if it is not there.
    pub fn remove_port(&mut self, port: PortId) -> bool {
        match self {
            Members::Ports(all) => all.remove(&port),
            Members::Addresses(_) | Members::Macs(_) => false,
        }
    }

    /// Members that `other` lacks.
    fn without(&self, other: &Members) -> Vec<Member> {
        match (self, other) {
            (Members::Addresses(one), Members::Addresses(other)) => {
                one.difference(other).map(|it| Member::Address(*it)).collect()
            }
            (Members::Macs(one), Members::Macs(other)) => {
                one.difference(other).map(|it| Member::Mac(*it)).collect()
            }
            (Members::Ports(one), Members::Ports(other)) => {
                one.difference(other).map(|it| Member::Port(*it)).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Wanted {
    /// What the policies want where ports have these numbers. A port without a number is in no set.
    pub fn of(policies: &Policies, numbers: &HashMap<&str, PortId>) -> Wanted {
        let lists = policies.lists.iter();
        let sets = policies.sets.iter().map(|(number, set)| {
            let members = match &set.members {
                SetMembers::Addresses(all) => Members::Addresses(all.clone()),
                SetMembers::Macs(all) => Members::Macs(all.clone()),
                SetMembers::Ports(all) => {
                    let known = all.iter().filter_map(|name| numbers.get(name.as_str()).copied());
                    Members::Ports(known.collect())
                }
            };
            (*number, (set.name.clone(), members))
        });
        Wanted {
            lists: lists
                .map(|(number, list)| (*number, (list.tag(), Arc::new(list.clone()))))
                .collect(),
            sets: sets.collect(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.lists.is_empty() && self.sets.is_empty()
    }

    pub fn tag_of(&self, list: ListId) -> Option<u64> {
        Some(self.lists.get(&list)?.0)
    }

    /// The list with this number, if it is wanted with this tag.
    pub fn list(&self, list: ListId, tag: u64) -> Option<Arc<List>> {
        let (wanted, list) = self.lists.get(&list)?;
        (*wanted == tag).then(|| Arc::clone(list))
    }

    pub fn kind_of(&self, set: SetId) -> Option<SetKind> {
        Some(self.sets.get(&set)?.1.kind())
    }

    pub fn name_of(&self, subject: Subject) -> Option<&str> {
        match subject {
            Subject::List(list) => Some(self.lists.get(&list)?.1.name.as_str()),
            Subject::Set(set) => Some(self.sets.get(&set)?.0.as_str()),
        }
    }
}

impl Held {
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty() && self.sets.is_empty()
    }

    pub fn tag_of(&self, list: ListId) -> Option<u64> {
        Some(self.lists.get(&list)?.tag)
    }

    /// A step is done.
    pub fn take(&mut self, effect: Effect) {
        match effect {
            Effect::List(number, Some(list)) => {
                self.lists.insert(number, list);
            }
            Effect::List(number, None) => {
                self.lists.remove(&number);
            }
            Effect::Set(number, Some(members)) => {
                self.sets.insert(number, members);
            }
            Effect::Set(number, None) => {
                self.sets.remove(&number);
            }
        }
    }
}

/// The steps from what is there to what is wanted.
pub(crate) fn steps(held: &Held, wanted: &Wanted) -> VecDeque<Step> {
    let mut steps = VecDeque::new();
    for (set, (_, members)) in &wanted.sets {
        let requests = change_set(*set, held.sets.get(set), members);
        let effect = Effect::Set(*set, Some(members.clone()));
        steps.extend((!requests.is_empty()).then_some(Step::Change { effect, requests }));
    }
    for (number, (tag, list)) in &wanted.lists {
        let before = held.lists.get(number);
        if before.is_some_and(|before| before.tag == *tag) {
            continue;
        }
        let requests = change_list(
            *number,
            before.and_then(|before| before.list.as_deref()),
            list,
            *tag,
        );
        let after = HeldList {
            tag: *tag,
            list: Some(Arc::clone(list)),
        };
        steps.push_back(Step::Change {
            effect: Effect::List(*number, Some(after)),
            requests,
        });
    }
    steps.push_back(Step::Filters);
    for list in held.lists.keys().filter(|list| !wanted.lists.contains_key(list)) {
        let requests = vec![RuleRequest::Delete { list: *list }];
        steps.push_back(Step::Change {
            effect: Effect::List(*list, None),
            requests,
        });
    }
    for set in held.sets.keys().filter(|set| !wanted.sets.contains_key(set)) {
        let requests = vec![RuleRequest::SetDel { set: *set }];
        steps.push_back(Step::Change {
            effect: Effect::Set(*set, None),
            requests,
        });
    }
    steps
}

/// Requests that make a set of the one that is there.
fn change_set(set: SetId, before: Option<&Members>, after: &Members) -> Vec<RuleRequest> {
    let mut requests = Vec::new();
    let none = Members::none(after.kind());
    let before = match before {
        Some(before) if before.kind() == after.kind() => before,
        other => {
            requests.extend(other.map(|_| RuleRequest::SetDel { set }));
            requests.push(RuleRequest::SetAdd {
                set,
                kind: after.kind(),
            });
            &none
        }
    };
    // Whoever leaves has left before others come.
    for remove in before.without(after).chunks(MAX_MEMBERS_PER_REQUEST) {
        requests.push(RuleRequest::SetChange {
            set,
            remove: remove.to_vec(),
            add: Vec::new(),
        });
    }
    for add in after.without(before).chunks(MAX_MEMBERS_PER_REQUEST) {
        requests.push(RuleRequest::SetChange {
            set,
            remove: Vec::new(),
            add: add.to_vec(),
        });
    }
    requests
}

/// Requests that make a list, of the one that is there if its rules are known.
fn change_list(list: ListId, before: Option<&List>, after: &List, tag: u64) -> Vec<RuleRequest> {
    let base = if before.is_some() {
        Base::Present
    } else {
        Base::Empty
    };
    let mut requests = vec![RuleRequest::Begin {
        list,
        base,
        default: after.default,
    }];
    let number = |rule: &policy::ListRule| rule.rule.number;
    let old: HashMap<u32, &Rule> = before
        .iter()
        .flat_map(|list| &list.rules)
        .map(|rule| (number(rule), &rule.rule))
        .collect();
    let new: HashMap<u32, &Rule> = after
        .rules
        .iter()
        .map(|rule| (number(rule), &rule.rule))
        .collect();
    let old_rules = before.iter().flat_map(|list| &list.rules);
    let remove = old_rules
        .filter(|rule| new.get(&number(rule)) != Some(&&rule.rule))
        .map(number);
    for rules in remove.collect::<Vec<_>>().chunks(MAX_RULES_PER_REQUEST) {
        requests.push(RuleRequest::Remove {
            list,
            rules: rules.to_vec(),
        });
    }
    let add = after
        .rules
        .iter()
        .filter(|rule| old.get(&number(rule)) != Some(&&rule.rule));
    let add: Vec<Rule> = add.map(|rule| rule.rule.clone()).collect();
    for rules in add.chunks(MAX_RULES_PER_REQUEST) {
        requests.push(RuleRequest::Add {
            list,
            rules: rules.to_vec(),
        });
    }
    requests.push(RuleRequest::Commit { list, tag });
    requests
}
