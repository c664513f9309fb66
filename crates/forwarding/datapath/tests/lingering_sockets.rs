//! TCP sockets whose last `close` waits as long as their owner likes, sent over connections of which nothing
//! is received.

#![allow(clippy::unwrap_used, reason = "tests")]
#![forbid(unsafe_code)]

mod support;

use control_protocol::data_plane::{Answer, Connection, PortSpec, Request};
use flow::PortId;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::sockopt::set_socket_linger;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};
use support::session::{SET_VRING_KICK, Session, words};
use support::{Bystanders, Switch, TIMEOUT};

/// Longer than anything else waits.
const LINGER: Duration = Duration::from_secs(60);

/// A socket whose last descriptor takes [`LINGER`] to close, and the peer that does not read what it has
/// sent.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 65536]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    set_socket_linger(&socket, Some(LINGER)).unwrap();
    (socket.into(), listener.accept().unwrap().0)
}

/// Sends such a socket over a connection of a port; only the connection has it then.
fn send_over(stream: UnixStream) -> (Session, TcpStream) {
    let session = Session::new(stream);
    let (socket, peer) = lingering();
    session.tell(SET_VRING_KICK, &words(&[0]), &[socket.as_fd()]);
    (session, peer)
}

/// Deletes the port; nobody waits for the sockets.
fn ends_at_once(mut switch: Switch, bystanders: Bystanders, port: u32) {
    let start = Instant::now();
    switch.done(Request::PortDel { port: PortId(port) });
    assert!(start.elapsed() < TIMEOUT / 2, "{:?}", start.elapsed());
    bystanders.alive();
    switch.add(port);
    bystanders.finish(&mut switch);
    switch.finish();
}

/// Connections that wait to be accepted while another one is served.
#[test]
fn connections_that_were_not_accepted() {
    let path = std::env::temp_dir().join(format!("data-plane-linger-{}", std::process::id()));
    let mut switch = Switch::start();
    let bystanders = Bystanders::start(&mut switch);
    let listener = UnixListener::bind(&path).unwrap();
    let spec = PortSpec {
        connection: Connection::Listener,
        ..Switch::spec(1)
    };
    let added = switch.ask_with(Request::PortAdd(spec), &[listener.as_fd()]);
    assert_eq!(added, Ok(Answer::Done));
    drop(listener);
    let connect = |_| send_over(UnixStream::connect(&path).unwrap());
    let connections: Vec<_> = (0..3).map(connect).collect();
    ends_at_once(switch, bystanders, 1);
    drop(connections);
    std::fs::remove_file(&path).unwrap();
}

/// More connections than the port may leave behind.
#[test]
fn connections_that_are_refused() {
    let mut switch = Switch::with_ports(1);
    let bystanders = Bystanders::start(&mut switch);
    let connections: Vec<_> = (0..7).map(|_| send_over(switch.attach(1))).collect();
    ends_at_once(switch, bystanders, 1);
    drop(connections);
}
