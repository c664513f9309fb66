//! Hash inputs: gathered bits, and the payload of a packet, which is not gathered but hashed in pieces.

use super::Machine;
use crate::bits;
use crate::engine::HashKind;
use crate::observe::Observer;

/// Bytes of a tail hashed at a time.
const PIECE: usize = 256;

impl<O: Observer> Machine<'_, O> {
    pub(super) fn gather_bits(&mut self, bit: usize, width: usize) {
        let ctx = &mut *self.ctx;
        bits::copy(&ctx.packet.phv, bit, &mut ctx.gathered, ctx.gathered_bits, width);
        ctx.gathered_bits += width;
    }

    pub(super) fn gather_value(&mut self, value: u64, width: u32) {
        let ctx = &mut *self.ctx;
        bits::set(&mut ctx.gathered, ctx.gathered_bits, width, value);
        ctx.gathered_bits += width as usize;
    }

    /// All fields of a header, if it is valid, as they are on the wire.
    pub(super) fn gather_header(&mut self, header: usize) {
        if !self.is_valid_number(header) {
            return;
        }
        let info = &self.engine.headers[header];
        let filled = usize::from(self.ctx.packet.filled[header]);
        let begin = info.offset * 8;
        match info.variable {
            None => self.gather_bits(begin, info.fixed_bits),
            Some(field) => {
                let before = field.offset - begin;
                self.gather_bits(begin, before + filled);
                self.gather_bits(field.offset + field.width, info.fixed_bits - before);
            }
        }
    }

    pub(super) fn gather_variable(&mut self, header: usize, bit: usize) {
        if self.is_valid_number(header) {
            self.gather_bits(bit, usize::from(self.ctx.packet.filled[header]));
        }
    }

    /// The gathered bytes; unused bits of the last one are zero.
    pub(crate) fn gathered(&mut self) -> &[u8] {
        let ctx = &mut *self.ctx;
        let pad = (8 - ctx.gathered_bits % 8) % 8;
        bits::set(&mut ctx.gathered, ctx.gathered_bits, pad as u32, 0);
        let length = ctx.gathered_bits.div_ceil(8).min(ctx.gathered.len());
        &ctx.gathered[..length]
    }

    /// The hash of the gathered bytes, and of the payload if that belongs to the input.
    pub(super) fn hash(&mut self, calculation: usize) -> u64 {
        let engine = self.engine;
        let algorithm = match &engine.hashes[calculation] {
            HashKind::Random => return self.ctx.next_random(),
            HashKind::RoundRobin => return self.state.next_turn(calculation),
            HashKind::Fixed(algorithm) => algorithm,
            HashKind::Custom => {
                let algorithm = self.state.custom_hash(calculation);
                return self.hash_with(&algorithm);
            }
        };
        self.hash_with(algorithm)
    }

    fn hash_with(&mut self, algorithm: &crate::hash::Algorithm) -> u64 {
        let Some(after) = self.ctx.payload else {
            return algorithm.hash(self.gathered());
        };
        let mut running = algorithm.start();
        algorithm.update(&mut running, self.gathered());
        let emits = &self.engine.emits;
        let from = match after {
            None => 0,
            Some(header) => emits
                .iter()
                .position(|&emit| emit == header.index())
                .map_or(emits.len(), |at| at + 1),
        };
        // Headers that leave behind the named one: each is a whole number of bytes.
        for &header in &emits[from..] {
            self.ctx.gathered_bits = 0;
            self.gather_header(header);
            algorithm.update(&mut running, self.gathered());
        }
        let ctx = &*self.ctx;
        algorithm.update(
            &mut running,
            ctx.packet
                .head
                .get(ctx.packet.at..ctx.packet.head_len)
                .unwrap_or(&[]),
        );
        let mut piece = [0; PIECE];
        let mut offset = ctx.packet.pulled;
        let end = self.packet.len();
        while offset < end {
            let length = (end - offset).min(PIECE);
            self.packet.read(offset, &mut piece[..length]);
            algorithm.update(&mut running, &piece[..length]);
            offset += length;
        }
        algorithm.finish(running)
    }
}
