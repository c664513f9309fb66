//! Additional elements of rich programs: a second stack, a second header with a variable field, unions and
//! stacks of unions.

use super::{FIRST, Generator, HEADERS, STACK, USER, index, short};
use p4_ir::{
    Emit, ExprId, ExprKind, HeaderId, HeaderRef, HeaderTypeId, Op, ParserOp, Place, Stack, StackId, Type,
    Unary, Union, UnionId, UnionRef, UnionStack, UnionStackId, UnionType, UnionTypeId,
};

/// Types of a union's members: those of `h0` twice, so that members can be copied to each other.
const MEMBERS: [usize; 3] = [2, 2, 3];
/// Unions that stand alone.
const UNIONS: u16 = 2;
/// Elements of each of the two stacks of unions.
const ELEMENTS: u16 = 2;
const OTHER_STACK: StackId = StackId(1);
/// The header with a variable field, and the type that it shares with the second one.
const VARIABLE: HeaderId = HeaderId(FIRST + HEADERS as u16 - 1);
const VARIABLE_TYPE: usize = HEADERS + 1;

/// Name, type, and whether it is metadata: elements of the other stack, the second header with a variable
/// field, members.
pub(super) fn instances(size: u16) -> Vec<(String, usize, bool)> {
    let mut instances: Vec<_> = (0..size)
        .map(|i| (format!("z[{i}]"), 2 + HEADERS, false))
        .collect();
    instances.push(("other_variable".into(), VARIABLE_TYPE, false));
    for union in 0..UNIONS + 2 * ELEMENTS {
        instances.extend(
            (0..)
                .zip(MEMBERS)
                .map(|(i, ty): (u16, _)| (format!("u{union}.m{i}"), ty, false)),
        );
    }
    instances
}

pub(super) fn emits() -> Vec<Emit> {
    let mut emits = vec![Emit::Stack(OTHER_STACK)];
    emits.extend((0..UNIONS).map(|at| Emit::Union(UnionId(at))));
    emits.extend((0..2).map(|at| Emit::UnionStack(UnionStackId(at))));
    emits
}

impl Generator {
    /// Follows [`instances`].
    pub(super) fn unions_and_stacks(&mut self, size: u16) {
        let program = &mut self.program;
        let first = program.stacks[0].first.0 + size;
        program.stacks.push(Stack {
            name: "z".into(),
            first: HeaderId(first),
            ..program.stacks[0].clone()
        });
        program.union_types = vec![UnionType {
            name: "u_t".into(),
            members: (0..)
                .zip(MEMBERS)
                .map(|(i, ty): (u16, _)| (format!("m{i}"), index(ty, HeaderTypeId::at)))
                .collect(),
        }];
        program.unions = (0..UNIONS + 2 * ELEMENTS)
            .map(|at| Union {
                name: format!("u{at}"),
                ty: UnionTypeId(0),
                first: HeaderId(first + size + 1 + at * short(MEMBERS.len())),
            })
            .collect();
        program.union_stacks = (0..2)
            .map(|at| UnionStack {
                name: format!("us{at}"),
                ty: UnionTypeId(0),
                first: UnionId(UNIONS + at * ELEMENTS),
                size: ELEMENTS,
            })
            .collect();
    }

    fn other_variable(&self) -> HeaderId {
        HeaderId(self.program.unions[0].first.0 - 1)
    }

    /// A number that is often that of an element.
    fn position(&mut self) -> ExprId {
        match self.random.u8(..4) {
            0 => self.push(ExprKind::NextIndex(STACK), Type::Bits(32)),
            1 => self.push(ExprKind::LastIndex(STACK), Type::Bits(32)),
            2 => {
                let field = self.program.headers[USER.index()].first_field;
                let width = self.program.fields[field.index()].width;
                let field = self.push(ExprKind::Field(field), Type::Bits(width));
                if width > 2 && self.random.bool() {
                    return self.push(ExprKind::Unary(Unary::Truncate, field), Type::Bits(2));
                }
                field
            }
            _ => {
                let number = self.random.u64(..4);
                self.push(ExprKind::Constant(number), Type::Bits(8))
            }
        }
    }

    fn stack(&mut self) -> StackId {
        [STACK, OTHER_STACK][self.random.usize(..2)]
    }

    fn union_stack(&mut self) -> UnionStackId {
        UnionStackId(self.random.u16(..2))
    }

    fn member(&mut self) -> u16 {
        self.random.u16(..short(MEMBERS.len()))
    }

