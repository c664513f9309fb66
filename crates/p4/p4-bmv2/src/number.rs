//! Numbers as BMv2 writes them: hexadecimal, of any size, with or without a sign.

use crate::error::{Read, wrong};
use p4_ir::Bits;

/// Greatest number of digits.
const DIGITS: usize = p4_ir::limits::WIDTH as usize / 4;

/// A number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Number {
    pub negative: bool,
    /// Big-endian, without leading zero bytes.
    magnitude: Vec<u8>,
}

impl Number {
    /// Reads a number such as `0x1f`, `-0x1`, `1f`.
    pub fn parse(text: &str) -> Read<Self> {
        let (negative, digits) = text
            .strip_prefix('-')
            .map_or((false, text), |digits| (true, digits));
        let digits = digits
            .strip_prefix("0x")
            .or_else(|| digits.strip_prefix("0X"))
            .unwrap_or(digits);
        let digits = digits.as_bytes();
        if digits.is_empty() || digits.len() > DIGITS {
            return wrong(format!("a number of {} digits", digits.len()));
        }
        let mut nibbles = Vec::with_capacity(digits.len() + 1);
        if digits.len() % 2 == 1 {
            nibbles.push(0);
        }
        for digit in digits {
            match (*digit as char).to_digit(16) {
                Some(value) => nibbles.push(value as u8),
                None => return wrong("no hexadecimal number"),
            }
        }
        let bytes = nibbles.chunks(2).map(|pair| pair[0] << 4 | pair[1]);
        let magnitude = bytes.skip_while(|byte| *byte == 0).collect::<Vec<_>>();
        Ok(Self {
            negative: negative && !magnitude.is_empty(),
            magnitude,
        })
    }

    /// Bits that the magnitude needs.
    pub fn bits(&self) -> u16 {
        let first = self
            .magnitude
            .first()
            .map_or(0, |first| 8 - first.leading_zeros());
        (self.magnitude.len().saturating_sub(1) * 8) as u16 + first as u16
    }

    /// The low bits of its two's complement.
    pub fn low(&self, width: u16) -> Bits {
        let bits = Bits::from_bytes(width, &self.magnitude);
        if !self.negative {
            return bits;
        }
        let mut bytes = bits.bytes().iter().map(|byte| !byte).collect::<Vec<_>>();
        for byte in bytes.iter_mut().rev() {
            let (next, carry) = byte.overflowing_add(1);
            *byte = next;
            if !carry {
                break;
            }
        }
        Bits::from_bytes(width, &bytes)
    }

    /// As bits of a width into which it must fit.
    pub fn exact(&self, width: u16) -> Read<Bits> {
        if self.negative || self.bits() > width {
            return wrong(format!("a number of {} bits where {width} are", self.bits()));
        }
        Ok(self.low(width))
    }

    /// As a number of 64 bits.
    pub fn to_u64(&self) -> Read<u64> {
        match self.low(64).to_u64() {
            Some(number) if !self.negative && self.bits() <= 64 => Ok(number),
            _ => wrong("a number too large or negative"),
        }
    }

    /// The bytes of the magnitude, filled up on the left.
    pub fn bytes(&self, len: usize) -> Read<Vec<u8>> {
        if self.negative || self.magnitude.len() > len {
            return wrong(format!("a number of more than {len} bytes"));
        }
        let mut bytes = vec![0; len - self.magnitude.len()];
        bytes.extend(&self.magnitude);
        Ok(bytes)
    }
}
