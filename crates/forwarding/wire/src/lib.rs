//! Formats of frames: parsing into a flow key, the virtio-net header, checksums, segmentation, merging.
//!
//! Everything here works on the private copy of a packet's head ([`Snapshot`]) and on numbers; nothing
//! touches guest memory or keeps state, and but for `rejection` nothing allocates, so any thread may call
//! anything.
//!
//! | module | contents |
//! |---|---|
//! | `snapshot` | the private copy of a packet's head |
//! | `parse`, `layers` | from the head to a flow key, and the offsets of layers |
//! | `vnet`, `offload` | the virtio-net header; the offloads that it asks for, checked |
//! | `segment`, `tunnel` | software segmentation, also inside a tunnel |
//! | `merge` | its inverse: segments of TCP that make one frame |
//! | `checksum`, `crc32c` | the Internet checksum; CRC32c of SCTP |
//! | `set` | changes of header fields |
//! | `rejection` | what the sender of a rejected packet is told |
//!
//! The path through the crate is the packet's: [`parse`] turns the head into a key and the offsets of its
//! [`Layers`]; [`Offload::check`] compares what the sender's [`VnetHeader`] asks for with what was parsed; a
//! receiver without the offload gets [`segments`] or [`finish_checksum`]. [`set_field`] changes header fields
//! as flows say.
//!
//! All offsets come from bytes a guest wrote. Where they are used, slices are taken with `get`, so that a
//! wrong offset costs an answer and never a panic.

#![forbid(unsafe_code)]

mod checksum;
mod crc32c;
mod layers;
mod merge;
mod offload;
mod parse;
mod rejection;
mod segment;
mod set;
mod snapshot;
mod tunnel;
mod vnet;

pub use checksum::{Sum, finish_checksum, pseudo};
pub use layers::{L3, L4, Layers};
pub use merge::{Mergeable, Run};
pub use offload::{BadOffload, MIN_GSO_SIZE, Offload};
pub use parse::{MAX_HEADERS, Parsed, exact_key, parse};
pub use rejection::rejection;
pub use segment::{CannotSegment, Segment, Segments, segments};
pub use set::{NoField, set_field};
pub use snapshot::Snapshot;
pub use vnet::{
    DATA_VALID, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, NEEDS_CSUM, VnetHeader,
};
