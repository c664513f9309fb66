//! The flows of one input port, between threads that look up and the thread that changes them.
//!
//! The flows of an input port are behind a lock of their own. A port's transmit ring has one reader at a
//! time, so the lock is rarely contended, and a look-up takes it once per burst; a change of other ports'
//! flows touches other locks. The thread that changes a port's flows prepares everything before it takes the
//! lock, and drops replaced entries afterwards. So it holds the lock for a hash and a few stores.
//!
//! Flows of later passes and of filters are in lists of their own ([`crate::stages`]). In a switch that has
//! none, look-ups do not read them.

use crate::compose::{Walked, Walker};
use crate::decision::Decision;
use crate::entry::{FlowEntry, Found};
use crate::list::SubtableList;
use crate::mask_union::MaskUnion;
use crate::rule_logs::RuleLogs;
use crate::rules::RulesReading;
use crate::stages::{Lists, Stages};
use crate::subtable::Candidate;
use crate::walk::Tables;
use flow::{Context, ExactKey, Filter, Filters, FlowKey, FlowMask, PortId, Stage, Unseen};
use parking_lot::{RwLock, RwLockReadGuard};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A list of subtables that is looked up and changed at the same time.
#[derive(Debug, Default)]
pub(crate) struct SharedList {
    list: RwLock<SubtableList>,
    /// Whether the list has flows; an empty one is not locked.
    masks: AtomicUsize,
    /// The union of the masks of flows for the port's packets, flows for any port included.
    pub mask_union: MaskUnion,
}

impl SharedList {
    /// Locks the list for the one thread that changes it.
    pub fn read(&self) -> RwLockReadGuard<'_, SubtableList> {
        self.list.read()
    }

    /// Masks in the list.
    pub fn masks(&self) -> usize {
        self.masks.load(Ordering::Acquire)
    }

    /// The list, unless it is empty.
    #[inline]
    fn read_unless_empty(&self) -> Option<RwLockReadGuard<'_, SubtableList>> {
        (self.masks() > 0).then(|| self.list.read())
    }

    /// Exchanges flows at once: look-ups find either all old ones or the new one.
    pub fn replace(&self, old: &[Arc<FlowEntry>], new: Option<Arc<FlowEntry>>) {
        let room = new
            .as_ref()
            .and_then(|entry| self.list.read().room_for(&entry.flow));
        let mut list = self.list.write();
        let freed = list.replace(old, new, room);
        self.masks.store(list.masks(), Ordering::Release);
        drop(list);
        drop(freed);
    }

    /// A flow that matches. Such look-ups are rare, and counted at once. Calls `observe` with the union of
    /// the masks.
    pub fn look_up(
        &self,
        key: &FlowKey,
        context: &Context,
        observe: &mut impl FnMut(&FlowMask),
    ) -> Option<Arc<FlowEntry>> {
        let list = self.read_unless_empty()?;
        observe(list.union());
        let (number, entry) = list.lookup(key, context, &mut |_, _| ())?;
        list.hit(number, 1);
        Some(Arc::clone(entry))
    }

    /// Takes everything out.
    pub fn clear(&self) {
        let mut list = self.list.write();
        let freed = std::mem::take(&mut *list);
        self.masks.store(0, Ordering::Release);
        drop(list);
        drop(freed);
    }

    pub fn reorder(&self) {
        if self.masks() > 1 {
            self.list.write().reorder();
        }
    }
}

/// The flows that packets of one port may belong to: the same value for as long as the port exists.
#[derive(Clone, Debug)]
pub struct PortFlows {
    pub(crate) own: Arc<SharedList>,
    pub(crate) any_port: Arc<SharedList>,
    pub(crate) stages: Arc<Stages>,
}

