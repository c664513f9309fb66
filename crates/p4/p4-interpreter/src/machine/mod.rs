//! Executes flat code on one packet.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the loop, and the operations that most packets need |
//! | `slow.rs` | the other operations |
//! | `headers.rs` | validity, stacks, unions, extraction |
//! | `wide.rs` | values of more than 64 bits |
//! | `gather.rs` | hash inputs and hashes |
//!
//! One loop, no recursion: entering an action sets the return address, and one is enough because actions do
//! not call each other. Nothing here allocates or can fail otherwise than by ending the parser.

mod gather;
mod headers;
mod slow;
mod wide;

use crate::bits::{self, mask};
use crate::code::{Cast, NO_HEADER, Op, Pc, SelectCode, Size};
use crate::compile::{ApplyCode, NextCode};
use crate::context::Context;
use crate::engine::{Cell, Engine, PACKET_TOO_SHORT, PARSER_INVALID_ARGUMENT, PARSER_TIMEOUT};
use crate::observe::{Lookup, Observer, View};
use crate::packet::Packet;
use crate::state::State;
use p4_ir::ActionId;

/// How a piece of code ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// At its end, or by `exit`.
    Normally,
    /// With a parser error, in [`Context::parser_error`].
    Failed,
    /// By a loop that would take more turns than are left.
    Exhausted,
}

pub(crate) struct Machine<'a, O> {
    pub engine: &'a Engine,
    pub state: &'a State,
    pub tables: &'a crate::tables::TablesReadGuard<'a>,
    pub ctx: &'a mut Context,
    pub packet: &'a Packet<'a>,
    pub observer: &'a mut O,
    /// Nanoseconds since the start.
    pub now: u64,
}

#[inline]
fn chunk<const N: usize>(bytes: &[u8], at: u32) -> [u8; N] {
    bytes
        .get(at as usize..)
        .and_then(|bytes| bytes.first_chunk())
        .copied()
        .unwrap_or([0; N])
}

#[inline]
fn put<const N: usize>(bytes: &mut [u8], at: u32, value: [u8; N]) {
    if let Some(to) = bytes
        .get_mut(at as usize..)
        .and_then(|bytes| bytes.first_chunk_mut())
    {
        *to = value;
    }
}

#[inline]
pub(crate) fn load(phv: &[u8], size: Size, at: u32) -> u64 {
    match size {
        Size::One => u64::from(chunk::<1>(phv, at)[0]),
        Size::Two => u64::from(u16::from_be_bytes(chunk(phv, at))),
        Size::Four => u64::from(u32::from_be_bytes(chunk(phv, at))),
        Size::Eight => u64::from_be_bytes(chunk(phv, at)),
    }
}

#[inline]
pub(crate) fn store(phv: &mut [u8], size: Size, at: u32, value: u64) {
    match size {
        Size::One => put(phv, at, [value as u8]),
        Size::Two => put(phv, at, (value as u16).to_be_bytes()),
        Size::Four => put(phv, at, (value as u32).to_be_bytes()),
        Size::Eight => put(phv, at, value.to_be_bytes()),
    }
}

/// A two's complement value of that width as a signed number.
#[inline]
fn signed(value: u64, width: u8) -> i64 {
    let shift = 64 - u32::from(width);
    ((value << shift) as i64) >> shift
}

/// Saturates a number of width `from` to `width` bits.
fn saturate(value: u64, from: u8, width: u8, cast: Cast) -> u64 {
    let all = mask(u32::from(width));
    let highest = all >> 1;
    match cast {
        Cast::Unsigned => value.min(all),
        Cast::UnsignedToSigned => value.min(highest),
        Cast::SignedToUnsigned => match u64::try_from(signed(value, from)) {
            Ok(value) => value.min(all),
            Err(_) => 0,
        },
        Cast::Signed => {
            let highest = highest as i64;
            (signed(value, from).clamp(-highest - 1, highest) as u64) & all
        }
    }
}

fn divide(a: u64, b: u64, width: u8, signed_values: bool, remainder: bool) -> u64 {
    if b == 0 {
        return 0;
    }
    let value = match (signed_values, remainder) {
        (false, false) => a / b,
        (false, true) => a % b,
        (true, false) => signed(a, width).wrapping_div(signed(b, width)) as u64,
        (true, true) => signed(a, width).wrapping_rem(signed(b, width)) as u64,
    };
    value & mask(u32::from(width))
}

