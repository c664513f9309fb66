//! Action profiles: members, groups, and actions of an entry's own of which a selector chooses (one shots).
//!
//! Members and groups are in the program, as entries are.
//!
//! Sizes are sums of weights; P4Info's `sum_of_members` is read as that, too, which never allows more.

use crate::arbitration::Scope;
use crate::bytestring;
use crate::entry;
use crate::failure::{Done, Failure};
use crate::pipeline::{Changed, Pipeline, find};
use crate::proto::{
    self, ActionProfileAction, ActionProfileActionSet, ActionProfileGroup, ActionProfileMember, GroupMember,
    Kind, WatchKind,
};
use crate::read::Reader;
use crate::uses::{profile_of, sum};
use crate::write::Verb;
use p4_ir::{ActionGroup, ActionProfile, Choice, EntryAction, EntryTarget, Share, Table};
use std::collections::BTreeMap;
use tonic::Code;

/// Ports are numbers of 9 bits, the highest of which means "drop".
const PORT_BITS: u16 = 9;
const DROP: u64 = 511;

impl Pipeline {
    fn profile(&self, id: u32) -> Done<usize> {
        let profiles = self.program.profiles.iter().map(|profile| &profile.identity);
        find("action profile", profiles, id)
    }

    /// Writes a member.
    pub(crate) fn write_member(&mut self, verb: Verb, given: &ActionProfileMember) -> Done<()> {
        let number = self.profile(given.action_profile_id)?;
        let done = self.write_member_of(number, verb, given);
        done.map_err(|failure| self.within_profile(number, failure))
    }

    /// Writes a group.
    pub(crate) fn write_action_group(&mut self, verb: Verb, given: &ActionProfileGroup) -> Done<()> {
        let number = self.profile(given.action_profile_id)?;
        let done = self.write_group_of(number, verb, given);
        done.map_err(|failure| self.within_profile(number, failure))
    }

    fn within_profile(&self, number: usize, failure: Failure) -> Failure {
        let name = &self.program.profiles[number].identity.name;
        failure.within(format_args!("action profile {name}"))
    }

    fn write_member_of(&mut self, number: usize, verb: Verb, given: &ActionProfileMember) -> Done<()> {
        let (id, profile) = (given.member_id, &self.program.profiles[number]);
        check_number(id)?;
        verb.check(profile.members.contains_key(&id))?;
        if verb == Verb::Delete {
            if self.uses[number].members.contains_key(&id) {
                return Err(in_use("member", id));
            }
            self.program.profiles[number].members.remove(&id);
        } else {
            let action = given.action.as_ref();
            let action = action.ok_or_else(|| Failure::invalid("the action is missing"))?;
            let own = self.read_member_action(number, action)?;
            if verb == Verb::Insert
                && profile.members.len() + self.uses[number].choices >= profile.size as usize
            {
                let text = format_args!("it has {} members at most", profile.size);
                return Err(Failure::exhausted(text));
            }
            self.program.profiles[number].members.insert(id, own);
        }
        self.changed = Changed::All;
        Ok(())
    }

    /// An action that all tables of a profile have.
    fn read_member_action(&self, number: usize, given: &proto::Action) -> Done<EntryAction> {
        let of_profile = |table: &&Table| profile_of(table) == Some(number);
        let mut read = None;
        for table in self.program.tables.iter().filter(of_profile) {
            read = Some(entry::read_action(&self.program, table, given, false)?);
        }
        read.ok_or_else(|| Failure::new(Code::FailedPrecondition, "no table has it"))
    }

    fn write_group_of(&mut self, number: usize, verb: Verb, given: &ActionProfileGroup) -> Done<()> {
        let (id, profile) = (given.group_id, &self.program.profiles[number]);
        check_number(id)?;
        if profile.selector.is_none() {
            return Err(Failure::invalid("it has no selector, so it has no groups"));
        }
        let former = profile.groups.get(&id);
        verb.check(former.is_some())?;
        if verb == Verb::Delete && self.uses[number].groups.contains_key(&id) {
            return Err(in_use("group", id));
        }
        let new = match verb {
            Verb::Delete => None,
            _ => Some(read_group(profile, given)?),
        };
        if let (Some(former), Some(new)) = (former, &new)
            && former.max_size != new.max_size
        {
            return Err(Failure::invalid("max_size of a group does not change"));
        }
        self.replace_group(number, id, new)
    }

