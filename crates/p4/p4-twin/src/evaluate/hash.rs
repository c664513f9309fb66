//! Hash algorithms, bit by bit from their definitions.

use num_bigint::BigUint;
use p4_ir::Algorithm;

/// The hash of some bytes; `None` for algorithms that are not functions of their input alone.
pub fn hash(algorithm: Algorithm, bytes: &[u8]) -> Option<BigUint> {
    Some(match algorithm {
        Algorithm::Crc16 | Algorithm::Crc16Custom => reflected(bytes, 0xa001, 0, 0).into(),
        Algorithm::Crc32 | Algorithm::Crc32Custom => {
            reflected(bytes, 0xedb8_8320, 0xffff_ffff, 0xffff_ffff).into()
        }
        Algorithm::CrcCcitt => crc_ccitt(bytes).into(),
        Algorithm::Csum16 => (!ones_sum(bytes)).into(),
        Algorithm::Xor16 => words(bytes).fold(0u16, |sum, word| sum ^ word).into(),
        Algorithm::Identity => BigUint::from_bytes_be(&bytes[..bytes.len().min(8)]),
        Algorithm::Random | Algorithm::RoundRobin | Algorithm::Xxh64 => return None,
    })
}

/// A CRC whose bits go lowest first: the polynomial is reversed.
fn reflected(bytes: &[u8], polynomial: u32, initial: u32, last: u32) -> u32 {
    let mut crc = initial;
    for byte in bytes {
        for bit in 0..8 {
            let out = (crc ^ u32::from(byte >> bit)) & 1;
            crc >>= 1;
            if out == 1 {
                crc ^= polynomial;
            }
        }
    }
    crc ^ last
}

fn crc_ccitt(bytes: &[u8]) -> u16 {
    let mut crc = 0xffffu16;
    for byte in bytes {
        for bit in (0..8).rev() {
            let out = (crc >> 15) ^ (u16::from(byte >> bit) & 1);
            crc <<= 1;
            if out == 1 {
                crc ^= 0x1021;
            }
        }
    }
    crc
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes
        .chunks(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
}

/// The sum in ones' complement (RFC 1071).
fn ones_sum(bytes: &[u8]) -> u16 {
    let sum: u64 = words(bytes).map(u64::from).sum();
    let mut sum = sum;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of the catalogue of parametrised CRC algorithms.
    #[test]
    fn check_values() {
        let of = |algorithm| hash(algorithm, b"123456789").expect("a function");
        assert_eq!(of(Algorithm::Crc16), 0xbb3du32.into());
        assert_eq!(of(Algorithm::Crc32), 0xcbf4_3926u32.into());
        assert_eq!(of(Algorithm::CrcCcitt), 0x29b1u32.into());
    }
}
