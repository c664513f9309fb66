//! Observers, which watch a packet run.
//!
//! An [`Observer`] is called at each step; its functions do nothing by default. The engine is compiled once
//! per kind of observer, so that a plain run pays nothing for the possibility.

use crate::bits;
use crate::code::{ExternOp, Op};
use crate::compile::Code;
pub use crate::compile::Mark;
use crate::context::Context;
use p4_ir::{ActionId, Bits, FieldId, HeaderId, Program, StateId, TableId};

/// A packet's headers and metadata at a moment.
#[derive(Clone, Copy)]
pub struct View<'a> {
    program: &'a Program,
    phv: &'a [u8],
    valid: &'a [u64],
    filled: &'a [u16],
    /// Where the parser is in the packet, in bytes.
    pub at: usize,
}

impl<'a> View<'a> {
    pub(crate) fn new(program: &'a Program, ctx: &'a Context) -> Self {
        View {
            program,
            phv: &ctx.packet.phv,
            valid: &ctx.packet.valid,
            filled: &ctx.packet.filled,
            at: ctx.packet.at,
        }
    }

    /// The program that runs.
    pub fn program(&self) -> &'a Program {
        self.program
    }

    /// Whether a header is valid. Metadata always is.
    pub fn is_valid(&self, header: HeaderId) -> bool {
        self.valid
            .get(header.index() / 64)
            .is_some_and(|word| word >> (header.index() % 64) & 1 == 1)
    }

    /// A field's value; of a variable field the bits in use.
    pub fn field(&self, field: FieldId) -> Bits {
        let field = &self.program.fields[field.index()];
        let width = if field.variable {
            self.filled[field.header.index()]
        } else {
            field.width
        };
        let mut words = vec![0; crate::wide::words(u32::from(width))];
        bits::get_words(self.phv, field.offset as usize, u32::from(width), &mut words);
        let bytes: Vec<u8> = words.iter().rev().flat_map(|word| word.to_be_bytes()).collect();
        Bits::from_bytes(width, &bytes)
    }

    /// All bytes of the packet header vector, for observers that compare its states.
    pub fn bytes(&self) -> &'a [u8] {
        self.phv
    }
}

impl std::fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View")
            .field("program", &self.program.name)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

/// A table was looked up.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    /// The table.
    pub table: TableId,
    /// The key in the table's layout.
    pub key: &'a [u64],
    /// Whether an entry was found.
    pub hit: bool,
    /// The entry that counts the packet; the default one if none was found.
    pub entry: p4_tables::Handle,
    /// The action that will run.
    pub action: Option<ActionId>,
    /// Arguments of the action: one after the other, each in whole words, least significant first.
    pub arguments: &'a [u64],
}

/// An operation of the flat code, for observers in this crate.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    pub(crate) op: &'a Op,
    pub(crate) code: &'a Code,
}

/// The phase of the pipeline that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The parser.
    Parser,
    /// Checksums are verified.
    Verify,
    /// Ingress.
    Ingress,
    /// Egress, for this port.
    Egress(u32),
    /// Checksums are made, then the headers emitted.
    Deparser,
}

/// The destination of a packet or a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Egress for this port, as this replica.
    Port {
        /// The port.
        port: u32,
        /// Number of the replica, 0 if it is none.
        rid: u16,
        /// Value of `instance_type` that the copy will have.
        instance: u8,
    },
    /// Ingress again, as it was received.
    Resubmitted,
    /// Ingress again, as it would have left.
    Recirculated,
    /// None.
    Dropped(crate::packet::Drop),
}

/// Called at each step. See the module's description.
pub trait Observer {
    /// False: the observer is never called, and costs nothing.
    const ACTIVE: bool = true;

    /// A pass, a control or the like begins.
    fn phase(&mut self, view: &View<'_>, phase: Phase) {
        let _ = (view, phase);
    }

    /// A parser state begins.
    fn state(&mut self, view: &View<'_>, state: StateId) {
        let _ = (view, state);
    }

    /// A header was extracted from that byte of the packet on.
    fn extracted(&mut self, view: &View<'_>, header: HeaderId, from: usize) {
        let _ = (view, header, from);
    }

    /// The parser ended, perhaps with the number of an error.
    fn parsed(&mut self, view: &View<'_>, error: Option<u32>) {
        let _ = (view, error);
    }

    /// A condition was evaluated, or an action outside of a table begins.
    fn mark(&mut self, view: &View<'_>, mark: Mark) {
        let _ = (view, mark);
    }

    /// A table was looked up; the action that was found begins.
    fn looked_up(&mut self, view: &View<'_>, lookup: &Lookup<'_>) {
        let _ = (view, lookup);
    }

    /// An action ended.
    fn action_done(&mut self, view: &View<'_>) {
        let _ = view;
    }

    /// An action ended its control.
    fn exit(&mut self, view: &View<'_>) {
        let _ = view;
    }

    /// An extern was used: a register, a counter, a meter, a clone and the like.
    fn extern_called(&mut self, view: &View<'_>, what: &str) {
        let _ = (view, what);
    }

    /// A cell of a counter was given the packet.
    fn counted(&mut self, counter: u16, index: u64) {
        let _ = (counter, index);
    }

    /// A log line of the program.
    fn log(&mut self, text: &str, arguments: &[u64]) {
        let _ = (text, arguments);
    }

    /// The destination of the packet, or of a copy, was decided.
    fn outcome(&mut self, outcome: Outcome) {
        let _ = outcome;
    }

    /// Checksums were made; the headers leave as they are now.
    fn emitted(&mut self, view: &View<'_>) {
        let _ = view;
    }

    /// A packet leaves with these first bytes.
    fn output(&mut self, port: u32, head: &[u8], length: usize) {
        let _ = (port, head, length);
    }

    /// Before each operation of the flat code.
    fn step(&mut self, view: &View<'_>, step: &Step<'_>) {
        let _ = (view, step);
    }
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    const ACTIVE: bool = false;
}

/// The extern that an operation uses, as a name for users.
pub(crate) fn name_of(op: &ExternOp, program: &Program) -> String {
    match op {
        ExternOp::Count { counter, .. } => format!(
            "counter {}",
            program.counters[usize::from(*counter)].identity.name
        ),
        ExternOp::Meter { meter, .. } => format!("meter {}", program.meters[meter.index()].identity.name),
        ExternOp::RegisterRead { register, .. } => {
            format!(
                "register {} read",
                program.registers[register.index()].identity.name
            )
        }
        ExternOp::RegisterWrite { register, .. } => {
            format!(
                "register {} written",
                program.registers[register.index()].identity.name
            )
        }
        ExternOp::Random { .. } => "random".into(),
        ExternOp::Digest { digest } => format!("digest {}", program.digests[digest.index()].identity.name),
        ExternOp::CloneIngress { .. } => "clone of the packet as it came".into(),
        ExternOp::CloneEgress { .. } => "clone of the packet as it leaves".into(),
        ExternOp::Resubmit { .. } => "resubmit".into(),
        ExternOp::Recirculate { .. } => "recirculate".into(),
    }
}
