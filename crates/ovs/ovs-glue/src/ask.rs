//! Asks a running switch for the actions that it would take on a packet ([`ovs_frame::TRACE`]), and for a
//! port's counters ([`ovs_frame::COUNTERS`]).

use flow::PortCounters;
use ovs_frame::{COUNTERS, DATA, HEADER_LEN, Header, MARK, OPEN, REFUSED, REQUEST, TRACE, WELCOME};
use ovs_netlink::attribute::Writer;
use ovs_netlink::message::{ERROR, FIRST_TYPE, Flags, Header as MessageHeader, messages};
use ovs_netlink::{Errno, Error};
use rustix::fd::OwnedFd;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest answer, in bytes.
const MAX_ANSWER: usize = 1 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The switch is not there, or does not answer.
    #[error("cannot ask the switch at {path}: {source}")]
    Unreachable {
        /// Socket of the glue.
        path: PathBuf,
        /// Why not.
        source: rustix::io::Errno,
    },
    /// The switch's answer is malformed.
    #[error("the switch is of another version")]
    Version,
    /// There is no such port.
    #[error("Open vSwitch has no port {0} in this switch")]
    NoPort(String),
    /// The packet is too long or too short, or there is no data plane.
    #[error("the switch refuses: {0}")]
    Refused(Errno),
}

impl From<Error> for AskError {
    fn from(error: Error) -> Self {
        AskError::Refused(error.errno())
    }
}

/// A line for each step of `frame`, an Ethernet frame of at least 14 bytes, from `port`. `socket` is that to
/// which the library in ovs-vswitchd connects. Each step of the exchange may take `limit`.
///
/// # Errors
/// As [`AskError`] says.
pub fn trace(socket: &Path, port: &str, frame: &[u8], limit: Duration) -> Result<String, AskError> {
    let answer = ask(socket, TRACE, (port, frame), limit)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The counters of a port since the data plane has it. `socket` and `limit` as for [`trace`].
///
/// # Errors
/// As [`AskError`] says.
pub fn counters(socket: &Path, port: &str, limit: Duration) -> Result<PortCounters, AskError> {
    let answer = ask(socket, COUNTERS, (port, &[]), limit)?;
    serde_json::from_slice(&answer).map_err(|_| AskError::Version)
}

/// The payload of the answer to a request about a port, with more beside its name.
fn ask(
    socket: &Path,
    protocol: u32,
    (port, rest): (&str, &[u8]),
    limit: Duration,
) -> Result<Vec<u8>, AskError> {
    let mut request = Writer::new();
    let header = MessageHeader {
        kind: FIRST_TYPE,
        flags: Flags::REQUEST,
        sequence: 1,
        port: 0,
    };
    request.message(header, |body| {
        body.raw(port.as_bytes());
        body.raw(&[0]);
        body.raw(rest);
    });
    let request = request.finish()?;
    let exchanged = exchange(socket, protocol, &request, limit).map_err(|source| AskError::Unreachable {
        path: socket.to_owned(),
        // As the time limit of a socket is reported.
        source: match source {
            rustix::io::Errno::AGAIN => rustix::io::Errno::TIMEDOUT,
            other => other,
        },
    })?;
    let answer = match exchanged {
        Some((DATA, _, answer)) => answer,
        // There was nothing to tell.
        Some((MARK, ..)) => return Ok(Vec::new()),
        Some((REFUSED, errno, _)) => return Err(AskError::Refused(Errno(errno.cast_signed()))),
        _ => return Err(AskError::Version),
    };
    let message = messages(&answer).next().ok_or(AskError::Version)??;
    if message.header.kind != ERROR {
        return Ok(message.payload.to_vec());
    }
    let number = message
        .payload
        .first_chunk()
        .map(|number| i32::from_ne_bytes(*number));
    match Errno(number.unwrap_or_default().saturating_neg()) {
        Errno::ENODEV => Err(AskError::NoPort(port.to_owned())),
        errno => Err(AskError::Refused(errno)),
    }
}

/// Kind, number and contents of a datagram.
type Datagram = (u32, u32, Vec<u8>);

/// The answer to a request, or the switch's error.
fn exchange(
    socket: &Path,
    protocol: u32,
    request: &[u8],
    limit: Duration,
) -> Result<Option<Datagram>, rustix::io::Errno> {
    let connection = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    for timeout in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&connection, timeout, Some(limit))?;
    }
    rustix::net::connect(&connection, &SocketAddrUnix::new(socket)?)?;
    send(&connection, OPEN, protocol, &[])?;
    match receive(&connection)? {
        Some((WELCOME, ..)) => {}
        other => return Ok(other),
    }
    send(&connection, REQUEST, 0, request)?;
    receive(&connection)
}

fn send(connection: &OwnedFd, kind: u32, number: u32, contents: &[u8]) -> Result<(), rustix::io::Errno> {
    let datagram = [&Header { kind, number }.to_bytes(), contents].concat();
    rustix::net::send(connection, &datagram, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next datagram, if it is one of the protocol's.
fn receive(connection: &OwnedFd) -> Result<Option<Datagram>, rustix::io::Errno> {
    let mut buffer = vec![0; HEADER_LEN + MAX_ANSWER];
    let (length, _) = rustix::net::recv(connection, &mut buffer[..], RecvFlags::empty())?;
    let found = Header::split(&buffer[..length]);
    Ok(found.map(|(header, contents)| (header.kind, header.number, contents.to_vec())))
}
