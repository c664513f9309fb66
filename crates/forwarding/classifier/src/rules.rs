//! The rule lists and sets of all controllers, between threads that look up and the thread that changes them.
//!
//! Look-ups read under a lock that a change holds for one exchange, or for the path of one member. A rule has
//! a [`FlowEntry`] from the first look-up on that finds it: its program lets packets go on or drops them, and
//! it has the rule's statistics. The entry lasts over versions of the list, as long as a rule has that number
//! and verdict.
//!
//! # What a change ends
//!
//! Decisions that stand on rules are noted with the list ([`SharedDependents`]), each with the [`Class`] of
//! packets that it holds for. A change ends those of which the list says that they may be wrong, in pieces
//! ([`Ending`]). A thread that looks up holds the lock until its decision is noted. So the change, which
//! takes the lock before, finds every decision that was made without it.
//!
//! Safe direction of error: a decision too many that ends costs a walk. A list that is missing lets nothing
//! pass.

use crate::dependents::SharedDependents;
use crate::entry::{FlowEntry, Found, RuleOrigin};
use crate::judged::{self, Judged};
use crate::rule_logs::RuleLogs;
use flow::{
    Action, ControllerId, DropReason, Edit, FieldId, FlowKey, FlowMask, FlowStats, ListId, PortId, SetField,
    Unseen, Userspace, VLAN_PRIORITY,
};
use parking_lot::{RwLock, RwLockReadGuard};
use rule_list::{
    ListChange, Marks, Member, Outcome, Refused, Rule, RuleList, RuleLists, SetChange, SetId, SetKind,
    SetState, Verdict,
};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// Members that are changed while look-ups wait: some microseconds.
const MEMBERS_PER_LOCK: usize = 16;

/// See the module's description.
#[derive(Debug)]
pub struct Rules {
    tables: RwLock<Tables>,
    /// In the place of each list that is missing.
    missing: Arc<FlowEntry>,
    /// For packets with a field that a list asks for and nobody can see.
    unseen: Arc<FlowEntry>,
    /// What rules note for users.
    pub logs: Arc<RuleLogs>,
}

/// Lists and sets of each controller.
type Tables = [Owned; ControllerId::LIMIT as usize];

#[derive(Debug, Default)]
struct Owned {
    lists: RuleLists,
    /// What belongs to each of the lists.
    states: BTreeMap<ListId, State>,
}

/// What belongs to a list, whatever its version.
#[derive(Debug)]
struct State {
    list: ListId,
    tag: u64,
    logs: Arc<RuleLogs>,
    entries: RwLock<HashMap<RuleOrigin, Arc<FlowEntry>>>,
    dependents: Arc<SharedDependents>,
}

impl Default for Rules {
    fn default() -> Self {
        let dropping = |reason| {
            let actions = vec![Action::Drop(reason)];
            Arc::new(FlowEntry::of_rule(actions, (None, None), &Arc::default(), None))
        };
        Rules {
            tables: RwLock::default(),
            missing: dropping(DropReason::NoRules),
            unseen: dropping(DropReason::DeepHeaders),
            logs: Arc::default(),
        }
    }
}

/// The lists as they are, for look-ups.
#[derive(Debug)]
pub(crate) struct RulesReading<'a> {
    rules: &'a Rules,
    tables: RwLockReadGuard<'a, Tables>,
}

impl RulesReading<'_> {
    /// What a list says about a packet, all of whose fields that lists ask for are known. Notes the bits that
    /// decided.
    pub fn look_up(&self, list: ListId, key: &FlowKey, noted: &mut FlowMask) -> Found {
        let owned = self.tables.get(usize::from(list.controller().0));
        let found = owned.and_then(|owned| {
            let answer = owned.lists.look_up(list, key, Unseen::Nothing)?;
            Some((owned.lists.get(list)?, owned.states.get(&list)?, answer))
        });
        let Some((rules, state, answer)) = found else {
            return Arc::clone(&self.rules.missing).into();
        };
        *noted = noted.union(&answer.noted);
        let rule = |place: u16| {
            let rule = &rules.rules()[usize::from(place)];
            state.entry(RuleOrigin::of(rule))
        };
        let entry = match answer.outcome {
            Outcome::Rule(place) => rule(place),
            Outcome::Default => state.entry(RuleOrigin::of_default(rules)),
            Outcome::Unknown(_) => return Arc::clone(&self.rules.unseen).into(),
        };
        Found {
            entry,
            trials: answer.trials.places().iter().map(|&place| rule(place)).collect(),
        }
    }
}

fn for_controller(data: &[u8]) -> Action {
    Action::Userspace(Userspace {
        data: data.into(),
        ..Userspace::default()
    })
}

