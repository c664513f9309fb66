//! Notes which bits of a packet and of its metadata decided where it goes, and which were only moved.
//!
//! A flow cache may answer for a packet that agrees with an earlier one in all bits that *decided*: bits that
//! a condition, a select or a table looked at, or from which the port was computed. Bits that were only
//! *moved* (or left alone) may differ: they leave at the same place as the earlier packet's. Bits that were
//! *computed* with (a TTL that is lowered, the input of a checksum) leave in a changed form; they have not
//! decided, but copying them is not enough.
//!
//! [`Notes`] follows each bit of the packet header vector to its origin: no input (a constant, an entry's
//! argument), one bit of the input, or several. The safe direction of error is to say that a bit decided:
//! after an operation that is not followed exactly (wide arithmetic, header stacks by index, further passes)
//! all bits that the parser looked at count as having decided, and [`Notes::is_exact`] is false.
//!
//! To note costs more than to run, so it is bounded: a packet whose notes would take more is not followed to
//! its end, and its notes are not exact.
//!
//! Inputs of a checksum that was verified and was right do not decide: the sum is a condition of its own
//! (`sums`). [`Notes::verdict`] makes of the notes what can be kept (`verdict`).

mod sums;
mod verdict;

use crate::code::{ExternOp, Op, Slow};
use crate::engine::{Engine, HashKind};
use crate::observe::{Lookup, Observer, Outcome, Phase, Step, View};
use crate::state::State;
use p4_ir::{FieldId, HeaderId, Role, TableId};
use std::collections::BTreeSet;
use std::rc::Rc;
use sums::Sums;
use verdict::Ends;

/// A table with more entries than this counts as looking at all bits of its key.
const MAX_ENTRIES: usize = 4096;

/// Most work for one packet: a bit that is added to a set is one, an operation [`STEP`].
const WORK: usize = 16_384;
const STEP: usize = 8;

/// The origin of a bit: inputs are bits of the packet, then those of metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Origin {
    /// From no input.
    #[default]
    None,
    /// A bit that was copied from this bit of the input.
    Bit(u32),
    /// A bit that was computed from these bits of the input.
    Set(Rc<BTreeSet<u32>>),
}

/// Input bits from here on are those of the packet header vector's metadata.
const METADATA: u32 = 1 << 24;

/// The origins of a register's bits, the lowest first.
type Origins = Vec<Origin>;

/// Per table, the bits of its key's words that any entry looks at.
#[derive(Debug)]
pub struct KeyMasks(Vec<Vec<u64>>);

impl KeyMasks {
    /// The masks of tables whose entries are read. They are right as long as those do not change.
    pub fn new(engine: &Engine, state: &State) -> Self {
        let tables = 0..engine.program().tables.len() as u16;
        KeyMasks(tables.map(|table| mask(engine, state, TableId(table))).collect())
    }

    /// The masks when the entries of some tables have changed.
    #[must_use]
    pub fn changed(
        &self,
        engine: &Engine,
        state: &State,
        changed: impl IntoIterator<Item = TableId>,
    ) -> Self {
        let mut masks = self.0.clone();
        for table in changed {
            if let Some(own) = masks.get_mut(table.index()) {
                *own = mask(engine, state, table);
            }
        }
        KeyMasks(masks)
    }
}

/// Notes on one packet. See the module's description.
#[derive(Debug)]
pub struct Notes<'a> {
    engine: &'a Engine,
    masks: &'a KeyMasks,
    /// Per bit of the packet header vector.
    phv: Vec<Origin>,
    regs: Vec<Origins>,
    /// Bits of the look-up key's words.
    key: Vec<Vec<Origin>>,
    gathered: BTreeSet<u32>,
    decided: BTreeSet<u32>,
    /// Work that may still be done.
    work: usize,
    /// Bits of the packet that the parser has passed.
    parsed: usize,
    passes: usize,
    exact: bool,
    payload: bool,
    state: bool,
    sums: Sums,
    ends: Ends,
}

