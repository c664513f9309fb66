//! Making lists, in pieces of bounded work.
//!
//! A list never changes. A change is a new list, made beside the old one from the old one's rules, and
//! takes its place at once. Rules that stay keep their conditions, and only get other places in the order:
//! some nanoseconds each. Those that come or go are a hundred times as much work.
//!
//! | piece | work |
//! |---|---|
//! | [`Builder::add`], [`Builder::remove`] | one rule |
//! | [`Compiler::step`] | as many rules as the caller allows, or one dimension of the former version |
//! | [`Compiler::finish`] | what is left to do; nothing after the last step |

use crate::MAX_RULES;
use crate::condition::Conditions;
use crate::dimension::{DIMENSIONS, Dimension, Dimensions};
use crate::index::Index;
use crate::list::{Class, RuleList};
use crate::outline::{Outline, Sought};
use crate::refused::Refused;
use crate::rule::{Rule, Verdict};
use crate::rule_bits::Moves;
use flow::{FlowKey, FlowMask};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most rules that a [`ListChange`] names. A change of more rules concerns every decision.
const MAX_CHANGED: usize = 32;

/// Order in which rules are tried: by priority, then by age.
type Rank = (Reverse<u32>, usize);

/// The rules of a list to be.
#[derive(Debug)]
pub struct Builder {
    default: Verdict,
    /// The version that the list will replace, whose rules stay unless they are removed.
    old: Option<Arc<RuleList>>,
    /// Places of its rules that are removed.
    removed: BTreeSet<u16>,
    added: BTreeMap<Rank, Rule>,
    /// Ranks of the added rules, by number.
    ranks: BTreeMap<u32, Rank>,
    /// Rules ever added.
    age: usize,
    changed: Changed,
}

impl Builder {
    /// A list without rules.
    pub fn new(default: Verdict) -> Builder {
        Builder {
            default,
            old: None,
            removed: BTreeSet::new(),
            added: BTreeMap::new(),
            ranks: BTreeMap::new(),
            age: 0,
            changed: Changed::Everything,
        }
    }

    /// A list with the rules of another one. Rules that are added are tried behind its rules of equal
    /// priority.
    pub fn from_list(old: Arc<RuleList>) -> Builder {
        Builder {
            old: Some(Arc::clone(&old)),
            changed: Changed::Rules(Vec::new()),
            ..Builder::new(old.default)
        }
    }

    /// Changes the verdict about packets that match no rule.
    pub fn set_default(&mut self, default: Verdict) {
        if self.default != default {
            self.default = default;
            self.changed = Changed::Everything;
        }
    }

    /// Adds a rule.
    ///
    /// # Errors
    ///
    /// There are too many rules, the number is taken, or no packet could match the rule as its author
    /// meant.
    pub fn add(&mut self, rule: Rule) -> Result<(), Refused> {
        if self.len() == MAX_RULES {
            return Err(Refused::TooManyRules);
        }
        if self.ranks.contains_key(&rule.number) || self.place_in_old(rule.number).is_some() {
            return Err(Refused::SameNumber(rule.number));
        }
        if let Verdict::Mark(marks) = rule.verdict
            && !marks.are_valid()
        {
            return Err(Refused::BadRange);
        }
        self.changed.note(rule.matches.conditions()?, None);
        let rank = (Reverse(rule.priority), self.age);
        self.age += 1;
        self.ranks.insert(rule.number, rank);
        self.added.insert(rank, rule);
        Ok(())
    }

