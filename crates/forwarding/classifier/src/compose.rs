//! Composes the flows of a walk into a decision.
//!
//! A walk uses the key alone: fields that actions set are constants for later look-ups, and the operations on the way are
//! noted as one program. The program becomes a decision if every packet of the kind makes the same look-ups, unless a meter
//! drops it before. That is so unless a look-up stands on one side of a branch, or after headers were moved: masks found
//! after a move apply to the moved packet, while the cache's key is that of the packet as it came. For packets of other
//! kinds, each packet is walked, and counted. For meters, the flows behind them are noted, which do not count what they drop.
//!
//! The flows on the way determine the program. So a walk first notes the flows, and searches for a decision composed of them;
//! only a new decision allocates.

use crate::decision::{Decision, Meter, compose, known};
use crate::entry::FlowEntry;
use crate::hash::Seed;
use crate::port_flows::{Hint, Reading};
use crate::stages::Lists;
use crate::walk::{Stack, Start, Subject, Tables, run};
use flow::{
    Builder, Context, DropReason, Edit, FieldId, Filters, FlowKey, Layer, MAX_OPS, Op, PortId, SetField,
    Stage, Userspace,
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
    parts: Vec<Arc<FlowEntry>>,
    meters: Vec<Meter>,
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
        let first = Stage::first(lists.filters(PortId(key.in_port())));
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
            tables,
        };
        let decision = match self.note(key, context, tables, first, None) {
            _ if self.parts.is_empty() => return Walked::Missing(first),
            None => None,
            Some(_) => known(&self.parts).or_else(|| {
                tables.first.set(begun);
                let program = self.note(key, context, tables, first, Some(Builder::default()))??;
                Some(compose(program.finish(), &self.parts, &self.meters))
            }),
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
        let mut composer = Composer {
            state: State {
                key: *key,
                context: *context,
                fixed: true,
                looks_up: false,
            },
            parts: &mut self.parts,
            meters: &mut self.meters,
            program,
            composable: true,
        };
        run(&mut self.stack, Start::LookUp(first), tables, &mut composer);
        composer.end_meters(0);
        composer.composable.then_some(composer.program)
    }
}

/// Whether the flow is the last look-up for each of its packets.
fn stands_alone(entry: &FlowEntry, lists: &Lists) -> bool {
    let has_egress = |port| lists.filters(port).egress > 0;
    let program = entry.program();
    let looks_up = program.looks_up() || lists.has_filters() && program.outputs().any(has_egress);
    !looks_up
}

/// Tables whose first look-up has been made, if there is a flow in the cell.
struct Begun<'a> {
    first: Cell<Option<&'a Arc<FlowEntry>>>,
    tables: &'a Reading<'a>,
}

impl Tables for Begun<'_> {
    fn look_up(&self, stage: Stage, key: &FlowKey, context: &Context) -> Option<Arc<FlowEntry>> {
        match self.first.take() {
            Some(first) => Some(Arc::clone(first)),
            None => self.tables.look_up(stage, key, context),
        }
    }

    fn filters(&self, port: PortId) -> Filters {
        self.tables.filters(port)
    }
}

/// The state of a packet during a walk.
#[derive(Clone, Copy, Debug)]
struct State {
    key: FlowKey,
    context: Context,
    /// All packets of the kind come here with this key, so that one look-up holds for all of them.
    fixed: bool,
    /// The flow whose actions are under way looks up by itself, so that the kind has the ports' bits, too.
    looks_up: bool,
}

/// A state that was set aside.
#[derive(Debug)]
struct Aside {
    state: State,
    /// The place of the operation that set it aside.
    at: usize,
    /// How many meters there were before. Flows found later are behind those that follow only until it is taken up again.
    meters: usize,
}

/// For a meter behind which the walk still is.
const OPEN: usize = usize::MAX;

/// Stands for all packets of a kind.
struct Composer<'a> {
    state: State,
    parts: &'a mut Vec<Arc<FlowEntry>>,
    meters: &'a mut Vec<Meter>,
    program: Option<Builder>,
    composable: bool,
}

impl Composer<'_> {
    fn push(&mut self, op: Op) {
        if let Some(program) = &mut self.program {
            program.push(op);
            self.composable &= program.len() < MAX_OPS;
        }
    }

    /// Notes that flows found from now on are not behind those meters that came after the first `before` ones.
    fn end_meters(&mut self, before: usize) {
        for meter in &mut self.meters[before..] {
            meter.behind.end = meter.behind.end.min(self.parts.len());
        }
    }
}

