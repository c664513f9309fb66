//! Stages, passes and changes beside a twin that remembers nothing.
//!
//! The twin keeps flows in a list and walks each packet from the beginning, by the actions as they were
//! written: a function that calls itself, on frames that are copied. The product looks in its cache first,
//! composes decisions, runs programs. Both see real frames, with up to three tags and of many lengths, and
//! must send the same bytes to the same places in the same order; and all flows must have counted the same
//! packets and bytes, although meters drop some packets of a decision and let others pass, and tags make
//! packets longer and shorter on their way. Filters may be rule lists (`rules`), which change, and whose sets
//! change, while the cache has decisions that stand on them.
//!
//! `HYPERSWITCH_TWIN_MINUTES=60 cargo test --release -p classifier --test walk_twin` runs for an hour.

#![allow(clippy::unwrap_used, reason = "tests")]

mod rules;

use crate::rules::{Change, LISTS, TwinRules, changes, make_sets};
use classifier::{
    Branch, DEFAULT_MAX_FLOWS, DEFAULT_MAX_MASKS, Decision, FlowEntry, MAX_PARTS, MegaflowTable,
    MicroflowCache, NoTables, Place, PortFlows, Rules, Shape, Stack, Start, Subject, Tables, Train, Walked,
    Walker, dp_hash, run, second,
};
use flow::{
    Action, Context, ContextMatch, DropReason, Edit, Encapsulation, ExactKey, FieldId, Filter, Filters, Flow,
    FlowId, FlowKey, FlowMask, FlowStats, ListId, MAX_OPS, Nested, NshHeader, Op, PortId, PutMode, SetField,
    Stage, Statistics, SwitchId, Userspace,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rule_list::Verdict;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{Layers, Offload, Snapshot, exact_key, parse, set_field};

const PORTS: u32 = 3;

/// Where a packet, or a copy, ended.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Output(PortId, Vec<u8>),
    Userspace(u32, Vec<u8>),
    Missed(Stage, Box<(FlowKey, Context)>),
    Dropped(DropReason),
}

/// A packet in flight.
#[derive(Clone)]
struct Frame {
    head: Snapshot,
    in_port: PortId,
    marks: FlowKey,
    context: Context,
    limit: Option<usize>,
    /// TCP flags of the frame as it came.
    tcp_flags: u16,
}

impl Frame {
    fn new(bytes: &[u8], in_port: PortId) -> Frame {
        let mut head = Snapshot::new();
        head.fill(bytes.len()).copy_from_slice(bytes);
        Frame {
            tcp_flags: parse(head.bytes(), head.len(), in_port).key.tcp_flags(),
            head,
            in_port,
            marks: FlowKey::default(),
            context: Context::NONE,
            limit: None,
        }
    }

    fn layers(&self) -> Layers {
        parse(self.head.bytes(), self.head.len(), self.in_port).layers
    }

    fn key(&self) -> FlowKey {
        let mut key = parse(self.head.bytes(), self.head.len(), self.in_port).key;
        key.set_recirc_id(self.marks.recirc_id());
        key.set_dp_hash(self.marks.dp_hash());
        key.set_skb_mark(self.marks.skb_mark());
        key.set_no_ethernet(self.marks.no_ethernet());
        key
    }

    fn edit(&mut self, edit: &Edit) -> Result<(), DropReason> {
        match edit {
            Edit::Set(set) if set.field.field().is_metadata() => {
                let in_context = set.field.field().is_in_context();
                let words = if in_context {
                    &mut self.context.words
                } else {
                    &mut self.marks.words
                };
                set.field.field().set(words, set.value, set.mask);
                Ok(())
            }
            Edit::Set(set) => {
                let (layers, len) = (self.layers(), self.head.len());
                set_field(self.head.bytes_mut(), &layers, &Offload::NONE, len, set)
                    .map_err(|_| DropReason::NoHeader)
            }
            Edit::PushVlan { tpid, tci } => self
                .head
                .push_vlan(*tpid, *tci)
                .then_some(())
                .ok_or(DropReason::Policy),
            Edit::PopVlan => {
                self.head.pop_vlan();
                Ok(())
            }
            Edit::PushMpls { lse, eth_type } => self
                .head
                .push_mpls(*lse, *eth_type)
                .then_some(())
                .ok_or(DropReason::NoHeader),
            Edit::PopMpls(eth_type) => {
                self.head.pop_mpls(*eth_type);
                Ok(())
            }
            Edit::Class(_) => Ok(()),
            Edit::Encapsulate(change) => self.encapsulate(change).ok_or(DropReason::NoHeader),
        }
    }

    fn encapsulate(&mut self, change: &Encapsulation) -> Option<()> {
        let has_ethernet = self.marks.no_ethernet() == 0;
        let has_ethernet = self.head.encapsulate(change, has_ethernet)?;
        self.marks.set_no_ethernet(u8::from(!has_ethernet));
        Some(())
    }

    /// What becomes of it at a port, which takes packets with an Ethernet header only.
    fn output(&mut self, port: PortId) -> Outcome {
        if self.marks.no_ethernet() == 1 {
            return Outcome::Dropped(DropReason::NoHeader);
        }
        Outcome::Output(port, self.out())
    }

    /// The bytes that go out now.
    fn out(&mut self) -> Vec<u8> {
        let limit = self.limit.take().unwrap_or(usize::MAX);
        self.head.bytes()[..self.head.len().min(limit)].to_vec()
    }
}

/// Meters: 1 lets nothing pass, 2 two packets of three, and the others everything.
#[derive(Clone, Copy, Default)]
struct Meters {
    asked: u64,
}