/// The actions that give a packet marks, and let it pass.
fn marking(marks: &Marks) -> Vec<Action> {
    let set = |field, value, mask| {
        Action::Edit(Edit::Set(SetField {
            field,
            value: value & mask,
            mask,
        }))
    };
    let priority = marks.vlan_priority.map(|priority| {
        let mask = VLAN_PRIORITY;
        set(
            FieldId::VlanTci,
            u128::from(priority) << mask.trailing_zeros(),
            mask.into(),
        )
    });
    let dscp = marks
        .dscp
        .map(|dscp| set(FieldId::IpTos, u128::from(dscp) << 2, 0xfc));
    priority
        .into_iter()
        .chain(dscp)
        .chain([Action::Continue])
        .collect()
}

impl State {
    /// The entry of what was found, made if it is new.
    fn entry(&self, found: RuleOrigin) -> Arc<FlowEntry> {
        if let Some(entry) = self.entries.read().get(&found) {
            return Arc::clone(entry);
        }
        let mut entries = self.entries.write();
        Arc::clone(entries.entry(found).or_insert_with(|| self.make(found, None)))
    }

    /// An entry, whose statistics go on from those of `before`.
    fn make(&self, found: RuleOrigin, before: Option<&FlowEntry>) -> Arc<FlowEntry> {
        let actions = match found.verdict {
            _ if found.trial => vec![Action::Continue],
            Verdict::Allow => vec![Action::Continue],
            Verdict::Drop => vec![Action::Drop(DropReason::Policy)],
            Verdict::Reject => vec![Action::Drop(DropReason::Rejected)],
            Verdict::Mark(marks) => marking(&marks),
            Verdict::Copy => vec![for_controller(Verdict::COPIED), Action::Continue],
            Verdict::Ask => vec![for_controller(Verdict::ASKED)],
        };
        let log = found.log.then(|| self.logs.add(self.list, &found));
        let rule = (Some(found), log);
        Arc::new(FlowEntry::of_rule(actions, rule, &self.dependents, before))
    }

    /// Ends the entries of what a list does not find any more. A rule that differs in its log counts on.
    fn retain(&self, list: &RuleList) {
        let is_there = |found: &RuleOrigin| match found.number.map(|number| list.place_of(number)) {
            None => *found == RuleOrigin::of_default(list),
            Some(place) => {
                place.is_some_and(|place| *found == RuleOrigin::of(&list.rules()[usize::from(place)]))
            }
        };
        let mut entries = self.entries.write();
        let gone: Vec<_> = entries.extract_if(|found, _| !is_there(found)).collect();
        for (found, entry) in &gone {
            let now = RuleOrigin {
                log: !found.log,
                ..*found
            };
            if is_there(&now) {
                entries.entry(now).or_insert_with(|| self.make(now, Some(entry)));
            }
        }
        drop(entries);
        gone.iter().for_each(|(_, entry)| self.end(entry));
    }

    fn end(&self, entry: &FlowEntry) {
        entry.decision.end();
        if let Some(log) = entry.log() {
            self.logs.remove(log);
        }
    }

    fn stats(&self, found: RuleOrigin, now_ms: u64) -> FlowStats {
        let entries = self.entries.read();
        entries
            .get(&found)
            .map_or_else(FlowStats::default, |entry| entry.stats(now_ms))
    }
}

/// A change that was made, and the decisions that it has to end.
#[derive(Debug)]
#[must_use = "packets obey the change when all steps are done"]
pub struct Ending {
    /// Decisions of each list that is concerned.
    lists: Vec<(Arc<SharedDependents>, Option<Arc<RuleList>>)>,
    change: Change,
    /// The part of the last list's decisions that is next.
    next: usize,
}

#[derive(Debug)]
enum Change {
    /// All decisions may be wrong.
    All,
    List(ListChange),
    Members(Vec<SetChange>),
}

impl Ending {
    fn new(lists: Vec<(Arc<SharedDependents>, Option<Arc<RuleList>>)>, change: Change) -> Ending {
        Ending {
            lists,
            change,
            next: 0,
        }
    }

    /// Ends a part of the decisions. False when all are done.
    pub fn step(&mut self) -> bool {
        let Some((dependents, list)) = self.lists.last() else {
            return false;
        };
        let was_there = match (&self.change, list) {
            (Change::Members(changes), Some(list)) => dependents.end_of_members(self.next, list, changes),
            (Change::List(change), _) => dependents.end_of_rules(self.next, change),
            (Change::All | Change::Members(_), _) => dependents.end_part(self.next),
        };
        if was_there {
            self.next += 1;
        } else {
            self.lists.pop();
            self.next = 0;
        }
        !self.lists.is_empty()
    }

