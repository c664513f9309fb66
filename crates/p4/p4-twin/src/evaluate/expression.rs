//! Expressions, by recursion.

use super::{Evaluator, Packet, Stop, Value};
use num_bigint::{BigInt, BigUint};
use p4_ir::{Binary, ExprId, ExprKind, HeaderId, HeaderRef, Place, StackId, Type, Unary, UnionId, UnionRef};

/// `StackOutOfBounds` and `PacketTooShort` of `core.p4`.
const STACK_OUT_OF_BOUNDS: u32 = 3;
pub(super) const PACKET_TOO_SHORT: u32 = 1;

impl<'p> Evaluator<'p> {
    pub(super) fn evaluate(&mut self, packet: &mut Packet, id: ExprId) -> Result<Value, Stop> {
        let expr = self.program.exprs[id.index()];
        let width = match expr.ty {
            Type::Bits(width) => u32::from(width),
            Type::Bool => 1,
        };
        Ok(match expr.kind {
            ExprKind::Constant(number) => Value::new(number, width),
            ExprKind::WideConstant(constant) => Value::of(&self.program.constants[constant.index()]),
            ExprKind::Bool(yes) => Value::bool(yes),
            ExprKind::Field(field) => self.read_place(packet, Place::Field(field))?,
            ExprKind::Member(header, member) => {
                let value = self.read_place(packet, Place::Member(header, member))?;
                Value::new(value.number, width)
            }
            ExprKind::Parameter(at) => packet.arguments[usize::from(at)].clone(),
            ExprKind::Valid(header) => {
                // One that its stack does not have is not valid, and that is no error here.
                let header = self.find(packet, header).unwrap_or(None);
                Value::bool(header.is_some_and(|header| packet.valid[header.index()]))
            }
            ExprKind::UnionValid(union) => {
                let union = self.find_union(packet, union)?;
                Value::bool(union.is_some_and(|union| self.valid_member(packet, union).is_some()))
            }
            ExprKind::HeadersEqual(a, b) => {
                let (a, b) = (self.find(packet, a)?, self.find(packet, b)?);
                Value::bool(self.headers_equal(packet, a, b))
            }
            ExprKind::UnionsEqual(a, b) => {
                let (a, b) = (self.find_union(packet, a)?, self.find_union(packet, b)?);
                let a = a.and_then(|union| self.valid_member(packet, union));
                let b = b.and_then(|union| self.valid_member(packet, union));
                Value::bool(match (a, b) {
                    (None, None) => true,
                    (Some((at, a)), Some((other, b))) => {
                        at == other && self.headers_equal(packet, Some(a), Some(b))
                    }
                    _ => false,
                })
            }
            ExprKind::StacksEqual(a, b) => {
                let size = self.program.stacks[a.index()].size;
                Value::bool((0..size).all(|i| {
                    self.headers_equal(packet, self.element(a, i.into()), self.element(b, i.into()))
                }))
            }
            ExprKind::VariablesEqual(a, b) => {
                let (a, b) = (self.variable(packet, a)?, self.variable(packet, b)?);
                Value::bool(a == b)
            }
            ExprKind::LastIndex(stack) => {
                let last = u32::from(packet.next[stack.index()]).wrapping_sub(1);
                Value::new(last, width)
            }
            ExprKind::NextIndex(stack) => Value::new(packet.next[stack.index()], width),
            ExprKind::Lookahead { offset } => {
                let start = packet.cursor + usize::from(offset);
                let bits = self.input_bits(packet, start, width as usize)?;
                Value::from_bits(&bits)
            }
            ExprKind::Unary(unary, operand) => {
                let operand = self.evaluate(packet, operand)?;
                self.unary(unary, &operand, width)
            }
            ExprKind::Binary(binary, a, b) => self.binary(packet, binary, a, b, width)?,
            ExprKind::Mux(condition, yes, no) => {
                let chosen = if self.evaluate(packet, condition)?.is_true() {
                    yes
                } else {
                    no
                };
                self.evaluate(packet, chosen)?
            }
            ExprKind::Slice(operand, low) => {
                let operand = self.evaluate(packet, operand)?;
                Value::new(operand.number >> u32::from(low), width)
            }
        })
    }

