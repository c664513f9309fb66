//! What changes from one state of policies to another, in words for users.

use crate::lists::{List, Policies, SetMembers};
use crate::mirrors::PortMirror;
use rule_list::Rule;
use std::collections::{BTreeMap, BTreeSet};

/// Lists and sets that come, go or change, one line each.
pub fn differences(old: &Policies, new: &Policies) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, list) in &new.lists {
        let name = &list.name;
        match old.lists.get(number) {
            None => lines.push(format!("policy {name} added, rules {}", list.rules.len())),
            Some(before) if before != list => {
                lines.push(format!("policy {name} changed{}", changed(before, list)))
            }
            Some(_) => {}
        }
    }
    for (number, set) in &new.sets {
        let name = &set.name;
        match old.sets.get(number) {
            None => lines.push(format!("set {name} added, members {}", count(&set.members))),
            Some(before) if before != set => lines.push(format!(
                "set {name} changed, members {} before, {} now",
                count(&before.members),
                count(&set.members)
            )),
            Some(_) => {}
        }
    }
    let lists = old
        .lists
        .iter()
        .filter(|(number, _)| !new.lists.contains_key(number));
    lines.extend(lists.map(|(_, list)| format!("policy {} removed", list.name)));
    let sets = old
        .sets
        .iter()
        .filter(|(number, _)| !new.sets.contains_key(number));
    lines.extend(sets.map(|(_, set)| format!("set {} removed", set.name)));
    lines.extend(mirrors(old, new));
    lines
}

/// Mirrors that come, go or change, with the number of their sources.
fn mirrors(old: &Policies, new: &Policies) -> Vec<String> {
    let of = |policies: &Policies| {
        let mut all: BTreeMap<String, Vec<(String, PortMirror)>> = BTreeMap::new();
        for (source, mirrors) in &policies.mirrors {
            for mirror in mirrors {
                let sources = all.entry(mirror.name.clone()).or_default();
                sources.push((source.clone(), mirror.clone()));
            }
        }
        all
    };
    let (old, new) = (of(old), of(new));
    let mut lines = Vec::new();
    for (name, sources) in &new {
        match old.get(name) {
            None => lines.push(format!("mirror {name} added, sources {}", sources.len())),
            Some(before) if before != sources => lines.push(format!("mirror {name} changed")),
            Some(_) => {}
        }
    }
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    lines.extend(gone.map(|name| format!("mirror {name} removed")));
    lines
}

fn changed(old: &List, new: &List) -> String {
    let rules = |list: &List| -> BTreeMap<u32, Rule> {
        list.rules
            .iter()
            .map(|rule| (rule.rule.number, rule.rule.clone()))
            .collect()
    };
    let (old_rules, new_rules) = (rules(old), rules(new));
    let numbers = |rules: &BTreeMap<u32, Rule>| rules.keys().copied().collect::<BTreeSet<u32>>();
    let (before, after) = (numbers(&old_rules), numbers(&new_rules));
    let moved = before
        .intersection(&after)
        .filter(|number| old_rules[number] != new_rules[number])
        .count();
    let parts = [
        (after.difference(&before).count(), "added"),
        (before.difference(&after).count(), "removed"),
        (moved, "moved or on trial"),
    ];
    let mut text = String::new();
    for (count, what) in parts.into_iter().filter(|(count, _)| *count > 0) {
        text += &format!(", rules {what} {count}");
    }
    if old.default != new.default {
        text += &format!(", default {}", new.default);
    }
    text
}

fn count(members: &SetMembers) -> usize {
    match members {
        SetMembers::Addresses(all) => all.len(),
        SetMembers::Macs(all) => all.len(),
        SetMembers::Ports(all) => all.len(),
    }
}
