//! A finished list and its look-up.

use crate::MAX_TRIALS;
use crate::condition::Conditions;
use crate::counters::{Counters, RuleCounts};
use crate::dimension::{DIMENSIONS, Dimension, Dimensions, IPV6};
use crate::index::Index;
use crate::rule::{Rule, SetId, Verdict};
use crate::rule_bits::Candidates;
use crate::sets::{SetChange, SetKind, Sets};
use flow::{FieldId, FlowKey, FlowMask, Unseen};
use std::collections::BTreeMap;

/// Rules in the order in which they are tried, with an index for each dimension that any of them is about.
#[derive(Debug)]
pub struct RuleList {
    pub(crate) rules: Vec<Rule>,
    /// The dimensions of each rule's conditions.
    pub(crate) dimensions: Vec<Dimensions>,
    pub(crate) indices: [Option<Box<Index>>; DIMENSIONS],
    /// Places of the rules, by number.
    pub(crate) places: BTreeMap<u32, u16>,
    pub(crate) default: Verdict,
    pub(crate) counters: Counters,
}

/// What a list says about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What was found.
    pub outcome: Outcome,
    /// The bits of the key that decided: every packet that agrees in them, and of which the same fields are
    /// unknown, gets the same answer.
    pub noted: FlowMask,
    /// Rules on trial that match before.
    pub trials: Trials,
}

/// Rules on trial that match a packet, by their places. Beyond [`MAX_TRIALS`] such rules, none is noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trials {
    places: [u16; MAX_TRIALS],
    len: u8,
}

impl Trials {
    /// The places, in the order in which rules are tried.
    pub fn places(&self) -> &[u16] {
        &self.places[..usize::from(self.len)]
    }

    fn note(&mut self, place: u16) {
        if let Some(free) = self.places.get_mut(usize::from(self.len)) {
            *free = place;
            self.len += 1;
        }
    }
}

/// What a list found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The first rule that matches and is not on trial, by its place.
    Rule(u16),
    /// No other rule matches.
    Default,
    /// A rule may match, and nothing before it does: this field, which the packet's parser could not see,
    /// decides.
    Unknown(FieldId),
}

impl RuleList {
    /// The first rule that matches a packet and is not on trial. `unseen` says which fields of the key are
    /// unknown.
    pub fn look_up(&self, sets: &Sets, key: &FlowKey, unseen: Unseen) -> Answer {
        let mut noted = FlowMask::ANY;
        let mut asked = Dimensions::default();
        let mut candidates = Candidates::all(self.rules.len());
        let mut trials = Trials::default();
        let outcome = loop {
            let Some(first) = candidates.first() else {
                break Outcome::Default;
            };
            let mut open = self.dimensions[usize::from(first)]
                .without(asked)
                .iter()
                .peekable();
            let on_trial = self.rules[usize::from(first)].trial;
            let Some(&unknown) = open.peek() else {
                if on_trial {
                    trials.note(first);
                    candidates.remove(first);
                    continue;
                }
                break Outcome::Rule(first);
            };
            let Some(dimension) = open.find(|dimension| !unseen.hides(dimension.field())) else {
                if on_trial {
                    candidates.remove(first);
                    continue;
                }
                break Outcome::Unknown(unknown.field());
            };
            if let Some(index) = &self.indices[dimension as usize] {
                index.narrow(sets, key, &mut candidates, &mut noted);
            }
            asked.insert(dimension);
        };
        Answer {
            outcome,
            noted,
            trials,
        }
    }

    /// What the list says with this outcome. `None` if a field is unknown: whether such a packet is read
    /// further or dropped is the caller's decision, and passing it is not among the choices.
    pub fn verdict(&self, outcome: Outcome) -> Option<Verdict> {
        match outcome {
            Outcome::Rule(place) => Some(self.rules[usize::from(place)].verdict),
            Outcome::Default => Some(self.default),
            Outcome::Unknown(_) => None,
        }
    }

    /// Rules in the order in which they are tried.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The place of the rule with this number.
    pub fn place_of(&self, number: u32) -> Option<u16> {
        self.places.get(&number).copied()
    }

    /// What happens to packets that match no rule.
    pub fn default_verdict(&self) -> Verdict {
        self.default
    }

    /// Adds to the counts of a rule, or of the default. `counts.last` is the time of the last packet. Any
    /// thread may.
    pub fn count(&self, outcome: Outcome, counts: RuleCounts) {
        if let Some(place) = self.counter(outcome) {
            self.counters.add(place, counts);
        }
    }

