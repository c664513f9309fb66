//! Compiles a checked program to flat code, once, when an engine is made.
//!
//! | file | compiles |
//! |---|---|
//! | `mod.rs` | the whole program, labels and jumps |
//! | `place.rs` | fields: loads and stores |
//! | `value.rs` | expressions of up to 64 bits, conditions, references to headers |
//! | `wide.rs` | expressions of more than 64 bits |
//! | `action.rs` | operations and actions |
//! | `checksum.rs` | checksums, and what they and hashes are calculated over |
//! | `flow.rs` | parser and controls |
//!
//! Compilation recurses along expressions, whose depth is bounded first ([`MAX_DEPTH`]); running does not
//! recurse. A jump names a label until all code is there.

mod action;
mod checksum;
mod flow;
mod place;
mod value;
mod wide;

pub(crate) use action::parameter_words;

use crate::code::{Op, Pc, Reg, SelectTable, Slow, WideOp};
use crate::error::Error;
use p4_ir::{
    Apply, Binary, Expr, ExprId, ExprKind, HeaderRef, Next, Program, Table, TableId, Type, UnionRef,
};
use p4_tables::KeyLayout;

/// Deepest expression. Each level may need a register.
pub(crate) const MAX_DEPTH: u16 = 240;

/// The code of a program.
#[derive(Debug, Default)]
pub(crate) struct Code {
    pub ops: Vec<Op>,
    pub slow: Vec<Slow>,
    pub selects: Vec<SelectTable>,
    pub applies: Vec<ApplyCode>,
    /// Where each action begins.
    pub actions: Vec<Pc>,
    pub parser: Pc,
    pub verify: Pc,
    pub ingress: Pc,
    pub egress: Pc,
    pub update: Pc,
    /// Where the gathering of each digest's values begins.
    pub digests: Vec<Pc>,
    /// Scratch words that wide values need.
    pub wide_words: usize,
    /// The elements of the program for which the code at these positions stands, ascending; for observers.
    pub marks: Vec<(Pc, Mark)>,
}

/// The element of the program for which a position in the code stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A condition was evaluated.
    Branch {
        /// Whether the block is one of egress.
        egress: bool,
        /// The block.
        block: u16,
        /// The value of the condition.
        taken: bool,
    },
    /// An action that stands by itself begins.
    Run(p4_ir::ActionId),
}

/// A place where a table is applied.
#[derive(Debug)]
pub(crate) struct ApplyCode {
    pub table: TableId,
    /// Words of the key.
    pub words: usize,
    pub next: NextCode,
    /// The hash for an action selector is in register 0.
    pub selector: bool,
}

/// Where the code goes on after a table.
#[derive(Debug)]
pub(crate) enum NextCode {
    Always(Pc),
    ByHit(Pc, Pc),
    /// By the number of the action, and for none.
    ByAction(Box<[(u16, Pc)]>, Pc),
}

/// A place in the code that jumps may name before it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label(u32);

const UNBOUND: Pc = Pc::MAX;

/// Compiles a program.
///
/// # Errors
///
/// [`Error::TooDeep`], [`Error::TooLarge`], [`Error::UnknownExtern`].
pub(crate) fn compile(program: &Program, layouts: &[KeyLayout]) -> Result<Code, Error> {
    check_depth(program)?;
    check_externs(program)?;
    let mut compiler = Compiler {
        program,
        layouts,
        code: Code::default(),
        labels: Vec::new(),
        last_bound: UNBOUND,
        wide_top: 0,
        parameters: Vec::new(),
        in_parser: false,
        error: None,
    };
    compiler.all();
    if let Some(error) = compiler.error {
        return Err(error);
    }
    Ok(compiler.finish())
}