impl Meters {
    fn admit(&mut self, meter: u32) -> bool {
        self.asked += u64::from(meter == 2);
        match meter {
            1 => false,
            2 => !self.asked.is_multiple_of(3),
            _ => true,
        }
    }
}

/// The definition of it all.
#[derive(Default)]
struct Twin {
    flows: Vec<Flow>,
    filters: HashMap<PortId, Filters>,
    rules: TwinRules,
    counts: HashMap<FlowId, FlowStats>,
    outcomes: Vec<Outcome>,
    meters: Meters,
}

impl Twin {
    fn put(&mut self, flow: Flow, statistics: Statistics) {
        let matches_same = |old: &Flow| {
            old.stage == flow.stage
                && old.mask == flow.mask
                && old.key == flow.key
                && old.context == flow.context
        };
        let same_id = self.flows.iter().position(|old| old.id == flow.id);
        let before = same_id.or_else(|| self.flows.iter().position(matches_same));
        let kept = before.and_then(|at| self.counts.get(&self.flows[at].id).copied());
        let replaced: Vec<_> = self
            .flows
            .extract_if(.., |old| old.id == flow.id || matches_same(old))
            .collect();
        for old in replaced {
            self.counts.remove(&old.id);
        }
        let count = kept
            .filter(|_| statistics == Statistics::Kept)
            .unwrap_or_default();
        self.counts.insert(flow.id, count);
        self.flows.push(flow);
    }

    fn filters(&self, port: PortId) -> Filters {
        self.filters.get(&port).copied().unwrap_or_default()
    }

    fn packet(&mut self, frame: Frame) -> Vec<Outcome> {
        self.outcomes.clear();
        let first = Stage::first(&self.filters(frame.in_port));
        self.stage(first, frame, 0);
        if self.outcomes.is_empty() {
            self.outcomes.push(Outcome::Dropped(DropReason::NoAction));
        }
        std::mem::take(&mut self.outcomes)
    }

    fn stage(&mut self, stage: Stage, frame: Frame, looks: u32) {
        if looks == classifier::MAX_LOOKS {
            return self.outcomes.push(Outcome::Dropped(DropReason::TooDeep));
        }
        let key = frame.key();
        let filters = self.filters(match stage {
            Stage::Egress(port, _) => port,
            Stage::Ingress(_) | Stage::Forward => frame.in_port,
        });
        if let Filter::Rules(list) = filters.of_stage(stage) {
            return self.judge(list, &key, stage, frame, looks);
        }
        let is_it = |flow: &&Flow| {
            let context = flow.context.as_deref().copied().unwrap_or_default();
            flow.stage == stage
                && (stage != Stage::Forward || flow.key.recirc_id() == key.recirc_id())
                && key.masked(&flow.mask) == flow.key
                && frame.context.masked(&context.mask) == context.context
        };
        let Some(flow) = self.flows.iter().find(is_it).cloned() else {
            return self
                .outcomes
                .push(Outcome::Missed(stage, Box::new((key, frame.context))));
        };
        let counts = self.counts.entry(flow.id).or_default();
        counts.packets += 1;
        counts.bytes += frame.head.len() as u64;
        counts.tcp_flags |= frame.tcp_flags;
        // The clock stands still.
        counts.idle_ms = Some(0);
        self.list(&flow.actions, stage, frame, looks + 1);
    }

    fn judge(&mut self, list: ListId, key: &FlowKey, stage: Stage, frame: Frame, looks: u32) {
        let Some(judgement) = self.rules.judge(list, key) else {
            return self.outcomes.push(Outcome::Dropped(DropReason::NoRules));
        };
        for counted in judgement.counted {
            let counts = self.rules.counts.entry(counted).or_default();
            counts.packets += 1;
            counts.bytes += frame.head.len() as u64;
            counts.tcp_flags |= frame.tcp_flags;
            counts.idle_ms = Some(0);
        }
        match judgement.verdict {
            Verdict::Allow => self.list(&[Action::Continue], stage, frame, looks + 1),
            Verdict::Drop => self.outcomes.push(Outcome::Dropped(DropReason::Policy)),
            Verdict::Reject => self.outcomes.push(Outcome::Dropped(DropReason::Rejected)),
            Verdict::Copy | Verdict::Ask => panic!("none of these lists has such rules"),
            Verdict::Mark(marks) => {
                let mut actions = Vec::new();
                for (field, value, mask) in [
                    (
                        FieldId::VlanTci,
                        marks.vlan_priority.map(|it| u128::from(it) * 0x2000),
                        0xe000,
                    ),
                    (FieldId::IpTos, marks.dscp.map(|it| u128::from(it) * 4), 0xfc),
                ] {
                    let set = value.map(|value| SetField { field, value, mask });
                    actions.extend(set.map(|set| Action::Edit(Edit::Set(set))));
                }
                actions.push(Action::Continue);
                self.list(&actions, stage, frame, looks + 1);
            }
        }
    }

    fn list(&mut self, actions: &[Action], stage: Stage, mut frame: Frame, looks: u32) {
        for action in actions {
            if !self.action(action, stage, &mut frame, looks) {
                return;
            }
        }
    }

