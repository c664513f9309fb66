//! The form of programs in files and between processes: a mark, a version, the program in postcard.
//!
//! A program that is read is checked again, so the file's source need not be trusted.

use crate::check::CheckError;
use crate::limits;
use crate::program::{Checked, Program};

/// The first bytes.
const MARK: [u8; 4] = *b"P4IR";

/// The version of the types in this crate. Every change of them is a new version; others are refused.
pub const VERSION: u16 = 2;

/// Why bytes are no program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes are more than [`limits::SERIALISED`].
    #[error("{0} bytes are more than {limit}", limit = limits::SERIALISED)]
    TooLong(usize),
    /// The bytes do not begin with the mark.
    #[error("this is no serialised P4 program")]
    NoProgram,
    /// The program is from an older or newer release.
    #[error("version {0} of the serialised form is unknown; this release reads version {VERSION}")]
    Version(u16),
    /// The program is cut short, changed, or followed by other bytes.
    #[error("the serialised program is damaged")]
    Damaged,
    /// The program can be read but is not sound.
    #[error(transparent)]
    Unsound(#[from] CheckError),
}

/// Serialises a program.
#[must_use]
pub fn encode(program: &Checked) -> Vec<u8> {
    let mut bytes = MARK.to_vec();
    bytes.extend(VERSION.to_be_bytes());
    // Serialising these types into a vector cannot fail.
    postcard::to_extend(program.program(), bytes).expect("a program is serialised into memory")
}

/// Reads a program and checks it.
///
/// # Errors
///
/// The bytes are no program, of another version, damaged, or the program is not sound.
pub fn decode(bytes: &[u8]) -> Result<Checked, DecodeError> {
    match take(bytes)? {
        (program, []) => Ok(Checked::new(program)?),
        _ => Err(DecodeError::Damaged),
    }
}

/// Reads a program, which is not checked, and returns the bytes behind it.
pub(crate) fn take(bytes: &[u8]) -> Result<(Program, &[u8]), DecodeError> {
    if bytes.len() > limits::SERIALISED {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    let body = bytes.strip_prefix(&MARK).ok_or(DecodeError::NoProgram)?;
    let (version, body) = body.split_first_chunk().ok_or(DecodeError::NoProgram)?;
    let version = u16::from_be_bytes(*version);
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    postcard::take_from_bytes::<Program>(body).map_err(|_| DecodeError::Damaged)
}
