//! `hyperswitch policy diff FILE`: rules that the file would take out of the lists in force, and put into
//! them, ports whose lists would be others, and cached decisions that would be others. Nothing changes.

use super::policy_decisions::{self, DecisionDifference};
use super::{Reply, Request, Session};
use crate::output;
use anyhow::{Context, Result, bail};
use management::{PolicyRule, PolicyRules};
use policy::{Judge, List, ListRule, Policies};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::path::Path;

/// What would change in a list.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "PolicyDifference")]
pub struct Difference {
    list: String,
    /// Ports that would have the list and do not have it, and the other way round.
    ports_added: Vec<String>,
    ports_removed: Vec<String>,
    rules: Vec<RuleDifference>,
    /// Rules of different verdicts would be tried in another order.
    reordered: bool,
    /// Kinds of packets that are cached, and would be judged otherwise.
    decisions: Vec<DecisionDifference>,
    /// Cached kinds of packets that were not looked at, as there are many.
    decisions_left_out: u32,
}

impl Difference {
    fn of_list(list: &str) -> Difference {
        Difference {
            list: list.into(),
            ports_added: Vec::new(),
            ports_removed: Vec::new(),
            rules: Vec::new(),
            reordered: false,
            decisions: Vec::new(),
            decisions_left_out: 0,
        }
    }
}

/// A rule that would come, or go.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct RuleDifference {
    comes: bool,
    action: String,
    origin: String,
    #[serde(rename = "match")]
    matches: String,
    /// Line of the file, for a rule that would come.
    line: Option<usize>,
    /// Packets that the rule has decided about, if it would go.
    packets: Option<u64>,
}

/// Carries out the verb.
///
/// # Errors
/// When the file cannot be read or is refused, or there is no instance.
pub fn run(session: &mut Session, file: &Path) -> Result<()> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    let config = ::policy::parse(&text, &name)?;
    let policies = ::policy::compile(&config)?;
    let lines = ::policy::lines(&config, &policies, &text);
    let Reply::Policies(infos) = session.call(&Request::PolicyList)? else {
        bail!("the running instance gave another answer than asked for: is it of another version?");
    };
    let mut running = Vec::with_capacity(infos.len());
    for info in &infos {
        // A list may go while others are shown.
        let policy = info.name.clone();
        if let Ok(Reply::Policy(shown)) = session.call(&Request::PolicyShow { policy }) {
            running.push(shown);
        }
    }
    let mut found = differences(&running, &policies, &lines);
    let judge = Judge::new(&policies)?;
    for info in &infos {
        let judged = policy_decisions::judged(session, info)?;
        let kinds = policy_decisions::differences(&judged.kinds, info, (&policies, &judge), &lines);
        if kinds.is_empty() && judged.further == 0 {
            continue;
        }
        let place = match found.iter().position(|it| it.list == info.name) {
            Some(place) => place,
            None if kinds.is_empty() => continue,
            None => {
                found.push(Difference::of_list(&info.name));
                found.len() - 1
            }
        };
        (found[place].decisions, found[place].decisions_left_out) = (kinds, judged.further);
    }
    if session.json {
        return output::json(&found);
    }
    output::print(&describe(&found, &name))
}

fn differences(running: &[PolicyRules], new: &Policies, lines: &HashMap<String, usize>) -> Vec<Difference> {
    let mut ports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (port, lists) in &new.ports {
        for number in lists.all() {
            if let Some(list) = new.lists.get(&number) {
                ports.entry(&list.name).or_default().insert(port);
            }
        }
    }
    let wanted: BTreeMap<&str, &List> = new.lists.values().map(|list| (&*list.name, list)).collect();
    let running: BTreeMap<&str, &PolicyRules> =
        running.iter().map(|shown| (&*shown.policy.name, shown)).collect();
    let names: BTreeSet<&str> = wanted.keys().chain(running.keys()).copied().collect();
    let none = BTreeSet::new();
    let compare = |name: &str| {
        let (before, after) = (running.get(name).copied(), wanted.get(name).copied());
        let now = ports.get(name).unwrap_or(&none);
        let then: BTreeSet<&str> = before
            .iter()
            .flat_map(|it| &it.policy.ports)
            .map(|it| &**it)
            .collect();
        let (rules, reordered) = rules_of(before, after, new, lines);
        let list = |ports: &mut dyn Iterator<Item = &&str>| ports.map(|port| (*port).to_owned()).collect();
        Difference {
            ports_added: list(&mut now.difference(&then)),
            ports_removed: list(&mut then.difference(now)),
            rules,
            reordered,
            ..Difference::of_list(name)
        }
    };
    let all = names.into_iter().map(compare);
    all.filter(|it| {
        it.reordered || !(it.rules.is_empty() && it.ports_added.is_empty() && it.ports_removed.is_empty())
    })
    .collect()
}

