//! Sets of addresses, MACs and ports that rules name, and what a change of one member may concern.
//!
//! All sets share one trie for each kind of value, so one walk finds every set that has an address, whether
//! a list names one set or a hundred, and a set that a thousand lists name exists once. A change of a
//! member touches one path of that trie and no list.
//!
//! # Which decisions a change ends
//!
//! A decision holds for a class of packets: all that agree with its key in the bits that were noted when it
//! was made. A dimension that a look-up has asked is noted with one bit at least. So a decision that has no
//! bit of a dimension did not ask it, and does not stand on sets of that dimension; and a decision whose
//! class has no packet in the member's prefix stays right, as a change of that member changes no fact about
//! packets of the class. All others may be wrong and must end
//! ([`RuleList::may_concern`](crate::RuleList::may_concern)). The number of decisions that end beside those
//! depends on the length of the noted prefixes: two neighbours that no member separates share a class.

use crate::condition::{ip_prefix, mac_prefix, port_prefix};
use crate::dimension::Dimension;
use crate::refused::Refused;
use crate::rule::{IpPrefix, MacPrefix, SetId};
use crate::trie::{Prefix, Trie};
use crate::{MAX_MEMBERS, MAX_MEMBERS_PER_SET, MAX_SETS};
use flow::PortId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Bound;

/// What a set consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetKind {
    /// IP addresses and prefixes of both versions.
    Addresses,
    /// MAC addresses and prefixes.
    Macs,
    /// Ports.
    Ports,
}

impl fmt::Display for SetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SetKind::Addresses => "IP addresses",
            SetKind::Macs => "MAC addresses",
            SetKind::Ports => "ports",
        })
    }
}

/// A member of a set. Members of one set may contain each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Member {
    /// All addresses with the prefix.
    Address(IpPrefix),
    /// All MACs with the prefix.
    Mac(MacPrefix),
    /// A port.
    Port(PortId),
}

impl Member {
    fn kind(&self) -> SetKind {
        match self {
            Member::Address(_) => SetKind::Addresses,
            Member::Mac(_) => SetKind::Macs,
            Member::Port(_) => SetKind::Ports,
        }
    }

    fn value(&self) -> Result<Value, Refused> {
        let (family, prefix) = match *self {
            Member::Address(prefix) if prefix.address.is_ipv6() => (Family::Ipv6, ip_prefix(prefix)?),
            Member::Address(prefix) => (Family::Ipv4, ip_prefix(prefix)?),
            Member::Mac(prefix) => (Family::Mac, mac_prefix(prefix)?),
            Member::Port(port) => (Family::Port, port_prefix(port)?),
        };
        Ok(Value { family, prefix })
    }
}

/// Values that share a trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    Ipv4,
    Ipv6,
    Mac,
    Port,
}

impl Family {
    /// `None` for dimensions that no set is about.
    pub fn of(dimension: Dimension, long_address: bool) -> Option<Family> {
        match dimension {
            Dimension::InPort => Some(Family::Port),
            Dimension::EthDst | Dimension::EthSrc => Some(Family::Mac),
            Dimension::IpDst | Dimension::IpSrc if long_address => Some(Family::Ipv6),
            Dimension::IpDst | Dimension::IpSrc => Some(Family::Ipv4),
            _ => None,
        }
    }
}

/// A member as tries have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Value {
    pub family: Family,
    pub prefix: Prefix,
}

impl Value {
    fn member(&self) -> Member {
        let Prefix { value, len } = self.prefix;
        match self.family {
            Family::Ipv4 => Member::Address(IpPrefix {
                address: IpAddr::V4(Ipv4Addr::from_bits((value >> 96) as u32)),
                len,
            }),
            Family::Ipv6 => Member::Address(IpPrefix {
                address: IpAddr::V6(Ipv6Addr::from_bits(value)),
                len,
            }),
            Family::Mac => Member::Mac(MacPrefix {
                address: (value >> 80) as u64,
                len,
            }),
            Family::Port => Member::Port(PortId((value >> 96) as u32)),
        }
    }
}

