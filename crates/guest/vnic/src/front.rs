//! The beginning of a frame, written anew by a program that took the frame apart.
//!
//! What is behind it stays where it lies, in the sender's memory for instance, so that payload is copied
//! once in all. The request for checksum and segmentation goes on: its offsets are counted from the end of
//! the frame, and it is checked against the new headers as it was against the guest's. While a checksum is
//! left open, its field holds the sum of a pseudo header, which means nothing to a program; if the program
//! wrote another number, the field is given the sum of the pseudo header that is there now.

use crate::packet::{InChain, Packet, Piece};
use flow::ExactKey;
use wire::{BadOffload, Offload, VnetHeader, exact_key};

impl Packet {
    /// Copies the bytes behind the head from `offset` on. Of `to`, bytes for which there are none stay as
    /// they are.
    pub fn read_tail(&self, offset: usize, to: &mut [u8]) {
        let Some(left) = self.tail_len().checked_sub(offset) else {
            return;
        };
        let len = left.min(to.len());
        // A frame is shorter than 4 GiB.
        let (offset, part) = (offset as u32, &mut to[..len]);
        let mut done = 0;
        self.tail(offset, len as u32).for_each(|piece| match piece {
            Piece::Guest(memory, range) => done += memory.read(range, &mut part[done..]),
            Piece::Bytes(bytes) => {
                part[done..done + bytes.len()].copy_from_slice(bytes);
                done += bytes.len();
            }
        });
    }

    /// Bytes behind the head.
    pub fn tail_len(&self) -> usize {
        self.tail_len as usize
    }

    /// Puts `front` in the place of the frame's first `replaced` bytes. False, and nothing has changed, if
    /// bytes behind them would have to be copied for that, or `front` has no room.
    ///
    /// # Errors
    ///
    /// The frame is no longer one of which the rest of the work could be done. The packet is to be dropped.
    pub fn replace_front(&mut self, front: &[u8], replaced: usize) -> Result<bool, BadOffload> {
        let (frame_len, open) = (self.frame_len(), self.open_field());
        let Some(beyond) = replaced.checked_sub(self.head.len()) else {
            return Ok(false);
        };
        let Some(left) = self.tail_len().checked_sub(beyond) else {
            return Ok(false);
        };
        let moves_tail = beyond > 0 && left > 0;
        if moves_tail && self.in_chain != InChain::Tail || !self.head.replace(front) {
            return Ok(false);
        }
        self.tail_start += beyond as u32;
        self.tail_len = left as u32;
        self.settle(frame_len, open)?;
        Ok(true)
    }

    /// Changes bytes of the head, which keeps its length.
    ///
    /// # Errors
    ///
    /// As of [`replace_front`](Self::replace_front).
    pub fn rewrite_front(&mut self, change: impl FnOnce(&mut [u8])) -> Result<(), BadOffload> {
        let (frame_len, open) = (self.frame_len(), self.open_field());
        change(self.head.bytes_mut());
        self.settle(frame_len, open)
    }

    /// As [`rewrite_front`](Self::rewrite_front), of a frame without tags that asks for nothing, and whose
    /// Ethernet type stays. False, and nothing has changed, if it is another one.
    pub fn rewrite_plain(&mut self, change: impl FnOnce(&mut [u8])) -> bool {
        let is_plain = !self.offload.needs_checksum() && self.is_untagged();
        if is_plain {
            change(self.head.bytes_mut());
        }
        is_plain
    }

    /// Makes the request as it is now the sender's: later parsing checks it against the frame as it is now.
    pub fn keep_request(&mut self) {
        self.header = self.offload.header().to_bytes();
    }

    /// Checks the request against new headers of a frame that had that length and that open checksum.
    fn settle(&mut self, frame_len: usize, open: Option<[u8; 2]>) -> Result<(), BadOffload> {
        if !self.offload.needs_checksum() && self.is_untagged() {
            self.note_plain();
            return Ok(());
        }
        let header = self.moved_header(frame_len, self.frame_len())?;
        let l3 = usize::from(self.layers.l3) + self.frame_len();
        if self.adopt(&header).is_err() {
            let l3 = l3.checked_sub(frame_len).ok_or(BadOffload)?;
            (self.layers, self.offload) =
                Offload::check_behind(&header, l3, self.head.bytes(), self.frame_len())?;
        }
        if open.is_some() && self.open_field() != open {
            self.offload.reopen_checksum(self.head.bytes_mut(), &self.layers);
        }
        Ok(())
    }

    /// The request for a frame that is `new_len` instead of `old_len` bytes long, and that ends as this one
    /// does.
    ///
    /// # Errors
    ///
    /// Offsets of the request are no longer inside.
    pub fn moved_header(&self, old_len: usize, new_len: usize) -> Result<VnetHeader, BadOffload> {
        if !self.offload.needs_checksum() {
            return Ok(VnetHeader::default());
        }
        let start = usize::from(self.offload.header().csum_start) + new_len;
        let start = start
            .checked_sub(old_len)
            .and_then(|start| u16::try_from(start).ok());
        Ok(VnetHeader {
            csum_start: start.ok_or(BadOffload)?,
            ..*self.offload.header()
        })
    }

    /// Parses the frame as it is now, and checks the request against it.
    fn adopt(&mut self, header: &VnetHeader) -> Result<(), BadOffload> {
        let (head, behind) = (self.head.bytes(), self.tail_len as usize);
        // Fields that are unknown are not looked at.
        let _ = exact_key(
            head,
            behind,
            self.origin,
            &mut ExactKey::default(),
            &mut self.layers,
        );
        self.offload = Offload::check(header, &self.layers, head, self.frame_len())?;
        Ok(())
    }

    /// The field of a checksum that is left open, if it lies in the head.
    fn open_field(&self) -> Option<[u8; 2]> {
        let header = self.offload.header();
        let at = usize::from(header.csum_start) + usize::from(header.csum_offset);
        let field = self.head.bytes().get(at..)?.first_chunk();
        field.filter(|_| self.offload.needs_checksum()).copied()
    }
}
