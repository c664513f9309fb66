//! Reads the output of p4c for BMv2's `simple_switch`: the program as JSON, and P4Info as text or binary.
//!
//! The JSON has no schema that can be relied on: p4c writes what BMv2 happens to read. BMv2's
//! `docs/JSON_format.md` and its source are the reference; versions 2.0 to 2.23 and files from before are
//! read. What is not supported, or makes no sense, is an error that names the element by its path; nothing is
//! guessed and nothing left out. What comes out is a [`p4_ir::Program`] that still has to pass the checker:
//! [`load`] does both.
//!
//! | module | contents |
//! |---|---|
//! | `envelope` | the message in which clients of P4Runtime may send it |
//! | `json` | JSON, strictly, with limits |
//! | `number` | hexadecimal numbers of any size |
//! | `limits`, `error` | limits of the input; errors and their places |
//! | `load`, `names` | the loader's state, and the order of reading; names of elements |
//! | `headers` | types, instances, stacks, unions, standard metadata |
//! | `expr` | expressions: from numbers without bounds to bits of fixed width |
//! | `actions` | primitives |
//! | `parser` | parser states, deparser |
//! | `pipelines` | tables, conditions, control flow |
//! | `externs` | counters, meters, registers, hashes, digests, checksums |
//! | [`p4info`] | the program's description for controllers: names, numbers, match kinds |

#![forbid(unsafe_code)]

mod actions;
mod envelope;
mod error;
mod expr;
mod externs;
mod headers;
mod json;
pub mod limits;
mod load;
mod names;
mod number;
pub mod p4info;
mod parser;
mod pipelines;

pub use error::{At, LoadError};
pub use json::JsonError;
use p4_ir::{Checked, Program};

/// Reads a program, joins it with P4Info if there is one, and checks it.
///
/// # Errors
///
/// The first element that cannot be read, is not supported, differs from P4Info, or is not sound.
pub fn load(json: &[u8], p4info: Option<&[u8]>) -> Result<Checked, LoadError> {
    let mut program = read(json)?;
    if let Some(p4info) = p4info {
        p4info::P4Info::parse(p4info)?.join(&mut program)?;
    }
    Ok(Checked::new(program)?)
}

/// Reads a program without checking it: JSON, or a `p4.tmp.P4DeviceConfig` that has it.
///
/// # Errors
///
/// The first element that cannot be read or is not supported.
pub fn read(json: &[u8]) -> Result<Program, LoadError> {
    if json.len() > limits::TEXT {
        return Err(LoadError::TooLong(json.len()));
    }
    let json = envelope::json_in(json);
    load::load(&json::parse(json)?)
}
