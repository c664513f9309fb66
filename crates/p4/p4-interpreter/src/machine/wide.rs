//! Values of more than 64 bits. Results and operands are ranges of the scratch words, which the compiler
//! allocates so that a result never overlaps its operands.

use super::{Ended, Machine};
use crate::bits;
use crate::code::{Cast, Wide, WideBinary, WideCompare, WideOp};
use crate::engine::PACKET_TOO_SHORT;
use crate::observe::Observer;
use crate::wide;
use std::cmp::Ordering;

/// The words of the result and those of two operands, which lie behind them.
fn three(words: &mut [u64], to: Wide, a: Wide, b: Wide) -> (&mut [u64], &[u64], &[u64]) {
    let (front, rest) = words.split_at_mut(to.range().end);
    let rest = &*rest;
    let behind = |wide: Wide| {
        let range = wide.range();
        &rest[range.start - to.range().end..range.end - to.range().end]
    };
    (&mut front[to.range()], behind(a), behind(b))
}

impl<O: Observer> Machine<'_, O> {
    fn words(&self, value: Wide) -> &[u64] {
        &self.ctx.wide[value.range()]
    }

    pub(super) fn wide(&mut self, op: &WideOp) -> Ended {
        match op {
            WideOp::Const { to, words } => self.ctx.wide[to.range()].copy_from_slice(words),
            WideOp::Load { to, bit } => {
                let ctx = &mut *self.ctx;
                bits::get_words(
                    &ctx.packet.phv,
                    *bit as usize,
                    to.width,
                    &mut ctx.wide[to.range()],
                );
            }
            WideOp::Store { from, bit } => {
                let ctx = &mut *self.ctx;
                bits::set_words(
                    &mut ctx.packet.phv,
                    *bit as usize,
                    from.width,
                    &ctx.wide[from.range()],
                );
            }
            WideOp::Parameter { to, word } => {
                let ctx = &mut *self.ctx;
                let from = ctx.arguments.get(usize::from(*word)..).unwrap_or(&[]);
                wide::assign(&mut ctx.wide[to.range()], from);
                wide::trim(&mut ctx.wide[to.range()], to.width);
            }
            WideOp::Lookahead { to, offset } => {
                let bit = usize::from(*offset);
                if !self.need((bit + to.width as usize).div_ceil(8)) {
                    return self.fail(self.engine.errors.number(PACKET_TOO_SHORT));
                }
                let ctx = &mut *self.ctx;
                bits::get_words(
                    &ctx.packet.head,
                    ctx.packet.at * 8 + bit,
                    to.width,
                    &mut ctx.wide[to.range()],
                );
            }
            WideOp::LoadMember { to, header, member } => {
                let place = self
                    .header_of(*header)
                    .and_then(|header| self.member(header, *member));
                let ctx = &mut *self.ctx;
                let words = &mut ctx.wide[to.range()];
                match place {
                    Some((bit, width)) => bits::get_words(&ctx.packet.phv, bit, width, words),
                    None => words.fill(0),
                }
            }
            WideOp::StoreMember { from, header, member } => {
                let header = self
                    .header_of(*header)
                    .filter(|&header| self.is_valid_number(header));
                if let Some((bit, width)) = header.and_then(|header| self.member(header, *member)) {
                    let ctx = &mut *self.ctx;
                    bits::set_words(&mut ctx.packet.phv, bit, width, &ctx.wide[from.range()]);
                }
            }
            _ => self.wide_values(op),
        }
        Ended::Normally
    }

    fn wide_values(&mut self, op: &WideOp) {
        let ctx = &mut *self.ctx;
        match op {
            WideOp::From { to, a } => {
                let value = ctx.regs[usize::from(*a)];
                wide::assign(&mut ctx.wide[to.range()], &[value]);
            }
            WideOp::FromSigned { to, a, width } => {
                let value = ctx.regs[usize::from(*a)];
                wide::extend(&mut ctx.wide[to.range()], to.width, &[value], u32::from(*width));
            }
            WideOp::Resize { to, a } | WideOp::Copy { to, a } => {
                let (to_words, a, _) = three(&mut ctx.wide, *to, *a, *a);
                wide::assign(to_words, a);
                wide::trim(to_words, to.width);
            }
            WideOp::ResizeSigned { to, a } => {
                let (to_words, words, _) = three(&mut ctx.wide, *to, *a, *a);
                wide::extend(to_words, to.width, words, a.width);
            }
            WideOp::Saturate { to, a, cast } => {
                let (to_words, words, _) = three(&mut ctx.wide, *to, *a, *a);
                saturate(to_words, to.width, words, a.width, *cast);
            }
            WideOp::SaturateTo { to, width, a, cast } => {
                let mut result = [0];
                saturate(
                    &mut result,
                    u32::from(*width),
                    &ctx.wide[a.range()],
                    a.width,
                    *cast,
                );
                ctx.regs[usize::from(*to)] = result[0];
            }
            WideOp::Binary { op, to, a, b } => binary(&mut ctx.wide, *op, *to, *a, *b),
            WideOp::Shift {
                to,
                a,
                by,
                left,
                signed,
            } => {
                let by = ctx.regs[usize::from(*by)];
                let (to_words, a, _) = three(&mut ctx.wide, *to, *a, *a);
                if *left {
                    wide::shl(to_words, a, by, to.width);
                } else {
                    let fill = *signed && wide::is_negative(a, to.width);
                    wide::shr(to_words, a, by, to.width, fill);
                }
            }
            WideOp::Complement { to, a } => {
                let (to_words, a, _) = three(&mut ctx.wide, *to, *a, *a);
                wide::not(to_words, a, to.width);
            }
            WideOp::Negate { to, a } => {
                let (to_words, a, _) = three(&mut ctx.wide, *to, *a, *a);
                wide::neg(to_words, a, to.width);
            }
            WideOp::Slice { to, a, low } => {
                let (to_words, words, _) = three(&mut ctx.wide, *to, *a, *a);
                wide::slice(to_words, words, *low, to.width);
            }
            WideOp::Insert { to, a, by } => {
                let (to_words, words, _) = three(&mut ctx.wide, *to, *a, *a);
                wide::insert(to_words, words, *by);
            }
            _ => self.wide_to_registers(op),
        }
    }

    /// Puts a value into the look-up key, from this word on.
    fn set_key(&mut self, value: Wide, word: usize) {
        let ctx = &mut *self.ctx;
        let words = &ctx.wide[value.range()];
        for (to, &word) in ctx.key.iter_mut().skip(word).zip(words) {
            *to = word;
        }
    }

    fn gather_wide(&mut self, value: Wide) {
        let ctx = &mut *self.ctx;
        let words = &ctx.wide[value.range()];
        bits::set_words(&mut ctx.gathered, ctx.gathered_bits, value.width, words);
        ctx.gathered_bits += value.width as usize;
    }

    fn wide_to_registers(&mut self, op: &WideOp) {
        match op {
            WideOp::SliceTo { to, width, a, low } => {
                let mut word = [0];
                wide::slice(&mut word, self.words(*a), *low, u32::from(*width));
                self.ctx.regs[usize::from(*to)] = word[0];
            }
            WideOp::Compare { to, a, b, how } => {
                let value = compare(self.words(*a), self.words(*b), a.width, *how);
                self.ctx.regs[usize::from(*to)] = u64::from(value);
            }
            WideOp::IsZero { to, a } => {
                let zero = wide::is_zero(self.words(*a));
                self.ctx.regs[usize::from(*to)] = u64::from(zero);
            }
            WideOp::Narrow { to, a } => {
                let words = self.words(*a);
                let fits = wide::is_zero(&words[1..]);
                self.ctx.regs[usize::from(*to)] = if fits { words[0] } else { u64::MAX };
            }
            WideOp::Key { a, word } => self.set_key(*a, usize::from(*word)),
            WideOp::Gather { a } => self.gather_wide(*a),
            WideOp::RegisterRead { to, register, index } => {
                let index = self.ctx.regs[usize::from(*index)];
                let words = &mut self.ctx.wide[to.range()];
                self.state.read_wide_register(register.index(), index, words);
            }
            WideOp::RegisterWrite {
                from,
                register,
                index,
            } => {
                let index = self.ctx.regs[usize::from(*index)];
                self.state
                    .write_wide_register(register.index(), index, &self.ctx.wide[from.range()]);
            }
            // `wide` and `wide_values` have carried them out.
            WideOp::Const { .. }
            | WideOp::Load { .. }
            | WideOp::Store { .. }
            | WideOp::Parameter { .. }
            | WideOp::Lookahead { .. }
            | WideOp::LoadMember { .. }
            | WideOp::StoreMember { .. }
            | WideOp::From { .. }
            | WideOp::FromSigned { .. }
            | WideOp::Resize { .. }
            | WideOp::ResizeSigned { .. }
            | WideOp::Saturate { .. }
            | WideOp::SaturateTo { .. }
            | WideOp::Binary { .. }
            | WideOp::Shift { .. }
            | WideOp::Complement { .. }
            | WideOp::Negate { .. }
            | WideOp::Slice { .. }
            | WideOp::Insert { .. }
            | WideOp::Copy { .. } => {}
        }
    }
}

