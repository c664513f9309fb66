//! The form in which engines take P4 programs.
//!
//! A [`Program`] is a P4 program after a compiler has resolved names, types and calls: headers with fixed
//! places in one packet header vector (PHV), a parser as a graph of states, two controls as graphs without
//! cycles, tables, actions as lists of simple operations, externs, a deparser. It does not depend on the
//! format that it was read from, so several front ends can make it, and it does not change while packets run,
//! so several engines and workers can share it.
//!
//! Elements refer to each other by index. Names are for users and controllers only; no engine compares
//! strings.
//!
//! The modules, in the order in which to read them:
//!
//! | module | contents |
//! |---|---|
//! | [`ids`], [`identity`] | one newtype per kind of index; names by which controllers refer to elements |
//! | [`bits`] | constants of any width |
//! | [`header`] | header types, instances, stacks, unions, fields, and their places in the PHV |
//! | [`expr`] | expressions: trees in one arena, each node with its type |
//! | `text`, `visit` | expressions as text for users; the elements to which they refer |
//! | [`action`] | operations, actions |
//! | [`parser`] | parser states, the deparser |
//! | [`control`] | ingress and egress as blocks |
//! | [`table`] | tables, keys, the program's own entries, action profiles |
//! | [`externs`] | counters, meters, registers, hashes, checksums, digests, clones' field lists |
//! | [`program`] | the whole program |
//! | `layout` | places of fields in the PHV |
//! | [`check`], `bounds` | the checker, and its proofs |
//! | [`limits`] | limits of a program's size and cost |
//! | [`analysis`] | the fields that a program reads and changes, and whether its verdicts can be cached |
//! | `undirected` | a path on which nothing says where the packet goes |
//! | [`serial`] | the form in files and between processes |
//! | [`setup`] | what a program is given before its first packet, and the form of both |
//! | [`changes`] | changes of entries, which stand behind that |
//!
//! Engines take only programs that have passed the checker: a [`Checked`].

#![forbid(unsafe_code)]

pub mod action;
pub mod analysis;
pub mod bits;
mod bounds;
pub mod changes;
pub mod check;
pub mod control;
pub mod expr;
pub mod externs;
pub mod header;
pub mod identity;
pub mod ids;
mod layout;
pub mod limits;
pub mod parser;
pub mod program;
pub mod serial;
pub mod setup;
pub mod table;
mod text;
mod undirected;
mod visit;

pub use action::{Action, Op, Parameter};
pub use analysis::Analysis;
pub use bits::Bits;
pub use check::{CheckError, Problem};
pub use control::{Apply, Block, Control, Next};
pub use expr::{Binary, Expr, ExprKind, HeaderRef, Place, Type, Unary, UnionRef};
pub use externs::{
    Algorithm, Calculation, CalculationInput, Checksum, Counter, CounterUnit, Digest, DigestItem,
    ExternFunction, FieldList, Meter, Register,
};
pub use header::{
    Field, FieldType, Header, HeaderType, Membership, Phv, Role, Stack, StandardMetadata, Union, UnionStack,
    UnionType,
};
pub use identity::Identity;
pub use ids::*;
pub use parser::{Deparser, Emit, NextState, Parser, ParserOp, Pattern, Select, SelectCase, State, ValueSet};
pub use program::{Architecture, Bounds, Checked, ControllerField, ControllerHeader, Program};
pub use table::{
    ActionGroup, ActionProfile, Choice, DefaultEntry, Entry, EntryAction, EntryTarget, Implementation, Key,
    KeyMatch, MatchKind, Rate, Rates, Selector, Share, Table, TableAction,
};
pub use undirected::undirected_path;
