//! Operations that are rare or touch many bytes.

use super::{Ended, Machine};
use crate::bits::{self, mask};
use crate::code::{ExternOp, HeaderOp, NO_HEADER, Slow};
use crate::observe::{Observer, View};
use crate::state::CounterValue;

impl<O: Observer> Machine<'_, O> {
    fn reg(&self, register: u8) -> u64 {
        self.ctx.regs[usize::from(register)]
    }

    fn set_reg(&mut self, register: u8, value: u64) {
        self.ctx.regs[usize::from(register)] = value;
    }

    fn set_bool(&mut self, register: u8, value: bool) {
        self.set_reg(register, u64::from(value));
    }

    pub(super) fn slow(&mut self, slow: &Slow) -> Ended {
        match slow {
            Slow::Wide(op) => return self.wide(op),
            Slow::Header(op) => self.header_op(op),
            Slow::Extern(op) => self.extern_op(op),
            Slow::Resolve { to, how, strict } => return self.resolve(*to, *how, *strict),
            Slow::ResolveUnion { to, stack } => {
                let first = self.union_element(*stack, self.reg(*to));
                self.set_reg(*to, first.map_or(NO_HEADER, |first| first as u64));
            }
            Slow::LoadMember { to, header, member } => {
                self.set_reg(*to, self.load_member(*header, *member));
            }
            Slow::StoreMember { from, header, member } => self.store_member(*from, *header, *member),
            Slow::ExtractRef { header, advance } => return self.extract_ref(*header, None, *advance),
            Slow::ExtractVariable {
                header,
                bits,
                advance,
            } => {
                return self.extract_ref(*header, Some(self.reg(*bits)), *advance);
            }
            Slow::ChecksumError => self.ctx.checksum_error = true,
            Slow::Truncate { length } => {
                let length = usize::try_from(self.reg(*length)).unwrap_or(usize::MAX);
                self.ctx.packet.truncate = self.ctx.packet.truncate.min(length);
            }
            Slow::Assert { a } => {
                if self.reg(*a) == 0 {
                    self.ctx.counts.false_claims += 1;
                }
            }
            Slow::Log { text, arguments } => self.log(text, arguments),
            Slow::GatherHeader { header } => self.gather_header(header.index()),
            Slow::GatherVariable { header, bit } => self.gather_variable(header.index(), *bit as usize),
            Slow::GatherPayload { after } => self.ctx.payload = Some(*after),
            Slow::Scale { to, base, max, width } => {
                let max = max.map(|max| self.reg(max));
                let value = scale(self.reg(*to), self.reg(*base), max);
                self.set_reg(*to, value & mask(u32::from(*width)));
            }
        }
        Ended::Normally
    }

    fn log(&mut self, text: &str, arguments: &[u8]) {
        if O::ACTIVE {
            let values: Vec<u64> = arguments.iter().map(|&argument| self.reg(argument)).collect();
            self.observer.log(text, &values);
        }
    }

    fn load_member(&self, header: u8, member: u16) -> u64 {
        let header = self.header_of(header);
        let place = header.and_then(|header| self.member(header, member));
        place.map_or(0, |(bit, width)| bits::get(&self.ctx.packet.phv, bit, width))
    }

    fn store_member(&mut self, from: u8, header: u8, member: u16) {
        let Some(header) = self.header_of(header) else {
            return;
        };
        if !self.is_valid_number(header) {
            return;
        }
        if let Some((bit, width)) = self.member(header, member) {
            let value = self.reg(from);
            bits::set(&mut self.ctx.packet.phv, bit, width, value);
        }
    }

    fn header_op(&mut self, op: &HeaderOp) {
        match op {
            HeaderOp::ValidRef { to, header } => {
                let valid = self
                    .header_of(*header)
                    .is_some_and(|header| self.is_valid_number(header));
                self.set_bool(*to, valid);
            }
            HeaderOp::SetValidRef { header } => {
                if let Some(header) = self.header_of(*header) {
                    self.validate(header);
                }
            }
            HeaderOp::SetInvalidRef { header } => {
                if let Some(header) = self.header_of(*header) {
                    self.invalidate(header);
                }
            }
            HeaderOp::UnionValid { to, first, members } => {
                let valid = self.header_of(*first).is_some_and(|first| {
                    (first..first + usize::from(*members)).any(|header| self.is_valid_number(header))
                });
                self.set_bool(*to, valid);
            }
            HeaderOp::HeadersEqual { to, a, b } => {
                let equal = self.headers_equal(self.header_of(*a), self.header_of(*b));
                self.set_bool(*to, equal);
            }
            HeaderOp::VariablesEqual { to, a, b } => {
                let equal = self.variables_equal(self.header_of(*a), self.header_of(*b));
                self.set_bool(*to, equal);
            }
            HeaderOp::UnionsEqual { to, a, b, members } => {
                let equal = self.unions_equal(self.header_of(*a), self.header_of(*b), *members);
                self.set_bool(*to, equal);
            }
            HeaderOp::StacksEqual { to, a, b } => self.set_bool(*to, self.stacks_equal(*a, *b)),
            HeaderOp::LastIndex { to, stack } => {
                let last = u32::from(self.ctx.packet.next[stack.index()]).wrapping_sub(1);
                self.set_reg(*to, u64::from(last));
            }
            HeaderOp::NextIndex { to, stack } => {
                self.set_reg(*to, u64::from(self.ctx.packet.next[stack.index()]));
            }
            HeaderOp::CopyVariable {
                to,
                to_member,
                from,
                from_member,
            } => self.copy_variable((*to, *to_member), (*from, *from_member)),
            HeaderOp::CopyHeader { to, from } => {
                if let Some(to) = self.header_of(*to) {
                    match self.header_of(*from) {
                        Some(from) => self.copy_header(to, from),
                        None => self.invalidate(to),
                    }
                }
            }
            HeaderOp::CopyUnion { to, from } => self.copy_union(*to, *from),
            HeaderOp::CopyStack { to, from } => self.copy_stack(*to, *from),
            HeaderOp::CopyUnionStack { to, from } => self.copy_union_stack(*to, *from),
            HeaderOp::Push { stack, count } => self.push(*stack, *count),
            HeaderOp::Pop { stack, count } => self.pop(*stack, *count),
            HeaderOp::PushUnion { stack, count } => self.push_union(*stack, *count),
            HeaderOp::PopUnion { stack, count } => self.pop_union(*stack, *count),
        }
    }

    /// A number from `low` to `high`, both included; `high` below `low` counts as `low`.
    fn random(&mut self, low: u64, high: u64) -> u64 {
        let span = high.max(low).wrapping_sub(low).wrapping_add(1);
        let random = self.ctx.next_random();
        if span == 0 { random } else { low + random % span }
    }

    fn extern_op(&mut self, op: &ExternOp) {
        match op {
            ExternOp::Count { counter, index } => {
                let (index, one) = (self.reg(*index), CounterValue::one(self.ctx.packet.length));
                self.state.count(usize::from(*counter), index, one);
                if O::ACTIVE {
                    self.observer.counted(*counter, index);
                }
            }
            ExternOp::Meter {
                meter,
                index,
                colour,
                to,
            } => {
                let before = colour.map_or(0, |colour| self.reg(colour));
                let (index, length) = (self.reg(*index), self.ctx.packet.length as u64);
                let colour = self.state.measure(meter.index(), index, length, self.now, before);
                self.set_reg(*to, colour);
            }
            ExternOp::RegisterRead { to, register, index } => {
                let value = self.state.read_register(register.index(), self.reg(*index));
                self.set_reg(*to, value);
            }
            ExternOp::RegisterWrite {
                from,
                register,
                index,
            } => {
                self.state
                    .write_register(register.index(), self.reg(*index), self.reg(*from));
            }
            ExternOp::Random { to, low, high } => {
                let value = self.random(self.reg(*low), self.reg(*high));
                self.set_reg(*to, value);
            }
            ExternOp::Digest { digest } => self.ctx.deferred.digest = Some(*digest),
            ExternOp::CloneIngress { session, list } | ExternOp::CloneEgress { session, list } => {
                self.ctx.deferred.clone = Some((self.reg(*session), *list));
            }
            ExternOp::Resubmit { list } => self.ctx.deferred.resubmit = Some(*list),
            ExternOp::Recirculate { list } => self.ctx.deferred.recirculate = Some(*list),
        }
        self.show_extern(op);
    }

    fn show_extern(&mut self, op: &ExternOp) {
        if O::ACTIVE {
            let view = View::new(self.engine.program(), self.ctx);
            self.observer
                .extern_called(&view, &crate::observe::name_of(op, self.engine.program()));
        }
    }
}

/// A hash brought into a range: `base + hash modulo max`; a `max` of 0 counts as 1.
fn scale(hash: u64, base: u64, max: Option<u64>) -> u64 {
    max.map_or(hash, |max| (hash % max.max(1)).wrapping_add(base))
}
