//! Composes the flows of a walk into a decision.
//!
//! A walk uses the key alone: fields that actions set are constants for later look-ups, and the operations on
//! the way are noted as one program. The program becomes a decision if every packet of the kind makes the
//! same look-ups, unless a meter drops it before. What all packets of the kind have in common is known to a
//! [`StandIn`], which follows header changes. A branch by length becomes a branch of the program if nothing
//! is looked up on either side. Packets of other kinds are walked one by one, and counted. For meters, the
//! flows behind them are noted, which do not count what they drop; for tags, by how much packets have grown
//! when they come to a flow, which counts them as long as they are there.
//!
//! The flows on the way determine the program. So a walk first notes the flows, and searches for a decision
//! composed of them; only a new decision allocates.

use crate::behind_bits::Behind;
use crate::class::Class;
use crate::decision::{Decision, Meter, Part, compose, end_composed, known};
use crate::entry::{FlowEntry, Found};
use crate::hash::Seed;
use crate::mask_union::MaskUnion;
use crate::port_flows::{Hint, Reading};
use crate::stages::{ListKey, Lists};
use crate::stand_in::StandIn;
use crate::walk::{Branch, Stack, Start, Subject, Tables, run};
use flow::{
    Builder, Context, DropReason, Edit, Filters, FlowKey, FlowMask, MAX_OPS, Op, PortId, Stage, Userspace,
};
use std::cell::Cell;
use std::sync::Arc;

/// Most flows of which a decision is composed.
pub const MAX_PARTS: usize = 64;

/// The result of [`Reading::walk`].
#[derive(Debug)]
pub enum Walked<'a> {
    /// The first stage has no flow for the packet.
    Missing(Stage),
    /// One flow determines the decision.
    Own(&'a Arc<Decision>),
    /// Several flows together determine the decision.
    Composed(Arc<Decision>),
    /// Each packet has to be walked with [`run`] from that stage on.
    Each(Stage),
}

impl Walked<'_> {
    /// The decision, if it may be cached.
    #[inline]
    pub fn decision(&self) -> Option<&Arc<Decision>> {
        match self {
            Walked::Own(decision) => Some(decision),
            Walked::Composed(decision) => Some(decision),
            Walked::Missing(_) | Walked::Each(_) => None,
        }
    }
}

/// A thread's buffers for its walks.
#[derive(Debug, Default)]
pub struct Walker {
    parts: Vec<Part>,
    meters: Vec<Meter>,
    compared: Compared,
    judged: Judged,
    stack: Stack<Aside>,
    /// Walks so far that could not be composed.
    pub uncomposed: u64,
}

impl Walker {
    pub(crate) fn each<'a>(&mut self) -> Walked<'a> {
        self.uncomposed += 1;
        Walked::Each(Stage::Forward)
    }

