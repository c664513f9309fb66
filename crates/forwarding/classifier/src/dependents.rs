//! Decisions that depend on a flow, or on the rules of a list.
//!
//! Each flow, and each list, has notes of the decisions that were composed of it: whoever composes one finds
//! it there if it exists, and a change ends those that it may concern. A decision takes its notes out when it
//! ends, and when it is dropped: there are as many notes as caches hold decisions, and no search for others.
//!
//! Decisions of a list are noted besides by the values that sets of the list are about
//! ([`rule_list::Beginning`]), so the change of a member looks at the decisions concerned and few others,
//! however many there are. Those that stand on rules alone are noted by their input port; others end with the
//! flows that are behind the port's filters. A change of rules goes through all of a list in parts, each with
//! a lock of its own that is held while the part's notes are read.
//!
//! No decision may be dropped while a lock is held here.

use crate::class::Class;
use crate::decision::{Decision, Part, end_composed, same};
use crate::hash::Seed;
use flow::PortId;
use hashbrown::HashTable;
use parking_lot::Mutex;
use rule_list::{Beginning, Place, RuleList, SetChange, SetFields};
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

/// Decisions that a flow is a part of.
#[derive(Debug, Default)]
pub(crate) struct Dependents(Mutex<List>);

#[derive(Debug, Default)]
struct List {
    noted: Notes,
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
#[derive(Debug, Default)]
struct Notes(HashTable<Noted>);

#[derive(Debug)]
struct Noted {
    hash: u64,
    decision: Weak<Decision>,
}

/// Decisions with one hash.
type Few = SmallVec<[Arc<Decision>; 4]>;

impl Notes {
    fn add(&mut self, hash: u64, decision: &Arc<Decision>) {
        let decision = Arc::downgrade(decision);
        self.0
            .insert_unique(hash, Noted { hash, decision }, |noted| noted.hash);
    }

    fn remove(&mut self, hash: u64, decision: &Decision) {
        let is_it =
            |noted: &Noted| noted.hash == hash && noted.decision.as_ptr() == std::ptr::from_ref(decision);
        if let Ok(found) = self.0.find_entry(hash, is_it) {
            found.remove();
        }
    }

    fn with(&self, hash: u64) -> impl Iterator<Item = Arc<Decision>> {
        let noted = self.0.iter_hash(hash).filter(move |noted| noted.hash == hash);
        noted.filter_map(|noted| noted.decision.upgrade())
    }

    fn all(&self) -> impl Iterator<Item = Arc<Decision>> {
        self.0.iter().filter_map(|noted| noted.decision.upgrade())
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

impl Dependents {
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

    pub fn note(&self, hash: u64, decision: &Arc<Decision>) {
        self.note_by(hash, decision, &[]);
    }

    fn note_by(&self, hash: u64, decision: &Arc<Decision>, keys: &[Key]) {
        let keeps = decision.program().bytes() <= KEPT_BYTES;
        let mut list = self.0.lock();
        let before = keeps.then(|| list.kept.replace(Arc::clone(decision)));
        list.noted.add(hash, decision);
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

    /// All that are there.
    fn all(&self) -> Vec<Arc<Decision>> {
        self.0.lock().noted.all().collect()
    }

    /// Decisions that are noted by that value, and perhaps others.
    fn with(&self, key: &Key) -> Vec<Arc<Decision>> {
        let list = self.0.lock();
        let by_value = list.by_value.iter();
        by_value.flat_map(|by_value| by_value.with(key)).collect()
    }

    /// Decisions that changes of members may concern, and perhaps others: all, if that is less to look at.
    fn concerned(&self, changes: &[(SetChange, SetFields)]) -> Vec<Arc<Decision>> {
        let list = self.0.lock();
        let Some(by_value) = &list.by_value else {
            return list.noted.all().collect();
        };
        let mut found = Vec::new();
        if by_value.lens.len() < list.noted.0.len() && by_value.seek(changes, &mut found) {
            return found;
        }
        found.extend(list.noted.all());
        drop(list);
        found
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

    /// Finds decisions that changes of members may concern. False if any may be among them, whatever its
    /// beginning.
    fn seek(&self, changes: &[(SetChange, SetFields)], found: &mut Vec<Arc<Decision>>) -> bool {
        for (change, fields) in changes {
            for &(place, len) in self
                .lens
                .iter()
                .filter(|(place, _)| change.is_about(*place, *fields))
            {
                let Some(beginning) = change.beginning(place, len) else {
                    return false;
                };
                found.extend(self.with(&Key::of_beginning(&beginning)));
            }
        }
        true
    }
}

/// Decisions that stand on any rule of a list. One list serves many ports, so they are in parts with a lock
/// each, and a change goes through one part after the other.
#[derive(Debug)]
pub(crate) struct SharedDependents {
    parts: [Dependents; PARTS],
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
    pub fn part_of(&self, hash: u64) -> &Dependents {
        &self.parts[(hash >> 48) as usize % PARTS]
    }

    pub fn note(&self, hash: u64, decision: &Arc<Decision>) {
        let keys = self.keys(decision);
        self.part_of(hash).note_by(hash, decision, &keys);
    }

    pub fn forget(&self, hash: u64, decision: &Decision) {
        let keys = self.keys(decision);
        self.part_of(hash).forget_by(hash, decision, &keys);
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
            let beginnings = fields.beginnings(&class.key, &class.noted);
            port.chain(beginnings.map(|one| Key::of_beginning(&one)))
                .collect()
        }
    }

    /// Ends those decisions of a part that a change concerns, by the class of packets that they hold for.
    /// False if there is no such part.
    pub fn end_part(&self, part: usize, concerns: impl Fn(Option<&Class>) -> bool) -> bool {
        self.parts.get(part).is_some_and(|part| {
            end_concerned(part.all(), concerns);
            true
        })
    }

    /// As [`end_part`](Self::end_part), for changes of sets that this list names: step by step. False if
    /// there is no such step.
    pub fn end_of_members(&self, step: usize, list: &RuleList, changes: &[SetChange]) -> bool {
        let part = &self.parts[step % PARTS];
        let Some(changes) = changes.chunks(CHANGES_PER_STEP).nth(step / PARTS) else {
            return false;
        };
        let changes: Vec<_> = changes
            .iter()
            .map(|change| (*change, list.fields_of(change.set)))
            .collect();
        end_concerned(part.concerned(&changes), |class| {
            let may_concern = |class: &Class| {
                let mut changes = changes.iter();
                changes.any(|(change, _)| list.may_concern(change, &class.key, &class.noted))
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
