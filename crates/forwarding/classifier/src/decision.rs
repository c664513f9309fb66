//! The decision about packets of one kind: the value of the microflow cache.
//!
//! A flow that looks up nothing further has a decision of its own, made when the flow is installed. The
//! operations of a walk through several flows are composed into one program, which depends on all of them:
//! when one of the flows ends, so does the decision, before the change is answered. A thread that composes a
//! decision first notes it with its flows and then checks whether they live; a thread that ends a flow first
//! marks the flow and then reads which decisions are noted. So one of the two finds the other.
//!
//! Packets that a meter drops do not count for flows that are found behind it. A decision with such flows
//! *counts apart*: the caches do not count its packets when they come, but those that asked the meters do
//! afterwards. So a count is right when it is made, and is never taken back.
//!
//! Counters are independent statistics, updated without ordering between them: a reader may see a packet
//! before its bytes, but never a count that goes back. The state becomes [`ENDED`] once and stays so.

use crate::behind_bits::Behind;
use crate::class::Class;
use crate::entry::FlowEntry;
use crate::tally::{Count, Tally};
use crate::train::Train;
use cpu::{Access, prefetch};
use flow::{Edit, FlowStats, PortId, Program};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// States of a decision: it must not be used any more,
const ENDED: u8 = 0;
/// it holds, and its packets are counted when they come,
const HOLDS: u8 = 1;
/// it holds, and counts apart;
const COUNTS_APART: u8 = 2;
/// it holds under masks that have the bits of look-ups behind the first ones.
const LOOKS_FURTHER: u8 = 3;

/// The form of a program, which decides the packets' way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// All packets go to a port as they are.
    Plain(PortId),
    /// All packets go to a port, changed.
    Edited(Box<Edited>),
    /// All packets go to a port unless a meter drops them.
    Metered(Box<Metered>),
    /// Anything else.
    Run,
}

impl Shape {
    fn of(program: &Program) -> Shape {
        let then = match (program.plain(), program.edited()) {
            (Some(port), _) => Shape::Plain(port),
            (None, Some((edits, port))) => Shape::Edited(Box::new(Edited { edits, port })),
            (None, None) => return Shape::Run,
        };
        match program.first_meter() {
            Some(meter) => Shape::Metered(Box::new(Metered { meter, then })),
            None => then,
        }
    }

    /// What is done to all packets, or to those that have passed the meter, if they are changed and go to a
    /// port.
    #[inline]
    pub fn edited(&self) -> Option<&Edited> {
        match self {
            Shape::Edited(edited) => Some(edited),
            Shape::Metered(metered) => metered.then.edited(),
            Shape::Plain(_) | Shape::Run => None,
        }
    }
}

/// A meter, and what is done to packets that it lets pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metered {
    /// Number of the meter, which is the first operation of the program.
    pub meter: u32,
    /// [`Shape::Plain`] or [`Shape::Edited`].
    pub then: Shape,
}

/// Changes of a packet, and its output port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited {
    /// In order.
    pub edits: Box<[Edit]>,
    /// The port.
    pub port: PortId,
}

/// Who has copies of decisions, by which others forward.
pub trait Copied: std::fmt::Debug + Send + Sync {
    /// A decision has ended: nobody uses a copy of it when this returns.
    fn withdraw(&self, decision: &Decision);
}

/// The decision about packets of a kind.
#[derive(Debug)]
#[repr(C)]
pub struct Decision {
    state: AtomicU8,
    /// The form of the program.
    pub shape: Shape,
    counts: Counts,
    program: Program,
    /// Who has copies, if anybody does.
    copied: OnceLock<Arc<dyn Copied>>,
}

/// The flows to whose statistics counts are added.
#[derive(Debug)]
enum Counts {
    /// Counts of the flow whose own decision this is. Its successor goes on with them.
    Own(Arc<Seen>),
    /// Counts of these flows.
    Parts(Parts),
}

