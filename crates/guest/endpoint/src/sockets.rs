//! TCP connections and UDP sockets of an endpoint. A call never waits: [`EndpointError::WouldBlock`] says
//! that [`Endpoint::wait`] has to come before the next attempt.
//!
//! What a call hands to the stack is sent by the next turn.

use crate::{Endpoint, EndpointError};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Duration;
use smoltcp::wire::{IpEndpoint, IpListenEndpoint};
use std::net::SocketAddr;

/// How long a peer may leave a handshake, or data that was sent, without an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long that may be for connections that nobody has accepted yet.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Local ports that are chosen (as Linux's default).
const LOCAL_PORTS: std::ops::Range<u16> = 32768..61000;
/// Datagrams that wait in each direction.
const DATAGRAMS: usize = 256;

/// A TCP connection of the endpoint that made it. Another endpoint knows nothing of it.
#[derive(Debug)]
pub struct Stream(SocketHandle);

/// A port where connections come in.
#[derive(Debug)]
pub struct Listener {
    port: u16,
    /// Sockets that listen, or whose handshake is under way or over.
    backlog: Vec<SocketHandle>,
}

/// A UDP socket.
#[derive(Debug)]
pub struct Datagrams(SocketHandle);

impl Endpoint {
    /// Takes connections to `port`, not 0, on any address. `backlog`, at least 1, is how many may be under
    /// way or wait to be accepted; each has its buffers.
    ///
    /// # Errors
    ///
    /// The port or the backlog is 0.
    pub fn listen(&mut self, port: u16, backlog: usize) -> Result<Listener, EndpointError> {
        if port == 0 || backlog == 0 {
            return Err(EndpointError::Setting("a port or a backlog is not 0"));
        }
        let backlog = (0..backlog).map(|_| self.listening(port)).collect();
        Ok(Listener { port, backlog })
    }

    /// The next connection that has come in, if there is one.
    pub fn accept(&mut self, listener: &mut Listener) -> Option<Stream> {
        for slot in &mut listener.backlog {
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(*slot);
            match socket.state() {
                tcp::State::Listen | tcp::State::SynReceived => {}
                // The handshake was not completed.
                tcp::State::Closed if !socket.can_recv() => {
                    self.sockets.remove(*slot);
                    *slot = self.listening(listener.port);
                }
                _ => {
                    socket.set_timeout(Some(PATIENCE));
                    let accepted = std::mem::replace(slot, self.listening(listener.port));
                    return Some(Stream(accepted));
                }
            }
        }
        None
    }

    /// Gives up a port; connections that nobody accepted are reset.
    pub fn stop_listening(&mut self, listener: Listener) {
        for handle in listener.backlog {
            self.give_up(handle);
        }
    }

    fn listening(&mut self, port: u16) -> SocketHandle {
        let mut socket = self.tcp_socket();
        socket.set_timeout(Some(HANDSHAKE));
        // It is new, and the port is not 0.
        let _ = socket.listen(port);
        self.sockets.add(socket)
    }

    fn tcp_socket(&self) -> tcp::Socket<'static> {
        let buffer = || tcp::SocketBuffer::new(vec![0; self.settings.buffer]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_congestion_control(tcp::CongestionControl::Cubic);
        socket.set_timeout(Some(PATIENCE));
        socket.set_nagle_enabled(false);
        socket
    }

    /// Begins a connection to `to`. [`Endpoint::send`] and [`Endpoint::receive`] say
    /// [`EndpointError::WouldBlock`] until it is there, and [`EndpointError::Reset`] if it is refused.
    ///
    /// # Errors
    ///
    /// There is no address of that family, or `to` is none to connect to.
    pub fn connect_to(&mut self, to: SocketAddr) -> Result<Stream, EndpointError> {
        let mut socket = self.tcp_socket();
        let from = self.local_port();
        let begun = socket.connect(self.interface.context(), IpEndpoint::from(to), from);
        begun.map_err(|_| EndpointError::Unsendable("there is no way to the address"))?;
        Ok(Stream(self.sockets.add(socket)))
    }

