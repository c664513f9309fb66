//! Numbers of rings.

use placement::VnicId;
use std::fmt;

/// Number of a ring, the unit of scheduling. The rings of a vNIC are neighbours, in the order of its
/// virtqueues (virtio 1.3, section 5.1.2): receive rings, to the guest, are even, and transmit rings odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingId(pub u32);

impl RingId {
    /// Number of rings of a vNIC.
    pub const PER_VNIC: u32 = 2;

    /// The number of a virtqueue's ring. Numbers of vNICs are below 2^31, those of virtqueues below
    /// [`PER_VNIC`](Self::PER_VNIC).
    #[inline]
    pub const fn of(vnic: VnicId, queue: u32) -> RingId {
        RingId(vnic.0 * RingId::PER_VNIC + queue)
    }

    /// The receive ring of a vNIC.
    #[inline]
    pub const fn receive(vnic: VnicId) -> RingId {
        RingId::of(vnic, 0)
    }

    /// The transmit ring of a vNIC.
    #[inline]
    pub const fn transmit(vnic: VnicId) -> RingId {
        RingId::of(vnic, 1)
    }

    /// The vNIC of the ring.
    #[inline]
    pub const fn vnic(self) -> VnicId {
        VnicId(self.0 / RingId::PER_VNIC)
    }

    /// Whether the guest sends through it.
    #[inline]
    pub const fn is_transmit(self) -> bool {
        self.queue() == 1
    }

    /// The number of its virtqueue.
    #[inline]
    pub const fn queue(self) -> u32 {
        self.0 % RingId::PER_VNIC
    }
}

impl fmt::Display for RingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.vnic().0, self.queue())
    }
}