    /// Walks in a switch that has filters or later passes.
    pub(crate) fn walk<'a>(
        &mut self,
        hint: Hint<'a>,
        key: &FlowKey,
        context: &Context,
        tables: &'a Reading<'_>,
        lists: &Lists,
    ) -> Walked<'a> {
        let first = Stage::first(&lists.filters(PortId(key.in_port())));
        let mut begun = None;
        if first == Stage::Forward && key.recirc_id() == 0 {
            match tables.first_pass(hint, key, context) {
                None => return Walked::Missing(first),
                Some(entry) if stands_alone(entry, lists) => return Walked::Own(&entry.decision),
                found => begun = found,
            }
        }
        let tables = &Begun {
            first: Cell::new(begun),
            compared: Cell::new(FlowMask::ANY),
            tables,
        };
        // Where rules decide, most walks are about kinds of packets that are new.
        let program = tables.tables.has_rules().then(Builder::default);
        let decision = match self.note(key, context, tables, first, program) {
            _ if self.parts.is_empty() => return Walked::Missing(first),
            None => None,
            Some(noted) => {
                let class = self.judged.class(key);
                let before = known(&self.parts, class.as_ref());
                let kept = before.and_then(|before| self.keep_unless_promoted(before));
                kept.or_else(|| {
                    let program = match noted {
                        Some(program) => program,
                        None => {
                            tables.first.set(begun);
                            self.note(key, context, tables, first, Some(Builder::default()))??
                        }
                    };
                    let behind = self.compared.behind();
                    Some(compose(
                        program.finish(),
                        &self.parts,
                        &self.meters,
                        behind,
                        class,
                    ))
                })
            }
        };
        // The list of flows must keep none of them alive.
        self.parts.clear();
        match decision {
            Some(decision) => Walked::Composed(decision),
            None => {
                self.uncomposed += 1;
                Walked::Each(first)
            }
        }
    }

    /// Ends a decision about what was walked just now if it has packets looked up further without need, since
    /// the mask union has got the bits. Gives it back otherwise.
    fn keep_unless_promoted(&self, before: Arc<Decision>) -> Option<Arc<Decision>> {
        let looks_further = before.class().is_some() && before.behind().is_some();
        if looks_further && self.compared.behind().is_none() {
            end_composed(&before);
            return None;
        }
        Some(before)
    }

    /// Walks; notes the flows, and the program if there is a builder. `None` if it cannot be composed.
    fn note(
        &mut self,
        key: &FlowKey,
        context: &Context,
        tables: &Begun<'_>,
        first: Stage,
        program: Option<Builder>,
    ) -> Option<Option<Builder>> {
        self.parts.clear();
        self.meters.clear();
        self.compared = Compared::default();
        self.judged = Judged::default();
        let mut composer = Composer {
            stand_in: StandIn::new(key, context),
            last: &tables.compared,
            mask_union: tables.tables.mask_union,
            compared: &mut self.compared,
            judged: &mut self.judged,
            parts: &mut self.parts,
            meters: &mut self.meters,
            program,
            has_branch: false,
            composable: true,
        };
        run(&mut self.stack, Start::LookUp(first), tables, &mut composer);
        composer.end_meters(0);
        composer.composable.then_some(composer.program)
    }
}

/// Whether the flow is the last look-up for each of its packets.
fn stands_alone(entry: &FlowEntry, lists: &Lists) -> bool {
    let has_egress = |port| lists.filters(port).first_egress(port).is_some();
    let program = entry.program();
    let looks_up = program.looks_up() || lists.has_filters() && program.outputs().any(has_egress);
    !looks_up
}

/// Tables whose first look-up has been made, if there is a flow in the cell.
struct Begun<'a> {
    first: Cell<Option<&'a Arc<FlowEntry>>>,
    /// The bits that flows compare which the last look-up tried; of the first one only if it is made here.
    compared: Cell<FlowMask>,
    tables: &'a Reading<'a>,
}

impl Tables for Begun<'_> {
    fn look_up(&self, stage: Stage, key: &FlowKey, context: &Context) -> Option<Found> {
        if let Some(first) = self.first.take() {
            self.compared.set(FlowMask::ANY);
            return Some(Arc::clone(first).into());
        }
        let mut compared = FlowMask::ANY;
        let found = self
            .tables
            .look_up_observed(stage, key, context, |masks| compared = compared.union(masks));
        self.compared.set(compared);
        found
    }

    fn filters(&self, port: PortId) -> Filters {
        self.tables.filters(port)
    }
}

/// A stand-in that was set aside.
#[derive(Debug)]
struct Aside {
    stand_in: StandIn,
    /// The place of the operation that set it aside.
    at: usize,
    /// How many meters there were before. Flows found later are behind those that follow only until it is
    /// taken up again.
    meters: usize,
}

