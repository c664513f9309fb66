//! The decision about packets of one kind: the value of the microflow cache.
//!
//! A flow that looks up nothing further has a decision of its own, made when the flow is installed. The operations of a walk
//! through several flows are composed into one program, which depends on all of them: when one of the flows ends, so does the
//! decision, before the change is answered. A thread that composes a decision first notes it with its flows and then checks
//! whether they live; a thread that ends a flow first marks the flow and then reads which decisions are noted. So one of the
//! two finds the other.
//!
//! Counters are independent statistics, updated without ordering between them: a reader may see a packet before its bytes, but
//! never a count that goes back. `live` goes from true to false once and never back.

use crate::entry::FlowEntry;
use flow::{Edit, FlowStats, PortId, Program};
use hashbrown::HashTable;
use parking_lot::Mutex;
use prefetch::{Access, prefetch};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The form of a program, which decides the packets' way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// All packets go to a port as they are.
    Plain(PortId),
    /// All packets go to a port, changed.
    Edited(Box<Edited>),
    /// Anything else.
    Run,
}

/// Changes of a packet, and its output port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited {
    /// In order.
    pub edits: Box<[Edit]>,
    /// The port.
    pub port: PortId,
}

/// The decision about packets of a kind.
#[derive(Debug)]
#[repr(C)]
pub struct Decision {
    live: AtomicBool,
    /// The form of the program.
    pub shape: Shape,
    counts: Counts,
    program: Program,
    /// The statistics of the flow whose own decision this is.
    seen: Seen,
}

/// The flows to whose statistics counts are added.
#[derive(Debug)]
enum Counts {
    /// Those of the decision itself, which is a flow's own.
    Own,
    /// Those of this decision, which is a flow's own.
    Of(Arc<Decision>),
    /// Those of each of these decisions, which are flows' own.
    Parts(Box<[Arc<FlowEntry>]>),
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
        let shape = match (program.plain(), program.edited()) {
            (Some(port), _) => Shape::Plain(port),
            (None, Some((edits, port))) => Shape::Edited(Box::new(Edited { edits, port })),
            (None, None) => Shape::Run,
        };
        Decision {
            live: AtomicBool::new(true),
            shape,
            counts,
            program,
            seen: Seen::default(),
        }
    }

    /// A flow's own decision. Its statistics go on from those of `before`, if that is given.
    pub(crate) fn of_flow(program: Program, before: Option<&Arc<Decision>>) -> Decision {
        let counts = match before {
            None => Counts::Own,
            Some(before) => match &before.counts {
                Counts::Of(first) => Counts::Of(Arc::clone(first)),
                Counts::Own | Counts::Parts(_) => Counts::Of(Arc::clone(before)),
            },
        };
        Decision::new(program, counts)
    }

    /// The decision's program.
    #[inline]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The flows of which the decision was composed; none for a flow's own decision.
    pub fn parts(&self) -> &[Arc<FlowEntry>] {
        match &self.counts {
            Counts::Parts(parts) => parts,
            Counts::Own | Counts::Of(_) => &[],
        }
    }

    /// Counts packets for all flows that the decision depends on. `now_ms` comes from the clock that the caller also uses for
    /// [`stats`](Self::stats).
    #[inline]
    pub fn record(&self, packets: u64, bytes: u64, tcp_flags: u16, now_ms: u64) {
        match &self.counts {
            Counts::Own => self.seen.record(packets, bytes, tcp_flags, now_ms),
            Counts::Of(first) => first.record(packets, bytes, tcp_flags, now_ms),
            Counts::Parts(parts) => parts
                .iter()
                .for_each(|part| part.decision.record(packets, bytes, tcp_flags, now_ms)),
        }
    }

    /// A flow's statistics so far. Idle time is computed for `now_ms`.
    pub(crate) fn stats(&self, now_ms: u64) -> FlowStats {
        match &self.counts {
            Counts::Own => self.seen.stats(now_ms),
            Counts::Of(first) => first.stats(now_ms),
            Counts::Parts(_) => FlowStats::default(),
        }
    }

    /// Prefetches the fields that are read for a packet.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(self, Access::Read);
        prefetch(&raw const self.seen, Access::Write);
    }

    /// Whether the decision holds. One that has ended must not be used for packets any more.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    /// Ends the decision: from now on caches treat it as a miss.
    pub(crate) fn end(&self) {
        self.live.store(false, Ordering::Release);
    }
}

/// Decisions that a flow is a part of.
#[derive(Debug, Default)]
pub(crate) struct Dependents(Mutex<HashTable<Noted>>);

#[derive(Debug)]
struct Noted {
    hash: u64,
    decision: Weak<Decision>,
}

/// Lists shorter than this are not searched for decisions that are gone.
const FEW: usize = 16;

impl Dependents {
    /// A decision that holds and was composed of these flows in this order, the first of which this list belongs to.
    fn find(&self, hash: u64, parts: &[Arc<FlowEntry>]) -> Option<Arc<Decision>> {
        let noted = self.0.lock();
        let candidates = noted.iter_hash(hash).filter(|noted| noted.hash == hash);
        let mut alive = candidates.filter_map(|noted| noted.decision.upgrade());
        alive.find(|decision| decision.is_live() && same(decision.parts(), parts))
    }

    fn note(&self, hash: u64, decision: &Arc<Decision>) {
        let decision = Arc::downgrade(decision);
        let mut noted = self.0.lock();
        // Decisions that are gone are removed at each doubling: that takes little time, and at most twice the memory.
        if noted.len() >= FEW && noted.len() == noted.capacity() {
            noted.retain(|noted| noted.decision.strong_count() > 0);
        }
        noted.insert_unique(hash, Noted { hash, decision }, |noted| noted.hash);
    }

    /// Ends all of them.
    pub(crate) fn end(&self) {
        let noted = std::mem::take(&mut *self.0.lock());
        for decision in noted.into_iter().filter_map(|noted| noted.decision.upgrade()) {
            decision.end();
        }
    }
}

fn same(parts: &[Arc<FlowEntry>], others: &[Arc<FlowEntry>]) -> bool {
    parts.len() == others.len()
        && parts
            .iter()
            .zip(others)
            .all(|(part, other)| Arc::ptr_eq(part, other))
}

/// A hash of flows in their order. Guests do not choose the addresses of flows, so the hash needs no secret.
fn hash(parts: &[Arc<FlowEntry>]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = parts.iter().fold(FACTOR, |hash, part| {
        (hash ^ Arc::as_ptr(part).addr() as u64)
            .wrapping_mul(FACTOR)
            .rotate_left(31)
    });
    mixed ^ mixed >> 29
}

/// The decision for a walk through these flows, if one exists and holds.
pub(crate) fn known(parts: &[Arc<FlowEntry>]) -> Option<Arc<Decision>> {
    parts.first()?.dependents.find(hash(parts), parts)
}

/// Makes the decision for a walk through these flows. If one of them has ended meanwhile, so has the decision.
pub(crate) fn compose(program: Program, parts: &[Arc<FlowEntry>]) -> Arc<Decision> {
    let decision = Arc::new(Decision::new(program, Counts::Parts(parts.into())));
    let hash = hash(parts);
    for (at, part) in parts.iter().enumerate() {
        if !parts[..at].iter().any(|earlier| Arc::ptr_eq(earlier, part)) {
            part.dependents.note(hash, &decision);
        }
    }
    if !parts.iter().all(|part| part.is_live()) {
        decision.end();
    }
    decision
}

#[cfg(test)]
impl Dependents {
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}
