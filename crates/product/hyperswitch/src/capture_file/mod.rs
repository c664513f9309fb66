//! Capture files: pcapng and pcap are written, and read.
//!
//! Both are small here on purpose: one section, one interface, a handful of options when writing; Ethernet
//! packets and nothing else when reading. A file is a user's input, so reading checks every length.

mod classic;
mod read;
mod write;

pub use classic::ClassicWriter;
pub use read::{packet, packets};
pub use write::Writer;

/// Block types (draft-ietf-opsawg-pcapng, 4).
mod block {
    pub const SECTION: u32 = 0x0a0d_0d0a;
    pub const INTERFACE: u32 = 1;
    pub const SIMPLE_PACKET: u32 = 3;
    pub const ENHANCED_PACKET: u32 = 6;
    /// In a section header, to tell the byte order.
    pub const BYTE_ORDER: u32 = 0x1a2b_3c4d;
}

/// LINKTYPE_ETHERNET.
const ETHERNET: u16 = 1;