/// The bits of packets that the look-ups of a walk depend on.
#[derive(Debug, Default)]
struct Compared {
    /// What the first flows compare, which the mask union has for as long as they live.
    first: FlowMask,
    /// What other look-ups among flows compare, and what programs read before.
    behind: FlowMask,
    /// What rule lists note, except what the mask union has of it.
    rules: FlowMask,
    /// What the programs of the flows so far read, on which a further look-up depends. The mask union has
    /// those bits of it that tell kinds of frames apart.
    read: FlowMask,
}

impl Compared {
    fn found_flow(&mut self, entry: &FlowEntry, bits: &FlowMask) {
        self.behind = self.behind.union(&self.read);
        if ListKey::of(&entry.flow).is_covered() {
            self.first = self.first.union(&entry.flow.mask);
        } else {
            self.behind = self.behind.union(bits);
        }
        self.read = self.read.union(&entry.program().looks_at());
    }

    /// `bits` are those that a rule list noted.
    fn found_rule(&mut self, entry: &FlowEntry, stage: Stage, bits: &FlowMask, mask_union: &MaskUnion) {
        self.behind = self.behind.union(&self.read);
        if let Stage::Ingress(_) = stage {
            mask_union.add_sources(bits);
        }
        self.rules = self.rules.union(&bits.without(&mask_union.of_lists(bits)));
        self.read = self.read.union(&entry.program().looks_at());
    }

    /// The bits that the mask union may lack.
    fn behind(&self) -> Option<Behind> {
        let covered = self.first.union(&self.read.of_kinds());
        // Where connections are told apart, the union has all that flows compare.
        let of_flows = if self.first.tells_connections_apart() {
            FlowMask::ANY
        } else {
            self.behind
        };
        let is_covered = |bits: &FlowMask| covered.union(bits) == covered;
        let behind = self.rules.union(&of_flows);
        (!is_covered(&behind)).then(|| Behind::new(&behind, is_covered(&of_flows)))
    }
}

/// What rule lists on the way looked at.
#[derive(Debug, Default)]
struct Judged {
    /// The bits that decided, if any list was asked.
    noted: Option<FlowMask>,
    was_changed: bool,
}

impl Judged {
    fn note(&mut self, bits: &FlowMask, stand_in: &StandIn) {
        self.noted = Some(self.noted.unwrap_or_default().union(bits));
        self.was_changed |= stand_in.was_changed;
    }

    /// The packets that a decision about `key` holds for, if it stands on rules.
    fn class(&self, key: &FlowKey) -> Option<Class> {
        let noted = self.noted?;
        Some(Class::new(key, &noted, self.was_changed))
    }
}

/// For a meter behind which the walk still is.
const OPEN: usize = usize::MAX;

/// Stands for all packets of a kind.
struct Composer<'a> {
    stand_in: StandIn,
    /// The bits that the last look-up compared.
    last: &'a Cell<FlowMask>,
    /// Of the port that packets come from.
    mask_union: &'a MaskUnion,
    compared: &'a mut Compared,
    judged: &'a mut Judged,
    parts: &'a mut Vec<Part>,
    meters: &'a mut Vec<Meter>,
    program: Option<Builder>,
    /// Both ways of a branch were gone, so that the walk is longer than that of any packet.
    has_branch: bool,
    composable: bool,
}

impl Composer<'_> {
    fn push(&mut self, op: Op) {
        if let Some(program) = &mut self.program {
            program.push(op);
            self.composable &= program.len() < MAX_OPS;
        }
    }

    /// Sets the packet aside until what an operation begins has ended, which names the place where the packet
    /// goes on.
    fn save_at(&mut self, op: Op) -> Aside {
        let at = self.program.as_mut().map_or(0, |program| program.push(op));
        Aside {
            stand_in: self.stand_in,
            at,
            meters: self.meters.len(),
        }
    }

    /// Notes that flows found from now on are not behind those meters that came after the first `before`
    /// ones.
    fn end_meters(&mut self, before: usize) {
        for meter in &mut self.meters[before..] {
            meter.behind.end = meter.behind.end.min(self.parts.len());
        }
    }
}