impl<'a> Notes<'a> {
    /// Notes before a packet, right for the tables that the masks are of.
    pub fn new(engine: &'a Engine, masks: &'a KeyMasks) -> Self {
        Notes {
            engine,
            masks,
            phv: vec![Origin::None; engine.program().phv.bytes as usize * 8],
            regs: vec![Vec::new(); 256],
            key: vec![Vec::new(); p4_tables::MAX_KEY_WORDS],
            gathered: BTreeSet::new(),
            decided: BTreeSet::new(),
            work: WORK,
            parsed: 0,
            passes: 0,
            exact: true,
            payload: false,
            state: false,
            sums: Sums::default(),
            ends: Ends::default(),
        }
    }

    /// A mask of the packet's first bytes: bits that decided.
    pub fn decided(&self) -> Vec<u8> {
        if self.exact {
            self.packet_mask(&self.decided)
        } else {
            self.packet_mask(&(0..self.parsed as u32).collect())
        }
    }

    /// A mask of the packet's first bytes: bits that leave in a header as they came, and did not decide.
    pub fn moved(&self) -> Vec<u8> {
        let mut moved: BTreeSet<u32> = BTreeSet::new();
        if !self.exact {
            return self.packet_mask(&moved);
        }
        for origin in self.emitted_bits() {
            if let Origin::Bit(bit) = origin {
                moved.insert(*bit);
            }
        }
        self.packet_mask(&moved.difference(&self.decided).copied().collect())
    }

    /// A mask of the packet's first bytes: bits with which something was computed that leaves.
    pub fn computed(&self) -> Vec<u8> {
        let mut computed = BTreeSet::new();
        for origin in self.emitted_bits() {
            if let Origin::Set(set) = origin {
                computed.extend(set.iter());
            }
        }
        self.packet_mask(&computed)
    }

    /// Bits of headers that leave.
    fn emitted_bits(&self) -> impl Iterator<Item = &Origin> {
        let ranges = self
            .engine
            .emits
            .iter()
            .map(|&header| self.engine.headers[header].range());
        ranges.flat_map(|range| self.phv.get(range.start * 8..range.end * 8).unwrap_or(&[]))
    }

    /// Fields of standard metadata that decided.
    pub fn metadata(&self) -> Vec<FieldId> {
        let program = self.engine.program();
        let decided = |field: &FieldId| {
            let field = &program.fields[field.index()];
            let bits = METADATA + field.offset..METADATA + field.offset + u32::from(field.width);
            self.decided.range(bits).next().is_some()
        };
        program
            .standard
            .roles
            .iter()
            .map(|(_, field)| *field)
            .filter(decided)
            .collect()
    }

    /// Whether every bit was followed: else all that was parsed counts as decided.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// Whether bytes behind the headers were looked at, by a checksum or a hash.
    pub fn looked_at_payload(&self) -> bool {
        self.payload
    }

    /// Whether registers, meters or random numbers were used: then the next such packet may be handled
    /// differently.
    pub fn asked_state(&self) -> bool {
        self.state
    }

    fn packet_mask(&self, bits: &BTreeSet<u32>) -> Vec<u8> {
        let mut bytes = vec![0; self.parsed.div_ceil(8)];
        for &bit in bits.range(..METADATA) {
            if let Some(byte) = bytes.get_mut(bit as usize / 8) {
                *byte |= 0x80 >> (bit % 8);
            }
        }
        bytes
    }

    /// Takes a part of the work that may be done. False: nothing is followed any more.
    fn take_work(&mut self, part: usize) -> bool {
        if self.work < part {
            self.work = 0;
            self.not_exact();
            return false;
        }
        self.work -= part;
        true
    }

    fn not_exact(&mut self) {
        self.exact = false;
    }

    fn decide(&mut self, origins: &[Origin]) {
        if self.take_work(sizes(origins)) {
            add_all(&mut self.decided, origins);
        }
    }

    fn decide_register(&mut self, register: u8) {
        let value = std::mem::take(&mut self.regs[usize::from(register)]);
        self.decide(&value);
        self.regs[usize::from(register)] = value;
    }

    /// Standard metadata is input too.
    fn inputs(&mut self, roles: &[Role]) {
        let program = self.engine.program();
        for field in roles.iter().filter_map(|role| program.standard.get(*role)) {
            let field = program.fields[field.index()];
            for bit in field.offset..field.offset + u32::from(field.width) {
                self.phv[bit as usize] = Origin::Bit(METADATA + bit);
            }
        }
    }

