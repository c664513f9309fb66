//! The arena of expressions: each node once, children before parents.

use super::{At, CheckError, CheckResult, Checker, Problem, get, other, within};
use crate::expr::{Binary, Expr, ExprKind, HeaderRef, Place, Type, Unary, UnionRef};
use crate::ids::{ExprId, HeaderTypeId, UnionTypeId};
use crate::limits;

/// The properties of a tree, by its root.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Summary {
    /// Nodes and further words of wide ones, counted as often as they are evaluated.
    pub cost: u32,
    /// Levels.
    pub depth: u16,
    /// The tree contains a parameter of an action.
    pub parameter: bool,
    /// The tree contains an expression that only parsers can evaluate.
    pub parser: bool,
}

impl Summary {
    fn add(&mut self, child: Summary) {
        self.cost = self.cost.saturating_add(child.cost);
        self.depth = self.depth.max(child.depth + 1);
        self.parameter |= child.parameter;
        self.parser |= child.parser;
    }
}

/// The context of an expression, which defines the elements that it may refer to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// In an action with these widths of parameters.
    Action(&'a [crate::action::Parameter]),
    /// In the parser.
    Parser,
    /// In a control, a key, a checksum.
    Control,
}

fn show(ty: Type) -> String {
    match ty {
        Type::Bool => "a bool".to_owned(),
        Type::Bits(width) => format!("{width} bits"),
    }
}

fn same(what: &'static str, found: Type, wanted: Type) -> CheckResult {
    if found == wanted {
        Ok(())
    } else {
        Err(Problem::Type {
            what,
            found: show(found),
            wanted: show(wanted),
        })
    }
}