    /// False if the list ends here.
    fn action(&mut self, action: &Action, stage: Stage, frame: &mut Frame, looks: u32) -> bool {
        match action {
            Action::Edit(edit) => {
                if let Err(reason) = frame.edit(edit) {
                    self.outcomes.push(Outcome::Dropped(reason));
                    return false;
                }
            }
            Action::Output(port) if let Some(stage) = self.filters(*port).first_egress(*port) => {
                self.stage(stage, frame.clone(), looks);
            }
            Action::Output(port) => self.outcomes.push(frame.output(*port)),
            Action::Userspace(to) => self.outcomes.push(Outcome::Userspace(to.pid, frame.out())),
            Action::Drop(reason) => {
                self.outcomes.push(Outcome::Dropped(*reason));
                return false;
            }
            Action::Sample { probability, actions } if *probability > 0 => {
                self.list(&actions.0, stage, frame.clone(), looks);
            }
            Action::Clone(actions) => self.list(&actions.0, stage, frame.clone(), looks),
            Action::Truncate(len) => frame.limit = Some(*len as usize),
            Action::CheckPktLen {
                len,
                greater,
                otherwise,
            } => {
                let longer = frame.head.len() > usize::from(*len);
                let chosen = if longer { greater } else { otherwise };
                self.list(&chosen.0, stage, frame.clone(), looks);
            }
            Action::Recirc(id) => {
                let mut copy = frame.clone();
                copy.marks.set_recirc_id(*id);
                self.stage(Stage::Forward, copy, looks);
            }
            Action::Hash { basis } => {
                let hash = dp_hash(&frame.key(), *basis);
                frame.marks.set_dp_hash(hash);
            }
            Action::Meter(meter) if !self.meters.admit(*meter) => {
                self.outcomes.push(Outcome::Dropped(DropReason::Metered));
                return false;
            }
            Action::Continue => {
                let (of, last) = match stage {
                    Stage::Egress(port, _) => (port, Some(port)),
                    _ => (frame.in_port, None),
                };
                match (stage.next(&self.filters(of)), last) {
                    (Some(next), _) => self.stage(next, frame.clone(), looks),
                    (None, Some(port)) => self.outcomes.push(frame.clone().output(port)),
                    (None, None) => self.outcomes.push(Outcome::Dropped(DropReason::NoAction)),
                }
            }
            Action::Sample { .. } | Action::Meter(_) => {}
        }
        true
    }
}

/// The product's packet.
struct OnFrame {
    frame: Frame,
    key: FlowKey,
    outcomes: Vec<Outcome>,
    meters: Meters,
    /// Where meters did not let it pass.
    stopped: Vec<usize>,
}

impl Subject for OnFrame {
    type Saved = Frame;

    fn key(&mut self) -> Result<(&FlowKey, &Context), DropReason> {
        self.key = self.frame.key();
        Ok((&self.key, &self.frame.context))
    }

    fn in_port(&self) -> PortId {
        PortId(self.frame.key().in_port())
    }

    fn found(&mut self, _: Stage, entry: &Arc<FlowEntry>) {
        let len = self.frame.head.len();
        entry.record(1, len as u64, self.frame.tcp_flags, 0);
    }

    fn missed(&mut self, stage: Stage) {
        self.outcomes.push(Outcome::Missed(
            stage,
            Box::new((self.frame.key(), self.frame.context)),
        ));
    }

    fn output(&mut self, port: PortId, _: bool) {
        self.outcomes.push(self.frame.output(port));
    }

    fn userspace(&mut self, to: &Userspace) {
        let bytes = self.frame.out();
        self.outcomes.push(Outcome::Userspace(to.pid, bytes));
    }

    fn dropped(&mut self, reason: DropReason) {
        self.outcomes.push(Outcome::Dropped(reason));
    }

    fn edit(&mut self, edit: &Edit) -> Result<(), DropReason> {
        self.frame.edit(edit)
    }

    fn recirculate(&mut self, id: u32) {
        self.frame.marks.set_recirc_id(id);
    }

    fn hash(&mut self, basis: u32) -> Result<(), DropReason> {
        let hash = dp_hash(&self.frame.key(), basis);
        self.frame.marks.set_dp_hash(hash);
        Ok(())
    }

    fn truncate(&mut self, len: u32) {
        self.frame.limit = Some(len as usize);
    }

    fn branch(&mut self, len: u16) -> Branch<Frame> {
        if self.frame.head.len() > usize::from(len) {
            Branch::Longer
        } else {
            Branch::Otherwise
        }
    }

    fn pass_meter(&mut self, meter: u32) -> Result<(), DropReason> {
        match self.meters.admit(meter) {
            true => Ok(()),
            false => Err(DropReason::Metered),
        }
    }

    fn stopped(&mut self, at: usize) {
        self.stopped.push(at);
    }

    fn draw_sample(&mut self, probability: u32) -> bool {
        probability > 0
    }

    fn save(&mut self) -> Frame {
        self.frame.clone()
    }

    fn restore(&mut self, frame: Frame) {
        self.frame = frame;
    }
}

/// The table with what a thread has.
struct Product {
    rules: Arc<Rules>,
    table: MegaflowTable,
    ports: Vec<PortFlows>,
    cache: MicroflowCache,
    walker: Walker,
    stack: Stack<Frame>,
    meters: Meters,
    /// Ports whose bits of lists are promoted, until their filters change.
    promoted: [bool; PORTS as usize],
    seen: Seen,
}

/// How often what is tested was seen.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    hits: u64,
    /// Hits at a further look.
    behind: u64,
    /// Hits in a key's second set.
    second: u64,
    /// Packets since which more bits of lists are compared at the first look.
    promoted: u64,
    composed: u64,
    /// Decisions that change tags, and that have a branch by length.
    tagged: u64,
    branched: u64,
    /// Packets of decisions with flows behind a meter: that passed all meters, and that were dropped by the
    /// first operation or in the middle of a program.
    passed: u64,
    dropped_first: u64,
    dropped_later: u64,
}

