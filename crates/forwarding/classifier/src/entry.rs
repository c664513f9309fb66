//! An installed flow. The table, the decisions that depend on the flow, and the caches of all workers share
//! it.

use crate::decision::{Decision, Dependents};
use cpu::{Access, prefetch};
use flow::{BadActions, Flow, FlowStats, Program};
use std::sync::Arc;

/// A flow in a table, or on its way out of one.
#[derive(Debug)]
pub struct FlowEntry {
    /// The flow, with all bits outside its masks cleared.
    pub flow: Flow,
    /// The decision that the flow's own actions make.
    pub decision: Arc<Decision>,
    pub(crate) dependents: Dependents,
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
        })
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
        self.dependents.end();
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
            let decision = compose(program.clone(), &parts, &[], None);
            assert_eq!(decision.shape, Shape::Plain(PortId(3)));
            assert!(known(&parts).is_some_and(|known| Arc::ptr_eq(&known, &decision)));
            let [one, other] = parts.clone();
            assert!(known(&[other, one]).is_none(), "in this order");
            decision.record(2, 20, 0, 0);
            assert!(parts.iter().all(|part| part.flow.stats(0).packets == 2));
            parts[ended].flow.kill();
            assert!(!decision.is_live() && known(&parts).is_none());
            assert!(!compose(program, &parts, &[], None).is_live());
        }
    }

    /// The length of a tag is the difference between what two flows count of a packet.
    #[test]
    fn each_part_counts_packets_as_long_as_they_come_to_it() {
        let program = Program::compile(&[], flow::Stage::Forward).unwrap();
        let mut parts = parts();
        let as_they_came = compose(program.clone(), &parts, &[], None);
        parts[1].grown = -4;
        assert!(known(&parts).is_none(), "that one counts otherwise");
        let decision = compose(program, &parts, &[], None);
        assert!(known(&parts).is_some_and(|known| Arc::ptr_eq(&known, &decision)));
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
            let decision = compose(program.clone(), &[&first, &second].map(Part::of), &[], None);
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
                )
            })
            .collect();
        for decision in &decisions {
            assert!(known(decision.parts()).is_some_and(|known| Arc::ptr_eq(&known, decision)));
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
            compose(program.clone(), &parts(other), &[], None);
        }
        assert!(others.iter().all(|other| known(&parts(other)).is_some()));
        others[2].kill();
        assert!(known(&parts(&others[2])).is_none() && known(&parts(&others[1])).is_some());
        let count = Arc::strong_count;
        assert_eq!(count(&others[2]), 1, "neither it nor the first keeps it");
        first.kill();
        assert!(others.iter().all(|other| count(other) == 1) && count(&first) == 1);
        // Composed too late.
        compose(program, &parts(&others[0]), &[], None);
        assert!(count(&others[0]) == 1 && count(&first) == 1);
    }

    #[test]
    fn large_decisions_are_not_kept() {
        let outputs = vec![Action::Output(PortId(3)); 1000];
        let program = Program::compile(&outputs, flow::Stage::Forward).unwrap();
        let parts = parts();
        let decision = compose(program, &parts, &[], None);
        assert!(known(&parts).is_some());
        drop(decision);
        assert!(known(&parts).is_none());
    }
}
