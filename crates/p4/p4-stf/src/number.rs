//! Numbers and digits with gaps, as scripts write them.
//!
//! `0x` is hexadecimal, `0o` octal, `0b` binary, anything else decimal. In a match each `*` stands for a
//! digit that does not matter. Numbers have any width up to [`MAX_DIGITS`] digits; they are kept as words,
//! least significant first.

use p4_tables::Words;

/// Most digits of a number.
pub const MAX_DIGITS: usize = 4096;

/// A number, or digits some of which do not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digits {
    /// The number; digits that do not matter are zero.
    pub value: Words,
    /// The bits of written digits that matter; all of the written ones for decimal numbers.
    pub mask: Words,
    /// Digits written, and those of them that are not `*`.
    pub written: usize,
    /// See `written`.
    pub known: usize,
    /// Bits of a digit: 4, 3 or 1; 0 for decimal numbers.
    pub bits: u32,
}

impl Digits {
    /// Reads a number; `None` if it is none.
    pub fn parse(text: &str) -> Option<Digits> {
        let lower = text.to_ascii_lowercase();
        let prefixes = [("0x", 4), ("0o", 3), ("0b", 1)];
        let prefixed = prefixes
            .iter()
            .find_map(|&(prefix, bits)| Some((lower.strip_prefix(prefix)?, bits)));
        let (digits, bits) = prefixed.unwrap_or((&lower, 0));
        if digits.is_empty() || digits.len() > MAX_DIGITS {
            return None;
        }
        let mut number = Digits {
            value: Words::new(),
            mask: Words::new(),
            written: digits.len(),
            known: digits.len(),
            bits,
        };
        for digit in digits.chars() {
            number.push(digit)?;
        }
        trim(&mut number.value);
        trim(&mut number.mask);
        Some(number)
    }

    /// A number without gaps that fits in a word.
    pub fn small(text: &str) -> Option<u64> {
        let number = Digits::parse(text).filter(|number| !number.has_gaps())?;
        match number.value[..] {
            [] => Some(0),
            [word] => Some(word),
            _ => None,
        }
    }

    /// Whether some digits do not matter.
    pub fn has_gaps(&self) -> bool {
        self.known < self.written
    }

    fn push(&mut self, digit: char) -> Option<()> {
        if digit == '*' && self.bits > 0 {
            self.known -= 1;
            shift_in(&mut self.value, self.bits, 0);
            shift_in(&mut self.mask, self.bits, 0);
            return Some(());
        }
        let base = if self.bits == 0 { 10 } else { 1 << self.bits };
        let digit = u64::from(digit.to_digit(base)?);
        if self.bits > 0 {
            shift_in(&mut self.value, self.bits, digit);
            shift_in(&mut self.mask, self.bits, u64::from(base) - 1);
        } else {
            multiply_add(&mut self.value, 10, digit);
        }
        Some(())
    }
}

fn shift_in(words: &mut Words, bits: u32, digit: u64) {
    multiply_add(words, 1 << bits, digit);
}

fn multiply_add(words: &mut Words, factor: u64, carry: u64) {
    let mut carry = u128::from(carry);
    for word in words.iter_mut() {
        let product = u128::from(*word) * u128::from(factor) + carry;
        *word = product as u64;
        carry = product >> 64;
    }
    if carry > 0 {
        words.push(carry as u64);
    }
}

/// Takes off leading words that are zero.
pub(crate) fn trim(words: &mut Words) {
    while words.last() == Some(&0) {
        words.pop();
    }
}

/// The lowest `width` bits, all set.
pub(crate) fn ones(width: u32) -> Words {
    (0..width.div_ceil(64))
        .map(|word| u64::MAX >> (64 - (width - 64 * word).min(64)))
        .collect()
}

/// The bits that both have.
pub(crate) fn and(left: &[u64], right: &[u64]) -> Words {
    left.iter().zip(right).map(|(left, right)| left & right).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Vec<u64>, Vec<u64>, usize, usize) {
        let digits = Digits::parse(text).unwrap();
        (
            digits.value.to_vec(),
            digits.mask.to_vec(),
            digits.written,
            digits.known,
        )
    }

    #[test]
    fn numbers_of_all_bases_and_widths() {
        assert_eq!(parsed("0x1fF"), (vec![0x1ff], vec![0xfff], 3, 3));
        assert_eq!(parsed("0b0101"), (vec![5], vec![15], 4, 4));
        assert_eq!(parsed("18446744073709551616"), (vec![0, 1], vec![], 20, 20));
        assert_eq!(parsed("0x**0A"), (vec![0x0a], vec![0xff], 4, 2));
        assert_eq!(parsed("0b1*"), (vec![2], vec![2], 2, 1));
        assert_eq!(
            parsed("0x10000000000000000"),
            (vec![0, 1], vec![u64::MAX, 15], 17, 17)
        );
        assert_eq!(parsed("0o17"), (vec![15], vec![63], 2, 2));
        assert_eq!(Digits::small("0"), Some(0));
        assert_eq!(Digits::small("0x1*"), None);
        for wrong in ["", "0x", "12a", "0b2", "0o8", "0xg", "-1", "*", "1*"] {
            assert_eq!(Digits::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Digits::parse(&"1".repeat(MAX_DIGITS + 1)), None);
        assert!(Digits::parse(&"9".repeat(MAX_DIGITS)).is_some());
    }

    #[test]
    fn ones_have_their_width() {
        assert_eq!(ones(1).to_vec(), [1]);
        assert_eq!(ones(64).to_vec(), [u64::MAX]);
        assert_eq!(ones(65).to_vec(), [u64::MAX, 1]);
    }
}