    /// The next local port, which comes round after 28,232 connections.
    fn local_port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = if port + 1 < LOCAL_PORTS.end {
            port + 1
        } else {
            LOCAL_PORTS.start
        };
        port
    }

    /// Sends as much of `data` as there is room for, at least a byte unless `data` is empty, and returns how
    /// much.
    ///
    /// # Errors
    ///
    /// `WouldBlock`, `Reset`, or `Unsendable` after [`Endpoint::finish`].
    pub fn send(&mut self, stream: &Stream, data: &[u8]) -> Result<usize, EndpointError> {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(stream.0);
        match socket.send_slice(data) {
            Ok(0) if !data.is_empty() => Err(EndpointError::WouldBlock),
            Ok(sent) => Ok(sent),
            Err(_) => Err(match socket.state() {
                tcp::State::SynSent | tcp::State::SynReceived => EndpointError::WouldBlock,
                tcp::State::Closed => EndpointError::Reset,
                _ => EndpointError::Unsendable("this end is closed"),
            }),
        }
    }

    /// Receives at most `data.len()` bytes and returns how many. 0: the peer sends nothing more.
    ///
    /// # Errors
    ///
    /// `WouldBlock` or `Reset`.
    pub fn receive(&mut self, stream: &Stream, data: &mut [u8]) -> Result<usize, EndpointError> {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(stream.0);
        match socket.recv_slice(data) {
            Ok(0) if !data.is_empty() => Err(EndpointError::WouldBlock),
            Ok(received) => Ok(received),
            Err(tcp::RecvError::Finished) => Ok(0),
            Err(tcp::RecvError::InvalidState) => Err(match socket.state() {
                tcp::State::SynSent | tcp::State::SynReceived => EndpointError::WouldBlock,
                _ => EndpointError::Reset,
            }),
        }
    }

    /// Bytes that were sent and that the peer has not acknowledged.
    pub fn unacknowledged(&self, stream: &Stream) -> usize {
        self.sockets.get::<tcp::Socket<'_>>(stream.0).send_queue()
    }

    /// The address of the peer, while there is a connection.
    pub fn peer(&self, stream: &Stream) -> Option<SocketAddr> {
        let socket = self.sockets.get::<tcp::Socket<'_>>(stream.0);
        socket.remote_endpoint().map(SocketAddr::from)
    }

    /// Sends nothing more: the peer reads the end. Receiving goes on.
    pub fn finish(&mut self, stream: &Stream) {
        self.sockets.get_mut::<tcp::Socket<'_>>(stream.0).close();
    }

    /// Ends a connection in order; what was sent still arrives, as long as turns are taken.
    pub fn close(&mut self, stream: Stream) {
        self.finish(&stream);
        self.closing.push(stream.0);
    }

    /// Resets a connection.
    pub fn reset(&mut self, stream: Stream) {
        self.give_up(stream.0);
    }

    /// The peer is told by the next turn.
    fn give_up(&mut self, handle: SocketHandle) {
        self.sockets.get_mut::<tcp::Socket<'_>>(handle).abort();
        self.closing.push(handle);
    }

    /// Removes sockets of connections that have ended, with their buffers.
    pub(crate) fn forget_closed(&mut self) {
        let sockets = &mut self.sockets;
        self.closing.retain(|handle| {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(*handle);
            // One that nobody reads any more would never end if its peer went on sending.
            if socket.can_recv() {
                let _ = socket.recv(|data| (data.len(), ()));
            }
            // A reset has to be sent first, if there is anybody to be told.
            let is_over = match socket.state() {
                tcp::State::Closed => socket.remote_endpoint().is_none(),
                tcp::State::TimeWait => true,
                _ => false,
            };
            if is_over {
                sockets.remove(*handle);
            }
            !is_over
        });
    }

    /// A UDP socket at `port`, not 0, on any address.
    ///
    /// # Errors
    ///
    /// The port is 0.
    pub fn bind(&mut self, port: u16) -> Result<Datagrams, EndpointError> {
        let buffer = || {
            let about = vec![udp::PacketMetadata::EMPTY; DATAGRAMS];
            udp::PacketBuffer::new(about, vec![0; self.settings.buffer])
        };
        let mut socket = udp::Socket::new(buffer(), buffer());
        let bound = socket.bind(IpListenEndpoint::from(port));
        bound.map_err(|_| EndpointError::Setting("a port is not 0"))?;
        Ok(Datagrams(self.sockets.add(socket)))
    }

    /// Sends a datagram.
    ///
    /// # Errors
    ///
    /// `WouldBlock`, or `Unsendable` if it is longer than the MTU or has no destination.
    pub fn send_to(
        &mut self,
        datagrams: &Datagrams,
        data: &[u8],
        to: SocketAddr,
    ) -> Result<(), EndpointError> {
        // An IPv6 header and a UDP header.
        if data.len() + 48 > self.settings.mtu {
            return Err(EndpointError::Unsendable("the datagram is longer than the MTU"));
        }
        let socket = self.sockets.get_mut::<udp::Socket<'_>>(datagrams.0);
        socket
            .send_slice(data, IpEndpoint::from(to))
            .map_err(|error| match error {
                udp::SendError::BufferFull => EndpointError::WouldBlock,
                udp::SendError::Unaddressable => EndpointError::Unsendable("the datagram has no destination"),
            })
    }

    /// Receives a datagram: its length and where it came from. What is longer than `data` is dropped.
    ///
    /// # Errors
    ///
    /// `WouldBlock`.
    pub fn receive_from(
        &mut self,
        datagrams: &Datagrams,
        data: &mut [u8],
    ) -> Result<(usize, SocketAddr), EndpointError> {
        let socket = self.sockets.get_mut::<udp::Socket<'_>>(datagrams.0);
        loop {
            match socket.recv_slice(data) {
                Ok((len, about)) => return Ok((len, about.endpoint.into())),
                Err(udp::RecvError::Truncated) => {}
                Err(udp::RecvError::Exhausted) => return Err(EndpointError::WouldBlock),
            }
        }
    }

    /// Closes a UDP socket.
    pub fn unbind(&mut self, datagrams: Datagrams) {
        self.sockets.remove(datagrams.0);
    }
}
