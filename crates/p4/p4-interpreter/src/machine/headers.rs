//! Validity, copies, stacks, unions, extraction by reference.

use super::{Ended, Machine, header_in};
use crate::bits;
use crate::code::{NO_HEADER, Resolve};
use crate::engine::{HEADER_TOO_SHORT, PACKET_TOO_SHORT, PARSER_INVALID_ARGUMENT, STACK_OUT_OF_BOUNDS};
use crate::observe::{Observer, View};
use p4_ir::{HeaderId, StackId, UnionId, UnionStackId};

impl<O: Observer> Machine<'_, O> {
    pub(super) fn header_of(&self, register: u8) -> Option<usize> {
        header_in(self.ctx.regs[usize::from(register)], self.engine.headers.len())
    }

    pub(super) fn is_valid_number(&self, header: usize) -> bool {
        self.ctx.is_valid(HeaderId(header as u16))
    }

    /// Makes a header invalid. Bytes of invalid headers are zero.
    pub(crate) fn invalidate(&mut self, header: usize) {
        if !self.is_valid_number(header) {
            return;
        }
        let info = &self.engine.headers[header];
        if info.metadata {
            return;
        }
        if let Some(bytes) = self.ctx.packet.phv.get_mut(info.range()) {
            bytes.fill(0);
        }
        self.ctx.packet.filled[header] = 0;
        self.ctx.mark_invalid(header);
    }

    /// Makes a header valid; other members of its union become invalid.
    pub(super) fn validate(&mut self, header: usize) {
        let info = &self.engine.headers[header];
        if let Some((first, members)) = info.union {
            for other in first..first + members {
                if other != header {
                    self.invalidate(other);
                }
            }
        }
        self.ctx.mark_valid(header);
    }

    pub(super) fn resolve(&mut self, to: u8, how: Resolve, strict: bool) -> Ended {
        let program = self.engine.program();
        let stack_first = |stack: StackId| {
            let stack = &program.stacks[stack.index()];
            (stack.first.index(), u64::from(stack.size))
        };
        let number = self.ctx.regs[usize::from(to)];
        let next = |at: usize| u64::from(self.ctx.packet.next[at]);
        let stacks = program.stacks.len();
        let header = match how {
            Resolve::Next(stack) => element(stack_first(stack), next(stack.index())),
            Resolve::Last(stack) => element(stack_first(stack), next(stack.index()).wrapping_sub(1)),
            Resolve::Element(stack) => element(stack_first(stack), number),
            Resolve::UnionNext(stack, member) => self
                .union_element(stack, next(stacks + stack.index()))
                .map(|first| first + usize::from(member)),
            Resolve::UnionLast(stack, member) => self
                .union_element(stack, next(stacks + stack.index()).wrapping_sub(1))
                .map(|first| first + usize::from(member)),
            Resolve::UnionElement(stack, member) => self
                .union_element(stack, number)
                .map(|first| first + usize::from(member)),
        };
        let indexed = matches!(how, Resolve::Element(_) | Resolve::UnionElement(..));
        if header.is_none() && strict && !indexed {
            return self.fail(self.engine.errors.number(STACK_OUT_OF_BOUNDS));
        }
        self.ctx.regs[usize::from(to)] = header.map_or(NO_HEADER, |header| header as u64);
        Ended::Normally
    }

    /// First member of an element of a union stack.
    pub(super) fn union_element(&self, stack: UnionStackId, index: u64) -> Option<usize> {
        let program = self.engine.program();
        let stack = &program.union_stacks[stack.index()];
        let union = element((stack.first.index(), u64::from(stack.size)), index)?;
        Some(program.unions[union].first.index())
    }

    fn advance(&mut self, advance: Option<Resolve>) {
        let stacks = self.engine.program().stacks.len();
        let at = match advance {
            Some(Resolve::Next(stack)) => stack.index(),
            Some(Resolve::UnionNext(stack, _)) => stacks + stack.index(),
            _ => return,
        };
        self.ctx.packet.next[at] = self.ctx.packet.next[at].saturating_add(1);
    }

    /// Copies a header from the packet, with `bits` in its variable field, which may have more room.
    fn fill_header(&mut self, header: usize, bits: usize) {
        let info = &self.engine.headers[header];
        let packet = &mut self.ctx.packet;
        let (from, to) = (packet.at * 8, info.offset * 8);
        let Some(field) = info.variable else {
            return bits::copy(&packet.head, from, &mut packet.phv, to, info.fixed_bits);
        };
        let before = field.offset - to;
        let after = info.fixed_bits - before;
        bits::copy(&packet.head, from, &mut packet.phv, to, before + bits);
        let rest = field.offset + field.width;
        bits::copy(&packet.head, from + before + bits, &mut packet.phv, rest, after);
        packet.filled[header] = bits as u16;
    }

    /// Extracts a header, with `variable` bits in its variable field.
    pub(super) fn extract_ref(
        &mut self,
        register: u8,
        variable: Option<u64>,
        advance: Option<Resolve>,
    ) -> Ended {
        let Some(header) = self.header_of(register) else {
            return Ended::Normally;
        };
        let info = &self.engine.headers[header];
        let bits = variable.unwrap_or(0);
        let room = info.variable.map_or(0, |variable| variable.width);
        if !bits.is_multiple_of(8) {
            return self.fail(self.engine.errors.number(PARSER_INVALID_ARGUMENT));
        }
        let bits = usize::try_from(bits).unwrap_or(usize::MAX);
        let length = info.fixed_bits.saturating_add(bits).div_ceil(8);
        if bits > room {
            // As BMv2: if the packet is shorter, too, the packet is to blame.
            let error = if length > self.bytes_left() {
                PACKET_TOO_SHORT
            } else {
                HEADER_TOO_SHORT
            };
            return self.fail(self.engine.errors.number(error));
        }
        if !self.need(length) {
            return self.fail(self.engine.errors.number(PACKET_TOO_SHORT));
        }
        self.invalidate(header);
        self.validate(header);
        self.fill_header(header, bits);
        let begin = self.ctx.packet.at;
        self.ctx.packet.at += length;
        self.advance(advance);
        if O::ACTIVE {
            let view = View::new(self.engine.program(), self.ctx);
            self.observer.extracted(&view, HeaderId(header as u16), begin);
        }
        Ended::Normally
    }

    /// Copies validity and all fields between headers of one type.
    pub(super) fn copy_header(&mut self, to: usize, from: usize) {
        if to == from {
            return;
        }
        if !self.is_valid_number(from) {
            return self.invalidate(to);
        }
        // The fields are read first: in one union, the source becomes invalid, and so zero, when the target
        // becomes valid.
        let (to_range, from_range) = (self.engine.headers[to].range(), self.engine.headers[from].range());
        if to_range.len() == from_range.len() && to_range.end <= self.ctx.packet.phv.len() {
            self.ctx.packet.phv.copy_within(from_range, to_range.start);
            self.ctx.packet.filled[to] = self.ctx.packet.filled[from];
        }
        self.validate(to);
    }

    pub(super) fn copy_variable(&mut self, to: (u8, u16), from: (u8, u16)) {
        let (Some(into), Some(out_of)) = (self.header_of(to.0), self.header_of(from.0)) else {
            return;
        };
        if !self.is_valid_number(into) {
            return;
        }
        let (Some(target), Some(source)) = (
            self.engine.headers[into].variable,
            self.engine.headers[out_of].variable,
        ) else {
            return;
        };
        bits::copy_within(
            &mut self.ctx.packet.phv,
            source.offset,
            target.offset,
            source.width.min(target.width),
        );
        self.ctx.packet.filled[into] = self.ctx.packet.filled[out_of];
    }

    /// Whether two variable fields have the same width and bits; those of invalid headers are empty.
    pub(super) fn variables_equal(&self, a: Option<usize>, b: Option<usize>) -> bool {
        let content = |header: Option<usize>| {
            let header = header.filter(|&header| self.is_valid_number(header))?;
            let field = self.engine.headers[header].variable.as_ref()?;
            Some((field.offset, usize::from(self.ctx.packet.filled[header])))
        };
        let length = |content: Option<(usize, usize)>| content.map_or(0, |(_, length)| length);
        let (a, b) = (content(a), content(b));
        if length(a) != length(b) {
            return false;
        }
        let (Some((a, length)), Some((b, _))) = (a, b) else {
            return true;
        };
        (0..length).step_by(64).all(|at| {
            let width = (length - at).min(64) as u32;
            bits::get(&self.ctx.packet.phv, a + at, width) == bits::get(&self.ctx.packet.phv, b + at, width)
        })
    }

    pub(super) fn headers_equal(&self, a: Option<usize>, b: Option<usize>) -> bool {
        let valid = |header: Option<usize>| header.filter(|&header| self.is_valid_number(header));
        match (valid(a), valid(b)) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                // Unused bits of a variable field are zero.
                let bytes = |header: usize| self.ctx.packet.phv.get(self.engine.headers[header].range());
                self.ctx.packet.filled[a] == self.ctx.packet.filled[b] && bytes(a) == bytes(b)
            }
            _ => false,
        }
    }

    pub(super) fn unions_equal(&self, a: Option<usize>, b: Option<usize>, members: u16) -> bool {
        (0..usize::from(members))
            .all(|member| self.headers_equal(a.map(|first| first + member), b.map(|first| first + member)))
    }

    pub(super) fn stacks_equal(&self, a: StackId, b: StackId) -> bool {
        let program = self.engine.program();
        let (a, b) = (&program.stacks[a.index()], &program.stacks[b.index()]);
        (0..usize::from(a.size.min(b.size)))
            .all(|at| self.headers_equal(Some(a.first.index() + at), Some(b.first.index() + at)))
    }

    pub(super) fn copy_union(&mut self, to: UnionId, from: UnionId) {
        let program = self.engine.program();
        let (to, from) = (&program.unions[to.index()], &program.unions[from.index()]);
        let members = program.union_types[to.ty.index()].members.len();
        let valid = (0..members).find(|&member| self.is_valid_number(from.first.index() + member));
        for member in 0..members {
            if Some(member) != valid {
                self.invalidate(to.first.index() + member);
            }
        }
        if let Some(member) = valid {
            self.copy_header(to.first.index() + member, from.first.index() + member);
        }
    }

    pub(super) fn copy_stack(&mut self, to: StackId, from: StackId) {
        let program = self.engine.program();
        let (target, source) = (&program.stacks[to.index()], &program.stacks[from.index()]);
        for at in 0..usize::from(target.size.min(source.size)) {
            self.copy_header(target.first.index() + at, source.first.index() + at);
        }
        self.ctx.packet.next[to.index()] = self.ctx.packet.next[from.index()];
    }

    pub(super) fn copy_union_stack(&mut self, to: UnionStackId, from: UnionStackId) {
        let program = self.engine.program();
        let (target, source) = (
            &program.union_stacks[to.index()],
            &program.union_stacks[from.index()],
        );
        for at in 0..target.size.min(source.size) {
            self.copy_union(UnionId(target.first.0 + at), UnionId(source.first.0 + at));
        }
        let stacks = program.stacks.len();
        self.ctx.packet.next[stacks + to.index()] = self.ctx.packet.next[stacks + from.index()];
    }

    /// `push_front`: elements move up, the lowest become invalid.
    pub(super) fn push(&mut self, stack: StackId, count: u16) {
        let stack_info = &self.engine.program().stacks[stack.index()];
        let (first, size, count) = (
            stack_info.first.index(),
            usize::from(stack_info.size),
            usize::from(count),
        );
        for at in (count..size).rev() {
            self.copy_header(first + at, first + at - count);
        }
        for at in 0..count.min(size) {
            self.invalidate(first + at);
        }
        let next = &mut self.ctx.packet.next[stack.index()];
        *next = (usize::from(*next) + count).min(size) as u16;
    }

    /// `pop_front`: elements move down, the highest become invalid.
    pub(super) fn pop(&mut self, stack: StackId, count: u16) {
        let stack_info = &self.engine.program().stacks[stack.index()];
        let (first, size) = (stack_info.first.index(), usize::from(stack_info.size));
        let moved = size.saturating_sub(usize::from(count));
        for at in 0..moved {
            self.copy_header(first + at, first + at + usize::from(count));
        }
        for at in moved..size {
            self.invalidate(first + at);
        }
        let next = &mut self.ctx.packet.next[stack.index()];
        *next = next.saturating_sub(count);
    }

    pub(super) fn push_union(&mut self, stack: UnionStackId, count: u16) {
        let program = self.engine.program();
        let info = &program.union_stacks[stack.index()];
        for at in (count..info.size).rev() {
            self.copy_union(UnionId(info.first.0 + at), UnionId(info.first.0 + at - count));
        }
        for at in 0..count.min(info.size) {
            self.clear_union(UnionId(info.first.0 + at));
        }
        let next = &mut self.ctx.packet.next[program.stacks.len() + stack.index()];
        *next = next.saturating_add(count).min(info.size);
    }

    pub(super) fn pop_union(&mut self, stack: UnionStackId, count: u16) {
        let program = self.engine.program();
        let info = &program.union_stacks[stack.index()];
        let moved = info.size.saturating_sub(count);
        for at in 0..moved {
            self.copy_union(UnionId(info.first.0 + at), UnionId(info.first.0 + at + count));
        }
        for at in moved..info.size {
            self.clear_union(UnionId(info.first.0 + at));
        }
        let next = &mut self.ctx.packet.next[program.stacks.len() + stack.index()];
        *next = next.saturating_sub(count);
    }

    fn clear_union(&mut self, union: UnionId) {
        let program = self.engine.program();
        let union = &program.unions[union.index()];
        for member in 0..program.union_types[union.ty.index()].members.len() {
            self.invalidate(union.first.index() + member);
        }
    }

    /// First bit and width of a field of a header by its position in the type.
    pub(super) fn member(&self, header: usize, member: u16) -> Option<(usize, u32)> {
        let program = self.engine.program();
        let first = program.headers.get(header)?.first_field.index();
        let field = program.fields.get(first + usize::from(member))?;
        Some((field.offset as usize, u32::from(field.width)))
    }
}

/// An element of `size` things side by side.
fn element((first, size): (usize, u64), index: u64) -> Option<usize> {
    (index < size).then(|| first + index as usize)
}