fn compare(a: &[u64], b: &[u64], width: u32, how: WideCompare) -> bool {
    let order = match how {
        WideCompare::LessSigned | WideCompare::LessEqualSigned => wide::compare_signed(a, b, width),
        WideCompare::Equal | WideCompare::NotEqual | WideCompare::Less | WideCompare::LessEqual => {
            wide::compare(a, b)
        }
    };
    match how {
        WideCompare::Equal => order == Ordering::Equal,
        WideCompare::NotEqual => order != Ordering::Equal,
        WideCompare::Less | WideCompare::LessSigned => order == Ordering::Less,
        WideCompare::LessEqual | WideCompare::LessEqualSigned => order != Ordering::Greater,
    }
}

fn binary(words: &mut [u64], op: WideBinary, to: Wide, a: Wide, b: Wide) {
    use WideBinary::{Add, And, Div, DivSigned, Mod, ModSigned, Mul, Or, Sub, Xor};
    if matches!(op, Div | Mod | DivSigned | ModSigned) {
        return divide(words, op, to, a, b);
    }
    let width = to.width;
    let (to, a, b) = three(words, to, a, b);
    match op {
        Add => {
            wide::add(to, a, b, width);
        }
        Sub => {
            wide::sub(to, a, b, width);
        }
        Mul => wide::mul(to, a, b, width),
        And => wide::bitwise(to, a, b, |a, b| a & b),
        Or => wide::bitwise(to, a, b, |a, b| a | b),
        Xor => wide::bitwise(to, a, b, |a, b| a ^ b),
        Div | Mod | DivSigned | ModSigned => {}
    }
}

