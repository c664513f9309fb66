//! The management sockets: lines in, lines out; no user waits for another.
//!
//! A connection has at most one request under way, so at most one answer is buffered for it; its input is
//! bounded by [`MAX_REQUEST`]. With [`MAX_CONNECTIONS`] of one kind open, a newcomer takes the place of the
//! one that has been quiet for longest.
//!
//! | socket | users | requests |
//! |---|---|---|
//! | `control.sock` | the owner of the process | all |
//! | `view.sock` | as `[access]` says | queries ([`Request::is_query`]), without descriptors |
//! | none: the supervisor makes the connection | the process `view` | the same |
//! | none | process `p4runtime`, joined by the supervisor | those about programs of `[p4runtime]` |

use crate::refusal::Refusal;
use management::{MAX_REQUEST, Request, Response};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, accept_with, recvmsg, send,
};
use socket_path::Access;
use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// What users may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Everything.
    All,
    /// Make queries.
    View,
    /// Make queries, on the one connection of the process `view`.
    ViewProcess,
    /// Drive the devices of P4Runtime.
    P4Runtime,
}

/// Most connections of users with the same rights at a time.
const MAX_CONNECTIONS: usize = 64;

/// Milliseconds within which a request is answered, if need be by an error that there is no answer: less than
/// the time for which a user waits who has not said otherwise.
const TIMEOUT_MS: u64 = 4_500;

/// Most seconds that a user may set instead.
const MAX_TIMEOUT: u32 = 86_400;

/// Identifies a connection.
pub type Token = u64;

/// A request, or why a line is no request, with the descriptors that came along.
pub struct Incoming {
    pub token: Token,
    pub rights: Rights,
    pub request: Result<Request, Refusal>,
    pub fds: Vec<OwnedFd>,
}

#[derive(Debug)]
struct Connection {
    rights: Rights,
    socket: OwnedFd,
    input: Vec<u8>,
    /// Bytes of the input that were requests already.
    taken: usize,
    /// Bytes of the input among which there is no end of a line.
    searched: usize,
    fds: Vec<OwnedFd>,
    output: Vec<u8>,
    /// Set while a request is under way: when to give up on it.
    deadline_ms: Option<u64>,
    active_ms: u64,
    timeout_ms: u64,
}

/// All connections of users.
#[derive(Debug)]
pub struct Users {
    listener: OwnedFd,
    /// The socket for queries, unless it cannot be opened.
    view: Option<OwnedFd>,
    connections: BTreeMap<Token, Connection>,
    next: Token,
    /// The connection whose request was taken last.
    served: Token,
}

impl Users {
    /// Listens; only the owner of the process may connect.
    ///
    /// # Errors
    /// See [`socket_path::listen_at`].
    pub fn listen(path: &Path) -> io::Result<Users> {
        let listener =
            socket_path::listen_at(&path.to_owned().into(), Access::OWNER).map_err(io::Error::other)?;
        Ok(Users {
            listener,
            view: None,
            connections: BTreeMap::new(),
            next: 0,
            served: 0,
        })
    }

    /// Listens for queries, in place of the socket before and its connections.
    pub fn view_at(&mut self, listener: Option<OwnedFd>) {
        self.connections
            .retain(|_, connection| connection.rights != Rights::View);
        self.view = listener;
    }

    /// The sockets at which users connect, and what these may do then.
    pub fn listeners(&self) -> impl Iterator<Item = (Rights, BorrowedFd<'_>)> {
        let view = self.view.iter().map(|view| (Rights::View, view.as_fd()));
        [(Rights::All, self.listener.as_fd())].into_iter().chain(view)
    }

    /// Connections and what to poll them for. One with a request under way is not read.
    pub fn interests(&self) -> impl Iterator<Item = (Token, BorrowedFd<'_>, PollFlags)> {
        self.connections.iter().map(|(token, connection)| {
            let mut flags = PollFlags::empty();
            if !connection.output.is_empty() {
                flags |= PollFlags::OUT;
            } else if connection.deadline_ms.is_none() {
                flags |= PollFlags::IN;
            }
            (*token, connection.socket.as_fd(), flags)
        })
    }

