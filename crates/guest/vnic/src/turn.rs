//! Bounds for the cost of a turn at a ring.
//!
//! A guest determines the cost of a packet: its bytes, its descriptors, the buffers it needs at the receiver,
//! the segments it is cut into. So a turn at a ring is bounded by *work* and by time, and not by packets
//! alone: work is counted in bytes that are copied, and a descriptor or buffer counts for as many as take
//! about as long. A turn that is over leaves the remaining packets for the next one, after other rings have
//! had theirs.
//!
//! The clock is read only after an amount of work, since reading it has a cost as well.

use cpu::Deadline;

/// Most packets handled in one go.
pub const BURST: usize = 32;

/// Most packets of one port that may be under way; bounds memory per port and how much of a guest's ring a
/// slow receiver can hold.
pub(crate) const MAX_SLOTS: u32 = 256;

/// Bytes that take at most as long to copy as a descriptor does to read and translate, when neither is in the
/// cache.
pub(crate) const DESCRIPTOR_WORK: u64 = 1024;

/// Work after which a burst from a transmit ring ends: 256 descriptors, or four frames of the largest size.
pub(crate) const BURST_WORK: u64 = 256 * 1024;

/// Work between two readings of the clock: some microseconds.
const LOOK_WORK: u64 = 32 * 1024;

/// The work that is left before others have their turn. It allows at least one packet, however late it is.
#[derive(Debug)]
pub struct Turn {
    packets: usize,
    ends: Deadline,
    /// Work since the clock was read last.
    work: u64,
}

impl Turn {
    /// A turn of at most so many packets (or parts of them, or attempts), at least one, until that time.
    pub fn new(packets: usize, ends: Deadline) -> Turn {
        Turn {
            packets,
            ends,
            work: 0,
        }
    }

    /// An attempt at a packet was made, which was that much work.
    #[inline]
    pub(crate) fn spend(&mut self, work: u64) {
        self.packets = self.packets.saturating_sub(1);
        self.work += work + DESCRIPTOR_WORK;
        if self.work >= LOOK_WORK {
            self.work = 0;
            if self.ends.has_passed() {
                self.packets = 0;
            }
        }
    }

    /// Whether the turn is over.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.packets == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_after_packets_or_after_work_when_its_time_is_up() {
        let mut turn = Turn::new(3, Deadline::after_us(3_600_000_000));
        for _ in 0..3 {
            assert!(!turn.is_over());
            turn.spend(u64::from(u32::MAX));
        }
        assert!(turn.is_over());
        let mut late = Turn::new(1000, Deadline::after_us(0));
        assert!(!late.is_over());
        late.spend(0);
        assert!(!late.is_over(), "the clock is not looked at for each packet");
        late.spend(LOOK_WORK);
        assert!(late.is_over());
    }
}