impl Checker<'_> {
    /// Checks the arena.
    pub(super) fn expressions(&mut self) -> Result<(), CheckError> {
        for (number, expr) in self.program.exprs.iter().enumerate() {
            let summary = self.node(number, expr).at(|| format!("expression {number}"))?;
            self.summaries.push(summary);
        }
        Ok(())
    }

    fn node(&self, number: usize, expr: &Expr) -> CheckResult<Summary> {
        if let Type::Bits(width) = expr.ty {
            within("bits of a value", width, limits::WIDTH)?;
            if width == 0 {
                return other("has no bits");
            }
        }
        let mut summary = Summary {
            cost: cost(expr),
            depth: 1,
            ..Summary::default()
        };
        self.children(&expr.kind, &mut |child: ExprId| {
            if child.index() >= number {
                return Err(Problem::Index {
                    what: "expression (before itself)",
                    index: child.0,
                });
            }
            summary.add(self.summaries[child.index()]);
            Ok(())
        })?;
        within("nodes of an expression", summary.cost, limits::EXPRESSION_NODES)?;
        within("levels of an expression", summary.depth, limits::EXPRESSION_DEPTH)?;
        same("the value", expr.ty, self.type_of(expr)?)?;
        match expr.kind {
            ExprKind::Parameter(_) => summary.parameter = true,
            ExprKind::Lookahead { .. } => summary.parser = true,
            ExprKind::Member(HeaderRef::Next(_) | HeaderRef::UnionNext(..), _)
            | ExprKind::Valid(HeaderRef::Next(_) | HeaderRef::UnionNext(..)) => summary.parser = true,
            _ => {}
        }
        Ok(summary)
    }

    /// Calls a function for each child of a node.
    fn children(&self, kind: &ExprKind, f: &mut impl FnMut(ExprId) -> CheckResult) -> CheckResult {
        match *kind {
            ExprKind::Unary(_, a) | ExprKind::Slice(a, _) => f(a),
            ExprKind::Binary(_, a, b) => f(a).and_then(|()| f(b)),
            ExprKind::Mux(a, b, c) => f(a).and_then(|()| f(b)).and_then(|()| f(c)),
            ExprKind::Member(header, _) | ExprKind::Valid(header) => header.index_expr().map_or(Ok(()), f),
            ExprKind::HeadersEqual(a, b) => {
                a.index_expr().map_or(Ok(()), &mut *f)?;
                b.index_expr().map_or(Ok(()), f)
            }
            ExprKind::VariablesEqual(a, b) => {
                a.index_expr().map_or(Ok(()), &mut *f)?;
                b.index_expr().map_or(Ok(()), f)
            }
            ExprKind::UnionValid(union) => union.index_expr().map_or(Ok(()), f),
            ExprKind::UnionsEqual(a, b) => {
                a.index_expr().map_or(Ok(()), &mut *f)?;
                b.index_expr().map_or(Ok(()), f)
            }
            _ => Ok(()),
        }
    }

    /// The type of a node, by its kind. Its children are known to be before it.
    fn type_of(&self, expr: &Expr) -> CheckResult<Type> {
        let p = self.program;
        let ty = |id: ExprId| p.exprs[id.index()].ty;
        Ok(match expr.kind {
            ExprKind::Constant(value) => match expr.ty {
                Type::Bits(width @ 1..=64) if width == 64 || value >> width == 0 => expr.ty,
                _ => return other("a constant does not fit its width"),
            },
            ExprKind::WideConstant(id) => Type::Bits(get(&p.constants, id.index(), "constant")?.width()),
            ExprKind::Bool(_) => Type::Bool,
            ExprKind::Field(id) => {
                let field = get(&p.fields, id.index(), "field")?;
                if field.variable {
                    return other(format!("reads the variable field {}", p.field_name(id)));
                }
                Type::Bits(field.width)
            }
            ExprKind::Member(header, member) => Type::Bits(self.member(header, member, false)?),
            // Whether the action has such a parameter is checked where the expression is used.
            ExprKind::Parameter(_) => match expr.ty {
                Type::Bits(_) => expr.ty,
                Type::Bool => return other("a parameter is no bool"),
            },
            ExprKind::Valid(header) => self.header(header).map(|_| Type::Bool)?,
            ExprKind::UnionValid(union) => self.union(union).map(|_| Type::Bool)?,
            ExprKind::HeadersEqual(a, b) => {
                if self.header(a)? != self.header(b)? {
                    return other("compares headers of different types");
                }
                Type::Bool
            }
            ExprKind::VariablesEqual(a, b) => {
                self.variable(a)?;
                self.variable(b)?;
                Type::Bool
            }
            ExprKind::UnionsEqual(a, b) => {
                if self.union(a)? != self.union(b)? {
                    return other("compares unions of different types");
                }
                Type::Bool
            }
            ExprKind::StacksEqual(a, b) => {
                let (a, b) = (
                    get(&p.stacks, a.index(), "stack")?,
                    get(&p.stacks, b.index(), "stack")?,
                );
                if (a.ty, a.size) != (b.ty, b.size) {
                    return other("compares stacks of different types");
                }
                Type::Bool
            }
            ExprKind::LastIndex(stack) | ExprKind::NextIndex(stack) => {
                get(&p.stacks, stack.index(), "stack").map(|_| Type::Bits(32))?
            }
            ExprKind::Lookahead { .. } => match expr.ty {
                Type::Bits(_) => expr.ty,
                Type::Bool => return other("looks ahead for a bool"),
            },
            ExprKind::Unary(op, a) => unary(op, ty(a), expr.ty)?,
            ExprKind::Binary(op, a, b) => binary(op, ty(a), ty(b))?,
            ExprKind::Mux(condition, a, b) => {
                same("the condition", ty(condition), Type::Bool)?;
                same("the third operand", ty(b), ty(a))?;
                ty(a)
            }
            ExprKind::Slice(a, low) => match (ty(a), expr.ty) {
                (Type::Bits(of), Type::Bits(width)) if u32::from(low) + u32::from(width) <= u32::from(of) => {
                    expr.ty
                }
                _ => return other("a slice reaches beyond its value"),
            },
        })
    }

    /// Checks that a place is a variable field.
    fn variable(&self, place: Place) -> CheckResult {
        match place {
            Place::Field(id) if get(&self.program.fields, id.index(), "field")?.variable => Ok(()),
            Place::Field(_) => other("wants a variable field"),
            Place::Member(header, member) => self.member(header, member, true).map(|_| ()),
        }
    }

    /// Width of a field of a header found at run time.
    fn member(&self, header: HeaderRef, member: u16, variable: bool) -> CheckResult<u16> {
        let ty = &self.program.header_types[self.header(header)?.index()];
        let field = get(&ty.fields, usize::from(member), "field of a header")?;
        if field.variable != variable {
            return other(if variable {
                "wants a variable field"
            } else {
                "uses a variable field"
            });
        }
        Ok(field.width)
    }

    /// The type of a header that is referred to. Indices' expressions need not have been checked yet.
    pub(super) fn header(&self, header: HeaderRef) -> CheckResult<HeaderTypeId> {
        let p = self.program;
        let of_union = |stack: crate::ids::UnionStackId, member: u16| {
            let stack = get(&p.union_stacks, stack.index(), "union stack")?;
            let ty = get(&p.union_types, stack.ty.index(), "union type")?;
            get(&ty.members, usize::from(member), "member of a union").map(|(_, ty)| *ty)
        };
        match header {
            HeaderRef::Header(id) => get(&p.headers, id.index(), "header").map(|header| header.ty),
            HeaderRef::Next(stack) | HeaderRef::Last(stack) => {
                get(&p.stacks, stack.index(), "stack").map(|stack| stack.ty)
            }
            HeaderRef::Element(stack, index) => {
                self.is_bits("an index", index)?;
                get(&p.stacks, stack.index(), "stack").map(|stack| stack.ty)
            }
            HeaderRef::UnionElement(stack, index, member) => {
                self.is_bits("an index", index)?;
                of_union(stack, member)
            }
            HeaderRef::UnionNext(stack, member) | HeaderRef::UnionLast(stack, member) => {
                of_union(stack, member)
            }
        }
    }

    /// The type of a union that is referred to.
    pub(super) fn union(&self, union: UnionRef) -> CheckResult<UnionTypeId> {
        let p = self.program;
        match union {
            UnionRef::Union(id) => get(&p.unions, id.index(), "union").map(|union| union.ty),
            UnionRef::Element(stack, index) => {
                self.is_bits("an index", index)?;
                get(&p.union_stacks, stack.index(), "union stack").map(|stack| stack.ty)
            }
        }
    }

    fn is_bits(&self, what: &'static str, id: ExprId) -> CheckResult<u16> {
        match get(&self.program.exprs, id.index(), "expression")?.ty {
            Type::Bits(width) => Ok(width),
            Type::Bool => Err(Problem::Type {
                what,
                found: show(Type::Bool),
                wanted: "bits".to_owned(),
            }),
        }
    }

    /// Checks that an expression may be used in this context, and returns its type.
    pub(super) fn used(&self, id: ExprId, scope: Scope) -> CheckResult<Type> {
        let summary = get(&self.summaries, id.index(), "expression")?;
        if summary.parser && !matches!(scope, Scope::Parser) {
            return other("looks ahead outside of the parser");
        }
        if summary.parameter {
            self.parameters(id, scope)?;
        }
        Ok(self.program.exprs[id.index()].ty)
    }

    /// As [`Self::used`], for bits.
    pub(super) fn bits(&self, what: &'static str, id: ExprId, scope: Scope) -> CheckResult<u16> {
        self.used(id, scope)?;
        self.is_bits(what, id)
    }

    /// As [`Self::used`], for a bool.
    pub(super) fn bool(&self, what: &'static str, id: ExprId, scope: Scope) -> CheckResult {
        same(what, self.used(id, scope)?, Type::Bool)
    }

    /// Checks that all parameters in a tree exist with their widths. Trees are bounded, and so is the time of
    /// this.
    fn parameters(&self, id: ExprId, scope: Scope) -> CheckResult {
        if !self.summaries[id.index()].parameter {
            return Ok(());
        }
        let expr = &self.program.exprs[id.index()];
        let ExprKind::Parameter(number) = expr.kind else {
            return self.children(&expr.kind, &mut |child| self.parameters(child, scope));
        };
        let Scope::Action(parameters) = scope else {
            return other("uses a parameter of an action outside of actions");
        };
        let parameter = get(parameters, usize::from(number), "parameter")?;
        same("a parameter", expr.ty, Type::Bits(parameter.width))
    }

    /// Width of a place to write to.
    pub(super) fn place(&self, place: Place, variable: bool, scope: Scope) -> CheckResult<u16> {
        match place {
            Place::Field(id) => {
                let field = get(&self.program.fields, id.index(), "field")?;
                if field.variable != variable {
                    return other(if variable {
                        "wants a variable field"
                    } else {
                        "writes to a variable field"
                    });
                }
                Ok(field.width)
            }
            Place::Member(header, member) => {
                self.header_used(header, scope)?;
                self.member(header, member, variable)
            }
        }
    }

    /// Checks that a header may be referred to like this in this context.
    pub(super) fn header_used(&self, header: HeaderRef, scope: Scope) -> CheckResult<HeaderTypeId> {
        if matches!(header, HeaderRef::Next(_) | HeaderRef::UnionNext(..)) && !matches!(scope, Scope::Parser)
        {
            return other("refers to the next element of a stack outside of the parser");
        }
        header
            .index_expr()
            .map_or(Ok(()), |index| self.used(index, scope).map(|_| ()))?;
        self.header(header)
    }
}

