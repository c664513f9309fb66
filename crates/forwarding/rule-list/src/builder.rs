//! Making lists, in pieces of bounded work.
//!
//! A list never changes. A change is a new list, made beside the old one from the old one's rules, and
//! takes its place at once.
//!
//! | piece | work |
//! |---|---|
//! | [`Builder::add`], [`Builder::remove`] | one rule |
//! | [`Compiler::step`] | as many rules as the caller allows |
//! | [`Compiler::finish`] | what is left to do; nothing after the last step |

use crate::MAX_RULES;
use crate::condition::{Condition, Conditions};
use crate::dimension::{DIMENSIONS, Dimension, Dimensions};
use crate::index::Index;
use crate::list::{Class, RuleList};
use crate::outline::{Outline, Sought};
use crate::refused::Refused;
use crate::rule::{Rule, Verdict};
use flow::{FlowKey, FlowMask};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
        Compiler {
            list: RuleList {
                rules: Vec::with_capacity(rules),
                dimensions: Vec::with_capacity(rules),
                indices: [const { None }; DIMENSIONS],
                places: BTreeMap::new(),
                default: self.default,
            },
            conditions: HashMap::new(),
            old: self.old,
            old_place: 0,
            removed: self.removed,
            added: self.added,
            size: rules,
            changed: self.changed,
        }
    }

    /// The place in the old version of a rule that was not removed.
    fn place_in_old(&self, number: u32) -> Option<u16> {
        let place = self.old.as_ref()?.place_of(number)?;
        (!self.removed.contains(&place)).then_some(place)
    }
}

/// A list that is being made.
#[derive(Debug)]
pub struct Compiler {
    list: RuleList,
    /// Numbers of conditions in their dimensions.
    conditions: HashMap<(Dimension, Condition), u32>,
    old: Option<Arc<RuleList>>,
    /// The old version's rule that comes next.
    old_place: usize,
    removed: BTreeSet<u16>,
    /// Rules that were added and come later.
    added: BTreeMap<Rank, Rule>,
    /// Rules that the list will have.
    size: usize,
    changed: Changed,
}

impl Compiler {
    /// Puts up to `rules` further rules into the list. True when no rule is left.
    ///
    /// # Errors
    ///
    /// The list would exceed a limit that is not about the number of rules. No later step can mend that.
    pub fn step(&mut self, rules: usize) -> Result<bool, Refused> {
        for _ in 0..rules {
            let Some(rule) = self.next_rule() else { break };
            self.put(rule)?;
        }
        Ok(self.list.rules.len() == self.size)
    }

    /// The list, and what differs from the version that it was made from.
    ///
    /// # Errors
    ///
    /// As for [`step`](Self::step).
    pub fn finish(mut self) -> Result<(RuleList, ListChange), Refused> {
        self.step(usize::MAX)?;
        let change = ListChange {
            changed: self.changed,
        };
        Ok((self.list, change))
    }

    /// The rule that is tried next: of equal priority the old ones come first.
    fn next_rule(&mut self) -> Option<Rule> {
        let old = self.old.as_ref().map_or(&[][..], |old| &old.rules);
        while self.removed.contains(&(self.old_place as u16)) {
            self.old_place += 1;
        }
        let old = old.get(self.old_place);
        let added = self.added.first_key_value().map(|((priority, _), _)| priority.0);
        match old {
            Some(rule) if added.is_none_or(|added| added <= rule.priority) => {
                self.old_place += 1;
                Some(rule.clone())
            }
            _ => self.added.pop_first().map(|(_, rule)| rule),
        }
    }

    fn put(&mut self, rule: Rule) -> Result<(), Refused> {
        // Positions are below `MAX_RULES`, which 16 bits hold.
        let place = self.list.rules.len() as u16;
        let mut dimensions = Dimensions::default();
        for (dimension, condition) in rule.matches.conditions()? {
            dimensions.insert(dimension);
            let index = self.list.indices[dimension as usize]
                .get_or_insert_with(|| Box::new(Index::new(dimension, self.size)));
            let known = self.conditions.get(&(dimension, condition)).copied();
            let number = match known {
                Some(number) => number,
                None => {
                    let number = index.add_condition(condition)?;
                    self.conditions.insert((dimension, condition), number);
                    number
                }
            };
            index.add_rule(number, place, self.size);
        }
        self.list.dimensions.push(dimensions);
        self.list.places.insert(rule.number, place);
        self.list.rules.push(rule);
        Ok(())
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
