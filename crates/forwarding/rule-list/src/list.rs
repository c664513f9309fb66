//! A finished list and its look-up.

use crate::MAX_TRIALS;
use crate::condition::Conditions;
use crate::dimension::{DIMENSIONS, Dimension, Dimensions, IPV6};
use crate::index::Index;
use crate::rule::{Rule, SetId, Verdict};
use crate::rule_bits::Candidates;
use crate::sets::{SetChange, SetKind, Sets};
use flow::{FieldId, FlowKey, FlowMask, Unseen};

/// Rules in the order in which they are tried, with an index for each dimension that any of them is about.
#[derive(Debug)]
pub struct RuleList {
    pub(crate) rules: Vec<Rule>,
    /// The dimensions of each rule's conditions.
    pub(crate) dimensions: Vec<Dimensions>,
    pub(crate) indices: [Option<Box<Index>>; DIMENSIONS],
    /// Numbers of the rules, in order, each with the rule's place.
    pub(crate) places: Vec<(u32, u16)>,
    pub(crate) default: Verdict,
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
                index.narrow((&self.rules, sets), key, &mut candidates, &mut noted);
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
        let found = self
            .places
            .binary_search_by_key(&number, |(number, _)| *number)
            .ok()?;
        Some(self.places[found].1)
    }

    /// What happens to packets that match no rule.
    pub fn default_verdict(&self) -> Verdict {
        self.default
    }

    /// Whether rules name the set.
    pub fn names(&self, set: SetId) -> bool {
        self.indices.iter().flatten().any(|index| index.has_set(set))
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

    /// Bytes of rules and indices.
    pub fn memory(&self) -> usize {
        let indices: usize = self.indices.iter().flatten().map(|index| index.memory()).sum();
        size_of_val(&*self.rules) + size_of_val(&*self.dimensions) + size_of_val(&*self.places) + indices
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
    pub fn knows_version(&self) -> bool {
        self.noted.is_exact(FieldId::EthType.field())
    }

    /// Whether the decision has compared any bit of the dimension.
    fn is_about(&self, dimension: Dimension) -> bool {
        dimension.field().field().get(&self.noted.0.words) != 0
    }

    /// The dimension's value and which bits of it are the same for all packets of the class, and whether it
    /// is an IPv6 address.
    pub fn value(&self, dimension: Dimension) -> (u128, u128, bool) {
        let long_address = dimension.is_address() && self.key.eth_type() == IPV6;
        let value = dimension.value(self.key, long_address);
        (value, dimension.value(&self.noted.0, long_address), long_address)
    }
}
