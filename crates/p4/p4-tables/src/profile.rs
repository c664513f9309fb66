//! Action profiles and selectors: actions that entries share, and groups of which a hash chooses one.
//!
//! Controllers name members and groups by identifiers; tables hold their places, so that a packet needs no
//! search. A group lists its members' places, a member as often as its weight says, and the hash modulo the
//! length of the list chooses. Members that watch a port which is down are left out. Members and groups in
//! use cannot be removed.

use std::collections::HashMap;
use std::sync::Arc;

use crate::change::{GroupMember, ProfileChange};
use crate::error::Error;
use crate::key::Words;
use crate::ports::PortStates;

/// Most members of a group, counted with their weights, if one watches a port: each is asked per packet.
pub const MAX_WATCHING: usize = 512;

/// An action that entries share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) id: u32,
    pub(crate) action: u32,
    pub(crate) arguments: Words,
    /// Entries and groups that refer to it.
    pub(crate) uses: usize,
}

/// Members of which a hash chooses one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Places of members, each as often as its weight says.
    pub(crate) list: Vec<u32>,
    /// Ports that the list's members watch; `None`: none does.
    watches: Option<Box<[Option<u16>]>>,
    /// Entries that refer to it.
    pub(crate) uses: usize,
}

/// Places of a group's members, and the ports that they watch.
type Listed = (Vec<u32>, Option<Box<[Option<u16>]>>);

/// The limits of an action profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileSpec {
    /// Most members; with groups also the greatest sum of all groups' weights.
    pub limit: usize,
    /// Most members of a group, counted with their weights; 0 if there are no groups.
    pub group_limit: usize,
    /// Most words of an action's arguments.
    pub argument_words: usize,
}

/// An action profile.
#[derive(Clone, Debug)]
pub struct Profile {
    spec: ProfileSpec,
    pub(crate) members: Slots<Member>,
    pub(crate) groups: Slots<Group>,
    /// Sum of the groups' lists.
    listed: usize,
    ports: Arc<PortStates>,
}

