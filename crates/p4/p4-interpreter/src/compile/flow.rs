//! The parser and the controls.

use super::{ApplyCode, Compiler, Label, Mark, next_code};
use crate::bits::mask;
use crate::code::{Op, Pc, Resolve, SelectCode, SelectTable, Slow, WideOp};
use p4_ir::{
    ActionId, Apply, Bits, Block, Control, ExprId, ExprKind, HeaderRef, Implementation, Next, NextState,
    ParserOp, Pattern, Select, SelectCase, TableId,
};

/// Up to this many cases are compared one after the other in the code itself.
const CASES_IN_CODE: usize = 8;

impl Compiler<'_> {
    pub(super) fn parser(&mut self) {
        self.in_parser = true;
        let program = self.program;
        let states: Vec<Label> = program.parser.states.iter().map(|_| self.label()).collect();
        let (accept, reject) = (self.label(), self.label());
        let target = |next: NextState| match next {
            NextState::State(state) => states[state.index()],
            NextState::Accept => accept,
            NextState::Reject => reject,
        };
        match states.get(program.parser.start.index()) {
            Some(&start) => self.jump(start),
            None => self.jump(accept),
        }
        for (number, (state, &label)) in program.parser.states.iter().zip(&states).enumerate() {
            self.bind(label);
            self.emit(Op::State { state: number as u16 });
            for op in &state.ops {
                self.parser_op(op);
            }
            self.select(&state.select, target);
        }
        self.bind(reject);
        self.emit(Op::Fail {
            error: crate::engine::NO_MATCH,
        });
        self.bind(accept);
        self.emit(Op::Accept);
        self.in_parser = false;
    }

    fn parser_op(&mut self, op: &ParserOp) {
        match op {
            ParserOp::Extract(header) => self.extract(*header),
            ParserOp::ExtractVariable(header, bits) => {
                self.header_ref(*header, 0, true);
                self.number(*bits, 1);
                self.slow(Slow::ExtractVariable {
                    header: 0,
                    bits: 1,
                    advance: advance_of(*header),
                });
            }
            ParserOp::Advance(bits) => {
                self.number(*bits, 0);
                self.emit(Op::Advance { a: 0 });
            }
            ParserOp::Verify(condition, error) => {
                let (good, bad) = (self.label(), self.label());
                self.branch(*condition, good, bad);
                self.bind(bad);
                self.number(*error, 0);
                self.emit(Op::FailWith { a: 0 });
                self.bind(good);
            }
            ParserOp::Do(op) => self.operation(op),
        }
    }

    fn extract(&mut self, header: HeaderRef) {
        if let Some(header) = self.fixed_header(header)
            && self.is_plain(header)
        {
            let instance = &self.program.headers[header.index()];
            let bytes = self.program.header_types[instance.ty.index()].max_bits() / 8;
            return self.emit(Op::Extract {
                header,
                bytes: bytes as u16,
                at: instance.offset,
            });
        }
        self.header_ref(header, 0, true);
        self.slow(Slow::ExtractRef {
            header: 0,
            advance: advance_of(header),
        });
    }

    fn select(&mut self, select: &Select, target: impl Fn(NextState) -> Label) {
        let default = target(select.default);
        if select.cases.is_empty() || select.keys.is_empty() {
            self.look_ahead(&select.keys);
            return self.jump(default);
        }
        if select.width > 64 {
            return self.wide_select(select, target);
        }
        self.select_key(&select.keys);
        let masked = |pattern: &Pattern| match pattern {
            Pattern::Masked { value, mask } => Some((value.to_u64()?, mask.to_u64()?)),
            Pattern::ValueSet(_) => None,
        };
        let cases: Option<Vec<_>> = select.cases.iter().map(|case| masked(&case.pattern)).collect();
        match cases {
            Some(cases) if cases.len() <= CASES_IN_CODE => {
                let all = mask(u32::from(select.width));
                for ((value, mask), case) in cases.into_iter().zip(&select.cases) {
                    let pc = target(case.next).0;
                    let a = if mask == all { 0 } else { 1 };
                    if a == 1 {
                        self.emit(Op::AndConst {
                            to: 1,
                            a: 0,
                            value: mask,
                        });
                    }
                    self.emit(Op::JumpIfEqual { a, pc, value });
                }
                self.jump(default);
            }
            _ => self.select_from_table(select, target),
        }
    }

    /// Puts the keys one behind the other into register 0.
    fn select_key(&mut self, keys: &[ExprId]) {
        self.value(keys[0], 0);
        for &key in &keys[1..] {
            self.value(key, 1);
            let low = self.width(key) as u8;
            self.emit(Op::Concat {
                to: 0,
                a: 0,
                b: 1,
                low,
            });
        }
    }

    fn select_from_table(&mut self, select: &Select, target: impl Fn(NextState) -> Label) {
        self.value_set_key(select);
        self.end_with_cases(select, target, |value, mask, pc| SelectCode::Masked {
            value: value.to_u64().unwrap_or(0),
            mask: mask.to_u64().unwrap_or(0),
            pc,
        });
    }

    /// Ends with a select whose cases are tried in turn. `masked` is the code of a value under a mask, which
    /// goes on at a place.
    fn end_with_cases(
        &mut self,
        select: &Select,
        target: impl Fn(NextState) -> Label,
        masked: impl Fn(&Bits, &Bits, Pc) -> SelectCode,
    ) {
        let cases = select.cases.iter().map(|case| {
            let pc = target(case.next).0;
            match &case.pattern {
                Pattern::Masked { value, mask } => masked(value, mask, pc),
                Pattern::ValueSet(set) => SelectCode::Set { set: *set, pc },
            }
        });
        let cases = cases.collect();
        self.end_select(SelectTable {
            cases,
            default: target(select.default).0,
        });
    }

    /// Evaluates keys without cases, which end the parser if the packet, or a stack, ends before them.
    fn look_ahead(&mut self, keys: &[ExprId]) {
        for &key in keys {
            let mut may_fail = false;
            self.program.for_each_node(key, &mut |_, kind| {
                may_fail |= matches!(
                    kind,
                    ExprKind::Lookahead { .. }
                        | ExprKind::Member(..)
                        | ExprKind::HeadersEqual(..)
                        | ExprKind::VariablesEqual(..)
                );
            });
            if may_fail {
                self.number(key, 0);
            }
        }
    }

    fn wide_select(&mut self, select: &Select, target: impl Fn(NextState) -> Label) {
        self.value_set_key(select);
        // Right-aligned in whole bytes, as patterns are.
        self.emit(Op::Gather);
        let pad = (8 - select.width % 8) % 8;
        if pad > 0 {
            self.emit(Op::Const { to: 0, value: 0 });
            self.emit(Op::GatherValue {
                from: 0,
                width: pad as u8,
            });
        }
        for &key in &select.keys {
            self.gather_value(key);
        }
        self.end_with_cases(select, target, |value, mask, pc| SelectCode::WideMasked {
            value: value.bytes().into(),
            mask: mask.bytes().into(),
            pc,
        });
    }

    /// Puts the keys one behind the other into the look-up key, laid out as all value sets of this select
    /// have it, if there are any.
    fn value_set_key(&mut self, select: &Select) {
        let is_set = |case: &SelectCase| matches!(case.pattern, Pattern::ValueSet(_));
        if !select.cases.iter().any(is_set) {
            return;
        }
        // Registers 0 and 1 may hold the joined keys, so this uses the registers behind them.
        let fields: Vec<_> = select
            .keys
            .iter()
            .map(|&key| p4_tables::KeyField {
                kind: p4_tables::MatchKind::Exact,
                width: self.width(key),
            })
            .collect();
        let Ok(layout) = p4_tables::KeyLayout::new(&fields) else {
            self.error = Some(crate::error::Error::TooLarge { what: "value set" });
            return;
        };
        self.key(&select.keys, &layout, 2);
    }

    fn end_select(&mut self, table: SelectTable) {
        let select = self.code.selects.len() as u16;
        self.code.selects.push(table);
        self.emit(Op::Select { a: 0, select });
    }

    /// Fills the look-up key.
    fn key(&mut self, values: &[p4_ir::ExprId], layout: &p4_tables::KeyLayout, free: usize) {
        let mut begun = vec![false; layout.words()];
        for (&value, place) in values.iter().zip(layout.places()) {
            if place.width > 64 {
                let top = self.wide_top;
                let a = self.wide(value, free);
                self.wide_op(WideOp::Key {
                    a,
                    word: place.word as u8,
                });
                self.wide_top = top;
                continue;
            }
            self.value(value, free);
            let from = self.reg(free);
            let (word, shift) = (place.word as u8, place.shift as u8);
            self.emit(match std::mem::replace(&mut begun[place.word], true) {
                false => Op::KeySet { from, word, shift },
                true => Op::KeyAdd { from, word, shift },
            });
        }
    }

    pub(super) fn control(&mut self, control: &Control, egress: bool) {
        let blocks: Vec<Label> = control.blocks.iter().map(|_| self.label()).collect();
        let end = self.label();
        let target = |next: Next| match next {
            Next::Block(block) => blocks[block.index()],
            Next::End => end,
        };
        for (number, (block, &label)) in control.blocks.iter().zip(&blocks).enumerate() {
            self.bind(label);
            match block {
                Block::If {
                    condition,
                    then,
                    otherwise,
                    ..
                } => {
                    let (yes, no) = (self.label(), self.label());
                    self.branch(*condition, yes, no);
                    for (label, taken, next) in [(yes, true, then), (no, false, otherwise)] {
                        self.bind(label);
                        self.mark(Mark::Branch {
                            egress,
                            block: number as u16,
                            taken,
                        });
                        self.jump(target(*next));
                    }
                }
                Block::Apply(table, apply) => self.apply(*table, apply, |next| target(next).0),
                Block::Run(action, next) => self.run(*action, target(*next)),
            }
        }
        self.bind(end);
        self.emit(Op::End);
    }

    fn run(&mut self, action: ActionId, back: Label) {
        self.mark(Mark::Run(action));
        let pc = self.code.actions[action.index()];
        self.emit(Op::Call { pc, back: back.0 });
    }

    fn apply(&mut self, id: TableId, apply: &Apply, target: impl Fn(Next) -> u32) {
        let program = self.program;
        let layouts = self.layouts;
        let table = &program.tables[id.index()];
        let values: Vec<_> = table.keys.iter().map(|key| key.value).collect();
        self.key(&values, &layouts[id.index()], 0);
        let selector = match table.implementation {
            Implementation::Profile(profile) => program.profiles[profile.index()].selector,
            Implementation::Direct => None,
        };
        if let Some(selector) = selector {
            self.calculate(selector.calculation);
        }
        let number = self.code.applies.len() as u16;
        let next = next_code(table, apply, target);
        let words = layouts[id.index()].words();
        self.code.applies.push(ApplyCode {
            table: id,
            words,
            next,
            selector: selector.is_some(),
        });
        self.emit(Op::Apply { apply: number });
    }
}

/// The stack whose next index moves on after an extraction.
fn advance_of(header: HeaderRef) -> Option<Resolve> {
    match header {
        HeaderRef::Next(stack) => Some(Resolve::Next(stack)),
        HeaderRef::UnionNext(stack, member) => Some(Resolve::UnionNext(stack, member)),
        _ => None,
    }
}
