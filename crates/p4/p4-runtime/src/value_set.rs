//! Value sets of the parser: sets of matches, read and replaced as a whole.

use crate::arbitration::Scope;
use crate::entry;
use crate::failure::{Done, Failure};
use crate::pipeline::{Changed, Pipeline, find};
use crate::proto::{Kind, ValueSetEntry, ValueSetMember};
use crate::read::Reader;
use crate::write::Verb;
use p4_ir::{ExprId, Key, KeyMatch, ValueSet};
use std::collections::HashSet;
use tonic::Code;

impl Pipeline {
    /// Replaces the members of a value set.
    pub(crate) fn write_value_set(&mut self, verb: Verb, given: &ValueSetEntry) -> Done<()> {
        let sets = self.program.value_sets.iter().map(|set| &set.identity);
        let number = find("value set", sets, given.value_set_id)?;
        if verb != Verb::Modify {
            return Err(Failure::invalid("value sets are modified only"));
        }
        let set = &mut self.program.value_sets[number];
        let name = set.identity.name.clone();
        let members = read_members(set, &given.members);
        set.members = members.map_err(|failure| failure.within(format_args!("value set {name}")))?;
        self.changed = Changed::All;
        Ok(())
    }

    /// Finds value sets.
    pub(crate) fn read_value_sets(
        &self,
        given: &ValueSetEntry,
        scope: &Scope,
        reader: &mut dyn Reader,
    ) -> Done<()> {
        let sets = &self.program.value_sets;
        let all = sets.iter().map(|set| &set.identity);
        for number in self.meant("value set", all, given.value_set_id, scope)? {
            let set = &sets[number];
            let parts = parts(set);
            let member = |own: &Vec<KeyMatch>| ValueSetMember {
                r#match: entry::write_matches(&parts, own),
            };
            reader.found(Kind::ValueSet(Box::new(ValueSetEntry {
                value_set_id: set.identity.id.unwrap_or(0),
                members: set.members.iter().map(member).collect(),
            })))?;
        }
        Ok(())
    }
}

/// The parts of a value set as keys, which P4Info numbers from 1 on.
fn parts(set: &ValueSet) -> Vec<Key> {
    let part = |(id, (name, width, kind)): (u32, &(String, u16, p4_ir::MatchKind))| Key {
        name: name.clone(),
        id,
        kind: *kind,
        value: ExprId(0),
        width: *width,
    };
    (1..).zip(&set.parts).map(part).collect()
}

fn read_members(set: &ValueSet, given: &[ValueSetMember]) -> Done<Vec<Vec<KeyMatch>>> {
    let most = set.size.min(p4_ir::limits::VALUE_SET) as usize;
    if given.len() > most {
        return Err(Failure::exhausted(format_args!("it has {most} members at most")));
    }
    let (parts, mut seen) = (parts(set), HashSet::new());
    let member = |one: &ValueSetMember| {
        let own = entry::read_matches(&parts, &one.r#match)?;
        match seen.insert(own.clone()) {
            true => Ok(own),
            false => Err(Failure::new(Code::AlreadyExists, "a member is there twice")),
        }
    };
    given.iter().map(member).collect()
}

#[cfg(test)]
#[path = "value_set_tests.rs"]
mod tests;
