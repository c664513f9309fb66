//! One connection: a netlink socket of ovs-vswitchd.
//!
//! States: new -> open (after `OPEN`) -> gone. An open connection is *busy* from a request until the last
//! datagram of its answer is in the Unix socket; meanwhile no further request is read from it. So a client
//! that does not read its answers stops its own requests, and nothing else. What waits in the process is
//! bounded in bytes; beyond that, datagrams are dropped, and the client is told `ENOBUFS` as by the kernel.

use ovs_frame::{DATA, Header, MARK, MAX_UPCALLS, OVERFLOW, UPCALLS};
use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{MMsgHdr, RecvFlags, SendAncillaryBuffer, SendFlags};
use std::collections::{BTreeSet, VecDeque};
use std::io::IoSlice;

/// Datagrams sent by one call.
const TOGETHER: usize = 32;
/// Bytes gathered before they are sent.
const TOGETHER_BYTES: usize = 32 * 1024;
/// Bytes that a datagram of upcalls has room for at first.
const FIRST_UPCALLS: usize = 2048;
/// Bytes of upcalls that are sent before the earlier ones were read: in the socket they wait for each other,
/// whichever ports they are of. ovs-vswitchd has the ones before in hand meanwhile.
const UPCALL_ROOM: usize = 8 * 1024;
/// Bytes that may be unread then: of a [`MARK`], which stays until the upcalls before it were handed out.
const UNREAD: u32 = 2048;
const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// Whether a datagram was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The message will reach the client if the client reads.
    Taken,
    /// There was no room; the client will be told so.
    Full,
    /// There is no such socket.
    NoSocket,
}

/// Why a connection ends.
#[derive(Debug)]
pub(crate) struct Gone;

/// A message from the client.
pub(crate) enum Received {
    /// One datagram of this many bytes.
    Datagram(usize),
    /// Nothing for now.
    Nothing,
}

pub(crate) struct Connection {
    socket: OwnedFd,
    /// Netlink port id; `None` until opened.
    pub port_id: Option<u32>,
    pub protocol: u32,
    pub groups: BTreeSet<u32>,
    /// The client waits for the rest of an answer.
    pub is_asking: bool,
    /// The rest is to be asked for once there is room.
    pub wants_more: bool,
    /// The client has sent the next request, or more, before this one was answered.
    pub is_early: bool,
    /// The event that the server waits for at the moment.
    pub watched: EventFlags,
    waiting: VecDeque<(Header, Vec<u8>)>,
    waiting_bytes: usize,
    /// Upcalls in the datagram at the end of those that wait, if more may join it.
    joined: usize,
    limit: usize,
    /// Requests answered, as told to the client.
    answered: u32,
    /// Something was dropped since the client was last told.
    overflow: bool,
    /// Bytes of upcalls that may be queued before it is looked whether earlier ones were read.
    room: usize,
}

impl Connection {
    pub fn new(socket: OwnedFd, limit: usize, watched: EventFlags) -> Self {
        Self {
            socket,
            port_id: None,
            protocol: 0,
            groups: BTreeSet::new(),
            is_asking: false,
            wants_more: false,
            is_early: false,
            watched,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            joined: 0,
            limit,
            answered: 0,
            overflow: false,
            room: 0,
        }
    }

    /// Looks whether earlier upcalls were read, and so how many more may be queued.
    pub fn look_for_room(&mut self) {
        let is_read = !self.has_waiting() && process::unread(&self.socket).is_ok_and(|bytes| bytes < UNREAD);
        self.room = if is_read { UPCALL_ROOM } else { 0 };
    }

    /// Whether another upcall may be queued.
    pub fn has_room(&self) -> bool {
        self.room > 0
    }

    /// Whether more should not be queued before what waits was sent: it would take the room of what the
    /// socket has no room for.
    pub fn is_to_be_sent(&self) -> bool {
        self.waiting_bytes >= TOGETHER_BYTES.min(self.limit / 2)
    }

    /// Whether requests must wait.
    pub fn is_busy(&self) -> bool {
        self.is_asking || self.has_waiting()
    }

