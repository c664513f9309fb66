//! The contract between the library preloaded into ovs-vswitchd and the glue process: the frame of netlink
//! datagrams on the Unix socket that replaces a netlink socket.
//!
//! A connection is a `SOCK_SEQPACKET` socket. Each datagram begins with a [`Header`] of [`HEADER_LEN`] bytes.
//!
//! 1. The library sends [`OPEN`]; the glue answers [`WELCOME`] or [`REFUSED`].
//! 2. Each [`REQUEST`] holds the bytes of one netlink datagram, which may hold several messages. The glue
//!    counts requests.
//! 3. The glue sends [`DATA`] (one netlink datagram) as answer, upcall or notification. The number in the
//!    header of [`DATA`], [`UPCALLS`], [`MARK`] and [`OVERFLOW`] is that of the requests that have been
//!    *answered completely*. If the last datagram of an answer cannot count its own request, a [`MARK`]
//!    without contents follows. A dump is one request; it is answered when its `NLMSG_DONE` is sent. Upcalls
//!    that are ready together share a datagram, [`UPCALLS`]: a system call and a wake-up cost more than most
//!    of them. The library hands them out one by one. A [`MARK`] follows, so that the socket stays readable
//!    until the last one is handed out.
//! 4. So the library knows whether an answer is still under way: it has sent more requests than were
//!    answered. Until then "nothing to read" means "wait", as requests to the kernel are carried out before
//!    `send` returns.
//!
//! A change of multicast groups must not wait for datagrams that have not been read yet, so it goes over a
//! connection of its own: [`JOIN`] or [`LEAVE`], answered by [`MARK`] or [`REFUSED`]; then both ends close.
//!
//! Both processes run on one machine and come from one release: numbers are in the machine's byte order, and
//! there is no version.

#![forbid(unsafe_code)]

/// Bytes in front of each datagram.
pub const HEADER_LEN: usize = 8;

/// `struct nlmsghdr`.
const MESSAGE_HEADER: usize = 16;

/// The path at which the glue listens by default.
pub const DEFAULT_SOCKET: &str = "/run/hyperswitch/ovs.sock";

/// The environment variable that gives the library another path.
pub const SOCKET_VARIABLE: &str = "HYPERSWITCH_OVS_SOCKET";

/// Library to glue: the first datagram. Number: the netlink protocol (`NETLINK_GENERIC`,
/// `NETLINK_NETFILTER`).
pub const OPEN: u32 = 1;
/// In place of a netlink protocol in [`OPEN`]: requests are packets to be traced, for `hyperswitch ovs
/// trace`. A request is a netlink message whose payload is a port's name, a byte of 0, and an Ethernet frame;
/// the answer is a message whose payload is text, a line for each step: `matched`, `matched UFID`, `missed`,
/// `delivered PORT`, `dropped REASON` or `dropped REASON PORT`; or an error.
pub const TRACE: u32 = 0x7472_6163;
/// Kind of a request for counters of ports, for `hyperswitch stats`. Its payload is a port's name and a byte
/// of 0; the answer's is JSON of the data plane's counters of the port, drops by their reasons among them; or
/// it is an error.
pub const COUNTERS: u32 = 0x636f_756e;
/// Kind of a request for what a queue of a port has counted, for the library. Its payload is the interface
/// index of the port's device and the number of the queue, 4 bytes each; the answer's is packets, bytes, and
/// packets that were dropped, 8 bytes each; or it is an error.
pub const QUEUES: u32 = 0x7175_6575;

/// Library to glue: a netlink datagram. Number: 0.
pub const REQUEST: u32 = 2;
/// Library to glue, first and only datagram: the socket with this netlink port id becomes a member of a
/// multicast group. Number: the netlink port id; contents: the group, 4 bytes.
pub const JOIN: u32 = 3;
/// Library to glue, first and only datagram: the socket leaves a multicast group. Number and contents as for
/// [`JOIN`].
pub const LEAVE: u32 = 4;

