//! Arithmetic on values of more than 64 bits.
//!
//! A value of width `w` is `w.div_ceil(64)` words, least significant first; bits beyond the width are zero.
//! Every function writes a result that keeps to that. Signed values are two's complement in the same form.
//! Nothing here allocates; the loops are bounded by the widths, which the program's checker bounds.

use crate::bits::mask;
use std::cmp::Ordering;

/// Words of a value of that width in bits.
pub const fn words(width: u32) -> usize {
    width.div_ceil(64) as usize
}

/// Clears the bits beyond the width.
pub fn trim(value: &mut [u64], width: u32) {
    let used = words(width);
    value[used..].fill(0);
    if !width.is_multiple_of(64) {
        value[used - 1] &= mask(width % 64);
    }
}

/// The bit with that number, counted from the least significant one.
pub fn bit(value: &[u64], at: u32) -> bool {
    value
        .get(at as usize / 64)
        .is_some_and(|word| word >> (at % 64) & 1 == 1)
}

/// True if a two's complement value of that width is below zero.
pub fn is_negative(value: &[u64], width: u32) -> bool {
    width > 0 && bit(value, width - 1)
}

/// True if all bits are zero.
pub fn is_zero(value: &[u64]) -> bool {
    value.iter().all(|&word| word == 0)
}

/// `to = value`, cut or filled with zeros.
pub fn assign(to: &mut [u64], value: &[u64]) {
    for (at, word) in to.iter_mut().enumerate() {
        *word = value.get(at).copied().unwrap_or(0);
    }
}

/// `to = value`, which is two's complement of width `from`, in width `width`.
pub fn extend(to: &mut [u64], width: u32, value: &[u64], from: u32) {
    let fill = is_negative(value, from);
    assign(to, value);
    if fill && from < width {
        if !from.is_multiple_of(64) {
            to[from as usize / 64] |= !mask(from % 64);
        }
        for word in &mut to[words(from)..] {
            *word = u64::MAX;
        }
    }
    trim(to, width);
}

/// `to = left + right`, modulo the width. Returns the carry out of the width.
pub fn add(to: &mut [u64], left: &[u64], right: &[u64], width: u32) -> bool {
    let mut carry = false;
    for ((to, &left), &right) in to.iter_mut().zip(left).zip(right) {
        let (sum, first) = left.overflowing_add(right);
        let (sum, second) = sum.overflowing_add(u64::from(carry));
        *to = sum;
        carry = first | second;
    }
    let over = if width.is_multiple_of(64) {
        carry
    } else {
        to[words(width) - 1] >> (width % 64) != 0
    };
    trim(to, width);
    over
}

/// `to = left - right`, modulo the width. Returns whether `right` was larger (as unsigned values).
pub fn sub(to: &mut [u64], left: &[u64], right: &[u64], width: u32) -> bool {
    let mut borrow = false;
    for ((to, &left), &right) in to.iter_mut().zip(left).zip(right) {
        let (difference, first) = left.overflowing_sub(right);
        let (difference, second) = difference.overflowing_sub(u64::from(borrow));
        *to = difference;
        borrow = first | second;
    }
    trim(to, width);
    borrow
}

/// `to = -value`, modulo the width.
pub fn neg(to: &mut [u64], value: &[u64], width: u32) {
    let mut carry = true;
    for (to, &word) in to.iter_mut().zip(value) {
        let (flipped, over) = (!word).overflowing_add(u64::from(carry));
        *to = flipped;
        carry = over;
    }
    trim(to, width);
}

/// `to = !value` within the width.
pub fn not(to: &mut [u64], value: &[u64], width: u32) {
    for (to, &word) in to.iter_mut().zip(value) {
        *to = !word;
    }
    trim(to, width);
}

/// `to = left op right`, word by word.
pub fn bitwise(to: &mut [u64], left: &[u64], right: &[u64], op: impl Fn(u64, u64) -> u64) {
    for ((to, &left), &right) in to.iter_mut().zip(left).zip(right) {
        *to = op(left, right);
    }
}

/// `to = left * right`, modulo the width.
pub fn mul(to: &mut [u64], left: &[u64], right: &[u64], width: u32) {
    to.fill(0);
    for (row, &factor) in left.iter().enumerate() {
        let mut carry = 0_u128;
        for (column, &other) in right.iter().enumerate() {
            let Some(cell) = to.get_mut(row + column) else {
                break;
            };
            let sum = u128::from(factor) * u128::from(other) + u128::from(*cell) + carry;
            *cell = sum as u64;
            carry = sum >> 64;
        }
        if let Some(cell) = to.get_mut(row + right.len()) {
            *cell = carry as u64;
        }
    }
    trim(to, width);
}

