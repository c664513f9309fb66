//! The schema of what `--json` prints: `docs/schema.json`, made from the types that are printed.
//!
//! Programs may rely on it: as long as [`VERSION`] is the same, nothing that it names goes away or becomes
//! something else, and only additions are made. A test compares the file with the types, and refuses to write
//! another one that breaks that.

use crate::output;
use anyhow::Result;

/// Version of what is printed. It grows when something goes away or becomes something else.
pub const VERSION: u32 = 1;

const FILE: &str = include_str!("../../../../docs/schema.json");

/// `hyperswitch schema`.
///
/// # Errors
/// As [`output::print`].
pub fn print() -> Result<()> {
    output::print(FILE)
}

#[cfg(test)]
mod tests;
