//! A place in a guest's buffers, and copying to it from other guests' memory or from ours.

use crate::packet::{Packet, Piece};
use guest_memory::{GuestMemory, GuestRange, copy};
use wire::Sum;

/// Bytes of payload checksummed at a time.
const BOUNCE: usize = 2048;

/// A place in the gathered buffers.
pub(super) struct Cursor<'a> {
    ranges: &'a [GuestRange],
    current: GuestRange,
    /// Bytes copied so far, by way of our memory counted twice.
    pub(super) moved: u64,
}

impl<'a> Cursor<'a> {
    fn in_one(buffer: GuestRange) -> Cursor<'a> {
        Cursor {
            ranges: &[],
            current: buffer,
            moved: 0,
        }
    }

    pub(super) fn at(ranges: &'a [GuestRange], offset: usize) -> Cursor<'a> {
        let mut skip = offset as u32;
        for (index, range) in ranges.iter().enumerate() {
            let (skipped, rest) = range.split_at(skip);
            skip -= skipped.len();
            if rest.len() > 0 {
                return Cursor {
                    ranges: &ranges[index + 1..],
                    current: rest,
                    moved: 0,
                };
            }
        }
        Cursor::in_one(GuestRange::default())
    }

    /// The free part of the current buffer, or the next one; `None` at the end.
    fn room(&mut self) -> Option<GuestRange> {
        if self.current.len() == 0 {
            let (&first, rest) = self.ranges.split_first()?;
            (self.current, self.ranges) = (first, rest);
        }
        Some(self.current)
    }

    fn advance(&mut self, bytes: usize) {
        self.moved += bytes as u64;
        self.current = self.current.split_at(bytes as u32).1;
    }

    #[inline]
    pub(super) fn put(&mut self, piece: Piece<'_>, to: &GuestMemory) {
        match piece {
            Piece::Guest(from, range) => self.copy(from, range, to),
            Piece::Bytes(bytes) => self.write(bytes, to),
        }
    }

    #[inline]
    fn copy(&mut self, from: &GuestMemory, mut range: GuestRange, to: &GuestMemory) {
        while range.len() > 0 {
            let Some(room) = self.room() else { return };
            let copied = copy(from, range, to, room);
            if copied == 0 {
                return;
            }
            range = range.split_at(copied as u32).1;
            self.advance(copied);
        }
    }

    #[inline]
    pub(super) fn write(&mut self, mut bytes: &[u8], to: &GuestMemory) {
        while !bytes.is_empty() {
            let Some(room) = self.room() else { return };
            let written = to.write(room, bytes);
            if written == 0 {
                return;
            }
            bytes = &bytes[written..];
            self.advance(written);
        }
    }
}

/// Copies a packet's tail to a buffer; returns how many bytes.
#[inline]
pub(super) fn copy_tail(packet: &Packet, to: &GuestMemory, buffer: GuestRange) -> usize {
    if let Some((from, tail)) = packet.tail_in_one() {
        return copy(from, tail, to, buffer);
    }
    let mut behind = Cursor::in_one(buffer);
    packet
        .tail(0, packet.tail_len)
        .for_each(|piece| behind.put(piece, to));
    behind.moved as usize
}

/// Copies a piece by way of our memory, so that the bytes summed are the bytes written.
pub(super) fn copy_and_sum(piece: Piece<'_>, sum: &mut Sum, to: &GuestMemory, cursor: &mut Cursor<'_>) {
    match piece {
        Piece::Bytes(bytes) => {
            sum.add(bytes);
            cursor.write(bytes, to);
        }
        Piece::Guest(from, mut range) => {
            let mut bounce = [0u8; BOUNCE];
            while range.len() > 0 {
                let read = from.read(range, &mut bounce);
                if read == 0 {
                    return;
                }
                sum.add(&bounce[..read]);
                cursor.moved += read as u64;
                cursor.write(&bounce[..read], to);
                range = range.split_at(read as u32).1;
            }
        }
    }
}