    fn unary(&self, unary: Unary, operand: &Value, width: u32) -> Value {
        let all_ones = |width: u32| (BigUint::from(1u8) << width) - BigUint::from(1u8);
        let clamp =
            |number: BigInt, low: BigInt, high: BigInt| Value::from_signed(&number.clamp(low, high), width);
        let unsigned_high = BigInt::from(all_ones(width));
        let half = BigInt::from(BigUint::from(1u8) << (width - 1));
        let signed_high = half.clone() - BigInt::from(1u8);
        match unary {
            Unary::Not => Value::bool(!operand.is_true()),
            Unary::Complement => Value::new(all_ones(width) ^ &operand.number, width),
            Unary::Negate => Value::from_signed(&-BigInt::from(operand.number.clone()), width),
            Unary::ZeroExtend | Unary::Truncate | Unary::ToBits => Value::new(operand.number.clone(), width),
            Unary::SignExtend => Value::from_signed(&operand.signed(), width),
            Unary::ToBool => Value::bool(operand.is_true()),
            Unary::SaturateUnsigned => {
                clamp(BigInt::from(operand.number.clone()), BigInt::ZERO, unsigned_high)
            }
            Unary::SaturateSignedToUnsigned => clamp(operand.signed(), BigInt::ZERO, unsigned_high),
            Unary::SaturateSigned => clamp(operand.signed(), -half, signed_high),
            Unary::SaturateUnsignedToSigned => {
                clamp(BigInt::from(operand.number.clone()), -half, signed_high)
            }
        }
    }

    fn binary(
        &mut self,
        packet: &mut Packet,
        binary: Binary,
        a: ExprId,
        b: ExprId,
        width: u32,
    ) -> Result<Value, Stop> {
        let a = self.evaluate(packet, a)?;
        match binary {
            Binary::AndAlso if !a.is_true() => return Ok(Value::bool(false)),
            Binary::OrElse if a.is_true() => return Ok(Value::bool(true)),
            _ => {}
        }
        let b = self.evaluate(packet, b)?;
        let zero = b.number == BigUint::ZERO;
        let by = b.saturating_usize().min(width as usize);
        let signed = |number: BigInt| Value::from_signed(&number, width);
        Ok(match binary {
            Binary::Add => Value::new(a.number + b.number, width),
            Binary::Sub => signed(BigInt::from(a.number) - BigInt::from(b.number)),
            Binary::Mul => Value::new(a.number * b.number, width),
            Binary::Div | Binary::Mod | Binary::DivSigned | Binary::ModSigned if zero => {
                Value::new(0u8, width)
            }
            Binary::Div => Value::new(a.number / b.number, width),
            Binary::Mod => Value::new(a.number % b.number, width),
            Binary::DivSigned => signed(a.signed() / b.signed()),
            Binary::ModSigned => signed(a.signed() % b.signed()),
            Binary::And => Value::new(a.number & b.number, width),
            Binary::Or => Value::new(a.number | b.number, width),
            Binary::Xor => Value::new(a.number ^ b.number, width),
            Binary::ShiftLeft => Value::new(a.number << by, width),
            Binary::ShiftRight => Value::new(a.number >> by, width),
            // The shift of a signed number without bounds rounds down, as the copies of the sign do.
            Binary::ShiftRightSigned => signed(a.signed() >> by),
            Binary::Concat => Value::new((a.number << b.width) + b.number, width),
            Binary::Equal => Value::bool(a.number == b.number),
            Binary::NotEqual => Value::bool(a.number != b.number),
            Binary::Less => Value::bool(a.number < b.number),
            Binary::LessEqual => Value::bool(a.number <= b.number),
            Binary::LessSigned => Value::bool(a.signed() < b.signed()),
            Binary::LessEqualSigned => Value::bool(a.signed() <= b.signed()),
            Binary::AndAlso | Binary::OrElse => b,
        })
    }

    // Headers.

    /// The element of a stack, if there is such a one.
    fn element(&self, stack: StackId, at: usize) -> Option<HeaderId> {
        let stack = &self.program.stacks[stack.index()];
        (at < usize::from(stack.size)).then(|| HeaderId::at(stack.first.index() + at).expect("in range"))
    }

    /// The header meant; `None` if there is none.
    pub(super) fn find(&mut self, packet: &mut Packet, header: HeaderRef) -> Result<Option<HeaderId>, Stop> {
        let out_of_bounds = Stop::Parser(STACK_OUT_OF_BOUNDS);
        match header {
            HeaderRef::Header(header) => Ok(Some(header)),
            HeaderRef::Next(stack) => {
                let at = usize::from(packet.next[stack.index()]);
                self.element(stack, at).map(Some).ok_or(out_of_bounds)
            }
            HeaderRef::Last(stack) => {
                let at = usize::from(packet.next[stack.index()]).checked_sub(1);
                at.and_then(|at| self.element(stack, at))
                    .map(Some)
                    .ok_or(out_of_bounds)
            }
            HeaderRef::Element(stack, at) => {
                let at = self.evaluate(packet, at)?.saturating_usize();
                Ok(self.element(stack, at))
            }
            HeaderRef::UnionElement(stack, at, member) => {
                let union = self.find_union(packet, UnionRef::Element(stack, at))?;
                Ok(union.map(|union| self.member(union, member)))
            }
            HeaderRef::UnionNext(stack, member) => {
                let at = usize::from(packet.next_union[stack.index()]);
                let union = self.union_element(stack, at).ok_or(out_of_bounds)?;
                Ok(Some(self.member(union, member)))
            }
            HeaderRef::UnionLast(stack, member) => {
                let at = usize::from(packet.next_union[stack.index()]).checked_sub(1);
                let union = at
                    .and_then(|at| self.union_element(stack, at))
                    .ok_or(out_of_bounds)?;
                Ok(Some(self.member(union, member)))
            }
        }
    }

