//! The checker: the only way to a [`Checked`].
//!
//! The checker proves that every index in a program is in range, that widths and types agree, that controls
//! have no cycles, and that the cost of a packet is below [`crate::limits`]. If a proof fails, the error says
//! what is wrong, and in which element. The checker trusts no program, be it from a front end or from a file.
//! Its own time is linear in the size of the program (times the depth of expressions).
//!
//! | module | checks |
//! |---|---|
//! | `structure` | headers, stacks, unions, layout, names, sizes |
//! | `expr` | each node of the arena: types, children before parents, size and depth |
//! | `ops` | operations, actions |
//! | `flow` | parser states, controls, deparser |
//! | `tables` | tables, entries, profiles, externs |

mod expr;
mod flow;
mod ops;
mod structure;
mod tables;

use crate::bounds;
use crate::header::Membership;
use crate::limits;
use crate::program::{Checked, Program};

/// Why a program is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct CheckError {
    /// The element, such as `action "ingress.forward", operation 3`.
    pub place: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// The fault of an element.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// An index of something that does not exist.
    #[error("refers to {what} {index}, which does not exist")]
    Index {
        /// Kind of the missing element.
        what: &'static str,
        /// Number of the object that does not exist.
        index: u32,
    },
    /// Bits where a bool is wanted, or another width.
    #[error("{what} is {found} instead of {wanted}")]
    Type {
        /// Name of the value.
        what: &'static str,
        /// The type found.
        found: String,
        /// The type that it should have.
        wanted: String,
    },
    /// A quantity above its limit.
    #[error("{what}: {value} is more than {limit}")]
    Limit {
        /// The limited quantity.
        what: &'static str,
        /// The quantity.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A successor that does not have a higher number: the control could run for ever.
    #[error("block {from} goes back to block {to}")]
    Cycle {
        /// The block.
        from: u32,
        /// The successor that closes the circle.
        to: u32,
    },
    /// A loop of the parser that nothing can end.
    #[error("the parser loops for ever: {0}")]
    Endless(String),
    /// Any other fault.
    #[error("{0}")]
    Other(String),
}

/// The result of a check.
pub(crate) type CheckResult<T = ()> = Result<T, Problem>;

/// Adds the element to a problem.
pub(crate) trait At<T> {
    fn at(self, place: impl FnOnce() -> String) -> Result<T, CheckError>;
}

impl<T> At<T> for CheckResult<T> {
    fn at(self, place: impl FnOnce() -> String) -> Result<T, CheckError> {
        self.map_err(|problem| CheckError {
            place: place(),
            problem,
        })
    }
}

/// Checks that a number is within a limit.
pub(crate) fn within(what: &'static str, value: impl TryInto<u64>, limit: impl TryInto<u64>) -> CheckResult {
    let value = value.try_into().unwrap_or(u64::MAX);
    let limit = limit.try_into().unwrap_or(u64::MAX);
    if value > limit {
        Err(Problem::Limit { what, value, limit })
    } else {
        Ok(())
    }
}

/// The element of a vector, or the problem that it does not exist.
pub(crate) fn get<'a, T>(of: &'a [T], index: usize, what: &'static str) -> CheckResult<&'a T> {
    of.get(index).ok_or(Problem::Index {
        what,
        index: u32::try_from(index).unwrap_or(u32::MAX),
    })
}

/// A problem that needs words of its own.
pub(crate) fn other<T>(problem: impl Into<String>) -> CheckResult<T> {
    Err(Problem::Other(problem.into()))
}

/// State that the parts of the checker share: the program and the results so far.
pub(crate) struct Checker<'a> {
    pub program: &'a Program,
    /// One per node of the arena.
    pub summaries: Vec<expr::Summary>,
}

impl Checker<'_> {
    /// Checks the number of nodes of all expressions, counted in each place where they are used: trees can be
    /// shared, so a walk through a small program could take long.
    fn work(&self) -> CheckResult {
        let p = self.program;
        let mut work = 0u64;
        let mut add = |id: crate::ids::ExprId| {
            work += self
                .summaries
                .get(id.index())
                .map_or(0, |summary| u64::from(summary.cost));
        };
        p.actions
            .iter()
            .flat_map(|action| &action.ops)
            .for_each(|op| op.for_each_expr(&mut add));
        for state in &p.parser.states {
            state.ops.iter().for_each(|op| op.for_each_expr(&mut add));
            state.select.keys.iter().copied().for_each(&mut add);
        }
        p.tables
            .iter()
            .flat_map(|table| &table.keys)
            .for_each(|key| add(key.value));
        p.digests
            .iter()
            .flat_map(|digest| &digest.items)
            .for_each(|item| add(item.value));
        within("nodes of all expressions where they stand", work, limits::WORK)
    }
}

impl Checked {
    /// Checks a program.
    ///
    /// # Errors
    ///
    /// The first element that is not sound, and why.
    pub fn new(program: Program) -> Result<Self, CheckError> {
        let memberships = structure::check(&program)?;
        let mut checker = Checker {
            program: &program,
            summaries: Vec::with_capacity(program.exprs.len()),
        };
        checker.expressions()?;
        checker.work().at(|| "program".to_owned())?;
        checker.externs()?;
        checker.actions()?;
        checker.parser()?;
        checker.tables()?;
        checker.control(&program.ingress)?;
        checker.control(&program.egress)?;
        checker.deparser()?;
        let costs = checker
            .summaries
            .iter()
            .map(|summary| summary.cost)
            .collect::<Vec<_>>();
        let bounds = bounds::bounds(&program, &costs)?;
        Ok(Self::proven(program, bounds, memberships))
    }

    /// The stack or union to which a header instance belongs.
    #[inline]
    #[must_use]
    pub fn membership(&self, header: crate::ids::HeaderId) -> Membership {
        self.memberships[header.index()]
    }
}