    /// Removes the rule with this number. False if there is none.
    pub fn remove(&mut self, number: u32) -> bool {
        if let Some(rank) = self.ranks.remove(&number) {
            self.added.remove(&rank);
            return true;
        }
        let Some(place) = self.place_in_old(number) else {
            return false;
        };
        self.removed.insert(place);
        let old = self.old.as_ref().map(|old| &old.rules[usize::from(place)]);
        if let Some(Ok(conditions)) = old.map(|rule| rule.matches.conditions()) {
            self.changed.note(conditions, Some(number));
        }
        true
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        let old = self.old.as_ref().map_or(0, |old| old.rules.len());
        old - self.removed.len() + self.added.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the collection of rules and begins to make the list.
    pub fn compile(self) -> Compiler {
        let rules = self.len();
        let former = self.old.as_ref().map_or(0, |old| old.rules.len());
        Compiler {
            list: RuleList {
                rules: Vec::with_capacity(rules),
                dimensions: Vec::with_capacity(rules),
                indices: [const { None }; DIMENSIONS],
                places: Vec::new(),
                default: self.default,
            },
            old: self.old,
            old_place: 0,
            removed: self.removed,
            added: self.added,
            moves: Moves::new(former, rules),
            moved: 0,
            indexed: 0,
            changed: self.changed,
        }
    }

    /// The place in the old version of a rule that was not removed.
    fn place_in_old(&self, number: u32) -> Option<u16> {
        let place = self.old.as_ref()?.place_of(number)?;
        (!self.removed.contains(&place)).then_some(place)
    }
}

/// A list that is being made: its rules get their places, then each index of the former version is taken
/// over, and at last rules that went are taken out of the indices, and rules that came are put in.
#[derive(Debug)]
pub struct Compiler {
    list: RuleList,
    old: Option<Arc<RuleList>>,
    /// The old version's rule that comes next.
    old_place: usize,
    /// Places of rules that went, as long as indices may have their conditions.
    removed: BTreeSet<u16>,
    /// Rules that were added and have no place yet.
    added: BTreeMap<Rank, Rule>,
    moves: Moves,
    /// Dimensions that were taken over.
    moved: usize,
    /// Rules that were added and are in the indices.
    indexed: usize,
    changed: Changed,
}

impl Compiler {
    /// Does a piece of work, which is about up to `rules` rules, or about all rules that stay in one
    /// dimension. True when nothing is left to do.
    ///
    /// # Errors
    ///
    /// The list would exceed a limit that is not about the number of rules. No later step can mend that.
    pub fn step(&mut self, rules: usize) -> Result<bool, Refused> {
        if self.list.rules.len() < self.moves.rules {
            self.place_rules(rules);
        } else if let Some(dimension) = Dimension::ALL.get(self.moved) {
            self.take_over(*dimension);
            self.moved += 1;
        } else if !self.removed.is_empty() {
            self.forget_rules(rules)?;
        } else {
            self.index_rules(rules)?;
        }
        let is_whole = self.list.rules.len() == self.moves.rules && self.moved == DIMENSIONS;
        Ok(is_whole && self.removed.is_empty() && self.indexed == self.moves.added.len())
    }

    /// The list, and what differs from the version that it was made from.
    ///
    /// # Errors
    ///
    /// As for [`step`](Self::step).
    pub fn finish(mut self) -> Result<(RuleList, ListChange), Refused> {
        while !self.step(usize::MAX)? {}
        let indices = self.list.indices.iter_mut().flatten();
        indices.for_each(|index| index.finish(self.moves.rules));
        let change = ListChange {
            changed: self.changed,
        };
        Ok((self.list, change))
    }

    /// Puts up to `most` further rules into the list.
    fn place_rules(&mut self, most: usize) {
        for _ in 0..most {
            // Places are below `MAX_RULES`, which 16 bits hold.
            let place = self.list.rules.len() as u16;
            let Some((rule, dimensions)) = self.next_rule(place) else {
                break;
            };
            self.list.rules.push(rule);
            self.list.dimensions.push(dimensions);
        }
        if self.list.rules.len() == self.moves.rules {
            self.number_rules();
        }
    }

    /// The rule for that place: of equal priority the old ones come first. Dimensions of new rules are not
    /// known yet.
    fn next_rule(&mut self, place: u16) -> Option<(Rule, Dimensions)> {
        while self.removed.contains(&(self.old_place as u16)) {
            self.old_place += 1;
        }
        let old = self.old.as_deref();
        let next = old.and_then(|old| Some((old.rules.get(self.old_place)?, old.dimensions[self.old_place])));
        let added = self.added.first_key_value().map(|((priority, _), _)| priority.0);
        match next {
            Some((rule, dimensions)) if added.is_none_or(|added| added <= rule.priority) => {
                self.moves.set(self.old_place as u16, place);
                self.old_place += 1;
                Some((rule.clone(), dimensions))
            }
            _ => {
                let (_, rule) = self.added.pop_first()?;
                self.moves.added.push(place);
                Some((rule, Dimensions::default()))
            }
        }
    }