/// A member that came to a set, or left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetChange {
    /// The set.
    pub set: SetId,
    pub(crate) value: Value,
}

impl SetChange {
    /// Whether some packet has one of the member's values in this dimension and agrees with `value` in the
    /// bits `known`; both begin at the highest bit.
    pub(crate) fn may_meet(
        &self,
        dimension: Dimension,
        long_address: bool,
        value: u128,
        known: u128,
    ) -> bool {
        let prefix = self.value.prefix;
        Family::of(dimension, long_address) == Some(self.value.family)
            && (prefix.value ^ value) & prefix.mask() & known == 0
    }
}

#[derive(Debug)]
struct Set {
    kind: SetKind,
    members: BTreeSet<Value>,
    /// Lists that name the set.
    lists: usize,
}

impl Set {
    fn value(&self, set: SetId, member: Member) -> Result<Value, Refused> {
        let kind = self.kind;
        if kind != member.kind() {
            return Err(Refused::WrongKind { set, kind });
        }
        member.value()
    }
}

/// A set, for lists of sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "see the type")]
pub struct SetState {
    pub set: SetId,
    pub kind: SetKind,
    /// Number of members.
    pub members: usize,
    /// Lists that name the set, once for each field.
    pub lists: usize,
}

/// All sets.
#[derive(Debug, Default)]
pub struct Sets {
    sets: BTreeMap<SetId, Set>,
    /// By [`Family`].
    tries: [Trie; 4],
    /// Of all sets.
    members: usize,
}

impl Sets {
    /// Makes an empty set.
    ///
    /// # Errors
    ///
    /// The number is taken, or there are too many sets.
    pub fn create(&mut self, set: SetId, kind: SetKind) -> Result<(), Refused> {
        if self.sets.contains_key(&set) {
            return Err(Refused::SetExists(set));
        }
        if self.sets.len() == MAX_SETS {
            return Err(Refused::TooManySets);
        }
        let members = BTreeSet::new();
        let lists = 0;
        self.sets.insert(set, Set { kind, members, lists });
        Ok(())
    }

    /// Removes a set that no list names, in pieces of up to `members` members. True when the set is gone.
    ///
    /// # Errors
    ///
    /// There is no such set, or a list names it.
    pub fn remove(&mut self, set: SetId, members: usize) -> Result<bool, Refused> {
        let found = self.sets.get_mut(&set).ok_or(Refused::NoSuchSet(set))?;
        if found.lists > 0 {
            return Err(Refused::SetInUse(set));
        }
        for _ in 0..members {
            let Some(value) = found.members.pop_last() else {
                break;
            };
            self.tries[value.family as usize].remove(value.prefix, set.0);
            self.members -= 1;
        }
        let is_gone = found.members.is_empty();
        if is_gone {
            self.sets.remove(&set);
        }
        Ok(is_gone)
    }

    /// Adds a member. `None` if the set has it already.
    ///
    /// # Errors
    ///
    /// There is no such set, its members are of another kind, the member is malformed, or there are too
    /// many.
    pub fn insert(&mut self, set: SetId, member: Member) -> Result<Option<SetChange>, Refused> {
        let (members, found, value) = self.member(set, member)?;
        if found.members.contains(&value) {
            return Ok(None);
        }
        if found.members.len() == MAX_MEMBERS_PER_SET {
            return Err(Refused::TooManyMembersOfSet);
        }
        if members == MAX_MEMBERS {
            return Err(Refused::TooManyMembers);
        }
        found.members.insert(value);
        self.members += 1;
        self.tries[value.family as usize].insert(value.prefix, set.0);
        Ok(Some(SetChange { set, value }))
    }

    /// Takes a member out. `None` if the set does not have it.
    ///
    /// # Errors
    ///
    /// There is no such set, its members are of another kind, or the member is malformed.
    pub fn take_out(&mut self, set: SetId, member: Member) -> Result<Option<SetChange>, Refused> {
        let (_, found, value) = self.member(set, member)?;
        if !found.members.remove(&value) {
            return Ok(None);
        }
        self.members -= 1;
        self.tries[value.family as usize].remove(value.prefix, set.0);
        Ok(Some(SetChange { set, value }))
    }