impl Subject for Composer<'_> {
    type Saved = Aside;

    fn key(&mut self) -> Result<(&FlowKey, &Context), DropReason> {
        Ok((&self.stand_in.key, &self.stand_in.context))
    }

    fn in_port(&self) -> PortId {
        PortId(self.stand_in.key.in_port())
    }

    fn found(&mut self, stage: Stage, entry: &Arc<FlowEntry>) {
        let bits = self.last.get();
        if entry.is_rule() {
            self.judged.note(&bits, &self.stand_in);
        }
        self.composable &= self.stand_in.agrees_in(&bits) && self.parts.len() < MAX_PARTS;
        // These bits are for a new decision only.
        match self.program {
            Some(_) if entry.is_rule() => self.compared.found_rule(entry, stage, &bits, self.mask_union),
            Some(_) => self.compared.found_flow(entry, &bits),
            None => {}
        }
        self.parts.push(Part {
            flow: Arc::clone(entry),
            grown: self.stand_in.grown,
        });
        if let Some(log) = entry.log() {
            self.push(Op::Log { log, stage });
        }
    }

    fn missed(&mut self, _: Stage) {
        self.composable = false;
    }

    fn output(&mut self, port: PortId, last: bool) {
        self.push(Op::Output { port, last });
    }

    fn userspace(&mut self, to: &Userspace) {
        // The controller gets the key with the copy; that of a later pass cannot be made from the packet.
        let first_pass = self.stand_in.key.recirc_id() == 0 && self.stand_in.key.dp_hash() == 0;
        self.composable &= first_pass;
        if let Some(program) = &mut self.program {
            program.userspace(to.clone());
        }
    }

    fn dropped(&mut self, reason: DropReason) {
        self.composable &= reason != DropReason::TooDeep || !self.has_branch;
        self.push(Op::Drop(reason));
    }

    fn edit(&mut self, edit: &Edit) -> Result<(), DropReason> {
        self.stand_in.edit(edit);
        self.push(Op::Edit(*edit));
        Ok(())
    }

    fn recirculate(&mut self, id: u32) {
        self.stand_in.key.set_recirc_id(id);
    }

    fn hash(&mut self, basis: u32) -> Result<(), DropReason> {
        let hash = dp_hash(&self.stand_in.key, basis);
        self.stand_in.set_hash(hash);
        Ok(())
    }

    fn truncate(&mut self, len: u32) {
        self.push(Op::Truncate(len));
    }

    /// Packets of a kind differ in length, and go both ways.
    fn branch(&mut self, len: u16) -> Branch<Aside> {
        let aside = self.save_at(Op::CheckPktLen { len, otherwise: 0 });
        self.stand_in.is_certain = false;
        self.has_branch = true;
        Branch::Both(Aside {
            stand_in: self.stand_in,
            ..aside
        })
    }

    fn pass_meter(&mut self, meter: u32) -> Result<(), DropReason> {
        if let Some(program) = &self.program {
            self.meters.push(Meter {
                at: program.len(),
                behind: self.parts.len()..OPEN,
            });
        }
        self.push(Op::Meter(meter));
        Ok(())
    }

    fn draw_sample(&mut self, _: u32) -> bool {
        self.composable = false;
        false
    }

    fn save(&mut self) -> Aside {
        self.save_at(Op::Save { resume: 0 })
    }

    fn restore(&mut self, Aside { stand_in, at, meters }: Aside) {
        self.end_meters(meters);
        self.stand_in = stand_in;
        if let Some(program) = &mut self.program {
            program.end();
            program.name_next(at);
        }
    }

    fn goes_on(&self) -> bool {
        self.composable
    }
}

