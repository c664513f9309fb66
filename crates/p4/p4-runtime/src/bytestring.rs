//! Byte strings: how P4Runtime writes numbers (specification, "Bytestrings").
//!
//! A number is big-endian. It may have more leading zeros than it needs, must fit its width, and is never
//! empty. Numbers that leave here are as short as can be.

use crate::failure::{Done, Failure};
use p4_ir::Bits;

/// Reads a number of `width` bits.
///
/// # Errors
/// The string is empty, or the number needs more bits.
pub fn read(bytes: &[u8], width: u16) -> Done<Bits> {
    if bytes.is_empty() {
        return Err(Failure::invalid("the byte string is empty"));
    }
    let number = shortest(bytes);
    let spare = usize::try_from(number[0].leading_zeros()).unwrap_or(0);
    let needed = number.len() * 8 - spare;
    if needed > usize::from(width) {
        return Err(Failure::invalid(format_args!(
            "the value needs {needed} bits, and {width} is the most"
        )));
    }
    Ok(Bits::from_bytes(width, bytes))
}

/// Reads a number that `width` bits hold and a `u64`, too.
///
/// # Errors
/// As [`read`].
pub fn read_number(bytes: &[u8], width: u16) -> Done<u64> {
    let bits = read(bytes, width)?;
    bits.to_u64()
        .ok_or_else(|| Failure::invalid("the value is too large"))
}

/// Writes a number.
#[must_use]
pub fn write(bits: &Bits) -> Vec<u8> {
    match bits.bytes() {
        [] => vec![0],
        bytes => shortest(bytes).to_vec(),
    }
}

/// The bytes without leading zeros, but one at least.
fn shortest(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    &bytes[zeros.min(bytes.len() - 1)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_specifications_examples_are_read_and_written_as_it_says() {
        let same: [(u16, &[u8]); 4] = [(8, &[0x63]), (16, &[0x63]), (16, &[0x30, 0x64]), (12, &[0x63])];
        for (width, bytes) in same {
            assert_eq!(write(&read(bytes, width).unwrap()), bytes);
        }
        let longer: [(u16, &[u8], &[u8]); 4] = [
            (16, &[0, 0x63], &[0x63]),
            (16, &[0, 0x30, 0x64], &[0x30, 0x64]),
            (12, &[0, 0, 0x63], &[0x63]),
            (9, &[0, 0], &[0]),
        ];
        for (width, bytes, canonical) in longer {
            assert_eq!(write(&read(bytes, width).unwrap()), canonical);
        }
        let wrong: [(u16, &[u8]); 6] = [
            (8, &[1, 0x63]),
            (8, &[]),
            (16, &[1, 0, 0x63]),
            (12, &[0x10, 0x63]),
            (12, &[1, 0, 0x63]),
            (12, &[0, 0x40, 0x63]),
        ];
        for (width, bytes) in wrong {
            read(bytes, width).unwrap_err();
        }
    }
}
