//! A P4 program that is ready to run.
//!
//! A program comes from a tenant. The checker of `p4-ir` has proven how many operations a pass takes at
//! most; here the look-ups are added, which cost what the entries make them cost, and sums over payload. A
//! version that could cost more than it is allowed a pass, or more memory than a P4 switch may have, is
//! refused with the figure.

use super::outputs::Outputs;
use control_protocol::p4::{P4_PORTS, P4Array, P4Binding, P4ClientCounts, P4Counts};
use flow::PortId;
use lock_free::{Claim, Guard};
use p4_interpreter::{Context, Drop, Engine, KeyMasks, State, StateLimits};
use p4_ir::changes::{self, EntryChange};
use p4_ir::setup::{self, Lineage, MeterRates, Setup};
use p4_ir::{Block, CalculationInput, Checked, Implementation, TableId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use vnic::Counters;

/// Operations of the first passes of the packets that are taken from a ring at a time, and again of further
/// passes and of copies.
pub(super) const BURST_OPERATIONS: u64 = 65_536;

/// Operations that a look-up counts as: fixed, per mask of a table with masks, per entry of one with ranges.
const LOOK_UP: u64 = 32;
const PER_MASK: u64 = 16;
const PER_RANGE: u64 = 2;

/// Operations that a choice among members counts as that may watch ports.
const WATCHING: u64 = 2 * p4_interpreter::MAX_WATCHING as u64;

/// Operations that a sum over the payload of the longest frame counts as.
const PAYLOAD: u64 = 8_192;

/// Most bytes of registers, counters and meters.
const MAX_STATE: u64 = 32 << 20;

/// Most entries that all tables are declared to have, together.
const MAX_ENTRIES: u64 = 1 << 20;

/// Most bytes of scratch memory, of all lanes together.
const MAX_SCRATCH: u64 = 64 << 20;

/// The number of the next version.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Most lanes.
const MAX_LANES: usize = 64;

/// A version, or a binding, is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum P4Refused {
    #[error("P4 switch {0} has no draft")]
    NoDraft(flow::P4Id),
    #[error("there are {0} drafts already")]
    Drafts(usize),
    #[error("there are {0} P4 switches already")]
    Switches(usize),
    #[error("{0} bytes, of which {1} is the most")]
    Bytes(usize, usize),
    #[error("{what}: {value} is more than {limit}")]
    Limit {
        what: &'static str,
        value: u64,
        limit: u64,
    },
    #[error(transparent)]
    Decode(#[from] p4_ir::serial::DecodeError),
    #[error(transparent)]
    Engine(#[from] p4_interpreter::Error),
    #[error("the version could not be made ready: {0}")]
    Failed(String),
    #[error("{0} is no port of a P4 switch: 0 to {last} are", last = P4_PORTS - 1)]
    NoPlace(u16),
    #[error("port {0} of the P4 switch is port {1} of the data plane already")]
    PlaceTaken(u16, PortId),
    #[error("the P4 switch has another version by now")]
    OtherVersion,
    #[error("there is no P4 switch {0}")]
    NoSwitch(flow::P4Id),
    #[error("there is no {array} with cell {cell}")]
    NoCell { array: P4Array, cell: u32 },
    #[error("there can be {0} links")]
    Links(usize),
    #[error("port {1} of P4 switch {0} has two links, or one with itself")]
    LinkedTwice(flow::P4Id, u16),
    #[error("links can join {0} P4 switches, directly or by others")]
    Joined(usize),
    #[error("a port has {0} stages at most")]
    Stages(usize),
    #[error("P4 switch {0} is a stage of the port twice, or its forwarder as well")]
    StagedTwice(flow::P4Id),
    #[error("port {0} has filters, which a P4 switch would pass by")]
    Filters(PortId),
    #[error("a P4 program forwards the packets of port {0}; `hyperswitch trace` follows them through it")]
    Trace(PortId),
}

/// See the module's description.
pub(super) struct Version {
    /// Of no other version.
    pub number: u64,
    /// Versions that differ in entries alone have one.
    pub engine: Arc<Engine>,
    pub state: State,
    /// What decides in its tables.
    pub key_masks: KeyMasks,
    /// One for versions with one engine.
    lanes: Arc<[Claim<Lane>]>,
    /// No lane is given away: cells are about to be set at once.
    is_closed: AtomicBool,
    pub operations: u64,
    /// Operations among them that are not those of look-ups among entries.
    fixed: u64,
    /// Bytes of lanes and tables.
    pub memory: u64,
    /// Bytes of lanes.
    scratch: u64,
    /// Rates of meters, as given.
    meters: Arc<[MeterRates]>,
    pub lineage: Lineage,
    /// Ports that members of groups watch.
    pub watched: Arc<[u16]>,
    /// The beginning of the program's clock, of the first version.
    began: Instant,
}

/// What a thread needs to run a packet.
pub(super) struct Lane {
    pub context: Context,
    pub outputs: Outputs,
}

/// Counts of a P4 switch, which threads add to after each burst.
#[derive(Default)]
pub(super) struct Counts {
    packets: AtomicU64,
    /// Packets whose verdicts were kept.
    repeated: AtomicU64,
    outputs: AtomicU64,
    parser_errors: AtomicU64,
    digests: AtomicU64,
    drops: [AtomicU64; Drop::ALL.len()],
    /// Time of forwarding threads, in nanoseconds.
    busy_ns: AtomicU64,
    /// Turns at rings that were passed on, as the share of time was used up.
    passed_on: AtomicU64,
    packets_in: AtomicU64,
    packets_in_lost: AtomicU64,
    packets_out: AtomicU64,
    packets_out_lost: AtomicU64,
    digests_lost: AtomicU64,
    /// Packets dropped that had crossed as many links as a packet may, or a turn's packets together.
    links: AtomicU64,
    /// The account of clients' packets.
    pub of_clients: Arc<Counters>,
}

impl Version {
    /// Makes a version ready for so many threads, whose passes take `most` operations. It goes on with the
    /// registers, counters and meters of the `former` one where names and types agree, unless its lineage is
    /// another one.
    pub fn new(
        bytes: &[u8],
        most: u32,
        threads: usize,
        former: Option<&Version>,
    ) -> Result<Version, P4Refused> {
        let (program, given) = setup::decode(bytes)?;
        within("entries of all tables", entries(&program), MAX_ENTRIES)?;
        // Before tables are made that cost too much.
        let fixed = fixed_operations(&program, WATCHING * u64::from(watches(&program)));
        within("operations of one pass", fixed, most.into())?;
        let watched: Arc<[u16]> = program.watched_ports().into_iter().collect();
        let mut engine = Engine::new(program)?;
        let former = former.filter(|former| given.lineage.succeeds(former.lineage));
        let began = former.map_or_else(Instant::now, |former| former.began);
        let state = begin(&engine, &given, former, began)?;
        engine.forget_entries();
        let operations = fixed + look_ups(&engine, &state);
        within("operations of one pass", operations, most.into())?;
        let lanes = if state.runs_alone() {
            1
        } else {
            threads.clamp(1, MAX_LANES)
        };
        let lane = |number: usize| Lane {
            context: Context::new(&engine, number as u64 + 1),
            outputs: Outputs::new(),
        };
        let scratch = lane(0).memory() as u64 * lanes as u64;
        within("bytes of scratch memory", scratch, MAX_SCRATCH)?;
        let tables = state.tables().look().memory() as u64;
        Ok(Version {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            key_masks: KeyMasks::new(&engine, &state),
            watched,
            is_closed: AtomicBool::new(false),
            lanes: (0..lanes).map(|number| Claim::new(lane(number))).collect(),
            memory: scratch + tables,
            scratch,
            fixed,
            engine: Arc::new(engine),
            state,
            operations,
            meters: given.meters.into(),
            lineage: given.lineage,
            began,
        })
    }

    /// The version with a batch of changes of entries ([`p4_ir::changes`]), whose passes take `most`
    /// operations. It shares with this one whatever does not change. No packet runs through the version
    /// before this one any more: see [`p4_interpreter::State::changed`].
    pub fn changed(&self, batch: &[u8], most: u32) -> Result<Version, P4Refused> {
        let changes = changes::decode(batch)?;
        let engine = self.engine.clone();
        let state = self.state.changed(&engine, &changes, self.now())?;
        let operations = self.fixed + look_ups(&engine, &state);
        within("operations of one pass", operations, most.into())?;
        let touched: BTreeSet<TableId> = changes.iter().map(EntryChange::table).collect();
        let tables = state.tables().look().memory() as u64;
        Ok(Version {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            key_masks: self.key_masks.changed(&engine, &state, touched),
            watched: self.watched.clone(),
            is_closed: AtomicBool::new(false),
            lanes: self.lanes.clone(),
            memory: self.scratch + tables,
            scratch: self.scratch,
            fixed: self.fixed,
            engine,
            state,
            operations,
            meters: self.meters.clone(),
            lineage: self.lineage,
            began: self.began,
        })
    }

    /// Adds what entries of the former version have counted, through which no packet runs any more.
    pub fn add_counts(&self, former: &Version) {
        if !self.lineage.succeeds(former.lineage) {
            return;
        }
        let before = (former.engine.program(), &former.state);
        self.state.add_counts(self.engine.program(), before);
        self.state.add_uses(self.engine.program(), before);
    }

    /// Passes that so many operations are enough for.
    pub fn passes(&self, operations: u64) -> u32 {
        u32::try_from(operations / self.operations.max(1)).unwrap_or(u32::MAX)
    }

    /// Says which of the ports are up that members of groups watch.
    pub fn watch(&self, is_up: impl Fn(u16) -> bool) {
        for &port in self.watched.iter() {
            self.state.set_port_up(port, is_up(port));
        }
    }

    /// Scratch memory that no other thread uses, if there is one.
    pub fn try_lane(&self) -> Option<Guard<'_, Lane>> {
        if self.is_closed.load(Ordering::Acquire) {
            return None;
        }
        let free = self.lanes.iter().filter(|lane| !lane.is_held());
        // The mark is for nobody: who fails tries again later.
        free.filter_map(Claim::try_claim).next()
    }

    /// Gives no lane away any more, or again: packets wait in their rings meanwhile. When a grace period is
    /// over behind that, no packet runs.
    pub fn set_closed(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::Release);
    }

    /// Time on the program's clock, in nanoseconds.
    pub fn now(&self) -> u64 {
        nanoseconds_since(self.began)
    }
}

