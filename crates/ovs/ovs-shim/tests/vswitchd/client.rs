//! A program that uses sockets of all kinds, with the library in front of it.

use libc::{
    AF_NETLINK, AF_UNIX, MSG_DONTWAIT, NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE, SOCK_DGRAM,
    SOCK_RAW, c_int,
};
use ovs_frame::{DATA, MARK, OPEN, SOCKET_VARIABLE, UPCALLS, WELCOME};
use ovs_netlink::attribute::Writer;
use ovs_netlink::control;
use ovs_netlink::family::Family;
use ovs_netlink::message::{Header, Message, Status, messages};
use ovs_netlink::name::Name;
use ovs_netlink::{Reply, Request};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};

pub fn run() {
    requests_are_carried_out_before_there_is_nothing_to_read();
    a_number_that_dup2_takes_is_another_file();
    a_number_that_is_used_again_is_another_file();
    a_child_may_close_what_it_inherited();
    threads_do_not_disturb_each_other();
    groups_are_asked_for();
    other_sockets_are_the_kernels();
    the_probe_for_tunnels_finds_them();
    upcalls_are_handed_out_one_by_one();
    lists_of_upcalls_that_lie_are_refused();
}

/// A socket of the kernel's netlink, or what stands in its place.
fn netlink(protocol: c_int) -> c_int {
    // SAFETY: plain integers.
    let fd = unsafe { libc::socket(AF_NETLINK, SOCK_RAW, protocol) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    fd
}

fn close(fd: c_int) {
    // SAFETY: the descriptor is this test's, and not used again.
    assert_eq!(unsafe { libc::close(fd) }, 0);
}

fn send(fd: c_int, data: &[u8]) {
    // SAFETY: pointer and length describe a slice.
    let sent = unsafe { libc::send(fd, data.as_ptr().cast(), data.len(), 0) };
    assert_eq!(
        sent,
        data.len().cast_signed(),
        "{}",
        std::io::Error::last_os_error()
    );
}

/// What can be read at once.
fn receive(fd: c_int, flags: c_int) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 8192];
    // SAFETY: pointer and length describe a vector.
    let received = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags) };
    let Ok(received) = usize::try_from(received) else {
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
        return None;
    };
    buffer.truncate(received);
    Some(buffer)
}

fn port_id(fd: c_int) -> u32 {
    // SAFETY: `sockaddr_nl` is plain data for which zeros are valid.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: pointer and length describe a local variable.
    let result = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut length) };
    assert_eq!((result, c_int::from(address.nl_family)), (0, AF_NETLINK));
    address.nl_pid
}

/// A request for the number of a family.
fn question(sequence: u32) -> Vec<u8> {
    let mut writer = Writer::new();
    let request = control::Request::ByName(Name::new("ovs_vport").unwrap());
    let header = Header {
        sequence,
        ..Header::default()
    };
    Request::Control(request).write(header, &mut writer);
    writer.finish().unwrap()
}

fn message(datagram: &[u8]) -> Message<'_> {
    messages(datagram).next().unwrap().unwrap()
}

fn is_answer(datagram: &[u8], sequence: u32) -> bool {
    let message = message(datagram);
    let Reply::Control(family) = Reply::read(&message).unwrap() else {
        return false;
    };
    message.header.sequence == sequence && family.number == Family::Vport.number()
}

/// Asks, and must not have to wait for the answer.
fn transact(fd: c_int, sequence: u32) {
    send(fd, &question(sequence));
    let answer = receive(fd, MSG_DONTWAIT).expect("a request was under way");
    assert!(is_answer(&answer, sequence));
}

fn requests_are_carried_out_before_there_is_nothing_to_read() {
    let fd = netlink(NETLINK_GENERIC);
    assert_ne!(port_id(fd), 0);
    assert_eq!(receive(fd, MSG_DONTWAIT), None, "nothing was asked");
    for sequence in 1..500 {
        transact(fd, sequence);
        assert_eq!(receive(fd, MSG_DONTWAIT), None);
    }
    // Several requests in one datagram, and several datagrams: all answers are waited for.
    for datagram in 0..3 {
        send(fd, &[question(datagram * 2), question(datagram * 2 + 1)].concat());
    }
    for sequence in 0..6 {
        assert!(is_answer(&receive(fd, MSG_DONTWAIT).unwrap(), sequence));
    }
    assert_eq!(receive(fd, MSG_DONTWAIT), None);
    close(fd);
}

fn a_number_that_dup2_takes_is_another_file() {
    let fd = netlink(NETLINK_GENERIC);
    let pair = pair();
    // SAFETY: plain integers; the descriptor is this test's.
    assert_eq!(unsafe { libc::dup2(pair[0], fd) }, fd);
    close(pair[0]);
    talk([fd, pair[1]]);
}

