//! Numbers of groups of users by name, as `/etc/group` (group(5)) had them when this process started.
//!
//! Later this process may not open the file: `/etc` has others that are not its business. A group that was
//! made since, or that another service knows, has a number that works at once.

use crate::refusal::Problem;
use management::Group;
use std::collections::BTreeMap;

/// The groups of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups(BTreeMap<String, u32>);

impl Groups {
    /// Reads `/etc/group`; without it, groups have no names.
    #[must_use]
    pub fn of_machine() -> Groups {
        Groups::parse(&std::fs::read_to_string("/etc/group").unwrap_or_default())
    }

    fn parse(text: &str) -> Groups {
        let entry = |line: &str| {
            let mut fields = line.split(':');
            let (name, _password, number) = (fields.next()?, fields.next()?, fields.next()?);
            Some((name.to_owned(), number.parse().ok()?))
        };
        Groups(text.lines().filter_map(entry).collect())
    }

    /// The number of a group.
    ///
    /// # Errors
    /// The group is a name that no group had.
    pub fn number(&self, group: &Group) -> Result<u32, Problem> {
        let text = group.as_str();
        let number = text.parse().ok().or_else(|| self.0.get(text).copied());
        number.ok_or_else(|| Problem::NoGroup(group.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name_and_number() {
        let groups = Groups::parse("root:x:0:\nkvm:x:105:alice,bob\nbroken\nnone:x:many:\n");
        let number = |text: &str| groups.number(&text.parse().expect("a group"));
        assert_eq!(number("kvm"), Ok(105));
        assert_eq!(number("4711"), Ok(4711));
        let problem = number("none").expect_err("it has no number").to_string();
        assert!(problem.contains("no group none"), "{problem}");
    }
}