    /// An element of a stack that is not known before a packet comes.
    pub(super) fn found_at_run_time(&mut self) -> Option<HeaderRef> {
        let stack = self.stack();
        match self.random.u8(..4) {
            0 if self.in_parser => Some(HeaderRef::Next(stack)),
            1 if self.in_parser => Some(HeaderRef::Last(stack)),
            0..3 => {
                let at = self.position();
                Some(HeaderRef::Element(stack, at))
            }
            _ => None,
        }
    }

    fn union_member(&mut self) -> HeaderRef {
        let (stack, member) = (self.union_stack(), self.member());
        match self.random.u8(..4) {
            0 if self.in_parser => HeaderRef::UnionNext(stack, member),
            1 if self.in_parser => HeaderRef::UnionLast(stack, member),
            0..2 => {
                let at = self.position();
                HeaderRef::UnionElement(stack, at, member)
            }
            _ => {
                let union = self.random.usize(..self.program.unions.len());
                HeaderRef::Header(HeaderId(self.program.unions[union].first.0 + member))
            }
        }
    }

    pub(super) fn rich_header(&mut self) -> HeaderRef {
        match self.random.u8(..4) {
            0 => HeaderRef::Header(self.other_variable()),
            1 => self.element(),
            _ => self.union_member(),
        }
    }

    /// Something without a variable field.
    pub(super) fn rich_extract(&mut self) -> HeaderRef {
        match self.random.u8(..3) {
            0 => HeaderRef::Next(self.stack()),
            1 => HeaderRef::UnionNext(self.union_stack(), self.member()),
            _ => {
                let (stack, at, member) = (self.union_stack(), self.position(), self.member());
                HeaderRef::UnionElement(stack, at, member)
            }
        }
    }

    fn union_ref(&mut self) -> UnionRef {
        if self.random.bool() {
            return UnionRef::Union(UnionId(self.random.u16(..short(self.program.unions.len()))));
        }
        let (stack, at) = (self.union_stack(), self.position());
        UnionRef::Element(stack, at)
    }

    fn variables(&mut self) -> (Place, Place) {
        let ty = &self.program.header_types[VARIABLE_TYPE];
        let member = ty.variable().expect("it has one");
        let other = self.other_variable();
        let mut both = [VARIABLE, other].map(|header| Place::Member(HeaderRef::Header(header), member));
        if self.random.bool() {
            both.reverse();
        }
        (both[0], both[1])
    }

    /// Something that is true or false.
    pub(super) fn rich_comparison(&mut self) -> ExprKind {
        match self.random.u8(..6) {
            0 => ExprKind::UnionValid(self.union_ref()),
            1 => ExprKind::UnionsEqual(self.union_ref(), self.union_ref()),
            2 => ExprKind::StacksEqual(STACK, OTHER_STACK),
            3 => {
                let (a, b) = self.variables();
                ExprKind::VariablesEqual(a, b)
            }
            4 => ExprKind::HeadersEqual(self.element(), self.element()),
            _ => ExprKind::HeadersEqual(
                HeaderRef::Header(VARIABLE),
                HeaderRef::Header(self.other_variable()),
            ),
        }
    }

    pub(super) fn rich_op(&mut self) -> Op {
        let unions = short(self.program.unions.len());
        match self.random.u8(..12) {
            0 | 1 => {
                let (to, from) = self.variables();
                Op::CopyVariable(to, from)
            }
            2 => {
                let (a, b) = (
                    HeaderRef::Header(VARIABLE),
                    HeaderRef::Header(self.other_variable()),
                );
                if self.random.bool() {
                    Op::CopyHeader(a, b)
                } else {
                    Op::CopyHeader(b, a)
                }
            }
            3 | 4 => Op::CopyUnion(
                UnionId(self.random.u16(..unions)),
                UnionId(self.random.u16(..unions)),
            ),
            5 => {
                // Two members of one union.
                let first = self.program.unions[usize::from(self.random.u16(..unions))]
                    .first
                    .0;
                let to = self.random.u16(..2);
                Op::CopyHeader(
                    HeaderRef::Header(HeaderId(first + to)),
                    HeaderRef::Header(HeaderId(first + 1 - to)),
                )
            }
            6 => Op::CopyStack(self.stack(), self.stack()),
            7 => Op::CopyUnionStack(self.union_stack(), self.union_stack()),
            8 => Op::PushUnion(self.union_stack(), self.random.u16(1..3)),
            9 => Op::PopUnion(self.union_stack(), self.random.u16(1..3)),
            10 => Op::SetValid(self.union_member()),
            _ => Op::SetInvalid(self.union_member()),
        }
    }

    /// An operation of the parser.
    pub(super) fn rich_parser_op(&mut self) -> ParserOp {
        ParserOp::Do(self.rich_op())
    }
}
