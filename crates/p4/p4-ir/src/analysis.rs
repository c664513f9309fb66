//! The fields that a program reads and changes, and whether its verdicts can be cached.
//!
//! A verdict - where a packet goes and how it is changed - can be kept in a cache if it follows from tables
//! and from bits of the packet that are known beforehand. The analysis finds those bits: of every field, the
//! bits that may reach a key, a condition, a transition of the parser, the port or the group, directly or
//! through metadata. Bits that are only moved or computed and leave with the packet decide nothing.
//!
//! The analysis errs to the safe side: it ignores the order of operations, so a bit that it finds may decide
//! in no run, but it finds every bit that decides. The interpreter notes the bits that one run *did* look at.

use crate::action::Op;
use crate::bits::Bits;
use crate::control::{Block, Control};
use crate::expr::{Binary, ExprKind, HeaderRef, Place, Type, Unary, UnionRef};
use crate::externs::{Algorithm, CalculationInput, Checksum};
use crate::header::Role;
use crate::ids::{CalculationId, ExprId, FieldId, HeaderId, UnionId, UnionStackId};
use crate::parser::ParserOp;
use crate::program::{Checked, Program};
use std::collections::{BTreeMap, BTreeSet};

/// Why verdicts of a program cannot be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Obstacle {
    /// Registers are read or written.
    Register,
    /// Packets are measured by a meter.
    Meter,
    /// Random numbers are drawn, or hashes computed with an algorithm whose results differ each time.
    Random,
    /// Digests of packets are sent to controllers.
    Digest,
    /// The time is read.
    Time,
    /// The length of queues is read, or the time spent there.
    Queue,
    /// Decisions depend on the length of packets.
    Length,
    /// Checksums or hashes depend on the payload.
    Payload,
    /// Packets are read ahead of their headers by an amount that the packet determines.
    Lookahead,
    /// A function of the target's own is called.
    Extern,
    /// Tables have idle times, so every packet must be seen by them.
    IdleTime,
}

impl Obstacle {
    /// A short description for users.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Register => "reads or writes registers",
            Self::Meter => "measures packets",
            Self::Random => "uses random numbers",
            Self::Digest => "sends digests",
            Self::Time => "reads the time",
            Self::Queue => "reads the state of queues",
            Self::Length => "looks at the length of packets",
            Self::Payload => "computes over the payload",
            Self::Lookahead => "skips a number of bits that packets say",
            Self::Extern => "calls functions of the target's own",
            Self::IdleTime => "has tables with idle times",
        }
    }
}

/// Properties of a program that are known without running it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Analysis {
    /// Fields of headers with bits that may decide, and these bits as a mask as wide as the field.
    pub looked_at: BTreeMap<FieldId, Bits>,
    /// Headers whose validity may decide, outside of the parser.
    pub validity: BTreeSet<HeaderId>,
    /// Number of bits ahead of the parser's position that may decide.
    pub ahead: u32,
    /// Metadata from the architecture (such as the ingress port) that may decide.
    pub given: BTreeSet<Role>,
    /// Fields of headers that it may change.
    pub changed: BTreeSet<FieldId>,
    /// Headers that it may add.
    pub added: BTreeSet<HeaderId>,
    /// Headers that it may remove.
    pub removed: BTreeSet<HeaderId>,
    /// Why verdicts cannot be kept, and where in the program. Empty: they can.
    pub obstacles: BTreeSet<(Obstacle, String)>,
}

impl Analysis {
    /// Whether verdicts can be kept in a cache.
    #[must_use]
    pub fn is_cacheable(&self) -> bool {
        self.obstacles.is_empty()
    }

    /// Analyses a program.
    #[must_use]
    pub fn of(program: &Checked) -> Self {
        Self::with(program, true)
    }

    /// As [`Self::of`], without the bits that only verified checksums look at. A cache can verify the
    /// checksum of each packet, so that these bits need no place in its keys.
    #[must_use]
    pub fn of_keys(program: &Checked) -> Self {
        Self::with(program, false)
    }

    fn with(program: &Checked, verified: bool) -> Self {
        let mut flow = DataFlow {
            program,
            verified,
            reads: BTreeMap::new(),
            work: Vec::new(),
            result: Self::default(),
        };
        flow.operations();
        flow.roots();
        flow.follow();
        flow.obstacles();
        flow.result
    }
}