impl Seen {
    fn composed(&mut self, decision: &Decision) {
        let is_tag = |op: &Op| matches!(op, Op::Edit(Edit::PushVlan { .. } | Edit::PopVlan));
        let ops = decision.program().ops();
        self.composed += 1;
        self.tagged += u64::from(ops.iter().any(is_tag));
        self.branched += u64::from(ops.iter().any(|op| matches!(op, Op::CheckPktLen { .. })));
    }
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Seen) {
        self.hits += other.hits;
        self.behind += other.behind;
        self.second += other.second;
        self.promoted += other.promoted;
        self.composed += other.composed;
        self.tagged += other.tagged;
        self.branched += other.branched;
        self.passed += other.passed;
        self.dropped_first += other.dropped_first;
        self.dropped_later += other.dropped_later;
    }
}

impl Product {
    fn new() -> Product {
        let rules = Arc::<Rules>::default();
        make_sets(&rules);
        let mut table = MegaflowTable::with_rules(DEFAULT_MAX_FLOWS, DEFAULT_MAX_MASKS, rules.clone());
        Product {
            rules,
            ports: (0..PORTS).map(|port| table.port(PortId(port))).collect(),
            table,
            cache: MicroflowCache::new(64),
            walker: Walker::default(),
            stack: Stack::default(),
            meters: Meters::default(),
            promoted: [false; PORTS as usize],
            seen: Seen::default(),
        }
    }

    fn packet(&mut self, frame: Frame) -> Vec<Outcome> {
        let (mut exact, mut layers) = (ExactKey::default(), Layers::default());
        let (bytes, in_port) = (frame.head.bytes(), frame.in_port);
        exact_key(bytes, 0, in_port, &mut exact, &mut layers);
        let flows = &self.ports[in_port.0 as usize];
        let mut subject = OnFrame {
            key: exact.flow_key().unwrap_or_else(|| frame.key()),
            outcomes: Vec::new(),
            meters: self.meters,
            stopped: Vec::new(),
            frame,
        };
        let mut train = Train::default();
        train.add(subject.frame.head.len(), exact.tcp_flags());
        let mask = flows.mask_union(&exact);
        let hash = self.cache.hash(&exact, mask);
        let before: [u64; ExactKey::WORDS] = std::array::from_fn(mask);
        let is_promoted = self.promoted[in_port.0 as usize];
        let mut found = self.cache.hit(hash, &exact, mask, &train).cloned();
        if found.is_none() {
            found = self.cache.hit(second(hash), &exact, mask, &train).cloned();
            self.seen.second += u64::from(found.is_some());
        }
        let mut place = self.cache.place(hash, &exact, mask).filter(|_| found.is_some());
        let found = found.or_else(|| {
            let further = self.cache.further(hash, &exact, mask, flows.is_promoted())?;
            let (at, decision) = self.cache.hit_behind(&exact, further, &train)?;
            let decision = decision.clone();
            if is_promoted {
                flows.promote_of(&decision);
            }
            place = Some(at);
            self.seen.behind += 1;
            Some(decision)
        });
        self.seen.hits += u64::from(found.is_some());
        let reading = flows.read();
        let decision = found.or_else(|| {
            let key = subject.key;
            let hint = reading.hint(&key, &Context::NONE);
            hint.prefetch();
            let walked = reading.walk(hint, &key, &Context::NONE, &mut self.walker);
            if let Walked::Composed(decision) = &walked {
                self.seen.composed(decision);
            }
            let decision = walked.decision().cloned()?;
            if !decision.counts_apart() {
                decision.record(1, train.bytes, train.tcp_flags, 0);
            }
            if !exact.is_none() {
                self.cache
                    .remember(&exact, flows.mask_union(&exact), &decision, 0);
            }
            Some(decision)
        });
        let widened = (0..ExactKey::WORDS).any(|word| before[word] != mask(word));
        self.seen.promoted += u64::from(is_promoted && widened);
        let outcomes = match &decision {
            Some(decision) => decided(&mut self.stack, decision, &mut subject),
            None => {
                let first = Stage::first(&reading.filters(in_port));
                run(&mut self.stack, Start::LookUp(first), &reading, &mut subject)
            }
        };
        drop(reading);
        if let Some(decision) = decision.filter(|decision| decision.counts_apart()) {
            self.count(&decision, place, &train, &subject.stopped);
        }
        self.meters = subject.meters;
        if outcomes == 0 {
            subject.dropped(DropReason::NoAction);
        }
        subject.outcomes
    }

    /// Counts a packet whose decision counts apart: with those of its place in the cache, if it passed and
    /// was found there.
    fn count(&mut self, decision: &Decision, place: Option<Place>, train: &Train, stopped: &[usize]) {
        self.seen.passed += u64::from(stopped.is_empty());
        self.seen.dropped_first += u64::from(stopped.contains(&0));
        self.seen.dropped_later += u64::from(stopped.iter().any(|&at| at > 0));
        match place {
            Some(place) if stopped.is_empty() => self.cache.count(place, train),
            _ => decision.record_metered(stopped, train, 0),
        }
    }
}

/// Does what a decision says, and returns the number of outcomes.
fn decided(stack: &mut Stack<Frame>, decision: &Decision, subject: &mut OnFrame) -> u64 {
    let mut shape = &decision.shape;
    if let Shape::Metered(metered) = shape {
        shape = &metered.then;
        if let Err(reason) = subject.pass_meter(metered.meter) {
            subject.stopped(0);
            subject.dropped(reason);
            return 1;
        }
    }
    match shape {
        Shape::Plain(port) => subject.output(*port, true),
        Shape::Edited(edited) => {
            match edited.edits.iter().try_for_each(|edit| subject.edit(edit)) {
                // Nothing is checked on the short way.
                Ok(()) => subject
                    .outcomes
                    .push(Outcome::Output(edited.port, subject.frame.out())),
                Err(reason) => subject.dropped(reason),
            }
        }
        Shape::Run | Shape::Metered(_) => {
            let start = Start::Program(decision.program());
            return run(stack, start, &NoTables, subject);
        }
    }
    1
}