    /// Takes over what the former version has about a dimension.
    fn take_over(&mut self, dimension: Dimension) {
        let old = self.old.as_ref();
        let index = old.and_then(|old| old.indices[dimension as usize].as_ref());
        self.list.indices[dimension as usize] = index.map(|index| Box::new(index.moved(&self.moves)));
    }

    /// Takes conditions out of the indices that up to `most` rules had which went, and no other rule has.
    fn forget_rules(&mut self, most: usize) -> Result<(), Refused> {
        for _ in 0..most {
            let (Some(place), Some(old)) = (self.removed.pop_first(), &self.old) else {
                break;
            };
            for (dimension, condition) in old.rules[usize::from(place)].matches.conditions()? {
                let index = &mut self.list.indices[dimension as usize];
                index
                    .iter_mut()
                    .for_each(|index| index.forget_condition(condition));
                index.take_if(|index| !index.has_conditions());
            }
        }
        Ok(())
    }

    /// Puts up to `most` rules that came into the indices.
    fn index_rules(&mut self, most: usize) -> Result<(), Refused> {
        let size = self.moves.rules;
        for &place in self.moves.added.iter().skip(self.indexed).take(most) {
            let dimensions = &mut self.list.dimensions[usize::from(place)];
            for (dimension, condition) in self.list.rules[usize::from(place)].matches.conditions()? {
                dimensions.insert(dimension);
                let index = &mut self.list.indices[dimension as usize];
                index
                    .get_or_insert_with(|| Box::new(Index::new(dimension, size)))
                    .add_rule(condition, place, size)?;
            }
            self.indexed += 1;
        }
        Ok(())
    }

    /// Notes the places of all rules by number: of those that stay in the former order.
    fn number_rules(&mut self) {
        let old = self.old.iter().flat_map(|old| &old.places);
        let stay = old.filter_map(|&(number, place)| Some((number, self.moves.place(place)?)));
        let added = self.moves.added.iter();
        let come = added.map(|&place| (self.list.rules[usize::from(place)].number, place));
        self.list.places = stay.chain(come).collect();
        self.list.places.sort_by_key(|(number, _)| *number);
    }
}

/// The difference between a list and the version that it was made from.
#[derive(Clone, Debug)]
pub struct ListChange {
    changed: Changed,
}

#[derive(Clone, Debug)]
enum Changed {
    Everything,
    /// The rules that came or went.
    Rules(Vec<ChangedRule>),
}

#[derive(Clone, Debug)]
struct ChangedRule {
    conditions: Conditions,
    sought: Sought,
}

impl Changed {
    /// Notes a rule that comes, or one that goes with its number.
    fn note(&mut self, conditions: Conditions, gone: Option<u32>) {
        match self {
            Changed::Rules(rules) if rules.len() < MAX_CHANGED => {
                let sought = Sought::of_rule(&conditions, gone);
                rules.push(ChangedRule { conditions, sought });
            }
            _ => *self = Changed::Everything,
        }
    }
}

impl ListChange {
    /// Whether a decision that used the old version may be wrong with the new one: whether a rule that came
    /// or went may match a packet that agrees with `key` in the bits `noted`.
    pub fn may_concern(&self, key: &FlowKey, noted: &FlowMask) -> bool {
        let class = Class { key, noted };
        match &self.changed {
            Changed::Everything => true,
            Changed::Rules(rules) => rules.iter().any(|rule| class.may_meet(&rule.conditions)),
        }
    }

    /// Whether [`may_concern`](Self::may_concern) is to be asked about a decision with this outline. If not,
    /// the decision stays right.
    pub fn may_meet(&self, outline: &Outline) -> bool {
        match &self.changed {
            Changed::Everything => true,
            Changed::Rules(rules) => rules.iter().any(|rule| rule.sought.finds(outline)),
        }
    }
}
