//! Queues of devices: what a controller can say wrong, and what is shown.

use crate::support::Switch;
use control_protocol::data_plane::{Answer, Connection, Request, Steering};
use flow::PortId;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::os::unix::net::UnixDatagram;

fn queue(port: u32, header_len: Option<u8>) -> Request {
    Request::PortQueue {
        port: PortId(port),
        header_len,
        receives: None,
    }
}

#[test]
fn queues_that_cannot_be_are_refused() {
    let mut switch = Switch::with_ports(1);
    let mut spec = Switch::spec(7);
    spec.connection = Connection::Driver;
    switch.done(Request::PortAdd(spec));
    let (socket, _device) = UnixDatagram::pair().unwrap();
    let mut errno = |request, has_socket: bool| {
        let fds = [socket.as_fd()];
        let result = switch.ask_with(request, &fds[..usize::from(has_socket)]);
        result.map_err(|error| Errno::from_raw_os_error(error.errno))
    };
    assert_eq!(errno(queue(9, Some(12)), true), Err(Errno::NODEV));
    assert_eq!(errno(queue(7, Some(12)), false), Err(Errno::BADF));
    for header_len in [0, 11, 255] {
        assert_eq!(errno(queue(7, Some(header_len)), true), Err(Errno::INVAL));
    }
    assert_eq!(
        errno(queue(1, Some(12)), true),
        Err(Errno::INVAL),
        "a virtual machine's"
    );
    assert_eq!(errno(queue(1, None), false), Ok(Answer::Done));
    for header_len in [Some(10), Some(12), None] {
        assert_eq!(errno(queue(7, header_len), true), Ok(Answer::Done));
    }
    assert_eq!(switch.port(7).device_queue, None);
    switch.done(Request::PortQueue {
        port: PortId(7),
        header_len: None,
        receives: None,
    });
    let fds = [socket.as_fd()];
    assert_eq!(switch.ask_with(queue(7, Some(12)), &fds), Ok(Answer::Done));
    let shown = switch.port(7).device_queue.unwrap();
    assert_eq!(shown.packets, 0);
    assert!(
        shown
            .obstacle
            .is_some_and(|why| why.contains("no packet has left"))
    );
    switch.finish();
}

#[test]
fn queues_that_cannot_receive_are_refused_and_filters_without_a_queue_are_nothing() {
    let mut switch = Switch::with_ports(1);
    let mut spec = Switch::spec(7);
    spec.connection = Connection::Driver;
    switch.done(Request::PortAdd(spec));
    let (socket, _device) = UnixDatagram::pair().unwrap();
    // No packet socket with a receive ring.
    let receiving = |header_len| Request::PortQueue {
        port: PortId(7),
        header_len: Some(12),
        receives: Some(header_len),
    };
    for header_len in [0, 11, 12, 255] {
        let fds = [socket.as_fd(), socket.as_fd()];
        let refused = switch.ask_with(receiving(header_len), &fds).unwrap_err();
        assert_eq!(refused.errno, Errno::INVAL.raw_os_error());
    }
    let refused = switch.ask_with(receiving(12), &[socket.as_fd()]).unwrap_err();
    assert_eq!(refused.errno, Errno::BADF.raw_os_error());
    for change in [Steering::Arm(5), Steering::Leave] {
        switch.done(Request::PortSteering {
            port: PortId(7),
            change,
        });
    }
    assert_eq!(switch.port(7).device_queue, None);
    switch.finish();
}