    /// Members of a set; `None` if there is no such set.
    pub fn members(&self, set: SetId) -> Option<usize> {
        Some(self.sets.get(&set)?.members.len())
    }

    /// Whether members can be taken out of a set and others put in.
    ///
    /// # Errors
    ///
    /// There is no such set, its members are of another kind, a member is malformed, or there are too many.
    pub fn check(&self, set: SetId, take_out: &[Member], put_in: &[Member]) -> Result<(), Refused> {
        let found = self.sets.get(&set).ok_or(Refused::NoSuchSet(set))?;
        let values = |members: &[Member]| {
            let value = |member: &Member| found.value(set, *member);
            members.iter().map(value).collect::<Result<BTreeSet<_>, _>>()
        };
        let (leaving, coming) = (values(take_out)?, values(put_in)?);
        let stays = |value: &&Value| found.members.contains(value) && !leaving.contains(value);
        let more = coming.len() - coming.iter().filter(stays).count();
        let fewer = leaving.intersection(&found.members).count();
        if found.members.len() - fewer + more > MAX_MEMBERS_PER_SET {
            return Err(Refused::TooManyMembersOfSet);
        }
        if self.members - fewer + more > MAX_MEMBERS {
            return Err(Refused::TooManyMembers);
        }
        Ok(())
    }

    /// Up to `most` sets with numbers above `after`, or from the first on.
    pub fn page(&self, after: Option<SetId>, most: usize) -> Vec<SetState> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        let sets = self.sets.range((begin, Bound::Unbounded)).take(most);
        let state = |(&set, found): (&SetId, &Set)| SetState {
            set,
            kind: found.kind,
            members: found.members.len(),
            lists: found.lists,
        };
        sets.map(state).collect()
    }

    /// Up to `most` members of a set behind `after`, or from the first on, in an order of their own.
    ///
    /// # Errors
    ///
    /// There is no such set, or `after` cannot be a member of it.
    pub fn members_after(
        &self,
        set: SetId,
        after: Option<Member>,
        most: usize,
    ) -> Result<Vec<Member>, Refused> {
        let found = self.sets.get(&set).ok_or(Refused::NoSuchSet(set))?;
        let after = after.map(|after| found.value(set, after)).transpose()?;
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        let values = found.members.range((begin, Bound::Unbounded)).take(most);
        Ok(values.map(Value::member).collect())
    }

    /// Bytes of the tries.
    pub fn memory(&self) -> usize {
        self.tries.iter().map(Trie::memory).sum()
    }

    /// The set's kind.
    pub(crate) fn kind(&self, set: SetId) -> Result<SetKind, Refused> {
        Ok(self.sets.get(&set).ok_or(Refused::NoSuchSet(set))?.kind)
    }

    /// Notes that one list more, or one less, names the set.
    pub(crate) fn count_list(&mut self, set: SetId, change: isize) {
        if let Some(found) = self.sets.get_mut(&set) {
            found.lists = found.lists.saturating_add_signed(change);
        }
    }

    /// Shows the numbers of the sets that have this value, those with the shortest prefix first. Returns
    /// how many first bits of the value were compared.
    pub(crate) fn walk(
        &self,
        dimension: Dimension,
        long_address: bool,
        value: u128,
        found: impl FnMut(&[u32]),
    ) -> u32 {
        let family = Family::of(dimension, long_address);
        family.map_or(0, |family| self.tries[family as usize].walk(value, found))
    }

    fn member(&mut self, set: SetId, member: Member) -> Result<(usize, &mut Set, Value), Refused> {
        let members = self.members;
        let found = self.sets.get_mut(&set).ok_or(Refused::NoSuchSet(set))?;
        let value = found.value(set, member)?;
        Ok((members, found, value))
    }
}
