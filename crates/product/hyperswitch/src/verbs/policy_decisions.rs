//! Cached decisions that another configuration's lists would make otherwise, each with its packets.
//!
//! A decision was made by the list that its port has, so it is judged by the list that the port would have.
//! A decision is about packets that agree in some bits. Where the other list compares more bits, some of the
//! packets may be judged otherwise, and the decision is told as one of these.

use super::{Reply, Request, Session};
use anyhow::{Result, bail};
use flow::{ListId, NamedPolicy};
use management::{JudgedKind, PolicyInfo, PolicyJudged};
use policy::{Judge, ListRule, Policies, PortLists};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// Decisions of a list that are shown as text.
const SHOWN: usize = 20;

/// A decision that would be another one.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct DecisionDifference {
    /// The port that the packets come from.
    pub from: String,
    /// Ports that they go to, or the first ones.
    pub to: Vec<String>,
    /// What they have in common.
    pub packets: String,
    /// Whether all of them would be judged otherwise, or some.
    pub all: bool,
    /// What happens to them.
    pub action: String,
    /// The rule that says so.
    pub origin: String,
    /// What would happen to them.
    pub new_action: String,
    /// The rule that would say so.
    pub new_origin: String,
    /// Line of the file that has this rule.
    pub line: Option<usize>,
}

/// Kinds of packets that cached decisions of a list are about.
///
/// # Errors
/// When the instance goes away.
pub fn judged(session: &mut Session<'_>, list: &PolicyInfo) -> Result<PolicyJudged> {
    let mut all = PolicyJudged {
        kinds: Vec::new(),
        further: 0,
        next: None,
    };
    let mut from = 0;
    loop {
        let policy = list.name.clone();
        let page = match session.call(&Request::PolicyJudged { policy, from }) {
            Ok(Reply::PolicyJudged(page)) => page,
            Ok(_) => {
                bail!("the running instance gave another answer than asked for: is it of another version?")
            }
            // A list may go while others are asked for.
            Err(management::ClientError::Refused(_)) => return Ok(all),
            Err(error) => return Err(error.into()),
        };
        all.kinds.extend(page.kinds);
        all.further += page.further;
        match page.next {
            Some(next) if next > from => from = next,
            _ => return Ok(all),
        }
    }
}

/// The part of a port's lists that a list is, by its name.
fn part(name: &str) -> Option<fn(&PortLists) -> Option<ListId>> {
    let begins = |start: &str| name.starts_with(start);
    let ends = |end: &str| begins("port-policy ") && name.ends_with(end);
    if begins("guards of ") || ends(": guards") {
        Some(|lists| lists.guards)
    } else if begins("from: ") || ends(": from") {
        Some(|lists| lists.from)
    } else if begins("to: ") || ends(": to") {
        Some(|lists| lists.to)
    } else {
        // Lists of marks and of mirrors drop nothing.
        None
    }
}

/// The list that each port of a list would have in its place. Without a port: ports that others have.
fn successors(list: &PolicyInfo, new: &Policies) -> BTreeMap<Option<ListId>, Vec<Option<String>>> {
    let mut successors: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let Some(part) = part(&list.name) else {
        return successors;
    };
    for port in &list.ports {
        let successor = new.ports.get(port).and_then(part);
        successors.entry(successor).or_default().push(Some(port.clone()));
    }
    let named = list
        .name
        .strip_prefix("port-policy ")
        .and_then(|name| name.split_once(": "));
    if let Some((name, _)) = named {
        let successor = part(&NamedPolicy::of(name).into());
        if successor.is_some_and(|successor| new.lists.contains_key(&successor)) {
            successors.entry(successor).or_default().push(None);
        }
    }
    successors
}

/// Decisions of a list that would be others.
pub fn differences(
    kinds: &[JudgedKind],
    list: &PolicyInfo,
    (new, judge): (&Policies, &Judge<'_>),
    lines: &HashMap<String, usize>,
) -> Vec<DecisionDifference> {
    let is_to = list.name.starts_with("to: ") || list.name.ends_with(": to");
    let mut found = Vec::new();
    for (successor, ports) in successors(list, new) {
        for kind in kinds.iter().filter(|kind| !kind.was_changed) {
            let concerns = |port: &Option<String>| match port {
                None => true,
                // What the list drops goes nowhere, and may have been for any of its ports.
                Some(port) if is_to => kind.outputs.is_empty() || kind.outputs.contains(port),
                Some(port) => kind.in_port == *port,
            };
            if !ports.iter().any(concerns) {
                continue;
            }
            let packets = (kind.in_port.as_str(), &kind.key, &kind.noted);
            let Some(judgement) = judge.judge(successor, packets, &kind.action) else {
                continue;
            };
            let new_origin = judgement
                .rule
                .map_or("default".into(), |rule: &ListRule| rule.origin.to_string());
            found.push(DecisionDifference {
                from: kind.in_port.clone(),
                to: kind.outputs.clone(),
                packets: kind.key.display(&kind.noted).to_string(),
                all: judgement.of_all,
                action: kind.action.clone(),
                origin: kind.origin.clone(),
                new_action: judgement.verdict.to_string(),
                line: lines.get(&new_origin).copied(),
                new_origin,
            });
        }
    }
    found
}

/// The decisions of a list as text.
pub fn describe(decisions: &[DecisionDifference], left_out: u32, file: &str) -> String {
    let mut text = String::new();
    for decision in decisions.iter().take(SHOWN) {
        let DecisionDifference {
            from,
            to,
            packets,
            action,
            origin,
            new_action,
            new_origin,
            ..
        } = decision;
        let some = if decision.all { "" } else { "some of " };
        let to = if to.is_empty() {
            String::new()
        } else {
            format!(" to {}", to.join(" "))
        };
        let line = decision
            .line
            .map(|line| format!(", {file}:{line}"))
            .unwrap_or_default();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  ! {some}packets from {from}{to}, {packets}: {action} ({origin}) becomes {new_action} ({new_origin}{line})"
        );
    }
    if decisions.len() > SHOWN {
        let _ = writeln!(text, "  ! and {} kinds of packets more", decisions.len() - SHOWN);
    }
    if left_out > 0 {
        let _ = writeln!(text, "  ! kinds of packets that were not looked at: {left_out}");
    }
    text
}

/// Kinds of packets, one on each line.
pub fn kinds(judged: &PolicyJudged) -> String {
    let mut text = String::new();
    for kind in &judged.kinds {
        let packets = kind.key.display(&kind.noted);
        let _ = writeln!(
            text,
            "from {}: {packets}: {} ({})",
            kind.in_port, kind.action, kind.origin
        );
    }
    text
}