/// Depth of each expression; children come before their parents.
fn check_depth(program: &Program) -> Result<(), Error> {
    let mut depths = vec![1_u16; program.exprs.len()];
    for (at, expr) in program.exprs.iter().enumerate() {
        let below = children(expr)
            .into_iter()
            .flatten()
            .map(|child| depths[child.index()])
            .max();
        depths[at] = below.unwrap_or(0) + 1;
        if depths[at] > MAX_DEPTH {
            return Err(Error::TooDeep { limit: MAX_DEPTH });
        }
    }
    Ok(())
}

fn children(expr: &Expr) -> [Option<ExprId>; 3] {
    let header = |header: HeaderRef| match header {
        HeaderRef::Element(_, index) | HeaderRef::UnionElement(_, index, _) => Some(index),
        _ => None,
    };
    let union = |union: UnionRef| match union {
        UnionRef::Element(_, index) => Some(index),
        UnionRef::Union(_) => None,
    };
    match expr.kind {
        ExprKind::Unary(_, a) | ExprKind::Slice(a, _) => [Some(a), None, None],
        ExprKind::Binary(_, a, b) => [Some(a), Some(b), None],
        ExprKind::Mux(a, b, c) => [Some(a), Some(b), Some(c)],
        ExprKind::Member(a, _) | ExprKind::Valid(a) => [header(a), None, None],
        ExprKind::HeadersEqual(a, b) => [header(a), header(b), None],
        ExprKind::VariablesEqual(a, b) => [a.index_expr(), b.index_expr(), None],
        ExprKind::UnionValid(a) => [union(a), None, None],
        ExprKind::UnionsEqual(a, b) => [union(a), union(b), None],
        _ => [None; 3],
    }
}

fn check_externs(program: &Program) -> Result<(), Error> {
    for function in &program.extern_functions {
        if !crate::externs::is_known(function) {
            return Err(Error::UnknownExtern {
                name: function.name.clone(),
            });
        }
    }
    Ok(())
}

struct Compiler<'a> {
    program: &'a Program,
    layouts: &'a [KeyLayout],
    code: Code,
    /// Where labels are bound.
    labels: Vec<Pc>,
    /// The position last bound.
    last_bound: Pc,
    /// Scratch words in use.
    wide_top: u32,
    /// First argument word of each parameter of the action at hand.
    parameters: Vec<u16>,
    in_parser: bool,
    error: Option<Error>,
}

