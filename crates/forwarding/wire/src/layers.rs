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
    /// Transport layer: behind IP header, options and extension headers. Known for every sound IP packet
    /// except a later fragment, whatever its protocol.
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
    /// Bytes of headers that were pushed before what the other fields tell of, since the packet was parsed.
    /// What is behind such headers may still have to be segmented, or its checksum completed.
    pub pushed: u16,
}

impl Layers {
    /// The layers after `by` bytes were inserted before `l3` (removed, when negative), as by
    /// [`Snapshot::push_vlan`](crate::Snapshot::push_vlan). Unknown stays unknown.
    #[must_use]
    #[inline]
    pub fn moved(&self, by: i16) -> Layers {
        let shift = |at: u16| if at == 0 { 0 } else { at.saturating_add_signed(by) };
        Layers {
            l3: shift(self.l3),
            l4: shift(self.l4),
            payload: shift(self.payload),
            ..*self
        }
    }

    /// The layers after a header of `len` bytes was pushed before all that they tell of.
    #[must_use]
    pub fn behind(&self, len: u16) -> Layers {
        Layers {
            pushed: self.pushed.saturating_add(len),
            ..self.moved(i16::try_from(len).unwrap_or(i16::MAX))
        }
    }

    /// The layers after the outermost header, of `len` bytes, was removed; `None` if it was there when the
    /// packet was parsed, and only parsing can tell what it hid.
    #[must_use]
    pub fn uncovered(&self, len: u16) -> Option<Layers> {
        Some(Layers {
            pushed: self.pushed.checked_sub(len)?,
            ..self.moved(i16::try_from(len).map_or(i16::MIN, |len| -len))
        })
    }
}