    fn decide_field(&mut self, role: Role) {
        let program = self.engine.program();
        if let Some(field) = program.standard.get(role) {
            let field = program.fields[field.index()];
            let bits = field.offset as usize..field.offset as usize + usize::from(field.width);
            let origins = self.phv[bits].to_vec();
            self.decide(&origins);
        }
    }

    /// Bits of the packet header vector, the last one first.
    fn load(&self, bit: usize, width: usize) -> Origins {
        (bit..bit + width)
            .rev()
            .map(|bit| self.phv.get(bit).cloned().unwrap_or_default())
            .collect()
    }

    fn store(&mut self, bit: usize, width: usize, value: &Origins) {
        for (at, bit) in (bit..bit + width).rev().enumerate() {
            if let Some(to) = self.phv.get_mut(bit) {
                *to = value.get(at).cloned().unwrap_or_default();
            }
        }
    }

    /// A value that depends on all of some others.
    fn mix(&mut self, registers: &[u8], width: usize) -> Origins {
        let values = registers
            .iter()
            .map(|register| &self.regs[usize::from(*register)]);
        if !self.take_work(values.map(|value| sizes(value)).sum()) {
            return Vec::new();
        }
        let mut set = BTreeSet::new();
        for &register in registers {
            add_all(&mut set, &self.regs[usize::from(register)]);
        }
        spread(set, width)
    }

    fn set_mix(&mut self, to: u8, registers: &[u8], width: usize) {
        let value = self.mix(registers, width);
        self.set(to, value);
    }

    fn clear_header(&mut self, header: HeaderId) {
        let range = self.engine.headers[header.index()].range();
        if let Some(bits) = self.phv.get_mut(range.start * 8..range.end * 8) {
            bits.fill(Origin::None);
        }
    }

    /// Loads and stores. False if the operation is another one.
    fn follow_memory(&mut self, op: &Op, view: &View<'_>) -> bool {
        let whole = |size: crate::code::Size| match size {
            crate::code::Size::One => 8,
            crate::code::Size::Two => 16,
            crate::code::Size::Four => 32,
            crate::code::Size::Eight => 64,
        };
        let at_bit = |at: u32| at as usize * 8;
        match *op {
            Op::Const { to, .. } | Op::Parameter { to, .. } | Op::Valid { to, .. } => {
                self.set(to, Vec::new())
            }
            Op::Load8 { to, at } => self.set(to, self.load(at_bit(at), 8)),
            Op::Load16 { to, at } => self.set(to, self.load(at_bit(at), 16)),
            Op::Load32 { to, at } => self.set(to, self.load(at_bit(at), 32)),
            Op::Load64 { to, at } => self.set(to, self.load(at_bit(at), 64)),
            Op::LoadBits { to, left, right, at } => {
                self.set(
                    to,
                    self.load(at_bit(at) + usize::from(left), 64 - usize::from(right)),
                );
            }
            Op::LoadSplit { to, width, bit } => self.set(to, self.load(bit as usize, usize::from(width))),
            Op::Lookahead { to, width, offset } => {
                let first = (view.at * 8 + usize::from(offset)) as u32;
                let bits = first..first + u32::from(width);
                self.parsed = self.parsed.max(bits.end as usize);
                self.set(to, bits.rev().map(Origin::Bit).collect());
            }
            Op::Store8 { from, at } => self.store_register(at_bit(at), 8, from),
            Op::Store16 { from, at } => self.store_register(at_bit(at), 16, from),
            Op::Store32 { from, at } => self.store_register(at_bit(at), 32, from),
            Op::Store64 { from, at } => self.store_register(at_bit(at), 64, from),
            Op::StoreBits {
                from,
                shift,
                width,
                at,
            } => {
                let bit = at_bit(at) + 64 - usize::from(shift) - usize::from(width);
                self.store_register(bit, usize::from(width), from);
            }
            Op::StoreSplit { from, width, bit } => {
                self.store_register(bit as usize, usize::from(width), from)
            }
            Op::Set { size, at, .. } => self.store(at_bit(at), whole(size), &Vec::new()),
            Op::Move { size, from, at } => {
                let value = self.load(at_bit(from), whole(size));
                self.store(at_bit(at), whole(size), &value);
            }
            _ => return false,
        }
        true
    }

