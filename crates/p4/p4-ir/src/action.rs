//! Operations and actions.
//!
//! An action is a list of operations that are executed one after the other. Jumps may go back: `for` loops
//! of P4 arrive as such jumps. Engines end an action that jumps back more often than
//! [`crate::program::Bounds::loop_turns`] says.

use crate::expr::{HeaderRef, Place};
use crate::identity::Identity;
use crate::ids::{
    CalculationId, CounterId, DigestId, ExprId, ExternFunctionId, FieldListId, MeterId, RegisterId, StackId,
    UnionId, UnionStackId,
};
use serde::{Deserialize, Serialize};

/// An action, which tables choose for a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// Names of the action.
    pub identity: Identity,
    /// The parameters that an entry provides.
    pub parameters: Vec<Parameter>,
    /// Operations of the action, in order.
    pub ops: Vec<Op>,
}

/// A parameter of an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// The name.
    pub name: String,
    /// The number that P4Info gives, or the position counted from 1.
    pub id: u32,
    /// Width in bits, at least 1.
    pub width: u16,
}

/// An operation.
///
/// An operation whose index of a counter, meter or register is out of range has no effect; a register read
/// then gives 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Evaluates the expression, then finds the place, then writes. Widths are equal.
    Assign(Place, ExprId),
    /// Copies a variable field with its present width; the first is written. Both have the same greatest
    /// width.
    CopyVariable(Place, Place),
    /// Makes a header valid. Its fields keep their values if it was valid, else they are 0. In a union the
    /// other members become invalid.
    SetValid(HeaderRef),
    /// Makes a header invalid.
    SetInvalid(HeaderRef),
    /// Copies validity and all fields; the first is written. The types are the same.
    CopyHeader(HeaderRef, HeaderRef),
    /// Copies validity and fields of all members; the first is written.
    CopyUnion(UnionId, UnionId),
    /// Copies all elements and the next index; the first is written. Type and size are the same.
    CopyStack(StackId, StackId),
    /// Copies all elements; the first is written. Type and size are the same.
    CopyUnionStack(UnionStackId, UnionStackId),
    /// `push_front`: elements move up by the count, the lowest become invalid.
    Push(StackId, u16),
    /// `pop_front`: elements move down by the count, the highest become invalid.
    Pop(StackId, u16),
    /// As [`Op::Push`], for a stack of unions.
    PushUnion(UnionStackId, u16),
    /// As [`Op::Pop`], for a stack of unions.
    PopUnion(UnionStackId, u16),
    /// Goes on at this position of the list (its length ends the action). A jump to itself or further up is
    /// a turn of a loop.
    Jump(u16),
    /// As [`Op::Jump`], if the expression, a bool, is false.
    JumpUnless(ExprId, u16),
    /// Counts the packet in a cell.
    Count(CounterId, ExprId),
    /// Measures the packet; the colour (0 green, 1 yellow, 2 red) is written.
    Meter {
        /// The array.
        meter: MeterId,
        /// The cell.
        index: ExprId,
        /// Where the colour goes.
        result: Place,
        /// The colour that the packet has already, for a colour-aware meter.
        colour: Option<ExprId>,
    },
    /// Reads a cell; widths are equal.
    RegisterRead(Place, RegisterId, ExprId),
    /// Writes a cell: register, index, value. Widths are equal.
    RegisterWrite(RegisterId, ExprId, ExprId),
    /// Writes `base + hash modulo max`; a `max` of 0 counts as 1.
    Hash {
        /// Algorithm and input.
        calculation: CalculationId,
        /// Where the result goes, its low bits if it is too wide.
        result: Place,
        /// The number that is added.
        base: ExprId,
        /// Number of values; `None`: the hash itself, without `base`.
        max: Option<ExprId>,
    },
    /// Writes a random number from low to high, both included: place, low, high. High below low counts as
    /// low.
    Random(Place, ExprId, ExprId),
    /// Sends a digest when the pass ends.
    Digest(DigestId),
    /// Clones the packet as it was received, when ingress ends: session, kept metadata.
    CloneIngress(ExprId, Option<FieldListId>),
    /// Clones the packet as it leaves, when egress ends: session, kept metadata.
    CloneEgress(ExprId, Option<FieldListId>),
    /// Lets the packet as it was received run again when ingress ends, with the kept metadata.
    Resubmit(Option<FieldListId>),
    /// Lets the packet as it leaves run again when egress ends, with the kept metadata. Ingress may ask for
    /// it too; for replicas and clones, requests from before they were made do not count.
    Recirculate(Option<FieldListId>),
    /// Truncates the packet to this many bytes when it leaves; of several numbers the smallest counts. A
    /// recirculated packet is truncated too, and its next pass is not limited by the number.
    Truncate(ExprId),
    /// Sets the wanted egress port to "drop" and the multicast group to 0 (`mark_to_drop`).
    MarkToDrop,
    /// Ends the control in which the action runs.
    Exit,
    /// An assertion or assumption (`assert`, `assume`): a false one is counted and has no other effect.
    Assert(ExprId),
    /// A log line: text with `{}` for each argument.
    Log(String, Vec<ExprId>),
    /// A function of the target's own: result, arguments.
    Extern(ExternFunctionId, Place, Vec<ExprId>),
}

impl Op {
    /// Whether the operation, at this position of its list, can begin a further turn of a loop.
    #[must_use]
    pub fn jumps_back_from(&self, position: usize) -> bool {
        matches!(self, Self::Jump(to) | Self::JumpUnless(_, to) if usize::from(*to) <= position)
    }
}
