//! How a CRC32c changes with bytes that it covers (RFC 9260, appendix A).
//!
//! The CRC is linear: the CRCs of two messages of the same length differ by the CRC, without initial value
//! and inversion, of the messages' difference. Zero bytes that follow multiply a CRC by a power of x, which
//! takes as many steps as their number has bits.

/// The polynomial of Castagnoli, bit-reversed as SCTP has it.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// x^0 in the reversed order of bits.
const ONE: u32 = 1 << 31;

/// The product of two polynomials.
fn multiply(mut left: u32, right: u32) -> u32 {
    let mut product = 0;
    for bit in (0..32).rev() {
        if right >> bit & 1 != 0 {
            product ^= left;
        }
        left = left >> 1 ^ if left & 1 != 0 { POLYNOMIAL } else { 0 };
    }
    product
}

/// The change of the CRC when four bytes, read as a little-endian number, change by `difference` and `zeros`
/// bytes follow them.
pub(crate) fn carried(difference: u32, zeros: usize) -> u32 {
    // The four bytes themselves carry the number by 32 bits.
    let mut bits = (zeros + 4) * 8;
    let (mut power, mut base) = (ONE, ONE >> 1);
    while bits > 0 {
        if bits & 1 != 0 {
            power = multiply(power, base);
        }
        base = multiply(base, base);
        bits >>= 1;
    }
    multiply(difference, power)
}

/// The definition, bit by bit: the twin.
#[cfg(test)]
pub(crate) fn slow(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            crc >> 1 ^ if crc & 1 != 0 { POLYNOMIAL } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twin_is_crc32c() {
        assert_eq!(slow(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_change_is_carried_through_any_length() {
        for zeros in [0usize, 1, 7, 60, 1473, 65_000] {
            let mut message = vec![0x5a; zeros + 4];
            let before = slow(&message);
            message[..4].copy_from_slice(&[1, 2, 3, 4]);
            let difference = u32::from_le_bytes([1 ^ 0x5a, 2 ^ 0x5a, 3 ^ 0x5a, 4 ^ 0x5a]);
            assert_eq!(before ^ slow(&message), carried(difference, zeros), "{zeros}");
        }
    }
}
