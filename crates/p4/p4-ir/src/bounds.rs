//! The highest cost of one packet, proven from the program alone.
//!
//! Controls have no cycles, so their cost is that of the costliest path. Actions may have loops: the number
//! of their turns is chosen so that a pass stays within [`limits::OPERATIONS`]. Parsers may have loops. A
//! loop in which each iteration extracts into a stack ends when the stack is full. The engine ends other
//! loops after [`limits::PARSER_STEPS`]; but one that provably changes nothing from one iteration to the
//! next is refused, for it can only be meant to burn time.

use crate::action::Op;
use crate::check::{At, CheckError, CheckResult, Problem, within};
use crate::control::{Apply, Block, Control, Next};
use crate::expr::{ExprKind, HeaderRef, Place, Type};
use crate::ids::{CalculationId, ExprId, FieldId, StackId, StateId};
use crate::limits;
use crate::parser::{Emit, NextState, ParserOp, State};
use crate::program::{Bounds, Program};
use std::collections::{BTreeMap, BTreeSet};

/// Computes the bounds of a program that is otherwise sound. `costs` has one number per node of the arena.
pub(crate) fn bounds(program: &Program, costs: &[u32]) -> Result<Bounds, CheckError> {
    let mut cost = Cost {
        program,
        costs,
        calculations: Vec::new(),
    };
    let all = (0..program.calculations.len()).filter_map(CalculationId::at);
    cost.calculations = all.map(|id| cost.calculated(id)).collect();
    within("work of all operations", cost.all(), limits::WORK).at(|| "program".to_owned())?;
    let path = parser(program, &cost)?;
    let straight = cost.pass().saturating_add(path.cost);
    // A turn in ingress and one in egress.
    let turn = cost.costliest_turn().saturating_mul(2);
    let spare = u64::from(limits::OPERATIONS).saturating_sub(straight);
    let loop_turns = spare
        .checked_div(turn)
        .map_or(0, |turns| turns.clamp(1, limits::LOOP_TURNS.into()));
    let operations = straight.saturating_add(turn.saturating_mul(loop_turns));
    let grown = grown(program);
    let metadata_bits = metadata_bits(program);
    within("bits of metadata", metadata_bits, limits::METADATA_BITS)
        .and_then(|()| within("operations of one pass", operations, limits::OPERATIONS))
        .at(|| "program".to_owned())?;
    within("bytes added to a packet", grown, limits::HEADER_BYTES_GROWN).at(|| "deparser".to_owned())?;
    let again = |op: &Op| matches!(op, Op::Resubmit(_) | Op::Recirculate(_));
    let passes = if program.actions.iter().flat_map(|action| &action.ops).any(again) {
        limits::PASSES
    } else {
        1
    };
    Ok(Bounds {
        header_bytes_read: u32::try_from(path.bits.div_ceil(8))
            .unwrap_or(u32::MAX)
            .min(limits::HEADER_BYTES_READ),
        header_bytes_grown: u32::try_from(grown).unwrap_or(u32::MAX),
        parser_steps: path.steps.min(limits::PARSER_STEPS),
        loop_turns: u32::try_from(loop_turns).unwrap_or(u32::MAX),
        operations: u32::try_from(operations).unwrap_or(u32::MAX),
        passes,
        metadata_bits,
    })
}

/// Costs of operations and controls.
struct Cost<'a> {
    program: &'a Program,
    costs: &'a [u32],
    /// One per calculation.
    calculations: Vec<u64>,
}