    fn set(&mut self, to: u8, mut value: Origins) {
        // Where more bits may have an origin than a register has, the value has zeros.
        value.truncate(64);
        self.regs[usize::from(to)] = value;
    }

    fn store_register(&mut self, bit: usize, width: usize, from: u8) {
        let value = std::mem::take(&mut self.regs[usize::from(from)]);
        self.store(bit, width, &value);
        self.regs[usize::from(from)] = value;
    }

    /// Arithmetic. False if the operation is another one.
    fn follow_values(&mut self, op: &Op) -> bool {
        match *op {
            Op::AndConst { to, a, value } => {
                let mut bits = self.regs[usize::from(a)].clone();
                for (at, origin) in bits.iter_mut().enumerate() {
                    if value >> at & 1 == 0 {
                        *origin = Origin::None;
                    }
                }
                self.set(to, bits);
            }
            Op::Slice { to, a, low, width } => {
                let bits = self.regs[usize::from(a)]
                    .iter()
                    .skip(usize::from(low))
                    .take(usize::from(width));
                let bits = bits.cloned().collect();
                self.set(to, bits);
            }
            Op::Concat { to, a, b, low } => {
                let mut bits = self.regs[usize::from(b)].clone();
                bits.resize(usize::from(low), Origin::None);
                bits.extend(self.regs[usize::from(a)].iter().cloned());
                self.set(to, bits);
            }
            Op::Add { to, a, b, width }
            | Op::Sub { to, a, b, width }
            | Op::Mul { to, a, b, width }
            | Op::ShiftLeft { to, a, b, width }
            | Op::ShiftRightSigned { to, a, b, width }
            | Op::Divide { to, a, b, width, .. } => self.set_mix(to, &[a, b], usize::from(width)),
            Op::And { to, a, b }
            | Op::Or { to, a, b }
            | Op::Xor { to, a, b }
            | Op::ShiftRight { to, a, b } => {
                self.set_mix(to, &[a, b], 64);
            }
            Op::AddConst { to, a, width, .. }
            | Op::SignExtend { to, a, width, .. }
            | Op::Saturate { to, a, width, .. }
            | Op::Complement { to, a, width }
            | Op::Negate { to, a, width } => self.set_mix(to, &[a], usize::from(width)),
            Op::Not { to, a } | Op::ToBool { to, a } | Op::EqualConst { to, a, .. } => {
                self.set_mix(to, &[a], 1);
            }
            Op::Equal { to, b, .. } if self.is_right_sum(b) => self.set(to, Vec::new()),
            Op::Equal { to, a, b }
            | Op::NotEqual { to, a, b }
            | Op::Less { to, a, b }
            | Op::LessEqual { to, a, b }
            | Op::LessSigned { to, a, b, .. }
            | Op::LessEqualSigned { to, a, b, .. } => self.set_mix(to, &[a, b], 1),
            _ => return false,
        }
        true
    }

    /// Decisions, keys, gathered bytes and all other operations.
    fn follow_flow(&mut self, op: &Op, step: &Step<'_>) {
        match *op {
            Op::JumpIf { a, .. }
            | Op::JumpUnless { a, .. }
            | Op::JumpIfEqual { a, .. }
            | Op::JumpUnlessEqual { a, .. }
            | Op::Advance { a }
            | Op::Select { a, .. }
            | Op::FailWith { a } => {
                self.decide_register(a);
                if matches!(op, Op::Select { .. }) {
                    let gathered = std::mem::take(&mut self.gathered);
                    self.decided.extend(gathered);
                }
            }
            Op::KeySet { from, word, shift } => {
                self.key[usize::from(word)].clear();
                self.key_bits(from, word, shift);
            }
            Op::KeyAdd { from, word, shift } => self.key_bits(from, word, shift),
            Op::Gather => {
                self.gathered.clear();
                self.sums.begin();
            }
            Op::GatherField { bit, width } => {
                self.sums.add(bit, width);
                let value = self.load(bit as usize, usize::from(width));
                self.gather(&value);
            }
            Op::GatherValue { from, .. } => {
                self.sums.add_other();
                let value = self.regs[usize::from(from)].clone();
                self.gather(&value);
            }
            Op::Hash { to, calculation } => {
                let kind = &self.engine.hashes[usize::from(calculation)];
                self.state |= !matches!(kind, HashKind::Fixed(_));
                self.sum_up(kind);
                self.set(to, spread(self.gathered.clone(), 64));
            }
            Op::SetInvalid { header } => self.clear_header(header),
            Op::MarkToDrop => self.follow_drop(),
            Op::Slow { slow } => {
                if let Some(slow) = step.code.slow.get(slow as usize) {
                    self.follow_slow(slow);
                }
            }
            // Operations that move no bits of the packet.
            Op::Turn
            | Op::Jump { .. }
            | Op::JumpUnlessValid { .. }
            | Op::Call { .. }
            | Op::Return
            | Op::End
            | Op::Exit
            | Op::Apply { .. }
            | Op::State { .. }
            | Op::Extract { .. }
            | Op::Accept
            | Op::Fail { .. }
            | Op::SetValid { .. } => {}
            // An operation that nobody follows: what decides is not known exactly.
            _ => self.not_exact(),
        }
    }

