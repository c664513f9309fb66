//! Which feature bits make sense together, and their names.

pub use virtqueue::net::{
    NET_CSUM, NET_GUEST_CSUM, NET_GUEST_ECN, NET_GUEST_TSO4, NET_GUEST_TSO6, NET_GUEST_USO4, NET_GUEST_USO6,
    NET_HOST_ECN, NET_HOST_TSO4, NET_HOST_TSO6, NET_HOST_USO, NET_MRG_RXBUF, RING_EVENT_IDX, VERSION_1,
    VHOST_USER_PROTOCOL,
};

/// Leaves out what lacks its precondition (VIRTIO 1.3, 5.1.3.1).
pub fn consistent(mut features: u64) -> u64 {
    if features & NET_CSUM == 0 {
        features &= !(NET_HOST_TSO4 | NET_HOST_TSO6 | NET_HOST_USO);
    }
    if features & NET_GUEST_CSUM == 0 {
        features &= !(NET_GUEST_TSO4 | NET_GUEST_TSO6 | NET_GUEST_USO4 | NET_GUEST_USO6);
    }
    if features & (NET_HOST_TSO4 | NET_HOST_TSO6) == 0 {
        features &= !NET_HOST_ECN;
    }
    if features & (NET_GUEST_TSO4 | NET_GUEST_TSO6) == 0 {
        features &= !NET_GUEST_ECN;
    }
    features
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offloads_come_with_what_they_stand_on() {
        let all = NET_CSUM
            | NET_HOST_TSO4
            | NET_HOST_TSO6
            | NET_HOST_ECN
            | NET_GUEST_CSUM
            | NET_GUEST_TSO4
            | NET_GUEST_TSO6
            | NET_GUEST_ECN;
        assert_eq!(consistent(all), all);
        assert_eq!(consistent(NET_HOST_TSO4 | NET_HOST_ECN), 0);
        assert_eq!(consistent(NET_GUEST_TSO6 | NET_GUEST_ECN), 0);
        assert_eq!(consistent(NET_HOST_USO | NET_GUEST_USO4 | NET_GUEST_USO6), 0);
        let segments = NET_GUEST_CSUM | NET_GUEST_USO6;
        assert_eq!(consistent(segments), segments);
        let kept = NET_CSUM | NET_HOST_TSO6 | NET_HOST_ECN;
        assert_eq!(consistent(kept | NET_GUEST_ECN), kept);
    }
}
