//! Decisions that depend on a flow, or on the rules of a list.
//!
//! Each flow, and each list, has notes of the decisions that were composed of it: whoever composes one finds
//! it there if it exists, and a change ends those that it may concern. A decision takes its notes out when it
//! ends, and when it is dropped: there are as many notes as caches hold decisions, and no search for others.
//!
//! Decisions of a list are noted besides by the values that sets of the list are about
//! ([`rule_list::Beginning`]), so the change of a member looks at the decisions concerned and few others,
//! however many there are. Those that stand on rules alone are noted by their input port; others end with the
//! flows that are behind the port's filters.
//!
//! A change of a rule, or of a member that is a whole network, reads the outlines of all decisions of the
//! list ([`rule_list::Outline`]), which are in the notes, and looks at the few decisions that it may concern.
//! The notes are in parts, each with a lock of its own that is held while the part is read: some nanoseconds
//! for each note.
//!
//! No decision may be dropped while a lock is held here.

use crate::class::Class;
use crate::decision::{Decision, Part, end_composed, same};
use crate::hash::Seed;
use flow::PortId;
use hashbrown::HashTable;
use parking_lot::Mutex;
use rule_list::{Beginning, ListChange, Outline, Place, RuleList, SetChange, SetFields, Sought, Standing};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Weak};

/// Parts of [`SharedDependents`].
const PARTS: usize = 64;

/// Changes of members that are sought at a time.
const CHANGES_PER_STEP: usize = 64;

/// Programs of more bytes are not kept: each flow may keep one.
const KEPT_BYTES: usize = 1024;

/// Decisions that a flow, or the rules of a list, are a part of. What is noted of each besides is nothing for
/// a flow, and an [`Outline`] for a list.
#[derive(Debug)]
pub(crate) struct Dependents<S = ()>(Mutex<List<S>>);

#[derive(Debug)]
struct List<S> {
    noted: Notes<S>,
    /// Of a rule list.
    by_value: Option<Box<ByValue>>,
    /// The last one, unless it is large. If there are more flows than the caches of the threads hold, most
    /// decisions are in no cache, and would be composed again for each packet. A flow that has several is
    /// likely to have them in a cache.
    kept: Option<Arc<Decision>>,
}

/// Decisions by values of their packets.
#[derive(Debug, Default)]
struct ByValue {
    /// By the hash of a key and the decision's address, as many may have one key.
    noted: BTreeMap<(u64, usize), Weak<Decision>>,
    /// The lengths of beginnings that there ever were.
    lens: Vec<(Place, u8)>,
}

/// Decisions by a hash. Few have one in common.
#[derive(Debug)]
struct Notes<S>(HashTable<Noted<S>>);

#[derive(Debug)]
struct Noted<S> {
    hash: u64,
    decision: Weak<Decision>,
    besides: S,
}

/// Decisions with one hash.
type Few = SmallVec<[Arc<Decision>; 4]>;

impl<S> Default for Dependents<S> {
    fn default() -> Self {
        Dependents(Mutex::new(List {
            noted: Notes(HashTable::new()),
            by_value: None,
            kept: None,
        }))
    }
}

impl<S> Notes<S> {
    fn add(&mut self, hash: u64, decision: &Arc<Decision>, besides: S) {
        let decision = Arc::downgrade(decision);
        let noted = Noted {
            hash,
            decision,
            besides,
        };
        self.0.insert_unique(hash, noted, |noted| noted.hash);
    }

    fn remove(&mut self, hash: u64, decision: &Decision) {
        let is_it =
            |noted: &Noted<S>| noted.hash == hash && noted.decision.as_ptr() == std::ptr::from_ref(decision);
        if let Ok(found) = self.0.find_entry(hash, is_it) {
            found.remove();
        }
    }

    fn with(&self, hash: u64) -> impl Iterator<Item = Arc<Decision>> {
        let noted = self.0.iter_hash(hash).filter(move |noted| noted.hash == hash);
        noted.filter_map(|noted| noted.decision.upgrade())
    }