impl Cost<'_> {
    fn expr(&self, id: ExprId) -> u64 {
        u64::from(self.costs[id.index()])
    }

    /// Words of a header that is copied.
    fn header(&self, header: HeaderRef) -> u64 {
        let mut bits = 0;
        self.program.for_each_header(header, |id| {
            bits = bits.max(self.program.header_type(id).max_bits())
        });
        1 + u64::from(bits.div_ceil(64))
    }

    fn union(&self, ty: crate::ids::UnionTypeId) -> u64 {
        let members = &self.program.union_types[ty.index()].members;
        let words = |ty: &crate::ids::HeaderTypeId| {
            1 + u64::from(self.program.header_types[ty.index()].max_bits().div_ceil(64))
        };
        members.iter().map(|(_, ty)| words(ty)).sum()
    }

    fn stack(&self, stack: StackId) -> u64 {
        u64::from(self.program.stacks[stack.index()].size) * self.header(HeaderRef::Last(stack))
    }

    fn calculation(&self, id: CalculationId) -> u64 {
        self.calculations[id.index()]
    }

    fn calculated(&self, id: CalculationId) -> u64 {
        use crate::externs::CalculationInput as Input;
        let inputs = &self.program.calculations[id.index()].inputs;
        let input = |input: &Input| match input {
            Input::Field(field) => 1 + u64::from(self.program.fields[field.index()].width).div_ceil(64),
            Input::Value(value) => self.expr(*value),
            Input::Header(header) => self.header(HeaderRef::Header(*header)),
            // Most words of headers in front of the payload; the packet's length bounds the payload itself.
            Input::Payload(_) => u64::from(limits::HEADER_BYTES_READ / 8),
        };
        inputs.iter().map(input).sum()
    }

    fn op(&self, op: &Op) -> u64 {
        let mut cost = 1;
        op.for_each_expr(|expr| cost += self.expr(expr));
        cost + match op {
            Op::CopyHeader(to, _) | Op::SetValid(to) => self.header(*to),
            Op::CopyStack(stack, _) | Op::Push(stack, _) | Op::Pop(stack, _) => self.stack(*stack),
            Op::CopyUnion(union, _) => self.union(self.program.unions[union.index()].ty),
            Op::CopyUnionStack(stack, _) | Op::PushUnion(stack, _) | Op::PopUnion(stack, _) => {
                let stack = &self.program.union_stacks[stack.index()];
                u64::from(stack.size) * self.union(stack.ty)
            }
            Op::Hash { calculation, .. } => self.calculation(*calculation),
            Op::Digest(digest) => self.program.digests[digest.index()]
                .items
                .iter()
                .map(|item| self.expr(item.value))
                .sum(),
            Op::Assign(..)
            | Op::CopyVariable(..)
            | Op::SetInvalid(_)
            | Op::Jump(_)
            | Op::JumpUnless(..)
            | Op::Count(..)
            | Op::Meter { .. }
            | Op::RegisterRead(..)
            | Op::RegisterWrite(..)
            | Op::Random(..)
            | Op::CloneIngress(..)
            | Op::CloneEgress(..)
            | Op::Resubmit(_)
            | Op::Recirculate(_)
            | Op::Truncate(_)
            | Op::MarkToDrop
            | Op::Exit
            | Op::Assert(_)
            | Op::Log(..)
            | Op::Extern(..) => 0,
        }
    }

    /// All operations, on one path or not, and the headers that each could mean: the number of steps that it
    /// takes to look at the program once.
    fn all(&self) -> u64 {
        let in_parser = self.program.parser.states.iter().flat_map(|state| &state.ops);
        let in_parser = in_parser.filter_map(|op| if let ParserOp::Do(op) = op { Some(op) } else { None });
        let all = self
            .program
            .actions
            .iter()
            .flat_map(|action| &action.ops)
            .chain(in_parser);
        all.map(|op| self.op(op) + self.span(op)).sum()
    }

    /// Number of headers that an operation could mean.
    fn span(&self, op: &Op) -> u64 {
        let of = |header: &HeaderRef| match *header {
            HeaderRef::Header(_) => 1,
            HeaderRef::Next(stack) | HeaderRef::Last(stack) | HeaderRef::Element(stack, _) => {
                u64::from(self.program.stacks[stack.index()].size)
            }
            HeaderRef::UnionElement(stack, ..)
            | HeaderRef::UnionNext(stack, _)
            | HeaderRef::UnionLast(stack, _) => u64::from(self.program.union_stacks[stack.index()].size),
        };
        match op {
            Op::SetValid(header) | Op::SetInvalid(header) => of(header),
            Op::CopyHeader(to, from) => of(to) + of(from),
            op => match op.written() {
                Some(Place::Member(header, _)) => of(&header),
                _ => 0,
            },
        }
    }

    /// One pass: checksums, ingress, egress.
    fn pass(&self) -> u64 {
        let actions = self
            .program
            .actions
            .iter()
            .map(|action| action.ops.iter().map(|op| self.op(op)).sum::<u64>())
            .collect::<Vec<_>>();
        let checksums = self.program.checksums.iter().map(|checksum| {
            let times = u64::from(checksum.verify) + u64::from(checksum.update);
            let condition = checksum.condition.map_or(0, |condition| self.expr(condition));
            times * (1 + condition + self.calculation(checksum.calculation))
        });
        checksums.sum::<u64>()
            + self.control(&self.program.ingress, &actions)
            + self.control(&self.program.egress, &actions)
    }

    /// The highest cost of what an action does between two jumps back; 0 without such jumps.
    fn costliest_turn(&self) -> u64 {
        let loops = |action: &&crate::action::Action| {
            let mut ops = action.ops.iter().enumerate();
            ops.any(|(number, op)| op.jumps_back_from(number))
        };
        let cost = |action: &crate::action::Action| action.ops.iter().map(|op| self.op(op)).sum();
        self.program
            .actions
            .iter()
            .filter(loops)
            .map(cost)
            .max()
            .unwrap_or(0)
    }

    /// The cost of a control's costliest path, computed from the end: successors have higher numbers.
    fn control(&self, control: &Control, actions: &[u64]) -> u64 {
        let mut from = vec![0u64; control.blocks.len()];
        for (number, block) in control.blocks.iter().enumerate().rev() {
            let next = |next: &Next| match next {
                Next::Block(block) => from[block.index()],
                Next::End => 0,
            };
            from[number] = match block {
                Block::If {
                    condition,
                    then,
                    otherwise,
                    ..
                } => 1 + self.expr(*condition) + next(then).max(next(otherwise)),
                Block::Run(action, to) => actions[action.index()] + next(to),
                Block::Apply(table, apply) => {
                    let table = &self.program.tables[table.index()];
                    let keys = table.keys.iter().map(|key| self.expr(key.value)).sum::<u64>();
                    let run = table
                        .actions
                        .iter()
                        .map(|action| actions[action.action.index()])
                        .max()
                        .unwrap_or(0);
                    let to = match apply {
                        Apply::Always(to) => next(to),
                        Apply::ByHit { hit, miss } => next(hit).max(next(miss)),
                        Apply::ByAction(each, none) => {
                            each.iter().map(next).max().unwrap_or(0).max(next(none))
                        }
                    };
                    (1 + keys + run).saturating_add(to)
                }
            };
        }
        from.first().copied().unwrap_or(0)
    }
}