#[derive(Debug)]
struct Parts {
    counters: Counters,
    /// Decisions of the same flows share this list and the one above.
    flows: Arc<[Part]>,
    /// The meters that have flows behind them.
    meters: Box<[Meter]>,
    /// Bits that the mask union may lack.
    behind: Option<Box<Behind>>,
    /// If rules are among the flows.
    class: Option<Box<Class>>,
}

/// A flow of a walk.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub flow: Arc<FlowEntry>,
    /// Bytes by which packets have grown on the way to the flow; negative if they have shrunk.
    pub grown: i16,
}

/// Where packets are counted, for each of a decision's flows.
type Counters = Arc<[Counter]>;

/// Where packets are counted for one of the flows.
#[derive(Debug)]
pub(crate) struct Counter {
    seen: Arc<Seen>,
    /// As in its [`Part`].
    grown: i16,
}

impl Count for Counter {
    fn count(&self, packets: &Train, now_ms: u64) {
        self.record(packets.packets.into(), packets.bytes, packets.tcp_flags, now_ms);
    }
}

impl Counter {
    fn record(&self, packets: u64, bytes: u64, tcp_flags: u16, now_ms: u64) {
        let grown = i64::from(self.grown) * packets.cast_signed();
        let bytes = bytes.saturating_add_signed(grown);
        self.seen.record(packets, bytes, tcp_flags, now_ms);
    }
}

/// A meter of a composed program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meter {
    /// The place of its operation.
    pub at: usize,
    /// The flows, by their place in the list, that are found behind the meter: if it drops a packet, that
    /// does not count for them.
    pub behind: Range<usize>,
}

/// Written for every batch; on cache lines apart from those that are read for every packet.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Seen {
    packets: AtomicU64,
    bytes: AtomicU64,
    /// Time of the last match in milliseconds of the caller's clock, plus one; 0 for never.
    last_used: AtomicU64,
    tcp_flags: AtomicU16,
}

impl Seen {
    fn record(&self, packets: u64, bytes: u64, tcp_flags: u16, now_ms: u64) {
        self.packets.fetch_add(packets, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let stamp = now_ms.saturating_add(1);
        // A plain store could undo that of a worker whose clock reading is newer. Mostly nothing changes,
        // and then the cache line's other users are not disturbed.
        if self.last_used.load(Ordering::Relaxed) < stamp {
            self.last_used.fetch_max(stamp, Ordering::Relaxed);
        }
        if self.tcp_flags.load(Ordering::Relaxed) & tcp_flags != tcp_flags {
            self.tcp_flags.fetch_or(tcp_flags, Ordering::Relaxed);
        }
    }

    fn stats(&self, now_ms: u64) -> FlowStats {
        let last_used = self.last_used.load(Ordering::Relaxed).checked_sub(1);
        FlowStats {
            packets: self.packets.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            idle_ms: last_used.map(|then| now_ms.saturating_sub(then)),
            tcp_flags: self.tcp_flags.load(Ordering::Relaxed),
        }
    }
}

impl Decision {
    fn new(program: Program, counts: Counts) -> Decision {
        let state = match &counts {
            Counts::Parts(parts) if parts.behind.is_some() => LOOKS_FURTHER,
            Counts::Parts(parts) if !parts.meters.is_empty() => COUNTS_APART,
            _ => HOLDS,
        };
        Decision {
            state: AtomicU8::new(state),
            shape: Shape::of(&program),
            counts,
            program,
            copied: OnceLock::new(),
        }
    }

    /// A flow's own decision. Its statistics go on from those of `before`, if that is given.
    pub(crate) fn of_flow(program: Program, before: Option<&Arc<Decision>>) -> Decision {
        let seen = before.map_or_else(Arc::default, |before| before.seen());
        Decision::new(program, Counts::Own(seen))
    }

    /// The statistics of the flow whose own decision this is.
    fn seen(&self) -> Arc<Seen> {
        match &self.counts {
            Counts::Own(seen) => Arc::clone(seen),
            Counts::Parts(_) => Arc::default(),
        }
    }

