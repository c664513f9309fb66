//! Action profiles as BMv2's command line fills them: members and groups, which get numbers from 0 on in
//! their order, and entries that lead to them. They are put into a program before its first packet, or into
//! the next version of one that runs; members and groups of that can be changed and removed, too.

use crate::bake::{EntryVerb, Oven};
use crate::entry::{self, pattern};
use crate::error::CommandError;
use crate::names;
use crate::number::Digits;
use crate::script::{Add, Leads, ProfileCommand};
use p4_ir::{
    ActionGroup, ActionProfile, DefaultEntry, Entry, EntryAction, EntryTarget, Implementation, Share, TableId,
};
use std::collections::BTreeMap;

/// A change of an action profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileEdit {
    /// Adds a member, or gives one another action.
    PutMember {
        /// Which of the two.
        verb: EntryVerb,
        /// Number of the member.
        member: u32,
        /// Name of the action, or its end.
        action: String,
        /// Arguments of the action, by name.
        arguments: Vec<(String, Digits)>,
    },
    /// Adds a group, or gives one other members.
    PutGroup {
        /// Which of the two.
        verb: EntryVerb,
        /// Number of the group.
        group: u32,
        /// Members by their numbers, with their part of the packets.
        members: BTreeMap<u32, Share>,
    },
    /// Removes a member or a group to which nothing leads.
    Remove(Leads),
}

impl Oven {
    /// Puts a line into the program.
    pub(crate) fn take_profile(&mut self, command: &ProfileCommand) -> Result<(), CommandError> {
        match command {
            ProfileCommand::Member {
                profile,
                action,
                arguments,
            } => self.add_member(profile, action, arguments),
            ProfileCommand::Group(profile) => {
                let (profile, _) = self.profile(profile)?;
                let groups = &mut self.program.profiles[profile].groups;
                groups.insert(next(groups.keys()), ActionGroup::default());
                Ok(())
            }
            ProfileCommand::Join {
                profile,
                member,
                group,
            } => self.join(profile, *member, *group),
            ProfileCommand::Add(add, leads) => {
                self.with_table(add, |oven, add, table| oven.add_leading(add, table, *leads))
            }
            ProfileCommand::SetDefault(table, member) => {
                let (profile, table) = self.profile(table)?;
                check(&self.program.profiles[profile], Leads::Member(*member))?;
                let action = self.program.profiles[profile].members.get(member).cloned();
                self.program.tables[table].default = action.map(|entry| DefaultEntry {
                    entry,
                    constant_action: false,
                    constant_arguments: false,
                    rates: None,
                });
                Ok(())
            }
        }
    }

    fn add_member(
        &mut self,
        profile: &str,
        action: &str,
        arguments: &[(String, Digits)],
    ) -> Result<(), CommandError> {
        let (profile, table) = self.profile(profile)?;
        let action = self.member_action((action, arguments), table)?;
        let members = &mut self.program.profiles[profile].members;
        members.insert(next(members.keys()), action);
        Ok(())
    }

    /// The action of a member of a table's profile.
    fn member_action(
        &self,
        (action, arguments): (&str, &[(String, Digits)]),
        table: usize,
    ) -> Result<EntryAction, CommandError> {
        let add = Add {
            table: String::new(),
            priority: 0,
            keys: Vec::new(),
            action: action.into(),
            arguments: arguments.to_vec(),
            id: None,
        };
        self.entry_action(&add, table)
    }

    /// Makes a change of a profile.
    pub(crate) fn edit_profile(&mut self, name: &str, edit: &ProfileEdit) -> Result<(), CommandError> {
        let (number, table) = self.profile(name)?;
        match edit {
            ProfileEdit::PutMember {
                verb,
                member,
                action,
                arguments,
            } => {
                let made = self.member_action((action, arguments), table)?;
                let profile = &mut self.program.profiles[number];
                check_verb(profile, *verb, Leads::Member(*member))?;
                profile.members.insert(*member, made);
            }
            ProfileEdit::PutGroup { verb, group, members } => {
                let profile = &mut self.program.profiles[number];
                check_verb(profile, *verb, Leads::Group(*group))?;
                for member in members.keys() {
                    check(profile, Leads::Member(*member))?;
                }
                let own = profile.groups.entry(*group).or_default();
                own.members.clone_from(members);
            }
            ProfileEdit::Remove(leads) => {
                let profile = &mut self.program.profiles[number];
                check(profile, *leads)?;
                match leads {
                    Leads::Member(member) => drop(profile.members.remove(member)),
                    Leads::Group(group) => drop(profile.groups.remove(group)),
                }
            }
        }
        Ok(())
    }

