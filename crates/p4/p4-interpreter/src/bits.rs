//! Bit ranges of byte buffers.
//!
//! P4 counts bits from the first byte's most significant bit, as packets are drawn: bit 0 of a buffer is the
//! top bit of byte 0, and a field's value is big-endian. Values of up to 64 bits travel as `u64`; wider ones
//! as words, least significant first (see [`crate::wide`]).
//!
//! The fast way reads the eight bytes that begin where the field begins. So buffers keep [`SLACK`] bytes
//! behind their last field; without them accesses are still right, but slower.

/// Bytes behind the last field with which every access takes the fast way.
pub const SLACK: usize = 8;

/// The lowest `width` bits set, for widths of up to 64.
#[inline]
pub const fn mask(width: u32) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}

/// Eight bytes from `at` on, big-endian; bytes beyond the buffer are zero.
#[inline]
pub fn window(buffer: &[u8], at: usize) -> u64 {
    match buffer.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => short_window(buffer, at),
    }
}

#[cold]
fn short_window(buffer: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    let rest = buffer.get(at..).unwrap_or(&[]);
    let length = rest.len().min(8);
    bytes[..length].copy_from_slice(&rest[..length]);
    u64::from_be_bytes(bytes)
}

/// Writes eight bytes from `at` on, big-endian; those beyond the buffer are lost.
#[inline]
pub fn set_window(buffer: &mut [u8], at: usize, value: u64) {
    match buffer.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<8>()) {
        Some(bytes) => *bytes = value.to_be_bytes(),
        None => set_short_window(buffer, at, value),
    }
}

#[cold]
fn set_short_window(buffer: &mut [u8], at: usize, value: u64) {
    let rest = buffer.get_mut(at..).unwrap_or(&mut []);
    for (to, from) in rest.iter_mut().zip(value.to_be_bytes()) {
        *to = from;
    }
}

/// The value of the `width` bits (up to 64) that begin with bit `bit`.
#[inline]
pub fn get(buffer: &[u8], bit: usize, width: u32) -> u64 {
    let (at, skip) = (bit / 8, (bit % 8) as u32);
    if width == 0 {
        return 0;
    }
    if skip + width <= 64 {
        return (window(buffer, at) << skip) >> (64 - width);
    }
    // Nine bytes: the last one's upper bits belong to the field too.
    let more = skip + width - 64;
    let last = u64::from(buffer.get(at + 8).copied().unwrap_or(0));
    let upper = window(buffer, at) & mask(64 - skip);
    (upper << more) | (last >> (8 - more))
}

/// Sets the `width` bits (up to 64) that begin with bit `bit` to the lowest bits of `value`.
#[inline]
pub fn set(buffer: &mut [u8], bit: usize, width: u32, value: u64) {
    let (at, skip) = (bit / 8, (bit % 8) as u32);
    if width == 0 {
        return;
    }
    if skip + width <= 64 {
        let shift = 64 - skip - width;
        let field = mask(width) << shift;
        let others = window(buffer, at) & !field;
        set_window(buffer, at, others | ((value << shift) & field));
        return;
    }
    let more = skip + width - 64;
    let upper = mask(64 - skip);
    let others = window(buffer, at) & !upper;
    set_window(buffer, at, others | ((value >> more) & upper));
    if let Some(last) = buffer.get_mut(at + 8) {
        let keep = 0xFF_u8 >> more;
        *last = (*last & keep) | ((value << (8 - more)) as u8 & !keep);
    }
}

/// The `width` bits that begin with bit `bit` as words, least significant first. Words beyond the width
/// become zero.
pub fn get_words(buffer: &[u8], bit: usize, width: u32, words: &mut [u64]) {
    let mut left = width;
    for word in words {
        let take = left.min(64);
        left -= take;
        *word = get(buffer, bit + left as usize, take);
    }
}

/// Sets the `width` bits that begin with bit `bit` from words, least significant first; missing words count
/// as zero.
pub fn set_words(buffer: &mut [u8], bit: usize, width: u32, words: &[u64]) {
    let mut left = width;
    let mut words = words.iter();
    while left > 0 {
        let take = left.min(64);
        left -= take;
        set(
            buffer,
            bit + left as usize,
            take,
            words.next().copied().unwrap_or(0),
        );
    }
}

