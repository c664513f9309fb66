//! Names and numbers by which controllers refer to elements.

use serde::{Deserialize, Serialize};

/// The names of an element that controllers can refer to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Identity {
    /// The full name.
    pub name: String,
    /// A shorter one, or the full one again.
    pub alias: String,
    /// The number in P4Info, if there is one.
    pub id: Option<u32>,
}