fn a_number_that_is_used_again_is_another_file() {
    let fd = netlink(NETLINK_GENERIC);
    // A way that the library does not see.
    // SAFETY: the descriptor is this test's.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close, fd) }, 0);
    let pair = pair();
    assert!(pair.contains(&fd), "the number is given out again");
    talk(pair);
}

fn pair() -> [c_int; 2] {
    let mut pair = [0; 2];
    // SAFETY: the pointer is to an array of two.
    let result = unsafe { libc::socketpair(AF_UNIX, SOCK_DGRAM, 0, pair.as_mut_ptr()) };
    assert_eq!(result, 0);
    pair
}

/// Two ends pass on what is sent, and nothing else.
fn talk(pair: [c_int; 2]) {
    for [from, to] in [pair, [pair[1], pair[0]]] {
        send(from, b"hello");
        assert_eq!(receive(to, MSG_DONTWAIT).unwrap(), b"hello");
        assert_eq!(receive(to, MSG_DONTWAIT), None);
    }
    pair.into_iter().for_each(close);
}

fn a_child_may_close_what_it_inherited() {
    let fd = netlink(NETLINK_GENERIC);
    transact(fd, 1);
    // SAFETY: the child only calls functions that are safe after `fork`, and ends without running anything of
    // the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        close(fd);
        // SAFETY: `_exit` has no preconditions.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the pointer is to a local variable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    transact(fd, 2);
    close(fd);
}

fn threads_do_not_disturb_each_other() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..20 {
                    let fd = netlink(NETLINK_GENERIC);
                    (0..20).for_each(|number| transact(fd, round * 20 + number));
                    close(fd);
                }
            });
        }
    });
}

