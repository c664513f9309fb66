//! Actions and their operations.

use super::{Evaluator, Packet, Stop, Value};
use num_bigint::BigUint;
use p4_ir::{ActionId, HeaderId, HeaderRef, Op, RegisterId, Role, StackId, UnionId, UnionStackId};

impl<'p> Evaluator<'p> {
    pub(super) fn act(
        &mut self,
        packet: &mut Packet,
        action: ActionId,
        arguments: Vec<Value>,
    ) -> Result<(), Stop> {
        packet.arguments = arguments;
        let ops = &self.program.actions[action.index()].ops;
        let mut at = 0;
        while at < ops.len() {
            let next = match &ops[at] {
                Op::Jump(to) => usize::from(*to),
                Op::JumpUnless(condition, to) => {
                    if self.evaluate(packet, *condition)?.is_true() {
                        at + 1
                    } else {
                        usize::from(*to)
                    }
                }
                op => {
                    self.operate(packet, op)?;
                    at + 1
                }
            };
            if next <= at {
                if packet.turns == self.loop_turns {
                    return Err(Stop::Loops);
                }
                packet.turns += 1;
            }
            at = next;
        }
        Ok(())
    }

    pub(super) fn operate(&mut self, packet: &mut Packet, op: &Op) -> Result<(), Stop> {
        match op {
            Op::Assign(place, value) => {
                let value = self.evaluate(packet, *value)?;
                self.write_place(packet, *place, value.number)?;
            }
            Op::SetValid(header) => {
                if let Some(header) = self.find(packet, *header)? {
                    self.set_valid(packet, header);
                }
            }
            Op::SetInvalid(header) => {
                if let Some(header) = self.find(packet, *header)? {
                    packet.valid[header.index()] = false;
                }
            }
            Op::CopyHeader(to, from) => {
                let (to, from) = (self.find(packet, *to)?, self.find(packet, *from)?);
                if let Some(to) = to {
                    let from = from.filter(|from| packet.valid[from.index()]);
                    self.copy_header(packet, to, from);
                }
            }
            Op::CopyStack(to, from) => {
                for i in 0..self.program.stacks[to.index()].size {
                    let (to, from) = (self.element_of(*to, i), self.element_of(*from, i));
                    let from = Some(from).filter(|from| packet.valid[from.index()]);
                    self.copy_header(packet, to, from);
                }
                packet.next[to.index()] = packet.next[from.index()];
            }
            Op::CopyVariable(to, from) => {
                let from = self.variable(packet, *from)?;
                if let Some((header, at)) = self.locate(packet, *to)?
                    && packet.valid[header.index()]
                {
                    packet.fields[at] = from;
                }
            }
            Op::CopyUnion(to, from) => self.copy_union(packet, *to, *from),
            Op::CopyUnionStack(to, from) => {
                for i in 0..self.program.union_stacks[to.index()].size {
                    self.copy_union(packet, self.union_of(*to, i), self.union_of(*from, i));
                }
                packet.next_union[to.index()] = packet.next_union[from.index()];
            }
            Op::PushUnion(stack, count) => self.shift_unions(packet, *stack, i32::from(*count)),
            Op::PopUnion(stack, count) => self.shift_unions(packet, *stack, -i32::from(*count)),
            Op::Push(stack, count) => self.shift(packet, *stack, i32::from(*count)),
            Op::Pop(stack, count) => self.shift(packet, *stack, -i32::from(*count)),
            Op::RegisterRead(place, register, index) => {
                let cell = self.cell(packet, *register, *index)?;
                let value = cell.map_or(BigUint::ZERO, |cell| cell.clone());
                self.write_place(packet, *place, value)?;
            }
            Op::RegisterWrite(register, index, value) => {
                let value = self.evaluate(packet, *value)?;
                if let Some(cell) = self.cell(packet, *register, *index)? {
                    *cell = value.number;
                }
            }
            Op::Hash {
                calculation,
                result,
                base,
                max,
            } => {
                let hash = self.calculate(packet, *calculation).unwrap_or_default();
                let value = match max {
                    None => hash,
                    Some(max) => {
                        let base = self.evaluate(packet, *base)?.number;
                        let max = self.evaluate(packet, *max)?.number;
                        base + hash % max.max(BigUint::from(1u8))
                    }
                };
                self.write_place(packet, *result, value)?;
            }
            Op::Resubmit(list) => packet.resubmit = Some(*list),
            Op::Recirculate(list) => packet.recirculate = Some(*list),
            Op::Truncate(len) => {
                let len = self.evaluate(packet, *len)?.saturating_usize();
                packet.truncate = Some(packet.truncate.map_or(len, |other| other.min(len)));
            }
            Op::MarkToDrop => {
                self.set(packet, Role::EgressSpec, super::DROP);
                self.set(packet, Role::McastGrp, 0);
            }
            Op::Exit => return Err(Stop::Exit),
            Op::Assert(_) | Op::Log(..) => {}
            Op::Jump(_) | Op::JumpUnless(..) => unreachable!("followed by the caller"),
            other => unimplemented!("needs a controller: {other:?}"),
        }
        Ok(())
    }

    fn cell(
        &mut self,
        packet: &mut Packet,
        register: RegisterId,
        index: p4_ir::ExprId,
    ) -> Result<Option<&mut BigUint>, Stop> {
        let index = self.evaluate(packet, index)?.saturating_usize();
        Ok(self.registers[register.index()].get_mut(index))
    }

