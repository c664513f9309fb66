//! An installed flow. The table, the decisions that depend on the flow, and the caches of all workers share
//! it.

use crate::class::Class;
use crate::decision::{Decision, Part};
use crate::dependents::{Dependents, SharedDependents};
use cpu::{Access, prefetch};
use flow::{Action, BadActions, Flow, FlowId, FlowKey, FlowMask, FlowStats, Program, Stage, SwitchId};
use rule_list::{Rule, RuleList, Verdict};
use std::sync::Arc;

/// The rule whose entry it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleOrigin {
    /// Number of the rule; `None` for the default of a list.
    pub number: Option<u32>,
    /// What the rule says.
    pub verdict: Verdict,
    /// Whether the rule is on trial.
    pub trial: bool,
    /// Whether the rule has a log.
    pub log: bool,
}

impl RuleOrigin {
    pub(crate) fn of(rule: &Rule) -> RuleOrigin {
        RuleOrigin {
            number: Some(rule.number),
            verdict: rule.verdict,
            trial: rule.trial,
            log: rule.log,
        }
    }

    pub(crate) fn of_default(list: &RuleList) -> RuleOrigin {
        RuleOrigin {
            number: None,
            verdict: list.default_verdict(),
            trial: false,
            log: false,
        }
    }
}

/// What a rule's entry has besides.
#[derive(Debug)]
struct OfRule {
    /// `None` if there is no such list.
    origin: Option<RuleOrigin>,
    /// Number of the rule's log.
    log: Option<u32>,
    /// Decisions that stand on any rule of the list.
    dependents: Arc<SharedDependents>,
}

/// A flow in a table, or on its way out of one; or a rule of a list, whose flow is of no table and matches
/// every packet.
#[derive(Debug)]
pub struct FlowEntry {
    /// The flow, with all bits outside its masks cleared.
    pub flow: Flow,
    /// The decision that the flow's own actions make.
    pub decision: Arc<Decision>,
    dependents: Dependents,
    rule: Option<Box<OfRule>>,
}

impl FlowEntry {
    /// A live entry without statistics.
    ///
    /// # Errors
    ///
    /// The actions are refused.
    pub fn new(flow: Flow) -> Result<FlowEntry, BadActions> {
        FlowEntry::after(flow, None)
    }

    /// A live entry whose statistics go on from those of another one.
    pub(crate) fn after(mut flow: Flow, before: Option<&FlowEntry>) -> Result<FlowEntry, BadActions> {
        reduce(&mut flow);
        let program = Program::compile(&flow.actions, flow.stage)?;
        let decision = Decision::of_flow(program, before.map(|before| &before.decision));
        Ok(FlowEntry {
            flow,
            decision: Arc::new(decision),
            dependents: Dependents::default(),
            rule: None,
        })
    }

    /// An entry for a rule, with the actions that its verdict stands for, and perhaps with a log.
    pub(crate) fn of_rule(
        actions: Vec<Action>,
        (origin, log): (Option<RuleOrigin>, Option<u32>),
        dependents: &Arc<SharedDependents>,
        before: Option<&FlowEntry>,
    ) -> FlowEntry {
        let (key, mask) = (FlowKey::default(), FlowMask::ANY);
        let flow = Flow {
            stage: Stage::Ingress(0),
            ..Flow::new(FlowId(0), SwitchId(0), key, mask, actions)
        };
        let dependents = Arc::clone(dependents);
        let rule = OfRule {
            origin,
            log,
            dependents,
        };
        FlowEntry {
            rule: Some(Box::new(rule)),
            ..FlowEntry::after(flow, before).expect("few actions fit, and a filter may let packets go on")
        }
    }

    /// Number of the log, for the entry of a rule that has one.
    pub fn log(&self) -> Option<u32> {
        self.rule.as_ref()?.log
    }

    /// Whether this is a rule's entry, which is in no table.
    pub(crate) fn is_rule(&self) -> bool {
        self.rule.is_some()
    }

    /// The rule whose entry this is, if it is one.
    pub fn rule(&self) -> Option<&RuleOrigin> {
        self.rule.as_ref()?.origin.as_ref()
    }

    /// The rule of the list with these decisions whose entry this is.
    pub(crate) fn rule_of(&self, list: &SharedDependents) -> Option<&RuleOrigin> {
        let rule = self.rule.as_ref()?;
        let is_of_list = std::ptr::eq(&*rule.dependents, list);
        rule.origin.as_ref().filter(|_| is_of_list)
    }

    /// A decision that holds, has this hash, and was composed of these flows in this order, the first of
    /// which this is.
    pub(crate) fn find(&self, hash: u64, parts: &[Part], class: Option<&Class>) -> Option<Arc<Decision>> {
        match &self.rule {
            Some(rule) => rule.dependents.part_of(hash).find(hash, parts, class),
            None => self.dependents.find(hash, parts, class),
        }
    }

