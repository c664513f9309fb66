//! Feature bits of a virtio network device (VIRTIO 1.2, 5.1.3 and 6), and which of them make sense together.

#![allow(missing_docs, reason = "names are those of the specification")]

pub const CSUM: u64 = 1 << 0;
pub const GUEST_CSUM: u64 = 1 << 1;
pub const GUEST_TSO4: u64 = 1 << 7;
pub const GUEST_TSO6: u64 = 1 << 8;
pub const GUEST_ECN: u64 = 1 << 9;
pub const HOST_TSO4: u64 = 1 << 11;
pub const HOST_TSO6: u64 = 1 << 12;
pub const HOST_ECN: u64 = 1 << 13;
pub const MRG_RXBUF: u64 = 1 << 15;
pub const EVENT_IDX: u64 = 1 << 29;
/// Of vhost-user, not of the device.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
pub const VERSION_1: u64 = 1 << 32;

/// Leaves out what lacks its precondition (VIRTIO 1.2, 5.1.3.1).
pub fn consistent(mut features: u64) -> u64 {
    if features & CSUM == 0 {
        features &= !(HOST_TSO4 | HOST_TSO6);
    }
    if features & GUEST_CSUM == 0 {
        features &= !(GUEST_TSO4 | GUEST_TSO6);
    }
    if features & (HOST_TSO4 | HOST_TSO6) == 0 {
        features &= !HOST_ECN;
    }
    if features & (GUEST_TSO4 | GUEST_TSO6) == 0 {
        features &= !GUEST_ECN;
    }
    features
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offloads_come_with_what_they_stand_on() {
        let all = CSUM | HOST_TSO4 | HOST_TSO6 | HOST_ECN | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN;
        assert_eq!(consistent(all), all);
        assert_eq!(consistent(HOST_TSO4 | HOST_ECN), 0);
        assert_eq!(consistent(GUEST_TSO6 | GUEST_ECN), 0);
        let kept = CSUM | HOST_TSO6 | HOST_ECN;
        assert_eq!(consistent(kept | GUEST_ECN), kept);
    }
}
