//! Expressions of up to 64 bits, conditions, and references to headers.

use super::{Compiler, Label, compares};
use crate::bits::mask;
use crate::code::{Cast, HeaderOp, Op, Resolve, Slow, Wide, WideCompare, WideOp};
use p4_ir::{Binary, ExprId, ExprKind, HeaderId, HeaderRef, Place, Unary, UnionRef};

impl Compiler<'_> {
    /// Evaluates into a register. Uses this register and those behind it.
    pub(super) fn value(&mut self, expr: ExprId, to: usize) {
        let top = self.wide_top;
        let width = self.width(expr);
        let reg = self.reg(to);
        let constant = |value| Op::Const { to: reg, value };
        match self.expr(expr).kind {
            ExprKind::Constant(value) => self.emit(constant(value & mask(width))),
            ExprKind::Bool(value) => self.emit(constant(value.into())),
            // Wider than any value here: the checker's business.
            ExprKind::WideConstant(_) => self.emit(constant(0)),
            ExprKind::Field(field) => self.load(field, to),
            ExprKind::Member(header, member) => match self.fixed_header(header) {
                Some(header) => self.load(self.member(header, member), to),
                None => {
                    self.header_ref(header, to, true);
                    self.slow(Slow::LoadMember {
                        to: reg,
                        header: reg,
                        member,
                    });
                }
            },
            ExprKind::Parameter(number) => {
                let word = self.parameters.get(usize::from(number)).copied().unwrap_or(0);
                self.emit(Op::Parameter { to: reg, word });
            }
            ExprKind::Lookahead { offset } => self.emit(Op::Lookahead {
                to: reg,
                width: width as u8,
                offset,
            }),
            ExprKind::Unary(op, a) => self.unary(op, a, width, to),
            ExprKind::Binary(op, a, b) => self.binary(op, a, b, width, to),
            ExprKind::Mux(condition, yes, no) => self.mux(condition, to, |this, chosen| {
                this.value(if chosen { yes } else { no }, to);
            }),
            ExprKind::Slice(a, low) => self.slice(a, u32::from(low), width, to),
            _ => self.header_value(expr, to),
        }
        self.wide_top = top;
    }

    /// Evaluates a number of any width into a register; one that does not fit in 64 bits becomes the largest
    /// that does.
    pub(super) fn number(&mut self, expr: ExprId, to: usize) {
        if !self.is_wide(expr) {
            return self.value(expr, to);
        }
        let top = self.wide_top;
        let a = self.wide(expr, to);
        let to = self.reg(to);
        self.wide_op(WideOp::Narrow { to, a });
        self.wide_top = top;
    }

    fn header_value(&mut self, expr: ExprId, to: usize) {
        let reg = self.reg(to);
        match self.expr(expr).kind {
            ExprKind::Valid(header) => match self.fixed_header(header) {
                Some(header) => self.emit(Op::Valid { to: reg, header }),
                None => {
                    self.header_ref(header, to, false);
                    self.slow(HeaderOp::ValidRef { to: reg, header: reg });
                }
            },
            ExprKind::UnionValid(union) => {
                let members = self.union_ref(union, to);
                self.slow(HeaderOp::UnionValid {
                    to: reg,
                    first: reg,
                    members,
                });
            }
            ExprKind::StacksEqual(a, b) => self.slow(HeaderOp::StacksEqual { to: reg, a, b }),
            ExprKind::LastIndex(stack) => self.slow(HeaderOp::LastIndex { to: reg, stack }),
            ExprKind::NextIndex(stack) => self.slow(HeaderOp::NextIndex { to: reg, stack }),
            _ => self.equality(expr, to),
        }
    }

    /// Comparisons of headers, their variable fields and unions.
    fn equality(&mut self, expr: ExprId, to: usize) {
        let reg = self.reg(to);
        match self.expr(expr).kind {
            ExprKind::HeadersEqual(a, b) => {
                self.header_ref(a, to, true);
                self.header_ref(b, to + 1, true);
                let b = self.reg(to + 1);
                self.slow(HeaderOp::HeadersEqual { to: reg, a: reg, b });
            }
            ExprKind::VariablesEqual(a, b) => {
                let (a, b) = (self.place_header(a), self.place_header(b));
                self.header_ref(a, to, true);
                self.header_ref(b, to + 1, true);
                let b = self.reg(to + 1);
                self.slow(HeaderOp::VariablesEqual { to: reg, a: reg, b });
            }
            ExprKind::UnionsEqual(a, b) => {
                let members = self.union_ref(a, to);
                self.union_ref(b, to + 1);
                let b = self.reg(to + 1);
                self.slow(HeaderOp::UnionsEqual {
                    to: reg,
                    a: reg,
                    b,
                    members,
                });
            }
            _ => {}
        }
    }

    fn unary(&mut self, op: Unary, a: ExprId, width: u32, to: usize) {
        if op == Unary::Truncate {
            return self.slice(a, 0, width, to);
        }
        let from = self.width(a);
        let reg = self.reg(to);
        let cast = cast_of(op);
        if from > 64 {
            let a = self.wide(a, to);
            match cast {
                Some(cast) => self.wide_op(WideOp::SaturateTo {
                    to: reg,
                    width: width as u8,
                    a,
                    cast,
                }),
                None => {
                    self.wide_op(WideOp::IsZero { to: reg, a });
                    self.emit(Op::Not { to: reg, a: reg });
                }
            }
            return;
        }
        self.value(a, to);
        let (from, width) = (from as u8, width as u8);
        match (op, cast) {
            (_, Some(cast)) => self.emit(Op::Saturate {
                to: reg,
                a: reg,
                from,
                width,
                cast,
            }),
            (Unary::Not, _) => self.emit(Op::Not { to: reg, a: reg }),
            (Unary::Complement, _) => self.emit(Op::Complement {
                to: reg,
                a: reg,
                width,
            }),
            (Unary::Negate, _) => self.emit(Op::Negate {
                to: reg,
                a: reg,
                width,
            }),
            (Unary::SignExtend, _) => self.emit(Op::SignExtend {
                to: reg,
                a: reg,
                from,
                width,
            }),
            (Unary::ToBool, _) => self.emit(Op::ToBool { to: reg, a: reg }),
            _ => {}
        }
    }

    fn slice(&mut self, a: ExprId, low: u32, width: u32, to: usize) {
        if let ExprKind::Field(field) = self.expr(a).kind {
            return self.load_part(field, low, width, to);
        }
        let reg = self.reg(to);
        if self.is_wide(a) {
            let a = self.wide(a, to);
            self.wide_op(WideOp::SliceTo {
                to: reg,
                width: width as u8,
                a,
                low,
            });
            return;
        }
        self.value(a, to);
        self.emit(match low {
            0 => Op::AndConst {
                to: reg,
                a: reg,
                value: mask(width),
            },
            _ => Op::Slice {
                to: reg,
                a: reg,
                low: low as u8,
                width: width as u8,
            },
        });
    }

    fn binary(&mut self, op: Binary, a: ExprId, b: ExprId, width: u32, to: usize) {
        if matches!(op, Binary::AndAlso | Binary::OrElse) {
            return self.short_circuit(op, a, b, to);
        }
        if compares(op) && self.is_wide(a) {
            let (a, b) = (self.wide(a, to), self.wide(b, to));
            let to = self.reg(to);
            return self.wide_op(WideOp::Compare {
                to,
                a,
                b,
                how: wide_compare(op),
            });
        }
        self.value(a, to);
        if self.with_constant(op, b, width, to) {
            return;
        }
        self.number(b, to + 1);
        // Both operands of a comparison have the width that matters.
        let width = if compares(op) { self.width(a) } else { width } as u8;
        let low = self.width(b).min(64) as u8;
        let (to, b) = (self.reg(to), self.reg(to + 1));
        let a = to;
        let divide = |signed, remainder| Op::Divide {
            to,
            a,
            b,
            width,
            signed,
            remainder,
        };
        self.emit(match op {
            Binary::Add => Op::Add { to, a, b, width },
            Binary::Sub => Op::Sub { to, a, b, width },
            Binary::Mul => Op::Mul { to, a, b, width },
            Binary::Div => divide(false, false),
            Binary::Mod => divide(false, true),
            Binary::DivSigned => divide(true, false),
            Binary::ModSigned => divide(true, true),
            Binary::And | Binary::AndAlso => Op::And { to, a, b },
            Binary::Or | Binary::OrElse => Op::Or { to, a, b },
            Binary::Xor => Op::Xor { to, a, b },
            Binary::ShiftLeft => Op::ShiftLeft { to, a, b, width },
            Binary::ShiftRight => Op::ShiftRight { to, a, b },
            Binary::ShiftRightSigned => Op::ShiftRightSigned { to, a, b, width },
            Binary::Concat => Op::Concat { to, a, b, low },
            Binary::Equal => Op::Equal { to, a, b },
            Binary::NotEqual => Op::NotEqual { to, a, b },
            Binary::Less => Op::Less { to, a, b },
            Binary::LessEqual => Op::LessEqual { to, a, b },
            Binary::LessSigned => Op::LessSigned { to, a, b, width },
            Binary::LessEqualSigned => Op::LessEqualSigned { to, a, b, width },
        });
    }

    /// The forms whose second operand is a constant.
    fn with_constant(&mut self, op: Binary, b: ExprId, width: u32, to: usize) -> bool {
        let ExprKind::Constant(value) = self.expr(b).kind else {
            return false;
        };
        let to = self.reg(to);
        let narrow = width as u8;
        let op = match op {
            Binary::Add => Op::AddConst {
                to,
                a: to,
                width: narrow,
                value,
            },
            Binary::Sub => Op::AddConst {
                to,
                a: to,
                width: narrow,
                value: value.wrapping_neg(),
            },
            Binary::And => Op::AndConst { to, a: to, value },
            Binary::Equal => Op::EqualConst { to, a: to, value },
            Binary::ShiftRight if value < 64 => Op::Slice {
                to,
                a: to,
                low: value as u8,
                width: 64,
            },
            _ => return false,
        };
        self.emit(op);
        true
    }

    fn short_circuit(&mut self, op: Binary, a: ExprId, b: ExprId, to: usize) {
        let end = self.label();
        self.value(a, to);
        let reg = self.reg(to);
        self.emit(match op {
            Binary::AndAlso => Op::JumpUnless { a: reg, pc: end.0 },
            _ => Op::JumpIf { a: reg, pc: end.0 },
        });
        self.value(b, to);
        self.bind(end);
    }

    pub(super) fn mux(&mut self, condition: ExprId, to: usize, mut arm: impl FnMut(&mut Self, bool)) {
        let (yes, no, end) = (self.label(), self.label(), self.label());
        self.branch_in(condition, yes, no, to);
        self.bind(yes);
        arm(self, true);
        self.jump(end);
        self.bind(no);
        arm(self, false);
        self.bind(end);
    }

    /// Goes to one label or the other. The code is shortest if the first label is bound next.
    pub(super) fn branch(&mut self, condition: ExprId, yes: Label, no: Label) {
        self.branch_in(condition, yes, no, 0);
    }

    /// As [`Self::branch`], with the registers from `to` on.
    pub(super) fn branch_in(&mut self, condition: ExprId, yes: Label, no: Label, to: usize) {
        let reg = self.reg(to);
        match self.expr(condition).kind {
            ExprKind::Bool(value) => return self.jump(if value { yes } else { no }),
            ExprKind::Unary(Unary::Not, a) => return self.branch_in(a, no, yes, to),
            ExprKind::Binary(op @ (Binary::AndAlso | Binary::OrElse), a, b) => {
                let further = self.label();
                match op {
                    Binary::AndAlso => self.branch_in(a, further, no, to),
                    _ => self.branch_in(a, yes, further, to),
                }
                self.bind(further);
                return self.branch_in(b, yes, no, to);
            }
            ExprKind::Valid(header) => match self.fixed_header(header) {
                Some(header) => self.emit(Op::JumpUnlessValid { header, pc: no.0 }),
                None => {
                    self.value(condition, to);
                    self.emit(Op::JumpUnless { a: reg, pc: no.0 });
                }
            },
            ExprKind::Binary(op @ (Binary::Equal | Binary::NotEqual), a, b) if self.is_constant(b) => {
                self.value(a, to);
                let value = match self.expr(b).kind {
                    ExprKind::Constant(value) => value,
                    _ => 0,
                };
                let (a, pc) = (reg, no.0);
                self.emit(match op {
                    Binary::Equal => Op::JumpUnlessEqual { a, pc, value },
                    _ => Op::JumpIfEqual { a, pc, value },
                });
            }
            _ => {
                self.value(condition, to);
                self.emit(Op::JumpUnless { a: reg, pc: no.0 });
            }
        }
        self.jump(yes);
    }

    fn is_constant(&self, expr: ExprId) -> bool {
        matches!(self.expr(expr).kind, ExprKind::Constant(_))
    }

    /// The header that a reference means, if it is known at compile time.
    pub(super) fn fixed_header(&self, header: HeaderRef) -> Option<HeaderId> {
        match header {
            HeaderRef::Header(header) => Some(header),
            HeaderRef::Element(stack, index) => {
                let ExprKind::Constant(index) = self.expr(index).kind else {
                    return None;
                };
                let stack = &self.program.stacks[stack.index()];
                let within = index < u64::from(stack.size);
                within.then(|| HeaderId(stack.first.0 + index as u16))
            }
            _ => None,
        }
    }

    /// Some header of the type that a reference has.
    pub(super) fn any_header(&self, header: HeaderRef) -> HeaderId {
        let of_union = |stack: p4_ir::UnionStackId, member: u16| {
            let first = self.program.union_stacks[stack.index()].first;
            HeaderId(self.program.unions[first.index()].first.0 + member)
        };
        match header {
            HeaderRef::Header(header) => header,
            HeaderRef::Next(stack) | HeaderRef::Last(stack) | HeaderRef::Element(stack, _) => {
                self.program.stacks[stack.index()].first
            }
            HeaderRef::UnionElement(stack, _, member)
            | HeaderRef::UnionNext(stack, member)
            | HeaderRef::UnionLast(stack, member) => of_union(stack, member),
        }
    }

    /// The header that a place is in.
    fn place_header(&self, place: Place) -> HeaderRef {
        match place {
            Place::Field(field) => HeaderRef::Header(self.field(field).header),
            Place::Member(header, _) => header,
        }
    }

    /// Puts the number of the header that a reference means into a register. `strict`: a reference to an
    /// element that does not exist ends the parser.
    pub(super) fn header_ref(&mut self, header: HeaderRef, to: usize, strict: bool) {
        if let Some(header) = self.fixed_header(header) {
            return self.header_number(Some(header), to);
        }
        let how = match header {
            HeaderRef::Header(header) => return self.header_number(Some(header), to),
            HeaderRef::Next(stack) => Resolve::Next(stack),
            HeaderRef::Last(stack) => Resolve::Last(stack),
            HeaderRef::UnionNext(stack, member) => Resolve::UnionNext(stack, member),
            HeaderRef::UnionLast(stack, member) => Resolve::UnionLast(stack, member),
            HeaderRef::Element(stack, index) => {
                self.number(index, to);
                Resolve::Element(stack)
            }
            HeaderRef::UnionElement(stack, index, member) => {
                self.number(index, to);
                Resolve::UnionElement(stack, member)
            }
        };
        let to = self.reg(to);
        let strict = strict && self.in_parser;
        self.slow(Slow::Resolve { to, how, strict });
    }

    /// Puts the number of a union's first member into a register. Returns how many members it has.
    fn union_ref(&mut self, union: UnionRef, to: usize) -> u16 {
        let members = |this: &Self, union: p4_ir::UnionId| {
            let ty = this.program.unions[union.index()].ty;
            this.program.union_types[ty.index()].members.len() as u16
        };
        match union {
            UnionRef::Union(union) => {
                self.header_number(Some(self.program.unions[union.index()].first), to);
                members(self, union)
            }
            UnionRef::Element(stack, index) => {
                self.number(index, to);
                let to = self.reg(to);
                self.slow(Slow::ResolveUnion { to, stack });
                members(self, self.program.union_stacks[stack.index()].first)
            }
        }
    }

    /// Scratch words for a value of that width, until `wide_top` is set back.
    pub(super) fn take(&mut self, width: u32) -> Wide {
        let wide = Wide {
            at: self.wide_top,
            width,
        };
        self.wide_top += crate::wide::words(width) as u32;
        self.code.wide_words = self.code.wide_words.max(self.wide_top as usize);
        wide
    }
}

pub(super) fn cast_of(op: Unary) -> Option<Cast> {
    match op {
        Unary::SaturateUnsigned => Some(Cast::Unsigned),
        Unary::SaturateSignedToUnsigned => Some(Cast::SignedToUnsigned),
        Unary::SaturateSigned => Some(Cast::Signed),
        Unary::SaturateUnsignedToSigned => Some(Cast::UnsignedToSigned),
        _ => None,
    }
}

fn wide_compare(op: Binary) -> WideCompare {
    match op {
        Binary::NotEqual => WideCompare::NotEqual,
        Binary::Less => WideCompare::Less,
        Binary::LessEqual => WideCompare::LessEqual,
        Binary::LessSigned => WideCompare::LessSigned,
        Binary::LessEqualSigned => WideCompare::LessEqualSigned,
        _ => WideCompare::Equal,
    }
}
