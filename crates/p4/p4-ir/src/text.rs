//! Expressions and references as text for users. The text is not valid P4: casts to greater widths are left
//! out.

use crate::action::Op;
use crate::expr::{Binary, ExprKind, HeaderRef, Place, Type, Unary, UnionRef};
use crate::ids::ExprId;
use crate::program::Program;
use std::fmt::Write;

/// Characters after which an expression is cut.
const LENGTH: usize = 400;

impl Program {
    /// An expression as text, cut after a few hundred characters.
    #[must_use]
    pub fn expr_text(&self, id: ExprId) -> String {
        let mut text = String::new();
        self.write_expr(id, &mut text, false);
        if text.len() > LENGTH {
            let cut = (0..=LENGTH)
                .rev()
                .find(|at| text.is_char_boundary(*at))
                .unwrap_or(0);
            text.truncate(cut);
            text.push_str("...");
        }
        text
    }

    /// A reference to a header as text.
    #[must_use]
    pub fn header_text(&self, header: HeaderRef) -> String {
        let stack = |id: crate::ids::StackId| &self.stacks[id.index()].name;
        let union = |id: crate::ids::UnionStackId| &self.union_stacks[id.index()];
        let member = |id: crate::ids::UnionStackId, at: u16| {
            let ty = &self.union_types[union(id).ty.index()];
            ty.members[usize::from(at)].0.clone()
        };
        match header {
            HeaderRef::Header(id) => self.headers[id.index()].name.clone(),
            HeaderRef::Next(id) => format!("{}.next", stack(id)),
            HeaderRef::Last(id) => format!("{}.last", stack(id)),
            HeaderRef::Element(id, index) => format!("{}[{}]", stack(id), self.expr_text(index)),
            HeaderRef::UnionElement(id, index, at) => {
                format!("{}[{}].{}", union(id).name, self.expr_text(index), member(id, at))
            }
            HeaderRef::UnionNext(id, at) => format!("{}.next.{}", union(id).name, member(id, at)),
            HeaderRef::UnionLast(id, at) => format!("{}.last.{}", union(id).name, member(id, at)),
        }
    }

    fn union_text(&self, union: UnionRef) -> String {
        match union {
            UnionRef::Union(id) => self.unions[id.index()].name.clone(),
            UnionRef::Element(id, index) => {
                format!(
                    "{}[{}]",
                    self.union_stacks[id.index()].name,
                    self.expr_text(index)
                )
            }
        }
    }

    /// A place to write to as text.
    #[must_use]
    pub fn place_text(&self, place: crate::expr::Place) -> String {
        match place {
            crate::expr::Place::Field(field) => self.field_name(field),
            crate::expr::Place::Member(header, member) => {
                format!(
                    "{}.{}",
                    self.header_text(header),
                    self.type_of(header).fields[usize::from(member)].name
                )
            }
        }
    }

