//! What data plane and program share.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// Index of the first port's end. The kernel gives devices that it makes itself small numbers.
pub(crate) const FIRST: u32 = 0x1_0000;

/// Ports have numbers below this.
pub const PORTS: u32 = 0x1_0000;

/// Cores that may use entries; on others all frames go to the TAP.
pub(crate) const CORES: usize = 64;

/// Entries that may be in one bucket: places that a look-up compares.
pub(crate) const WAYS: usize = 8;

/// Sets of counters, a power of two.
pub(crate) const SETS: usize = 2;

/// Buckets, as a power of two.
pub(crate) const BUCKET_BITS: u32 = 9;

/// Entries of the table.
pub const ENTRIES: usize = WAYS << BUCKET_BITS;

/// Factor of the hash (golden ratio).
pub(crate) const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The entry is live.
pub(crate) const LIVE: u64 = 1;
/// The entry is armed, and no frame has come; each adds as much.
pub(crate) const ARMED: u64 = 2;

/// Programs on a core that have begun, and that have decided.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Grace {
    pub begun: AtomicU64,
    pub decided: AtomicU64,
}

/// An entry. All but state and counts changes only while the state is 0, after a grace period.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    /// 0, [`LIVE`], or [`ARMED`] and twice the frames since.
    pub state: AtomicU64,
    /// Destination and the first two bytes of the source address, as they lie in the frame.
    pub first: AtomicU64,
    /// Other bytes of the source address, and the index of the device.
    pub second: AtomicU64,
    /// The port to which frames go.
    pub to: AtomicU32,
    /// Bytes of the longest frame, its Ethernet header included.
    pub longest: AtomicU32,
    pub packets: AtomicU64,
    pub bytes: AtomicU64,
}

/// The table.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Area {
    /// Of the hash; nobody but switch and kernel knows it.
    pub seed: AtomicU64,
    /// Which of the sets of counters programs use, in the lowest bit: another one for each data plane.
    pub set: AtomicU64,
    pub grace: [[Grace; CORES]; SETS],
    pub entries: [Entry; ENTRIES],
}

/// Index of the switch's end of a port's pair.
pub fn end_index(port: u32) -> u32 {
    FIRST + 2 * port
}

/// Index of the TAP behind it.
pub fn tap_index(port: u32) -> u32 {
    end_index(port) + 1
}

/// The port to which a device in the switch's namespace belongs.
pub fn port_of(index: u32) -> Option<u32> {
    let offset = index.checked_sub(FIRST)?;
    (offset < 2 * PORTS).then_some(offset / 2)
}

/// The bucket of a key.
pub(crate) fn bucket(seed: u64, first: u64, second: u64) -> usize {
    let hash = (first ^ seed).wrapping_mul(FACTOR);
    let hash = (hash ^ hash >> 32 ^ second).wrapping_mul(FACTOR);
    (hash >> (64 - BUCKET_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_say_of_which_port_they_are() {
        for port in [0, 1, 7, PORTS - 1] {
            assert_eq!(port_of(end_index(port)), Some(port));
            assert_eq!(port_of(tap_index(port)), Some(port));
            assert_eq!((end_index(port) & 1, tap_index(port) & 1), (0, 1));
        }
        assert_eq!(port_of(1), None);
        assert_eq!(port_of(FIRST + 2 * PORTS), None);
    }
}