/// Values at places that do not change, found by identifier.
#[derive(Clone, Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Option<T>>,
    places: HashMap<u32, u32>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    fn new() -> Slots<T> {
        Slots {
            slots: Vec::new(),
            places: HashMap::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn place(&self, id: u32) -> Option<u32> {
        self.places.get(&id).copied()
    }

    #[inline]
    pub(crate) fn get(&self, place: u32) -> Option<&T> {
        self.slots.get(place as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.slots.get_mut(place as usize)?.as_mut()
    }

    fn add(&mut self, id: u32, value: T) -> u32 {
        let place = self.free.pop().unwrap_or(self.slots.len() as u32);
        if place as usize == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[place as usize] = Some(value);
        self.places.insert(id, place);
        place
    }

    fn remove(&mut self, id: u32) -> Option<T> {
        let place = self.places.remove(&id)?;
        self.free.push(place);
        self.slots[place as usize].take()
    }

    fn len(&self) -> usize {
        self.places.len()
    }
}

impl Profile {
    pub(crate) fn new(spec: ProfileSpec, ports: Arc<PortStates>) -> Profile {
        Profile {
            spec,
            ports,
            members: Slots::new(),
            groups: Slots::new(),
            listed: 0,
        }
    }

    /// Number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// Number of groups.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Action and arguments of the member at a place that a look-up returned.
    #[inline]
    pub fn member(&self, place: u32) -> Option<(u32, &[u64])> {
        let member = self.members.get(place)?;
        Some((member.action, &member.arguments))
    }

    /// Action and arguments of the member that `hash` chooses from the group at a place that a look-up
    /// returned; `None` if the group is empty, or all ports are down that its members watch.
    #[inline]
    pub fn choose(&self, place: u32, hash: u64) -> Option<(u32, &[u64])> {
        let group = self.groups.get(place)?;
        let list = &group.list;
        let index = match &group.watches {
            None => hash.checked_rem(list.len() as u64)? as usize,
            Some(watches) => self.choose_up(watches, hash)?,
        };
        self.member(*list.get(index)?)
    }

    /// The position that a hash chooses among those that watch no port, or one that is up.
    fn choose_up(&self, watches: &[Option<u16>], hash: u64) -> Option<usize> {
        let is_up = |(_, watch): &(usize, &Option<u16>)| watch.is_none_or(|port| self.ports.is_up(port));
        let up = || watches.iter().enumerate().filter(is_up);
        let chosen = hash.checked_rem(up().count() as u64)?;
        Some(up().nth(chosen as usize)?.0)
    }

    /// A member by its identifier: action and arguments.
    pub fn member_by_id(&self, id: u32) -> Option<(u32, &[u64])> {
        self.member(self.members.place(id)?)
    }

    /// The identifiers of a group's members, each as often as its weight says.
    pub fn group_by_id(&self, id: u32) -> Option<Vec<u32>> {
        let list = &self.groups.get(self.groups.place(id)?)?.list;
        list.iter()
            .map(|&place| self.members.get(place).map(|member| member.id))
            .collect()
    }

    /// Makes a change, or none if it is refused.
    pub(crate) fn change(&mut self, change: &ProfileChange) -> Result<(), Error> {
        use ProfileChange::{AddGroup, AddMember, ModifyGroup, ModifyMember, RemoveGroup, RemoveMember};
        match *change {
            AddMember {
                member,
                action,
                ref arguments,
            } => self.add_member(member, action, arguments),
            ModifyMember {
                member,
                action,
                ref arguments,
            } => self.modify_member(member, action, arguments),
            RemoveMember { member } => self.remove_member(member),
            AddGroup { group, ref members } => self.add_group(group, members),
            ModifyGroup { group, ref members } => self.modify_group(group, members),
            RemoveGroup { group } => self.remove_group(group),
        }
    }

    fn add_member(&mut self, id: u32, action: u32, arguments: &Words) -> Result<(), Error> {
        self.check_arguments(arguments)?;
        if self.members.place(id).is_some() {
            return Err(Error::Duplicate);
        }
        if self.members.len() >= self.spec.limit {
            return Err(Error::Full {
                limit: self.spec.limit,
            });
        }
        self.members.add(
            id,
            Member {
                id,
                action,
                arguments: arguments.clone(),
                uses: 0,
            },
        );
        Ok(())
    }

    fn modify_member(&mut self, id: u32, action: u32, arguments: &Words) -> Result<(), Error> {
        self.check_arguments(arguments)?;
        let place = self.members.place(id).ok_or(Error::NotFound)?;
        let member = self.members.get_mut(place).ok_or(Error::NotFound)?;
        (member.action, member.arguments) = (action, arguments.clone());
        Ok(())
    }

    fn remove_member(&mut self, id: u32) -> Result<(), Error> {
        let place = self.members.place(id).ok_or(Error::NotFound)?;
        if self.members.get(place).is_some_and(|member| member.uses > 0) {
            return Err(Error::InUse {
                what: "member",
                number: id,
            });
        }
        self.members.remove(id).ok_or(Error::NotFound).map(drop)
    }

    fn add_group(&mut self, id: u32, members: &[GroupMember]) -> Result<(), Error> {
        if self.groups.place(id).is_some() {
            return Err(Error::Duplicate);
        }
        if self.groups.len() >= self.spec.limit {
            return Err(Error::Full {
                limit: self.spec.limit,
            });
        }
        let (list, watches) = self.list(members, 0)?;
        self.listed += list.len();
        self.count_uses(&list, true);
        let group = Group {
            list,
            watches,
            uses: 0,
        };
        self.groups.add(id, group);
        Ok(())
    }

    fn modify_group(&mut self, id: u32, members: &[GroupMember]) -> Result<(), Error> {
        let place = self.groups.place(id).ok_or(Error::NotFound)?;
        let old = self.groups.get(place).map_or(0, |group| group.list.len());
        let (list, watches) = self.list(members, old)?;
        self.listed = self.listed - old + list.len();
        self.count_uses(&list, true);
        let group = self.groups.get_mut(place).ok_or(Error::NotFound)?;
        let old = std::mem::replace(&mut group.list, list);
        group.watches = watches;
        self.count_uses(&old, false);
        Ok(())
    }

    fn remove_group(&mut self, id: u32) -> Result<(), Error> {
        let place = self.groups.place(id).ok_or(Error::NotFound)?;
        if self.groups.get(place).is_some_and(|group| group.uses > 0) {
            return Err(Error::InUse {
                what: "group",
                number: id,
            });
        }
        let group = self.groups.remove(id).ok_or(Error::NotFound)?;
        self.listed -= group.list.len();
        self.count_uses(&group.list, false);
        Ok(())
    }

    /// Bytes in use; maps of the standard library are estimated by their elements.
    pub(crate) fn memory(&self) -> usize {
        let arguments = |member: &Member| {
            if member.arguments.spilled() {
                member.arguments.len() * 8
            } else {
                0
            }
        };
        self.members.slots.capacity() * size_of::<Option<Member>>()
            + self.members.slots.iter().flatten().map(arguments).sum::<usize>()
            + self.groups.slots.capacity() * size_of::<Option<Group>>()
            + self
                .groups
                .slots
                .iter()
                .flatten()
                .map(|group| {
                    group.list.capacity() * 4 + group.watches.as_ref().map_or(0, |all| all.len() * 4)
                })
                .sum::<usize>()
            + (self.members.len() + self.groups.len()) * 12
    }

    fn check_arguments(&self, arguments: &[u64]) -> Result<(), Error> {
        let (words, limit) = (arguments.len(), self.spec.argument_words);
        if words > limit {
            Err(Error::TooManyArguments { words, limit })
        } else {
            Ok(())
        }
    }

    /// The list for members with weights, when `freed` of the profile's listed elements are about to be
    /// freed. The order is that of the members' identifiers, as in BMv2, so that the member a hash chooses
    /// does not depend on the order in a change.
    fn list(&self, members: &[GroupMember], freed: usize) -> Result<Listed, Error> {
        let is_watching = members.iter().any(|member| member.watch.is_some());
        let limit = match is_watching {
            true => self.spec.group_limit.min(MAX_WATCHING),
            false => self.spec.group_limit,
        };
        let weights: u64 = members.iter().map(|member| u64::from(member.weight)).sum();
        if weights > limit as u64 {
            return Err(Error::Full { limit });
        }
        if self.listed - freed + weights as usize > self.spec.limit.max(self.spec.group_limit) {
            return Err(Error::Full {
                limit: self.spec.limit,
            });
        }
        let mut members = members.to_vec();
        members.sort_unstable();
        let mut list = Vec::with_capacity(weights as usize);
        for member in &members {
            let place = self.members.place(member.member).ok_or(Error::Unknown {
                what: "member",
                number: member.member,
            })?;
            list.extend((0..member.weight).map(|_| place));
        }
        let watches = members
            .iter()
            .flat_map(|member| (0..member.weight).map(|_| member.watch));
        let watches = is_watching.then(|| watches.collect());
        Ok((list, watches))
    }

    fn count_uses(&mut self, list: &[u32], more: bool) {
        for &place in list {
            if let Some(member) = self.members.get_mut(place) {
                member.uses = if more { member.uses + 1 } else { member.uses - 1 };
            }
        }
    }
}
