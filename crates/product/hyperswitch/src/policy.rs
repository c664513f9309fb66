//! `hyperswitch policy ...`: what policies say, before and while they hold.

use crate::cli::PolicyVerb;
use crate::output;
use anyhow::{Context, Result};
use std::fmt::Write;
use std::path::Path;

/// Carries out a verb.
///
/// # Errors
/// When a file cannot be read or is refused.
pub fn run(verb: &PolicyVerb, json: bool) -> Result<()> {
    match verb {
        PolicyVerb::Check { file } => check(file, json),
    }
}

fn check(file: &Path, json: bool) -> Result<()> {
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
        return output::json(&serde_json::json!({
            "ports": ports, "lists": lists, "rules": rules, "sets": policies.sets.len(), "findings": found,
        }));
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