/// The cost of a node without its children: that of a wide node is its words, that of a wide product their
/// square.
fn cost(expr: &Expr) -> u32 {
    let words = match expr.ty {
        Type::Bool => 0,
        Type::Bits(width) => u32::from(width).div_ceil(64) - 1,
    };
    match expr.kind {
        ExprKind::Binary(
            Binary::Mul | Binary::Div | Binary::Mod | Binary::DivSigned | Binary::ModSigned,
            ..,
        ) => 1 + words * words,
        _ => 1 + words,
    }
}

fn unary(op: Unary, a: Type, result: Type) -> CheckResult<Type> {
    let widths = match (a, result) {
        (Type::Bits(a), Type::Bits(result)) => Some((a, result)),
        _ => None,
    };
    let fits = match op {
        Unary::Not => return same("the operand", a, Type::Bool).map(|()| Type::Bool),
        Unary::ToBits => return same("the operand", a, Type::Bool).map(|()| Type::Bits(1)),
        Unary::ToBool => {
            return match a {
                Type::Bits(_) => Ok(Type::Bool),
                Type::Bool => other("makes a bool of a bool"),
            };
        }
        Unary::Complement | Unary::Negate => widths.is_some_and(|(a, result)| a == result),
        Unary::ZeroExtend | Unary::SignExtend => widths.is_some_and(|(a, result)| a < result),
        Unary::Truncate => widths.is_some_and(|(a, result)| a > result),
        Unary::SaturateUnsigned
        | Unary::SaturateSigned
        | Unary::SaturateSignedToUnsigned
        | Unary::SaturateUnsignedToSigned => widths.is_some_and(|(a, result)| a >= result),
    };
    if fits {
        Ok(result)
    } else {
        other(format!("{op:?} cannot make {} of {}", show(result), show(a)))
    }
}