impl PortFlows {
    /// The union of the masks of the port's flows, by word, for keys of this one's form. It covers the mask
    /// of each flow that was found before the union is read and is still alive afterwards. A flow found
    /// through a [`Reading`] that exists meanwhile is such a flow.
    #[inline]
    pub fn mask_union<'a>(&'a self, key: &ExactKey) -> impl Fn(usize) -> u64 + Copy + use<'a> {
        self.own.mask_union.mask(key)
    }

    /// Whether any flow of the port may look at one of those fields; read as [`mask_union`](Self::mask_union)
    /// is.
    pub fn may_look_at(&self, unseen: Unseen) -> bool {
        self.own.mask_union.meets(unseen)
    }

    /// Counts packets of the port that have a further look at the cache. True if they are so many that what
    /// lists note for them should be [promoted](Self::promote). `sent` says how many packets the port has
    /// sent. To be called by the thread that serves the port.
    pub fn count_further(&self, packets: u32, sent: impl FnOnce() -> u64) -> bool {
        self.own.mask_union.count_further(packets, sent)
    }

    /// Has the bits compared at the first look that lists note from now on, in walks for the port's packets.
    pub fn promote(&self) {
        self.own.mask_union.promote();
    }

    /// Whether bits are compared so since [`promote`](Self::promote), and not forgotten with filters.
    pub fn is_promoted(&self) -> bool {
        self.own.mask_union.is_promoted()
    }

    /// Has the bits compared so that lists noted for a decision, after [`promote`](Self::promote).
    pub fn promote_of(&self, decision: &Decision) {
        if let Some(class) = decision.class() {
            self.own.mask_union.of_lists(&class.key().1);
        }
    }

    /// What rules note for users.
    pub fn logs(&self) -> &RuleLogs {
        &self.stages.rules.logs
    }

    /// Locks the flows for the look-ups of a burst at most: changes wait until the end.
    #[inline]
    pub fn read(&self) -> Reading<'_> {
        let own = self.own.read_unless_empty();
        let any_port = self.any_port.read_unless_empty();
        // Last: filters that come while the lists above are held end the flows in them.
        let stages = self.stages.read_if_used();
        let has_rules = stages.as_ref().is_some_and(|lists| lists.has_rules());
        Reading {
            own,
            any_port,
            stages,
            rules: has_rules.then(|| self.stages.rules.read()),
            mask_union: &self.own.mask_union,
            run: Cell::default(),
        }
    }
}

/// Flows that are locked, and so do not change.
#[derive(Debug)]
pub struct Reading<'a> {
    own: Option<RwLockReadGuard<'a, SubtableList>>,
    any_port: Option<RwLockReadGuard<'a, SubtableList>>,
    stages: Option<RwLockReadGuard<'a, Lists>>,
    /// If any filter of the switch is a rule list.
    rules: Option<RulesReading<'a>>,
    pub(crate) mask_union: &'a MaskUnion,
    run: Cell<Run>,
}

/// The place where the flow of a packet most likely is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hint<'a>(Option<Candidate<'a>>);

impl Hint<'_> {
    /// Prefetches the flow. To be called when the place has had time to come into the cache.
    #[inline]
    pub fn prefetch(self) {
        if let Some(candidate) = self.0 {
            candidate.prefetch();
        }
    }

    /// Prefetches what a walk reads of the flow. To be called when [`prefetch`](Self::prefetch) has had time.
    #[inline]
    pub fn prefetch_for_walk(self) {
        if let Some(candidate) = self.0 {
            candidate.prefetch_for_walk();
        }
    }
}

/// Successive look-ups that ended in the same subtable, which are counted there at once.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    own: bool,
    number: usize,
    count: u64,
}