/// Bytes by which a packet may become longer: those of headers that are emitted without having been
/// extracted.
fn grown(program: &Program) -> u64 {
    let mut made = vec![false; program.headers.len()];
    let parser_ops = program.parser.states.iter().flat_map(|state| &state.ops);
    let in_parser = parser_ops.filter_map(|op| if let ParserOp::Do(op) = op { Some(op) } else { None });
    for op in program
        .actions
        .iter()
        .flat_map(|action| &action.ops)
        .chain(in_parser)
    {
        program.for_each_made_valid(op, |header| made[header.index()] = true);
    }
    let mut emitted = vec![false; program.headers.len()];
    let mut bytes = 0u64;
    let mut emit = |header: crate::ids::HeaderId| {
        if made[header.index()] || emitted[header.index()] {
            bytes += u64::from(program.header_type(header).max_bits()).div_ceil(8);
        }
        emitted[header.index()] = true;
    };
    for emitted in &program.deparser.emits {
        match emitted {
            Emit::Header(header) => emit(*header),
            Emit::Stack(stack) => program.for_each_header(HeaderRef::Last(*stack), &mut emit),
            // At most one member of a union leaves; the sum of all members is a sufficient upper bound.
            Emit::Union(union) => program.for_each_member(crate::expr::UnionRef::Union(*union), &mut emit),
            Emit::UnionStack(stack) => {
                let stack = &program.union_stacks[stack.index()];
                for i in 0..stack.size {
                    let union = crate::ids::UnionId(stack.first.0 + i);
                    program.for_each_member(crate::expr::UnionRef::Union(union), &mut emit);
                }
            }
        }
    }
    bytes
}

/// The highest cost of a path through the parser.
#[derive(Debug, Clone, Copy, Default)]
struct Path {
    steps: u32,
    /// Bits looked at.
    bits: u64,
    cost: u64,
}

impl Path {
    /// The most of either way.
    fn or(self, other: Path) -> Path {
        Path {
            steps: self.steps.max(other.steps),
            bits: self.bits.max(other.bits),
            cost: self.cost.max(other.cost),
        }
    }

