//! Expressions: trees whose nodes lie in one arena, each with its type.
//!
//! Values are bit strings of a fixed width, as in a machine: an operator takes operands of one width and
//! gives that width, wrapping around; signs are in the operators (`Less` and `LessSigned`), and widths change
//! only by the casts. So a number is only bits, and an engine distinguishes signs only in the few operators
//! that have two forms. Front ends whose language has numbers without bounds (BMv2's JSON has) choose widths
//! in which nothing is lost.
//!
//! Children come before their parents in the arena ([`crate::ExprId`] of a child is smaller): trees cannot be
//! cyclic.
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
    /// Kind of the expression.
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
    /// Whether a header is valid. A reference outside of its stack is not.
    Valid(HeaderRef),
    /// Whether any member of a union is valid.
    UnionValid(UnionRef),
    /// Whether two headers are equal: both invalid, or both valid with all fields equal.
    HeadersEqual(HeaderRef, HeaderRef),
    /// Whether two variable fields are equal, in present width and bits. Those of invalid headers are empty.
    VariablesEqual(Place, Place),
    /// Whether two unions are equal: no member valid, or the same member valid and equal.
    UnionsEqual(UnionRef, UnionRef),
    /// Whether two stacks of one type and size are equal, element by element.
    StacksEqual(StackId, StackId),
    /// Index of the last element extracted (`lastIndex`), 32 bits: next index less 1, wrapping around.
    LastIndex(StackId),
    /// The number of the next element, 32 bits.
    NextIndex(StackId),
    /// Parser only: bits of the packet ahead, `offset` bits behind the parser's position. A packet that is
    /// too short ends the parser with `PacketTooShort`.
    Lookahead {
        /// Bits behind the parser's position.
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
    /// To a smaller or equal width, clamped: from a signed to an unsigned number; negative ones become 0.
    SaturateSignedToUnsigned,
    /// To a smaller or equal width, clamped: from a signed to a signed number.
    SaturateSigned,
    /// To a smaller or equal width, clamped: from an unsigned to a signed number.
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
    /// Unsigned quotient; a division by 0 gives 0.
    Div,
    /// Unsigned remainder; a division by 0 gives 0.
    Mod,
    /// Signed quotient, rounded towards 0; a division by 0 gives 0. The smallest number divided by -1 wraps
    /// around.
    DivSigned,
    /// Signed remainder, with the sign of the first operand; a division by 0 gives 0.
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
    /// Equality of bits of one width, or of two bools; gives a bool.
    Equal,
    /// The opposite of [`Binary::Equal`].
    NotEqual,
    /// Comparison of unsigned numbers of one width; gives a bool.
    Less,
    /// As [`Binary::Less`].
    LessEqual,
    /// Comparison of signed numbers of one width; gives a bool.
    LessSigned,
    /// As [`Binary::LessSigned`].
    LessEqualSigned,
    /// Conjunction of two bools; the second is evaluated only if the first is true.
    AndAlso,
    /// Disjunction of two bools; the second is evaluated only if the first is false.
    OrElse,
}

/// A header, fixed or found at run time. An element outside of its stack is an invalid header: reads give 0,
/// writes have no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HeaderRef {
    /// A header by number.
    Header(HeaderId),
    /// The next element of a stack. Reading or writing it when the stack is full ends the parser with
    /// `StackOutOfBounds`.
    Next(StackId),
    /// The last element extracted. Before the first extraction, reading or writing it ends the parser with
    /// `StackOutOfBounds`.
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
    /// A union by number.
    Union(UnionId),
    /// An element of a union stack by number.
    Element(UnionStackId, ExprId),
}

/// The target of a write. Writing to a field of an invalid header has no effect.
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