    fn join(&mut self, profile: &str, member: u32, group: u32) -> Result<(), CommandError> {
        let (profile, _) = self.profile(profile)?;
        let profile = &mut self.program.profiles[profile];
        check(profile, Leads::Member(member))?;
        check(profile, Leads::Group(group))?;
        let none = Share {
            weight: 0,
            watch: None,
        };
        let members = profile.groups.get_mut(&group).map(|group| &mut group.members);
        let share = members.map(|members| members.entry(member).or_insert(none));
        share.into_iter().for_each(|share| share.weight += 1);
        Ok(())
    }

    /// The position of a profile, and of a table that has it.
    fn profile(&self, name: &str) -> Result<(usize, usize), CommandError> {
        let with_profile = self.program.tables.iter().enumerate();
        let with_profile = with_profile.filter_map(|(at, table)| match table.implementation {
            Implementation::Profile(profile) => Some((profile.index(), at)),
            Implementation::Direct => None,
        });
        let of_profiles = with_profile
            .clone()
            .map(|(profile, at)| ((profile, at), &self.program.profiles[profile].identity.name));
        let of_tables = with_profile.map(|found| (found, &self.program.tables[found.1].identity.name));
        // Tables that share a profile name it once.
        let all: BTreeMap<_, _> = of_profiles
            .chain(of_tables)
            .map(|(at, name)| (name, at))
            .collect();
        let names = all.keys().enumerate().map(|(at, name)| (at, name.as_str()));
        let found = names::find("action profile", name, names)?;
        let place = all.values().nth(found).copied();
        place.ok_or(CommandError::NoProfile)
    }

    fn add_leading(&mut self, add: &Add, number: usize, leads: Leads) -> Result<(), CommandError> {
        let table = &self.program.tables[number];
        let layout = self.engine.layout(TableId(number as u16));
        let Implementation::Profile(profile) = table.implementation else {
            return Err(CommandError::NoProfile);
        };
        check(&self.program.profiles[profile.index()], leads)?;
        pattern(table, layout, add)?;
        let entry = Entry {
            keys: entry::keys(table, add)?,
            target: match leads {
                Leads::Member(member) => EntryTarget::Member(member),
                Leads::Group(group) => EntryTarget::Group(group),
            },
            rates: None,
            idle_timeout_ns: 0,
            priority: if layout.has_priorities() { add.priority } else { 0 },
        };
        self.program.tables[number].entries.push(entry);
        Ok(())
    }
}

/// The number behind the last one, from 0 on.
fn next<'a>(mut numbers: impl DoubleEndedIterator<Item = &'a u32>) -> u32 {
    numbers.next_back().map_or(0, |last| last.saturating_add(1))
}

/// Refuses to add what is there, and to change what is not.
fn check_verb(profile: &ActionProfile, verb: EntryVerb, leads: Leads) -> Result<(), CommandError> {
    match (verb, check(profile, leads)) {
        (EntryVerb::Add, Ok(())) => {
            let (what, number) = named(leads);
            let profile = profile.identity.name.clone();
            Err(CommandError::InProfile {
                profile,
                what,
                number,
            })
        }
        (EntryVerb::Add, Err(_)) => Ok(()),
        (EntryVerb::Set | EntryVerb::Delete, found) => found,
    }
}

fn named(leads: Leads) -> (&'static str, u32) {
    match leads {
        Leads::Member(member) => ("member", member),
        Leads::Group(group) => ("group", group),
    }
}

fn check(profile: &ActionProfile, leads: Leads) -> Result<(), CommandError> {
    let is_there = match leads {
        Leads::Member(member) => profile.members.contains_key(&member),
        Leads::Group(group) => profile.groups.contains_key(&group),
    };
    if is_there {
        return Ok(());
    }
    let (what, number) = named(leads);
    let profile = profile.identity.name.clone();
    Err(CommandError::NotInProfile {
        profile,
        what,
        number,
    })
}