    /// A way, followed by the one beyond. States of the first look `ahead` by so many bits, counted from
    /// their beginning; in a loop, that may be where the loop ends.
    fn then(self, beyond: Path, ahead: u64, looped: bool) -> Path {
        Path {
            steps: self.steps.saturating_add(beyond.steps),
            bits: if looped {
                self.bits.saturating_add(beyond.bits.max(ahead))
            } else {
                self.bits.saturating_add(beyond.bits).max(ahead)
            },
            cost: self.cost.saturating_add(beyond.cost),
        }
    }
}

/// The cost of one state.
#[derive(Default)]
struct Weight {
    /// Most bits that the state takes from the packet.
    taken: u64,
    /// Of those, the bits of extracted headers; skipped bits may depend on a length in the packet.
    certain: u64,
    /// Most bits that it looks at, counted from its beginning.
    ahead: u64,
    cost: u64,
    /// Stacks whose next element the state extracts, each with the bits of an element.
    stacks: Vec<(StackOf, u64)>,
}

impl Weight {
    /// The way through the state, once.
    fn alone(&self) -> Path {
        Path {
            steps: 1,
            bits: self.taken,
            cost: self.cost,
        }
    }

    fn extract(&mut self, program: &Program, header: HeaderRef) {
        let mut bits = 0;
        program.for_each_header(header, |id| {
            bits = bits.max(u64::from(program.header_type(id).max_bits()))
        });
        self.taken = self.taken.saturating_add(bits);
        self.certain += bits;
        match header {
            HeaderRef::Next(stack) => self.stacks.push((StackOf::Headers(stack.0), bits)),
            HeaderRef::UnionNext(stack, _) => self.stacks.push((StackOf::Unions(stack.0), bits)),
            _ => {}
        }
    }

    /// Notes how far an expression looks ahead of what was taken so far.
    fn look_ahead(&mut self, program: &Program, expr: ExprId) {
        let taken = self.taken;
        program.for_each_node(expr, &mut |id, kind| {
            if let (ExprKind::Lookahead { offset }, Type::Bits(width)) = (kind, program.exprs[id.index()].ty)
            {
                let end = taken.saturating_add(u64::from(*offset) + u64::from(width));
                self.ahead = self.ahead.max(end);
            }
        });
    }
}

/// A stack of headers or of unions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum StackOf {
    Headers(u16),
    Unions(u16),
}

fn metadata_bits(program: &Program) -> u32 {
    let metadata = program.headers.iter().filter(|header| header.metadata);
    metadata
        .map(|header| program.header_types[header.ty.index()].max_bits())
        .sum()
}

/// Checks what packets certainly take from a state on: bits and states.
fn within_limits((bits, states): (u64, u32)) -> CheckResult {
    within("bytes read from here on", bits / 8, limits::HEADER_BYTES_READ)?;
    within("states from here on", states, limits::PARSER_STEPS)
}

fn parser(program: &Program, cost: &Cost) -> Result<Path, CheckError> {
    let states = &program.parser.states;
    if states.is_empty() {
        return Ok(Path::default());
    }
    let successors = states.iter().map(successors).collect::<Vec<_>>();
    let mut paths = vec![Path::default(); states.len()];
    // Most bits and states of a path, counted only in states outside of loops.
    let mut certain = vec![(0u64, 0u32); states.len()];
    let mut member = vec![usize::MAX; states.len()];
    for (number, component) in components(&successors, program.parser.start.index())
        .into_iter()
        .enumerate()
    {
        component.iter().for_each(|&state| member[state] = number);
        let mut beyond = Path::default();
        let mut certainly = (0, 0);
        for &state in &component {
            for &next in successors[state].iter().filter(|&&next| member[next] != number) {
                beyond = beyond.or(paths[next]);
                certainly = (certainly.0.max(certain[next].0), certainly.1.max(certain[next].1));
            }
        }
        let weights = component
            .iter()
            .map(|&state| weight(program, cost, &states[state]))
            .collect::<Vec<_>>();
        let looped = component.len() > 1 || successors[component[0]].contains(&component[0]);
        let own = if looped {
            endless(program, &component, &successors)?;
            turns(program, &component, &successors, &weights)
        } else {
            certainly = (certainly.0 + weights[0].certain, certainly.1 + 1);
            weights[0].alone()
        };
        let ahead = weights.iter().map(|weight| weight.ahead).max().unwrap_or(0);
        let path = own.then(beyond, ahead, looped);
        for &state in &component {
            paths[state] = path;
            certain[state] = certainly;
        }
        within_limits(certainly).at(|| format!("parser state {:?}", states[component[0]].name))?;
    }
    Ok(paths[program.parser.start.index()])
}