    /// The decision's program.
    #[inline]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The flows of which the decision was composed; none for a flow's own decision.
    pub(crate) fn parts(&self) -> &[Part] {
        match &self.counts {
            Counts::Parts(parts) => &parts.flows,
            Counts::Own(_) => &[],
        }
    }

    /// Counts packets that no meter dropped for all flows that the decision depends on. `now_ms` comes from
    /// the clock that the caller also uses for [`stats`](Self::stats).
    #[inline]
    pub fn record(&self, packets: u64, bytes: u64, tcp_flags: u16, now_ms: u64) {
        match &self.counts {
            Counts::Own(seen) => seen.record(packets, bytes, tcp_flags, now_ms),
            Counts::Parts(parts) => parts
                .counters
                .iter()
                .for_each(|counter| counter.record(packets, bytes, tcp_flags, now_ms)),
        }
    }

    /// As [`record`](Self::record); what decisions of the same flows share comes into the tally.
    pub(crate) fn tally(&self, train: &Train, tally: &mut Tally<Counter>, now_ms: u64) {
        let (packets, flags) = (train.packets.into(), train.tcp_flags);
        match &self.counts {
            Counts::Parts(parts) => tally.add(&parts.counters, train, now_ms),
            Counts::Own(_) => self.record(packets, train.bytes, flags, now_ms),
        }
    }

    /// Counts packets of a decision that [counts apart](Self::counts_apart). `dropped` are the places of the
    /// meters that dropped them, or copies of them.
    pub fn record_metered(&self, dropped: &[usize], train: &Train, now_ms: u64) {
        let (packets, bytes) = (train.packets.into(), train.bytes);
        let Counts::Parts(parts) = &self.counts else {
            return self.record(packets, bytes, train.tcp_flags, now_ms);
        };
        let has_dropped = parts.meters.iter().filter(|meter| dropped.contains(&meter.at));
        for (number, counter) in parts.counters.iter().enumerate() {
            if !has_dropped.clone().any(|meter| meter.behind.contains(&number)) {
                counter.record(packets, bytes, train.tcp_flags, now_ms);
            }
        }
    }

    /// A flow's statistics so far. Idle time is computed for `now_ms`.
    pub(crate) fn stats(&self, now_ms: u64) -> FlowStats {
        match &self.counts {
            Counts::Own(seen) => seen.stats(now_ms),
            Counts::Parts(_) => FlowStats::default(),
        }
    }

    /// Prefetches the fields that are read for a packet.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(self, Access::Read);
    }

    /// Prefetches what [`record`](Self::record) writes, or the list of it for a composed decision.
    #[inline]
    pub(crate) fn prefetch_list(&self) {
        match &self.counts {
            Counts::Parts(parts) => prefetch(parts.counters.as_ptr(), Access::Read),
            Counts::Own(seen) => prefetch(Arc::as_ptr(seen), Access::Write),
        }
    }

    /// Prefetches what is on it.
    #[inline]
    pub(crate) fn prefetch_counters(&self) {
        if let Counts::Parts(parts) = &self.counts {
            let counters = parts.counters.iter();
            counters.for_each(|counter| prefetch(Arc::as_ptr(&counter.seen), Access::Write));
        }
    }

    /// Flows and counters, for another decision of the same flows.
    fn shared(&self, parts: &[Part]) -> Option<(Arc<[Part]>, Counters)> {
        match &self.counts {
            Counts::Parts(shared) if same(&shared.flows, parts) => {
                Some((Arc::clone(&shared.flows), Arc::clone(&shared.counters)))
            }
            _ => None,
        }
    }