/// A set of bits of a field.
type Mask = Bits;

/// The sources from which a field may be computed.
#[derive(Debug, Clone, Copy)]
enum Source {
    Expr(ExprId),
    Field(FieldId),
    Calculation(CalculationId),
}

struct DataFlow<'a> {
    program: &'a Program,
    /// Whether inputs of verified checksums decide.
    verified: bool,
    /// For each field, the sources that may be written to it.
    reads: BTreeMap<FieldId, Vec<Source>>,
    /// Fields of which further bits were found to decide.
    work: Vec<FieldId>,
    result: Analysis,
}

impl DataFlow<'_> {
    /// Notes the fields that each operation writes, and their sources.
    fn operations(&mut self) {
        let program = self.program;
        let in_parser = program.parser.states.iter().flat_map(|state| &state.ops);
        let in_parser = in_parser.filter_map(|op| if let ParserOp::Do(op) = op { Some(op) } else { None });
        for op in program
            .actions
            .iter()
            .flat_map(|action| &action.ops)
            .chain(in_parser)
        {
            self.operation(op);
        }
        for table in &program.tables {
            if let Some((_, place)) = table.meter {
                self.write(place, &[]);
            }
        }
        for checksum in program.checksums.iter().filter(|checksum| checksum.update) {
            self.write(checksum.target, &[]);
        }
    }

    fn operation(&mut self, op: &Op) {
        let program = self.program;
        let mut sources = Vec::new();
        match op {
            Op::Assign(_, value) => sources.push(Source::Expr(*value)),
            Op::Hash {
                calculation,
                base,
                max,
                ..
            } => {
                sources.push(Source::Calculation(*calculation));
                sources.extend([Some(*base), *max].into_iter().flatten().map(Source::Expr));
            }
            Op::Extern(_, _, arguments) => sources.extend(arguments.iter().copied().map(Source::Expr)),
            Op::CopyHeader(to, from) => self.copy(*to, *from),
            Op::CopyStack(to, from) => self.copy(HeaderRef::Last(*to), HeaderRef::Last(*from)),
            Op::CopyUnion(to, from) => self.copy_union(*to, *from),
            Op::Push(stack, _) | Op::Pop(stack, _) => {
                self.copy(HeaderRef::Last(*stack), HeaderRef::Last(*stack))
            }
            Op::CopyUnionStack(to, from) => self.copy_elements(*to, *from),
            Op::PushUnion(stack, _) | Op::PopUnion(stack, _) => self.copy_elements(*stack, *stack),
            Op::SetInvalid(header) => program.for_each_header(*header, |header| {
                self.result.removed.insert(header);
            }),
            Op::CopyVariable(_, from) => {
                let mut fields = Vec::new();
                self.places(*from, &mut |field| fields.push(field));
                sources.extend(fields.into_iter().map(Source::Field));
            }
            // What they write comes from no field.
            Op::Meter { .. } | Op::RegisterRead(..) | Op::Random(..) => {}
            // Operations that write no header's field; headers made valid are noted below.
            Op::SetValid(_)
            | Op::Jump(_)
            | Op::JumpUnless(..)
            | Op::Count(..)
            | Op::RegisterWrite(..)
            | Op::Digest(_)
            | Op::CloneIngress(..)
            | Op::CloneEgress(..)
            | Op::Resubmit(_)
            | Op::Recirculate(_)
            | Op::Truncate(_)
            | Op::MarkToDrop
            | Op::Exit
            | Op::Assert(_)
            | Op::Log(..) => {}
        }
        if let Some(place) = op.written() {
            self.write(place, &sources);
        }
        program.for_each_made_valid(op, |header| {
            self.result.added.insert(header);
        });
        if matches!(
            op,
            Op::CopyHeader(..) | Op::Pop(..) | Op::Push(..) | Op::CopyStack(..) | Op::CopyUnion(..)
        ) {
            program.for_each_made_valid(op, |header| {
                self.result.removed.insert(header);
            });
        }
    }

    fn places(&self, place: Place, f: &mut impl FnMut(FieldId)) {
        match place {
            Place::Field(field) => f(field),
            Place::Member(header, member) => {
                self.program
                    .for_each_header(header, |header| f(self.program.field_of(header, member)));
            }
        }
    }

    fn write(&mut self, place: Place, sources: &[Source]) {
        let mut fields = Vec::new();
        self.places(place, &mut |field| fields.push(field));
        for field in fields {
            self.reads.entry(field).or_default().extend(sources);
            if !self.is_metadata(field) {
                self.result.changed.insert(field);
            }
        }
    }

    fn copy_union(&mut self, to: UnionId, from: UnionId) {
        let members = |union| {
            let mut members = Vec::new();
            self.program
                .for_each_member(UnionRef::Union(union), |header| members.push(header));
            members
        };
        for (to, from) in members(to).into_iter().zip(members(from)) {
            self.copy(HeaderRef::Header(to), HeaderRef::Header(from));
        }
    }

    /// Each element of one stack of unions may come from each of the other.
    fn copy_elements(&mut self, to: UnionStackId, from: UnionStackId) {
        let elements = |stack: UnionStackId| {
            let stack = &self.program.union_stacks[stack.index()];
            (0..stack.size).map(move |i| UnionId(stack.first.0 + i))
        };
        for (to, from) in elements(to).flat_map(|to| elements(from).map(move |from| (to, from))) {
            self.copy_union(to, from);
        }
    }

    fn copy(&mut self, to: HeaderRef, from: HeaderRef) {
        let (mut targets, mut sources) = (Vec::new(), Vec::new());
        self.program.for_each_header(to, |header| targets.push(header));
        self.program.for_each_header(from, |header| sources.push(header));
        self.result.validity.extend(&sources);
        for &target in &targets {
            for member in 0..self.program.header_type(target).fields.len() as u16 {
                let from = sources
                    .iter()
                    .map(|&source| Source::Field(self.program.field_of(source, member)));
                let from = from.collect::<Vec<_>>();
                self.write(Place::Field(self.program.field_of(target, member)), &from);
            }
        }
    }

    fn is_metadata(&self, field: FieldId) -> bool {
        self.program.headers[self.program.fields[field.index()].header.index()].metadata
    }

    /// Notes the fields that decide where decisions are made.
    fn roots(&mut self) {
        let program = self.program;
        for control in [&program.ingress, &program.egress] {
            self.control(control);
        }
        for op in program.actions.iter().flat_map(|action| &action.ops) {
            self.root_of(op);
        }
        for state in &program.parser.states {
            for op in &state.ops {
                match op {
                    ParserOp::Do(_) => {}
                    ParserOp::Extract(_)
                    | ParserOp::ExtractVariable(..)
                    | ParserOp::Advance(_)
                    | ParserOp::Verify(..) => op.for_each_expr(|expr| self.decides(expr, None)),
                }
            }
            state.select.keys.iter().for_each(|key| self.decides(*key, None));
        }
        for checksum in &program.checksums {
            self.root_of_checksum(checksum);
        }
        for selector in program
            .profiles
            .iter()
            .filter_map(|profile| profile.selector.as_ref())
        {
            self.calculation(selector.calculation);
        }
        let roles = [Role::EgressSpec, Role::McastGrp, Role::CloneSpec];
        for field in roles.into_iter().filter_map(|role| program.standard.get(role)) {
            self.all_of(field);
        }
    }

    /// Notes what decides what an operation of an action does, and where.
    fn root_of(&mut self, op: &Op) {
        match op {
            Op::JumpUnless(expr, _)
            | Op::Truncate(expr)
            | Op::CloneIngress(expr, _)
            | Op::CloneEgress(expr, _)
            | Op::Count(_, expr)
            | Op::Meter { index: expr, .. }
            | Op::RegisterRead(_, _, expr) => self.decides(*expr, None),
            Op::RegisterWrite(_, index, value) => {
                [index, value].into_iter().for_each(|e| self.decides(*e, None))
            }
            // Results decide where they are used; assertions, logs and digests change no packet.
            Op::Assign(..)
            | Op::CopyVariable(..)
            | Op::SetValid(_)
            | Op::SetInvalid(_)
            | Op::CopyHeader(..)
            | Op::CopyUnion(..)
            | Op::CopyStack(..)
            | Op::CopyUnionStack(..)
            | Op::Push(..)
            | Op::Pop(..)
            | Op::PushUnion(..)
            | Op::PopUnion(..)
            | Op::Jump(_)
            | Op::Hash { .. }
            | Op::Random(..)
            | Op::Digest(_)
            | Op::Resubmit(_)
            | Op::Recirculate(_)
            | Op::MarkToDrop
            | Op::Exit
            | Op::Assert(_)
            | Op::Log(..)
            | Op::Extern(..) => {}
        }
        if let Some(Place::Member(header, _)) = op.written()
            && let Some(index) = header.index_expr()
        {
            self.decides(index, None);
        }
    }

    fn root_of_checksum(&mut self, checksum: &Checksum) {
        if let Some(condition) = checksum.condition {
            self.decides(condition, None);
        }
        if checksum.verify && self.verified {
            self.calculation(checksum.calculation);
            let mut fields = Vec::new();
            self.places(checksum.target, &mut |field| fields.push(field));
            fields.into_iter().for_each(|field| self.all_of(field));
        }
    }

    fn control(&mut self, control: &Control) {
        for block in &control.blocks {
            match block {
                Block::If { condition, .. } => self.decides(*condition, None),
                Block::Apply(table, _) => {
                    let program = self.program;
                    program.tables[table.index()]
                        .keys
                        .iter()
                        .for_each(|key| self.decides(key.value, None));
                }
                Block::Run(..) => {}
            }
        }
    }

    fn calculation(&mut self, id: CalculationId) {
        let program = self.program;
        for input in &program.calculations[id.index()].inputs {
            match input {
                CalculationInput::Field(field) => self.all_of(*field),
                CalculationInput::Value(value) => self.decides(*value, None),
                CalculationInput::Header(header) => {
                    self.result.validity.insert(*header);
                    for member in 0..program.header_type(*header).fields.len() as u16 {
                        self.all_of(program.field_of(*header, member));
                    }
                }
                CalculationInput::Payload(_) => {}
            }
        }
    }

    fn all_of(&mut self, field: FieldId) {
        let width = self.program.fields[field.index()].width;
        self.bits_of(field, &Bits::ones(width));
    }

    /// Notes that bits of a field decide.
    fn bits_of(&mut self, field: FieldId, mask: &Mask) {
        let width = self.program.fields[field.index()].width;
        let known = self
            .result
            .looked_at
            .entry(field)
            .or_insert_with(|| Bits::zero(width));
        let together = known
            .bytes()
            .iter()
            .zip(mask.bytes())
            .map(|(a, b)| a | b)
            .collect::<Vec<_>>();
        let together = Bits::from_bytes(width, &together);
        if *known != together {
            *known = together;
            self.work.push(field);
        }
    }

    /// Notes that an expression decides; of its bits, those in the mask (all, if there is none).
    fn decides(&mut self, id: ExprId, mask: Option<&Mask>) {
        let program = self.program;
        let expr = program.exprs[id.index()];
        let width = if let Type::Bits(width) = expr.ty { width } else { 0 };
        let cut = |width: u16| mask.map(|mask| Bits::from_bytes(width, mask.bytes()));
        match expr.kind {
            ExprKind::Field(field) => match mask {
                Some(mask) => self.bits_of(field, mask),
                None => self.all_of(field),
            },
            ExprKind::Member(header, member) => {
                self.refers(header);
                let mut fields = Vec::new();
                program.for_each_header(header, |header| fields.push(program.field_of(header, member)));
                fields.into_iter().for_each(|field| self.all_of(field));
            }
            ExprKind::Valid(header) => {
                self.refers(header);
                program.for_each_header(header, |header| {
                    self.result.validity.insert(header);
                });
            }
            ExprKind::HeadersEqual(a, b) => [a, b].into_iter().for_each(|header| self.whole(header)),
            ExprKind::VariablesEqual(a, b) => {
                let mut fields = Vec::new();
                self.places(a, &mut |field| fields.push(field));
                self.places(b, &mut |field| fields.push(field));
                fields.into_iter().for_each(|field| self.all_of(field));
                expr.kind.for_each_child(|child| self.decides(child, None));
            }
            ExprKind::StacksEqual(a, b) => [a, b]
                .into_iter()
                .for_each(|stack| self.whole(HeaderRef::Last(stack))),
            ExprKind::UnionValid(union) => {
                expr.kind.for_each_child(|index| self.decides(index, None));
                program.for_each_member(union, |header| {
                    self.result.validity.insert(header);
                });
            }
            ExprKind::UnionsEqual(a, b) => {
                expr.kind.for_each_child(|index| self.decides(index, None));
                self.whole_union(a);
                self.whole_union(b);
            }
            ExprKind::Lookahead { offset } => {
                self.result.ahead = self.result.ahead.max(u32::from(offset) + u32::from(width));
            }
            ExprKind::Unary(Unary::Complement, a) => self.decides(a, mask),
            ExprKind::Unary(Unary::ZeroExtend | Unary::Truncate, a) => match program.exprs[a.index()].ty {
                Type::Bits(of) => {
                    let cut = cut(of).unwrap_or_else(|| Bits::from_bytes(of, Bits::ones(width).bytes()));
                    self.decides(a, Some(&cut));
                }
                Type::Bool => self.decides(a, None),
            },
            ExprKind::Binary(Binary::And, a, b) => match (self.constant(a), self.constant(b)) {
                (Some(only), _) => self.decides(b, Some(&both(&only, mask))),
                (_, Some(only)) => self.decides(a, Some(&both(&only, mask))),
                _ => [a, b].into_iter().for_each(|operand| self.decides(operand, mask)),
            },
            ExprKind::Binary(Binary::Or | Binary::Xor, a, b) => {
                [a, b].into_iter().for_each(|operand| self.decides(operand, mask));
            }
            ExprKind::Mux(condition, a, b) => {
                self.decides(condition, None);
                [a, b].into_iter().for_each(|operand| self.decides(operand, mask));
            }
            kind => kind.for_each_child(|child| self.decides(child, None)),
        }
    }

    fn refers(&mut self, header: HeaderRef) {
        header
            .index_expr()
            .into_iter()
            .for_each(|index| self.decides(index, None));
    }

    /// Notes that a header decides as a whole.
    fn whole(&mut self, header: HeaderRef) {
        self.refers(header);
        let program = self.program;
        let mut headers = Vec::new();
        program.for_each_header(header, |header| headers.push(header));
        for header in headers {
            self.result.validity.insert(header);
            for member in 0..program.header_type(header).fields.len() as u16 {
                self.all_of(program.field_of(header, member));
            }
        }
    }

    fn whole_union(&mut self, union: UnionRef) {
        let program = self.program;
        program.for_each_member(union, |header| self.whole(HeaderRef::Header(header)));
    }

    fn constant(&self, id: ExprId) -> Option<Bits> {
        let expr = self.program.exprs[id.index()];
        match (expr.kind, expr.ty) {
            (ExprKind::Constant(value), Type::Bits(width)) => Some(Bits::from_u128(width, value.into())),
            (ExprKind::WideConstant(id), _) => Some(self.program.constants[id.index()].clone()),
            _ => None,
        }
    }

    /// Follows decisions back through the sources of the fields that decide.
    fn follow(&mut self) {
        while let Some(field) = self.work.pop() {
            let mask = self.result.looked_at[&field].clone();
            for source in self.reads.get(&field).cloned().unwrap_or_default() {
                match source {
                    Source::Expr(expr) => {
                        let fits = self.program.exprs[expr.index()].ty == Type::Bits(mask.width());
                        self.decides(expr, fits.then_some(&mask));
                    }
                    Source::Field(from) => self.bits_of(from, &mask),
                    Source::Calculation(calculation) => self.calculation(calculation),
                }
            }
        }
        let given = self
            .program
            .standard
            .roles
            .iter()
            .filter(|(_, field)| self.result.looked_at.contains_key(field));
        // Metadata that the program itself sets do not count, and the egress port follows from them.
        let outputs = [
            Role::EgressSpec,
            Role::EgressPort,
            Role::McastGrp,
            Role::CloneSpec,
        ];
        self.result.given = given
            .map(|(role, _)| *role)
            .filter(|role| !outputs.contains(role))
            .collect();
        let metadata = self
            .result
            .looked_at
            .keys()
            .copied()
            .filter(|field| self.is_metadata(*field))
            .collect::<Vec<_>>();
        metadata.iter().for_each(|field| {
            self.result.looked_at.remove(field);
        });
    }

    fn obstacles(&mut self) {
        let program = self.program;
        for action in &program.actions {
            let obstacles: Vec<_> = action.ops.iter().filter_map(|op| self.obstacle(op)).collect();
            for obstacle in obstacles {
                self.note_obstacle(obstacle, format!("action {}", action.identity.name));
            }
        }
        for table in &program.tables {
            let place = || format!("table {}", table.identity.name);
            if table.meter.is_some() {
                self.note_obstacle(Obstacle::Meter, place());
            }
            if table.idle_timeout {
                self.note_obstacle(Obstacle::IdleTime, place());
            }
        }
        for checksum in &program.checksums {
            if let Some(obstacle) = self.unsteady(checksum.calculation) {
                self.note_obstacle(obstacle, format!("checksum {}", checksum.name));
            }
        }
        let is_constant = |id: ExprId| matches!(program.exprs[id.index()].kind, ExprKind::Constant(_));
        let skips_ahead = |op: &ParserOp| matches!(op, ParserOp::Advance(bits) if !is_constant(*bits));
        for state in &program.parser.states {
            if state.ops.iter().any(skips_ahead) {
                self.note_obstacle(Obstacle::Lookahead, format!("parser state {}", state.name));
            }
        }
        self.told_by_architecture();
    }

    fn obstacle(&self, op: &Op) -> Option<Obstacle> {
        match op {
            Op::RegisterRead(..) | Op::RegisterWrite(..) => Some(Obstacle::Register),
            Op::Meter { .. } => Some(Obstacle::Meter),
            Op::Random(..) => Some(Obstacle::Random),
            Op::Digest(_) => Some(Obstacle::Digest),
            Op::Extern(..) => Some(Obstacle::Extern),
            Op::Hash { calculation, .. } => self.unsteady(*calculation),
            Op::Assign(..)
            | Op::CopyVariable(..)
            | Op::SetValid(_)
            | Op::SetInvalid(_)
            | Op::CopyHeader(..)
            | Op::CopyUnion(..)
            | Op::CopyStack(..)
            | Op::CopyUnionStack(..)
            | Op::Push(..)
            | Op::Pop(..)
            | Op::PushUnion(..)
            | Op::PopUnion(..)
            | Op::Jump(_)
            | Op::JumpUnless(..)
            | Op::Count(..)
            | Op::CloneIngress(..)
            | Op::CloneEgress(..)
            | Op::Resubmit(_)
            | Op::Recirculate(_)
            | Op::Truncate(_)
            | Op::MarkToDrop
            | Op::Exit
            | Op::Assert(_)
            | Op::Log(..) => None,
        }
    }

    fn note_obstacle(&mut self, obstacle: Obstacle, place: String) {
        self.result.obstacles.insert((obstacle, place));
    }

    fn unsteady(&self, calculation: CalculationId) -> Option<Obstacle> {
        let calculation = &self.program.calculations[calculation.index()];
        if matches!(calculation.algorithm, Algorithm::Random | Algorithm::RoundRobin) {
            return Some(Obstacle::Random);
        }
        let payload = |input: &CalculationInput| matches!(input, CalculationInput::Payload(_));
        calculation
            .inputs
            .iter()
            .any(payload)
            .then_some(Obstacle::Payload)
    }

    /// Times and queue lengths always differ. A program that reads them at all has an obstacle, since they
    /// may leave with the packet.
    fn told_by_architecture(&mut self) {
        let program = self.program;
        let mut read = BTreeSet::new();
        for expr in &program.exprs {
            if let ExprKind::Field(field) = expr.kind {
                read.insert(field);
            }
        }
        for (role, field) in &program.standard.roles {
            let obstacle = match role {
                Role::EnqTimestamp | Role::IngressGlobalTimestamp | Role::EgressGlobalTimestamp => {
                    Obstacle::Time
                }
                Role::EnqQdepth | Role::DeqQdepth | Role::DeqTimedelta => Obstacle::Queue,
                Role::PacketLength => Obstacle::Length,
                _ => continue,
            };
            if read.contains(field) {
                self.result
                    .obstacles
                    .insert((obstacle, program.field_name(*field)));
            }
        }
    }
}

/// The bits of a constant that are also in a mask.
fn both(only: &Bits, mask: Option<&Mask>) -> Mask {
    match mask {
        Some(mask) => {
            let bytes = only
                .bytes()
                .iter()
                .zip(mask.bytes())
                .map(|(a, b)| a & b)
                .collect::<Vec<_>>();
            Bits::from_bytes(only.width(), &bytes)
        }
        None => only.clone(),
    }
}
