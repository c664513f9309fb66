//! Connections of clients: each makes one request, within bounds of number, bytes and time.
//!
//! | a client | bound |
//! |---|---|
//! | connects | [`MAX_CLIENTS`] at a time; a newcomer takes the place of the oldest |
//! | sends | a head of [`MAX_HEAD`](crate::http::MAX_HEAD) bytes |
//! | is slow to send or to read | hung up on [`PATIENCE`] after it connected |
//! | goes on sending | is not read any more |

use crate::http::{self, Format, MAX_HEAD, Wanted};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Most connections at a time.
const MAX_CLIENTS: usize = 32;

/// How long a client may take in all.
const PATIENCE: Duration = Duration::from_secs(10);

/// Identifies a connection.
pub type Token = u64;

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    until: Instant,
    state: State,
}

/// What a client is doing.
#[derive(Debug)]
enum State {
    /// Sends its request.
    Sending(Vec<u8>),
    /// Waits for the metrics.
    Waiting { format: Format, head_only: bool },
    /// Reads the response; the bytes from here on are left.
    Reading(Rc<[u8]>, usize),
}

/// All connections of clients.
#[derive(Debug)]
pub struct Clients {
    listener: OwnedFd,
    clients: BTreeMap<Token, Client>,
    next: Token,
}

impl Clients {
    /// Takes a socket that listens and does not block.
    pub fn new(listener: OwnedFd) -> Clients {
        Clients {
            listener,
            clients: BTreeMap::new(),
            next: 0,
        }
    }

    /// The socket that listens.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Connections and what to poll them for.
    pub fn interests(&self) -> impl Iterator<Item = (Token, BorrowedFd<'_>, PollFlags)> {
        self.clients.iter().map(|(token, client)| {
            let flags = match client.state {
                State::Sending(_) => PollFlags::IN,
                State::Waiting { .. } => PollFlags::empty(),
                State::Reading(..) => PollFlags::OUT,
            };
            (*token, client.socket.as_fd(), flags)
        })
    }

    /// When the first client is hung up on.
    pub fn due(&self) -> Option<Instant> {
        self.clients.values().map(|client| client.until).min()
    }

    /// Hangs up on clients that have taken too long.
    pub fn expire(&mut self, now: Instant) {
        self.clients.retain(|_, client| client.until > now);
    }

    /// Accepts connections that wait.
    pub fn accept(&mut self, now: Instant) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(socket) = accept_with(&self.listener, flags) {
            if self.clients.len() >= MAX_CLIENTS {
                self.clients.pop_first();
            }
            self.next += 1;
            let (until, state) = (now + PATIENCE, State::Sending(Vec::new()));
            self.clients.insert(self.next, Client { socket, until, state });
        }
    }

    /// Reads or writes as poll allows.
    pub fn on_ready(&mut self, token: Token, flags: PollFlags) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        let goes_on = match client.state {
            State::Sending(_) if flags.contains(PollFlags::IN) => client.read(),
            State::Reading(..) if flags.contains(PollFlags::OUT) => client.write(),
            // Hung up.
            _ => false,
        };
        if !goes_on {
            self.clients.remove(&token);
        }
    }

    /// Whether clients wait for the metrics.
    pub fn are_waiting(&self) -> bool {
        self.clients
            .values()
            .any(|client| matches!(client.state, State::Waiting { .. }))
    }

    /// Responds to all who wait, with what `body` makes of a format, or a refusal. Equal responses are made
    /// once.
    pub fn respond(&mut self, body: impl Fn(Format) -> Result<String, String>) {
        let mut made: BTreeMap<(Format, bool), Rc<[u8]>> = BTreeMap::new();
        self.clients.retain(|_, client| {
            let State::Waiting { format, head_only } = client.state else {
                return true;
            };
            let response = made
                .entry((format, head_only))
                .or_insert_with(|| match body(format) {
                    Ok(text) => http::metrics(&text, format, head_only).into(),
                    Err(reason) => http::refusal(http::Status::Unavailable, &reason).into(),
                });
            client.state = State::Reading(Rc::clone(response), 0);
            client.write()
        });
    }
}

impl Client {
    /// Reads once; false when the connection is over.
    fn read(&mut self) -> bool {
        let State::Sending(head) = &mut self.state else {
            return true;
        };
        let mut bytes = [0u8; MAX_HEAD];
        let room = MAX_HEAD - head.len();
        let received = match recv(&self.socket, &mut bytes[..room], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return false,
            Ok((received, _)) => received,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        };
        head.extend_from_slice(&bytes[..received]);
        match http::read(head) {
            Wanted::More => true,
            Wanted::Metrics { format, head_only } => {
                self.state = State::Waiting { format, head_only };
                true
            }
            Wanted::Refused(status) => {
                let response = http::refusal(status, "only GET and HEAD of /metrics are answered");
                self.state = State::Reading(response.into(), 0);
                self.write()
            }
        }
    }

    /// Writes as much as there is room for; false when all is written, or the connection is over.
    fn write(&mut self) -> bool {
        let State::Reading(response, written) = &mut self.state else {
            return true;
        };
        while *written < response.len() {
            match send(
                &self.socket,
                &response[*written..],
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(sent) => *written += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        // The client may have sent more than was read, on which the kernel would cut off the response.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
        false
    }
}
