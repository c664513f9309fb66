//! Operations that are rare or touch many bytes.

use super::{Ended, Machine};
use crate::bits::{self, mask};
use crate::code::Slow;
use crate::observe::{Observer, View};

impl<O: Observer> Machine<'_, O> {
    fn reg(&self, register: u8) -> u64 {
        self.ctx.regs[usize::from(register)]
    }

    fn set_reg(&mut self, register: u8, value: u64) {
        self.ctx.regs[usize::from(register)] = value;
    }

    pub(super) fn slow(&mut self, slow: &Slow) -> Ended {
        match slow {
            Slow::Wide(op) => return self.wide(op),
            Slow::Resolve { to, how, strict } => return self.resolve(*to, *how, *strict),
            Slow::ResolveUnion { to, stack } => {
                let first = self.union_element(*stack, self.reg(*to));
                self.set_reg(*to, first.map_or(crate::code::NO_HEADER, |first| first as u64));
            }
            Slow::LoadMember { to, header, member } => {
                let value = self
                    .header_of(*header)
                    .and_then(|header| self.member(header, *member));
                let value = value.map_or(0, |(bit, width)| bits::get(&self.ctx.packet.phv, bit, width));
                self.set_reg(*to, value);
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
            Slow::Log { text, arguments } => {
                if O::ACTIVE {
                    let values = arguments.iter().map(|&argument| self.reg(argument));
                    let values: Vec<u64> = values.collect();
                    self.observer.log(text, &values);
                }
            }
            _ => self.slow_headers(slow),
        }
        Ended::Normally
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

    fn slow_headers(&mut self, slow: &Slow) {
        match slow {
            Slow::ValidRef { to, header } => {
                let valid = self
                    .header_of(*header)
                    .is_some_and(|header| self.is_valid_number(header));
                self.set_reg(*to, u64::from(valid));
            }
            Slow::SetValidRef { header } => {
                if let Some(header) = self.header_of(*header) {
                    self.validate(header);
                }
            }
            Slow::SetInvalidRef { header } => {
                if let Some(header) = self.header_of(*header) {
                    self.invalidate(header);
                }
            }
            Slow::UnionValid { to, first, members } => {
                let valid = self.header_of(*first).is_some_and(|first| {
                    (first..first + usize::from(*members)).any(|header| self.is_valid_number(header))
                });
                self.set_reg(*to, u64::from(valid));
            }
            Slow::HeadersEqual { to, a, b } => {
                let equal = self.headers_equal(self.header_of(*a), self.header_of(*b));
                self.set_reg(*to, u64::from(equal));
            }
            Slow::VariablesEqual { to, a, b } => {
                let equal = self.variables_equal(self.header_of(*a), self.header_of(*b));
                self.set_reg(*to, u64::from(equal));
            }
            Slow::UnionsEqual { to, a, b, members } => {
                let equal = self.unions_equal(self.header_of(*a), self.header_of(*b), *members);
                self.set_reg(*to, u64::from(equal));
            }
            Slow::StacksEqual { to, a, b } => {
                let equal = self.stacks_equal(*a, *b);
                self.set_reg(*to, u64::from(equal));
            }
            Slow::LastIndex { to, stack } => {
                let last = u32::from(self.ctx.packet.next[stack.index()]).wrapping_sub(1);
                self.set_reg(*to, u64::from(last));
            }
            Slow::NextIndex { to, stack } => {
                let next = u64::from(self.ctx.packet.next[stack.index()]);
                self.set_reg(*to, next);
            }
            Slow::CopyVariable {
                to,
                to_member,
                from,
                from_member,
            } => {
                self.copy_variable((*to, *to_member), (*from, *from_member));
            }
            Slow::CopyHeader { to, from } => {
                if let Some(to) = self.header_of(*to) {
                    match self.header_of(*from) {
                        Some(from) => self.copy_header(to, from),
                        None => self.invalidate(to),
                    }
                }
            }
            Slow::CopyUnion { to, from } => self.copy_union(*to, *from),
            Slow::CopyStack { to, from } => self.copy_stack(*to, *from),
            Slow::CopyUnionStack { to, from } => self.copy_union_stack(*to, *from),
            Slow::Push { stack, count } => self.push(*stack, *count),
            Slow::Pop { stack, count } => self.pop(*stack, *count),
            Slow::PushUnion { stack, count } => self.push_union(*stack, *count),
            Slow::PopUnion { stack, count } => self.pop_union(*stack, *count),
            _ => self.slow_externs(slow),
        }
    }

    fn slow_externs(&mut self, slow: &Slow) {
        match slow {
            Slow::Count { counter, index } => {
                self.state.count(
                    usize::from(*counter),
                    self.reg(*index),
                    self.ctx.packet.length as u64,
                );
            }
            Slow::Meter {
                meter,
                index,
                colour,
                to,
            } => {
                let before = colour.map_or(0, |colour| self.reg(colour));
                let colour = self.state.measure(
                    meter.index(),
                    self.reg(*index),
                    self.ctx.packet.length as u64,
                    self.now,
                    before,
                );
                self.set_reg(*to, colour);
            }
            Slow::RegisterRead { to, register, index } => {
                let value = self.state.read_register(register.index(), self.reg(*index));
                self.set_reg(*to, value);
            }
            Slow::RegisterWrite {
                from,
                register,
                index,
            } => {
                self.state
                    .write_register(register.index(), self.reg(*index), self.reg(*from));
            }
            Slow::GatherHeader { header } => self.gather_header(header.index()),
            Slow::GatherVariable { header, bit } => self.gather_variable(header.index(), *bit as usize),
            Slow::GatherPayload { after } => self.ctx.payload = Some(*after),
            Slow::Scale { to, base, max, width } => {
                let hash = self.reg(*to);
                let value = match max {
                    Some(max) => (hash % self.reg(*max).max(1)).wrapping_add(self.reg(*base)),
                    None => hash,
                };
                self.set_reg(*to, value & mask(u32::from(*width)));
            }
            Slow::Random { to, low, high } => {
                let (low, high) = (self.reg(*low), self.reg(*high));
                let span = high.max(low).wrapping_sub(low).wrapping_add(1);
                let random = self.ctx.next_random();
                let value = if span == 0 { random } else { low + random % span };
                self.set_reg(*to, value);
            }
            Slow::Digest { digest } => self.ctx.deferred.digest = Some(*digest),
            Slow::CloneIngress { session, list } | Slow::CloneEgress { session, list } => {
                self.ctx.deferred.clone = Some((self.reg(*session), *list));
            }
            Slow::Resubmit { list } => self.ctx.deferred.resubmit = Some(*list),
            Slow::Recirculate { list } => self.ctx.deferred.recirculate = Some(*list),
            _ => {}
        }
        if O::ACTIVE {
            let view = View::new(self.engine.program(), self.ctx);
            self.observer
                .extern_called(&view, &crate::observe::name_of(slow, self.engine.program()));
        }
    }
}
