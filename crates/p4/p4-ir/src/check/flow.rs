//! Parser states, controls, the deparser.

use super::expr::Scope;
use super::structure::name;
use super::tables::key_match;
use super::{At, CheckError, CheckResult, Checker, Problem, get, other, within};
use crate::action::Op;
use crate::control::{Apply, Block, Control, Next};
use crate::expr::HeaderRef;
use crate::limits;
use crate::parser::{Emit, NextState, ParserOp, Pattern, Select, State, ValueSet};
use std::collections::HashSet;

impl Checker<'_> {
    /// Checks all states and value sets.
    pub(super) fn parser(&self) -> Result<(), CheckError> {
        for set in &self.program.value_sets {
            let bits = set
                .parts
                .iter()
                .map(|(_, width, _)| u64::from(*width))
                .sum::<u64>();
            within("parts", set.parts.len(), limits::KEYS)
                .and_then(|()| within("bits of all parts", bits, limits::KEY_BITS))
                .and_then(|()| within("members", set.size, limits::TABLE_SIZE))
                .and_then(|()| name(&set.identity.name))
                .and_then(|()| members(set))
                .at(|| format!("value set {:?}", set.identity.name))?;
        }
        let parser = &self.program.parser;
        if !parser.states.is_empty() {
            get(&parser.states, parser.start.index(), "parser state").at(|| "parser".to_owned())?;
        }
        for state in &parser.states {
            self.state(state)?;
        }
        Ok(())
    }

    fn state(&self, state: &State) -> Result<(), CheckError> {
        let place = || format!("parser state {:?}", state.name);
        name(&state.name).at(place)?;
        within("operations", state.ops.len(), limits::OPS_OF_ACTION).at(place)?;
        for (number, op) in state.ops.iter().enumerate() {
            self.parser_op(op)
                .at(|| format!("parser state {:?}, operation {number}", state.name))?;
        }
        self.select(&state.select)
            .at(|| format!("parser state {:?}, transition", state.name))
    }

    fn parser_op(&self, op: &ParserOp) -> CheckResult {
        match op {
            ParserOp::Extract(header) => self.extracted(*header, false),
            ParserOp::ExtractVariable(header, bits) => {
                self.extracted(*header, true)?;
                within(
                    "bits of a length",
                    self.bits("the length", *bits, Scope::Parser)?,
                    64u16,
                )
            }
            ParserOp::Advance(bits) => within(
                "bits of a length",
                self.bits("the length", *bits, Scope::Parser)?,
                64u16,
            ),
            ParserOp::Verify(condition, error) => {
                self.bool("the condition", *condition, Scope::Parser)?;
                self.bits("the error", *error, Scope::Parser).map(|_| ())
            }
            ParserOp::Do(
                Op::Jump(_)
                | Op::JumpUnless(..)
                | Op::Exit
                | Op::CloneIngress(..)
                | Op::CloneEgress(..)
                | Op::Resubmit(_)
                | Op::Recirculate(_)
                | Op::Digest(_)
                | Op::Truncate(_),
            ) => other("does what only actions may do"),
            ParserOp::Do(op) => self.op(op, Scope::Parser),
        }
    }

    fn extracted(&self, header: HeaderRef, variable: bool) -> CheckResult {
        if matches!(header, HeaderRef::Last(_) | HeaderRef::UnionLast(..)) {
            return other("extracts into the last element of a stack");
        }
        let ty = &self.program.header_types[self.no_metadata(header, Scope::Parser)?.index()];
        if ty.variable().is_some() != variable {
            return other(format!(
                "header type {:?} and the way it is extracted do not fit",
                ty.name
            ));
        }
        if !ty.fixed_bits().is_multiple_of(8) {
            return other(format!("header type {:?} is no whole number of bytes", ty.name));
        }
        Ok(())
    }

    fn select(&self, select: &Select) -> CheckResult {
        within("keys", select.keys.len(), limits::KEYS)?;
        within("cases", select.cases.len(), limits::SELECT_CASES)?;
        let mut width = 0;
        for key in &select.keys {
            width += u32::from(self.bits("a key", *key, Scope::Parser)?);
        }
        within("bits of all keys", width, limits::KEY_BITS)?;
        if width != u32::from(select.width) {
            return other(format!("keys have {width} bits, not {}", select.width));
        }
        for case in &select.cases {
            match &case.pattern {
                Pattern::Masked { value, mask } => {
                    let sane = [value, mask]
                        .iter()
                        .all(|bits| bits.width() == select.width && bits.is_canonical());
                    if !sane
                        || value
                            .bytes()
                            .iter()
                            .zip(mask.bytes())
                            .any(|(value, mask)| value & !mask != 0)
                    {
                        return other("a case does not fit the keys");
                    }
                }
                Pattern::ValueSet(set) => {
                    let set = get(&self.program.value_sets, set.index(), "value set")?;
                    if set
                        .parts
                        .iter()
                        .map(|(_, width, _)| u64::from(*width))
                        .sum::<u64>()
                        != u64::from(width)
                    {
                        return other(format!("value set {:?} does not fit the keys", set.identity.name));
                    }
                }
            }
            self.next_state(case.next)?;
        }
        self.next_state(select.default)
    }

    fn next_state(&self, next: NextState) -> CheckResult {
        match next {
            NextState::State(state) => {
                get(&self.program.parser.states, state.index(), "parser state").map(|_| ())
            }
            NextState::Accept | NextState::Reject => Ok(()),
        }
    }

    /// Checks a control: every successor has a higher number, so it ends.
    pub(super) fn control(&self, control: &Control) -> Result<(), CheckError> {
        for (number, block) in control.blocks.iter().enumerate() {
            self.block(control, number, block)
                .at(|| self.block_name(control, number))?;
        }
        Ok(())
    }

    fn block_name(&self, control: &Control, number: usize) -> String {
        match &control.blocks[number] {
            Block::If { name, .. } => format!("{}, condition {name:?}", control.name),
            Block::Apply(table, _) => {
                let table = self
                    .program
                    .tables
                    .get(table.index())
                    .map_or("?", |table| &table.identity.name);
                format!("{}, table {table:?}", control.name)
            }
            Block::Run(..) => format!("{}, block {number}", control.name),
        }
    }

    fn block(&self, control: &Control, number: usize, block: &Block) -> CheckResult {
        let next = |next: Next| match next {
            Next::End => Ok(()),
            Next::Block(to) => {
                get(&control.blocks, to.index(), "block")?;
                if to.index() > number {
                    return Ok(());
                }
                let from = u32::try_from(number).unwrap_or(u32::MAX);
                let to = u32::from(to.0);
                Err(Problem::Cycle { from, to })
            }
        };
        match block {
            Block::If {
                name: label,
                condition,
                then,
                otherwise,
            } => {
                name(label)?;
                self.bool("the condition", *condition, Scope::Control)?;
                next(*then)?;
                next(*otherwise)
            }
            Block::Run(action, to) => {
                let action = get(&self.program.actions, action.index(), "action")?;
                if !action.parameters.is_empty() {
                    return other("runs an action that has parameters");
                }
                next(*to)
            }
            Block::Apply(table, apply) => {
                let table = get(&self.program.tables, table.index(), "table")?;
                if matches!(apply, Apply::ByAction(each, _) if each.len() != table.actions.len()) {
                    return other("does not say for each action where to go");
                }
                match apply {
                    Apply::Always(to) => next(*to),
                    Apply::ByHit { hit, miss } => next(*hit).and_then(|()| next(*miss)),
                    Apply::ByAction(each, none) => each.iter().chain([none]).try_for_each(|to| next(*to)),
                }
            }
        }
    }

    /// Checks the deparser.
    pub(super) fn deparser(&self) -> Result<(), CheckError> {
        for (number, emit) in self.program.deparser.emits.iter().enumerate() {
            self.emit(*emit).at(|| format!("deparser, emit {number}"))?;
        }
        Ok(())
    }

    fn emit(&self, emit: Emit) -> CheckResult {
        let p = self.program;
        let whole = |ty: crate::ids::HeaderTypeId| {
            let ty = &p.header_types[ty.index()];
            if ty.fixed_bits().is_multiple_of(8) {
                return Ok(());
            }
            other(format!("header type {:?} is no whole number of bytes", ty.name))
        };
        let union = |ty: crate::ids::UnionTypeId| {
            let ty = get(&p.union_types, ty.index(), "union type")?;
            ty.members.iter().try_for_each(|(_, member)| whole(*member))
        };
        match emit {
            Emit::Header(header) => whole(self.no_metadata(HeaderRef::Header(header), Scope::Control)?),
            Emit::Stack(stack) => whole(get(&p.stacks, stack.index(), "stack")?.ty),
            Emit::Union(id) => union(get(&p.unions, id.index(), "union")?.ty),
            Emit::UnionStack(stack) => union(get(&p.union_stacks, stack.index(), "union stack")?.ty),
        }
    }
}

/// Checks the members of a value set.
fn members(set: &ValueSet) -> CheckResult {
    within("members", set.members.len(), set.size.min(limits::VALUE_SET))?;
    let mut seen = HashSet::new();
    for member in &set.members {
        if member.len() != set.parts.len() {
            return other("a member has not as many parts as the set");
        }
        for (matched, (name, width, kind)) in member.iter().zip(&set.parts) {
            key_match(matched, name, *width, *kind)?;
        }
        if !seen.insert(member) {
            return other("a member is there twice");
        }
    }
    Ok(())
}
