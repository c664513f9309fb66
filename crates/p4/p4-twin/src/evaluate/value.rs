//! Values: numbers without bounds and the width that they are to have.

use num_bigint::{BigInt, BigUint};
use p4_ir::Bits;

/// A value of an expression. A bool is a value of width 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Below 2 to the power of `width`.
    pub number: BigUint,
    /// In bits.
    pub width: u32,
}

/// 2 to the power of `width`.
fn span(width: u32) -> BigUint {
    BigUint::from(1u8) << width
}

impl Value {
    /// Wraps the number around.
    pub fn new(number: impl Into<BigUint>, width: u32) -> Value {
        Value {
            number: number.into() % span(width),
            width,
        }
    }

    /// One bit.
    pub fn bool(yes: bool) -> Value {
        Value::new(u8::from(yes), 1)
    }

    /// Whether it is not zero.
    pub fn is_true(&self) -> bool {
        self.number != BigUint::ZERO
    }

    /// A constant of a program.
    pub fn of(bits: &Bits) -> Value {
        Value::new(BigUint::from_bytes_be(bits.bytes()), bits.width().into())
    }

    /// As two's complement.
    pub fn signed(&self) -> BigInt {
        let number = BigInt::from(self.number.clone());
        if self.width > 0 && self.number.bit(u64::from(self.width) - 1) {
            number - BigInt::from(span(self.width))
        } else {
            number
        }
    }

    /// The two's complement of a number in that width.
    pub fn from_signed(number: &BigInt, width: u32) -> Value {
        let modulus = BigInt::from(span(width));
        let rest = ((number % &modulus) + &modulus) % &modulus;
        Value::new(rest.to_biguint().expect("not negative"), width)
    }

    /// The number, or the greatest one.
    pub fn saturating_usize(&self) -> usize {
        usize::try_from(&self.number).unwrap_or(usize::MAX)
    }

    /// The bits, highest first.
    pub fn bits(&self) -> Vec<bool> {
        (0..u64::from(self.width))
            .rev()
            .map(|bit| self.number.bit(bit))
            .collect()
    }

    /// The reverse.
    pub fn from_bits(bits: &[bool]) -> Value {
        let number = bits.iter().fold(BigUint::ZERO, |number, &bit| {
            (number << 1u32) + BigUint::from(u8::from(bit))
        });
        Value::new(number, u32::try_from(bits.len()).expect("short"))
    }
}