fn groups_are_asked_for() {
    let fd = netlink(NETLINK_GENERIC);
    let join = |option: c_int, group: u32| {
        let length = size_of_val(&group) as libc::socklen_t;
        // SAFETY: pointer and length describe a local variable.
        unsafe { libc::setsockopt(fd, libc::SOL_NETLINK, option, (&raw const group).cast(), length) }
    };
    let group = Family::Vport.group().unwrap();
    assert_eq!(join(libc::NETLINK_ADD_MEMBERSHIP, group), 0);
    assert_eq!(join(libc::NETLINK_DROP_MEMBERSHIP, group), 0);
    assert_eq!(join(libc::NETLINK_ADD_MEMBERSHIP, 12_345), -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
    assert_eq!(join(libc::NETLINK_EXT_ACK, 1), 0);
    close(fd);
    close(netlink(NETLINK_NETFILTER));
}

fn other_sockets_are_the_kernels() {
    let pair = pair();
    talk(pair);
    // The loopback device, by rtnetlink.
    let fd = netlink(NETLINK_ROUTE);
    let answer = ask_for_link(fd, libc::RTM_GETLINK, libc::NLM_F_REQUEST, &[]);
    assert_eq!(message(&answer).header.kind, libc::RTM_NEWLINK);
    close(fd);
}

fn the_probe_for_tunnels_finds_them() {
    let attribute = |kind: u16, value: &[u8]| {
        let mut writer = Writer::new();
        writer.attribute(kind, value);
        writer.finish().unwrap()
    };
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE;
    let fd = netlink(NETLINK_ROUTE);
    let errno = |kind: &[u8]| {
        let info = attribute(libc::IFLA_LINKINFO, &attribute(1, kind));
        let answer = ask_for_link(fd, libc::RTM_NEWLINK, flags, &info);
        let message = message(&answer);
        assert_eq!(message.header.sequence, 9);
        match message.status().unwrap() {
            Some(Status::Answer(Some(errno))) => errno.0,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(errno(b"ovs_geneve\0"), libc::EEXIST);
    assert_eq!(errno(b"no_such_kind\0"), libc::EOPNOTSUPP);
    close(fd);
}

/// Sends a message about a link and returns the first answer. About the loopback device, unless one is to be
/// made.
fn ask_for_link(fd: c_int, kind: u16, flags: c_int, attributes: &[u8]) -> Vec<u8> {
    let index = i32::from(kind == libc::RTM_GETLINK);
    let mut writer = Writer::new();
    let header = Header {
        kind,
        flags: ovs_netlink::message::Flags(u16::try_from(flags).unwrap()),
        sequence: 9,
        port: 0,
    };
    writer.message(header, |writer| {
        writer.raw(&[0; 4]);
        writer.raw(&index.to_ne_bytes());
        writer.raw(&[0; 8]);
        writer.raw(attributes);
    });
    send(fd, &writer.finish().unwrap());
    receive(fd, 0).unwrap()
}

/// A glue process that says what a test wants, and a socket that it has opened.
struct Liar {
    _directory: tempfile::TempDir,
    peer: OwnedFd,
    fd: c_int,
}

/// The number that the real one has in common with it: the library would not accept another one.
fn instance() -> Vec<u8> {
    let path = std::env::var_os(SOCKET_VARIABLE).unwrap();
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    say(&socket, OPEN, NETLINK_GENERIC.cast_unsigned(), &[]);
    hear(&socket)
}

fn say(socket: &OwnedFd, kind: u32, number: u32, contents: &[u8]) {
    let datagram = [&ovs_frame::Header { kind, number }.to_bytes(), contents].concat();
    rustix::net::send(socket, &datagram, SendFlags::empty()).unwrap();
}

/// What follows the header of the next datagram.
fn hear(socket: &OwnedFd) -> Vec<u8> {
    let mut buffer = [0; 64];
    let (length, _) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()).unwrap();
    ovs_frame::Header::split(&buffer[..length]).unwrap().1.to_vec()
}

impl Liar {
    fn new() -> Liar {
        let instance = instance();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let before = std::env::var_os(SOCKET_VARIABLE).unwrap();
        // SAFETY: no other thread of this test looks at the environment now.
        unsafe { std::env::set_var(SOCKET_VARIABLE, &path) };
        let accept = std::thread::spawn(move || {
            let peer = rustix::net::accept(&listener).unwrap();
            hear(&peer);
            say(&peer, WELCOME, 77, &instance);
            peer
        });
        let fd = netlink(NETLINK_GENERIC);
        let peer = accept.join().unwrap();
        // SAFETY: as above.
        unsafe { std::env::set_var(SOCKET_VARIABLE, before) };
        Liar {
            _directory: directory,
            peer,
            fd,
        }
    }
}

fn is_readable(fd: c_int) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the pointer is to a local variable.
    unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
}

/// Questions with these sequence numbers, behind each other.
fn list(sequences: std::ops::Range<u32>) -> Vec<u8> {
    let mut list = Vec::new();
    for sequence in sequences {
        list.extend(question(sequence));
        list.resize(list.len().next_multiple_of(4), 0);
    }
    list
}

fn upcalls_are_handed_out_one_by_one() {
    let liar = Liar::new();
    let fd = liar.fd;
    for flags in [MSG_DONTWAIT, 0] {
        assert!(!is_readable(fd));
        say(&liar.peer, UPCALLS, 0, &list(1..40));
        say(&liar.peer, MARK, 0, &[]);
        say(&liar.peer, DATA, 0, &question(40));
        for sequence in 1..40 {
            assert!(is_readable(fd), "before {sequence}");
            assert_eq!(receive(fd, flags).unwrap(), question(sequence));
        }
        assert!(is_readable(fd));
        if flags == MSG_DONTWAIT {
            assert_eq!(receive(fd, flags), None, "the mark");
        }
        assert_eq!(receive(fd, flags).unwrap(), question(40));
    }
    assert_eq!(receive(fd, MSG_DONTWAIT), None);
    // As `nl_sock_drain` of ovs-vswitchd does: it throws away what it has no room for.
    say(&liar.peer, UPCALLS, 0, &list(1..3));
    say(&liar.peer, UPCALLS, 0, &list(1..4));
    let mut byte = 0_u8;
    let flags = MSG_DONTWAIT | libc::MSG_TRUNC;
    for length in [list(1..3).len(), list(1..4).len()] {
        // SAFETY: pointer and length describe a local variable.
        let received = unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, flags) };
        assert_eq!(received, length.cast_signed());
    }
    assert_eq!(receive(fd, MSG_DONTWAIT), None);
    close(fd);
    let again = (0..20).any(|_| upcalls_of_a_closed_socket_are_gone());
    assert!(again, "no number is given out again");
}

/// Upcalls of a socket that is closed are nobody else's. False if the next one has another number, as other
/// threads open files too.
fn upcalls_of_a_closed_socket_are_gone() -> bool {
    let liar = Liar::new();
    say(&liar.peer, UPCALLS, 0, &list(1..4));
    assert_eq!(receive(liar.fd, MSG_DONTWAIT).unwrap(), question(1));
    close(liar.fd);
    let next = Liar::new();
    assert_eq!(receive(next.fd, MSG_DONTWAIT), None);
    close(next.fd);
    next.fd == liar.fd
}

fn lists_of_upcalls_that_lie_are_refused() {
    let whole = list(1..4);
    let mut lie = whole.clone();
    lie[0] = 4;
    for contents in [&[][..], &whole[..whole.len() - 5], &lie, &vec![0; whole.len()]] {
        let liar = Liar::new();
        say(&liar.peer, UPCALLS, 0, contents);
        // SAFETY: the child calls the library only, and does not return.
        let child = unsafe { libc::fork() };
        if child == 0 {
            receive(liar.fd, MSG_DONTWAIT);
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the pointer is to a local variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(
            libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT,
            "{status}"
        );
        close(liar.fd);
    }
}