    fn element_of(&self, stack: StackId, at: u16) -> HeaderId {
        let first = self.program.stacks[stack.index()].first.index();
        HeaderId::at(first + usize::from(at)).expect("in range")
    }

    /// The members of the union that `header` is in, but itself.
    fn siblings(&self, header: HeaderId) -> Vec<HeaderId> {
        let unions = (0..self.program.unions.len()).filter_map(UnionId::at);
        let mut members = unions.map(|union| self.members(union));
        let mut own = members
            .find(|members| members.contains(&header))
            .unwrap_or_default();
        own.retain(|other| *other != header);
        own
    }

    /// Fields are zero if it was invalid.
    pub(super) fn set_valid(&self, packet: &mut Packet, header: HeaderId) {
        if !packet.valid[header.index()] {
            for at in self.fields_of(header) {
                let width = if self.program.fields[at].variable {
                    0
                } else {
                    self.program.fields[at].width.into()
                };
                packet.fields[at] = Value::new(0u8, width);
            }
        }
        for other in self.siblings(header) {
            packet.valid[other.index()] = false;
        }
        packet.valid[header.index()] = true;
    }

    pub(super) fn fields_of(&self, header: HeaderId) -> std::ops::Range<usize> {
        let instance = &self.program.headers[header.index()];
        let first = instance.first_field.index();
        first..first + self.program.header_types[instance.ty.index()].fields.len()
    }

    /// From a header that is valid, or from an invalid one.
    fn copy_header(&self, packet: &mut Packet, to: HeaderId, from: Option<HeaderId>) {
        let Some(from) = from else {
            packet.valid[to.index()] = false;
            return;
        };
        let values: Vec<Value> = packet.fields[self.fields_of(from)].to_vec();
        self.set_valid(packet, to);
        for (at, value) in self.fields_of(to).zip(values) {
            packet.fields[at] = value;
        }
    }

    fn copy_union(&self, packet: &mut Packet, to: UnionId, from: UnionId) {
        if to == from {
            return;
        }
        for (to, from) in self.members(to).into_iter().zip(self.members(from)) {
            packet.valid[to.index()] = packet.valid[from.index()];
            for (to, from) in self.fields_of(to).zip(self.fields_of(from)) {
                packet.fields[to] = packet.fields[from].clone();
            }
        }
    }

    /// Moves elements up (or down, if negative); those that enter are invalid.
    fn shift(&self, packet: &mut Packet, stack: StackId, by: i32) {
        let size = i32::from(self.program.stacks[stack.index()].size);
        let before = packet.clone();
        for to in 0..size {
            let from = to - by;
            let header = self.element_of(stack, u16::try_from(to).expect("in range"));
            if !(0..size).contains(&from) {
                packet.valid[header.index()] = false;
                continue;
            }
            let source = self.element_of(stack, u16::try_from(from).expect("in range"));
            packet.valid[header.index()] = before.valid[source.index()];
            for (to, from) in self.fields_of(header).zip(self.fields_of(source)) {
                packet.fields[to] = before.fields[from].clone();
            }
        }
        let next = i32::from(packet.next[stack.index()]) + by;
        packet.next[stack.index()] = u16::try_from(next.clamp(0, size)).expect("in range");
    }

    fn union_of(&self, stack: UnionStackId, at: u16) -> UnionId {
        let first = self.program.union_stacks[stack.index()].first.index();
        UnionId::at(first + usize::from(at)).expect("in range")
    }

    /// As [`Self::shift`], for unions.
    fn shift_unions(&self, packet: &mut Packet, stack: UnionStackId, by: i32) {
        let size = i32::from(self.program.union_stacks[stack.index()].size);
        let before = packet.clone();
        for to in 0..size {
            let from = to - by;
            let members = self.members(self.union_of(stack, u16::try_from(to).expect("in range")));
            if !(0..size).contains(&from) {
                members
                    .iter()
                    .for_each(|header| packet.valid[header.index()] = false);
                continue;
            }
            let sources = self.members(self.union_of(stack, u16::try_from(from).expect("in range")));
            for (header, source) in members.into_iter().zip(sources) {
                packet.valid[header.index()] = before.valid[source.index()];
                for (to, from) in self.fields_of(header).zip(self.fields_of(source)) {
                    packet.fields[to] = before.fields[from].clone();
                }
            }
        }
        let next = i32::from(packet.next_union[stack.index()]) + by;
        packet.next_union[stack.index()] = u16::try_from(next.clamp(0, size)).expect("in range");
    }

    /// Writes the bytes that the parser took from the packet.
    pub(super) fn fill(&self, packet: &mut Packet, header: HeaderId, bits: &[bool], variable: usize) {
        self.set_valid(packet, header);
        let mut at = 0;
        for field in self.fields_of(header) {
            let description = &self.program.fields[field];
            let width = if description.variable {
                variable
            } else {
                description.width.into()
            };
            packet.fields[field] = Value::from_bits(&bits[at..at + width]);
            at += width;
        }
    }

    /// Which stack's next element a reference means, to move on after it was extracted.
    pub(super) fn advance_stack(&self, packet: &mut Packet, header: HeaderRef) {
        match header {
            HeaderRef::Next(stack) => packet.next[stack.index()] += 1,
            HeaderRef::UnionNext(stack, _) => packet.next_union[stack.index()] += 1,
            _ => {}
        }
    }
}
