//! Expressions: trees whose nodes lie in one arena, each with its type.
//!
//! Values are bit strings of a fixed width, as in a machine: an operator takes operands of one width and gives that
//! width, wrapping around; signs are in the operators (`Less` and `LessSigned`), and widths change only by the casts.
//! So a number is nothing but bits, and an engine needs no case for signs but in the few operators that have two forms.
//! Front ends whose language has numbers without bounds (BMv2's JSON has) choose widths in which nothing is lost.
//!
//! Children come before their parents in the arena ([`crate::ExprId`] of a child is smaller): trees cannot be cyclic.
//!
//! Reading a field of an invalid header gives 0.

use crate::ids::{ConstantId, ExprId, FieldId, HeaderId, StackId, UnionId, UnionStackId};
use serde::{Deserialize, Serialize};

/// The type of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Type {
    /// A bit string of this width, at least 1.
    Bits(u16),
    /// True or false.
    Bool,
}

/// A node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Expr {
    /// What it is.
    pub kind: ExprKind,
    /// Type of its value.
    pub ty: Type,
}

/// The kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ExprKind {
    /// A constant of at most 64 bits.
    Constant(u64),
    /// A wider constant.
    WideConstant(ConstantId),
    /// True or false.
    Bool(bool),
    /// A fixed field.
    Field(FieldId),
    /// A field of a header that is found at run time: header and position of the field in its type.
    Member(HeaderRef, u16),
    /// An argument of the action in which the expression stands. As wide as the parameter.
    Parameter(u16),
    /// Is a header valid? A reference outside of its stack is not.
    Valid(HeaderRef),
    /// Is any member of a union valid?
    UnionValid(UnionRef),
    /// Are two headers equal: both invalid, or both valid and all fields the same?
    HeadersEqual(HeaderRef, HeaderRef),
    /// Are two variable fields equal: filled as far, with the same bits? Those of invalid headers are empty.
    VariablesEqual(Place, Place),
    /// Are two unions equal: none valid, or the same member and equal?
    UnionsEqual(UnionRef, UnionRef),
    /// Are two stacks of one type and size equal, element by element?
    StacksEqual(StackId, StackId),
    /// Index of the last element extracted (`lastIndex`), 32 bits: next index less 1, wrapping around.
    LastIndex(StackId),
    /// The number of the next element, 32 bits.
    NextIndex(StackId),
    /// Parser only: bits of the packet ahead, `offset` bits behind the place reached. Too short a packet ends the parser
    /// with `PacketTooShort`.
    Lookahead {
        /// Bits behind the place reached.
        offset: u16,
    },
    /// One operand.
    Unary(Unary, ExprId),
    /// Two operands.
    Binary(Binary, ExprId, ExprId),
    /// The second if the first (a bool) is true, else the third. Only the chosen one is evaluated.
    Mux(ExprId, ExprId, ExprId),
    /// Bits `low .. low + width of this node` of a value; bit 0 is the lowest.
    Slice(ExprId, u16),
}

/// Operators with one operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unary {
    /// Bool to bool.
    Not,
    /// Bits: all inverted.
    Complement,
    /// Bits: 0 less the value, wrapping around.
    Negate,
    /// To a greater width, new bits zero.
    ZeroExtend,
    /// To a greater width, new bits as the highest one.
    SignExtend,
    /// To a smaller width: the low bits.
    Truncate,
    /// Bool to one bit.
    ToBits,
    /// Bits to bool: not zero.
    ToBool,
    /// To a smaller or equal width, clamped: from an unsigned to an unsigned number.
    SaturateUnsigned,
    /// As before, from a signed to an unsigned number: negative ones become 0.
    SaturateSignedToUnsigned,
    /// As before, from a signed to a signed number.
    SaturateSigned,
    /// As before, from an unsigned to a signed number.
    SaturateUnsignedToSigned,
}

/// Operators with two operands. Unless stated otherwise, both have the width of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Binary {
    /// Sum, wrapping around.
    Add,
    /// Difference, wrapping around.
    Sub,
    /// Product, wrapping around.
    Mul,
    /// Unsigned quotient; by 0 it is 0.
    Div,
    /// Unsigned remainder; by 0 it is 0.
    Mod,
    /// Signed quotient, towards 0; by 0 it is 0. The smallest number by -1 wraps around.
    DivSigned,
    /// Signed remainder, with the sign of the first; by 0 it is 0.
    ModSigned,
    /// Bitwise.
    And,
    /// Bitwise.
    Or,
    /// Bitwise.
    Xor,
    /// To the left; the second operand is an unsigned number of any width. Beyond the width all bits are 0.
    ShiftLeft,
    /// To the right, zeros enter; the second operand as before.
    ShiftRight,
    /// To the right, copies of the highest bit enter; the second operand as before.
    ShiftRightSigned,
    /// The first before the second; widths add up.
    Concat,
    /// Bits of one width, or two bools, to bool.
    Equal,
    /// As before.
    NotEqual,
    /// Unsigned, bits of one width to bool.
    Less,
    /// As before.
    LessEqual,
    /// Signed, bits of one width to bool.
    LessSigned,
    /// As before.
    LessEqualSigned,
    /// Two bools; the second is evaluated only if it matters.
    AndAlso,
    /// As before.
    OrElse,
}

/// A header, fixed or found at run time. What is outside of its stack is an invalid header: reads give 0, writes are
/// without effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HeaderRef {
    /// This one.
    Header(HeaderId),
    /// The next element of a stack. To read or write it when the stack is full ends the parser with `StackOutOfBounds`.
    Next(StackId),
    /// The last element extracted. None extracted yet: as before.
    Last(StackId),
    /// An element by number (unsigned).
    Element(StackId, ExprId),
    /// A member of a union in a union stack: by number.
    UnionElement(UnionStackId, ExprId, u16),
    /// A member of the next union of a union stack.
    UnionNext(UnionStackId, u16),
    /// A member of the last union extracted.
    UnionLast(UnionStackId, u16),
}

/// A union, fixed or found at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum UnionRef {
    /// This one.
    Union(UnionId),
    /// An element of a union stack by number.
    Element(UnionStackId, ExprId),
}

/// Where an operation writes. Writing to a field of an invalid header has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Place {
    /// A fixed field.
    Field(FieldId),
    /// A field of a header that is found at run time.
    Member(HeaderRef, u16),
}

impl HeaderRef {
    /// The expression of the index, if there is one.
    #[must_use]
    pub fn index_expr(self) -> Option<ExprId> {
        match self {
            Self::Element(_, index) | Self::UnionElement(_, index, _) => Some(index),
            _ => None,
        }
    }
}

impl UnionRef {
    /// The expression of the index, if there is one.
    #[must_use]
    pub fn index_expr(self) -> Option<ExprId> {
        match self {
            Self::Element(_, index) => Some(index),
            Self::Union(_) => None,
        }
    }
}