    fn gather(&mut self, origins: &[Origin]) {
        if self.take_work(sizes(origins)) {
            add_all(&mut self.gathered, origins);
        }
    }

    fn follow_drop(&mut self) {
        let standard = &self.engine.standard;
        for slot in [standard.egress_spec, standard.mcast_grp].into_iter().flatten() {
            self.store(slot.at as usize * 8, 16, &Vec::new());
        }
    }

    fn key_bits(&mut self, from: u8, word: u8, shift: u8) {
        let value = self.regs[usize::from(from)].clone();
        let word = &mut self.key[usize::from(word)];
        word.resize(64, Origin::None);
        for (at, origin) in value.into_iter().enumerate() {
            if let Some(to) = word.get_mut(usize::from(shift) + at) {
                *to = origin;
            }
        }
    }

    fn follow_slow(&mut self, slow: &Slow) {
        match *slow {
            Slow::Extern(ExternOp::RegisterRead { to, index, .. }) => {
                self.state = true;
                self.decide_register(index);
                self.set(to, Vec::new());
            }
            Slow::Extern(ExternOp::Meter { index, to, .. }) => {
                self.state = true;
                self.decide_register(index);
                self.set(to, Vec::new());
            }
            Slow::Extern(ExternOp::Random { to, .. }) => {
                self.state = true;
                self.set(to, Vec::new());
            }
            Slow::Extern(ExternOp::RegisterWrite { from, index, .. }) => {
                self.state = true;
                self.decide_register(index);
                self.decide_register(from);
            }
            Slow::Extern(ExternOp::Count { index, .. }) => self.decide_register(index),
            Slow::GatherPayload { .. } => {
                self.payload = true;
                self.sums.add_other();
            }
            Slow::Scale { to, base, max, .. } => {
                let registers = [Some(to), Some(base), max];
                let registers: Vec<u8> = registers.into_iter().flatten().collect();
                self.set_mix(to, &registers, 64);
            }
            Slow::Truncate { length } => {
                self.ends.refuse();
                self.decide_register(length);
            }
            Slow::Extern(ExternOp::Digest { .. }) | Slow::Assert { .. } => self.ends.refuse(),
            // A wrong checksum is no condition that others could be asked for.
            Slow::ChecksumError => self.ends.refuse(),
            Slow::Log { .. } => {}
            _ => self.not_exact(),
        }
    }
}