    fn write_expr(&self, id: ExprId, text: &mut String, inner: bool) {
        // Text beyond this length is not shown, so it need not be made.
        if text.len() > LENGTH {
            return;
        }
        let expr = self.exprs[id.index()];
        match expr.kind {
            ExprKind::Constant(value) if value < 10 => text.push_str(&value.to_string()),
            ExprKind::Constant(value) => put(text, format_args!("{value:#x}")),
            ExprKind::WideConstant(id) => put(text, format_args!("{}", self.constants[id.index()])),
            ExprKind::Bool(value) => text.push_str(if value { "true" } else { "false" }),
            ExprKind::Field(field) => text.push_str(&self.field_name(field)),
            ExprKind::Member(header, member) => {
                text.push_str(&self.place_text(crate::expr::Place::Member(header, member)));
            }
            ExprKind::Parameter(at) => put(text, format_args!("argument {at}")),
            ExprKind::Valid(header) => put(text, format_args!("{}.isValid()", self.header_text(header))),
            ExprKind::UnionValid(union) => put(text, format_args!("{}.isValid()", self.union_text(union))),
            ExprKind::HeadersEqual(a, b) => {
                put(
                    text,
                    format_args!("{} == {}", self.header_text(a), self.header_text(b)),
                );
            }
            ExprKind::VariablesEqual(a, b) => put(
                text,
                format_args!("{} == {}", self.place_text(a), self.place_text(b)),
            ),
            ExprKind::UnionsEqual(a, b) => put(
                text,
                format_args!("{} == {}", self.union_text(a), self.union_text(b)),
            ),
            ExprKind::StacksEqual(a, b) => {
                put(
                    text,
                    format_args!(
                        "{} == {}",
                        self.stacks[a.index()].name,
                        self.stacks[b.index()].name
                    ),
                );
            }
            ExprKind::LastIndex(stack) => put(
                text,
                format_args!("{}.lastIndex", self.stacks[stack.index()].name),
            ),
            ExprKind::NextIndex(stack) => put(
                text,
                format_args!("{}.nextIndex", self.stacks[stack.index()].name),
            ),
            ExprKind::Lookahead { offset } => {
                let Type::Bits(width) = expr.ty else { return };
                let behind = if offset == 0 {
                    String::new()
                } else {
                    format!(" behind {offset}")
                };
                put(text, format_args!("lookahead({width} bits{behind})"));
            }
            ExprKind::Unary(op, a) => self.write_unary(op, a, expr.ty, text, inner),
            ExprKind::Slice(a, low) => {
                let Type::Bits(width) = expr.ty else { return };
                self.write_expr(a, text, true);
                put(text, format_args!("[{}:{low}]", low + width - 1));
            }
            ExprKind::Binary(op, a, b) => {
                text.push_str(if inner { "(" } else { "" });
                self.write_expr(a, text, self.wants_brackets(op, a));
                put(text, format_args!(" {} ", sign(op)));
                self.write_expr(b, text, self.wants_brackets(op, b));
                text.push_str(if inner { ")" } else { "" });
            }
            ExprKind::Mux(condition, a, b) => {
                text.push_str(if inner { "(" } else { "" });
                self.write_expr(condition, text, true);
                text.push_str(" ? ");
                self.write_expr(a, text, true);
                text.push_str(" : ");
                self.write_expr(b, text, true);
                text.push_str(if inner { ")" } else { "" });
            }
        }
    }

    /// Whether an operand would be misread without brackets. Comparisons in conditions and chains of one
    /// operator are not.
    fn wants_brackets(&self, op: Binary, operand: ExprId) -> bool {
        use Binary::{AndAlso, Equal, Less, LessEqual, LessEqualSigned, LessSigned, NotEqual, OrElse};
        let ExprKind::Binary(inner, ..) = self.exprs[operand.index()].kind else {
            return !matches!(op, AndAlso | OrElse);
        };
        let comparison = matches!(
            inner,
            Equal | NotEqual | Less | LessEqual | LessSigned | LessEqualSigned
        );
        !(matches!(op, AndAlso | OrElse) && (comparison || inner == op))
    }