    /// Whether the decision holds. One that has ended must not be used for packets any more.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.state.load(Ordering::Acquire) != ENDED
    }

    /// Whether the decision holds and its packets are counted when they come: the usual case.
    #[inline]
    pub(crate) fn counts_at_once(&self) -> bool {
        self.state.load(Ordering::Acquire) == HOLDS
    }

    /// Whether the decision holds, under any mask, and counts apart.
    pub(crate) fn holds_and_counts_apart(&self) -> bool {
        self.state.load(Ordering::Acquire) == COUNTS_APART
    }

    /// Bits that look-ups of the decision compared and that the mask union may lack.
    pub(crate) fn behind(&self) -> Option<&Behind> {
        match &self.counts {
            Counts::Parts(parts) => parts.behind.as_deref(),
            Counts::Own(_) => None,
        }
    }

    /// The packets that the decision holds for, if it stands on rules.
    pub(crate) fn class(&self) -> Option<&Class> {
        match &self.counts {
            Counts::Parts(parts) => parts.class.as_deref(),
            Counts::Own(_) => None,
        }
    }

    /// Whether flows of the decision are found behind meters. Whoever asks the meters then counts the
    /// packets, with [`record_metered`](Self::record_metered) or, if all passed,
    /// [`MicroflowCache::count`](crate::MicroflowCache::count).
    #[inline]
    pub fn counts_apart(&self) -> bool {
        matches!(&self.counts, Counts::Parts(parts) if !parts.meters.is_empty())
    }

    /// Notes who has copies, which have to be withdrawn when the decision ends. Whether it holds still; if
    /// not, or if another one has copies, there must be none.
    pub fn note_copied(&self, by: Arc<dyn Copied>) -> bool {
        let noted = Arc::as_ptr(self.copied.get_or_init(|| by.clone())).addr();
        // Either this one sees the end, or the one who ends it the note.
        fence(Ordering::SeqCst);
        noted == Arc::as_ptr(&by).addr() && self.is_live()
    }

    /// Ends the decision: from now on caches treat it as a miss, and copies are withdrawn.
    pub(crate) fn end(&self) {
        self.state.store(ENDED, Ordering::Release);
        fence(Ordering::SeqCst);
        if let Some(copied) = self.copied.get() {
            copied.withdraw(self);
        }
    }

    /// Has the flows note the decision no longer. Takes locks of all of them, one after the other.
    fn forget(&self) {
        let hash = hash(self.parts(), self.class());
        places(self.parts()).for_each(|flow| flow.forget(hash, self));
    }
}

impl Drop for Decision {
    /// Flows have no notes of decisions that are gone, so that nobody has to search for these.
    fn drop(&mut self) {
        if !self.parts().is_empty() {
            self.forget();
        }
    }
}

/// Ends a decision, which holds its flows, and is held by none of them afterwards.
pub(crate) fn end_composed(decision: &Arc<Decision>) {
    decision.end();
    decision.forget();
}

pub(crate) fn same(parts: &[Part], others: &[Part]) -> bool {
    let is_same =
        |(part, other): (&Part, &Part)| Arc::ptr_eq(&part.flow, &other.flow) && part.grown == other.grown;
    parts.len() == others.len() && parts.iter().zip(others).all(is_same)
}

/// A hash of flows in their order. Guests do not choose the addresses of flows, so it needs no secret; the
/// keys of a class have one.
fn hash(parts: &[Part], class: Option<&Class>) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let first = class.map_or(FACTOR, Class::hash);
    parts.iter().fold(first, |hash, part| {
        let flow = Arc::as_ptr(&part.flow).addr() as u64;
        (hash ^ flow.wrapping_add_signed(part.grown.into()))
            .wrapping_mul(FACTOR)
            .rotate_left(31)
    })
}

/// The flows of these, of which one note each is enough: rules of one list note in one place.
fn places(parts: &[Part]) -> impl Iterator<Item = &Arc<FlowEntry>> {
    parts.iter().enumerate().filter_map(move |(at, part)| {
        let mut earlier = parts[..at].iter();
        (!earlier.any(|earlier| earlier.flow.shares_notes(&part.flow))).then_some(&part.flow)
    })
}