fn binary(op: Binary, a: Type, b: Type) -> CheckResult<Type> {
    use Binary as B;
    match (op, a, b) {
        (B::AndAlso | B::OrElse, Type::Bool, Type::Bool) => Ok(Type::Bool),
        (B::Equal | B::NotEqual, _, _) if a == b => Ok(Type::Bool),
        (B::Less | B::LessEqual | B::LessSigned | B::LessEqualSigned, Type::Bits(x), Type::Bits(y))
            if x == y =>
        {
            Ok(Type::Bool)
        }
        (B::ShiftLeft | B::ShiftRight | B::ShiftRightSigned, Type::Bits(_), Type::Bits(_)) => Ok(a),
        (B::Concat, Type::Bits(x), Type::Bits(y)) => match x.checked_add(y) {
            Some(width) => Ok(Type::Bits(width)),
            None => other("is wider than anything may be"),
        },
        (
            B::Add
            | B::Sub
            | B::Mul
            | B::Div
            | B::Mod
            | B::DivSigned
            | B::ModSigned
            | B::And
            | B::Or
            | B::Xor,
            Type::Bits(x),
            Type::Bits(y),
        ) if x == y => Ok(a),
        _ => other(format!("{op:?} does not take {} and {}", show(a), show(b))),
    }
}