fn ports() -> impl Strategy<Value = PortId> {
    (0..PORTS).prop_map(PortId)
}

fn sets() -> impl Strategy<Value = SetField> {
    let fields = vec![
        (FieldId::EthDst, 0x0200_0000_0001, u128::MAX),
        (FieldId::EthSrc, 1, 1),
        (FieldId::IpDst, 0x0a00_0001, u128::MAX),
        (FieldId::IpDst, 1, 3),
        (FieldId::IpTtl, 7, u128::MAX),
        (FieldId::TpDst, 1, u128::MAX),
        (FieldId::TpSrc, 1, 1),
        (FieldId::SkbMark, 5, u128::MAX),
        (FieldId::SkbPriority, 5, u128::MAX),
    ];
    prop::sample::select(fields).prop_map(|(field, value, mask)| SetField {
        field,
        value,
        mask: mask & field.field().ones(),
    })
}

/// Lists for a stage: `last` means the action that passes packets on there.
fn encapsulations() -> impl Strategy<Value = Encapsulation> {
    let mut nsh = [0; 24];
    (nsh[1], nsh[2]) = (6, 1);
    let nsh = NshHeader::new(&nsh).expect("a header of six words");
    prop_oneof![
        Just(Encapsulation::PushEth { dst: 2, src: 4 }),
        Just(Encapsulation::PopEth),
        Just(Encapsulation::PushNsh(nsh)),
        Just(Encapsulation::PopNsh),
        Just(Encapsulation::AddMpls {
            lse: 0x1140,
            eth_type: 0x8847
        }),
        Just(Encapsulation::PopMplsToEth),
    ]
}

fn lists(forward: bool) -> impl Strategy<Value = Vec<Action>> {
    let on = if forward {
        (1u32..3).prop_map(Action::Recirc).boxed()
    } else {
        Just(Action::Continue).boxed()
    };
    let leaf = prop_oneof![
        5 => ports().prop_map(Action::Output),
        5 => on.clone(),
        3 => sets().prop_map(|set| Action::Edit(Edit::Set(set))),
        2 => (any::<bool>(), 0x1000u16..0x1004).prop_map(|(service, tci)| Action::Edit(Edit::PushVlan {
            tpid: if service { 0x88a8 } else { 0x8100 },
            tci,
        })),
        2 => Just(Action::Edit(Edit::PopVlan)),
        1 => Just(Action::Edit(Edit::Class(3))),
        1 => Just(Action::Edit(Edit::PushMpls { lse: 0x1140, eth_type: 0x8847 })),
        1 => Just(Action::Edit(Edit::PopMpls(0x0800))),
        2 => encapsulations().prop_map(|change| Action::Edit(Edit::Encapsulate(change))),
        2 => Just(Action::Hash { basis: 1 }),
        3 => (0u32..3).prop_map(Action::Meter),
        1 => (20u32..70).prop_map(Action::Truncate),
        1 => (0u32..2).prop_map(|pid| Action::Userspace(Userspace { pid, ..Userspace::default() })),
        1 => Just(Action::Drop(DropReason::Policy)),
    ];
    let nested = leaf.clone().prop_recursive(2, 6, 2, |inner| {
        let list = || prop::collection::vec(inner.clone(), 0..3).prop_map(Nested);
        prop_oneof![
            list().prop_map(Action::Clone),
            (0u32..2, list()).prop_map(|(probability, actions)| Action::Sample { probability, actions }),
            (50u16..70, list(), list()).prop_map(|(len, greater, otherwise)| Action::CheckPktLen {
                len,
                greater,
                otherwise
            }),
        ]
    });
    // What limits rates and chooses buckets.
    let limited =
        (prop::option::of(sets()), 0u32..3, any::<bool>(), on).prop_map(|(set, meter, hashed, on)| {
            let set = set.map(|set| Action::Edit(Edit::Set(set))).into_iter();
            let hash = hashed.then_some(Action::Hash { basis: 1 });
            set.chain([Action::Meter(meter)])
                .chain(hash)
                .chain([on])
                .collect()
        });
    let any = prop::collection::vec(prop_oneof![6 => leaf, 1 => nested], 1..4);
    prop_oneof![3 => any, 1 => limited]
}

fn stages() -> impl Strategy<Value = Stage> {
    prop_oneof![
        2 => (0u8..2).prop_map(Stage::Ingress),
        4 => Just(Stage::Forward),
        2 => (ports(), 0u8..2).prop_map(|(port, number)| Stage::Egress(port, number)),
    ]
}