/// The decision for a walk through these flows, if one exists and holds. `class` says of which packets if
/// rules are among the flows.
pub(crate) fn known(parts: &[Part], class: Option<&Class>) -> Option<Arc<Decision>> {
    let hash = hash(parts, class);
    parts.first()?.flow.find(hash, parts, class)
}

/// The lists of a decision of the same flows, if it is found at once: one place for all classes.
fn shared_lists(parts: &[Part]) -> Option<(Arc<[Part]>, Counters)> {
    let place = hash(parts, None);
    let last = parts.first()?.flow.last(place)?;
    last.shared(parts)
}

/// Makes the decision for a walk through these flows and meters. If one of the flows has ended meanwhile, so
/// has the decision.
pub(crate) fn compose(
    program: Program,
    parts: &[Part],
    meters: &[Meter],
    behind: Option<Behind>,
    class: Option<Class>,
) -> Arc<Decision> {
    let meters = meters.iter().filter(|meter| !meter.behind.is_empty());
    let counter = |part: &Part| Counter {
        seen: part.flow.decision.seen(),
        grown: part.grown,
    };
    let hash = hash(parts, class.as_ref());
    let shared = shared_lists(parts);
    let (flows, counters) = shared.unwrap_or_else(|| (parts.into(), parts.iter().map(counter).collect()));
    let counts = Counts::Parts(Parts {
        counters,
        flows,
        meters: meters.cloned().collect(),
        behind: behind.map(Box::new),
        class: class.map(Box::new),
    });
    let decision = Arc::new(Decision::new(program, counts));
    places(parts).for_each(|flow| flow.note(hash, &decision));
    // Whoever ended it meanwhile may have been before the notes.
    if !decision.is_live() || !parts.iter().all(|part| part.flow.is_live()) {
        end_composed(&decision);
    }
    decision
}

#[cfg(test)]
impl Part {
    /// For packets as they came.
    pub(crate) fn of(flow: &Arc<FlowEntry>) -> Part {
        let flow = Arc::clone(flow);
        Part { flow, grown: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{Action, Edit, Flow, FlowId, FlowKey, FlowMask, Stage, SwitchId};
    use std::collections::HashSet;

    #[test]
    fn a_shape_has_its_edits_behind_a_meter_as_well() {
        let (port, output) = (PortId(7), Action::Output(PortId(7)));
        let shape = |actions: &[Action]| Shape::of(&Program::compile(actions, Stage::Forward).unwrap());
        let edits = [Edit::PopVlan].into();
        let edited = Edited { edits, port };
        assert_eq!(
            shape(&[Action::Edit(Edit::PopVlan), output.clone()]).edited(),
            Some(&edited)
        );
        let metered = shape(&[Action::Meter(3), Action::Edit(Edit::PopVlan), output.clone()]);
        assert_eq!(metered.edited(), Some(&edited));
        assert_eq!(shape(&[Action::Meter(3), output.clone()]).edited(), None);
        assert_eq!(shape(&[output]).edited(), None);
    }

    /// Decisions of the flow that a port's packets all come to first are in one list.
    #[test]
    fn hashes_of_flows_in_their_order_are_spread() {
        let flow = || {
            Flow::new(
                FlowId(1),
                SwitchId(1),
                FlowKey::default(),
                FlowMask::ANY,
                Vec::new(),
            )
        };
        let entries: Vec<_> = (0..64)
            .map(|_| Arc::new(FlowEntry::new(flow()).unwrap()))
            .collect();
        let pairs = entries
            .iter()
            .flat_map(|one| entries.iter().map(move |other| [one, other].map(Part::of)));
        let hashes: HashSet<_> = pairs.map(|parts| hash(&parts, None)).collect();
        assert_eq!(hashes.len(), 64 * 64);
        for shift in [0, 56] {
            let cut: HashSet<_> = hashes.iter().map(|hash| hash >> shift & 0xff).collect();
            assert!(cut.len() > 200, "{} of 256", cut.len());
        }
    }
}