impl<O: Observer> Machine<'_, O> {
    pub(crate) fn set(&mut self, cell: Option<Cell>, value: u64) {
        if let Some(cell) = cell {
            store(&mut self.ctx.packet.phv, cell.size, cell.at, value & cell.mask);
        }
    }

    pub(crate) fn get(&self, cell: Option<Cell>) -> u64 {
        cell.map_or(0, |cell| load(&self.ctx.packet.phv, cell.size, cell.at))
    }

    fn fail(&mut self, error: u32) -> Ended {
        self.ctx.parser_error = error;
        Ended::Failed
    }

    /// Runs code from `start` until it ends.
    #[allow(clippy::too_many_lines, reason = "a flat table of operations")]
    pub(crate) fn exec(&mut self, start: Pc) -> Ended {
        let engine = self.engine;
        let code = &engine.code;
        let ops = &code.ops[..];
        let mut pc = start as usize;
        let mut back: Pc = 0;
        macro_rules! reg {
            ($reg:expr) => {
                self.ctx.regs[usize::from($reg)]
            };
        }
        loop {
            let Some(op) = ops.get(pc) else {
                return Ended::Normally;
            };
            if O::ACTIVE {
                self.observe_step(pc as Pc, op);
            }
            pc += 1;
            match *op {
                Op::Const { to, value } => reg!(to) = value,
                Op::Load8 { to, at } => reg!(to) = load(&self.ctx.packet.phv, Size::One, at),
                Op::Load16 { to, at } => reg!(to) = load(&self.ctx.packet.phv, Size::Two, at),
                Op::Load32 { to, at } => reg!(to) = load(&self.ctx.packet.phv, Size::Four, at),
                Op::Load64 { to, at } => reg!(to) = load(&self.ctx.packet.phv, Size::Eight, at),
                Op::LoadBits { to, left, right, at } => {
                    reg!(to) =
                        (bits::window(&self.ctx.packet.phv, at as usize) << (left & 63)) >> (right & 63);
                }
                Op::LoadSplit { to, width, bit } => {
                    reg!(to) = bits::get(&self.ctx.packet.phv, bit as usize, u32::from(width));
                }
                Op::Parameter { to, word } => {
                    reg!(to) = self.ctx.arguments.get(usize::from(word)).copied().unwrap_or(0);
                }
                Op::Store8 { from, at } => store(&mut self.ctx.packet.phv, Size::One, at, reg!(from)),
                Op::Store16 { from, at } => store(&mut self.ctx.packet.phv, Size::Two, at, reg!(from)),
                Op::Store32 { from, at } => store(&mut self.ctx.packet.phv, Size::Four, at, reg!(from)),
                Op::Store64 { from, at } => store(&mut self.ctx.packet.phv, Size::Eight, at, reg!(from)),
                Op::StoreBits {
                    from,
                    shift,
                    width,
                    at,
                } => {
                    let field = mask(u32::from(width)) << (shift & 63);
                    let value = (reg!(from) << (shift & 63)) & field;
                    let others = bits::window(&self.ctx.packet.phv, at as usize) & !field;
                    bits::set_window(&mut self.ctx.packet.phv, at as usize, others | value);
                }
                Op::StoreSplit { from, width, bit } => {
                    let value = reg!(from);
                    bits::set(&mut self.ctx.packet.phv, bit as usize, u32::from(width), value);
                }
                Op::Set { size, at, value } => store(&mut self.ctx.packet.phv, size, at, value),
                Op::Move { size, from, at } => {
                    let value = load(&self.ctx.packet.phv, size, from);
                    store(&mut self.ctx.packet.phv, size, at, value);
                }

                Op::Add { to, a, b, width } => {
                    reg!(to) = reg!(a).wrapping_add(reg!(b)) & mask(u32::from(width));
                }
                Op::AddConst { to, a, width, value } => {
                    reg!(to) = reg!(a).wrapping_add(value) & mask(u32::from(width));
                }
                Op::Sub { to, a, b, width } => {
                    reg!(to) = reg!(a).wrapping_sub(reg!(b)) & mask(u32::from(width));
                }
                Op::Mul { to, a, b, width } => {
                    reg!(to) = reg!(a).wrapping_mul(reg!(b)) & mask(u32::from(width));
                }
                Op::And { to, a, b } => reg!(to) = reg!(a) & reg!(b),
                Op::AndConst { to, a, value } => reg!(to) = reg!(a) & value,
                Op::Or { to, a, b } => reg!(to) = reg!(a) | reg!(b),
                Op::Xor { to, a, b } => reg!(to) = reg!(a) ^ reg!(b),
                Op::ShiftLeft { to, a, b, width } => {
                    let by = u32::try_from(reg!(b)).unwrap_or(u32::MAX);
                    reg!(to) = reg!(a).checked_shl(by).unwrap_or(0) & mask(u32::from(width));
                }
                Op::ShiftRight { to, a, b } => {
                    let by = u32::try_from(reg!(b)).unwrap_or(u32::MAX);
                    reg!(to) = reg!(a).checked_shr(by).unwrap_or(0);
                }
                Op::ShiftRightSigned { to, a, b, width } => {
                    let by = reg!(b).min(63) as u32;
                    reg!(to) = (signed(reg!(a), width) >> by) as u64 & mask(u32::from(width));
                }
                Op::Divide {
                    to,
                    a,
                    b,
                    width,
                    signed,
                    remainder,
                } => {
                    reg!(to) = divide(reg!(a), reg!(b), width, signed, remainder);
                }
                Op::Concat { to, a, b, low } => {
                    reg!(to) = reg!(a).checked_shl(u32::from(low)).unwrap_or(0) | reg!(b);
                }
                Op::Slice { to, a, low, width } => {
                    reg!(to) = reg!(a) >> (low & 63) & mask(u32::from(width));
                }
                Op::SignExtend { to, a, from, width } => {
                    reg!(to) = signed(reg!(a), from) as u64 & mask(u32::from(width));
                }
                Op::Saturate {
                    to,
                    a,
                    from,
                    width,
                    cast,
                } => {
                    reg!(to) = saturate(reg!(a), from, width, cast);
                }
                Op::Complement { to, a, width } => reg!(to) = !reg!(a) & mask(u32::from(width)),
                Op::Negate { to, a, width } => {
                    reg!(to) = reg!(a).wrapping_neg() & mask(u32::from(width));
                }
                Op::Not { to, a } => reg!(to) = reg!(a) ^ 1,
                Op::ToBool { to, a } => reg!(to) = u64::from(reg!(a) != 0),
                Op::Equal { to, a, b } => reg!(to) = u64::from(reg!(a) == reg!(b)),
                Op::NotEqual { to, a, b } => reg!(to) = u64::from(reg!(a) != reg!(b)),
                Op::EqualConst { to, a, value } => reg!(to) = u64::from(reg!(a) == value),
                Op::Less { to, a, b } => reg!(to) = u64::from(reg!(a) < reg!(b)),
                Op::LessEqual { to, a, b } => reg!(to) = u64::from(reg!(a) <= reg!(b)),
                Op::LessSigned { to, a, b, width } => {
                    reg!(to) = u64::from(signed(reg!(a), width) < signed(reg!(b), width));
                }
                Op::LessEqualSigned { to, a, b, width } => {
                    reg!(to) = u64::from(signed(reg!(a), width) <= signed(reg!(b), width));
                }
                Op::Valid { to, header } => reg!(to) = u64::from(self.ctx.is_valid(header)),

                Op::Turn => match self.ctx.loop_turns.checked_sub(1) {
                    Some(left) => self.ctx.loop_turns = left,
                    None => return Ended::Exhausted,
                },
                Op::Jump { pc: to } => pc = to as usize,
                Op::JumpIf { a, pc: to } => {
                    if reg!(a) != 0 {
                        pc = to as usize;
                    }
                }
                Op::JumpUnless { a, pc: to } => {
                    if reg!(a) == 0 {
                        pc = to as usize;
                    }
                }
                Op::JumpIfEqual { a, pc: to, value } => {
                    if reg!(a) == value {
                        pc = to as usize;
                    }
                }
                Op::JumpUnlessEqual { a, pc: to, value } => {
                    if reg!(a) != value {
                        pc = to as usize;
                    }
                }
                Op::JumpUnlessValid { header, pc: to } => {
                    if !self.ctx.is_valid(header) {
                        pc = to as usize;
                    }
                }
                Op::Call { pc: to, back: after } => {
                    back = after;
                    pc = to as usize;
                }
                Op::Return => {
                    if O::ACTIVE {
                        let view = View::new(self.engine.program(), self.ctx);
                        self.observer.action_done(&view);
                    }
                    pc = back as usize;
                }
                Op::End => return Ended::Normally,
                Op::Exit => {
                    if O::ACTIVE {
                        let view = View::new(self.engine.program(), self.ctx);
                        self.observer.exit(&view);
                    }
                    return Ended::Normally;
                }

                Op::KeySet { from, word, shift } => {
                    self.ctx.key[usize::from(word) % p4_tables::MAX_KEY_WORDS] = reg!(from) << (shift & 63);
                }
                Op::KeyAdd { from, word, shift } => {
                    self.ctx.key[usize::from(word) % p4_tables::MAX_KEY_WORDS] |= reg!(from) << (shift & 63);
                }
                Op::Apply { apply } => {
                    let (action, next) = self.apply(&code.applies[usize::from(apply)]);
                    back = next;
                    pc = match action {
                        Some(action) => code.actions.get(action.index()).copied().unwrap_or(next),
                        None => next,
                    } as usize;
                }

                Op::State { state } => {
                    if O::ACTIVE {
                        let view = View::new(self.engine.program(), self.ctx);
                        self.observer.state(&view, p4_ir::StateId(state));
                    }
                    self.ctx.steps += 1;
                    if self.ctx.steps > engine.parser_steps {
                        return self.fail(engine.errors.number(PARSER_TIMEOUT));
                    }
                }
                Op::Extract { header, bytes, at } => {
                    let (from, length, at) = (self.ctx.packet.at, usize::from(bytes), at as usize);
                    if !self.need(length) {
                        return self.fail(engine.errors.number(PACKET_TOO_SHORT));
                    }
                    let ctx = &mut *self.ctx;
                    if let (Some(to), Some(from)) = (
                        ctx.packet.phv.get_mut(at..at + length),
                        ctx.packet.head.get(from..from + length),
                    ) {
                        bits::copy_short(from, to);
                    }
                    ctx.packet.at += length;
                    ctx.mark_valid(header.index());
                    if O::ACTIVE {
                        self.observer
                            .extracted(&View::new(self.engine.program(), self.ctx), header, from);
                    }
                }
                Op::Lookahead { to, width, offset } => {
                    let bit = usize::from(offset);
                    if !self.need((bit + usize::from(width)).div_ceil(8)) {
                        return self.fail(engine.errors.number(PACKET_TOO_SHORT));
                    }
                    reg!(to) = bits::get(
                        &self.ctx.packet.head,
                        self.ctx.packet.at * 8 + bit,
                        u32::from(width),
                    );
                }
                Op::Advance { a } => {
                    let bits = reg!(a);
                    if !bits.is_multiple_of(8) {
                        return self.fail(engine.errors.number(PARSER_INVALID_ARGUMENT));
                    }
                    let bytes = usize::try_from(bits / 8).unwrap_or(usize::MAX);
                    if !self.need(bytes) {
                        return self.fail(engine.errors.number(PACKET_TOO_SHORT));
                    }
                    self.ctx.packet.at += bytes;
                }
                Op::Select { a, select } => pc = self.select(a, usize::from(select)) as usize,
                Op::Accept => return Ended::Normally,
                Op::Fail { error } => return self.fail(engine.errors.number(error)),
                Op::FailWith { a } => {
                    let error = u32::try_from(reg!(a)).unwrap_or(u32::MAX);
                    return self.fail(error);
                }

                Op::SetValid { header } => self.ctx.mark_valid(header.index()),
                Op::SetInvalid { header } => self.invalidate(header.index()),
                Op::MarkToDrop => {
                    self.set(engine.standard.egress_spec, crate::engine::DROP_PORT);
                    self.set(engine.standard.mcast_grp, 0);
                }
                Op::Gather => {
                    self.ctx.gathered_bits = 0;
                    self.ctx.payload = None;
                }
                Op::GatherField { bit, width } => self.gather_bits(bit as usize, usize::from(width)),
                Op::GatherValue { from, width } => {
                    let value = reg!(from);
                    self.gather_value(value, u32::from(width));
                }
                Op::Hash { to, calculation } => reg!(to) = self.hash(usize::from(calculation)),
                Op::Slow { slow } => {
                    if let Some(slow) = code.slow.get(slow as usize)
                        && self.slow(slow) == Ended::Failed
                    {
                        return Ended::Failed;
                    }
                }
            }
        }
    }

    /// Whether the packet has this many bytes from the parser's position on; fetches them from the tail if
    /// need be.
    #[inline]
    pub(crate) fn need(&mut self, bytes: usize) -> bool {
        let end = self.ctx.packet.at.saturating_add(bytes);
        end <= self.ctx.packet.head_len || self.fetch(end)
    }

    /// Bytes of the packet that the parser has not passed.
    fn bytes_left(&self) -> usize {
        let unread = self.packet.len().saturating_sub(self.ctx.packet.pulled);
        self.ctx.packet.head_len.saturating_sub(self.ctx.packet.at) + unread
    }

    #[cold]
    fn fetch(&mut self, end: usize) -> bool {
        let ctx = &mut *self.ctx;
        let room = ctx.packet.head.len().saturating_sub(bits::SLACK);
        let left = self.packet.len().saturating_sub(ctx.packet.pulled);
        let wanted = end
            .next_multiple_of(64)
            .min(room)
            .saturating_sub(ctx.packet.head_len)
            .min(left);
        if wanted > 0 {
            self.packet.read(
                ctx.packet.pulled,
                &mut ctx.packet.head[ctx.packet.head_len..ctx.packet.head_len + wanted],
            );
            ctx.packet.head_len += wanted;
            ctx.packet.pulled += wanted;
        }
        end <= ctx.packet.head_len
    }

    fn select(&mut self, a: u8, select: usize) -> Pc {
        let Some(table) = self.engine.code.selects.get(select) else {
            return 0;
        };
        let key = self.ctx.regs[usize::from(a)];
        for case in &table.cases {
            match case {
                SelectCode::Masked { value, mask, pc } if key & mask == *value => return *pc,
                SelectCode::WideMasked { value, mask, pc } => {
                    let gathered = self.ctx.gathered.iter().zip(mask.iter()).zip(value.iter());
                    if gathered
                        .map(|((&byte, &mask), &value)| (byte & mask) ^ value)
                        .all(|rest| rest == 0)
                    {
                        return *pc;
                    }
                }
                SelectCode::Set { set, pc } if self.tables.value_set_contains(*set, &self.ctx.key) => {
                    return *pc;
                }
                SelectCode::Masked { .. } | SelectCode::Set { .. } => {}
            }
        }
        table.default
    }

    /// Looks up a table. Returns the action that was found, whose arguments it has copied, and where to go
    /// after it.
    fn apply(&mut self, apply: &ApplyCode) -> (Option<ActionId>, Pc) {
        let selector = if apply.selector { self.ctx.regs[0] } else { 0 };
        let (now, length) = (self.now, self.ctx.packet.length as u64);
        let key = &self.ctx.key[..apply.words];
        let found = self.tables.look_up(apply.table, key, selector, length, now);
        // Most have one or two, which take no call.
        for (at, from) in found.arguments.iter().enumerate() {
            if let Some(to) = self.ctx.arguments.get_mut(at) {
                *to = *from;
            }
        }
        if let Some(colour) = found.colour {
            self.set_colour(apply, colour);
        }
        let action = found.action.and_then(|action| u16::try_from(action).ok());
        let next = match &apply.next {
            NextCode::Always(pc) => *pc,
            NextCode::ByHit(hit, _) if found.hit => *hit,
            NextCode::ByHit(_, miss) => *miss,
            NextCode::ByAction(next, none) => {
                let by_action = next.iter().find(|(other, _)| action == Some(*other));
                by_action.map_or(*none, |(_, pc)| *pc)
            }
        };
        let action = action.map(ActionId);
        if O::ACTIVE {
            let lookup = Lookup {
                table: apply.table,
                key: &self.ctx.key[..apply.words],
                hit: found.hit,
                entry: found.entry,
                action,
                arguments: found.arguments,
            };
            let view = View::new(self.engine.program(), self.ctx);
            self.observer.looked_up(&view, &lookup);
        }
        (action, next)
    }

    fn set_colour(&mut self, apply: &ApplyCode, colour: u64) {
        if let Some(field) = &self.engine.colours[apply.table.index()]
            && self.ctx.is_valid(field.header)
        {
            let (bit, width) = (field.offset as usize, u32::from(field.width));
            bits::set_words(&mut self.ctx.packet.phv, bit, width, &[colour]);
        }
    }

    fn observe_step(&mut self, pc: Pc, op: &Op) {
        let marks = &self.engine.code.marks;
        let view = View::new(self.engine.program(), self.ctx);
        if let Ok(at) = marks.binary_search_by_key(&pc, |(pc, _)| *pc) {
            self.observer.mark(&view, marks[at].1);
        }
        self.observer.step(
            &view,
            &crate::observe::Step {
                op,
                code: &self.engine.code,
            },
        );
    }
}

/// A header's number in a register, if it means one.
#[inline]
pub(crate) fn header_in(value: u64, headers: usize) -> Option<usize> {
    (value != NO_HEADER && value < headers as u64).then_some(value as usize)
}