    /// Puts a group in the place of the one before, if there is room.
    fn replace_group(&mut self, number: usize, id: u32, new: Option<ActionGroup>) -> Done<()> {
        let (profile, uses) = (&mut self.program.profiles[number], &mut self.uses[number]);
        let former = profile.groups.remove(&id);
        former.iter().for_each(|group| uses.remove_group(group));
        new.iter().for_each(|group| uses.add_group(group));
        profile.groups.extend(new.map(|group| (id, group)));
        if let Err(failure) = uses.fit(profile) {
            let refused = profile.groups.remove(&id);
            refused.iter().for_each(|group| uses.remove_group(group));
            former.iter().for_each(|group| uses.add_group(group));
            profile.groups.extend(former.map(|group| (id, group)));
            return Err(failure);
        }
        self.changed = Changed::All;
        Ok(())
    }

    /// Counts an entry's new target in the place of the former one, if there is room for it.
    pub(crate) fn hold(&mut self, table: usize, former: Option<&EntryTarget>, new: &EntryTarget) -> Done<()> {
        let Some(number) = profile_of(&self.program.tables[table]) else {
            return Ok(());
        };
        let uses = &mut self.uses[number];
        former.into_iter().for_each(|former| uses.remove(former));
        uses.add(new);
        let fits = uses.fit(&self.program.profiles[number]);
        if fits.is_err() {
            uses.remove(new);
            former.into_iter().for_each(|former| uses.add(former));
        }
        fits
    }

    /// Forgets the target of an entry that is gone.
    pub(crate) fn release(&mut self, table: usize, former: &EntryTarget) {
        if let Some(number) = profile_of(&self.program.tables[table]) {
            self.uses[number].remove(former);
        }
    }

    /// Reads an entry's own actions of which one is chosen.
    pub(crate) fn read_choices(&self, table: &Table, given: &ActionProfileActionSet) -> Done<EntryTarget> {
        let profile = profile_of(table).map(|number| &self.program.profiles[number]);
        let Some(profile) = profile.filter(|profile| profile.selector.is_some()) else {
            return Err(Failure::invalid("its action profile has no selector"));
        };
        if given.action_selection_mode != 0 || given.size_semantics != 0 || given.group_action.is_some() {
            return Err(Failure::unimplemented(
                "groups have the mode and the size that their selector has, and no action of their own",
            ));
        }
        if given.action_profile_actions.is_empty() {
            return Err(Failure::invalid("there is no action to choose"));
        }
        let choice = |one: &ActionProfileAction| {
            let action = one.action.as_ref();
            let action = action.ok_or_else(|| Failure::invalid("an action is missing"))?;
            Ok(Choice {
                action: entry::read_action(&self.program, table, action, false)?,
                share: read_share(one.weight, one.watch_kind.as_ref())?,
            })
        };
        let all = given.action_profile_actions.iter().map(choice);
        let all = all.collect::<Done<Vec<_>>>()?;
        let (weights, most) = (sum(all.iter().map(|one| &one.share)), profile.group_limit());
        if weights > most.into() {
            let text = format_args!("the weights are {weights}, and {most} is the most");
            return Err(match profile.max_group_size {
                0 => Failure::exhausted(text),
                _ => Failure::invalid(text),
            });
        }
        check_watching(weights, all.iter().any(|one| one.share.watch.is_some()))?;
        Ok(EntryTarget::Choices(all))
    }

    /// Writes an entry's own actions.
    pub(crate) fn write_choices(&self, all: &[Choice]) -> ActionProfileActionSet {
        let choice = |one: &Choice| ActionProfileAction {
            action: entry::write_action(&self.program, &one.action),
            weight: i32::try_from(one.share.weight).unwrap_or(i32::MAX),
            watch_kind: write_watch(one.share),
        };
        ActionProfileActionSet {
            action_profile_actions: all.iter().map(choice).collect(),
            ..ActionProfileActionSet::default()
        }
    }

    /// Profiles that a request means.
    fn profiles(&self, id: u32, scope: &Scope) -> Done<Vec<usize>> {
        let profiles = self.program.profiles.iter().map(|profile| &profile.identity);
        self.meant("action profile", profiles, id, scope)
    }

    /// Finds members.
    pub(crate) fn read_members(
        &self,
        given: &ActionProfileMember,
        scope: &Scope,
        reader: &mut dyn Reader,
    ) -> Done<()> {
        for number in self.profiles(given.action_profile_id, scope)? {
            let profile = &self.program.profiles[number];
            for (&member_id, own) in meant(&profile.members, given.action_profile_id, given.member_id) {
                reader.found(Kind::ActionProfileMember(Box::new(ActionProfileMember {
                    action_profile_id: profile.identity.id.unwrap_or(0),
                    member_id,
                    action: entry::write_action(&self.program, own),
                })))?;
            }
        }
        Ok(())
    }

