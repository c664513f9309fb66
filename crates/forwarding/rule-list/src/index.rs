//! One dimension of a list: which rules allow which values.

use crate::condition::{Condition, ip_types};
use crate::dimension::{Dimension, IPV6};
use crate::ranges::Ranges;
use crate::refused::Refused;
use crate::rule::{Rule, SetId, TcpFlags};
use crate::rule_bits::{Candidates, Moves, RuleBits};
use crate::sets::Sets;
use crate::trie::{Trie, ones};
use crate::{MAX_FLAG_CONDITIONS, MAX_SETS_PER_LIST};
use flow::{FlowKey, FlowMask};
use smallvec::SmallVec;

/// The conditions that rules have in one dimension, by the values that fulfil them.
#[derive(Debug)]
pub(crate) struct Index {
    dimension: Dimension,
    /// Conditions by prefix; of IP addresses those of IPv4.
    prefixes: Trie,
    /// Conditions by prefix of IPv6 addresses.
    long_prefixes: Trie,
    /// Conditions by range of ports.
    ranges: Option<Box<Ranges>>,
    /// Conditions by set, in order.
    sets: Vec<(SetId, u32)>,
    /// Conditions on flags.
    flags: Vec<(TcpFlags, u32)>,
    /// The condition that the Ethernet type is IPv4 or IPv6.
    ip: Option<u32>,
    /// The rules with each condition, by the condition's number.
    rules: Vec<RuleBits>,
    /// Numbers of no condition.
    free: Vec<u32>,
    /// Rules without a condition in this dimension.
    indifferent: RuleBits,
}

impl Index {
    pub fn new(dimension: Dimension, rules: usize) -> Index {
        Index {
            dimension,
            prefixes: Trie::default(),
            long_prefixes: Trie::default(),
            ranges: None,
            sets: Vec::new(),
            flags: Vec::new(),
            ip: None,
            rules: Vec::new(),
            free: Vec::new(),
            indifferent: RuleBits::all(rules),
        }
    }

    /// The index for another version of the list, whose new rules have no condition yet. Conditions that no
    /// rule has any more stay until [`forget_condition`](Self::forget_condition).
    pub fn moved(&self, moves: &Moves) -> Index {
        let mut indifferent = self.indifferent.moved(moves);
        moves
            .added
            .iter()
            .for_each(|&rule| indifferent.add(rule, moves.rules));
        Index {
            dimension: self.dimension,
            prefixes: self.prefixes.clone(),
            long_prefixes: self.long_prefixes.clone(),
            ranges: self.ranges.clone(),
            sets: self.sets.clone(),
            flags: self.flags.clone(),
            ip: self.ip,
            rules: self.rules.iter().map(|rules| rules.moved(moves)).collect(),
            free: self.free.clone(),
            indifferent,
        }
    }

    /// Gives a rule of a list of `rules` its condition.
    pub fn add_rule(&mut self, condition: Condition, rule: u16, rules: usize) -> Result<(), Refused> {
        let number = match self.number_of(condition) {
            Some(number) => number,
            None => self.add_condition(condition)?,
        };
        self.rules[number as usize].add(rule, rules);
        self.indifferent.remove(rule);
        Ok(())
    }

    /// Removes a condition if no rule has it.
    pub fn forget_condition(&mut self, condition: Condition) {
        let number = self.number_of(condition);
        let Some(number) = number.filter(|&number| self.rules[number as usize].is_empty()) else {
            return;
        };
        match condition {
            Condition::Prefix(prefix) => {
                self.prefixes.remove(prefix, number);
            }
            Condition::LongPrefix(prefix) => {
                self.long_prefixes.remove(prefix, number);
            }
            Condition::Range(range) => self.ranges.iter_mut().for_each(|ranges| ranges.remove(range)),
            Condition::Ip => {
                self.ip = None;
                ip_types().into_iter().for_each(|prefix| {
                    self.prefixes.remove(prefix, number);
                });
            }
            Condition::Set(set) => self.sets.retain(|(other, _)| *other != set),
            Condition::Flags(flags) => self.flags.retain(|(other, _)| *other != flags),
        }
        self.free.push(number);
    }

    /// Ends the collection of rules of a list of `rules`.
    pub fn finish(&mut self, rules: usize) {
        self.indifferent.pack(rules);
    }

    /// Whether rules have conditions in this dimension.
    pub fn has_conditions(&self) -> bool {
        self.free.len() < self.rules.len()
    }

    /// The number of a condition that rules have.
    fn number_of(&self, condition: Condition) -> Option<u32> {
        match condition {
            Condition::Prefix(prefix) => {
                let mut numbers = self.prefixes.numbers(prefix).iter().copied();
                numbers.find(|&number| Some(number) != self.ip)
            }
            Condition::LongPrefix(prefix) => self.long_prefixes.numbers(prefix).first().copied(),
            Condition::Range(range) => self.ranges.as_ref()?.number_of(range),
            Condition::Ip => self.ip,
            Condition::Set(set) => self.condition_of(set),
            Condition::Flags(flags) => {
                let found = self.flags.iter().find(|(other, _)| *other == flags);
                found.map(|(_, number)| *number)
            }
        }
    }