    fn all(&self) -> impl Iterator<Item = Arc<Decision>> {
        self.filter(|_| true)
    }

    /// Decisions by what is noted besides.
    fn filter(&self, is_it: impl Fn(&S) -> bool) -> impl Iterator<Item = Arc<Decision>> {
        let noted = self.0.iter().filter(move |noted| is_it(&noted.besides));
        noted.filter_map(|noted| noted.decision.upgrade())
    }
}

/// A value by which decisions are noted.
struct Key {
    hash: u64,
    len: Option<(Place, u8)>,
}

impl Key {
    fn of_port(in_port: u32) -> Key {
        Key {
            hash: Seed::process().of_words([in_port.into(), 0, 0, 0]),
            len: None,
        }
    }

    fn of_beginning(beginning: &Beginning) -> Key {
        let Beginning { place, len, bits } = *beginning;
        let kind = 1 << 32 | u64::from(place.number()) << 8 | u64::from(len);
        Key {
            hash: Seed::process().of_words([kind, (bits >> 64) as u64, bits as u64, 0]),
            len: Some((place, len)),
        }
    }
}

impl<S> Dependents<S> {
    /// A decision that holds and was composed of these flows in this order, the first of which this list
    /// belongs to.
    pub fn find(&self, hash: u64, parts: &[Part], class: Option<&Class>) -> Option<Arc<Decision>> {
        let is_it = |decision: &Decision| {
            decision.is_live() && same(decision.parts(), parts) && decision.class() == class
        };
        let list = self.0.lock();
        if let Some(kept) = list.kept.as_ref().filter(|kept| is_it(kept)) {
            return Some(Arc::clone(kept));
        }
        let alive: Few = list.noted.with(hash).collect();
        drop(list);
        alive.into_iter().find(|decision| is_it(decision))
    }

    /// The decision that was noted last, if it is kept.
    pub fn last(&self) -> Option<Arc<Decision>> {
        self.0.lock().kept.clone()
    }

    fn note_by(&self, hash: u64, decision: &Arc<Decision>, besides: S, keys: &[Key]) {
        let keeps = decision.program().bytes() <= KEPT_BYTES;
        let mut list = self.0.lock();
        let before = keeps.then(|| list.kept.replace(Arc::clone(decision)));
        list.noted.add(hash, decision, besides);
        if !keys.is_empty() {
            let by_value = list.by_value.get_or_insert_default();
            keys.iter().for_each(|key| by_value.add(key, decision));
        }
        drop(list);
        drop(before);
    }

    pub fn forget(&self, hash: u64, decision: &Decision) {
        self.forget_by(hash, decision, &[]);
    }

    fn forget_by(&self, hash: u64, decision: &Decision, keys: &[Key]) {
        let mut list = self.0.lock();
        list.noted.remove(hash, decision);
        if let Some(by_value) = &mut list.by_value {
            keys.iter().for_each(|key| by_value.remove(key, decision));
        }
        let kept = list.kept.take_if(|kept| std::ptr::eq(&**kept, decision));
        drop(list);
        drop(kept);
    }

    /// Decisions that are noted by that value, and perhaps others.
    fn with(&self, key: &Key) -> Vec<Arc<Decision>> {
        let list = self.0.lock();
        let by_value = list.by_value.iter();
        by_value.flat_map(|by_value| by_value.with(key)).collect()
    }

    /// Ends all of them.
    pub fn end(&self) {
        let (all, kept) = {
            let mut list = self.0.lock();
            (list.noted.all().collect::<Vec<_>>(), list.kept.take())
        };
        all.iter().for_each(end_composed);
        drop(kept);
    }
}

impl Dependents {
    pub fn note(&self, hash: u64, decision: &Arc<Decision>) {
        self.note_by(hash, decision, (), &[]);
    }
}

impl Dependents<Outline> {
    /// Decisions by their outlines.
    fn filter(&self, is_it: impl Fn(&Outline) -> bool) -> Vec<Arc<Decision>> {
        self.0.lock().noted.filter(is_it).collect()
    }

