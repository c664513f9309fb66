//! Connections of clients: each makes one request, within bounds of number, bytes and time.
//!
//! | a client | bound |
//! |---|---|
//! | connects | [`MAX_CLIENTS`] at a time; a newcomer takes the place of the oldest |
//! | sends | a head of [`MAX_HEAD`](crate::http::MAX_HEAD) bytes |
//! | is slow to send or to read | hung up on [`PATIENCE`] after it connected |
//! | goes on sending | is not read any more |

use crate::hosts::Hosts;
use crate::http::{self, MAX_HEAD, Resource, Wanted};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
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
    /// Waits for a resource.
    Waiting { resource: Resource, head_only: bool },
    /// Reads the response; the bytes from here on are left.
    Reading(Rc<[u8]>, usize),
}

/// All connections of clients.
#[derive(Debug)]
pub struct Clients {
    listener: OwnedFd,
    hosts: Hosts,
    clients: BTreeMap<Token, Client>,
    next: Token,
}

impl Clients {
    /// Takes a socket that listens and does not block, whose clients call it by one of these names.
    pub fn new(listener: OwnedFd, hosts: Hosts) -> Clients {
        Clients {
            listener,
            hosts,
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
            State::Sending(_) if flags.contains(PollFlags::IN) => client.read(self.hosts),
            State::Reading(..) if flags.contains(PollFlags::OUT) => client.write(),
            // Hung up.
            _ => false,
        };
        if !goes_on {
            self.clients.remove(&token);
        }
    }

    /// What clients wait for, the longest waiting one's first.
    pub fn wanted(&self) -> impl Iterator<Item = Resource> {
        self.clients.values().filter_map(|client| match client.state {
            State::Waiting { resource, .. } => Some(resource),
            State::Sending(_) | State::Reading(..) => None,
        })
    }

    /// Responds to all who wait for a resource of which `body` makes one, or says why there is none. Equal
    /// responses are made once.
    pub fn respond(&mut self, body: impl Fn(Resource) -> Option<Result<String, String>>) {
        let mut made: BTreeMap<(Resource, bool), Rc<[u8]>> = BTreeMap::new();
        self.clients.retain(|_, client| {
            let State::Waiting { resource, head_only } = client.state else {
                return true;
            };
            let response = match made.entry((resource, head_only)) {
                Entry::Occupied(response) => response.into_mut(),
                Entry::Vacant(place) => match body(resource) {
                    None => return true,
                    Some(Ok(text)) => place.insert(http::found(&text, resource, head_only).into()),
                    Some(Err(reason)) => {
                        place.insert(http::refusal(http::Status::Unavailable, &reason).into())
                    }
                },
            };
            client.state = State::Reading(Rc::clone(response), 0);
            client.write()
        });
    }
}

impl Client {
    /// Reads once; false when the connection is over.
    fn read(&mut self, hosts: Hosts) -> bool {
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
        match http::read(head, hosts) {
            Wanted::More => true,
            Wanted::Resource { resource, head_only } => {
                self.state = State::Waiting { resource, head_only };
                true
            }
            Wanted::Refused(status) => {
                let response = http::refusal(status, status.reason());
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
