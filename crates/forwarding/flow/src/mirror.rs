//! Mirrors: copies of a port's packets for another port.

use crate::{ListId, PortId};
use serde::{Deserialize, Serialize};

/// Most mirrors of a port. Each costs the port's packets a copy.
pub const MAX_MIRRORS: usize = 4;

/// Copies of a port's packets for another port of the switch. Copies go past the filters, and no mirror
/// copies them again. A copy that the other port has no buffers for at once is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirror {
    /// The port that gets the copies.
    pub to: PortId,
    /// The packets that are copied.
    pub packets: Mirrored,
    /// Of these, the ones that the list allows; all if `None`, none if there is no such list.
    pub list: Option<ListId>,
    /// Bytes of a frame that are copied, [`MIN_LENGTH`](Self::MIN_LENGTH) at least; all if `None`.
    pub length: Option<u32>,
    /// VLAN of a tag that each copy gets, 1 to 4094.
    pub vlan: Option<u16>,
}

/// Packets of a port that a mirror copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mirrored {
    /// Packets that the port's guest sends, as they come.
    pub from: bool,
    /// Packets that the port's guest gets, as it gets them.
    pub to: bool,
    /// Packets that the guest sends and the switch drops before a receiver has them, and packets for the
    /// guest that are dropped at its side.
    pub dropped: bool,
}

/// Where a packet meets a port's mirrors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorPoint {
    /// The packet came from the guest.
    From,
    /// The packet came from the guest, met [`From`](Self::From), and is dropped.
    DroppedFrom,
    /// The guest has the packet.
    To,
    /// The packet was for the guest, and is dropped.
    DroppedTo,
}

impl Mirrored {
    /// Whether the mirror copies packets at that point. A packet that was copied as it came is not copied
    /// again as dropped.
    pub fn copies_at(self, point: MirrorPoint) -> bool {
        match point {
            MirrorPoint::From => self.from,
            MirrorPoint::DroppedFrom => self.dropped && !self.from,
            MirrorPoint::To => self.to,
            MirrorPoint::DroppedTo => self.dropped,
        }
    }
}

impl Mirror {
    /// Fewest bytes of a frame that are copied: an Ethernet header.
    pub const MIN_LENGTH: u32 = 14;

    /// Whether a port may have this mirror. Whether there is a port `to`, the data plane sees at each packet.
    pub fn is_valid_at(&self, port: PortId) -> bool {
        self.to != port
            && self.length.is_none_or(|length| length >= Mirror::MIN_LENGTH)
            && self.vlan.is_none_or(|vlan| (1..=4094).contains(&vlan))
    }
}