impl Lane {
    fn memory(&self) -> usize {
        self.context.memory() + self.outputs.memory()
    }
}

impl Counts {
    /// Adds what happened between two states of a lane's counts.
    pub fn add(&self, before: &p4_interpreter::Counts, now: &p4_interpreter::Counts) {
        let add = |to: &AtomicU64, before: u64, now: u64| {
            if now != before {
                to.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
            }
        };
        add(&self.packets, before.packets, now.packets);
        add(&self.outputs, before.outputs, now.outputs);
        add(&self.parser_errors, before.parser_errors, now.parser_errors);
        add(&self.digests, before.digests, now.digests);
        for (at, to) in self.drops.iter().enumerate() {
            add(to, before.drops[at], now.drops[at]);
        }
    }

    pub fn add_repeated(&self, packets: usize) {
        if packets > 0 {
            self.repeated.fetch_add(packets as u64, Ordering::Relaxed);
        }
    }

    /// Adds time of a forwarding thread.
    pub fn add_time(&self, took_ns: u64) {
        self.busy_ns.fetch_add(took_ns, Ordering::Relaxed);
    }

    /// Counts a packet for clients, which reached them or was dropped.
    pub fn add_packet_in(&self, is_sent: bool) {
        let count = if is_sent {
            &self.packets_in
        } else {
            &self.packets_in_lost
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a packet of clients, which runs or is lost.
    pub fn add_packet_out(&self, runs: bool) {
        let count = if runs {
            &self.packets_out
        } else {
            &self.packets_out_lost
        };
        count.fetch_add(1, Ordering::Relaxed);
        let injected = &self.of_clients.injected;
        injected.fetch_add(runs.into(), Ordering::Relaxed);
    }

    pub fn add_digests_lost(&self, digests: u64) {
        self.digests_lost.fetch_add(digests, Ordering::Relaxed);
    }

    /// Counts a packet that may cross no further link.
    pub fn add_link_drop(&self) {
        self.links.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds what clients' process lost on the way to them.
    pub fn add_lost(&self, packets: u64, digests: u64) {
        self.packets_in_lost.fetch_add(packets, Ordering::Relaxed);
        self.add_digests_lost(digests);
    }

    pub fn add_passed_on(&self) {
        self.passed_on.fetch_add(1, Ordering::Relaxed);
    }

    pub fn read(&self) -> P4Counts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let drops = Drop::ALL.iter().zip(&self.drops);
        let drops = drops.map(|(reason, count)| (reason.name().to_owned(), load(count)));
        let drops = drops.chain([("links".to_owned(), load(&self.links))]);
        P4Counts {
            packets: load(&self.packets),
            repeated: load(&self.repeated),
            outputs: load(&self.outputs),
            parser_errors: load(&self.parser_errors),
            digests: load(&self.digests),
            drops: drops.filter(|(_, count)| *count > 0).collect(),
            busy_us: load(&self.busy_ns) / 1000,
            passed_on: load(&self.passed_on),
            clients: P4ClientCounts {
                packets_in: load(&self.packets_in),
                packets_in_lost: load(&self.packets_in_lost),
                packets_out: load(&self.packets_out),
                packets_out_lost: load(&self.packets_out_lost),
                packets_out_dropped: self.of_clients.read().dropped.total(),
                digests_lost: load(&self.digests_lost),
            },
        }
    }
}

/// Whether a binding names a place that can be.
pub(super) fn check_place(binding: P4Binding) -> Result<(), P4Refused> {
    if binding.port < P4_PORTS {
        Ok(())
    } else {
        Err(P4Refused::NoPlace(binding.port))
    }
}

fn nanoseconds_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn within(what: &'static str, value: u64, limit: u64) -> Result<(), P4Refused> {
    if value > limit {
        return Err(P4Refused::Limit { what, value, limit });
    }
    Ok(())
}

/// Whether members of groups watch ports.
fn watches(program: &Checked) -> bool {
    !program.watched_ports().is_empty()
}

/// Most operations of a pass, sums over payload included, but look-ups among entries. A choice among members
/// counts as so many.
fn fixed_operations(program: &Checked, choice: u64) -> u64 {
    let sums = program.calculations.iter().map(|calculation| {
        let over_payload = |input: &CalculationInput| matches!(input, CalculationInput::Payload(_));
        // In a checksum both ways, or wherever an action says.
        2 * PAYLOAD * u64::from(calculation.inputs.iter().any(over_payload))
    });
    let chosen = program.tables.iter().map(|table| match table.implementation {
        Implementation::Profile(_) => choice,
        Implementation::Direct => 0,
    });
    let members = program.value_sets.iter().map(|set| set.members.len() as u64);
    let steps = u64::from(program.bounds().parser_steps);
    let compared = PER_RANGE * steps * members.sum::<u64>();
    u64::from(program.bounds().operations) + compared + sums.chain(chosen).sum::<u64>()
}

/// Operations of a pass that look-ups count as.
fn look_ups(engine: &Engine, state: &State) -> u64 {
    let program = engine.program();
    let tables = state.tables().look();
    let blocks = program.ingress.blocks.iter().chain(&program.egress.blocks);
    let look_up = |table: &TableId| {
        let Ok(table) = tables.table(u32::from(table.0)) else {
            return LOOK_UP;
        };
        let ranges = match table.layout().has_ranges() {
            true => PER_RANGE * table.len() as u64,
            false => 0,
        };
        LOOK_UP + ranges + PER_MASK * table.masks() as u64
    };
    let cost = |block: &Block| match block {
        Block::Apply(table, _) => look_up(table),
        Block::If { .. } | Block::Run(..) => 0,
    };
    blocks.map(cost).sum()
}

/// Entries that all tables are declared to have, and members that profiles are.
fn entries(program: &Checked) -> u64 {
    let tables = program.tables.iter().map(|table| u64::from(table.size));
    let profiles = program.profiles.iter().map(|profile| u64::from(profile.size));
    tables.chain(profiles).sum()
}

/// The state with which a version begins, whose clock has begun at a time.
fn begin(
    engine: &Engine,
    given: &Setup,
    former: Option<&Version>,
    began: Instant,
) -> Result<State, P4Refused> {
    let limits = StateLimits {
        bytes: MAX_STATE,
        ..StateLimits::default()
    };
    let mut state = State::new(engine, limits)?;
    state.give(given)?;
    let before = former.map(|former| (former.engine.program(), &former.state));
    if let (Some(before), Some(former)) = (before, former) {
        let keeps = |own, other| rates_of(&given.meters, own).eq(rates_of(&former.meters, other));
        state.succeed(engine.program(), before, keeps);
    }
    state.begin_idle_times(engine.program(), before, nanoseconds_since(began));
    Ok(state)
}

/// Rates that are given to a meter, by cells. Its number differs between programs.
fn rates_of(
    all: &[MeterRates],
    meter: usize,
) -> impl Iterator<Item = (Option<u32>, setup::Rate, setup::Rate)> + '_ {
    let own = all.iter().filter(move |rates| rates.meter.index() == meter);
    own.map(|rates| (rates.cell, rates.committed, rates.peak))
}