/// The hash of addresses, protocol and ports that [`flow::Action::Hash`] computes: the same on all threads,
/// another one in each process, never 0. All fragments of a datagram have the same: only the first one has
/// ports, and later ones of IPv6 do not name the protocol.
pub fn dp_hash(key: &FlowKey, basis: u32) -> u32 {
    const IPV6: u16 = 0x86dd;
    let (from, to) = (key.ip_src(), key.ip_dst());
    let is_fragment = key.ip_frag() != 0;
    let protocol = if is_fragment && key.eth_type() == IPV6 {
        0
    } else {
        key.ip_proto()
    };
    let ports = if is_fragment {
        0
    } else {
        u64::from(key.tp_src()) << 32 | u64::from(key.tp_dst()) << 48
    };
    let protocol = u64::from(key.eth_type()) | u64::from(protocol) << 16 | u64::from(is_fragment) << 24;
    let words = [
        (from >> 64) as u64,
        from as u64,
        (to >> 64) as u64,
        to as u64,
        protocol | ports,
        basis.into(),
    ];
    let hash = Seed::process().pairs::<3>(|word| words[word]);
    ((hash >> 32) as u32 ^ hash as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections that differ in one field go different ways.
    #[test]
    fn each_field_of_a_connection_is_in_the_hash() {
        let of = |change: fn(&mut FlowKey)| {
            let mut key = FlowKey::default();
            change(&mut key);
            dp_hash(&key, 0)
        };
        let none = of(|_| ());
        let changes: [fn(&mut FlowKey); 9] = [
            |key| key.set_ip_src(1),
            |key| key.set_ip_src(1 << 64),
            |key| key.set_ip_dst(1),
            |key| key.set_ip_dst(1 << 64),
            |key| key.set_eth_type(1),
            |key| key.set_ip_proto(1),
            |key| key.set_ip_frag(1),
            |key| key.set_tp_src(1),
            |key| key.set_tp_dst(1),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert_ne!(of(change), none, "change {number}");
        }
        assert_ne!(dp_hash(&FlowKey::default(), 1), none);
        assert_eq!(of(|key| key.set_eth_dst(1)), none);
    }

    #[test]
    fn fragments_of_one_datagram_have_one_hash() {
        let of = |eth_type, protocol, fragment, port| {
            let mut key = FlowKey::default();
            key.set_eth_type(eth_type);
            key.set_ip_proto(protocol);
            key.set_ip_frag(fragment);
            key.set_tp_src(port);
            key.set_tp_dst(port);
            dp_hash(&key, 0)
        };
        let (first, later) = (1, 2);
        assert_eq!(of(0x0800, 17, first, 53), of(0x0800, 17, later, 0));
        assert_ne!(of(0x0800, 17, first, 53), of(0x0800, 6, later, 0));
        assert_eq!(of(0x86dd, 17, first, 53), of(0x86dd, 44, later, 0));
        assert_ne!(of(0x0800, 17, 0, 53), of(0x0800, 17, 0, 54));
    }

    /// The rest of the walk would be in vain, and may be long.
    #[test]
    fn a_walk_that_cannot_be_composed_ends_at_once() {
        let mut composer = Composer {
            stand_in: StandIn::new(&FlowKey::default(), &Context::NONE),
            last: &Cell::default(),
            mask_union: &MaskUnion::default(),
            compared: &mut Compared::default(),
            judged: &mut Judged::default(),
            parts: &mut Vec::new(),
            meters: &mut Vec::new(),
            program: None,
            has_branch: false,
            composable: true,
        };
        assert!(composer.goes_on());
        composer.missed(Stage::Forward);
        assert!(!composer.goes_on());
    }

    /// Flows choose buckets by any of the bits.
    #[test]
    fn each_bit_of_the_hash_is_set_for_half_of_the_connections() {
        let mut ones = [0; 32];
        for port in 0..1024 {
            let mut key = FlowKey::default();
            key.set_tp_src(port);
            let hash = dp_hash(&key, 0);
            (0..32).for_each(|place| ones[place] += hash >> place & 1);
        }
        assert!(ones.iter().all(|ones| (300..724).contains(ones)), "{ones:?}");
    }
}
