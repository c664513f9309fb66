//! Policies as users see them: lists, their rules and what these counted.

use crate::control::Control;
use crate::pending::Question;
use crate::refusal::Refusal;
use crate::serve::Served;
use crate::users::Token;
use control_protocol::data_plane::Request;
use control_protocol::rules::{MAX_JUDGED, RuleAnswer, RuleRequest};
use flow::{FlowStats, ListId};
use management::{JudgedKind, PolicyInfo, PolicyJudged, PolicyRule, PolicyRules, Reply};
use policy::{List, ListRule};
use rule_list::{JudgedPackets, MAX_RULES};
use std::collections::HashMap;

impl Control {
    /// All lists.
    pub fn policy_list(&self) -> Vec<PolicyInfo> {
        let mut users: HashMap<ListId, Vec<String>> = HashMap::new();
        for (port, lists) in &self.state.policies.ports {
            for list in lists.all() {
                users.entry(list).or_default().push(port.clone());
            }
        }
        let lists = self.state.policies.lists.iter();
        let info = |(number, list): (&ListId, &List)| {
            let ports = users.remove(number).unwrap_or_default();
            self.policy_info(*number, list, ports)
        };
        let mut all: Vec<_> = lists.map(info).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    fn policy_info(&self, number: ListId, list: &List, ports: Vec<String>) -> PolicyInfo {
        PolicyInfo {
            name: list.name.clone(),
            number: number.0,
            rules: list.rules.len(),
            default: list.default.to_string(),
            ports,
            state: self.policies.state_of(number),
        }
    }

    /// The lists that judge a port's packets, and its mirrors, for users.
    pub fn policies_of(&self, port: &str) -> Vec<String> {
        let lists = self.state.policies.ports.get(port).copied().unwrap_or_default();
        let named = lists.all().filter_map(|number| {
            let list = self.state.policies.lists.get(&number)?;
            Some(format!("{} ({})", list.name, self.policies.state_of(number)))
        });
        let mirrors = self.state.policies.mirrors.get(port).into_iter().flatten();
        named.chain(mirrors.map(ToString::to_string)).collect()
    }

    /// The name of a list, or what is known of one that is not wanted.
    pub fn list_name(&self, list: ListId) -> String {
        let known = self.state.policies.lists.get(&list);
        known.map_or_else(|| format!("list {list}"), |list| list.name.clone())
    }

    /// Origin and conditions of a rule, or what is known of one that is not wanted.
    pub fn rule_name(&self, list: ListId, number: u32) -> String {
        let policies = &self.state.policies;
        let rules = policies.lists.get(&list).map_or(&[][..], |list| &list.rules);
        let rule = rules.iter().find(|rule| rule.rule.number == number);
        rule.map_or_else(
            || format!("rule {number}"),
            |rule| format!("{}: {}", rule.origin, policies.text(&rule.rule.matches)),
        )
    }

    /// The list with that name, or the list of guards of a port with that name.
    fn policy(&self, name: &str) -> Result<PolicyInfo, Refusal> {
        let guards = format!("guards of {name}");
        let mut infos = self.policy_list().into_iter();
        let found = infos.find(|info| info.name == name || info.name == guards);
        found.ok_or_else(|| Refusal::NoPolicy(name.into()))
    }

    /// Asks for kinds of packets that cached decisions of a list are about.
    pub fn policy_judged(&mut self, token: Token, name: &str, from: u32) -> Served {
        let list = ListId(self.policy(name)?.number);
        let request = Request::Rules(RuleRequest::Judged { list, from });
        self.ask_user(token, request, vec![], Question::Judged(list))
    }

    /// Kinds of packets have arrived.
    pub fn judged_reply(
        &self,
        list: ListId,
        packets: Vec<JudgedPackets>,
        (further, next): (u32, Option<u32>),
    ) -> Reply {
        let kind = |packets: JudgedPackets| JudgedKind {
            in_port: self.port_name(packets.in_port),
            key: packets.key,
            noted: packets.noted,
            was_changed: packets.was_changed,
            rule: packets.rule,
            origin: packets.rule.map_or_else(
                || "default".into(),
                |number| self.rule_origin(list, number).unwrap_or_default(),
            ),
            action: packets.verdict.to_string(),
            outputs: packets.outputs.iter().map(|port| self.port_name(*port)).collect(),
        };
        let kinds = packets.into_iter().take(MAX_JUDGED).map(kind).collect();
        Reply::PolicyJudged(PolicyJudged { kinds, further, next })
    }

    /// Where a rule comes from.
    pub fn rule_origin(&self, list: ListId, number: u32) -> Option<String> {
        let list = self.state.policies.lists.get(&list)?;
        let rule = list.rules.iter().find(|rule| rule.rule.number == number)?;
        Some(rule.origin.to_string())
    }

    /// Asks for what the rules of a list counted.
    pub fn policy_show(&mut self, token: Token, name: &str) -> Served {
        let policy = self.policy(name)?;
        let list = ListId(policy.number);
        let shown = PolicyRules {
            policy,
            rules: Vec::new(),
        };
        self.ask_page(token, list, shown)
    }

    fn ask_page(&mut self, token: Token, list: ListId, shown: PolicyRules) -> Served {
        // Lists are bounded, and so are pages of one.
        let from = u32::try_from(shown.rules.len()).unwrap_or(u32::MAX);
        let request = Request::Rules(RuleRequest::Rules { list, from });
        self.ask_user(token, request, vec![], Question::Policy(Box::new((list, shown))))
    }

    /// A page of rules has arrived.
    pub fn policy_page(
        &mut self,
        token: Token,
        (list, mut shown): (ListId, PolicyRules),
        page: RuleAnswer,
    ) -> Served {
        let RuleAnswer::Rules { default, rules, more } = page else {
            return Err(Refusal::WrongAnswer);
        };
        let policies = &self.state.policies;
        let wanted = policies.lists.get(&list).map_or(&[][..], |list| &list.rules);
        let origins: HashMap<u32, &ListRule> = wanted.iter().map(|rule| (rule.rule.number, rule)).collect();
        let goes_on = more && !rules.is_empty() && shown.rules.len() + rules.len() <= MAX_RULES;
        shown.rules.extend(rules.iter().map(|(rule, stats)| {
            let origin = origins.get(&rule.number).map(|rule| rule.origin.to_string());
            counted(
                PolicyRule {
                    number: Some(rule.number),
                    origin: origin.unwrap_or_default(),
                    action: rule.verdict.to_string(),
                    trial: rule.trial,
                    log: rule.log,
                    matches: policies.text(&rule.matches),
                    packets: 0,
                    bytes: 0,
                    idle_ms: None,
                },
                stats,
            )
        }));
        if goes_on {
            return self.ask_page(token, list, shown);
        }
        let last = PolicyRule {
            number: None,
            origin: "default".into(),
            action: shown.policy.default.clone(),
            trial: false,
            log: false,
            matches: "any packet".into(),
            packets: 0,
            bytes: 0,
            idle_ms: None,
        };
        shown.rules.push(counted(last, &default));
        Ok(Some(Reply::Policy(shown)))
    }
}

fn counted(rule: PolicyRule, stats: &FlowStats) -> PolicyRule {
    PolicyRule {
        packets: stats.packets,
        bytes: stats.bytes,
        idle_ms: stats.idle_ms,
        ..rule
    }
}