fn successors(state: &State) -> Vec<usize> {
    let all = state
        .select
        .cases
        .iter()
        .map(|case| case.next)
        .chain([state.select.default]);
    let numbers = all.filter_map(|next| {
        if let NextState::State(StateId(id)) = next {
            Some(id.into())
        } else {
            None
        }
    });
    numbers.collect::<BTreeSet<usize>>().into_iter().collect()
}

/// Strongly connected components of what can be reached, successors before predecessors (Tarjan 1972, without
/// recursion).
fn components(successors: &[Vec<usize>], start: usize) -> Vec<Vec<usize>> {
    const NEW: usize = usize::MAX;
    let mut number = vec![NEW; successors.len()];
    let mut low = vec![0; successors.len()];
    let mut open = vec![false; successors.len()];
    let (mut stack, mut found, mut counter) = (Vec::new(), Vec::new(), 0);
    let mut work = vec![(start, 0)];
    while let Some((state, child)) = work.pop() {
        if child == 0 {
            (number[state], low[state], open[state]) = (counter, counter, true);
            counter += 1;
            stack.push(state);
        }
        if let Some(&next) = successors[state].get(child) {
            work.push((state, child + 1));
            if number[next] == NEW {
                work.push((next, 0));
            } else if open[next] {
                low[state] = low[state].min(number[next]);
            }
            continue;
        }
        if let Some(&(parent, _)) = work.last() {
            low[parent] = low[parent].min(low[state]);
        }
        if low[state] == number[state] {
            let at = stack.iter().rposition(|&other| other == state).unwrap_or(0);
            let component = stack.split_off(at);
            component.iter().for_each(|&member| open[member] = false);
            found.push(component);
        }
    }
    found
}

fn weight(program: &Program, cost: &Cost, state: &State) -> Weight {
    let mut weight = Weight {
        cost: 1,
        ..Weight::default()
    };
    for op in &state.ops {
        op.for_each_expr(|expr| {
            weight.cost += cost.expr(expr);
            weight.look_ahead(program, expr);
        });
        match op {
            ParserOp::Extract(header) | ParserOp::ExtractVariable(header, _) => {
                weight.extract(program, *header);
                weight.cost += cost.header(*header);
            }
            ParserOp::Advance(bits) => {
                let expr = &program.exprs[bits.index()];
                let most = match (expr.kind, expr.ty) {
                    (ExprKind::Constant(bits), _) => bits,
                    (_, Type::Bits(width @ 0..=32)) => (1 << width) - 1,
                    _ => u64::from(u32::MAX),
                };
                weight.taken = weight.taken.saturating_add(most);
            }
            ParserOp::Verify(..) => {}
            ParserOp::Do(op) => weight.cost += cost.op(op),
        }
    }
    for key in &state.select.keys {
        weight.cost += cost.expr(*key);
        weight.look_ahead(program, *key);
    }
    weight.cost += state.select.cases.len() as u64;
    weight
}

/// The cost of a loop in all its iterations.
fn turns(program: &Program, component: &[usize], successors: &[Vec<usize>], weights: &[Weight]) -> Path {
    let stacking = |at: usize| !weights[at].stacks.is_empty();
    let rest = (0..component.len())
        .filter(|&at| !stacking(at))
        .map(|at| component[at])
        .collect::<Vec<_>>();
    let states = u32::try_from(component.len()).unwrap_or(u32::MAX);
    let costliest = weights.iter().map(|weight| weight.cost).max().unwrap_or(0);
    if cycle(&rest, successors).is_some() {
        let is_still = weights.iter().all(|weight| weight.taken == 0);
        return Path {
            steps: limits::PARSER_STEPS,
            bits: if is_still { 0 } else { u64::MAX / 2 },
            cost: costliest.saturating_mul(limits::PARSER_STEPS.into()),
        };
    }
    let mut stacks = BTreeMap::new();
    for (stack, bits) in weights.iter().flat_map(|weight| &weight.stacks) {
        let most = stacks.entry(*stack).or_insert(0u64);
        *most = (*most).max(*bits);
    }
    let size = |stack: StackOf| match stack {
        StackOf::Headers(id) => u64::from(program.stacks[usize::from(id)].size),
        StackOf::Unions(id) => u64::from(program.union_stacks[usize::from(id)].size),
    };
    let turns = 1 + stacks.keys().map(|stack| size(*stack)).sum::<u64>();
    let in_stacks = stacks
        .iter()
        .map(|(stack, bits)| size(*stack).saturating_mul(*bits))
        .sum::<u64>();
    let stacked = |weight: &Weight| weight.stacks.iter().map(|(_, bits)| bits).sum();
    let besides = |weight: &Weight| weight.taken.saturating_sub(stacked(weight));
    let per_turn = weights.iter().map(besides).fold(0, u64::saturating_add);
    let steps = u32::try_from(turns).unwrap_or(u32::MAX).saturating_mul(states);
    let steps = steps.min(limits::PARSER_STEPS);
    Path {
        steps,
        bits: in_stacks.saturating_add(turns.saturating_mul(per_turn)),
        cost: costliest.saturating_mul(steps.into()),
    }
}

