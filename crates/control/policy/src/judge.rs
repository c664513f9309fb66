//! What lists say about packets that others have judged.
//!
//! A cached decision is about a kind of packets: those that agree in some bits. A list that compares no
//! other bits judges all of them alike, as it judges one. Where it compares more, a rule that may match some
//! of them says what becomes of these.

use crate::lists::{ListRule, Policies, SetMembers};
use flow::{FlowKey, FlowMask, PortId, Unseen};
use rule_list::{
    Builder, ListChange, ListId, Member, Outcome, Refused, RuleList, RuleLists, SetKind, Verdict,
};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

/// The lists of policies, made as a data plane makes them.
#[derive(Debug)]
pub struct Judge<'a> {
    policies: &'a Policies,
    lists: RuleLists,
    /// Rules of each list in the order in which they are tried.
    rules: HashMap<ListId, Vec<Tried<'a>>>,
    /// Numbers of ports, which mean nothing outside.
    ports: HashMap<&'a str, PortId>,
}

#[derive(Debug)]
struct Tried<'a> {
    rule: &'a ListRule,
    /// The change that adds the rule to an empty list: it concerns what the rule may match.
    comes: ListChange,
}

/// What becomes of a kind of packets.
#[derive(Debug, PartialEq, Eq)]
pub struct Judgement<'a> {
    /// What the list says about them.
    pub verdict: Verdict,
    /// The rule that says so; `None` for the default.
    pub rule: Option<&'a ListRule>,
    /// Whether this is about all of them, or about some.
    pub of_all: bool,
}

impl<'a> Judge<'a> {
    /// Makes the lists.
    ///
    /// # Errors
    /// As a data plane refuses lists and sets.
    pub fn new(policies: &'a Policies) -> Result<Judge<'a>, Refused> {
        let mut judge = Judge {
            policies,
            lists: RuleLists::default(),
            rules: HashMap::new(),
            ports: HashMap::new(),
        };
        for (number, set) in &policies.sets {
            let (kind, members) = judge.members(&set.members);
            let sets = judge.lists.sets_mut();
            sets.create(*number, kind)?;
            for member in members {
                sets.insert(*number, member)?;
            }
        }
        let empty = Arc::new(Builder::new(Verdict::Allow).compile().finish()?.0);
        for (number, list) in &policies.lists {
            let mut builder = Builder::new(list.default);
            let mut tried = Vec::with_capacity(list.rules.len());
            for rule in &list.rules {
                builder.add(rule.rule.clone())?;
                let comes = change(rule, &empty)?;
                tried.push(Tried { rule, comes });
            }
            tried.sort_by_key(|tried| Reverse(tried.rule.rule.priority));
            judge.rules.insert(*number, tried);
            judge.lists.put(*number, builder.compile().finish()?.0)?;
        }
        Ok(judge)
    }

    fn members(&mut self, members: &'a SetMembers) -> (SetKind, Vec<Member>) {
        match members {
            SetMembers::Addresses(all) => (
                SetKind::Addresses,
                all.iter().copied().map(Member::Address).collect(),
            ),
            SetMembers::Macs(all) => (SetKind::Macs, all.iter().copied().map(Member::Mac).collect()),
            SetMembers::Ports(all) => {
                let members = all.iter().map(|name| Member::Port(self.number(name))).collect();
                (SetKind::Ports, members)
            }
        }
    }

    fn number(&mut self, port: &'a str) -> PortId {
        let next = u32::try_from(self.ports.len() + 1).unwrap_or(u32::MAX);
        *self
            .ports
            .entry(port)
            .or_insert(PortId(next.min(PortId::LIMIT - 1)))
    }

    /// What a list says about packets from a port that agree with `key` in the bits `noted`, if it says about
    /// any of them something else than `before`: allow, drop or reject. Without a list, packets pass.
    pub fn judge(
        &self,
        list: Option<ListId>,
        (from, key, noted): (&str, &FlowKey, &FlowMask),
        before: &str,
    ) -> Option<Judgement<'a>> {
        let before = decision(before)?;
        let pass = Judgement {
            verdict: Verdict::Allow,
            rule: None,
            of_all: true,
        };
        let found =
            list.and_then(|list| Some((list, self.policies.lists.get(&list)?, self.rules.get(&list)?)));
        let Some((list, stated, rules)) = found else {
            return Some(pass).filter(|pass| pass.verdict != before);
        };
        let (mut key, mut noted) = (*key, *noted);
        // No rule is about a port that no set has.
        key.set_in_port(self.ports.get(from).map_or(0, |port| port.0));
        noted.0.set_in_port(u32::MAX);
        let answer = self.lists.look_up(list, &key, Unseen::Nothing)?;
        let mut rule = match answer.outcome {
            Outcome::Rule(place) => rules.get(usize::from(place)),
            Outcome::Default | Outcome::Unknown(_) => None,
        };
        let of_all = noted.union(&answer.noted) == noted;
        if !of_all {
            let other = rules.iter().find(|tried| {
                let differs = tried.rule.rule.verdict != before && !tried.rule.rule.trial;
                differs && tried.comes.may_concern(&key, &noted)
            });
            rule = other.or(rule);
        }
        let rule = rule.map(|tried| tried.rule);
        let verdict = rule.map_or(stated.default, |rule| rule.rule.verdict);
        (verdict != before).then_some(Judgement {
            verdict,
            rule,
            of_all,
        })
    }
}

fn decision(text: &str) -> Option<Verdict> {
    let mut decisions = [Verdict::Allow, Verdict::Drop, Verdict::Reject].into_iter();
    decisions.find(|verdict| verdict.to_string() == text)
}

fn change(rule: &ListRule, empty: &Arc<RuleList>) -> Result<ListChange, Refused> {
    let mut builder = Builder::from_list(Arc::clone(empty));
    builder.add(rule.rule.clone())?;
    Ok(builder.compile().finish()?.1)
}