impl Subject for Composer<'_> {
    type Saved = Aside;

    fn key(&mut self) -> Result<(&FlowKey, &Context), DropReason> {
        Ok((&self.state.key, &self.state.context))
    }

    fn in_port(&self) -> PortId {
        PortId(self.state.key.in_port())
    }

    fn found(&mut self, entry: &Arc<FlowEntry>) {
        self.composable &= self.state.fixed && self.parts.len() < MAX_PARTS;
        self.state.looks_up = entry.program().looks_up();
        self.parts.push(Arc::clone(entry));
    }

    fn missed(&mut self, _: Stage) {
        self.composable = false;
    }

    fn output(&mut self, port: PortId, last: bool) {
        self.push(Op::Output { port, last });
    }

    fn userspace(&mut self, to: &Userspace) {
        // The controller gets the key with the copy; that of a later pass cannot be made from the packet.
        let first_pass = self.state.key.recirc_id() == 0 && self.state.key.dp_hash() == 0;
        self.composable &= first_pass;
        if let Some(program) = &mut self.program {
            program.userspace(to.clone());
        }
    }

    fn dropped(&mut self, reason: DropReason) {
        self.push(Op::Drop(reason));
    }

    fn edit(&mut self, edit: &Edit) -> Result<(), DropReason> {
        match edit {
            Edit::Set(set) => {
                let field = set.field.field();
                let words = if field.is_in_context() {
                    &mut self.state.context.words
                } else {
                    &mut self.state.key.words
                };
                field.set(words, set.value, set.mask);
                self.state.fixed &= field.is_metadata() || self.state.surely_has(set);
            }
            Edit::PushVlan { .. }
            | Edit::PopVlan
            | Edit::PushMpls { .. }
            | Edit::PopMpls(_)
            | Edit::Encapsulate(_) => self.state.fixed = false,
        }
        self.push(Op::Edit(*edit));
        Ok(())
    }

    fn recirculate(&mut self, id: u32) {
        self.state.key.set_recirc_id(id);
    }

    fn hash(&mut self, basis: u32) -> Result<(), DropReason> {
        let hash = dp_hash(&self.state.key, basis);
        self.state.key.set_dp_hash(hash);
        Ok(())
    }

    fn truncate(&mut self, len: u32) {
        self.push(Op::Truncate(len));
    }

    fn is_longer(&mut self, _: u16) -> bool {
        self.composable = false;
        false
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

    fn is_sampled(&mut self, _: u32) -> bool {
        self.composable = false;
        false
    }

    fn save(&mut self) -> Aside {
        let at = self
            .program
            .as_mut()
            .map_or(0, |program| program.push(Op::Save { resume: 0 }));
        Aside {
            state: self.state,
            at,
            meters: self.meters.len(),
        }
    }

    fn restore(&mut self, Aside { state, at, meters }: Aside) {
        self.end_meters(meters);
        self.state = state;
        if let Some(program) = &mut self.program {
            program.end();
            program.name_next(at);
        }
    }

    fn goes_on(&self) -> bool {
        self.composable
    }
}

impl State {
    /// Whether all packets of the kind, whose key this is after the change, have the field whose bits were set. In doubt the
    /// answer is no, and the packet is walked. What is read here is in the kind's bits by [`flow::Program::looks_at`].
    fn surely_has(&self, set: &SetField) -> bool {
        const IPV6: u16 = 0x86dd;
        const IPV4: u16 = 0x0800;
        const TCP: u8 = 6;
        const UDP: u8 = 17;
        let key = &self.key;
        let is_ip = matches!(key.eth_type(), IPV4 | IPV6) && key.ip_proto() != 0;
        let fits = key.eth_type() == IPV6 || set.mask >> 32 == 0;
        match set.field.field().layer {
            Layer::Link => true,
            Layer::Network => match set.field {
                FieldId::IpTos | FieldId::IpTtl => is_ip,
                FieldId::IpSrc | FieldId::IpDst => is_ip && fits,
                FieldId::Ipv6Label => is_ip && key.eth_type() == IPV6,
                _ => false,
            },
            // Both ports zero are no sign, but one would have to be set to zero for that to matter.
            Layer::Transport => {
                let other = if set.field == FieldId::TpSrc {
                    key.tp_dst()
                } else {
                    key.tp_src()
                };
                self.looks_up && is_ip && matches!(key.ip_proto(), TCP | UDP) && other != 0
            }
            _ => false,
        }
    }
}

/// The hash of addresses, protocol and ports that [`flow::Action::Hash`] computes: the same on all threads, another one in
/// each process, never 0. All fragments of a datagram have the same: only the first one has ports, and later ones of IPv6 do not
/// name the protocol.
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
            state: State {
                key: FlowKey::default(),
                context: Context::NONE,
                fixed: true,
                looks_up: false,
            },
            parts: &mut Vec::new(),
            meters: &mut Vec::new(),
            program: None,
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

    /// What all packets of a kind have can be set in a decision; where some may lack it, each of them walks.
    #[test]
    fn a_field_is_surely_there_if_the_key_says_so() {
        let key = |eth_type, protocol, from, to| {
            let mut key = FlowKey::default();
            key.set_eth_type(eth_type);
            key.set_ip_proto(protocol);
            key.set_tp_src(from);
            key.set_tp_dst(to);
            key
        };
        let keys = [
            key(0x0806, 1, 0, 0),
            key(0x0800, 0, 0, 0),
            key(0x0800, 1, 8, 8),
            key(0x0800, 6, 1, 0),
            key(0x0800, 17, 0, 1),
            key(0x86dd, 17, 1, 1),
        ];
        let ip = [false, false, true, true, true, true];
        let ipv6 = [false, false, false, false, false, true];
        for (field, mask, expected) in [
            (FieldId::EthDst, 1, [true; 6]),
            (FieldId::IpTos, 1, ip),
            (FieldId::IpTtl, 1, ip),
            (FieldId::IpSrc, 1, ip),
            (FieldId::IpDst, u32::MAX.into(), ip),
            (FieldId::IpDst, u128::MAX, ipv6),
            (FieldId::Ipv6Label, 1, ipv6),
            (FieldId::IpProto, 1, [false; 6]),
            (FieldId::TpSrc, 1, [false, false, false, false, true, true]),
            (FieldId::TpDst, 1, [false, false, false, true, false, true]),
        ] {
            let value = 1;
            let set = SetField { field, value, mask };
            let has = |key, looks_up| {
                let (context, fixed) = (Context::NONE, true);
                let state = State {
                    key,
                    context,
                    fixed,
                    looks_up,
                };
                state.surely_has(&set)
            };
            assert_eq!(keys.map(|key| has(key, true)), expected, "{field:?}");
            if field.field().layer == Layer::Transport {
                assert!(
                    !keys.iter().any(|key| has(*key, false)),
                    "the kind lacks the ports"
                );
            }
        }
    }
}