/// `to = left / right` and `remainder = left % right`, unsigned. A division by zero gives zero and the
/// dividend.
pub fn div_rem(to: &mut [u64], remainder: &mut [u64], left: &[u64], right: &[u64], width: u32) {
    to.fill(0);
    remainder.fill(0);
    if is_zero(right) {
        assign(remainder, left);
        return;
    }
    // One bit after the other: p4c leaves divisions by powers of two and by small constants only.
    for at in (0..width).rev() {
        let mut low = u64::from(bit(left, at));
        for word in remainder.iter_mut() {
            let high = *word >> 63;
            *word = (*word << 1) | low;
            low = high;
        }
        // A bit that left the words makes the remainder larger than any divisor.
        if low != 0 || compare(remainder, right) != Ordering::Less {
            subtract_in_place(remainder, right);
            to[at as usize / 64] |= 1 << (at % 64);
        }
    }
}

fn subtract_in_place(from: &mut [u64], what: &[u64]) {
    let mut borrow = false;
    for (from, &what) in from.iter_mut().zip(what) {
        let (difference, first) = from.overflowing_sub(what);
        let (difference, second) = difference.overflowing_sub(u64::from(borrow));
        *from = difference;
        borrow = first | second;
    }
}

/// `to = value << by`, modulo the width.
pub fn shl(to: &mut [u64], value: &[u64], by: u64, width: u32) {
    if by >= u64::from(width) {
        to.fill(0);
        return;
    }
    let (skip, shift) = ((by / 64) as usize, (by % 64) as u32);
    for at in (0..to.len()).rev() {
        let low = at
            .checked_sub(skip)
            .and_then(|at| value.get(at))
            .copied()
            .unwrap_or(0);
        let below = at
            .checked_sub(skip + 1)
            .and_then(|at| value.get(at))
            .copied()
            .unwrap_or(0);
        to[at] = if shift == 0 {
            low
        } else {
            (low << shift) | (below >> (64 - shift))
        };
    }
    trim(to, width);
}

/// `to = value >> by`; `fill` is the value of the bits that enter at the top.
pub fn shr(to: &mut [u64], value: &[u64], by: u64, width: u32, fill: bool) {
    if by >= u64::from(width) {
        to.fill(if fill { u64::MAX } else { 0 });
        trim(to, width);
        return;
    }
    let (skip, shift) = ((by / 64) as usize, (by % 64) as u32);
    for (at, to) in to.iter_mut().enumerate() {
        let low = value.get(at + skip).copied().unwrap_or(0);
        let above = value.get(at + skip + 1).copied().unwrap_or(0);
        *to = if shift == 0 {
            low
        } else {
            (low >> shift) | (above << (64 - shift))
        };
    }
    if fill {
        for at in width - by as u32..width {
            to[at as usize / 64] |= 1 << (at % 64);
        }
    }
    trim(to, width);
}

/// `to` = the `width` bits of a value from bit `low` on.
pub fn slice(to: &mut [u64], value: &[u64], low: u32, width: u32) {
    let (skip, shift) = ((low / 64) as usize, low % 64);
    for (at, to) in to.iter_mut().enumerate() {
        let word = value.get(at + skip).copied().unwrap_or(0);
        let above = value.get(at + skip + 1).copied().unwrap_or(0);
        *to = if shift == 0 {
            word
        } else {
            (word >> shift) | (above << (64 - shift))
        };
    }
    trim(to, width);
}

/// `to |= value << by`. Bits that do not fit are lost.
pub fn insert(to: &mut [u64], value: &[u64], by: u32) {
    let (skip, shift) = ((by / 64) as usize, by % 64);
    for (at, &word) in value.iter().enumerate() {
        if let Some(to) = to.get_mut(at + skip) {
            *to |= word << shift;
        }
        if let (Some(to), 1..) = (to.get_mut(at + skip + 1), shift) {
            *to |= word >> (64 - shift);
        }
    }
}

/// Compares as unsigned values. Missing words count as zero.
pub fn compare(left: &[u64], right: &[u64]) -> Ordering {
    let length = left.len().max(right.len());
    let word = |value: &[u64], at: usize| value.get(at).copied().unwrap_or(0);
    (0..length)
        .rev()
        .map(|at| word(left, at).cmp(&word(right, at)))
        .find(|&order| order != Ordering::Equal)
        .unwrap_or(Ordering::Equal)
}

/// Compares as two's complement values of that width.
pub fn compare_signed(left: &[u64], right: &[u64], width: u32) -> Ordering {
    match (is_negative(left, width), is_negative(right, width)) {
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        _ => compare(left, right),
    }
}

/// The largest (or smallest) two's complement value of that width.
pub fn signed_limit(to: &mut [u64], width: u32, smallest: bool) {
    to.fill(if smallest { 0 } else { u64::MAX });
    let sign = 1 << ((width - 1) % 64);
    let word = (width - 1) as usize / 64;
    if smallest {
        to[word] |= sign;
    } else {
        to[word] &= !sign;
    }
    trim(to, width);
}

/// `to = left + right`, saturated at the limits of the width.
pub fn saturating_add(to: &mut [u64], left: &[u64], right: &[u64], width: u32, signed: bool) {
    let over = add(to, left, right, width);
    if !signed {
        if over {
            to.fill(u64::MAX);
            trim(to, width);
        }
        return;
    }
    let negative = is_negative(left, width);
    if negative == is_negative(right, width) && negative != is_negative(to, width) {
        signed_limit(to, width, negative);
    }
}

