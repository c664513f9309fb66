//! One end of a message channel.
//!
//! A datagram holds one message, or several that were ready at the same time ([`Channel::try_send_all`]): a
//! system call and a wake-up cost more than most messages. They are received one by one all the same.
//! Messages of a datagram that were not taken yet are kept here, where `poll` does not see them. So a caller
//! that does not receive until there is nothing more has to ask [`Channel::has_received`] before it waits.

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
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Largest message in bytes: the largest frame (65,553 bytes) with room for everything around it.
pub const MAX_MESSAGE: usize = 96 * 1024;
/// Messages in a datagram are no more than that.
const MAX_TOGETHER: usize = 64;
/// A datagram that is longer takes no further message.
const LONG: usize = 16 * 1024;

thread_local! {
    /// Receive buffer of this thread; empty before the first message.
    static RECEIVED: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// Send buffer of this thread.
    static SENT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Most descriptors on one message: those of a device with as many queues as are served, and of what hides
/// it.
pub const MAX_DESCRIPTORS: usize = 4 + crate::forwarder::XdpFrames::MAX_QUEUES as usize;

/// Bytes that a value takes in a message.
pub fn encoded_len<T: Serialize>(part: &T) -> usize {
    // It fails only for values that cannot be sent either.
    postcard::experimental::serialized_size(part).unwrap_or(usize::MAX)
}

/// Takes the send buffer of this thread.
fn empty_buffer() -> Vec<u8> {
    let mut bytes = SENT.take();
    bytes.clear();
    bytes
}

fn append<M: Serialize>(message: &M, bytes: Vec<u8>) -> Result<Vec<u8>, ChannelError> {
    postcard::to_extend(message, bytes).map_err(|error| ChannelError::Malformed(error.to_string()))
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
    unread: Mutex<Unread>,
}

/// Messages of the last datagram that were not taken yet.
#[derive(Debug, Default)]
struct Unread {
    bytes: Vec<u8>,
    /// Where the next one begins.
    at: usize,
    /// The number of messages that may still follow.
    allowed: usize,
}

impl Unread {
    fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.at = 0;
    }

    /// Keeps the bytes that follow the first message of a datagram.
    fn put(&mut self, bytes: &[u8]) {
        self.clear();
        self.bytes.extend_from_slice(bytes);
        self.allowed = MAX_TOGETHER - 1;
    }

    /// The next message. After a malformed message the others of its datagram are lost.
    fn take<M: DeserializeOwned>(&mut self) -> Option<Result<M, ChannelError>> {
        if self.is_empty() {
            return None;
        }
        let decoded = match self.allowed.checked_sub(1) {
            Some(left) => {
                self.allowed = left;
                decode(&self.bytes[self.at..])
            }
            None => Err(ChannelError::Malformed("too many messages at a time".into())),
        };
        let message = decoded.map(|(message, rest)| {
            self.at = self.bytes.len() - rest.len();
            message
        });
        if message.is_err() || self.is_empty() {
            self.clear();
        }
        Some(message)
    }
}

