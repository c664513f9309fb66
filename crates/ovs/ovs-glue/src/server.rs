//! The socket on which the preloaded library calls, and its connections.
//!
//! One thread owns a server and calls [`Server::turn`] whenever [`Server`]'s descriptor is readable. No call
//! waits for a client. A client controls the switch, so the socket belongs to its owner alone (mode 0600),
//! and a peer must be root or run under the server's user.

use crate::connection::{Connection, Delivery, Gone, Received};
use crate::socket;
use ovs_frame::{Header, JOIN, LEAVE, MARK, OPEN, REFUSED, REQUEST, WELCOME};
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, sockopt};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A service. A caller is a connection; it has one request at a time.
pub trait Service {
    /// Whether a netlink protocol and a multicast group of it exist.
    fn has_group(&self, protocol: u32, group: u32) -> bool;

    /// Begins to carry out one netlink datagram. Its answers come from [`Service::next_answer`].
    fn request(&mut self, caller: Caller, protocol: u32, datagram: &[u8]);

    /// What the caller has been answered so far is on its way, and there is room for more.
    fn go_on(&mut self, caller: Caller);

    /// The caller does not wait for answers any more.
    fn forget(&mut self, caller: Caller);

    /// The next answer, or part of one.
    fn next_answer(&mut self) -> Option<(Caller, Answer)>;
}

/// Names a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller(pub u64);

impl Caller {
    /// No connection: of an answer only the notices are sent.
    pub const NOBODY: Caller = Caller(u64::MAX);
}

/// The answer to one netlink datagram, or a part of it.
#[derive(Default)]
pub struct Answer {
    /// Netlink datagrams for the socket that asked.
    pub datagrams: Vec<Vec<u8>>,
    /// More follow, after [`Service::go_on`].
    pub more: bool,
    /// Netlink datagrams for the members of a multicast group; the one that asked is told only if the flag
    /// says so.
    pub notices: Vec<Notice>,
}

/// A notification for the members of a multicast group.
pub struct Notice {
    /// The group.
    pub group: u32,
    /// Whether the socket that caused it is told as well, if it is a member.
    pub to_cause: bool,
    /// The netlink datagram.
    pub datagram: Vec<u8>,
}

/// The bounds of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections; further ones are refused with `ENFILE`. ovs-vswitchd has about 4 and one per thread.
    pub connections: usize,
    /// Bytes that wait in the process for one connection, beyond what its Unix socket holds.
    pub queue: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            queue: 1 << 20,
        }
    }
}

/// Why a server could not be started, or does not work.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The path cannot be listened on.
    #[error("{path}: {source}")]
    Listen {
        /// The path.
        path: PathBuf,
        /// Why not.
        source: Errno,
    },
    /// The kernel refused something that it refuses only if it lacks memory or descriptors.
    #[error("events of connections: {0}")]
    Events(#[from] Errno),
}

/// Counts of events of connections, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused: another user's.
    pub strangers: u64,
    /// Connections refused: too many.
    pub too_many: u64,
    /// Connections ended since the client did not keep to the protocol.
    pub violations: u64,
    /// Datagrams dropped since a client did not read.
    pub overflows: u64,
}

/// Longest datagram from a client: an EXECUTE with a packet and actions, both as long as an attribute can be.
const MAX_DATAGRAM: usize = 256 * 1024;
/// Wanted size of a connection's send buffer; the kernel may give less. It holds upcalls until they are read.
const SEND_BUFFER: usize = 1 << 20;
/// Answers sent on before requests have their turn.
const ANSWER_BURST: usize = 256;
const LISTENER: u64 = u64::MAX;
const OTHER: u64 = u64::MAX - 1;
const DATAPATH: u64 = u64::MAX - 2;

/// Readable descriptors, besides connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// The one that [`Server::wake_for_datapath`] named.
    pub datapath: bool,
    /// Something that [`Server::wake_for`] named.
    pub other: bool,
}

/// See the module.
pub struct Server {
    listener: OwnedFd,
    events: OwnedFd,
    path: PathBuf,
    instance: u64,
    connections: HashMap<u64, Connection>,
    /// Connections by netlink port id.
    sockets: HashMap<u32, u64>,
    next_key: u64,
    next_port_id: u32,
    limits: Limits,
    counters: ServerCounters,
    buffer: Vec<u8>,
    /// Connections to which something was delivered that was not sent yet.
    delivered: Vec<u64>,
}