    /// The decision that was noted last, of those with such a hash, if it is kept.
    pub(crate) fn last(&self, hash: u64) -> Option<Arc<Decision>> {
        match &self.rule {
            Some(rule) => rule.dependents.part_of(hash).last(),
            None => self.dependents.last(),
        }
    }

    /// Whether decisions that depend on either are noted in one place.
    pub(crate) fn shares_notes(&self, other: &FlowEntry) -> bool {
        match (&self.rule, &other.rule) {
            (Some(rule), Some(other)) => Arc::ptr_eq(&rule.dependents, &other.dependents),
            _ => std::ptr::eq(self, other),
        }
    }

    /// Notes a decision with this hash that depends on the entry.
    pub(crate) fn note(&self, hash: u64, decision: &Arc<Decision>) {
        match &self.rule {
            Some(rule) => rule.dependents.note(hash, decision),
            None => self.dependents.note(hash, decision),
        }
    }

    /// Notes such a decision no longer.
    pub(crate) fn forget(&self, hash: u64, decision: &Decision) {
        match &self.rule {
            Some(rule) => rule.dependents.forget(hash, decision),
            None => self.dependents.forget(hash, decision),
        }
    }

    /// Ends the decisions that depend on the entry.
    pub(crate) fn end_dependents(&self) {
        match &self.rule {
            Some(rule) => rule.dependents.end(),
            None => self.dependents.end(),
        }
    }

    /// Prefetches the fields that a look-up reads.
    #[inline]
    pub(crate) fn prefetch(&self) {
        let key = &self.flow.key.words;
        for word in [0, key.len() / 2, key.len() - 1] {
            prefetch(&raw const key[word], Access::Read);
        }
        prefetch(&raw const self.decision, Access::Read);
    }

    /// Prefetches what a walk reads besides, and what a look-up reads had to be prefetched before.
    #[inline]
    pub(crate) fn prefetch_for_walk(&self) {
        prefetch(self.program().ops().as_ptr(), Access::Read);
        prefetch(&raw const self.dependents, Access::Write);
    }

    /// Compiled actions of the flow.
    #[inline]
    pub fn program(&self) -> &Program {
        self.decision.program()
    }

    /// Counts packets that matched. `now_ms` comes from the clock that the caller also uses for
    /// [`stats`](Self::stats).
    #[inline]
    pub fn record(&self, packets: u64, bytes: u64, tcp_flags: u16, now_ms: u64) {
        self.decision.record(packets, bytes, tcp_flags, now_ms);
    }

    /// The statistics so far. Idle time is computed for `now_ms`.
    pub fn stats(&self, now_ms: u64) -> FlowStats {
        self.decision.stats(now_ms)
    }

    /// Whether the entry is still in its table. A dead one must not be used for packets any more.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.decision.is_live()
    }

    /// Ends the entry and the decisions that depend on it: from now on caches treat them as misses.
    pub(crate) fn kill(&self) {
        self.decision.end();
        self.end_dependents();
    }
}

/// What a look-up finds.
#[derive(Debug)]
pub struct Found {
    /// The flow, or the rule, that decides.
    pub entry: Arc<FlowEntry>,
    /// Rules on trial that match before.
    pub trials: Vec<Arc<FlowEntry>>,
}

impl From<Arc<FlowEntry>> for Found {
    fn from(entry: Arc<FlowEntry>) -> Self {
        Found {
            entry,
            trials: Vec::new(),
        }
    }
}

