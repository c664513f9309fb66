//! Operations and actions.
//!
//! An action is a list of operations that are executed one after the other. The only jumps go forward, so every action
//! ends after at most as many steps as it has operations.

use crate::expr::{HeaderRef, Place};
use crate::ids::{
    CalculationId, CounterId, DigestId, ExprId, ExternFunctionId, FieldListId, MeterId, RegisterId, StackId,
    UnionId, UnionStackId,
};
use crate::program::Identity;
use serde::{Deserialize, Serialize};

/// An action, from which tables choose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// Its names.
    pub identity: Identity,
    /// The parameters that an entry provides.
    pub parameters: Vec<Parameter>,
    /// Its operations, in order.
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
/// Indices of counters, meters and registers that are out of range make the operation one without effect; a register
/// read then gives 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Evaluates, then finds the place, then writes. Widths are equal.
    Assign(Place, ExprId),
    /// Copies a variable field with its present width; the first is written. Both have the same greatest width.
    CopyVariable(Place, Place),
    /// Makes a header valid. Its fields keep what they have if it was valid, else they are 0. In a union the other members
    /// become invalid.
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
    /// Goes on at this position of the list, which is further down (its length ends the action).
    Jump(u16),
    /// As before, if the expression, a bool, is false.
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
        /// The colour it comes with, if the meter is to know.
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
        /// Added.
        base: ExprId,
        /// Number of values; `None`: the hash as it is, nothing added.
        max: Option<ExprId>,
    },
    /// Writes a random number from low to high, both included: place, low, high. High below low counts as low.
    Random(Place, ExprId, ExprId),
    /// Sends a digest when the pass ends.
    Digest(DigestId),
    /// Clones the packet as it came, when ingress ends: session, metadata kept.
    CloneIngress(ExprId, Option<FieldListId>),
    /// Clones the packet as it leaves, when egress ends: session, metadata kept.
    CloneEgress(ExprId, Option<FieldListId>),
    /// Lets the packet as it came run again when ingress ends, with the metadata kept.
    Resubmit(Option<FieldListId>),
    /// Lets the packet as it leaves run again when egress ends, with the metadata kept. Ingress may ask for it too; replicas
    /// and clones do not heed what was asked before they were made.
    Recirculate(Option<FieldListId>),
    /// Cuts what leaves to this many bytes; of several the smallest counts. What is recirculated is cut too, and its next
    /// pass knows nothing of it.
    Truncate(ExprId),
    /// Sets the egress port wished for to "drop" and the multicast group to 0 (`mark_to_drop`).
    MarkToDrop,
    /// Ends the control in which the action runs.
    Exit,
    /// Programmers' claims (`assert`, `assume`): a false one is counted and has no other effect.
    Assert(ExprId),
    /// A log line: text with `{}` for each argument.
    Log(String, Vec<ExprId>),
    /// A function of the target's own: result, arguments.
    Extern(ExternFunctionId, Place, Vec<ExprId>),
}