/// Sets bytes to zero. Headers are short: up to 64 bytes take a few stores that may overlap, and no call.
#[inline]
pub fn clear(bytes: &mut [u8]) {
    let length = bytes.len();
    if (8..=16).contains(&length) {
        ends::<8>(bytes, [0; 8], [0; 8]);
    } else if (17..=32).contains(&length) {
        ends::<16>(bytes, [0; 16], [0; 16]);
    } else if (33..=64).contains(&length) {
        ends::<32>(bytes, [0; 32], [0; 32]);
    } else {
        bytes.fill(0);
    }
}

/// Copies bytes between slices of one length; as [`clear`], without a call for short ones.
#[inline]
pub fn copy_short(from: &[u8], to: &mut [u8]) {
    if (8..=16).contains(&from.len()) {
        copy_ends::<8>(from, to);
    } else if (17..=32).contains(&from.len()) {
        copy_ends::<16>(from, to);
    } else if (33..=64).contains(&from.len()) {
        copy_ends::<32>(from, to);
    } else if from.len() == to.len() {
        to.copy_from_slice(from);
    }
}

#[inline]
fn copy_ends<const N: usize>(from: &[u8], to: &mut [u8]) {
    if let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) {
        ends(to, *first, *last);
    }
}

/// Writes the first and the last `N` bytes.
#[inline]
fn ends<const N: usize>(bytes: &mut [u8], first: [u8; N], last: [u8; N]) {
    if let Some(to) = bytes.first_chunk_mut::<N>() {
        *to = first;
    }
    if let Some(to) = bytes.last_chunk_mut::<N>() {
        *to = last;
    }
}

/// Copies `width` bits from one buffer to another. The offsets within bytes may differ.
pub fn copy(from: &[u8], from_bit: usize, to: &mut [u8], to_bit: usize, width: usize) {
    let whole = from_bit.is_multiple_of(8) && to_bit.is_multiple_of(8);
    let mut done = 0;
    if whole {
        let bytes = width / 8;
        if let (Some(from), Some(to)) = (
            from.get(from_bit / 8..from_bit / 8 + bytes),
            to.get_mut(to_bit / 8..to_bit / 8 + bytes),
        ) {
            copy_short(from, to);
            done = bytes * 8;
        }
    }
    while done < width {
        let take = (width - done).min(56) as u32;
        set(to, to_bit + done, take, get(from, from_bit + done, take));
        done += take as usize;
    }
}

/// Copies `width` bits within one buffer. The ranges must not overlap unless they are the same.
pub fn copy_within(buffer: &mut [u8], from_bit: usize, to_bit: usize, width: usize) {
    if from_bit == to_bit {
        return;
    }
    if from_bit.is_multiple_of(8) && to_bit.is_multiple_of(8) && width.is_multiple_of(8) {
        let from = from_bit / 8..(from_bit + width) / 8;
        if from.end <= buffer.len() && (to_bit + width) / 8 <= buffer.len() {
            buffer.copy_within(from, to_bit / 8);
            return;
        }
    }
    let mut done = 0;
    while done < width {
        let take = (width - done).min(56) as u32;
        let value = get(buffer, from_bit + done, take);
        set(buffer, to_bit + done, take, value);
        done += take as usize;
    }
}

/// Appends bits to a buffer from its start on, without gaps, as hash and checksum inputs are made.
#[derive(Debug)]
pub struct Writer<'a> {
    buffer: &'a mut [u8],
    bits: usize,
}