/// The first message, and the bytes that follow it.
fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<(M, &[u8]), ChannelError> {
    postcard::take_from_bytes(bytes).map_err(|error| ChannelError::Malformed(error.to_string()))
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Self {
        Channel {
            socket,
            unread: Mutex::default(),
        }
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
        Ok((a.into(), b.into()))
    }

    /// Sends, waiting for room.
    pub fn send<M: Serialize>(&self, message: &M, fds: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        self.send_flags(message, fds, SendFlags::NOSIGNAL)
    }

    /// Sends, or returns [`ChannelError::WouldBlock`].
    pub fn try_send<M: Serialize>(&self, message: &M, fds: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        self.send_flags(message, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    /// Sends the first of these messages and those after it that fit into the same datagram; returns how many
    /// they are, or [`ChannelError::WouldBlock`]. None of them is sent if there is an error.
    pub fn try_send_all<'a, M: Serialize + 'a>(
        &self,
        messages: impl IntoIterator<Item = &'a M>,
    ) -> Result<usize, ChannelError> {
        let (mut bytes, mut count) = (empty_buffer(), 0);
        for message in messages.into_iter().take(MAX_TOGETHER) {
            let before = bytes.len();
            bytes = append(message, bytes)?;
            if count > 0 && bytes.len() > MAX_MESSAGE {
                bytes.truncate(before);
                break;
            }
            count += 1;
            if bytes.len() > LONG {
                break;
            }
        }
        if count > 0 {
            self.send_buffer(bytes, &[], SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        }
        Ok(count)
    }

    fn send_flags<M: Serialize>(
        &self,
        message: &M,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), ChannelError> {
        self.send_buffer(append(message, empty_buffer())?, fds, flags)
    }

    fn send_buffer(
        &self,
        bytes: Vec<u8>,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), ChannelError> {
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

    /// Whether the next message is here already, so that receiving it does not wait.
    pub fn has_received(&self) -> bool {
        !self.unread().is_empty()
    }

    fn unread(&self) -> MutexGuard<'_, Unread> {
        // What a thread that panicked has left is as good as before: no message is half taken.
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recv_flags<M: DeserializeOwned>(&self, flags: RecvFlags) -> Result<(M, Vec<OwnedFd>), ChannelError> {
        if let Some(message) = self.unread().take() {
            return message.map(|message| (message, Vec::new()));
        }
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
        let (message, rest) = decode(&bytes[..received.bytes])?;
        if !rest.is_empty() {
            self.unread().put(rest);
        }
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
    fn messages_that_are_sent_together_are_received_one_by_one() {
        let (a, b) = Channel::pair().unwrap();
        let numbers: Vec<u32> = (0..200).collect();
        let mut sent = 0;
        while sent < numbers.len() {
            let count = a.try_send_all(&numbers[sent..]).unwrap();
            assert!((1..=MAX_TOGETHER).contains(&count));
            sent += count;
        }
        a.send(&200u32, &[]).unwrap();
        for number in 0..=200 {
            assert_eq!(b.try_recv::<u32>().unwrap().0, number);
            let is_last = number % 64 == 63 || number >= 199;
            assert_eq!(b.has_received(), !is_last, "after {number}");
        }
        assert!(matches!(b.try_recv::<u32>(), Err(ChannelError::WouldBlock)));
        assert_eq!(a.try_send_all::<u32>([]).unwrap(), 0);
    }

    #[test]
    fn a_message_that_does_not_fit_goes_in_the_next_datagram() {
        let (a, b) = Channel::pair().unwrap();
        let messages = [vec![1u8; 10], vec![2; MAX_MESSAGE - 10], vec![3; MAX_MESSAGE]];
        assert_eq!(a.try_send_all(&messages).unwrap(), 1);
        assert_eq!(a.try_send_all(&messages[1..]).unwrap(), 1);
        assert!(matches!(
            a.try_send_all(&messages[2..]),
            Err(ChannelError::Malformed(_))
        ));
        for message in &messages[..2] {
            assert_eq!(&b.try_recv::<Vec<u8>>().unwrap().0, message);
        }
        assert!(matches!(b.try_recv::<u32>(), Err(ChannelError::WouldBlock)));
    }

    #[test]
    fn what_follows_a_message_may_be_anything() {
        let (a, b) = Channel::pair().unwrap();
        let send = |bytes: &[u8]| rustix::net::send(&a, bytes, SendFlags::empty()).unwrap();
        // After a malformed message the others of its datagram are lost; the next datagram is not.
        send(&[7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
        assert_eq!(b.try_recv::<u32>().unwrap().0, 7);
        assert!(matches!(b.try_recv::<u32>(), Err(ChannelError::Malformed(_))));
        // As many messages as no peer sends together.
        send(&[1; MAX_TOGETHER + 20]);
        send(&[2]);
        for _ in 0..MAX_TOGETHER {
            assert_eq!(b.try_recv::<u32>().unwrap().0, 1);
        }
        assert!(matches!(b.try_recv::<u32>(), Err(ChannelError::Malformed(_))));
        assert_eq!(b.try_recv::<u32>().unwrap().0, 2);
        // Messages that take no room: the end of none is reached.
        send(&[0; 8]);
        let nothings = std::iter::from_fn(|| b.try_recv::<()>().ok());
        assert_eq!(nothings.count(), MAX_TOGETHER);
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