impl Compiler<'_> {
    fn all(&mut self) {
        let actions: Vec<Label> = self.program.actions.iter().map(|_| self.label()).collect();
        for (action, &label) in self.program.actions.iter().zip(&actions) {
            self.bind(label);
            self.action(action);
        }
        self.code.actions = actions
            .iter()
            .map(|label| self.labels[label.0 as usize])
            .collect();
        self.code.parser = self.here();
        self.parser();
        self.code.verify = self.here();
        self.checksums(true);
        self.code.ingress = self.here();
        self.control(&self.program.ingress, false);
        self.code.egress = self.here();
        self.control(&self.program.egress, true);
        self.code.update = self.here();
        self.checksums(false);
        for digest in &self.program.digests {
            let here = self.here();
            self.code.digests.push(here);
            self.emit(Op::Gather);
            for item in &digest.items {
                self.gather_value(item.value);
            }
            self.emit(Op::End);
        }
    }

    /// Replaces labels by positions.
    fn finish(mut self) -> Code {
        let labels = &self.labels;
        let resolve = |pc: &mut Pc| *pc = labels[*pc as usize];
        for op in &mut self.code.ops {
            match op {
                Op::Jump { pc }
                | Op::JumpIf { pc, .. }
                | Op::JumpUnless { pc, .. }
                | Op::JumpIfEqual { pc, .. }
                | Op::JumpUnlessEqual { pc, .. }
                | Op::JumpUnlessValid { pc, .. } => resolve(pc),
                Op::Call { back, .. } => resolve(back),
                _ => {}
            }
        }
        for apply in &mut self.code.applies {
            match &mut apply.next {
                NextCode::Always(pc) => resolve(pc),
                NextCode::ByHit(hit, miss) => {
                    resolve(hit);
                    resolve(miss);
                }
                NextCode::ByAction(next, none) => {
                    next.iter_mut().for_each(|(_, pc)| resolve(pc));
                    resolve(none);
                }
            }
        }
        for select in &mut self.code.selects {
            resolve(&mut select.default);
            for case in &mut select.cases {
                use crate::code::SelectCode::{Masked, Set, WideMasked};
                let (Masked { pc, .. } | WideMasked { pc, .. } | Set { pc, .. }) = case;
                resolve(pc);
            }
        }
        self.code
    }

    fn here(&mut self) -> Pc {
        // The code that begins here may be a jump's target, so no jump before it may be left out.
        self.last_bound = self.code.ops.len() as Pc;
        self.last_bound
    }

    fn emit(&mut self, op: Op) {
        self.code.ops.push(op);
    }

    fn slow(&mut self, slow: impl Into<Slow>) {
        let at = self.code.slow.len() as u32;
        self.code.slow.push(slow.into());
        self.emit(Op::Slow { slow: at });
    }

    fn wide_op(&mut self, op: WideOp) {
        self.slow(op);
    }

    fn mark(&mut self, mark: Mark) {
        let here = self.here();
        self.code.marks.push((here, mark));
    }

    fn label(&mut self) -> Label {
        self.labels.push(UNBOUND);
        Label(self.labels.len() as u32 - 1)
    }

    /// Binds a label to the next operation. A jump directly before that operation is left out.
    fn bind(&mut self, label: Label) {
        let here = self.code.ops.len() as Pc;
        let superfluous = matches!(self.code.ops.last(), Some(Op::Jump { pc }) if *pc == label.0);
        // A mark shows by which way the run came here; no other way may lead here.
        let marked = self.code.marks.last().is_some_and(|(pc, _)| pc + 1 == here);
        if superfluous && !marked && self.last_bound != here {
            self.code.ops.pop();
        }
        self.last_bound = self.code.ops.len() as Pc;
        self.labels[label.0 as usize] = self.last_bound;
    }

    fn jump(&mut self, label: Label) {
        self.emit(Op::Jump { pc: label.0 });
    }

    /// A register by its number.
    fn reg(&mut self, number: usize) -> Reg {
        Reg::try_from(number).unwrap_or_else(|_| {
            self.error = Some(Error::TooLarge {
                what: "list of values",
            });
            0
        })
    }

    fn expr(&self, expr: ExprId) -> Expr {
        self.program.exprs[expr.index()]
    }

    /// Width of an expression in bits; a bool has one.
    fn width(&self, expr: ExprId) -> u32 {
        match self.expr(expr).ty {
            Type::Bits(width) => u32::from(width),
            Type::Bool => 1,
        }
    }

    fn is_wide(&self, expr: ExprId) -> bool {
        self.width(expr) > 64
    }
}

/// Whether an operator compares, so that its operands have another type than its result.
fn compares(op: Binary) -> bool {
    matches!(
        op,
        Binary::Equal
            | Binary::NotEqual
            | Binary::Less
            | Binary::LessEqual
            | Binary::LessSigned
            | Binary::LessEqualSigned
    )
}

/// Where a table's continuation leads, as labels.
fn next_code(table: &Table, apply: &Apply, label: impl Fn(Next) -> Pc) -> NextCode {
    match apply {
        Apply::Always(next) => NextCode::Always(label(*next)),
        Apply::ByHit { hit, miss } => NextCode::ByHit(label(*hit), label(*miss)),
        Apply::ByAction(next, none) if next.iter().all(|next| next == none) => NextCode::Always(label(*none)),
        Apply::ByAction(next, none) => {
            let by_action = table
                .actions
                .iter()
                .zip(next)
                .map(|(action, &next)| (action.action.0, label(next)));
            NextCode::ByAction(by_action.collect(), label(*none))
        }
    }
}
