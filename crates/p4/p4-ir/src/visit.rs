//! Visitors of the elements to which operations and expressions refer: one place that lists all variants, for
//! the checker's bounds, the analysis and engines.

use crate::action::Op;
use crate::expr::{ExprKind, HeaderRef, Place, UnionRef};
use crate::ids::ExprId;
use crate::parser::ParserOp;
use crate::program::Program;

impl ExprKind {
    /// Calls a function for each child.
    pub fn for_each_child(&self, mut f: impl FnMut(ExprId)) {
        match *self {
            Self::Unary(_, a) | Self::Slice(a, _) => f(a),
            Self::Binary(_, a, b) => {
                f(a);
                f(b);
            }
            Self::Mux(a, b, c) => {
                f(a);
                f(b);
                f(c);
            }
            Self::Member(header, _) | Self::Valid(header) => header.index_expr().into_iter().for_each(f),
            Self::HeadersEqual(a, b) => a.index_expr().into_iter().chain(b.index_expr()).for_each(f),
            Self::VariablesEqual(a, b) => {
                a.index_expr().into_iter().chain(b.index_expr()).for_each(f);
            }
            Self::UnionValid(union) => union.index_expr().into_iter().for_each(f),
            Self::UnionsEqual(a, b) => a.index_expr().into_iter().chain(b.index_expr()).for_each(f),
            Self::Constant(_)
            | Self::WideConstant(_)
            | Self::Bool(_)
            | Self::Field(_)
            | Self::Parameter(_)
            | Self::StacksEqual(..)
            | Self::LastIndex(_)
            | Self::NextIndex(_)
            | Self::Lookahead { .. } => {}
        }
    }
}

impl Place {
    /// The expression of its index, if there is one.
    #[must_use]
    pub fn index_expr(self) -> Option<ExprId> {
        match self {
            Self::Field(_) => None,
            Self::Member(header, _) => header.index_expr(),
        }
    }
}

impl Op {
    /// Calls a function for each of its expressions, including those of indices.
    pub fn for_each_expr(&self, mut f: impl FnMut(ExprId)) {
        if let Some(place) = self.written() {
            place.index_expr().into_iter().for_each(&mut f);
        }
        match self {
            Self::Assign(_, value) | Self::RegisterRead(_, _, value) => f(*value),
            Self::CopyVariable(_, from) => from.index_expr().into_iter().for_each(f),
            Self::SetValid(header) | Self::SetInvalid(header) => header.index_expr().into_iter().for_each(f),
            Self::CopyHeader(to, from) => to.index_expr().into_iter().chain(from.index_expr()).for_each(f),
            Self::JumpUnless(value, _)
            | Self::Count(_, value)
            | Self::CloneIngress(value, _)
            | Self::CloneEgress(value, _)
            | Self::Truncate(value)
            | Self::Assert(value) => f(*value),
            Self::Meter { index, colour, .. } => [Some(*index), *colour].into_iter().flatten().for_each(f),
            Self::RegisterWrite(_, a, b) | Self::Random(_, a, b) => [*a, *b].into_iter().for_each(f),
            Self::Hash { base, max, .. } => [Some(*base), *max].into_iter().flatten().for_each(f),
            Self::Log(_, values) | Self::Extern(_, _, values) => values.iter().copied().for_each(f),
            Self::CopyUnion(..)
            | Self::CopyStack(..)
            | Self::CopyUnionStack(..)
            | Self::Push(..)
            | Self::Pop(..)
            | Self::PushUnion(..)
            | Self::PopUnion(..)
            | Self::Jump(_)
            | Self::Digest(_)
            | Self::Resubmit(_)
            | Self::Recirculate(_)
            | Self::MarkToDrop
            | Self::Exit => {}
        }
    }

    /// The field that it writes, if it writes one.
    #[must_use]
    pub fn written(&self) -> Option<Place> {
        match self {
            Self::Assign(place, _)
            | Self::CopyVariable(place, _)
            | Self::RegisterRead(place, ..)
            | Self::Random(place, ..)
            | Self::Extern(_, place, _)
            | Self::Meter { result: place, .. }
            | Self::Hash { result: place, .. } => Some(*place),
            Self::SetValid(_)
            | Self::SetInvalid(_)
            | Self::CopyHeader(..)
            | Self::CopyUnion(..)
            | Self::CopyStack(..)
            | Self::CopyUnionStack(..)
            | Self::Push(..)
            | Self::Pop(..)
            | Self::PushUnion(..)
            | Self::PopUnion(..)
            | Self::Jump(_)
            | Self::JumpUnless(..)
            | Self::Count(..)
            | Self::RegisterWrite(..)
            | Self::Digest(_)
            | Self::CloneIngress(..)
            | Self::CloneEgress(..)
            | Self::Resubmit(_)
            | Self::Recirculate(_)
            | Self::Truncate(_)
            | Self::MarkToDrop
            | Self::Exit
            | Self::Assert(_)
            | Self::Log(..) => None,
        }
    }
}

