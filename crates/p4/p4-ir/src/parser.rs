//! The parser as a graph of states, and the deparser.
//!
//! A parser that extracts in every iteration of a loop ends when the packet ends, or when a stack is full;
//! one that loops without extracting ends at the bound [`crate::Bounds::parser_steps`].

use crate::action::Op;
use crate::bits::Bits;
use crate::expr::HeaderRef;
use crate::identity::Identity;
use crate::ids::{ExprId, HeaderId, StackId, StateId, UnionId, UnionStackId, ValueSetId};
use crate::table::{KeyMatch, MatchKind};
use serde::{Deserialize, Serialize};

/// The parser.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Parser {
    /// All states.
    pub states: Vec<State>,
    /// The first state; if there are no states, nothing is parsed.
    pub start: StateId,
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The name in the program.
    pub name: String,
    /// Operations of the state, in order.
    pub ops: Vec<ParserOp>,
    /// The choice of the next state.
    pub select: Select,
}

/// An operation of a state. A packet too short for it ends the parser with `PacketTooShort`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParserOp {
    /// Reads a header without a variable field and makes it valid. With [`HeaderRef::Next`], the stack's next
    /// index moves on; a full stack ends the parser with `StackOutOfBounds`.
    Extract(HeaderRef),
    /// Reads a header with a variable field of this many bits. A number that is not a multiple of 8, or more
    /// than the field can hold, ends the parser with `HeaderTooShort`.
    ExtractVariable(HeaderRef, ExprId),
    /// Skips this many bits.
    Advance(ExprId),
    /// Ends the parser with an error if the first, a bool, is false: condition, number of the error (any
    /// width).
    Verify(ExprId, ExprId),
    /// An operation of actions other than a jump.
    Do(Op),
}

/// The choice of the next state: that of the first case that matches, else the default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Select {
    /// The keys, bits only, which are evaluated even if there are no cases. Without keys the default is
    /// taken.
    pub keys: Vec<ExprId>,
    /// Sum of the keys' widths.
    pub width: u16,
    /// The cases in order.
    pub cases: Vec<SelectCase>,
    /// The next state if no case matches.
    pub default: NextState,
}

/// A case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectCase {
    /// The values with which the keys are compared.
    pub pattern: Pattern,
    /// The next state.
    pub next: NextState,
}

/// A value with which keys are compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    /// The concatenated keys, the first on the left: `keys & mask == value`. No bit of the value is outside
    /// of the mask.
    Masked {
        /// As wide as all keys.
        value: Bits,
        /// As wide as all keys.
        mask: Bits,
    },
    /// The values in the value set.
    ValueSet(ValueSetId),
}

/// A successor of a parser state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NextState {
    /// A state.
    State(StateId),
    /// The end of the parser.
    Accept,
    /// The end of the parser with the error `NoMatch`, or with the one set before.
    Reject,
}

/// A set of values that controllers fill and that parsers compare keys with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueSet {
    /// Names of the value set.
    pub identity: Identity,
    /// Name, width in bits and match kind of each part, in order.
    pub parts: Vec<(String, u16, MatchKind)>,
    /// Greatest number of members.
    pub size: u32,
    /// Members, each with one match per part.
    pub members: Vec<Vec<KeyMatch>>,
}

/// The deparser: it emits the valid ones of these headers, in order, then the packet's bytes behind the
/// parsed headers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Deparser {
    /// In the order of the wire.
    pub emits: Vec<Emit>,
}

/// An element that is emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Emit {
    /// A header.
    Header(HeaderId),
    /// All elements of a stack.
    Stack(StackId),
    /// The valid member of a union.
    Union(UnionId),
    /// All elements of a stack of unions.
    UnionStack(UnionStackId),
}
