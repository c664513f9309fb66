//! Changes of the interfaces of a network namespace and of their addresses, as rtnetlink reports them
//! (`RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR`).

use crate::NicError;
use crate::netlink::{Link, address_index, messages, parse_link};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use std::collections::VecDeque;

/// An interface as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Interface index in the watched namespace.
    pub index: u32,
    /// Whether it is administratively up (`IFF_UP`).
    pub up: bool,
    /// Largest IP packet in bytes.
    pub mtu: u32,
}

/// A change of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// A link was made, or changed.
    Is(LinkState),
    /// A link was moved to another namespace.
    Moved {
        /// The index that it had.
        index: u32,
        /// The new namespace, by its number in the watched one (`RTM_NEWNSID`).
        namespace: i32,
        /// The index in the new namespace.
        index_there: u32,
    },
    /// A link is no more, or no port of a bridge any more.
    Gone {
        /// The index that it had.
        index: u32,
    },
    /// One of its addresses came, changed or went.
    Addresses {
        /// The index of the interface.
        index: u32,
    },
    /// Notices were lost: the state of interfaces has to be read again.
    Lost,
}

/// Watches the namespace of the thread that made it. Its descriptor is readable when there are events.
#[derive(Debug)]
pub struct LinkWatch {
    socket: OwnedFd,
    events: VecDeque<LinkEvent>,
}

impl LinkWatch {
    /// Begins to watch interfaces.
    ///
    /// # Errors
    ///
    /// The kernel refused a socket.
    pub fn new() -> Result<LinkWatch, NicError> {
        LinkWatch::of(libc::RTMGRP_LINK)
    }

    /// Begins to watch interfaces and their addresses.
    ///
    /// # Errors
    ///
    /// As [`LinkWatch::new`].
    pub fn with_addresses() -> Result<LinkWatch, NicError> {
        LinkWatch::of(libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR)
    }

    fn of(groups: libc::c_int) -> Result<LinkWatch, NicError> {
        let refused = |errno| NicError::refused("watching interfaces", errno);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)
            .map_err(refused)?;
        let group = SocketAddrNetlink::new(0, groups.cast_unsigned());
        rustix::net::bind(&socket, &group).map_err(refused)?;
        Ok(LinkWatch {
            socket,
            events: VecDeque::new(),
        })
    }

    /// The next event, if there is one. Does not wait.
    pub fn next_event(&mut self) -> Option<LinkEvent> {
        let mut buffer = vec![0; 32 * 1024];
        while self.events.is_empty() {
            match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::AGAIN) => return None,
                Ok((length, _)) => self.events.extend(messages(&buffer[..length]).filter_map(
                    |(kind, _, body)| match kind {
                        libc::RTM_NEWADDR | libc::RTM_DELADDR => {
                            address_index(body).map(|index| LinkEvent::Addresses { index })
                        }
                        _ => event(kind, &parse_link(body)),
                    },
                )),
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => self.events.push_back(LinkEvent::Lost),
                Err(_) => return None,
            }
        }
        self.events.pop_front()
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What a link message says.
pub(crate) fn state(link: &Link) -> LinkState {
    LinkState {
        index: link.index,
        up: link.is_up(),
        mtu: link.mtu,
    }
}

fn event(kind: u16, link: &Link) -> Option<LinkEvent> {
    match (kind, link.moved_to) {
        // Some notices have one attribute only, and leave the others out.
        (libc::RTM_NEWLINK, _) if link.mtu > 0 => Some(LinkEvent::Is(state(link))),
        (libc::RTM_DELLINK, Some(namespace)) => Some(LinkEvent::Moved {
            index: link.index,
            namespace,
            index_there: link.new_index.unwrap_or(link.index),
        }),
        (libc::RTM_DELLINK, None) => Some(LinkEvent::Gone { index: link.index }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_is_told_with_index_and_namespace() {
        let link = |moved_to, new_index| Link {
            index: 7,
            moved_to,
            new_index,
            ..Link::default()
        };
        let moved = |index_there| {
            Some(LinkEvent::Moved {
                index: 7,
                namespace: 3,
                index_there,
            })
        };
        assert_eq!(event(libc::RTM_DELLINK, &link(Some(3), None)), moved(7));
        assert_eq!(event(libc::RTM_DELLINK, &link(Some(3), Some(9))), moved(9));
        let gone = Some(LinkEvent::Gone { index: 7 });
        assert_eq!(event(libc::RTM_DELLINK, &link(None, None)), gone);
        assert_eq!(event(libc::RTM_NEWLINK, &link(None, None)), None, "no MTU");
    }
}