    /// Does all steps.
    pub fn finish(mut self) {
        while self.step() {}
    }
}

impl Rules {
    pub(crate) fn read(&self) -> RulesReading<'_> {
        RulesReading {
            rules: self,
            tables: self.tables.read(),
        }
    }

    /// Runs a function on a controller's lists. An invalid controller has none.
    fn with<R>(&self, owner: ControllerId, f: impl FnOnce(&Owned) -> R) -> Option<R> {
        self.tables.read().get(usize::from(owner.0)).map(f)
    }

    fn change<R>(&self, owner: ControllerId, f: impl FnOnce(&mut Owned) -> R) -> Option<R> {
        self.tables.write().get_mut(usize::from(owner.0)).map(f)
    }

    /// Whether a list allows a packet of so many bytes, which counts for the rule that decides and for rules
    /// on trial. Nothing is kept for later packets. May be called by a thread that looks up.
    pub fn allows(&self, list: ListId, key: &FlowKey, bytes: u64, now_ms: u64) -> bool {
        let reading = RulesReading {
            rules: self,
            tables: self.tables.read_recursive(),
        };
        let found = reading.look_up(list, key, &mut FlowMask::ANY.clone());
        for entry in found.trials.iter().chain([&found.entry]) {
            entry.record(1, bytes, key.tcp_flags(), now_ms);
        }
        let rule = found.entry.rule();
        rule.is_some_and(|rule| rule.verdict.passes())
    }

    /// A list as it is.
    pub fn get(&self, list: ListId) -> Option<Arc<RuleList>> {
        self.with(list.controller(), |owned| owned.lists.get(list).cloned())
            .flatten()
    }

    /// Puts a list in the place of its former version, of which `change` is the difference if it was made
    /// from that one.
    ///
    /// # Errors
    ///
    /// As for [`RuleLists::put`].
    pub fn put(
        &self,
        id: ListId,
        list: RuleList,
        tag: u64,
        change: Option<ListChange>,
    ) -> Result<Ending, Refused> {
        let fields = list.set_fields();
        let put = self.change(id.controller(), |owned| {
            let former = owned.lists.put(id, list)?;
            let state = owned.states.entry(id).or_insert_with(|| State {
                list: id,
                tag,
                logs: Arc::clone(&self.logs),
                entries: RwLock::default(),
                dependents: Arc::default(),
            });
            state.dependents.add_fields(fields);
            state.tag = tag;
            Ok((former, Arc::clone(&state.dependents)))
        });
        let (former, dependents) = put.unwrap_or(Err(Refused::NoSuchList(id)))?;
        self.with(id.controller(), |owned| {
            if let (Some(state), Some(list)) = (owned.states.get(&id), owned.lists.get(id)) {
                state.retain(list);
            }
        });
        if former.is_none() {
            self.missing.end_dependents();
        }
        let change = change
            .filter(|_| former.is_some())
            .map_or(Change::All, Change::List);
        Ok(Ending::new(vec![(dependents, None)], change))
    }

    /// Removes a list. Nothing passes filters that name it.
    pub fn remove(&self, id: ListId) -> Ending {
        let removed = self.change(id.controller(), |owned| {
            (owned.lists.remove(id), owned.states.remove(&id))
        });
        let state = removed.and_then(|(_, state)| state);
        if let Some(state) = &state {
            let entries = state.entries.read();
            let logs = entries.values().filter_map(|entry| entry.log());
            logs.for_each(|log| self.logs.remove(log));
        }
        let dependents = state.map(|state| (state.dependents, None));
        Ending::new(dependents.into_iter().collect(), Change::All)
    }

    /// Makes an empty set.
    ///
    /// # Errors
    ///
    /// As for [`Sets::create`](rule_list::Sets::create).
    pub fn create_set(&self, owner: ControllerId, set: SetId, kind: SetKind) -> Result<(), Refused> {
        let created = self.change(owner, |owned| owned.lists.sets_mut().create(set, kind));
        created.unwrap_or(Err(Refused::NoSuchSet(set)))
    }

    /// Removes a set that no list names, in pieces of up to `members` members. True when the set is gone.
    ///
    /// # Errors
    ///
    /// As for [`Sets::remove`](rule_list::Sets::remove).
    pub fn remove_set(&self, owner: ControllerId, set: SetId, members: usize) -> Result<bool, Refused> {
        let removed = self.change(owner, |owned| owned.lists.sets_mut().remove(set, members));
        removed.unwrap_or(Err(Refused::NoSuchSet(set)))
    }

    /// Takes members out of a set and puts others in, one after the other.
    ///
    /// # Errors
    ///
    /// As for [`Sets::check`](rule_list::Sets::check); then nothing has changed.
    pub fn change_set(
        &self,
        owner: ControllerId,
        set: SetId,
        remove: &[Member],
        add: &[Member],
    ) -> Result<Ending, Refused> {
        let lists = self.with(owner, |owned| {
            owned.lists.sets().check(set, remove, add)?;
            let naming = owned.lists.iter().filter(|(_, list)| list.names(set));
            let state = |id| Some(Arc::clone(&owned.states.get(id)?.dependents));
            let lists = naming.filter_map(|(id, list)| Some((state(id)?, Some(Arc::clone(list)))));
            Ok(lists.collect::<Vec<_>>())
        });
        let lists = lists.unwrap_or(Err(Refused::NoSuchSet(set)))?;
        let mut changes = Vec::new();
        for (members, comes) in [(remove, false), (add, true)] {
            for members in members.chunks(MEMBERS_PER_LOCK) {
                let changed = self.change(owner, |owned| {
                    let sets = owned.lists.sets_mut();
                    let change = |member: &Member| match comes {
                        true => sets.insert(set, *member),
                        false => sets.take_out(set, *member),
                    };
                    members.iter().map(change).collect::<Result<Vec<_>, _>>()
                });
                changes.extend(changed.transpose()?.into_iter().flatten().flatten());
            }
        }
        if changes.is_empty() {
            return Ok(Ending::new(Vec::new(), Change::All));
        }
        Ok(Ending::new(lists, Change::Members(changes)))
    }

    /// Ends decisions about packets that come from a port, of those that stand on rules alone, of which some
    /// may be rules of this list.
    pub(crate) fn end_of_port(&self, list: ListId, port: PortId) {
        let dependents = self.with(list.controller(), |owned| {
            Some(Arc::clone(&owned.states.get(&list)?.dependents))
        });
        match dependents.flatten() {
            Some(dependents) => dependents.end_of_port(port),
            None => self.missing.end_dependents(),
        }
    }

    /// Up to `most` lists of a controller behind `after`, each with its tag.
    pub fn lists(
        &self,
        owner: ControllerId,
        after: Option<ListId>,
        most: usize,
    ) -> Vec<(ListId, u64, Arc<RuleList>)> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        let page = self.with(owner, |owned| {
            let states = owned.states.range((begin, Bound::Unbounded));
            let lists =
                states.filter_map(|(id, state)| Some((*id, state.tag, Arc::clone(owned.lists.get(*id)?))));
            lists.take(most).collect()
        });
        page.unwrap_or_default()
    }

    /// The statistics of a list's default, and up to `most` of its rules from a place on, each with its
    /// statistics. `None` if there is no such list.
    pub fn rules(
        &self,
        list: ListId,
        from: usize,
        most: usize,
        now_ms: u64,
    ) -> Option<(FlowStats, Vec<(Rule, FlowStats)>)> {
        let page = self.with(list.controller(), |owned| {
            let (rules, state) = (owned.lists.get(list)?, owned.states.get(&list)?);
            let page = rules
                .rules()
                .iter()
                .skip(from)
                .take(most)
                .map(|rule| (rule.clone(), state.stats(RuleOrigin::of(rule), now_ms)));
            let default = state.stats(RuleOrigin::of_default(rules), now_ms);
            Some((default, page.collect()))
        });
        page.flatten()
    }

    /// Kinds of packets that cached decisions of a list are about: of parts of the decisions from one on,
    /// until there are `most`. `None` if there is no such list.
    pub fn judged(&self, list: ListId, from: usize, most: usize) -> Option<Judged> {
        let dependents = self.with(list.controller(), |owned| {
            Some(Arc::clone(&owned.states.get(&list)?.dependents))
        });
        let dependents = dependents.flatten()?;
        Some(judged::from_part(&dependents, from, most))
    }

    /// Up to `most` sets of a controller behind `after`.
    pub fn sets(&self, owner: ControllerId, after: Option<SetId>, most: usize) -> Vec<SetState> {
        self.with(owner, |owned| owned.lists.sets().page(after, most))
            .unwrap_or_default()
    }

    /// Up to `most` members of a set behind `after`, in their own order.
    ///
    /// # Errors
    ///
    /// There is no such set, or `after` cannot be its member.
    pub fn members(
        &self,
        owner: ControllerId,
        set: SetId,
        after: Option<Member>,
        most: usize,
    ) -> Result<Vec<Member>, Refused> {
        let page = self.with(owner, |owned| owned.lists.sets().members_after(set, after, most));
        page.unwrap_or(Err(Refused::NoSuchSet(set)))
    }
}
