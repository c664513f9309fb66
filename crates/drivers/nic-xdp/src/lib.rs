//! AF_XDP sockets (`Documentation/networking/af_xdp.rst`): frames between a device's driver and mapped
//! memory, past the host's stack.
//!
//! One process opens sockets, one for each queue of a device ([`XdpDevice`], which takes privileges), another
//! one moves frames ([`XdpQueues`], which takes none, but for the descriptors). An eBPF program in the driver
//! hands what arrives to the sockets ([`Steering`], loaded by a third).
//!
//! | module | contents |
//! |---|---|
//! | `device` | sockets on devices: opening, attaching the program, what the kernel lost |
//! | `queues` | frames in and out of all queues of a device |
//! | `receiver` | frames in at one queue |
//! | `sender` | frames out |
//! | `rings` | the four rings that a socket shares with the kernel |
//! | `area` | the memory of frames, which the kernel has pinned |
//! | `layout` | how that memory is divided |
//!
//! Memory: most of a socket's chunks are for what arrives. The socket's first reader gives them to
//! the kernel. From then on each belongs to the kernel until a frame has arrived in it, and a reader gives it
//! back in the order in which frames came. So two numbers that a reader publishes, chunks given and chunks
//! taken, always differ by the same amount, and the next process finds everything in order wherever the one
//! before it died.
//!
//! A frame is at most [`Layout::longest`] bytes long; the kernel drops and counts longer ones. One that is
//! longer than a chunk holds lies in several, in order; the kernel publishes all of them at once. Nothing of
//! a frame but its bytes arrives: no checksum that was left open, no VLAN tag that the driver has taken out.
//!
//! Rings and frames may be written by a process that is trusted with nothing but the device. What is read
//! from them is checked, and an error is the end of the sockets.

mod area;
mod device;
mod layout;
mod queues;
mod receiver;
mod rings;
mod sender;

pub use device::{Refused, Steering, Target, XdpDevice};
pub use layout::{Layout, MAX_QUEUES};
pub use queues::XdpQueues;

/// An error of rings in which a number or an address cannot be.
fn disorder(what: &str) -> std::io::Error {
    std::io::Error::other(format!("the rings of the AF_XDP socket are in disorder ({what})"))
}