/// What a flow looks at, one mask per list, so that flows do not overlap.
fn mask_of(stage: Stage, pass: u32, salt: u32) -> FlowMask {
    let mut mask = FlowMask::ANY;
    let number = match stage {
        Stage::Ingress(number) => u32::from(number),
        Stage::Forward => 2 + pass,
        Stage::Egress(port, number) => 7 + 2 * port.0 + u32::from(number),
    };
    mask.0.set_in_port(if number % 3 == 2 { 0 } else { u32::MAX });
    mask.0
        .set_recirc_id(if stage == Stage::Forward { u32::MAX } else { 0 });
    let mixed = (number + 17 * salt).wrapping_mul(0x9e37_79b9) >> 12;
    // One field in six, about.
    let bit = |at: u32| (mixed ^ mixed >> 7).wrapping_mul(2 * at + 1).is_multiple_of(6);
    mask.0.set_eth_dst(if bit(0) { 3 } else { 0 });
    mask.0.set_vlan_tci(if bit(1) { 0x1003 } else { 0 });
    mask.0.set_ip_dst(if bit(2) { 1 } else { 0 });
    mask.0.set_tp_dst(if bit(3) { 1 } else { 0 });
    mask.0.set_tp_src(if bit(4) { 1 } else { 0 });
    mask.0.set_skb_mark(if bit(5) { 1 } else { 0 });
    mask.0.set_eth_type(if bit(6) { 0xffff } else { 0 });
    mask.0.set_dp_hash(if bit(7) && pass > 0 { 1 } else { 0 });
    mask.0.set_inner_tci(if bit(8) { 1 } else { 0 });
    mask.0.set_ip_ttl(if bit(9) { 7 } else { 0 });
    mask.0.set_vlan_tpid(if bit(10) { 0xffff } else { 0 });
    // In some histories first look-ups tell connections apart.
    if salt.is_multiple_of(8) && stage == Stage::Forward && pass == 0 {
        mask.0.set_tp_src(u16::MAX);
        mask.0.set_tp_dst(u16::MAX);
    }
    mask.0.set_inner_tpid(if bit(11) { 0xffff } else { 0 });
    mask
}

#[derive(Clone, Debug)]
struct Put {
    stage: Stage,
    pass: u32,
    values: Vec<u8>,
    priority: Option<bool>,
    lists: [Vec<Action>; 2],
    kept: bool,
}

impl Put {
    fn flow(&self, id: u128, salt: u32) -> Flow {
        let pass = if self.stage == Stage::Forward {
            self.pass
        } else {
            0
        };
        let mask = mask_of(self.stage, pass, salt);
        let mut key = Frame::new(&frame(&self.values), PortId(u32::from(self.values[0]) % PORTS)).key();
        key.set_recirc_id(pass);
        key.set_skb_mark(u32::from(self.values[1]) * 5);
        key.set_dp_hash(self.values[2].into());
        let [forward, filter] = &self.lists;
        let actions = if self.stage == Stage::Forward {
            forward
        } else {
            filter
        };
        // All flows of a list match the priority, or none.
        let context = (salt + pass).is_multiple_of(3).then(|| {
            let (mut context, mut mask) = (Context::NONE, Context::NONE);
            context.set_skb_priority(if self.priority == Some(true) { 5 } else { 0 });
            mask.set_skb_priority(u32::MAX);
            Box::new(ContextMatch { context, mask })
        });
        Flow {
            id: FlowId(id),
            switch: SwitchId(1),
            stage: self.stage,
            key: key.masked(&mask),
            mask,
            context,
            actions: ahead(actions, self.stage, pass),
        }
    }
}

/// The list, with passes that lead on only and outputs of egress filters that meet none, so that no packet
/// goes round in circles.
fn ahead(actions: &[Action], stage: Stage, pass: u32) -> Vec<Action> {
    let nested = |list: &Nested| Nested(ahead(&list.0, stage, pass));
    let change = |action: &Action| match action {
        Action::Recirc(id) => Action::Recirc(pass + id),
        Action::Output(_) if matches!(stage, Stage::Egress(..)) => Action::Output(PortId(0)),
        Action::Clone(list) => Action::Clone(nested(list)),
        Action::Sample { probability, actions } => Action::Sample {
            probability: *probability,
            actions: nested(actions),
        },
        Action::CheckPktLen {
            len,
            greater,
            otherwise,
        } => Action::CheckPktLen {
            len: *len,
            greater: nested(greater),
            otherwise: nested(otherwise),
        },
        other => other.clone(),
    };
    actions.iter().map(change).collect()
}

/// A frame of few kinds, as few bits say.
fn frame(bits: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, bits[3] & 3, 2, 0, 0, 0, 0, bits[4] & 1];
    for tag in 0..bits[5] % 4 {
        let tpid = if bits[6] >> tag & 2 == 0 {
            0x8100u16
        } else {
            0x88a8
        };
        frame.extend(tpid.to_be_bytes());
        frame.extend([bits[6] & 0x20, tag + (bits[6] & 1)]);
    }
    match bits[8] >> 4 {
        15 => frame.extend([0, 60, 0xaa, 0xaa, 3, 0, 0, 0]),
        14 => frame.extend([0, 50]),
        _ => {}
    }
    let (kind, protocol) = match bits[7] % 6 {
        0 => ([0x08, 0x06], 0),
        1 => ([0x88, 0xb5], 0),
        2 => ([0x08, 0x00], 1),
        3 => ([0x08, 0x00], 6),
        _ => ([0x08, 0x00], 17),
    };
    frame.extend(kind);
    frame.extend([0x45, 0, 0, 48, 0, 0, 0, 0, 60 + (bits[8] & 1), protocol, 0, 0]);
    frame.extend([10, 0, 0, bits[9] >> 2 & 3, 10, 0, 0, bits[9] & 3]);
    frame.extend([0, bits[10] & 3, 0, bits[11] & 3]);
    frame.extend([
        0,
        0,
        0,
        1,
        0,
        0,
        0,
        0,
        0x50,
        0x10 | bits[8] >> 1 & 3,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ]);
    frame.resize(frame.len() + usize::from(bits[0] / 4) % 20, 7);
    // Some end with their type or tags.
    if bits[2] % 16 == 7 {
        frame.truncate(14 + usize::from(bits[0]) % 12);
    }
    frame
}

