//! Packets in sequence that caches and flows count at once.

/// Packets with one key, which are counted together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Train {
    /// Bytes of all frames.
    pub bytes: u64,
    /// Number of packets.
    pub packets: u32,
    /// TCP flags that any of them has.
    pub tcp_flags: u16,
}

impl Train {
    /// Appends a packet.
    #[inline]
    pub fn add(&mut self, frame_len: usize, tcp_flags: u16) {
        self.packets += 1;
        self.bytes += frame_len as u64;
        self.tcp_flags |= tcp_flags;
    }

    /// Appends packets.
    #[inline]
    pub fn append(&mut self, other: &Train) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.tcp_flags |= other.tcp_flags;
    }
}