/// `to = left - right`, saturated at the limits of the width.
pub fn saturating_sub(to: &mut [u64], left: &[u64], right: &[u64], width: u32, signed: bool) {
    let below = sub(to, left, right, width);
    if !signed {
        if below {
            to.fill(0);
        }
        return;
    }
    let negative = is_negative(left, width);
    if negative != is_negative(right, width) && negative != is_negative(to, width) {
        signed_limit(to, width, negative);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WIDTH: u32 = 100;
    const ALL: u128 = (1 << WIDTH) - 1;

    fn split(value: u128) -> [u64; 2] {
        [value as u64, (value >> 64) as u64]
    }

    fn join(words: [u64; 2]) -> u128 {
        u128::from(words[0]) | (u128::from(words[1]) << 64)
    }

    /// Sign-extended from the width to 128 bits.
    fn signed(value: u128) -> i128 {
        ((value << (128 - WIDTH)) as i128) >> (128 - WIDTH)
    }

    fn values() -> impl Strategy<Value = u128> {
        prop_oneof![
            any::<u128>().prop_map(|value| value & ALL),
            Just(0),
            Just(1),
            Just(ALL),
            Just(1 << (WIDTH - 1)),
            Just((1 << (WIDTH - 1)) - 1)
        ]
    }

    proptest! {
        /// The twin is the compiler's arithmetic on 128 bits.
        #[test]
        fn a_hundred_bits_count_as_they_should(a in values(), b in values()) {
            let (left, right) = (split(a), split(b));
            let mut to = [7; 2];
            add(&mut to, &left, &right, WIDTH);
            prop_assert_eq!(join(to), (a + b) & ALL);
            sub(&mut to, &left, &right, WIDTH);
            prop_assert_eq!(join(to), a.wrapping_sub(b) & ALL);
            mul(&mut to, &left, &right, WIDTH);
            prop_assert_eq!(join(to), a.wrapping_mul(b) & ALL);
            neg(&mut to, &left, WIDTH);
            prop_assert_eq!(join(to), a.wrapping_neg() & ALL);
            not(&mut to, &left, WIDTH);
            prop_assert_eq!(join(to), !a & ALL);
            saturating_add(&mut to, &left, &right, WIDTH, false);
            prop_assert_eq!(join(to), (a + b).min(ALL));
            saturating_sub(&mut to, &left, &right, WIDTH, false);
            prop_assert_eq!(join(to), a.saturating_sub(b));
            let (low, high) = (-(1_i128 << (WIDTH - 1)), (1_i128 << (WIDTH - 1)) - 1);
            saturating_add(&mut to, &left, &right, WIDTH, true);
            prop_assert_eq!(signed(join(to)), (signed(a) + signed(b)).clamp(low, high));
            saturating_sub(&mut to, &left, &right, WIDTH, true);
            prop_assert_eq!(signed(join(to)), (signed(a) - signed(b)).clamp(low, high));
            prop_assert_eq!(compare(&left, &right), a.cmp(&b));
            prop_assert_eq!(compare_signed(&left, &right, WIDTH), signed(a).cmp(&signed(b)));
            let mut remainder = [7; 2];
            div_rem(&mut to, &mut remainder, &left, &right, WIDTH);
            prop_assert_eq!(join(to), a.checked_div(b).unwrap_or(0));
            prop_assert_eq!(join(remainder), a.checked_rem(b).unwrap_or(a));
        }

        #[test]
        fn a_hundred_bits_shift_as_they_should(a in values(), by in 0_u64..130) {
            let left = split(a);
            let mut to = [7; 2];
            shl(&mut to, &left, by, WIDTH);
            prop_assert_eq!(join(to), a.checked_shl(by as u32).unwrap_or(0) & ALL);
            shr(&mut to, &left, by, WIDTH, false);
            prop_assert_eq!(join(to), a.checked_shr(by as u32).unwrap_or(0));
            shr(&mut to, &left, by, WIDTH, is_negative(&left, WIDTH));
            prop_assert_eq!(signed(join(to)), signed(a) >> by.min(127));
        }

        #[test]
        fn extension_keeps_the_value(a in values()) {
            let mut to = [7; 2];
            extend(&mut to, 120, &split(a), WIDTH);
            prop_assert_eq!(((join(to) << 8) as i128) >> 8, signed(a));
            extend(&mut to, 70, &split(a), WIDTH);
            prop_assert_eq!(join(to), a & ((1 << 70) - 1));
        }
    }

    #[test]
    fn thousands_of_bits_carry_through() {
        let ones = [u64::MAX; 33];
        let mut one = [0; 33];
        one[0] = 1;
        let mut to = [0; 33];
        assert!(add(&mut to, &ones, &one, 33 * 64));
        assert!(is_zero(&to));
        mul(&mut to, &ones, &ones, 33 * 64);
        assert_eq!(to, one, "(-1) * (-1) is 1");
        shl(&mut to, &one, 2111, 2112);
        assert!(bit(&to, 2111) && to[..32].iter().all(|&word| word == 0));
    }
}