/// A rule is the same if it says the same and is on trial or not as before: its number is a hash of that.
fn rules_of(
    before: Option<&PolicyRules>,
    after: Option<&List>,
    new: &Policies,
    lines: &HashMap<String, usize>,
) -> (Vec<RuleDifference>, bool) {
    let before: Vec<&PolicyRule> = before.iter().flat_map(|shown| &shown.rules).collect();
    let mut coming: Vec<(PolicyRule, Option<usize>)> = Vec::new();
    if let Some(list) = after {
        coming.extend(list.rules.iter().map(|rule| {
            let origin = rule.origin.to_string();
            let line = lines.get(&origin).copied();
            (stated(rule, new), line)
        }));
        coming.push((default(list), None));
    }
    let id = |rule: &PolicyRule| (rule.number, super::policy::action(rule));
    let old_ids: BTreeSet<_> = before.iter().map(|rule| id(rule)).collect();
    let new_ids: BTreeSet<_> = coming.iter().map(|(rule, _)| id(rule)).collect();
    let goes = before.iter().filter(|rule| !new_ids.contains(&id(rule)));
    let comes = coming.iter().filter(|(rule, _)| !old_ids.contains(&id(rule)));
    let difference = |rule: &PolicyRule, comes: bool, line| RuleDifference {
        comes,
        action: super::policy::action(rule),
        origin: rule.origin.clone(),
        matches: rule.matches.clone(),
        line,
        packets: (!comes).then_some(rule.packets),
    };
    let rules = goes
        .map(|rule| difference(rule, false, None))
        .chain(comes.map(|(rule, line)| difference(rule, true, *line)));
    let stay_before = before
        .iter()
        .map(|rule| id(rule))
        .filter(|it| new_ids.contains(it));
    let stay_after = coming
        .iter()
        .map(|(rule, _)| id(rule))
        .filter(|it| old_ids.contains(it));
    (rules.collect(), !stay_before.eq(stay_after))
}

/// A rule as an instance would show it.
fn stated(rule: &ListRule, policies: &Policies) -> PolicyRule {
    PolicyRule {
        number: Some(rule.rule.number),
        origin: rule.origin.to_string(),
        action: rule.rule.verdict.to_string(),
        trial: rule.rule.trial,
        log: rule.rule.log,
        matches: policies.text(&rule.rule.matches),
        packets: 0,
        bytes: 0,
        idle_ms: None,
    }
}

fn default(list: &List) -> PolicyRule {
    PolicyRule {
        number: None,
        origin: "default".into(),
        action: list.default.to_string(),
        trial: false,
        log: false,
        matches: "any packet".into(),
        packets: 0,
        bytes: 0,
        idle_ms: None,
    }
}

