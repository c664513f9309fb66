//! The Internet checksum (RFC 1071), over data that comes in pieces.
//!
//! Ones' complement addition does not care about byte order as long as it is the same throughout, and does
//! not care about the width of the words as long as carries return. So bytes are added as native 32-bit words
//! into 64 bits, four of which a compiler turns into vector additions, and swapped once at the end. A piece
//! that begins at an odd position of the whole has its sum swapped before it is added.

/// The sum of a sequence of bytes, continued piece by piece.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Native-order sum of everything so far; at most 17 bits wide between calls.
    sum: u64,
    /// Whether an odd number of bytes was added.
    odd: bool,
}

impl Sum {
    /// The sum of nothing.
    pub const fn new() -> Sum {
        Sum { sum: 0, odd: false }
    }

    /// The sum of one slice.
    #[inline]
    pub fn of(bytes: &[u8]) -> Sum {
        let mut sum = Sum::new();
        sum.add(bytes);
        sum
    }

    /// Continues with the bytes that follow those added so far.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        self.append(native_sum(bytes), bytes.len() % 2 == 1);
    }

    /// Continues with a stretch of bytes that was summed on its own.
    #[inline]
    pub fn add_sum(&mut self, next: &Sum) {
        self.append(fold_native(next.sum), next.odd);
    }

    /// Continues with a number in network byte order. Only after an even number of bytes does this make
    /// sense, as in a pseudo header.
    #[inline]
    pub fn add_u16(&mut self, value: u16) {
        self.append(value.to_be(), false);
    }

    fn append(&mut self, native: u16, odd: bool) {
        let native = if self.odd { native.swap_bytes() } else { native };
        self.sum = u64::from(fold_native(self.sum)) + u64::from(native);
        self.odd ^= odd;
    }

    /// The 16-bit ones' complement sum, as a number (not complemented).
    #[inline]
    pub fn fold(&self) -> u16 {
        u16::from_be(fold_native(self.sum))
    }

    /// The checksum: the complement of [`fold`](Self::fold). May be 0.
    #[inline]
    pub fn complement(&self) -> u16 {
        !self.fold()
    }

    /// The checksum for an L4 header, where 0 would mean "none" to UDP (RFC 768) and is sent as 0xffff, which
    /// is the same number in ones' complement and so does no harm to TCP.
    #[inline]
    pub fn l4_checksum(&self) -> u16 {
        match self.complement() {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}

/// Sum of the pseudo header for TCP, UDP and ICMPv6 (RFC 793 3.1, RFC 8200 8.1): addresses (4 or 16 bytes
/// each, or both in one slice), protocol and length of L4 header with payload.
#[inline]
pub fn pseudo(addresses: &[u8], protocol: u8, l4_len: usize) -> Sum {
    let mut sum = Sum::of(addresses);
    sum.add_u16(u16::from(protocol));
    // No frame reaches 4 GiB, so the length's two halves are all of it.
    sum.add_u16(((l4_len >> 16) & 0xffff) as u16);
    sum.add_u16((l4_len & 0xffff) as u16);
    sum
}

/// Writes an L4 checksum into `head`, the first bytes of a frame: over everything from `start`, where the
/// field at `start + offset` already holds the pseudo header's sum. `rest` is the sum of the frame's bytes
/// behind `head`. `false`, with nothing written, when the field does not lie in `head`.
#[inline]
#[must_use]
pub fn finish_checksum(head: &mut [u8], start: usize, offset: usize, rest: &Sum) -> bool {
    let Some(field) = start.checked_add(offset) else {
        return false;
    };
    if field.checked_add(2).is_none_or(|end| end > head.len()) {
        return false;
    }
    let mut sum = Sum::of(&head[start..]);
    sum.add_sum(rest);
    head[field..field + 2].copy_from_slice(&sum.l4_checksum().to_be_bytes());
    true
}

fn native_sum(bytes: &[u8]) -> u16 {
    let mut lanes = [0u64; 4];
    let mut blocks = bytes.chunks_exact(16);
    for block in &mut blocks {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(4)) {
            *lane += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
    // A lane overflows after 2^32 words: no slice of packet data comes near.
    let mut sum = lanes.iter().sum::<u64>();
    let mut pairs = blocks.remainder().chunks_exact(2);
    for pair in &mut pairs {
        sum += u64::from(u16::from_ne_bytes([pair[0], pair[1]]));
    }
    if let [last] = pairs.remainder() {
        sum += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    fold_native(sum)
}

#[inline]
fn fold_native(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The definition, one byte at a time: the twin for every test of this crate.
#[cfg(test)]
pub(crate) fn slow_fold(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for (position, byte) in bytes.iter().enumerate() {
        sum += u32::from(*byte) << if position % 2 == 0 { 8 } else { 0 };
        sum = (sum & 0xffff) + (sum >> 16);
    }
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pseudo_header_has_both_halves_of_the_length() {
        assert_eq!(pseudo(&[0, 1, 0, 2], 6, 0x0003_0004).fold(), 1 + 2 + 6 + 3 + 4);
    }

    #[test]
    fn rfc_1071_example() {
        let sum = Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.fold(), 0xddf2);
        assert_eq!(sum.complement(), 0x220d);
    }

    #[test]
    fn zero_becomes_all_ones_for_l4_only() {
        let sum = Sum::of(&[0xff, 0xff]);
        assert_eq!((sum.complement(), sum.l4_checksum()), (0, 0xffff));
    }

    #[test]
    fn a_field_outside_the_head_is_refused() {
        let mut head = [1u8; 20];
        for (start, offset) in [(14, 5), (19, 0), (usize::MAX, 2), (20, 0), (0, 19)] {
            assert!(!finish_checksum(&mut head, start, offset, &Sum::new()));
            assert_eq!(head, [1u8; 20]);
        }
        assert!(finish_checksum(&mut head, 14, 4, &Sum::new()));
    }

    proptest! {
        #[test]
        fn pieces_sum_like_the_whole(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..70), 0..8),
        ) {
            let whole = pieces.concat();
            let (mut added, mut joined) = (Sum::new(), Sum::new());
            for piece in &pieces {
                added.add(piece);
                joined.add_sum(&Sum::of(piece));
            }
            prop_assert_eq!(added.fold(), slow_fold(&whole));
            prop_assert_eq!(joined.fold(), slow_fold(&whole));
            prop_assert_eq!(Sum::of(&whole).fold(), slow_fold(&whole));
        }

        /// What a receiver does: add the pseudo header and everything, the checksum in place.
        #[test]
        fn a_finished_frame_verifies(
            mut frame in prop::collection::vec(any::<u8>(), 20..600),
            split in 20usize..128, start in 0usize..12, half_offset in 0usize..4,
        ) {
            let offset = half_offset * 2;
            let split = split.min(frame.len());
            let (head, rest) = frame.split_at_mut(split);
            let field = start + offset;
            let mut seen = head[field..field + 2].to_vec();
            prop_assert!(finish_checksum(head, start, offset, &Sum::of(rest)));
            seen.extend_from_slice(&frame[start..]);
            prop_assert_eq!(slow_fold(&seen), 0xffff);
        }
    }
}