    /// The counts of a rule or of the default.
    pub fn counts(&self, outcome: Outcome) -> RuleCounts {
        let place = self.counter(outcome);
        place.map_or_else(RuleCounts::default, |place| self.counters.get(place))
    }

    /// Takes over the counts of the version that this list has replaced: of `rules` rules, from the place
    /// `from` on. Returns the place where the next call goes on; `None` after the last. Counts of rules
    /// that are gone, by number, end. Threads may still count in the old version: call this once more when
    /// no thread can.
    pub fn take_counts(&self, old: &RuleList, from: usize, rules: usize) -> Option<usize> {
        let end = old.rules.len();
        if from == 0 {
            self.counters.add(self.rules.len(), old.counters.take(end));
        }
        let next = from.saturating_add(rules).min(end);
        for place in from..next {
            let counts = old.counters.take(place);
            if let Some(here) = self.place_of(old.rules[place].number) {
                self.counters.add(here.into(), counts);
            }
        }
        (next < end).then_some(next)
    }

    /// Whether a decision that used this list may be wrong after the change of a set. The decision holds
    /// for packets that agree with `key` in the bits `noted`, which may have bits of other look-ups
    /// besides.
    pub fn may_concern(&self, change: &SetChange, key: &FlowKey, noted: &FlowMask) -> bool {
        let class = Class { key, noted };
        let mut indices = self.indices.iter().zip(Dimension::ALL);
        indices.any(|(index, dimension)| {
            let names_set = index.as_ref().is_some_and(|index| index.has_set(change.set));
            names_set && class.is_about(dimension) && {
                let (value, known, long_address) = class.value(dimension);
                // A decision that asked an address knows the Ethernet type.
                !class.knows_version() && dimension.is_address()
                    || change.may_meet(dimension, long_address, value, known)
            }
        })
    }

    /// The sets that rules name, each with the kind that it must have.
    pub(crate) fn sets(&self) -> impl Iterator<Item = (SetId, SetKind)> {
        let indices = self.indices.iter().zip(Dimension::ALL);
        indices
            .filter_map(|(index, dimension)| Some((index.as_ref()?, dimension)))
            .flat_map(|(index, dimension)| {
                let kind = match dimension {
                    Dimension::InPort => SetKind::Ports,
                    Dimension::EthSrc | Dimension::EthDst => SetKind::Macs,
                    _ => SetKind::Addresses,
                };
                index.sets().map(move |set| (set, kind))
            })
    }

    /// Bytes of rules, indices and counters.
    pub fn memory(&self) -> usize {
        let indices: usize = self.indices.iter().flatten().map(|index| index.memory()).sum();
        size_of_val(&*self.rules)
            + size_of_val(&*self.dimensions)
            + self.places.len() * size_of::<(u32, u16)>()
            + indices
            + self.counters.memory()
    }

    fn counter(&self, outcome: Outcome) -> Option<usize> {
        match outcome {
            Outcome::Rule(place) => Some(place.into()),
            Outcome::Default => Some(self.rules.len()),
            Outcome::Unknown(_) => None,
        }
    }
}

/// The packets that a decision holds for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class<'a> {
    pub key: &'a FlowKey,
    pub noted: &'a FlowMask,
}

impl Class<'_> {
    /// Whether a packet of the class may fulfil all conditions; sets may have any members.
    pub fn may_meet(&self, conditions: &Conditions) -> bool {
        conditions.iter().all(|(dimension, condition)| {
            let (value, known, _) = self.value(*dimension);
            !self.knows_version() && dimension.is_address() || condition.may_hold(*dimension, value, known)
        })
    }

    /// Whether packets of the class have one IP version, or none.
    fn knows_version(&self) -> bool {
        self.noted.is_exact(FieldId::EthType.field())
    }

    /// Whether the decision has compared any bit of the dimension.
    fn is_about(&self, dimension: Dimension) -> bool {
        dimension.field().field().get(&self.noted.0.words) != 0
    }

    /// The dimension's value and which bits of it are the same for all packets of the class, and whether it
    /// is an IPv6 address.
    fn value(&self, dimension: Dimension) -> (u128, u128, bool) {
        let long_address = dimension.is_address() && self.key.eth_type() == IPV6;
        let value = dimension.value(self.key, long_address);
        (value, dimension.value(&self.noted.0, long_address), long_address)
    }
}