fn describe(found: &[Difference], file: &str) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    for difference in found {
        let _ = writeln!(text, "{}", difference.list);
        for (ports, what) in [
            (&difference.ports_added, "gets it"),
            (&difference.ports_removed, "loses it"),
        ] {
            ports.iter().for_each(|port| {
                let _ = writeln!(text, "  port {port} {what}");
            });
        }
        if difference.reordered {
            let _ = writeln!(text, "  rules that stay are tried in another order");
        }
        for rule in &difference.rules {
            let sign = if rule.comes { '+' } else { '-' };
            let mut known = Vec::new();
            known.extend(rule.packets.map(|packets| format!("packets {packets}")));
            known.extend(rule.line.map(|line| format!("{file}:{line}")));
            let known = if known.is_empty() {
                String::new()
            } else {
                format!(" ({})", known.join(", "))
            };
            let RuleDifference {
                action,
                origin,
                matches,
                ..
            } = rule;
            let _ = writeln!(text, "  {sign} {action}: {origin}: {matches}{known}");
        }
        text += &policy_decisions::describe(&difference.decisions, difference.decisions_left_out, file);
    }
    if text.is_empty() {
        text = "no rule differs\n".into();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use management::PolicyInfo;

    const FILE: &str = r#"
[[acl]]
name = "office"
default = "drop"
rule = [
  { action = "drop", protocol = "tcp", destination-port = 23 },
  { action = "allow" },
]

[[switch]]
name = "lan"

[[switch.port]]
name = "web"
type = "vhost-user"
acl-to = "office"
"#;

    fn compiled(text: &str) -> (Policies, HashMap<String, usize>) {
        let config = ::policy::parse(text, "a.toml").unwrap();
        let policies = ::policy::compile(&config).unwrap();
        let lines = ::policy::lines(&config, &policies, text);
        (policies, lines)
    }

    /// Lists as an instance would show them, each rule with a packet.
    fn shown(policies: &Policies, ports: &[&str]) -> Vec<PolicyRules> {
        let lists = policies.lists.iter();
        let shown = lists.map(|(number, list)| {
            let mut rules: Vec<_> = list.rules.iter().map(|rule| stated(rule, policies)).collect();
            rules.push(default(list));
            rules.iter_mut().for_each(|rule| rule.packets = 1);
            let policy = PolicyInfo {
                name: list.name.clone(),
                number: number.0,
                rules: list.rules.len(),
                default: list.default.to_string(),
                ports: ports.iter().map(|port| (*port).to_owned()).collect(),
                state: "in force".into(),
            };
            PolicyRules { policy, rules }
        });
        shown.collect()
    }

    #[test]
    fn rules_that_come_and_go_are_named_with_lines_and_packets() {
        let (before, lines) = compiled(FILE);
        let running = shown(&before, &["web"]);
        let name = running[0].policy.name.clone();
        assert_eq!(
            describe(&differences(&running, &before, &lines), "a.toml"),
            "no rule differs\n"
        );

        let (after, lines) = compiled(&FILE.replace("23", "80"));
        let found = describe(&differences(&running, &after, &lines), "a.toml");
        let rules: Vec<&str> = found.lines().collect();
        assert_eq!((rules.len(), rules[0]), (3, &*name), "{found}");
        assert!(
            rules[1].starts_with("  - drop: acl office rule 1: ") && rules[1].ends_with("(packets 1)"),
            "{found}"
        );
        assert!(
            rules[2].starts_with("  + drop: acl office rule 1: ") && rules[2].ends_with("(a.toml:6)"),
            "{found}"
        );

        let without = FILE.replace("acl-to = \"office\"\n", "");
        let (after, lines) = compiled(&without);
        let found = differences(&running, &after, &lines);
        assert_eq!(found[0].ports_removed, ["web"]);
        assert_eq!(found[0].rules.len(), running[0].rules.len(), "the list goes");
    }

    #[test]
    fn trial_and_order_are_differences() {
        let (before, _) = compiled(FILE);
        let running = shown(&before, &["web"]);
        let (after, lines) = compiled(&FILE.replace("= 23 }", "= 23, trial = true }"));
        let found = describe(&differences(&running, &after, &lines), "a.toml");
        assert!(found.contains("+ drop (trial): acl office rule 1"), "{found}");
        let (one, other) = (
            "  { action = \"drop\", protocol = \"tcp\", destination-port = 23 },\n",
            "  { action = \"allow\" },\n",
        );
        let turned = FILE.replace(&format!("{one}{other}"), &format!("{other}{one}"));
        let (after, lines) = compiled(&turned);
        let found = differences(&running, &after, &lines);
        assert!(found[0].reordered && found[0].rules.is_empty(), "{found:?}");
    }
}
