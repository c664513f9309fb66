//! Constants of any width.

use serde::{Deserialize, Serialize};

/// A bit string of a known width: big-endian, right-aligned in the fewest bytes that hold it, unused high
/// bits zero.
///
/// A signed value is its two's complement in that width.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Bits {
    width: u16,
    bytes: Box<[u8]>,
}

impl Bits {
    /// The low `width` bits of a big-endian number; missing high bytes are zero.
    #[must_use]
    pub fn from_bytes(width: u16, number: &[u8]) -> Self {
        let len = usize::from(width).div_ceil(8);
        let mut bytes = vec![0; len].into_boxed_slice();
        let taken = number.len().min(len);
        bytes[len - taken..].copy_from_slice(&number[number.len() - taken..]);
        if let (Some(first), spare @ 1..) = (bytes.first_mut(), len * 8 - usize::from(width)) {
            *first &= 0xff >> spare;
        }
        Self { width, bytes }
    }

    /// The low `width` bits of a number.
    #[must_use]
    pub fn from_u128(width: u16, number: u128) -> Self {
        Self::from_bytes(width, &number.to_be_bytes())
    }

    /// All bits zero.
    #[must_use]
    pub fn zero(width: u16) -> Self {
        Self::from_bytes(width, &[])
    }

    /// All bits one.
    #[must_use]
    pub fn ones(width: u16) -> Self {
        Self::from_bytes(width, &vec![0xff; usize::from(width).div_ceil(8)])
    }

    /// The width in bits.
    #[inline]
    #[must_use]
    pub fn width(&self) -> u16 {
        self.width
    }

    /// The number, big-endian, in `width / 8` bytes rounded up.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The number, if it is below 2^64.
    #[must_use]
    pub fn to_u64(&self) -> Option<u64> {
        let split = self.bytes.len().saturating_sub(8);
        let (high, low) = self.bytes.split_at(split);
        if high.iter().any(|&byte| byte != 0) {
            return None;
        }
        Some(low.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    /// Whether the value has the form that the type promises. False only for values that were deserialised.
    #[must_use]
    pub fn is_canonical(&self) -> bool {
        let len = usize::from(self.width).div_ceil(8);
        self.bytes.len() == len
            && self.bytes.first().is_none_or(|first| {
                let spare = len * 8 - usize::from(self.width);
                first.leading_zeros() as usize >= spare
            })
    }

    /// The number of leading one bits, if all others are zero: the length of a prefix mask.
    #[must_use]
    pub fn prefix_length(&self) -> Option<u16> {
        let bit = |i: usize| {
            let from_right = usize::from(self.width) - 1 - i;
            self.bytes[self.bytes.len() - 1 - from_right / 8] >> (from_right % 8) & 1 == 1
        };
        let ones = (0..usize::from(self.width)).take_while(|&i| bit(i)).count();
        (ones..usize::from(self.width))
            .all(|i| !bit(i))
            .then_some(ones as u16)
    }

    /// A mask of `width` bits whose first `length` are one.
    #[must_use]
    pub fn prefix(width: u16, length: u16) -> Self {
        let mut number = vec![0u8; usize::from(width).div_ceil(8)];
        let first = number.len() * 8 - usize::from(width);
        for i in first..first + usize::from(length.min(width)) {
            number[i / 8] |= 0x80 >> (i % 8);
        }
        Self::from_bytes(width, &number)
    }
}

impl std::fmt::Display for Bits {
    /// `0x` and the digits of all bytes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("0x")?;
        if self.bytes.is_empty() {
            f.write_str("0")?;
        }
        self.bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