impl ParserOp {
    /// Calls a function for each of its expressions.
    pub fn for_each_expr(&self, mut f: impl FnMut(ExprId)) {
        match self {
            Self::Extract(header) => header.index_expr().into_iter().for_each(f),
            Self::ExtractVariable(header, bits) => {
                header.index_expr().into_iter().for_each(&mut f);
                f(*bits);
            }
            Self::Advance(bits) => f(*bits),
            Self::Verify(condition, error) => {
                f(*condition);
                f(*error);
            }
            Self::Do(op) => op.for_each_expr(f),
        }
    }
}

impl Program {
    /// Calls a function for each node of a tree, the root first.
    ///
    /// Trees of a checked program are small; for another program this may run long.
    pub fn for_each_node(&self, root: ExprId, f: &mut impl FnMut(ExprId, &ExprKind)) {
        let kind = &self.exprs[root.index()].kind;
        f(root, kind);
        kind.for_each_child(|child| self.for_each_node(child, f));
    }

    /// The type of a header that is referred to.
    #[must_use]
    pub fn type_of(&self, header: HeaderRef) -> &crate::header::HeaderType {
        let ty = match header {
            HeaderRef::Header(id) => self.headers[id.index()].ty,
            HeaderRef::Next(stack) | HeaderRef::Last(stack) | HeaderRef::Element(stack, _) => {
                self.stacks[stack.index()].ty
            }
            HeaderRef::UnionElement(stack, _, member)
            | HeaderRef::UnionNext(stack, member)
            | HeaderRef::UnionLast(stack, member) => {
                let union = self.union_stacks[stack.index()].ty;
                self.union_types[union.index()].members[usize::from(member)].1
            }
        };
        &self.header_types[ty.index()]
    }

    /// Calls a function for each header instance that a reference can mean.
    pub fn for_each_header(&self, header: HeaderRef, mut f: impl FnMut(crate::ids::HeaderId)) {
        use crate::ids::HeaderId;
        match header {
            HeaderRef::Header(id) => f(id),
            HeaderRef::Next(stack) | HeaderRef::Last(stack) | HeaderRef::Element(stack, _) => {
                let stack = &self.stacks[stack.index()];
                (0..stack.size).for_each(|i| f(HeaderId(stack.first.0 + i)));
            }
            HeaderRef::UnionElement(stack, _, member)
            | HeaderRef::UnionNext(stack, member)
            | HeaderRef::UnionLast(stack, member) => {
                let stack = &self.union_stacks[stack.index()];
                for i in 0..stack.size {
                    let union = &self.unions[stack.first.index() + usize::from(i)];
                    f(HeaderId(union.first.0 + member));
                }
            }
        }
    }

    /// Calls a function for each member of each union that a reference can mean.
    pub fn for_each_member(&self, union: UnionRef, mut f: impl FnMut(crate::ids::HeaderId)) {
        let mut one = |at: usize| {
            let union = &self.unions[at];
            let members = self.union_types[union.ty.index()].members.len();
            (0..members).for_each(|i| f(crate::ids::HeaderId(union.first.0 + i as u16)));
        };
        match union {
            UnionRef::Union(id) => one(id.index()),
            UnionRef::Element(stack, _) => {
                let stack = &self.union_stacks[stack.index()];
                (0..usize::from(stack.size)).for_each(|i| one(stack.first.index() + i));
            }
        }
    }

    /// Calls a function for each header instance that an operation can make valid.
    pub fn for_each_made_valid(&self, op: &Op, mut f: impl FnMut(crate::ids::HeaderId)) {
        match op {
            Op::SetValid(header) | Op::CopyHeader(header, _) => self.for_each_header(*header, f),
            Op::CopyUnion(union, _) => self.for_each_member(UnionRef::Union(*union), f),
            Op::CopyStack(stack, _) | Op::Push(stack, _) | Op::Pop(stack, _) => {
                self.for_each_header(HeaderRef::Last(*stack), f);
            }
            Op::CopyUnionStack(stack, _) | Op::PushUnion(stack, _) | Op::PopUnion(stack, _) => {
                let stack = &self.union_stacks[stack.index()];
                for i in 0..stack.size {
                    self.for_each_member(UnionRef::Union(crate::ids::UnionId(stack.first.0 + i)), &mut f);
                }
            }
            _ => {}
        }
    }
}