    /// An operation as text.
    #[must_use]
    pub fn op_text(&self, op: &Op) -> String {
        let list = |list: &Option<crate::ids::FieldListId>| match list {
            Some(list) => format!(", keeping {}", self.field_lists[list.index()].name),
            None => String::new(),
        };
        let (place, expr) = (
            |place: &Place| self.place_text(*place),
            |expr: &ExprId| self.expr_text(*expr),
        );
        let header = |header: &HeaderRef| self.header_text(*header);
        match op {
            Op::Assign(to, value) => format!("{} = {}", place(to), expr(value)),
            Op::CopyVariable(to, from) => format!("{} = {}", place(to), place(from)),
            Op::SetValid(one) => format!("{}.setValid()", header(one)),
            Op::SetInvalid(one) => format!("{}.setInvalid()", header(one)),
            Op::CopyHeader(to, from) => format!("{} = {}", header(to), header(from)),
            Op::CopyUnion(to, from) => {
                format!(
                    "{} = {}",
                    self.unions[to.index()].name,
                    self.unions[from.index()].name
                )
            }
            Op::CopyStack(to, from) => {
                format!(
                    "{} = {}",
                    self.stacks[to.index()].name,
                    self.stacks[from.index()].name
                )
            }
            Op::CopyUnionStack(to, from) => {
                format!(
                    "{} = {}",
                    self.union_stacks[to.index()].name,
                    self.union_stacks[from.index()].name
                )
            }
            Op::Push(stack, count) => format!("{}.push_front({count})", self.stacks[stack.index()].name),
            Op::Pop(stack, count) => format!("{}.pop_front({count})", self.stacks[stack.index()].name),
            Op::PushUnion(stack, count) => {
                format!("{}.push_front({count})", self.union_stacks[stack.index()].name)
            }
            Op::PopUnion(stack, count) => {
                format!("{}.pop_front({count})", self.union_stacks[stack.index()].name)
            }
            Op::Jump(to) => format!("go to {to}"),
            Op::JumpUnless(condition, to) => format!("unless {} go to {to}", expr(condition)),
            Op::Count(counter, index) => {
                format!(
                    "{}.count({})",
                    self.counters[counter.index()].identity.alias,
                    expr(index)
                )
            }
            Op::Meter {
                meter, index, result, ..
            } => {
                let name = &self.meters[meter.index()].identity.alias;
                format!("{} = {name}.execute({})", place(result), expr(index))
            }
            Op::RegisterRead(to, register, index) => {
                format!(
                    "{} = {}[{}]",
                    place(to),
                    self.registers[register.index()].identity.alias,
                    expr(index)
                )
            }
            Op::RegisterWrite(register, index, value) => {
                format!(
                    "{}[{}] = {}",
                    self.registers[register.index()].identity.alias,
                    expr(index),
                    expr(value)
                )
            }
            Op::Hash {
                calculation, result, ..
            } => {
                let algorithm = self.calculations[calculation.index()].algorithm;
                format!("{} = {algorithm:?} hash", place(result))
            }
            Op::Random(to, low, high) => format!("{} = random({}, {})", place(to), expr(low), expr(high)),
            Op::Digest(digest) => format!("digest {}", self.digests[digest.index()].identity.alias),
            Op::CloneIngress(session, kept) => format!("clone to session {}{}", expr(session), list(kept)),
            Op::CloneEgress(session, kept) => format!("clone to session {}{}", expr(session), list(kept)),
            Op::Resubmit(kept) => format!("resubmit{}", list(kept)),
            Op::Recirculate(kept) => format!("recirculate{}", list(kept)),
            Op::Truncate(bytes) => format!("truncate to {}", expr(bytes)),
            Op::MarkToDrop => "drop".to_owned(),
            Op::Exit => "exit".to_owned(),
            Op::Assert(condition) => format!("assert {}", expr(condition)),
            Op::Log(message, _) => format!("log {message:?}"),
            Op::Extern(function, result, _) => {
                format!(
                    "{} = {}(...)",
                    place(result),
                    self.extern_functions[function.index()].name
                )
            }
        }
    }

    fn write_unary(&self, op: Unary, a: ExprId, ty: Type, text: &mut String, inner: bool) {
        let width = if let Type::Bits(width) = ty { width } else { 1 };
        match op {
            Unary::ZeroExtend | Unary::SignExtend | Unary::ToBits => return self.write_expr(a, text, inner),
            Unary::ToBool => {
                text.push_str(if inner { "(" } else { "" });
                self.write_expr(a, text, true);
                text.push_str(if inner { " != 0)" } else { " != 0" });
                return;
            }
            Unary::Not => text.push('!'),
            Unary::Complement => text.push('~'),
            Unary::Negate => text.push('-'),
            Unary::Truncate => put(text, format_args!("(bit<{width}>) ")),
            _ => put(text, format_args!("saturate<{width}> ")),
        }
        self.write_expr(a, text, true);
    }
}

/// Writing into memory cannot fail.
fn put(text: &mut String, arguments: std::fmt::Arguments) {
    let _ = text.write_fmt(arguments);
}

/// The symbol of an operator.
fn sign(op: Binary) -> &'static str {
    match op {
        Binary::Add => "+",
        Binary::Sub => "-",
        Binary::Mul => "*",
        Binary::Div | Binary::DivSigned => "/",
        Binary::Mod | Binary::ModSigned => "%",
        Binary::And => "&",
        Binary::Or => "|",
        Binary::Xor => "^",
        Binary::ShiftLeft => "<<",
        Binary::ShiftRight | Binary::ShiftRightSigned => ">>",
        Binary::Concat => "++",
        Binary::Equal => "==",
        Binary::NotEqual => "!=",
        Binary::Less | Binary::LessSigned => "<",
        Binary::LessEqual | Binary::LessEqualSigned => "<=",
        Binary::AndAlso => "&&",
        Binary::OrElse => "||",
    }
}