/// Clears the bits outside the masks.
pub(crate) fn reduce(flow: &mut Flow) {
    flow.key = flow.key.masked(&flow.mask);
    if let Some(context) = &mut flow.context {
        context.context = context.context.masked(&context.mask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Part, Shape, compose, known};
    use flow::{Action, FlowId, FlowKey, FlowMask, PortId, SwitchId};

    fn entry() -> FlowEntry {
        let key = FlowKey {
            words: [u64::MAX; flow::KEY_WORDS],
        };
        let mut mask = FlowMask::ANY;
        mask.0.set_eth_type(0xffff);
        FlowEntry::new(Flow::new(FlowId(1), SwitchId(1), key, mask, Vec::new())).unwrap()
    }

    fn parts() -> [Part; 2] {
        [entry(), entry()].map(|entry| Part::of(&Arc::new(entry)))
    }

    #[test]
    fn the_key_is_reduced_to_the_mask() {
        let entry = entry();
        assert_eq!(entry.flow.key, entry.flow.mask.0);
    }

    #[test]
    fn statistics_add_up_and_time_does_not_go_back() {
        let entry = entry();
        assert_eq!(entry.stats(50).idle_ms, None);
        entry.record(2, 120, 0x02, 0);
        assert_eq!(entry.stats(50).idle_ms, Some(50));
        entry.record(1, 1500, 0x10, 40);
        entry.record(0, 0, 0, 30);
        let expected = FlowStats {
            packets: 3,
            bytes: 1620,
            idle_ms: Some(10),
            tcp_flags: 0x12,
        };
        assert_eq!(entry.stats(50), expected);
        assert_eq!(entry.stats(20).idle_ms, Some(0));
    }

    #[test]
    fn a_successor_counts_on_and_is_told_what_comes_late() {
        let first = entry();
        first.record(1, 10, 0, 5);
        let second = FlowEntry::after(first.flow.clone(), Some(&first)).unwrap();
        let third = FlowEntry::after(first.flow.clone(), Some(&second)).unwrap();
        first.record(1, 10, 0, 6);
        second.record(1, 10, 0, 7);
        third.record(1, 10, 0, 8);
        assert_eq!((third.stats(8).packets, third.stats(8).bytes), (4, 40));
    }

    #[test]
    fn a_decision_ends_with_each_of_its_parts_and_tells_all() {
        for ended in 0..2 {
            let parts = parts();
            let program = Program::compile(&[Action::Output(PortId(3))], flow::Stage::Forward).unwrap();
            let decision = compose(program.clone(), &parts, &[], None, None);
            assert_eq!(decision.shape, Shape::Plain(PortId(3)));
            assert!(known(&parts, None).is_some_and(|known| Arc::ptr_eq(&known, &decision)));
            let [one, other] = parts.clone();
            assert!(known(&[other, one], None).is_none(), "in this order");
            decision.record(2, 20, 0, 0);
            assert!(parts.iter().all(|part| part.flow.stats(0).packets == 2));
            parts[ended].flow.kill();
            assert!(!decision.is_live() && known(&parts, None).is_none());
            assert!(!compose(program, &parts, &[], None, None).is_live());
        }
    }

    /// The length of a tag is the difference between what two flows count of a packet.
    #[test]
    fn each_part_counts_packets_as_long_as_they_come_to_it() {
        let program = Program::compile(&[], flow::Stage::Forward).unwrap();
        let mut parts = parts();
        let as_they_came = compose(program.clone(), &parts, &[], None, None);
        parts[1].grown = -4;
        assert!(known(&parts, None).is_none(), "that one counts otherwise");
        let decision = compose(program, &parts, &[], None, None);
        assert!(known(&parts, None).is_some_and(|known| Arc::ptr_eq(&known, &decision)));
        decision.record(3, 300, 0, 0);
        as_they_came.record(1, 100, 0, 0);
        assert_eq!(parts.map(|part| part.flow.stats(0).bytes), [400, 388]);
    }

    #[test]
    fn decisions_nobody_has_are_forgotten() {
        let first = Arc::new(entry());
        let program = Program::compile(&[], flow::Stage::Forward).unwrap();
        let compose = || {
            let second = Arc::new(entry());
            let decision = compose(program.clone(), &[&first, &second].map(Part::of), &[], None, None);
            (second, decision)
        };
        let _in_use: Vec<_> = (0..20).map(|_| compose()).collect();
        for _ in 0..1000 {
            compose().0.kill();
        }
        assert!(first.dependents.len() < 64);
    }

    /// What is removed to make room is gone already.
    #[test]
    fn a_flow_ends_all_its_decisions_however_many_there_are() {
        let first = Arc::new(entry());
        let program = Program::compile(&[], flow::Stage::Forward).unwrap();
        let decisions: Vec<_> = (0..100)
            .map(|_| {
                compose(
                    program.clone(),
                    &[&first, &Arc::new(entry())].map(Part::of),
                    &[],
                    None,
                    None,
                )
            })
            .collect();
        for decision in &decisions {
            assert!(known(decision.parts(), None).is_some_and(|known| Arc::ptr_eq(&known, decision)));
        }
        first.kill();
        assert!(decisions.iter().all(|decision| !decision.is_live()));
    }

    #[test]
    fn a_flow_keeps_the_decision_composed_last_and_no_flow_for_longer_than_it_lives() {
        let program = Program::compile(&[Action::Output(PortId(3))], flow::Stage::Forward).unwrap();
        let first = Arc::new(entry());
        let others: Vec<_> = (0..3).map(|_| Arc::new(entry())).collect();
        let parts = |other: &Arc<FlowEntry>| [&first, other].map(Part::of);
        for other in &others {
            compose(program.clone(), &parts(other), &[], None, None);
        }
        assert!(others.iter().all(|other| known(&parts(other), None).is_some()));
        others[2].kill();
        assert!(known(&parts(&others[2]), None).is_none() && known(&parts(&others[1]), None).is_some());
        let count = Arc::strong_count;
        assert_eq!(count(&others[2]), 1, "neither it nor the first keeps it");
        first.kill();
        assert!(others.iter().all(|other| count(other) == 1) && count(&first) == 1);
        // Composed too late.
        compose(program, &parts(&others[0]), &[], None, None);
        assert!(count(&others[0]) == 1 && count(&first) == 1);
    }

    #[test]
    fn large_decisions_are_not_kept() {
        let outputs = vec![Action::Output(PortId(3)); 1000];
        let program = Program::compile(&outputs, flow::Stage::Forward).unwrap();
        let parts = parts();
        let decision = compose(program, &parts, &[], None, None);
        assert!(known(&parts, None).is_some());
        drop(decision);
        assert!(known(&parts, None).is_none());
    }
}