    /// Finds groups.
    pub(crate) fn read_action_groups(
        &self,
        given: &ActionProfileGroup,
        scope: &Scope,
        reader: &mut dyn Reader,
    ) -> Done<()> {
        for number in self.profiles(given.action_profile_id, scope)? {
            let profile = &self.program.profiles[number];
            for (&group_id, own) in meant(&profile.groups, given.action_profile_id, given.group_id) {
                let member = |(&member_id, share): (&u32, &Share)| GroupMember {
                    member_id,
                    weight: i32::try_from(share.weight).unwrap_or(i32::MAX),
                    watch_kind: write_watch(*share),
                };
                reader.found(Kind::ActionProfileGroup(Box::new(ActionProfileGroup {
                    action_profile_id: profile.identity.id.unwrap_or(0),
                    group_id,
                    members: own.members.iter().map(member).collect(),
                    max_size: i32::try_from(own.max_size).unwrap_or(i32::MAX),
                })))?;
            }
        }
        Ok(())
    }
}

/// One of a profile's members or groups, or all.
fn meant<T>(all: &BTreeMap<u32, T>, profile: u32, number: u32) -> impl Iterator<Item = (&u32, &T)> {
    all.iter()
        .filter(move |(own, _)| profile == 0 || number == 0 || **own == number)
}

fn check_number(id: u32) -> Done<()> {
    match id {
        0 => Err(Failure::invalid("the number must be above 0")),
        _ => Ok(()),
    }
}

fn in_use(what: &str, id: u32) -> Failure {
    Failure::new(Code::FailedPrecondition, format_args!("{what} {id} is in use"))
}

fn read_group(profile: &ActionProfile, given: &ActionProfileGroup) -> Done<ActionGroup> {
    let max_size = u32::try_from(given.max_size).map_err(|_| Failure::invalid("max_size is negative"))?;
    let most = profile.group_limit();
    if max_size > most {
        let text = format_args!("max_size is {max_size}, and {most} is the most");
        return Err(match profile.max_group_size {
            0 => Failure::exhausted(text),
            _ => Failure::invalid(text),
        });
    }
    let mut members = BTreeMap::new();
    for member in &given.members {
        let id = member.member_id;
        if !profile.members.contains_key(&id) {
            return Err(Failure::missing(format_args!("there is no member {id}")));
        }
        let share = read_share(member.weight, member.watch_kind.as_ref())?;
        if members.insert(id, share).is_some() {
            return Err(Failure::invalid(format_args!("member {id} is there twice")));
        }
    }
    let weights = sum(members.values());
    let most = if max_size > 0 { max_size } else { most };
    if weights > most.into() {
        return Err(Failure::exhausted(format_args!(
            "the weights are {weights}, and {most} is the most"
        )));
    }
    check_watching(weights, members.values().any(|share| share.watch.is_some()))?;
    Ok(ActionGroup { members, max_size })
}

/// Refuses a group whose choice would take too long.
fn check_watching(weights: u64, is_watching: bool) -> Done<()> {
    let most = p4_interpreter::MAX_WATCHING;
    if is_watching && weights > most as u64 {
        let text = format_args!("the weights of a group that watches ports are {most} at most");
        return Err(Failure::exhausted(text));
    }
    Ok(())
}

fn read_share(weight: i32, watch: Option<&WatchKind>) -> Done<Share> {
    let weight = u32::try_from(weight).ok().filter(|weight| *weight > 0);
    let weight = weight.ok_or_else(|| Failure::invalid("a weight must be above 0"))?;
    let port = match watch {
        None => None,
        Some(WatchKind::WatchPort(port)) if port.is_empty() => None,
        Some(WatchKind::WatchPort(port)) => Some(bytestring::read_number(port, PORT_BITS)?),
        Some(WatchKind::Watch(port)) => Some(u64::try_from(*port).unwrap_or(DROP)),
    };
    let watch = match port {
        Some(port) if port >= DROP => return Err(Failure::invalid(format_args!("there is no port {port}"))),
        port => port.and_then(|port| u16::try_from(port).ok()),
    };
    Ok(Share { weight, watch })
}

fn write_watch(share: Share) -> Option<WatchKind> {
    let port = p4_ir::Bits::from_u128(PORT_BITS, share.watch?.into());
    Some(WatchKind::WatchPort(bytestring::write(&port)))
}

#[cfg(test)]
#[path = "profile_tests.rs"]
mod tests;