    fn member(&self, union: UnionId, member: u16) -> HeaderId {
        let first = self.program.unions[union.index()].first.index();
        HeaderId::at(first + usize::from(member)).expect("in range")
    }

    fn union_element(&self, stack: p4_ir::UnionStackId, at: usize) -> Option<UnionId> {
        let stack = &self.program.union_stacks[stack.index()];
        (at < usize::from(stack.size)).then(|| UnionId::at(stack.first.index() + at).expect("in range"))
    }

    fn find_union(&mut self, packet: &mut Packet, union: UnionRef) -> Result<Option<UnionId>, Stop> {
        Ok(match union {
            UnionRef::Union(union) => Some(union),
            UnionRef::Element(stack, at) => {
                let at = self.evaluate(packet, at)?.saturating_usize();
                self.union_element(stack, at)
            }
        })
    }

    /// All members of a union.
    pub(super) fn members(&self, union: UnionId) -> Vec<HeaderId> {
        let ty = self.program.unions[union.index()].ty;
        let count = self.program.union_types[ty.index()].members.len();
        (0..count)
            .map(|at| self.member(union, u16::try_from(at).expect("short")))
            .collect()
    }

    fn valid_member(&self, packet: &Packet, union: UnionId) -> Option<(usize, HeaderId)> {
        let mut members = self.members(union).into_iter().enumerate();
        members.find(|(_, header)| packet.valid[header.index()])
    }

    fn headers_equal(&self, packet: &Packet, a: Option<HeaderId>, b: Option<HeaderId>) -> bool {
        let valid = |header: Option<HeaderId>| header.filter(|header| packet.valid[header.index()]);
        match (valid(a), valid(b)) {
            (None, None) => true,
            (Some(a), Some(b)) => self.header_bits(packet, a) == self.header_bits(packet, b),
            _ => false,
        }
    }

    // Places.

    /// Header and position in the vector of fields; `None` if there is no such header.
    pub(super) fn locate(
        &mut self,
        packet: &mut Packet,
        place: Place,
    ) -> Result<Option<(HeaderId, usize)>, Stop> {
        Ok(match place {
            Place::Field(field) => Some((self.program.fields[field.index()].header, field.index())),
            Place::Member(header, member) => self.find(packet, header)?.map(|header| {
                let first = self.program.headers[header.index()].first_field.index();
                (header, first + usize::from(member))
            }),
        })
    }

    /// The contents of a variable field; none if the header is invalid.
    pub(super) fn variable(&mut self, packet: &mut Packet, place: Place) -> Result<Value, Stop> {
        Ok(match self.locate(packet, place)? {
            Some((header, at)) if packet.valid[header.index()] => packet.fields[at].clone(),
            _ => Value::new(0u8, 0),
        })
    }

    pub(super) fn place_is_valid(&mut self, packet: &mut Packet, place: Place) -> bool {
        let located = self.locate(packet, place);
        located.is_ok_and(|found| found.is_some_and(|(header, _)| packet.valid[header.index()]))
    }

    /// Zero if the header is invalid.
    pub(super) fn read_place(&mut self, packet: &mut Packet, place: Place) -> Result<Value, Stop> {
        Ok(match self.locate(packet, place)? {
            Some((header, at)) if packet.valid[header.index()] => packet.fields[at].clone(),
            Some((_, at)) => Value::new(0u8, packet.fields[at].width),
            None => Value::new(0u8, 1),
        })
    }

    /// Without effect if the header is invalid.
    pub(super) fn write_place(
        &mut self,
        packet: &mut Packet,
        place: Place,
        number: BigUint,
    ) -> Result<(), Stop> {
        if let Some((header, at)) = self.locate(packet, place)?
            && packet.valid[header.index()]
        {
            let width = u32::from(self.program.fields[at].width);
            packet.fields[at] = Value::new(number, width);
        }
        Ok(())
    }

    /// Bits of the packet, if it has them.
    pub(super) fn input_bits(&self, packet: &Packet, start: usize, count: usize) -> Result<Vec<bool>, Stop> {
        if start + count > packet.input.len() * 8 {
            return Err(Stop::Parser(PACKET_TOO_SHORT));
        }
        let bit = |at: usize| packet.input[at / 8] >> (7 - at % 8) & 1 == 1;
        Ok((start..start + count).map(bit).collect())
    }
}