/// Glue to library: answer to [`OPEN`]. Number: the netlink port id of this socket, not 0; contents: 8 bytes
/// that tell one glue process from the next.
pub const WELCOME: u32 = 16;
/// Glue to library: a netlink datagram. Number: requests answered.
pub const DATA: u32 = 17;
/// Glue to library, without contents. Number: requests answered; 0 in the answer to [`JOIN`] and [`LEAVE`].
pub const MARK: u32 = 18;
/// Glue to library: datagrams were lost, since the socket was full (`ENOBUFS`). Number: requests answered.
pub const OVERFLOW: u32 = 19;
/// Glue to library: a refusal. Number: an `errno`. The connection is over.
pub const REFUSED: u32 = 20;

/// Glue to library: netlink messages, each of which is a datagram for who reads, at multiples of 4 bytes.
/// Number: requests answered.
pub const UPCALLS: u32 = 21;
/// Most bytes of the contents of [`UPCALLS`].
pub const MAX_UPCALLS: usize = 16 * 1024;

/// The header of each datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// One of the constants of this crate.
    pub kind: u32,
    /// Number whose meaning depends on the kind; counts wrap around.
    pub number: u32,
}

impl Header {
    /// The header as sent.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let [a, b, c, d] = self.kind.to_ne_bytes();
        let [e, f, g, h] = self.number.to_ne_bytes();
        [a, b, c, d, e, f, g, h]
    }

    /// The header of a datagram and what follows it; `None` if the datagram is too short to have one.
    pub fn split(datagram: &[u8]) -> Option<(Header, &[u8])> {
        let (kind, rest) = datagram.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let header = Header {
            kind: u32::from_ne_bytes(*kind),
            number: u32::from_ne_bytes(*number),
        };
        Some((header, rest))
    }
}

/// The first netlink message (by its `nlmsg_len`) of some, and the bytes that it takes with what fills it up;
/// `None` if they do not begin with a whole one.
pub fn first_message(messages: &[u8]) -> Option<(&[u8], usize)> {
    let length = u32::from_ne_bytes(*messages.first_chunk()?) as usize;
    let message = messages.get(..length).filter(|_| length >= MESSAGE_HEADER)?;
    Some((message, length.next_multiple_of(4).min(messages.len())))
}

/// Whether a request is still under way: `sent` were sent and `answered` were answered. Counts wrap;
/// `answered` may be ahead of `sent` for the moment in which a sender has not yet counted what it sent.
pub fn is_under_way(sent: u32, answered: u32) -> bool {
    sent.wrapping_sub(answered).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire() {
        let header = Header {
            kind: DATA,
            number: 0x0102_0304,
        };
        let mut datagram = header.to_bytes().to_vec();
        datagram.extend(b"rest");
        assert_eq!(Header::split(&datagram), Some((header, &b"rest"[..])));
        for length in 0..HEADER_LEN {
            assert_eq!(Header::split(&datagram[..length]), None);
        }
    }

    #[test]
    fn messages_are_whole() {
        let message = |length: u32, bytes: usize| {
            let mut message = length.to_ne_bytes().to_vec();
            message.resize(bytes, 7);
            message
        };
        let taken = |messages: &[u8]| first_message(messages).map(|(message, taken)| (message.len(), taken));
        assert_eq!(taken(&message(18, 40)), Some((18, 20)));
        assert_eq!(
            taken(&message(18, 18)),
            Some((18, 18)),
            "the last one need not be filled up"
        );
        for (length, bytes) in [(0, 40), (15, 40), (41, 40), (u32::MAX, 40), (16, 15)] {
            assert_eq!(taken(&message(length, bytes)), None, "{length} of {bytes}");
        }
        for bytes in 0..4 {
            assert_eq!(taken(&message(16, 16)[..bytes]), None);
        }
    }

    #[test]
    fn counts_wrap() {
        for start in [0, 7, u32::MAX - 1, u32::MAX] {
            assert!(!is_under_way(start, start));
            assert!(is_under_way(start.wrapping_add(1), start));
            assert!(!is_under_way(start, start.wrapping_add(1)));
        }
    }
}
