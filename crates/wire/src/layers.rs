//! Where the layers of a frame begin.

/// What follows the Ethernet header and its tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum L3 {
    /// Anything else, or too short to tell.
    #[default]
    Other,
    /// A sound IPv4 header.
    Ipv4,
    /// A sound IPv6 header, extension headers included.
    Ipv6,
    /// ARP or RARP for IPv4 over Ethernet.
    Arp,
    /// An MPLS label stack.
    Mpls,
    /// A sound network service header.
    Nsh,
}

/// What follows the IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum L4 {
    /// Anything else, truncated, or in a later fragment.
    #[default]
    Other,
    /// TCP with a sound data offset.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// ICMP in IPv4.
    Icmp,
    /// ICMP in IPv6.
    Icmpv6,
}

/// Offsets from the start of the frame, in bytes; 0 is "unknown". They come from untrusted bytes: `l3` and
/// `l4` lie within the head that was parsed, `payload` within the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layers {
    /// Network layer: behind the Ethernet type (behind LLC/SNAP, if there is one).
    pub l3: u16,
    /// Transport layer: behind IP header, options and extension headers. Known for every sound IP packet except a later
    /// fragment, whatever its protocol.
    pub l4: u16,
    /// Payload: behind the L4 header; known only when `l4_kind` is.
    pub payload: u16,
    /// What lies at `l3`.
    pub l3_kind: L3,
    /// What lies at `l4`.
    pub l4_kind: L4,
    /// The packet is a fragment, first or later.
    pub fragment: bool,
    /// An IPv6 routing header is present, so the destination in the header may not be the one that the
    /// pseudo header means (RFC 8200 8.1).
    pub routed: bool,
    /// MPLS label stack entries that were pushed in front of `l3` since the packet was parsed. The other fields still tell of
    /// the packet behind them, which may have to be segmented.
    pub labels: u8,
}

/// Bytes of a label stack entry (RFC 3032 2.1).
const LABEL: u16 = 4;

impl Layers {
    /// The layers after `by` bytes were inserted before `l3` (removed, when negative), as by
    /// [`Snapshot::push_vlan`](crate::Snapshot::push_vlan). Unknown stays unknown.
    #[must_use]
    pub fn moved(&self, by: i16) -> Layers {
        let shift = |at: u16| if at == 0 { 0 } else { at.saturating_add_signed(by) };
        Layers {
            l3: shift(self.l3),
            l4: shift(self.l4),
            payload: shift(self.payload),
            ..*self
        }
    }

    /// The layers after an MPLS label stack entry was pushed in front of `l3`.
    #[must_use]
    pub fn labelled(&self) -> Layers {
        Layers {
            labels: self.labels.saturating_add(1),
            ..self.moved(LABEL as i16)
        }
    }

    /// The layers after the outermost of the pushed label stack entries was removed; `None` if none was pushed, and only
    /// parsing can tell.
    #[must_use]
    pub fn unlabelled(&self) -> Option<Layers> {
        Some(Layers {
            labels: self.labels.checked_sub(1)?,
            ..self.moved(-(LABEL as i16))
        })
    }

    /// The layers whose fields the packet has: of what was pushed, the outermost label stack entry, and nothing behind it.
    pub(crate) fn visible(&self) -> Layers {
        if self.labels == 0 {
            return *self;
        }
        Layers {
            l3: self.l3.saturating_sub(LABEL * u16::from(self.labels)),
            l3_kind: L3::Mpls,
            ..Layers::default()
        }
    }
}
