//! One end of a message channel.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Serialize, de::DeserializeOwned};
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Largest message in bytes: the largest frame (65,553 bytes) with room for everything around it.
pub const MAX_MESSAGE: usize = 96 * 1024;

thread_local! {
    /// This thread's receive buffer; empty before the first message.
    static RECEIVED: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// This thread's send buffer.
    static SENT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Most descriptors on one message.
pub const MAX_DESCRIPTORS: usize = 4;

/// Bytes that a value takes in a message.
pub fn encoded_len<T: Serialize>(part: &T) -> usize {
    // It fails only for values that cannot be sent either.
    postcard::experimental::serialized_size(part).unwrap_or(usize::MAX)
}

/// Why a message was not sent or received.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The peer has closed its end.
    #[error("the peer has closed the channel")]
    Closed,
    /// A non-blocking operation found nothing to do.
    #[error("the channel is not ready")]
    WouldBlock,
    /// The message does not fit [`MAX_MESSAGE`], or cannot be decoded.
    #[error("malformed message: {0}")]
    Malformed(String),
    /// The system call failed.
    #[error("channel: {0}")]
    Io(#[from] std::io::Error),
}

impl From<Errno> for ChannelError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN => ChannelError::WouldBlock,
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => ChannelError::Closed,
            errno => ChannelError::Io(errno.into()),
        }
    }
}

/// One end of a `SOCK_SEQPACKET` socket pair that carries `postcard` messages. Any thread may use it; each
/// message is sent and received whole.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Self {
        Channel { socket }
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.socket
    }
}

impl Channel {
    /// Two connected ends, blocking, closed on exec.
    pub fn pair() -> Result<(Channel, Channel), ChannelError> {
        let (a, b) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Channel { socket: a }, Channel { socket: b }))
    }

    /// Sends, waiting for room.
    pub fn send<M: Serialize>(&self, message: &M, fds: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        self.send_flags(message, fds, SendFlags::NOSIGNAL)
    }

    /// Sends, or returns [`ChannelError::WouldBlock`].
    pub fn try_send<M: Serialize>(&self, message: &M, fds: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        self.send_flags(message, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send_flags<M: Serialize>(
        &self,
        message: &M,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), ChannelError> {
        let mut bytes = SENT.take();
        bytes.clear();
        let bytes = postcard::to_extend(message, bytes)
            .map_err(|error| ChannelError::Malformed(error.to_string()))?;
        let result = self.send_bytes(&bytes, fds, flags);
        // The buffer of a message that is too large to be sent is not kept.
        if bytes.capacity() <= 2 * MAX_MESSAGE {
            SENT.set(bytes);
        }
        result
    }

    fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> Result<(), ChannelError> {
        if bytes.len() > MAX_MESSAGE || fds.len() > MAX_DESCRIPTORS {
            return Err(ChannelError::Malformed(format!(
                "{} bytes, {} descriptors",
                bytes.len(),
                fds.len()
            )));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            let fits = control.push(SendAncillaryMessage::ScmRights(fds));
            debug_assert!(fits, "the buffer is sized for MAX_DESCRIPTORS");
        }
        rustix::io::retry_on_intr(|| sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags))?;
        Ok(())
    }

    /// Receives one message with its descriptors, waiting for it.
    pub fn recv<M: DeserializeOwned>(&self) -> Result<(M, Vec<OwnedFd>), ChannelError> {
        self.recv_flags(RecvFlags::CMSG_CLOEXEC)
    }

    /// Receives one message, or returns [`ChannelError::WouldBlock`].
    pub fn try_recv<M: DeserializeOwned>(&self) -> Result<(M, Vec<OwnedFd>), ChannelError> {
        self.recv_flags(RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)
    }

    fn recv_flags<M: DeserializeOwned>(&self, flags: RecvFlags) -> Result<(M, Vec<OwnedFd>), ChannelError> {
        // Taken and put back, so that a thread makes it once; decoding makes its own copies of what it keeps.
        let mut bytes = RECEIVED.take();
        bytes.resize(MAX_MESSAGE, 0);
        let result = self.recv_into(&mut bytes, flags);
        RECEIVED.set(bytes);
        result
    }

    fn recv_into<M: DeserializeOwned>(
        &self,
        bytes: &mut [u8],
        flags: RecvFlags,
    ) -> Result<(M, Vec<OwnedFd>), ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(&self.socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)
        })?;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Err(ChannelError::Closed);
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(ChannelError::Malformed("longer than the largest message".into()));
        }
        let message = postcard::from_bytes(&bytes[..received.bytes])
            .map_err(|error| ChannelError::Malformed(error.to_string()))?;
        Ok((message, fds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_plane::{Request, ToDataPlane};

    #[test]
    fn carries_messages_and_descriptors_in_order() {
        let (a, b) = Channel::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let first = ToDataPlane {
            serial: 1,
            request: Request::PortList,
        };
        let second = ToDataPlane {
            serial: 2,
            request: Request::FlowFlush {
                switch: flow::SwitchId(7),
            },
        };
        a.send(&first, &[file.as_fd()]).unwrap();
        a.send(&second, &[]).unwrap();
        let (message, fds): (ToDataPlane, _) = b.recv().unwrap();
        assert_eq!((message, fds.len()), (first, 1));
        let (message, fds): (ToDataPlane, _) = b.recv().unwrap();
        assert_eq!((message, fds.len()), (second, 0));
        assert!(matches!(
            b.try_recv::<ToDataPlane>(),
            Err(ChannelError::WouldBlock)
        ));
        drop(a);
        assert!(matches!(b.recv::<ToDataPlane>(), Err(ChannelError::Closed)));
    }

    #[test]
    fn counters_survive_the_way() {
        let (a, b) = Channel::pair().unwrap();
        let mut counters = flow::PortCounters {
            received: 7,
            ..flow::PortCounters::default()
        };
        for count in 0..3 {
            a.send(&counters, &[]).unwrap();
            assert_eq!(b.recv::<flow::PortCounters>().unwrap().0, counters);
            counters
                .dropped
                .add(flow::DropReason::ALL[count * 5], u64::MAX / 2);
        }
    }

    #[test]
    fn messages_share_buffers() {
        let (a, b) = Channel::pair().unwrap();
        let message = ToDataPlane {
            serial: 1,
            request: Request::Work,
        };
        let turn = || {
            a.send(&message, &[]).unwrap();
            assert_eq!(b.recv::<ToDataPlane>().unwrap().0, message);
        };
        turn();
        let used = allocation_counter::measure(|| {
            turn();
            assert!(matches!(
                b.try_recv::<ToDataPlane>(),
                Err(ChannelError::WouldBlock)
            ));
        });
        assert_eq!(used.bytes_total, 0, "{used:?}");
    }

    #[test]
    fn garbage_and_oversize_are_errors() {
        let (a, b) = Channel::pair().unwrap();
        rustix::net::send(&a, &[0xff; 40], SendFlags::empty()).unwrap();
        assert!(matches!(b.recv::<ToDataPlane>(), Err(ChannelError::Malformed(_))));
        rustix::net::send(&a, &vec![0; MAX_MESSAGE + 1], SendFlags::empty()).unwrap();
        assert!(matches!(b.recv::<ToDataPlane>(), Err(ChannelError::Malformed(_))));
    }
}
