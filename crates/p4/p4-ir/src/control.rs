//! Ingress and egress as graphs of blocks without cycles.

use crate::ids::{ActionId, BlockId, ExprId, TableId};
use serde::{Deserialize, Serialize};

/// A control: begins with block 0 and ends at [`Next::End`]. Without blocks it does nothing.
///
/// Every successor of a block has a higher number, so no control runs for ever.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Control {
    /// The name in the program.
    pub name: String,
    /// All blocks.
    pub blocks: Vec<Block>,
}

/// A block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Block {
    /// Branches on a condition.
    If {
        /// The name in the program.
        name: String,
        /// A bool.
        condition: ExprId,
        /// If true.
        then: Next,
        /// If false.
        otherwise: Next,
    },
    /// Looks up a table and runs the action of the entry found, or the default action.
    Apply(TableId, Apply),
    /// Runs an action without parameters.
    Run(ActionId, Next),
}

/// The successor after a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Apply {
    /// Always the same one.
    Always(Next),
    /// By whether an entry was found.
    ByHit {
        /// Found.
        hit: Next,
        /// Not found.
        miss: Next,
    },
    /// By the action that ran: one per [`crate::Table::actions`], in that order. The second is for a table
    /// without a default action, if no action ran.
    ByAction(Vec<Next>, Next),
}

/// A successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Next {
    /// A block of the same control, with a higher number.
    Block(BlockId),
    /// The end of the control.
    End,
}