impl<'a> Writer<'a> {
    /// Writes over the buffer, which must be zero where it is to be written.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Writer { buffer, bits: 0 }
    }

    /// Appends the lowest `width` bits (up to 64) of `value`.
    pub fn value(&mut self, value: u64, width: u32) {
        set(self.buffer, self.bits, width, value);
        self.bits += width as usize;
    }

    /// Appends the lowest `width` bits of words, least significant word first.
    pub fn words(&mut self, words: &[u64], width: u32) {
        set_words(self.buffer, self.bits, width, words);
        self.bits += width as usize;
    }

    /// Appends `width` bits of another buffer.
    pub fn copy(&mut self, from: &[u8], from_bit: usize, width: usize) {
        copy(from, from_bit, self.buffer, self.bits, width);
        self.bits += width;
    }

    /// Bits written so far.
    pub fn bits(&self) -> usize {
        self.bits
    }

    /// The bytes written so far; the last one's unused bits are zero.
    pub fn finish(self) -> &'a [u8] {
        let length = self.bits.div_ceil(8).min(self.buffer.len());
        &self.buffer[..length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The twin: one bit after the other.
    fn slow_get(buffer: &[u8], bit: usize, width: u32) -> u64 {
        (bit..bit + width as usize).fold(0, |value, bit| {
            let byte = buffer.get(bit / 8).copied().unwrap_or(0);
            (value << 1) | u64::from((byte >> (7 - bit % 8)) & 1)
        })
    }

    proptest! {
        #[test]
        fn any_field_reads_as_its_bits_do(buffer in proptest::collection::vec(any::<u8>(), 0..24),
                                          bit in 0_usize..200, width in 0_u32..=64) {
            prop_assert_eq!(get(&buffer, bit, width), slow_get(&buffer, bit, width));
        }

        #[test]
        fn what_is_set_is_read_and_nothing_else_changes(
            before in proptest::collection::vec(any::<u8>(), 1..40), bit in 0_usize..300, width in 0_u32..=64,
            value in any::<u64>(),
        ) {
            prop_assume!(bit + width as usize <= before.len() * 8);
            let mut after = before.clone();
            set(&mut after, bit, width, value);
            for other in 0..before.len() * 8 {
                let inside = (bit..bit + width as usize).contains(&other);
                let expected = if inside {
                    (value >> (bit + width as usize - 1 - other)) & 1
                } else {
                    slow_get(&before, other, 1)
                };
                prop_assert_eq!(slow_get(&after, other, 1), expected, "bit {}", other);
            }
        }

        #[test]
        fn bits_are_copied_between_any_offsets(
            from in proptest::collection::vec(any::<u8>(), 40), mut to in proptest::collection::vec(any::<u8>(), 40),
            from_bit in 0_usize..100, to_bit in 0_usize..100, width in 0_usize..200,
        ) {
            let before = to.clone();
            copy(&from, from_bit, &mut to, to_bit, width);
            for bit in 0..320 {
                let expected = if (to_bit..to_bit + width).contains(&bit) {
                    slow_get(&from, from_bit + bit - to_bit, 1)
                } else {
                    slow_get(&before, bit, 1)
                };
                prop_assert_eq!(slow_get(&to, bit, 1), expected, "bit {}", bit);
            }
        }

        #[test]
        fn words_come_back(bytes in proptest::collection::vec(any::<u8>(), 60), bit in 0_usize..60,
                           width in 1_u32..400) {
            let mut words = [0; 8];
            get_words(&bytes, bit, width, &mut words);
            let mut copy = bytes.clone();
            copy.iter_mut().for_each(|byte| *byte = !*byte);
            set_words(&mut copy, bit, width, &words);
            for at in bit..bit + width as usize {
                prop_assert_eq!(slow_get(&copy, at, 1), slow_get(&bytes, at, 1));
            }
        }
    }

    #[test]
    fn short_copies_copy_all_and_nothing_else() {
        for length in 0..80 {
            let from: Vec<u8> = (1..=length).collect();
            let mut to = [0xFF; 100];
            copy_short(&from, &mut to[10..10 + from.len()]);
            assert_eq!(&to[10..10 + from.len()], &from[..]);
            assert!(
                to[..10]
                    .iter()
                    .chain(&to[10 + from.len()..])
                    .all(|&byte| byte == 0xFF)
            );
            clear(&mut to[10..10 + from.len()]);
            assert!(to[10..10 + from.len()].iter().all(|&byte| byte == 0));
            assert!(
                to[..10]
                    .iter()
                    .chain(&to[10 + from.len()..])
                    .all(|&byte| byte == 0xFF)
            );
        }
    }

    #[test]
    fn accesses_beyond_the_end_read_zero_and_write_nothing() {
        let mut buffer = [0xFF; 3];
        assert_eq!(get(&buffer, 16, 16), 0xFF00);
        assert_eq!(get(&buffer, 800, 64), 0);
        set(&mut buffer, 800, 64, u64::MAX);
        set(&mut buffer, 20, 64, 0);
        assert_eq!(buffer, [0xFF, 0xFF, 0xF0]);
    }

    #[test]
    fn a_writer_leaves_no_gaps() {
        let mut buffer = [0; 8];
        let mut writer = Writer::new(&mut buffer);
        writer.value(0b101, 3);
        writer.copy(&[0xFF], 0, 8);
        writer.value(0, 1);
        assert_eq!(writer.finish(), &[0b1011_1111, 0b1110_0000]);
    }
}