#[derive(Clone, Debug)]
enum Operation {
    Put(Vec<(u128, Put)>),
    Remove(u128),
    Filters(PortId, Filters),
    Change(Change),
    /// Most packets of the port have a further look.
    Promote(PortId),
    Flush,
    Packets(Vec<Vec<u8>>),
}

fn bits() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 12)
}

/// Filters of one direction, of flows and of rules.
fn filters() -> impl Strategy<Value = [Filter; 4]> {
    let rules = prop::sample::select(LISTS.to_vec()).prop_map(Filter::Rules);
    let filter = prop_oneof![3 => Just(Filter::Absent), 1 => Just(Filter::Flows), 3 => rules];
    [
        filter.clone().boxed(),
        filter.clone().boxed(),
        filter.boxed(),
        Just(Filter::Absent).boxed(),
    ]
}

fn operations() -> impl Strategy<Value = (u32, Vec<Operation>)> {
    let put = (
        stages(),
        0u32..4,
        bits(),
        any::<Option<bool>>(),
        lists(true),
        lists(false),
        any::<bool>(),
    )
        .prop_map(|(stage, pass, values, priority, forward, filter, kept)| Put {
            stage,
            pass,
            values,
            priority,
            lists: [forward, filter],
            kept,
        });
    let operation = prop_oneof![
        10 => prop::collection::vec((0u128..60, put), 1..12).prop_map(Operation::Put),
        3 => (0u128..60).prop_map(Operation::Remove),
        2 => (ports(), prop::sample::select(vec![0u8, 0, 0, 1, 2]), prop::sample::select(vec![0u8, 0, 0, 1, 2])).prop_map(|(port, ingress, egress)| {
            let egress = if port.0 == 0 { 0 } else { egress };
            Operation::Filters(port, Filters::of_flows(ingress, egress))
        }),
        6 => (ports(), filters(), filters()).prop_map(|(port, ingress, egress)| {
            let egress = if port.0 == 0 { Default::default() } else { egress };
            Operation::Filters(port, Filters { ingress, egress })
        }),
        12 => changes().prop_map(Operation::Change),
        4 => ports().prop_map(Operation::Promote),
        1 => Just(Operation::Flush),
        12 => prop::collection::vec(bits(), 1..6).prop_map(Operation::Packets),
    ];
    (0u32..64, prop::collection::vec(operation, 1..40))
}

/// Returns how often what is tested was seen.
fn compare((salt, operations): (u32, Vec<Operation>)) -> Result<Seen, TestCaseError> {
    let mut product = Product::new();
    let mut twin = Twin::default();
    for operation in operations {
        match operation {
            Operation::Put(puts) => {
                // What the cache holds is of the flows that are replaced.
                product.cache.flush_stats(0);
                for (id, put) in puts {
                    let flow = put.flow(id, salt);
                    let statistics = if put.kept {
                        Statistics::Kept
                    } else {
                        Statistics::New
                    };
                    product
                        .table
                        .put(flow.clone(), PutMode::CreateOrModify(statistics))
                        .unwrap();
                    twin.put(flow, statistics);
                }
            }
            Operation::Remove(id) => {
                let removed = product.table.remove(FlowId(id));
                product.cache.flush_stats(0);
                twin.flows.retain(|flow| flow.id != FlowId(id));
                let last = removed.map(|entry| entry.stats(0));
                prop_assert_eq!(last, twin.counts.remove(&FlowId(id)));
            }
            Operation::Filters(port, filters) => {
                if product.table.filters(port).ingress != filters.ingress {
                    product.promoted[port.0 as usize] = false;
                }
                product.table.set_filters(port, filters);
                twin.filters.insert(port, filters);
            }
            Operation::Change(change) => {
                // What the cache holds is of rules that may go.
                product.cache.flush_stats(0);
                change.make(&product.rules, &mut twin.rules);
            }
            Operation::Promote(port) => {
                product.ports[port.0 as usize].promote();
                product.promoted[port.0 as usize] = true;
            }
            Operation::Flush => {
                prop_assert_eq!(product.table.flush(), twin.flows.len());
                twin.flows.clear();
                twin.counts.clear();
            }
            Operation::Packets(packets) => {
                // Twice, so that the cache is asked.
                for bits in packets.iter().chain(&packets) {
                    let frame = Frame::new(&frame(bits), PortId(u32::from(bits[0]) % PORTS));
                    prop_assert_eq!(product.packet(frame.clone()), twin.packet(frame));
                }
                product.cache.flush_stats(0);
                for entry in product.table.iter() {
                    let count = twin.counts.get(&entry.flow.id).copied();
                    prop_assert_eq!(Some(entry.stats(0)), count, "{:?}", entry.flow);
                }
                twin.rules.check_counts(&product.rules)?;
            }
        }
        prop_assert_eq!(product.table.len(), twin.flows.len());
    }
    Ok(product.seen)
}