    /// Decisions that changes of members may concern, and perhaps others. They are found by their values if
    /// that is less to look at than their outlines, and possible.
    fn concerned(&self, changes: &[MemberChange]) -> Vec<Arc<Decision>> {
        let list = self.0.lock();
        let has_index = |by_value: &&ByValue| by_value.lens.len() < list.noted.0.len();
        let by_value = list.by_value.as_deref().filter(has_index);
        let mut found = Vec::new();
        let mut is_found =
            |change: &&MemberChange| by_value.is_some_and(|by_value| by_value.seek(change, &mut found));
        let sought: Vec<Sought> = changes
            .iter()
            .filter(|change| !is_found(change))
            .flat_map(|change| change.sought.iter().copied())
            .collect();
        if !sought.is_empty() {
            let is_sought = |outline: &Outline| sought.iter().any(|sought| sought.finds(outline));
            found.extend(list.noted.filter(is_sought));
        }
        drop(list);
        found
    }
}

/// A change of a set for one of the lists that name it.
struct MemberChange {
    change: SetChange,
    fields: SetFields,
    sought: SmallVec<[Sought; 2]>,
}

impl ByValue {
    fn add(&mut self, key: &Key, decision: &Arc<Decision>) {
        let place = (key.hash, Arc::as_ptr(decision).addr());
        self.noted.insert(place, Arc::downgrade(decision));
        if let Some(len) = key.len
            && let Err(place) = self.lens.binary_search(&len)
        {
            self.lens.insert(place, len);
        }
    }

    fn remove(&mut self, key: &Key, decision: &Decision) {
        self.noted
            .remove(&(key.hash, std::ptr::from_ref(decision).addr()));
    }

    fn with(&self, key: &Key) -> impl Iterator<Item = Arc<Decision>> {
        let found = self.noted.range((key.hash, 0)..=(key.hash, usize::MAX));
        found.filter_map(|(_, decision)| decision.upgrade())
    }

    /// Finds decisions that a change may concern. False if any may be among them, whatever its beginning.
    fn seek(
        &self,
        MemberChange { change, fields, .. }: &MemberChange,
        found: &mut Vec<Arc<Decision>>,
    ) -> bool {
        let mut lens = self.lens.iter();
        lens.all(|&(place, len)| {
            if !change.is_about(place, *fields) {
                return true;
            }
            let key = change.beginning(place, len).map(|one| Key::of_beginning(&one));
            found.extend(key.iter().flat_map(|key| self.with(key)));
            key.is_some()
        })
    }
}

/// Decisions that stand on any rule of a list. One list serves many ports, so they are in parts with a lock
/// each, and a change goes through one part after the other.
#[derive(Debug)]
pub(crate) struct SharedDependents {
    parts: [Dependents<Outline>; PARTS],
    /// The [`SetFields`] that rules ever named sets for.
    fields: AtomicU16,
}

impl Default for SharedDependents {
    fn default() -> Self {
        SharedDependents {
            parts: std::array::from_fn(|_| Dependents::default()),
            fields: AtomicU16::default(),
        }
    }
}

impl SharedDependents {
    /// Rules name sets for these fields from now on. To be told before any rule of theirs is found.
    pub fn add_fields(&self, fields: SetFields) {
        self.fields.fetch_or(fields.bits(), Ordering::AcqRel);
    }

    /// The part that decisions with this hash are in. The hash's low bits choose places within the part.
    pub fn part_of(&self, hash: u64) -> &Dependents<Outline> {
        &self.parts[(hash >> 48) as usize % PARTS]
    }

    pub fn note(&self, hash: u64, decision: &Arc<Decision>) {
        let (outline, keys) = (self.outline(decision), self.keys(decision));
        self.part_of(hash).note_by(hash, decision, outline, &keys);
    }

    pub fn forget(&self, hash: u64, decision: &Decision) {
        let keys = self.keys(decision);
        self.part_of(hash).forget_by(hash, decision, &keys);
    }

