//! `hyperswitch policy ...`: policies of a file, and those that hold.

use crate::output::{self, Table, duration, or_dash};
use anyhow::{Context, Result};
use management::{PolicyInfo, PolicyRule, PolicyRules};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// Policies of a file, as JSON.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PoliciesChecked")]
pub struct Checked {
    /// Number of ports with policies.
    ports: usize,
    lists: usize,
    rules: usize,
    sets: usize,
    /// What the file says without effect, with file, line and column.
    findings: Vec<String>,
}

/// Checks the policies of a file.
///
/// # Errors
/// When the file cannot be read, or is refused.
pub fn check(file: &Path, json: bool) -> Result<()> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    let config = ::policy::parse(&text, &name)?;
    let policies = ::policy::compile(&config)?;
    let found: Vec<String> = ::policy::findings(&config, &text, &name)
        .iter()
        .map(ToString::to_string)
        .collect();
    let rules: usize = policies.lists.values().map(|list| list.rules.len()).sum();
    let (lists, ports) = (policies.lists.len(), policies.ports.len());
    if json {
        return output::json(&Checked {
            ports,
            lists,
            rules,
            sets: policies.sets.len(),
            findings: found,
        });
    }
    let mut shown = String::new();
    for finding in &found {
        // Writing to a string does not fail.
        let _ = writeln!(shown, "{finding}");
    }
    let sets = policies.sets.len();
    let _ = writeln!(
        shown,
        "{name}: ports with policies {ports}, lists {lists}, rules {rules}, sets {sets}"
    );
    output::print(&shown)
}

/// All lists.
pub fn lists(lists: &[PolicyInfo]) -> String {
    let mut table = Table::new(&["NAME", "RULES", "DEFAULT", "PORTS", "STATE"]);
    for list in lists {
        table.row([
            list.name.clone(),
            list.rules.to_string(),
            list.default.clone(),
            ports(list),
            list.state.clone(),
        ]);
    }
    table.to_string()
}

/// The rules of a list.
pub fn rules(shown: &PolicyRules) -> String {
    let mut table = Table::new(&["ACTION", "PACKETS", "BYTES", "IDLE", "ORIGIN", "MATCH"]);
    for rule in &shown.rules {
        table.row([
            action(rule),
            rule.packets.to_string(),
            rule.bytes.to_string(),
            or_dash(rule.idle_ms.map(|idle_ms| duration(idle_ms / 1000))),
            rule.origin.clone(),
            rule.matches.clone(),
        ]);
    }
    let list = &shown.policy;
    format!("{}: {}, at {}\n{table}", list.name, list.state, ports(list))
}

/// What a rule does, with what it does besides.
pub fn action(rule: &PolicyRule) -> String {
    let besides = [(rule.trial, " (trial)"), (rule.log, " (log)")];
    let besides = besides.into_iter().filter_map(|(is, what)| is.then_some(what));
    [rule.action.as_str()].into_iter().chain(besides).collect()
}

fn ports(list: &PolicyInfo) -> String {
    or_dash((!list.ports.is_empty()).then(|| list.ports.join(" ")))
}