    /// Accepts the connections that wait at a socket.
    pub fn accept(&mut self, rights: Rights, now_ms: u64) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            let accepted = match (rights, &self.view) {
                (Rights::All, _) => accept_with(&self.listener, flags),
                (Rights::View, Some(view)) => accept_with(view, flags),
                (Rights::View, None) | (Rights::ViewProcess | Rights::P4Runtime, _) => return,
            };
            let Ok(socket) = accepted else { return };
            self.make_room(rights);
            self.add(socket, rights, now_ms);
        }
    }

    /// Takes the connection of the process `view`, in place of the one before.
    pub fn attach_view_process(&mut self, socket: OwnedFd, now_ms: u64) {
        self.connections
            .retain(|_, connection| connection.rights != Rights::ViewProcess);
        self.add(socket, Rights::ViewProcess, now_ms);
    }

    /// Takes a connection of the process for P4Runtime, in place of the one before.
    pub fn attach_p4runtime(&mut self, socket: OwnedFd, now_ms: u64) {
        self.connections
            .retain(|_, connection| connection.rights != Rights::P4Runtime);
        self.add(socket, Rights::P4Runtime, now_ms);
    }

    /// Ends the connection that has been quiet for longest, if there are as many as allowed.
    fn make_room(&mut self, rights: Rights) {
        let of_kind = self.connections.iter();
        let of_kind = of_kind.filter(|(_, connection)| connection.rights == rights);
        if of_kind.clone().count() < MAX_CONNECTIONS {
            return;
        }
        let quiet = of_kind.min_by_key(|(_, connection)| connection.active_ms);
        if let Some(token) = quiet.map(|(token, _)| *token) {
            self.connections.remove(&token);
        }
    }

    fn add(&mut self, socket: OwnedFd, rights: Rights, now_ms: u64) {
        let (input, fds, output) = Default::default();
        self.next += 1;
        self.connections.insert(
            self.next,
            Connection {
                rights,
                socket,
                input,
                taken: 0,
                searched: 0,
                fds,
                output,
                deadline_ms: None,
                active_ms: now_ms,
                timeout_ms: TIMEOUT_MS,
            },
        );
    }

    /// Reads or writes as poll allows, and returns the request that this completes, if any.
    pub fn ready(&mut self, token: Token, flags: PollFlags, now_ms: u64) -> Option<Incoming> {
        let connection = self.connections.get_mut(&token)?;
        connection.active_ms = now_ms;
        let alive = if flags.contains(PollFlags::OUT) {
            connection.write()
        } else if flags.contains(PollFlags::IN) {
            connection.read()
        } else {
            // Hung up; the answer would not be read.
            false
        };
        if !alive {
            self.connections.remove(&token);
            return None;
        }
        self.next_request(token, now_ms)
    }

    /// The next request that a connection has already sent, unless one is under way.
    pub fn next_request(&mut self, token: Token, now_ms: u64) -> Option<Incoming> {
        let connection = self.connections.get_mut(&token)?;
        if connection.deadline_ms.is_some() || !connection.output.is_empty() {
            return None;
        }
        let Some(end) = connection.line_end() else {
            if connection.input.len() - connection.taken >= MAX_REQUEST {
                self.connections.remove(&token);
            }
            return None;
        };
        self.served = token;
        connection.deadline_ms = Some(now_ms + connection.timeout_ms);
        let request =
            Request::from_json(&connection.input[connection.taken..end]).map_err(Refusal::Malformed);
        connection.taken = end + 1;
        Some(Incoming {
            token,
            rights: connection.rights,
            request,
            fds: std::mem::take(&mut connection.fds),
        })
    }

    /// Later requests of this connection may take so long, less a moment for the error that they took longer.
    pub fn set_timeout(&mut self, token: Token, seconds: u32) {
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.timeout_ms = u64::from(seconds.clamp(1, MAX_TIMEOUT)) * 1_000 - 500;
        }
    }

    /// Answers a request; later requests of the connection are served by polling again.
    pub fn answer(&mut self, token: Token, response: &Response) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        connection.deadline_ms = None;
        match response.to_json() {
            Ok(line) => connection.output.extend(line),
            Err(error) => log::error!("answer not sent: {error}"),
        }
        connection.output.push(b'\n');
        if !connection.write() {
            self.connections.remove(&token);
        }
    }

    /// A connection that has sent a further request already and can be served; one after the other.
    pub fn pipelined(&mut self) -> Option<Token> {
        let served = self.served;
        let mut ready = self.connections.iter_mut().filter_map(|(token, connection)| {
            let idle = connection.deadline_ms.is_none() && connection.output.is_empty();
            (idle && connection.line_end().is_some()).then_some(*token)
        });
        let first = ready.next()?;
        match first > served {
            true => Some(first),
            false => Some(ready.find(|token| *token > served).unwrap_or(first)),
        }
    }

    /// When the first request under way is to be given up.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.connections
            .values()
            .filter_map(|connection| connection.deadline_ms)
            .min()
    }

    /// Connections whose request is to be given up.
    pub fn overdue(&self, now_ms: u64) -> Vec<Token> {
        let late = |connection: &Connection| {
            connection
                .deadline_ms
                .is_some_and(|deadline_ms| deadline_ms <= now_ms)
        };
        self.connections
            .iter()
            .filter(|(_, connection)| late(connection))
            .map(|(token, _)| *token)
            .collect()
    }
}

impl Connection {
    /// Where the next request ends. Each byte is looked at once, however often this is asked.
    fn line_end(&mut self) -> Option<usize> {
        self.searched = self.searched.max(self.taken);
        let found = self.input[self.searched..].iter().position(|byte| *byte == b'\n');
        self.searched += found.unwrap_or(self.input.len() - self.searched);
        found.map(|_| self.searched)
    }

    /// Reads once; false when the connection is over.
    fn read(&mut self) -> bool {
        let mut bytes = [0u8; 16384];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = match recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            flags,
        ) {
            Ok(received) => received.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        };
        for message in control.drain() {
            if let (RecvAncillaryMessage::ScmRights(fds), Rights::All | Rights::P4Runtime) =
                (message, self.rights)
            {
                // The latest descriptors belong to the latest line; a sender of thousands keeps only those of
                // one message here.
                self.fds = fds.collect();
            }
        }
        self.input.drain(..self.taken);
        self.searched -= self.taken;
        self.taken = 0;
        self.input.extend_from_slice(&bytes[..received]);
        received > 0
    }

    /// Writes as much as there is room for; false when the connection is over.
    fn write(&mut self) -> bool {
        while !self.output.is_empty() {
            match send(
                &self.socket,
                &self.output,
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }
}
