//! Limits of scripts, and of what they may make.

/// Most bytes of a script.
pub const MAX_SCRIPT: usize = 16 << 20;
/// Most bytes of a line.
pub const MAX_LINE: usize = 1 << 20;
/// Most bytes of a packet.
pub const MAX_PACKET: usize = 65_536;
/// Largest port.
pub const MAX_PORT: u32 = 511;
/// Most nodes of multicast groups that a script may make.
pub(crate) const MAX_NODES: usize = 4096;
