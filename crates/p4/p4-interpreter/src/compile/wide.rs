//! Expressions of more than 64 bits.

use super::{Compiler, value::cast_of};
use crate::code::{Wide, WideBinary, WideOp};
use p4_ir::{Binary, ExprId, ExprKind, Unary};

impl Compiler<'_> {
    /// Evaluates into scratch words, which stay taken. Uses the registers from `free` on.
    pub(super) fn wide(&mut self, expr: ExprId, free: usize) -> Wide {
        let to = self.take(self.width(expr));
        let top = self.wide_top;
        match self.expr(expr).kind {
            ExprKind::WideConstant(constant) => {
                let words = words_of(self.program.constants[constant.index()].bytes(), to.width);
                self.wide_op(WideOp::Const { to, words });
            }
            ExprKind::Constant(value) => {
                self.wide_op(WideOp::Const {
                    to,
                    words: words_of(&value.to_be_bytes(), to.width),
                });
            }
            ExprKind::Field(field) => {
                let bit = self.field(field).offset;
                self.wide_op(WideOp::Load { to, bit });
            }
            ExprKind::Member(header, member) => match self.fixed_header(header) {
                Some(header) => {
                    let bit = self.field(self.member(header, member)).offset;
                    self.wide_op(WideOp::Load { to, bit });
                }
                None => {
                    self.header_ref(header, free, true);
                    let header = self.reg(free);
                    self.wide_op(WideOp::LoadMember { to, header, member });
                }
            },
            ExprKind::Parameter(number) => {
                let word = self.parameters.get(usize::from(number)).copied().unwrap_or(0);
                self.wide_op(WideOp::Parameter { to, word });
            }
            ExprKind::Lookahead { offset } => self.wide_op(WideOp::Lookahead { to, offset }),
            ExprKind::Unary(op, a) => self.wide_unary(op, a, to, free),
            ExprKind::Binary(op, a, b) => self.wide_binary(op, a, b, to, free),
            ExprKind::Mux(condition, yes, no) => self.mux(condition, free, |this, chosen| {
                let a = this.wide(if chosen { yes } else { no }, free);
                this.wide_op(WideOp::Copy { to, a });
                this.wide_top = top;
            }),
            ExprKind::Slice(a, low) => {
                let a = self.wide(a, free);
                self.wide_op(WideOp::Slice {
                    to,
                    a,
                    low: u32::from(low),
                });
            }
            // The other expressions give bools.
            _ => {}
        }
        self.wide_top = top;
        to
    }

    fn wide_unary(&mut self, op: Unary, a: ExprId, to: Wide, free: usize) {
        let from = self.width(a);
        if from <= 64 {
            self.value(a, free);
            let a = self.reg(free);
            let signed = op == Unary::SignExtend;
            return self.wide_op(match signed {
                true => WideOp::FromSigned {
                    to,
                    a,
                    width: from as u8,
                },
                false => WideOp::From { to, a },
            });
        }
        let a = self.wide(a, free);
        self.wide_op(match (op, cast_of(op)) {
            (_, Some(cast)) => WideOp::Saturate { to, a, cast },
            (Unary::Complement, _) => WideOp::Complement { to, a },
            (Unary::Negate, _) => WideOp::Negate { to, a },
            (Unary::SignExtend, _) => WideOp::ResizeSigned { to, a },
            _ => WideOp::Resize { to, a },
        });
    }

    fn wide_binary(&mut self, op: Binary, a: ExprId, b: ExprId, to: Wide, free: usize) {
        let op = match op {
            Binary::Concat => return self.wide_concat(a, b, to, free),
            Binary::ShiftLeft | Binary::ShiftRight | Binary::ShiftRightSigned => {
                let a = self.wide(a, free);
                self.number(b, free);
                let by = self.reg(free);
                let (left, signed) = (op == Binary::ShiftLeft, op == Binary::ShiftRightSigned);
                return self.wide_op(WideOp::Shift {
                    to,
                    a,
                    by,
                    left,
                    signed,
                });
            }
            Binary::Add => WideBinary::Add,
            Binary::Sub => WideBinary::Sub,
            Binary::Mul => WideBinary::Mul,
            Binary::Div => WideBinary::Div,
            Binary::Mod => WideBinary::Mod,
            Binary::DivSigned => WideBinary::DivSigned,
            Binary::ModSigned => WideBinary::ModSigned,
            Binary::And => WideBinary::And,
            Binary::Or => WideBinary::Or,
            _ => WideBinary::Xor,
        };
        let (a, b) = (self.wide(a, free), self.wide(b, free));
        self.take_division_space(op, to);
        self.wide_op(WideOp::Binary { op, to, a, b });
    }

    /// Takes scratch words behind those in use: divisions work on copies of their operands.
    fn take_division_space(&mut self, op: WideBinary, to: Wide) {
        use WideBinary::{Div, DivSigned, Mod, ModSigned};
        if matches!(op, Div | Mod | DivSigned | ModSigned) {
            let top = self.wide_top;
            for _ in 0..4 {
                self.take(to.width);
            }
            self.wide_top = top;
        }
    }

    /// Joins two values, the left one above the right one.
    fn wide_concat(&mut self, a: ExprId, b: ExprId, to: Wide, free: usize) {
        let low = self.width(b);
        let top = self.wide_top;
        let right = self.any_wide(b, free);
        self.wide_op(WideOp::Resize { to, a: right });
        self.wide_top = top;
        let left = self.any_wide(a, free);
        self.wide_op(WideOp::Insert { to, a: left, by: low });
        self.wide_top = top;
    }

    /// A value of any width in scratch words.
    pub(super) fn any_wide(&mut self, expr: ExprId, free: usize) -> Wide {
        if self.is_wide(expr) {
            return self.wide(expr, free);
        }
        let to = self.take(self.width(expr));
        self.value(expr, free);
        let a = self.reg(free);
        self.wide_op(WideOp::From { to, a });
        to
    }
}

/// The low bits of a big-endian number as words.
fn words_of(bytes: &[u8], width: u32) -> Box<[u64]> {
    let mut words: Vec<u64> = bytes
        .rchunks(8)
        .map(|chunk| chunk.iter().fold(0, |word, &byte| (word << 8) | u64::from(byte)))
        .collect();
    words.resize(crate::wide::words(width), 0);
    words.into()
}
