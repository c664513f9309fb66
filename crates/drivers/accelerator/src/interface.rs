//! The two halves of an accelerator: [`Queue`], used by the data plane, and [`Accelerator`], used by the
//! broker.

use guest_memory::Messages;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::fmt::Debug;
use std::io;

/// A queue of a device, in the data plane, that receives. Which frames come to it, an [`Accelerator`] says.
pub trait Arrivals: Debug + Send {
    /// A descriptor that becomes readable when a frame comes.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Whether a frame has come: bytes that header and frame may need at most. Costs no system call.
    fn oldest(&mut self) -> Option<usize>;

    /// Takes the oldest frame into two pieces of room, one behind the other: a virtio-net header of 12 bytes,
    /// and the frame. Waits for nothing.
    fn receive(&mut self, room: [&mut [u8]; 2]) -> Arrived;
}

/// What a queue had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// So many bytes of header and frame.
    Frame(usize),
    /// A frame that cannot be used.
    Unusable,
    /// Nothing.
    Nothing,
}

/// A queue of a device, in the data plane, that sends.
pub trait Queue: Debug + Send {
    /// Bytes of the virtio-net header in front of each frame: 12, or 10 without a number of buffers.
    fn header_len(&self) -> usize;

    /// Sends messages, each a virtio-net header of [`header_len`](Self::header_len) bytes and a frame,
    /// without waiting; as many from the first on as the device takes.
    fn send(&mut self, messages: &mut Messages<'_>) -> Sent;
}

/// What became of messages.
#[derive(Debug, Default)]
pub struct Sent {
    /// The device has them.
    pub taken: usize,
    /// Why it did not take the next one, if there is a next one.
    pub refused: Option<Declined>,
}

/// Why a queue does not take a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declined {
    /// There is no room at present.
    Full(Full),
    /// The frame is longer than the device's MTU allows.
    TooLong,
    /// The sender's memory has gone.
    SenderGone,
    /// The device does not take this frame, but may take others.
    Frame,
    /// The device does not work: it is down, or has gone.
    Device,
}

/// A queue of the kernel that has no room for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The socket's own.
    Socket,
    /// The device's.
    Device,
}

/// What frames a filter matches. Broadcast and multicast are never steered, nor what is for a local port: the
/// slow path has these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Match {
    /// Untagged frames for an address.
    Mac([u8; 6]),
    /// Frames of a VLAN for an address.
    Vlan([u8; 6], u16),
    /// Frames of a virtual network in a tunnel: network identifier and inner address.
    Tunnel(u32, [u8; 6]),
    /// One connection: protocol, and both addresses with ports, those of IPv4 mapped into IPv6.
    Flow(u8, [([u8; 16], u16); 2]),
}

/// The kinds of [`Match`] that an accelerator has filters for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatchKinds {
    /// [`Match::Mac`].
    pub mac: bool,
    /// [`Match::Vlan`].
    pub vlan: bool,
    /// [`Match::Tunnel`].
    pub tunnel: bool,
    /// [`Match::Flow`].
    pub flow: bool,
}

impl MatchKinds {
    /// Whether there can be such a filter.
    pub fn has(self, what: &Match) -> bool {
        match what {
            Match::Mac(mac) => self.mac && mac[0] & 1 == 0,
            Match::Vlan(mac, _) => self.vlan && mac[0] & 1 == 0,
            Match::Tunnel(_, mac) => self.tunnel && mac[0] & 1 == 0,
            Match::Flow(..) => self.flow,
        }
    }
}

/// How many filters and queues an accelerator has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Filters that there may be at once.
    pub filters: usize,
    /// Queues that there may be at once.
    pub queues: usize,
}

/// A filter: frames that match go to a queue, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The frames.
    pub what: Match,
    /// The queue.
    pub queue: u32,
}

/// A programmed filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FilterId(pub u64);

/// The control of a device's queues and filters, in the broker. What it does can be wrong, and costs time
/// then: filters decide nothing.
pub trait Accelerator {
    /// What it can steer by.
    fn kinds(&self) -> MatchKinds;

    /// How much of it.
    fn room(&self) -> Room;

    /// Opens a queue of that number; returns the descriptors that the data plane's half takes.
    ///
    /// # Errors
    ///
    /// There is no room, or the device has gone.
    fn open(&mut self, queue: u32) -> io::Result<Vec<OwnedFd>>;

    /// Has the device give frames to a queue from some moment during the call on.
    ///
    /// # Errors
    ///
    /// There is no room, or it has no filters of that kind.
    fn program(&mut self, filter: &Filter) -> io::Result<FilterId>;

    /// Has frames take the slow path again from some moment during the call on. No error if there is no such
    /// filter.
    ///
    /// # Errors
    ///
    /// The device has gone, with its filters.
    fn remove(&mut self, filter: FilterId) -> io::Result<()>;

    /// Closes a queue, which has no filter any more and is empty.
    fn close(&mut self, queue: u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_never_steered() {
        let kinds = MatchKinds {
            mac: true,
            vlan: true,
            tunnel: true,
            flow: false,
        };
        let (own, group) = ([2, 0, 0, 0, 0, 1], [0xff; 6]);
        let has =
            |mac| [Match::Mac(mac), Match::Vlan(mac, 5), Match::Tunnel(9, mac)].map(|what| kinds.has(&what));
        assert_eq!((has(own), has(group)), ([true; 3], [false; 3]));
        assert!(!kinds.has(&Match::Flow(6, [([0; 16], 80); 2])));
    }
}