    /// Whether something waits for room in the socket.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || self.overflow
    }

    pub fn receive(&self, buffer: &mut [u8]) -> Result<Received, Gone> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        match rustix::net::recv(&self.socket, &mut *buffer, flags) {
            // The end, or a datagram that says nothing or more than any client has to say.
            Ok((_, length)) if length == 0 || length > buffer.len() => Err(Gone),
            Ok((_, length)) => Ok(Received::Datagram(length)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Received::Nothing),
            Err(_) => Err(Gone),
        }
    }

    /// Queues a frame of the protocol itself.
    pub fn control(&mut self, kind: u32, number: u32, contents: Vec<u8>) {
        self.close_upcalls();
        self.push(kind, number, contents);
    }

    fn push(&mut self, kind: u32, number: u32, contents: Vec<u8>) {
        self.waiting_bytes += contents.len();
        self.waiting.push_back((Header { kind, number }, contents));
    }

    /// Finds room for so many more bytes that wait. If there is none, the client will be told of a loss.
    fn admit(&mut self, bytes: usize) -> bool {
        let fits = self.waiting_bytes + bytes <= self.limit;
        self.overflow |= !fits;
        fits
    }

    /// Queues a datagram that is no answer, or not the end of one.
    pub fn data(&mut self, datagram: Vec<u8>) -> Delivery {
        if !self.admit(datagram.len()) {
            return Delivery::Full;
        }
        self.control(DATA, self.answered, datagram);
        Delivery::Taken
    }

    /// Queues an upcall, in one datagram with those that wait before it.
    pub fn upcall(&mut self, message: &[u8]) -> Delivery {
        if !self.admit(message.len()) {
            return Delivery::Full;
        }
        self.room = self.room.saturating_sub(message.len());
        let length = message.len().next_multiple_of(4);
        let last = self.waiting.back_mut().filter(|_| self.joined > 0);
        match last.filter(|(_, others)| others.len() + length <= MAX_UPCALLS) {
            Some((_, others)) => {
                let before = others.len();
                others.extend_from_slice(message);
                others.resize(before + length, 0);
                self.waiting_bytes += length;
                self.joined += 1;
            }
            None => {
                let mut first = Vec::with_capacity(length.max(FIRST_UPCALLS));
                first.extend_from_slice(message);
                first.resize(length, 0);
                self.control(UPCALLS, self.answered, first);
                self.joined = 1;
            }
        }
        Delivery::Taken
    }

    /// No more upcalls join those at the end.
    fn close_upcalls(&mut self) {
        match (std::mem::take(&mut self.joined), self.waiting.back_mut()) {
            (1, Some((header, _))) => header.kind = DATA,
            (2.., _) => self.push(MARK, self.answered, Vec::new()),
            _ => {}
        }
    }

    /// Queues the answers to a request and says, with the last one, that there are no more.
    pub fn answer(&mut self, answers: Vec<Vec<u8>>, complete: bool) {
        let count = answers.len();
        for answer in answers {
            self.data(answer);
        }
        if !complete {
            return;
        }
        (self.is_asking, self.is_early) = (false, false);
        self.answered = self.answered.wrapping_add(1);
        // All of them were queued just now, unless the last did not fit: then the notice says how many were
        // answered.
        match self.waiting.back_mut().filter(|_| count > 0 && !self.overflow) {
            Some((header, _)) => header.number = self.answered,
            None if self.overflow => {}
            None => self.control(MARK, self.answered, Vec::new()),
        }
    }

    /// Sends as much as the socket has room for.
    pub fn flush(&mut self) -> Result<(), Gone> {
        self.close_upcalls();
        while !self.waiting.is_empty() {
            let sent = self.send_waiting()?;
            for (_, contents) in self.waiting.drain(..sent) {
                self.waiting_bytes -= contents.len();
            }
            if sent == 0 {
                return Ok(());
            }
        }
        let notice = Header {
            kind: OVERFLOW,
            number: self.answered,
        };
        if self.overflow {
            self.overflow = self.send(notice, &[])? == 0;
        }
        Ok(())
    }

    /// Sends some of what waits in one call; returns how many datagrams there was room for.
    fn send_waiting(&self) -> Result<usize, Gone> {
        if let [(header, contents)] = self.waiting.as_slices().0
            && self.waiting.len() == 1
        {
            return self.send(*header, contents);
        }
        let some = || self.waiting.iter().take(TOGETHER);
        let headers: Vec<_> = some().map(|(header, _)| header.to_bytes()).collect();
        let parts = headers.iter().zip(some());
        let parts: Vec<_> = parts
            .map(|(header, (_, contents))| [IoSlice::new(header), IoSlice::new(contents)])
            .collect();
        let mut nothing: [_; TOGETHER] = std::array::from_fn(|_| SendAncillaryBuffer::default());
        let messages = parts.iter().zip(&mut nothing);
        let mut messages: Vec<_> = messages
            .map(|(parts, nothing)| MMsgHdr::new(parts, nothing))
            .collect();
        sent(rustix::net::sendmmsg(&self.socket, &mut messages, FLAGS))
    }

    /// 0: there is no room for now.
    fn send(&self, header: Header, contents: &[u8]) -> Result<usize, Gone> {
        let header = header.to_bytes();
        let parts = [IoSlice::new(&header), IoSlice::new(contents)];
        let nothing = &mut SendAncillaryBuffer::default();
        sent(rustix::net::sendmsg(&self.socket, &parts, nothing, FLAGS).map(|_| 1))
    }
}

fn sent(result: Result<usize, Errno>) -> Result<usize, Gone> {
    match result {
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => Ok(0),
        result => result.map_err(|_| Gone),
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
