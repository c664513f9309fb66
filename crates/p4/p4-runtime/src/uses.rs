//! What refers to members and groups of action profiles, counted beside the program: so that none that is in
//! use is deleted, and a profile that is full says so to the update that is too much.

use crate::failure::{Done, Failure};
use p4_ir::{ActionGroup, ActionProfile, EntryTarget, Implementation, Program, Share, Table};
use std::collections::HashMap;

/// What refers to members and groups of an action profile, and what has no number there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    pub members: HashMap<u32, usize>,
    pub groups: HashMap<u32, usize>,
    /// Entries with actions of their own, and these actions.
    one_shots: usize,
    pub choices: usize,
    /// Sum of weights of all groups, those of entries' own among them.
    weights: u64,
}

impl Uses {
    /// Uses of all profiles of a program.
    pub fn of(program: &Program) -> Vec<Uses> {
        let mut all = vec![Uses::default(); program.profiles.len()];
        for (uses, profile) in all.iter_mut().zip(&program.profiles) {
            profile.groups.values().for_each(|group| uses.add_group(group));
        }
        for table in &program.tables {
            if let Some(uses) = profile_of(table).and_then(|profile| all.get_mut(profile)) {
                table.entries.iter().for_each(|entry| uses.add(&entry.target));
            }
        }
        all
    }

    /// Counts an entry's target.
    pub fn add(&mut self, target: &EntryTarget) {
        match target {
            EntryTarget::Action(_) => {}
            EntryTarget::Member(number) => *self.members.entry(*number).or_default() += 1,
            EntryTarget::Group(number) => *self.groups.entry(*number).or_default() += 1,
            EntryTarget::Choices(all) => {
                self.one_shots += 1;
                self.choices += all.len();
                self.weights += sum(all.iter().map(|one| &one.share));
            }
        }
    }

    /// Forgets an entry's target.
    pub fn remove(&mut self, target: &EntryTarget) {
        match target {
            EntryTarget::Action(_) => {}
            EntryTarget::Member(number) => release(&mut self.members, *number),
            EntryTarget::Group(number) => release(&mut self.groups, *number),
            EntryTarget::Choices(all) => {
                self.one_shots -= 1;
                self.choices -= all.len();
                self.weights -= sum(all.iter().map(|one| &one.share));
            }
        }
    }

    pub fn add_group(&mut self, group: &ActionGroup) {
        for member in group.members.keys() {
            *self.members.entry(*member).or_default() += 1;
        }
        self.weights += sum(group.members.values());
    }

    pub fn remove_group(&mut self, group: &ActionGroup) {
        group
            .members
            .keys()
            .for_each(|member| release(&mut self.members, *member));
        self.weights -= sum(group.members.values());
    }

    /// Refuses what is too much for a profile.
    pub fn fit(&self, profile: &ActionProfile) -> Done<()> {
        let size = profile.size as usize;
        let full =
            |what: &str, most: u64| Err(Failure::exhausted(format_args!("it has {most} {what} at most")));
        if profile.members.len() + self.choices > size {
            return full("members", size as u64);
        }
        if profile.groups.len() + self.one_shots > size {
            return full("groups", size as u64);
        }
        let most = u64::from(profile.size.max(profile.group_limit()));
        match self.weights > most {
            true => full("members of all groups, counted with their weights,", most),
            false => Ok(()),
        }
    }
}

fn release(uses: &mut HashMap<u32, usize>, number: u32) {
    if let Some(count) = uses.get_mut(&number) {
        *count -= 1;
        if *count == 0 {
            uses.remove(&number);
        }
    }
}

pub(crate) fn sum<'a>(shares: impl Iterator<Item = &'a Share>) -> u64 {
    shares.map(|share| u64::from(share.weight)).sum()
}

/// The position of a table's profile.
pub(crate) fn profile_of(table: &Table) -> Option<usize> {
    match table.implementation {
        Implementation::Direct => None,
        Implementation::Profile(profile) => Some(profile.index()),
    }
}