/// Divides. Behind the second operand there is room for four values: two absolute values, quotient,
/// remainder.
fn divide(words: &mut [u64], op: WideBinary, to: Wide, a: Wide, b: Wide) {
    let signed = matches!(op, WideBinary::DivSigned | WideBinary::ModSigned);
    let rest_wanted = matches!(op, WideBinary::Mod | WideBinary::ModSigned);
    let (width, count) = (to.width, wide::words(to.width));
    let (operands, room) = words.split_at_mut(b.range().end);
    let mut room = room.chunks_exact_mut(count);
    let (Some(x), Some(y), Some(quotient), Some(remainder)) =
        (room.next(), room.next(), room.next(), room.next())
    else {
        return;
    };
    let absolute = |to: &mut [u64], value: &[u64]| {
        let negative = signed && wide::is_negative(value, width);
        if negative {
            wide::neg(to, value, width);
        } else {
            wide::assign(to, value);
        }
        negative
    };
    let a_negative = absolute(x, &operands[a.range()]);
    let b_negative = absolute(y, &operands[b.range()]);
    let result = &mut operands[to.range()];
    if wide::is_zero(y) {
        return result.fill(0);
    }
    wide::div_rem(quotient, remainder, x, y, width);
    let (value, negative) = if rest_wanted {
        (remainder, a_negative)
    } else {
        (quotient, a_negative != b_negative)
    };
    if negative {
        wide::neg(result, value, width);
    } else {
        wide::assign(result, value);
    }
}

/// Saturates a value of width `from` to `width` bits.
fn saturate(to: &mut [u64], width: u32, value: &[u64], from: u32, cast: Cast) {
    let signed_from = matches!(cast, Cast::Signed | Cast::SignedToUnsigned);
    let signed_to = matches!(cast, Cast::Signed | Cast::UnsignedToSigned);
    let negative = signed_from && wide::is_negative(value, from);
    // It fits if all bits from the highest one that the target has for the amount are the same as the sign.
    let amount = if signed_to { width - 1 } else { width };
    let fits = (signed_to || !negative) && (amount..from).all(|at| wide::bit(value, at) == negative);
    if fits {
        wide::assign(to, value);
        wide::trim(to, width);
    } else if negative && !signed_to {
        to.fill(0);
    } else if signed_to {
        wide::signed_limit(to, width, negative);
    } else {
        to.fill(u64::MAX);
        wide::trim(to, width);
    }
}