    /// Adds a condition that no rule has. Returns its number.
    fn add_condition(&mut self, condition: Condition) -> Result<u32, Refused> {
        let number = self.free.last().copied().unwrap_or(self.rules.len() as u32);
        match condition {
            Condition::Prefix(prefix) => {
                self.prefixes.insert(prefix, number);
            }
            Condition::LongPrefix(prefix) => {
                self.long_prefixes.insert(prefix, number);
            }
            Condition::Range(range) => self.ranges.get_or_insert_default().insert(range, number),
            Condition::Ip => {
                self.ip = Some(number);
                ip_types().into_iter().for_each(|prefix| {
                    self.prefixes.insert(prefix, number);
                });
            }
            Condition::Set(set) => {
                if self.sets.len() == MAX_SETS_PER_LIST {
                    return Err(Refused::TooManySetsOfList);
                }
                let place = self.sets.partition_point(|(other, _)| *other < set);
                self.sets.insert(place, (set, number));
            }
            Condition::Flags(flags) => {
                if self.flags.len() == MAX_FLAG_CONDITIONS {
                    return Err(Refused::TooManyFlagConditions);
                }
                self.flags.push((flags, number));
            }
        }
        if self.free.pop().is_none() {
            self.rules.push(RuleBits::default());
        }
        Ok(number)
    }

    /// Leaves those candidates, places in `rules`, that allow the key's value, and notes the bits of the
    /// value that decided: at least one.
    pub fn narrow(
        &self,
        (rules, sets): (&[Rule], &Sets),
        key: &FlowKey,
        candidates: &mut Candidates,
        noted: &mut FlowMask,
    ) {
        let long_address = self.dimension.is_address() && key.eth_type() == IPV6;
        let value = self.dimension.value(key, long_address);
        let mut allowed: SmallVec<[&RuleBits; 16]> = SmallVec::new();
        allowed.push(&self.indifferent);
        let mut allow = |condition: u32| allowed.push(&self.rules[condition as usize]);
        let prefixes = if long_address {
            &self.long_prefixes
        } else {
            &self.prefixes
        };
        if let (Some(ranges), Some(few)) = (&self.ranges, candidates.few_mut()) {
            // Hundreds of ranges may have the number. No rule has another kind of condition here.
            let number = (value >> 112) as u16;
            few.retain(|place| rules[usize::from(*place)].matches.allows(self.dimension, number));
            return self
                .dimension
                .add_to(noted, ones(ranges.compared(number).max(1)), false);
        }
        let mut compared = prefixes.walk(value, |conditions| conditions.iter().for_each(|&it| allow(it)));
        if let Some(ranges) = &self.ranges {
            compared = compared.max(ranges.walk((value >> 112) as u16, &mut allow));
        }
        if !self.sets.is_empty() {
            let walked = sets.walk(self.dimension, long_address, value, |found| {
                self.for_each_of(found, &mut allow);
            });
            compared = compared.max(walked);
        }
        let mut bits = ones(compared.max(1));
        let shift = 128 - self.dimension.width(long_address);
        for &(flags, condition) in &self.flags {
            if (value >> shift) as u16 & flags.mask == flags.value {
                allow(condition);
            }
            bits |= u128::from(flags.mask) << shift;
        }
        candidates.narrow(&allowed);
        self.dimension.add_to(noted, bits, long_address);
    }

    /// The sets that rules name in this dimension.
    pub fn sets(&self) -> impl Iterator<Item = SetId> {
        self.sets.iter().map(|(set, _)| *set)
    }

    pub fn has_set(&self, set: SetId) -> bool {
        self.condition_of(set).is_some()
    }

    pub fn memory(&self) -> usize {
        let rules: usize = self.rules.iter().map(RuleBits::memory).sum();
        rules
            + self.rules.capacity() * size_of::<RuleBits>()
            + self.indifferent.memory()
            + self.prefixes.memory()
            + self.long_prefixes.memory()
            + self.ranges.as_ref().map_or(0, |ranges| ranges.memory())
            + size_of_val(&*self.sets)
            + size_of_val(&*self.flags)
            + size_of_val(&*self.free)
    }

    /// Calls `allow` with the conditions about those of the sets, which are in order, that the list names.
    /// Goes through the fewer of both.
    fn for_each_of(&self, found: &[u32], allow: &mut impl FnMut(u32)) {
        if found.len() <= self.sets.len() {
            let conditions = found.iter().filter_map(|&set| self.condition_of(SetId(set)));
            conditions.for_each(allow);
        } else {
            let named = self
                .sets
                .iter()
                .filter(|(set, _)| found.binary_search(&set.0).is_ok());
            named.for_each(|(_, condition)| allow(*condition));
        }
    }

    fn condition_of(&self, set: SetId) -> Option<u32> {
        let place = self.sets.binary_search_by_key(&set, |(set, _)| *set).ok()?;
        Some(self.sets[place].1)
    }
}