/// Refuses a loop of states that take nothing from the packet and compute the same values in each iteration.
fn endless(program: &Program, component: &[usize], successors: &[Vec<usize>]) -> Result<(), CheckError> {
    let states = &program.parser.states;
    let inert = component
        .iter()
        .copied()
        .filter(|&state| only_sets_fields(&states[state]))
        .collect::<Vec<_>>();
    let Some(turning) = cycle(&inert, successors) else {
        return Ok(());
    };
    if !reaches_fixed_point(program, &inert) {
        return Ok(());
    }
    let names = turning
        .iter()
        .map(|&state| format!("{:?}", states[state].name))
        .collect::<Vec<_>>();
    let problem: CheckResult = Err(Problem::Endless(format!(
        "{} take nothing of the packet",
        names.join(", ")
    )));
    problem.at(|| format!("parser state {:?}", states[turning[0]].name))
}

/// Whether a state takes nothing from the packet and only sets fixed fields or verifies conditions.
fn only_sets_fields(state: &State) -> bool {
    state.ops.iter().all(|op| {
        matches!(
            op,
            ParserOp::Do(Op::Assign(Place::Field(_), _)) | ParserOp::Verify(..)
        )
    })
}

/// Whether the fields that these states set reach a fixed point, as no field depends on itself, directly or
/// through others.
fn reaches_fixed_point(program: &Program, component: &[usize]) -> bool {
    let mut reads = BTreeMap::<FieldId, BTreeSet<FieldId>>::new();
    for op in component
        .iter()
        .flat_map(|&state| &program.parser.states[state].ops)
    {
        if let ParserOp::Do(Op::Assign(Place::Field(to), value)) = op {
            let from = reads.entry(*to).or_default();
            program.for_each_node(*value, &mut |_, kind| {
                if let ExprKind::Field(field) = kind {
                    from.insert(*field);
                }
            });
        }
    }
    // Removes fields that depend on none of the remaining ones, until none is left or the remaining ones form
    // a cycle.
    loop {
        let left = reads.keys().copied().collect::<BTreeSet<_>>();
        let before = reads.len();
        reads.retain(|_, from| !from.is_disjoint(&left));
        if reads.is_empty() {
            return true;
        }
        if reads.len() == before {
            return false;
        }
    }
}

/// The states among these from which a cycle of them can be reached, if there is one: those that remain when
/// states without successors are removed repeatedly.
fn cycle(among: &[usize], successors: &[Vec<usize>]) -> Option<Vec<usize>> {
    let place = among
        .iter()
        .enumerate()
        .map(|(at, &state)| (state, at))
        .collect::<BTreeMap<_, _>>();
    let mut predecessors = vec![Vec::new(); among.len()];
    let mut left = vec![0usize; among.len()];
    for (at, &state) in among.iter().enumerate() {
        for &next in successors[state].iter().filter_map(|next| place.get(next)) {
            predecessors[next].push(at);
            left[at] += 1;
        }
    }
    let mut ended = (0..among.len()).filter(|&at| left[at] == 0).collect::<Vec<_>>();
    while let Some(at) = ended.pop() {
        for &before in &predecessors[at] {
            left[before] -= 1;
            if left[before] == 0 {
                ended.push(before);
            }
        }
    }
    let turning = (0..among.len())
        .filter(|&at| left[at] > 0)
        .map(|at| among[at])
        .collect::<Vec<_>>();
    (!turning.is_empty()).then_some(turning)
}