impl Server {
    /// Listens. A socket that an earlier process left behind is replaced. `instance` is not 0, and differs
    /// from that of any earlier process on this path.
    ///
    /// # Errors
    ///
    /// The path cannot be bound.
    pub fn listen(path: &Path, instance: u64, limits: Limits) -> Result<Self, ServerError> {
        let listener =
            socket::listen(path, SocketType::SEQPACKET, Mode::RUSR | Mode::WUSR).map_err(|source| {
                ServerError::Listen {
                    path: path.to_owned(),
                    source,
                }
            })?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&events, &listener, data, epoll::EventFlags::IN)?;
        Ok(Self {
            listener,
            events,
            path: path.to_owned(),
            instance,
            connections: HashMap::new(),
            sockets: HashMap::new(),
            next_key: 0,
            next_port_id: 1,
            limits,
            counters: ServerCounters::default(),
            buffer: vec![0; MAX_DATAGRAM],
            delivered: Vec::new(),
        })
    }

    /// The counts so far.
    pub fn counters(&self) -> ServerCounters {
        self.counters
    }

    /// Waits for something to do, at most `timeout` (`None`: for ever), and does it; says what the caller has
    /// to do. Answers are sent by [`Server::send_answers`].
    ///
    /// # Errors
    ///
    /// The kernel refused to wait.
    pub fn turn(
        &mut self,
        service: &mut impl Service,
        timeout: Option<&Timespec>,
    ) -> Result<Ready, ServerError> {
        let mut ready = Ready::default();
        let mut found = Vec::with_capacity(64);
        match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut found), timeout) {
            Err(Errno::INTR) => return Ok(ready),
            result => result?,
        };
        for event in found {
            let key = event.data.u64();
            match key {
                LISTENER => self.accept(),
                DATAPATH => ready.datapath = true,
                OTHER => ready.other = true,
                _ => {}
            }
            if key >= DATAPATH {
                continue;
            }
            // While it waits for an answer nothing is read, so that this is how its end shows.
            let flags = event.flags;
            let hung_up = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            let is_asking = self
                .connections
                .get(&key)
                .is_some_and(|connection| connection.is_asking);
            if hung_up && is_asking || self.serve(key, service).is_err() {
                self.end(key);
                service.forget(Caller(key));
            }
        }
        Ok(ready)
    }

    /// Sends the service's answers. `true`: there may be more to send.
    pub fn send_answers(&mut self, service: &mut impl Service) -> bool {
        for _ in 0..ANSWER_BURST {
            let Some((Caller(key), answer)) = service.next_answer() else {
                return false;
            };
            self.answer(key, answer, service);
        }
        true
    }

    fn answer(&mut self, key: u64, answer: Answer, service: &mut impl Service) {
        let port_id = self.connections.get_mut(&key).and_then(|connection| {
            connection.answer(answer.datagrams, !answer.more);
            connection.port_id
        });
        for notice in answer.notices {
            self.tell(port_id, &notice);
        }
        self.flush(key);
        match self.connections.get_mut(&key) {
            None => service.forget(Caller(key)),
            Some(connection) if answer.more && !connection.has_waiting() => service.go_on(Caller(key)),
            Some(connection) => {
                connection.wants_more = answer.more;
                self.watch(key);
            }
        }
    }

    /// Makes [`Server::turn`] return when something else is readable as well, which the caller then reads.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn wake_for(&self, other: impl AsFd) -> Result<(), ServerError> {
        self.wake_as(OTHER, other)
    }

    /// As [`Server::wake_for`], for what the data plane says.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn wake_for_datapath(&self, datapath: impl AsFd) -> Result<(), ServerError> {
        self.wake_as(DATAPATH, datapath)
    }

    fn wake_as(&self, key: u64, other: impl AsFd) -> Result<(), ServerError> {
        let data = epoll::EventData::new_u64(key);
        Ok(epoll::add(&self.events, other, data, epoll::EventFlags::IN)?)
    }

    /// Queues an upcall for a socket, a netlink message, which [`Server::send_delivered`] sends.
    pub fn deliver(&mut self, port_id: u32, message: &[u8]) -> Delivery {
        let Some(&key) = self.sockets.get(&port_id) else {
            return Delivery::NoSocket;
        };
        let Some(connection) = self.connections.get_mut(&key) else {
            return Delivery::NoSocket;
        };
        let delivery = connection.upcall(message);
        self.counters.overflows += u64::from(delivery == Delivery::Full);
        if connection.is_to_be_sent() {
            self.flush(key);
        } else if !self.delivered.contains(&key) {
            self.delivered.push(key);
        }
        delivery
    }

    /// Sends the messages that were delivered, as far as there is room.
    pub fn send_delivered(&mut self) {
        let mut delivered = std::mem::take(&mut self.delivered);
        for key in delivered.drain(..) {
            self.flush(key);
        }
        self.delivered = delivered;
    }

    /// Whether there is such a socket.
    pub fn is_open(&self, port_id: u32) -> bool {
        self.sockets.contains_key(&port_id)
    }

    /// Looks how many upcalls each of these sockets has room for. Returns whether there is one of them at
    /// all.
    pub fn look_for_room(&mut self, port_ids: impl Iterator<Item = u32>) -> bool {
        let mut is_one_open = false;
        for port_id in port_ids {
            let key = self.sockets.get(&port_id);
            if let Some(connection) = key.and_then(|key| self.connections.get_mut(key)) {
                is_one_open = true;
                connection.look_for_room();
            }
        }
        is_one_open
    }

    /// Whether an upcall may be queued for a socket, since [`Server::look_for_room`] looked.
    pub fn has_room(&self, port_id: u32) -> bool {
        let key = self.sockets.get(&port_id);
        let connection = key.and_then(|key| self.connections.get(key));
        connection.is_some_and(Connection::has_room)
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(&self.listener, flags) {
            Ok(socket) => socket,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                // Until a connection ends: the listener would be ready all the time.
                return self.listen_for(epoll::EventFlags::empty());
            }
            Err(_) => return,
        };
        let own = rustix::process::geteuid();
        let trusted =
            sockopt::socket_peercred(&socket).is_ok_and(|peer| peer.uid.is_root() || peer.uid == own);
        if !trusted {
            self.counters.strangers += 1;
            return refuse(socket, Errno::ACCESS);
        }
        if self.connections.len() >= self.limits.connections {
            self.counters.too_many += 1;
            return refuse(socket, Errno::NFILE);
        }
        if sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER).is_err() {
            // Without privilege the kernel grants what it grants everybody.
            let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER);
        }
        let key = self.next_key;
        self.next_key += 1;
        let data = epoll::EventData::new_u64(key);
        let watched = epoll::EventFlags::IN;
        if epoll::add(&self.events, &socket, data, watched).is_ok() {
            self.counters.accepted += 1;
            let connection = Connection::new(socket, self.limits.queue, watched);
            self.connections.insert(key, connection);
        }
    }

    /// Does what a connection has to do: sends what waits, or goes on with an answer, or reads a request.
    fn serve(&mut self, key: u64, service: &mut impl Service) -> Result<(), Gone> {
        let Some(connection) = self.connections.get_mut(&key) else {
            return Ok(());
        };
        connection.flush()?;
        if connection.is_asking {
            connection.is_early = true;
            if connection.wants_more && !connection.has_waiting() {
                connection.wants_more = false;
                service.go_on(Caller(key));
            }
        } else if !connection.is_busy() {
            match connection.receive(&mut self.buffer)? {
                Received::Nothing => {}
                Received::Datagram(length) => self.take(key, length, service)?,
            }
        }
        self.watch(key);
        Ok(())
    }

    /// A datagram in the buffer.
    fn take(&mut self, key: u64, length: usize, service: &mut impl Service) -> Result<(), Gone> {
        let datagram = std::mem::take(&mut self.buffer);
        let result = self.take_from(key, &datagram[..length], service);
        self.buffer = datagram;
        if result.is_err() {
            self.counters.violations += 1;
        }
        result
    }

    fn take_from(&mut self, key: u64, datagram: &[u8], service: &mut impl Service) -> Result<(), Gone> {
        let (header, contents) = Header::split(datagram).ok_or(Gone)?;
        let connection = self.connections.get_mut(&key).ok_or(Gone)?;
        match (header.kind, connection.port_id) {
            (OPEN, None) => self.open(key, header.number),
            (JOIN | LEAVE, None) => {
                let group = contents
                    .first_chunk()
                    .map(|group| u32::from_ne_bytes(*group))
                    .ok_or(Gone)?;
                self.change_group(key, header, group, service)
            }
            (REQUEST, Some(_)) => {
                connection.is_asking = true;
                service.request(Caller(key), connection.protocol, contents);
                Ok(())
            }
            _ => Err(Gone),
        }
    }

    fn open(&mut self, key: u64, protocol: u32) -> Result<(), Gone> {
        let mut port_id = self.next_port_id;
        // 0 is the kernel, and ovs-vswitchd means nobody by the highest one.
        while port_id == 0 || port_id == u32::MAX || self.sockets.contains_key(&port_id) {
            port_id = port_id.wrapping_add(1);
        }
        self.next_port_id = port_id.wrapping_add(1);
        let connection = self.connections.get_mut(&key).ok_or(Gone)?;
        connection.port_id = Some(port_id);
        connection.protocol = protocol;
        connection.control(WELCOME, port_id, self.instance.to_ne_bytes().to_vec());
        self.sockets.insert(port_id, key);
        connection.flush()
    }

    fn change_group(
        &mut self,
        key: u64,
        change: Header,
        group: u32,
        service: &impl Service,
    ) -> Result<(), Gone> {
        let target = self.sockets.get(&change.number);
        let target = target.and_then(|target| self.connections.get_mut(target));
        let (kind, number) = match target {
            None => (REFUSED, Errno::BADF.raw_os_error().cast_unsigned()),
            Some(target) if !service.has_group(target.protocol, group) => {
                (REFUSED, Errno::INVAL.raw_os_error().cast_unsigned())
            }
            Some(target) if change.kind == JOIN => {
                target.groups.insert(group);
                (MARK, 0)
            }
            Some(target) => {
                target.groups.remove(&group);
                (MARK, 0)
            }
        };
        let connection = self.connections.get_mut(&key).ok_or(Gone)?;
        connection.control(kind, number, Vec::new());
        connection.flush()
    }

    fn tell(&mut self, cause: Option<u32>, notice: &Notice) {
        let is_told = |connection: &Connection| {
            connection.groups.contains(&notice.group) && (notice.to_cause || connection.port_id != cause)
        };
        let members = self
            .connections
            .iter()
            .filter(|(_, connection)| is_told(connection));
        let members: Vec<u64> = members.map(|(key, _)| *key).collect();
        for key in members {
            if let Some(connection) = self.connections.get_mut(&key) {
                let delivery = connection.data(notice.datagram.clone());
                self.counters.overflows += u64::from(delivery == Delivery::Full);
            }
            self.flush(key);
        }
    }

    /// Sends what was queued for a connection from outside its own turn.
    fn flush(&mut self, key: u64) {
        if self
            .connections
            .get_mut(&key)
            .is_some_and(|connection| connection.flush().is_err())
        {
            self.end(key);
        }
        self.watch(key);
    }

    /// Waits for what a connection needs next: room, or a request.
    fn watch(&mut self, key: u64) {
        if let Some(connection) = self.connections.get_mut(&key) {
            let wanted = if connection.has_waiting() || connection.wants_more {
                epoll::EventFlags::OUT
            } else if connection.is_asking && connection.is_early {
                // That it has gone is told always. Most clients ask once at a time, and need not be stopped.
                epoll::EventFlags::empty()
            } else {
                epoll::EventFlags::IN
            };
            if wanted == connection.watched {
                return;
            }
            connection.watched = wanted;
            // It can only fail for descriptors that are not there.
            let _ = epoll::modify(&self.events, connection, epoll::EventData::new_u64(key), wanted);
        }
    }

    fn listen_for(&self, wanted: epoll::EventFlags) {
        // It can only fail for descriptors that are not there.
        let _ = epoll::modify(
            &self.events,
            &self.listener,
            epoll::EventData::new_u64(LISTENER),
            wanted,
        );
    }

    fn end(&mut self, key: u64) {
        self.listen_for(epoll::EventFlags::IN);
        if let Some(port_id) = self
            .connections
            .remove(&key)
            .and_then(|connection| connection.port_id)
        {
            self.sockets.remove(&port_id);
        }
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone, or its directory.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Says no, if the socket has room for it, which a new one has.
fn refuse(socket: OwnedFd, errno: Errno) {
    let header = Header {
        kind: REFUSED,
        number: errno.raw_os_error().cast_unsigned(),
    };
    let _ = rustix::net::send(&socket, &header.to_bytes(), rustix::net::SendFlags::NOSIGNAL);
}