    fn outline(&self, decision: &Decision) -> Outline {
        let mut rules = decision.parts().iter().filter_map(|part| part.flow.rule_of(self));
        let standing = match (rules.next(), rules.next()) {
            (Some(rule), None) => rule.number.map_or(Standing::Default, Standing::Rule),
            _ => Standing::Several,
        };
        match decision.class().filter(|class| !class.was_changed) {
            Some(class) => {
                let (key, noted) = class.key();
                Outline::new(&key, &noted, standing)
            }
            None => Outline::of_any(standing),
        }
    }

    fn keys(&self, decision: &Decision) -> SmallVec<[Key; 8]> {
        let Some(class) = decision.class() else {
            return SmallVec::new();
        };
        let fields = SetFields::from_bits(self.fields.load(Ordering::Acquire));
        let stands_alone = decision.parts().iter().all(|part| part.flow.is_rule());
        let port = stands_alone.then(|| Key::of_port(class.in_port)).into_iter();
        if class.was_changed {
            let any = fields.of_any_value().map(|any| Key::of_beginning(&any));
            port.chain(any).collect()
        } else {
            let (key, noted) = class.key();
            let beginnings = fields.beginnings(&key, &noted);
            port.chain(beginnings.iter().map(Key::of_beginning)).collect()
        }
    }

    /// Live decisions of a part; `None` if there is no such part.
    pub fn of_part(&self, part: usize) -> Option<Vec<Arc<Decision>>> {
        let mut decisions = self.parts.get(part)?.filter(|_| true);
        decisions.retain(|decision| decision.is_live());
        Some(decisions)
    }

    /// Ends all decisions of a part. False if there is no such part.
    pub fn end_part(&self, part: usize) -> bool {
        self.parts.get(part).is_some_and(|part| {
            part.end();
            true
        })
    }

    /// Ends those decisions of a part that a change of the list may concern. False if there is no such part.
    pub fn end_of_rules(&self, part: usize, change: &ListChange) -> bool {
        self.parts.get(part).is_some_and(|part| {
            end_concerned(part.filter(|outline| change.may_meet(outline)), |class| {
                let may_concern = |class: &Class| {
                    let (key, noted) = class.key();
                    change.may_concern(&key, &noted)
                };
                class.is_none_or(|class| class.was_changed || may_concern(class))
            });
            true
        })
    }

    /// Ends decisions that changes of sets may concern, which this list names: step by step. False if there
    /// is no such step.
    pub fn end_of_members(&self, step: usize, list: &RuleList, changes: &[SetChange]) -> bool {
        let part = &self.parts[step % PARTS];
        let Some(changes) = changes.chunks(CHANGES_PER_STEP).nth(step / PARTS) else {
            return false;
        };
        let changes: Vec<_> = changes
            .iter()
            .map(|change| MemberChange {
                change: *change,
                fields: list.fields_of(change.set),
                sought: list.sought(change).collect(),
            })
            .collect();
        end_concerned(part.concerned(&changes), |class| {
            let may_concern = |class: &Class| {
                let (mut changes, (key, noted)) = (changes.iter(), class.key());
                changes.any(|change| list.may_concern(&change.change, &key, &noted))
            };
            class.is_none_or(|class| class.was_changed || may_concern(class))
        });
        true
    }

    /// Ends decisions about packets that come from a port, of those that stand on rules alone.
    pub fn end_of_port(&self, port: PortId) {
        let key = Key::of_port(port.0);
        for part in &self.parts {
            end_concerned(part.with(&key), |class| {
                class.is_none_or(|class| class.in_port == port.0)
            });
        }
    }

    /// Ends all of them.
    pub fn end(&self) {
        self.parts.iter().for_each(Dependents::end);
    }
}

fn end_concerned(decisions: Vec<Arc<Decision>>, concerns: impl Fn(Option<&Class>) -> bool) {
    let live = decisions.iter().filter(|decision| decision.is_live());
    live.filter(|decision| concerns(decision.class()))
        .for_each(end_composed);
}

#[cfg(test)]
impl Dependents {
    pub(crate) fn len(&self) -> usize {
        self.0.lock().noted.0.len()
    }
}
