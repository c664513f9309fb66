//! Lines of a file that rules come from.

use crate::compile::acl_place;
use crate::groups;
use crate::lists::{Origin, Policies};
use configuration::{Config, error_at};
use std::collections::HashMap;

/// The line, counted from 1, at which a file states a rule of an access control list or of a group, by the
/// rule's origin as text. Of a configuration that [`parse`](crate::parse) takes.
pub fn lines(config: &Config, policies: &Policies, text: &str) -> HashMap<String, usize> {
    let rules = policies.lists.values().flat_map(|list| &list.rules);
    let mut lines = HashMap::new();
    for rule in rules {
        let Some(path) = path(config, &rule.origin) else {
            continue;
        };
        lines
            .entry(rule.origin.to_string())
            .or_insert_with(|| error_at(text, "", &path, String::new()).line);
    }
    lines
}

/// `None` for rules that nobody stated one by one.
fn path(config: &Config, origin: &Origin) -> Option<[configuration::PathSegment; 4]> {
    match origin {
        Origin::Acl(name, place) => {
            let acl = config.acls.iter().position(|acl| acl.name == *name)?;
            Some(acl_place(acl, place - 1))
        }
        Origin::Group(name, direction, place) | Origin::Replies(name, direction, place) => {
            let group = config.groups.iter().position(|group| group.name == *name)?;
            Some(groups::place(group, *direction, place - 1))
        }
        Origin::Member
        | Origin::Guard(_)
        | Origin::Hidden
        | Origin::Mark
        | Origin::Default
        | Origin::Leases => None,
    }
}