#[test]
fn walks_through_caches_are_as_walks_without() {
    let minutes = std::env::var("HYPERSWITCH_TWIN_MINUTES")
        .ok()
        .and_then(|minutes| minutes.parse().ok());
    let end = Instant::now() + Duration::from_secs(60 * minutes.unwrap_or(0));
    let mut totals = Seen::default();
    loop {
        let config = Config {
            failure_persistence: None,
            max_shrink_iters: 500,
            ..Config::with_cases(1500)
        };
        let seen = std::cell::Cell::new(Seen::default());
        let result = TestRunner::new(config).run(&operations(), |case| {
            let mut sum = seen.get();
            sum += compare(case)?;
            seen.set(sum);
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
        totals += seen.get();
        if Instant::now() >= end {
            break;
        }
    }
    let Seen {
        hits,
        behind,
        second,
        promoted,
        composed,
        tagged,
        branched,
        passed,
        dropped_first,
        dropped_later,
    } = totals;
    assert!(hits > 3000 && composed > 300, "{totals:?}");
    assert!(behind > 100 && second > 20 && promoted > 20, "{totals:?}");
    assert!(tagged > 50 && branched > 5, "{totals:?}");
    assert!(
        passed > 10 && dropped_first > 10 && dropped_later > 5,
        "{totals:?}"
    );
}

/// What becomes of a packet if the passes by number have these actions, and the switch afterwards.
fn through(passes: impl IntoIterator<Item = Vec<Action>>) -> (Product, Vec<Outcome>) {
    let mut product = Product::new();
    let mut mask = FlowMask::ANY;
    mask.0.set_recirc_id(u32::MAX);
    for (pass, actions) in (0..).zip(passes) {
        let mut key = FlowKey::default();
        key.set_recirc_id(pass);
        let flow = Flow::new(FlowId(pass.into()), SwitchId(1), key, mask, actions);
        product.table.insert(flow).unwrap();
    }
    let outcomes = product.packet(Frame::new(&frame(&[1; 12]), PortId(1)));
    (product, outcomes)
}

/// Flows may send packets in circles, and many copies of them.
#[test]
fn circles_end() {
    let (product, outcomes) = through([vec![Action::Recirc(1); 8], vec![Action::Recirc(1); 8]]);
    assert!(
        outcomes
            .iter()
            .all(|outcome| *outcome == Outcome::Dropped(DropReason::TooDeep))
    );
    assert!(outcomes.len() < classifier::MAX_STEPS as usize);
    assert_eq!((product.walker.uncomposed, product.seen.composed), (1, 0));
}

/// As many passes follow each other as the limit says, and not one more.
#[test]
fn the_last_look_up_allowed_is_made() {
    for (passes, is_dropped) in [(classifier::MAX_LOOKS, false), (classifier::MAX_LOOKS + 1, true)] {
        let on = (1..passes).map(|next| vec![Action::Recirc(next)]);
        let (_, outcomes) = through(on.chain([vec![Action::Output(PortId(0))]]));
        let dropped = outcomes == [Outcome::Dropped(DropReason::TooDeep)];
        assert_eq!((outcomes.len(), dropped), (1, is_dropped), "{passes} passes");
    }
}

/// As many operations are done for a packet as the limit says, and not one more.
#[test]
fn the_last_operation_allowed_is_done() {
    for (more, expected) in [(false, None), (true, Some(Outcome::Dropped(DropReason::TooDeep)))] {
        let all = MAX_OPS - 1;
        let on = [all, all - usize::from(!more)];
        let on = (1..).zip(on).map(|(next, before)| {
            let mut actions = vec![Action::Truncate(60); before];
            actions.push(Action::Recirc(next));
            actions
        });
        let (_, outcomes) = through(on.chain([vec![Action::Output(PortId(0))]]));
        let dropped = outcomes
            .iter()
            .find(|outcome| matches!(outcome, Outcome::Dropped(_)));
        assert_eq!((outcomes.len(), dropped.cloned()), (1, expected));
    }
}

/// A decision has fewer operations than the limit, and as many flows as the limit says.
#[test]
fn a_long_walk_is_composed_up_to_the_limits() {
    let composed = |passes: [Vec<Action>; 2]| {
        let (product, _) = through(passes);
        (product.seen.composed, product.walker.uncomposed)
    };
    let output = Action::Output(PortId(0));
    let half = vec![Action::Truncate(60); MAX_OPS / 2];
    for (less, expected) in [(2, (1, 0)), (1, (0, 1))] {
        let first = [&half[..], &[Action::Recirc(1)]].concat();
        let second = [&half[less..], std::slice::from_ref(&output)].concat();
        assert_eq!(composed([first, second]), expected, "{less} operations less");
    }
    for (passes, expected) in [(MAX_PARTS - 1, (1, 0)), (MAX_PARTS, (0, 1))] {
        let first = vec![Action::Recirc(1); passes];
        let second = vec![output.clone()];
        assert_eq!(composed([first, second]), expected, "{passes} passes");
    }
}

/// Found by random operations: the decision for a packet with an address to be set was used for one without,
/// which counted for the flow of the next pass although it was dropped before.
#[test]
fn packets_without_the_field_that_is_set_are_of_another_kind() {
    let first = vec![
        Action::Edit(Edit::Set(SetField {
            field: FieldId::IpDst,
            value: 1,
            mask: 3,
        })),
        Action::Recirc(1),
    ];
    let output = vec![Action::Output(PortId(0))];
    let put = |pass, value, lists| Put {
        stage: Stage::Forward,
        pass,
        values: [vec![value], vec![0; 11]].concat(),
        priority: None,
        lists,
        kept: false,
    };
    let flows = vec![
        (10, put(0, 0, [first, output.clone()])),
        (0, put(1, 160, [output.clone(), output])),
    ];
    let arp = vec![184, 0, 0, 0, 0, 123, 0, 0, 0, 0, 0, 0];
    let icmp = vec![136, 0, 0, 0, 0, 60, 0, 188, 0, 0, 0, 0];
    compare((
        15,
        vec![Operation::Put(flows), Operation::Packets(vec![arp, icmp])],
    ))
    .unwrap();
}