impl Observer for Notes<'_> {
    fn phase(&mut self, _: &View<'_>, phase: Phase) {
        self.sums.phase(phase);
        if let Phase::Egress(_) = phase {
            self.inputs(&[
                Role::EnqTimestamp,
                Role::EnqQdepth,
                Role::DeqQdepth,
                Role::EgressGlobalTimestamp,
                Role::PacketLength,
            ]);
        }
        if phase != Phase::Parser {
            return;
        }
        self.passes += 1;
        if self.passes > 1 {
            return self.not_exact();
        }
        self.inputs(&[
            Role::IngressPort,
            Role::PacketLength,
            Role::IngressGlobalTimestamp,
        ]);
    }

    fn parsed(&mut self, view: &View<'_>, error: Option<u32>) {
        self.parsed = self.parsed.max(view.at * 8);
        if error.is_some() {
            self.ends.refuse();
        }
    }

    fn extracted(&mut self, view: &View<'_>, header: HeaderId, from: usize) {
        self.parsed = self.parsed.max(view.at * 8);
        let info = &self.engine.headers[header.index()];
        if self.passes > 1 || info.variable.is_some() {
            return self.not_exact();
        }
        for bit in 0..info.bytes * 8 {
            if let Some(to) = self.phv.get_mut(info.offset * 8 + bit) {
                *to = Origin::Bit((from * 8 + bit) as u32);
            }
        }
    }

    fn looked_up(&mut self, _: &View<'_>, lookup: &Lookup<'_>) {
        self.entry_used(lookup);
        let masks = &self.masks.0[lookup.table.index()];
        let mut seen = Vec::new();
        for (bits, mask) in self.key.iter().zip(masks) {
            let bits = bits.iter().enumerate();
            seen.extend(
                bits.filter(|(at, _)| mask >> at & 1 == 1)
                    .map(|(_, origin)| origin.clone()),
            );
        }
        self.decide(&seen);
    }

    fn counted(&mut self, counter: u16, index: u64) {
        self.ends.count_cell(counter, index);
    }

    fn outcome(&mut self, outcome: Outcome) {
        self.decide_field(Role::EgressSpec);
        self.decide_field(Role::McastGrp);
        self.ends.outcome(outcome);
    }

    fn emitted(&mut self, view: &View<'_>) {
        self.decide_field(Role::EgressSpec);
        self.lay_out(view);
    }

    fn output(&mut self, _: u32, head: &[u8], _: usize) {
        self.ends.left_as(head);
    }

    fn step(&mut self, view: &View<'_>, step: &Step<'_>) {
        let op = step.op;
        if !self.take_work(STEP) {
            return;
        }
        self.follow_sum(op);
        if !self.follow_memory(op, view) && !self.follow_values(op) {
            self.follow_flow(op, step);
        }
    }
}

fn add_all(set: &mut BTreeSet<u32>, origins: &[Origin]) {
    for (at, origin) in origins.iter().enumerate() {
        match origin {
            Origin::None => {}
            Origin::Bit(bit) => drop(set.insert(*bit)),
            Origin::Set(bits) => {
                if !is_before(origins, at) {
                    set.extend(bits.iter());
                }
            }
        }
    }
}

/// Whether the bit before has the same origin, as bits of one value often have.
fn is_before(origins: &[Origin], at: usize) -> bool {
    let before = at.checked_sub(1).and_then(|before| origins.get(before));
    matches!((before, &origins[at]), (Some(Origin::Set(a)), Origin::Set(b)) if Rc::ptr_eq(a, b))
}

/// How many bits are added with some origins.
fn sizes(origins: &[Origin]) -> usize {
    let size = |at: usize| match &origins[at] {
        Origin::Set(bits) if !is_before(origins, at) => bits.len(),
        Origin::None | Origin::Bit(_) | Origin::Set(_) => 1,
    };
    (0..origins.len()).map(size).sum()
}

/// A value each of whose bits depends on all of a set.
fn spread(set: BTreeSet<u32>, width: usize) -> Origins {
    if set.is_empty() {
        return Vec::new();
    }
    vec![Origin::Set(Rc::new(set)); width]
}

/// Bits of a table's key that its entries look at.
fn mask(engine: &Engine, state: &State, table: TableId) -> Vec<u64> {
    let layout = engine.layout(table);
    let all = vec![u64::MAX; layout.words()];
    let tables = state.tables().look();
    let Ok(entries) = tables.table(u32::from(table.0)) else {
        return all;
    };
    if entries.is_empty() {
        return vec![0; layout.words()];
    }
    if entries.len() > MAX_ENTRIES || layout.has_ranges() {
        return all;
    }
    let mut mask = vec![0; layout.words()];
    for (pattern, _) in entries.handles().filter_map(|handle| entries.pattern(handle)) {
        for (to, bits) in mask.iter_mut().zip(pattern.mask()) {
            *to |= bits;
        }
    }
    mask
}