impl Reading<'_> {
    /// A flow of the forward stage's first pass that matches `key`, whose input port must be that of these
    /// flows.
    #[inline]
    pub fn lookup(&self, key: &FlowKey) -> Option<&Arc<FlowEntry>> {
        self.search(key, &Context::NONE, &mut |_, _| ())
    }

    /// As [`lookup`](Self::lookup). Calls `observe` with each mask that was tried, in order, and whether it
    /// matched.
    pub fn lookup_observed(
        &self,
        key: &FlowKey,
        observe: &mut dyn FnMut(&FlowMask, bool),
    ) -> Option<&Arc<FlowEntry>> {
        self.search(key, &Context::NONE, &mut |mask, matched| observe(mask, matched))
    }

    /// Whether the switch has filters or later passes, so that packets walk.
    #[inline]
    pub fn has_walks(&self) -> bool {
        self.stages.is_some()
    }

    /// Whether any filter of the switch is a rule list.
    #[inline]
    pub fn has_rules(&self) -> bool {
        self.rules.is_some()
    }

    /// The place where the flow of a packet most likely is, in the first subtable of the port's list.
    /// Prefetches that place, without waiting for it. For bursts with several look-ups: they wait for memory
    /// together then, and not one after the other.
    #[inline]
    pub fn hint(&self, key: &FlowKey, context: &Context) -> Hint<'_> {
        let first = self.own.as_ref().and_then(|list| list.first());
        // Behind filters, the flow is that for the packet as they leave it.
        let has_filters = self.stages.as_ref().is_some_and(|lists| lists.has_filters());
        let first = first.filter(|_| !has_filters);
        Hint(first.and_then(|first| first.candidate(key, context)))
    }

    /// The actions for packets that come from the port with this key and context, for which `hint` was made,
    /// if any.
    #[inline]
    pub fn walk<'a>(
        &'a self,
        hint: Hint<'a>,
        key: &FlowKey,
        context: &Context,
        walker: &mut Walker,
    ) -> Walked<'a> {
        if let Some(lists) = &self.stages {
            return walker.walk(hint, key, context, self, lists);
        }
        match self.first_pass(hint, key, context) {
            None => Walked::Missing(Stage::Forward),
            Some(entry) if entry.program().looks_up() => walker.each(),
            Some(entry) => Walked::Own(&entry.decision),
        }
    }

    /// A flow of the forward stage's first pass.
    #[inline]
    pub(crate) fn first_pass<'a>(
        &'a self,
        hint: Hint<'a>,
        key: &FlowKey,
        context: &Context,
    ) -> Option<&'a Arc<FlowEntry>> {
        let hinted = hint.0.and_then(|candidate| candidate.get(key, context));
        if hinted.is_some() {
            self.count(true, 0);
            return hinted;
        }
        self.search(key, context, &mut |_, _| ())
    }

    /// What there is for a packet that comes to a stage. Calls `observe` with the union of the masks of each
    /// list that a flow may be in, or with the bits that decided in a rule list.
    pub(crate) fn look_up_observed(
        &self,
        stage: Stage,
        key: &FlowKey,
        context: &Context,
        mut observe: impl FnMut(&FlowMask),
    ) -> Option<Found> {
        if stage == Stage::Forward && key.recirc_id() == 0 {
            let lists = [&self.own, &self.any_port].into_iter().flatten();
            lists.for_each(|list| observe(list.union()));
            let found = self.first_pass(Hint::default(), key, context);
            return found.map(|entry| Arc::clone(entry).into());
        }
        let lists = self.stages.as_ref()?;
        if let Some(rules) = &self.rules
            && let Filter::Rules(list) = lists.filter(stage, key)
        {
            let mut noted = FlowMask::ANY;
            let found = rules.look_up(list, key, &mut noted);
            observe(&noted);
            return Some(found);
        }
        lists.look_up(stage, key, context, observe).map(Found::from)
    }

    #[inline]
    fn search(
        &self,
        key: &FlowKey,
        context: &Context,
        observe: &mut impl FnMut(&FlowMask, bool),
    ) -> Option<&Arc<FlowEntry>> {
        for (list, own) in [(&self.own, true), (&self.any_port, false)] {
            if let Some((number, entry)) = list.as_ref().and_then(|list| list.lookup(key, context, observe)) {
                self.count(own, number);
                return Some(entry);
            }
        }
        None
    }

    #[inline]
    fn count(&self, own: bool, number: usize) {
        let mut run = self.run.get();
        if (run.own, run.number) != (own, number) {
            self.flush(run);
            run = Run {
                own,
                number,
                count: 0,
            };
        }
        run.count += 1;
        self.run.set(run);
    }

    fn flush(&self, run: Run) {
        let list = if run.own { &self.own } else { &self.any_port };
        if let Some(list) = list
            && run.count > 0
        {
            list.hit(run.number, run.count);
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.flush(self.run.get());
    }
}

impl Tables for Reading<'_> {
    fn look_up(&self, stage: Stage, key: &FlowKey, context: &Context) -> Option<Found> {
        self.look_up_observed(stage, key, context, |_| ())
    }

    fn filters(&self, port: PortId) -> Filters {
        self.stages
            .as_ref()
            .map_or(Filters::default(), |lists| lists.filters(port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::megaflow::MegaflowTable;
    use flow::{Flow, FlowId, SwitchId};

    /// Behind filters, what a packet's key hints at is prefetched in vain.
    #[test]
    fn hints_are_given_where_packets_come_as_they_are() {
        let (mut key, mut mask) = (FlowKey::default(), FlowMask::ANY);
        key.set_in_port(1);
        mask.0.set_in_port(u32::MAX);
        let mut table = MegaflowTable::default();
        table
            .insert(Flow::new(FlowId(1), SwitchId(1), key, mask, Vec::new()))
            .unwrap();
        let flows = table.port(PortId(1));
        let is_hinted = || flows.read().hint(&key, &Context::NONE).0.is_some();
        assert!(is_hinted());
        table.set_filters(PortId(2), Filters::of_flows(1, 0));
        assert!(!is_hinted());
    }
}
