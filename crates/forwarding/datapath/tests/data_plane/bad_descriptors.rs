//! Descriptors that are not what a VMM says: they hold nobody up, and their port says what was wrong.

use crate::support::frames::plain;
use crate::support::guest::{ALL, RECEIVE};
use crate::support::memory::{GUEST_BASE, USER_BASE, memfd};
use crate::support::session::{
    ADD_MEM_REG, GET_FEATURES, RegionSpec, SET_LOG_BASE, SET_MEM_TABLE, SET_VRING_BASE, SET_VRING_CALL,
    SET_VRING_ERR, SET_VRING_KICK, SET_VRING_NUM, Said, Session, state, words,
};
use crate::support::{Bystanders, Guest, Setup, Switch, TIMEOUT, in_time};
use control_protocol::data_plane::{Connection, PortState, Request};
use flow::{Action, PortId};
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use std::fs::File;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};
use vnic::features as f;

const LINGER: Duration = Duration::from_secs(5);

fn fresh(switch: &mut Switch) -> Guest {
    let stream = switch.attach(1);
    let guest = Guest::new(1, stream, Setup::default());
    guest.negotiate();
    guest
}

/// A guest of port 1 that behaves is served.
fn works(switch: &mut Switch) {
    let mut guest = Guest::usual(switch, 1);
    switch.flow(1, &[Action::Output(PortId(1))]);
    guest.send(&plain(1, 1, 300, 9));
    guest.expect_plain(&plain(1, 1, 300, 9));
}

fn is_refused(switch: &mut Switch, guest: &Guest, request: u32, payload: &[u8], fd: BorrowedFd<'_>) {
    assert_eq!(
        guest.session.say(request, payload, &[fd]),
        Said::No,
        "request {request}, {fd:?}"
    );
    let broken = |state: &PortState| matches!(state, PortState::Broken(text) if text.contains("descriptor") || text.contains("memory"));
    let state = switch.port(1).state;
    assert!(broken(&state), "request {request}, {fd:?}: {state:?}");
}

fn region() -> Vec<u8> {
    [words(&[0]), words(&[GUEST_BASE, 4096, USER_BASE, 0])].concat()
}

fn table() -> Vec<u8> {
    Session::memory_table(&[RegionSpec(GUEST_BASE, 4096, USER_BASE, 0)])
}

/// Kinds that may wait, or lead to others that do.
fn of_wrong_kinds() -> Vec<OwnedFd> {
    let poll = || epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let (outer, inner) = (poll(), poll());
    let data = epoll::EventData::new_u64(0);
    epoll::add(&outer, &inner, data, epoll::EventFlags::IN).unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let disk = File::open("/proc/self/exe").unwrap();
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    vec![
        outer,
        inner,
        read,
        write,
        tcp.into(),
        udp.into(),
        disk.into(),
        null.into(),
    ]
}

#[test]
fn only_the_right_kinds_are_taken() {
    let mut switch = Switch::with_ports(1);
    let bystanders = Bystanders::start(&mut switch);
    let ring = words(&[u64::from(RECEIVE)]);
    let guest = fresh(&mut switch);
    let (socket, _other) = UnixStream::pair().unwrap();
    let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let memory = memfd(4096);
    for file in of_wrong_kinds() {
        let guest = fresh(&mut switch);
        for request in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
            is_refused(&mut switch, &guest, request, &ring, file.as_fd());
        }
        is_refused(&mut switch, &guest, SET_MEM_TABLE, &table(), file.as_fd());
        is_refused(&mut switch, &guest, ADD_MEM_REG, &region(), file.as_fd());
        bystanders.alive();
    }
    drop(guest);
    // Good ones in the wrong place.
    let guest = fresh(&mut switch);
    for (request, fd) in [
        (SET_VRING_KICK, socket.as_fd()),
        (SET_VRING_KICK, memory.as_fd()),
        (SET_VRING_CALL, memory.as_fd()),
        (SET_VRING_ERR, socket.as_fd()),
    ] {
        is_refused(&mut switch, &guest, request, &ring, fd);
    }
    is_refused(&mut switch, &guest, SET_MEM_TABLE, &table(), bell.as_fd());
    is_refused(&mut switch, &guest, ADD_MEM_REG, &region(), socket.as_fd());
    // And in the right one.
    for (request, fd) in [
        (SET_VRING_KICK, bell.as_fd()),
        (SET_VRING_CALL, bell.as_fd()),
        (SET_VRING_CALL, socket.as_fd()),
        (SET_VRING_ERR, bell.as_fd()),
    ] {
        guest.session.must(request, &ring, &[fd]);
    }
    assert_ne!(
        guest
            .session
            .say(SET_LOG_BASE, &words(&[4096, 0]), &[memory.as_fd()]),
        Said::Yes
    );
    works(&mut switch);
    bystanders.finish(&mut switch);
    switch.finish();
}

fn works_at(switch: &mut Switch, port: u32) {
    let mut guest = Guest::usual(switch, port);
    switch.flow(port, &[Action::Output(PortId(port))]);
    guest.send(&plain(port, port, 300, 9));
    guest.expect_plain(&plain(port, port, 300, 9));
}

/// A full counter, at which a write would wait: the call is made all the same, and so are those after it.
#[test]
fn a_call_that_would_block_is_made_all_the_same() {
    let mut switch = Switch::with_ports(2);
    let bystanders = Bystanders::start(&mut switch);
    let attacker = Guest::start(&mut switch, 1, Setup::features(ALL & !f::RING_EVENT_IDX));
    let mut sender = Guest::usual(&mut switch, 2);
    switch.flow(2, &[Action::Output(PortId(1))]);
    let call = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    attacker
        .session
        .must(SET_VRING_CALL, &words(&[RECEIVE.into()]), &[call.as_fd()]);
    rustix::fs::fcntl_setfl(&call, rustix::fs::OFlags::empty()).unwrap();
    rustix::io::write(&call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    attacker.ring(RECEIVE).ask_for_call();
    for round in 1..=5 {
        sender.send(&plain(2, 1, 300, round));
        switch.until(1, "the packet is delivered", |counters| {
            counters.transmitted == u64::from(round)
        });
        // The counter is as full as before, or was emptied below: in either case somebody was called.
        let timeout = rustix::event::Timespec::try_from(TIMEOUT).unwrap();
        let mut fds = [PollFd::new(&call, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&timeout)), Ok(1), "round {round}");
        rustix::io::read(&call, &mut [0; 8]).unwrap();
    }
    bystanders.finish(&mut switch);
    switch.finish();
}

#[test]
fn a_sparse_file_is_refused_and_said() {
    let mut switch = Switch::with_ports(1);
    let bystanders = Bystanders::start(&mut switch);
    let guest = fresh(&mut switch);
    let sparse = memfd(1 << 47);
    let mut refused = None;
    for number in 0..62u64 {
        let at = number << 41;
        let region = RegionSpec(at, 1 << 41, at, 0);
        if guest.session.add_region(region, &sparse) != Said::Yes {
            refused = Some(number);
            break;
        }
    }
    assert!(refused.is_some_and(|number| number < 62), "{refused:?}");
    let state = switch.port(1).state;
    assert!(
        matches!(&state, PortState::Broken(text) if text.contains("that a port may map")),
        "{state:?}"
    );
    // There is room for another port's memory, and for the process's own.
    switch.add(2);
    works_at(&mut switch, 2);
    drop(guest);
    works(&mut switch);
    bystanders.finish(&mut switch);
    switch.finish();
}

#[test]
fn rings_have_at_most_1024_descriptors() {
    let mut switch = Switch::with_ports(1);
    let guest = fresh(&mut switch);
    for (size, expected) in [
        (1024, Said::Yes),
        (2048, Said::No),
        (32_768, Said::No),
        (0, Said::No),
        (3, Said::No),
    ] {
        let said = guest.session.say(SET_VRING_NUM, &state(RECEIVE, size), &[]);
        assert_eq!(said, expected, "{size}");
    }
    switch.finish();
}

/// A VMM that says much is slowed down; others connect meanwhile.
#[test]
fn a_flood_of_messages_has_a_rate() {
    let mut switch = Switch::with_ports(2);
    let session = Session::new(switch.attach(1));
    let reader = session.stream.try_clone().unwrap();
    let replies = std::thread::spawn(move || {
        let session = Session::new(reader);
        session.stream.set_read_timeout(Some(6 * TIMEOUT)).unwrap();
        let start = Instant::now();
        let mut count = 0u32;
        // On a disturbed machine there may be pauses as if messages were costly.
        while start.elapsed() < Duration::from_secs(3) || count <= 1500 && start.elapsed() < 6 * TIMEOUT {
            if session.reply().is_none() {
                break;
            }
            count += 1;
        }
        (count, start.elapsed())
    });
    let message = Session::message(GET_FEATURES, 1, &[]);
    let many: Vec<u8> = message.repeat(20_000);
    let flood = std::thread::spawn(move || {
        session.stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        drop(std::io::Write::write_all(&mut &session.stream, &many));
        session
    });
    works_at(&mut switch, 2);
    let (count, time) = replies.join().unwrap();
    let most = 4096.0 + 100.0 * time.as_secs_f64() + 10.0;
    assert!(
        count > 1500 && f64::from(count) <= most,
        "{count} replies in {time:?}"
    );
    // Ends the flood, whose messages wait in its own socket.
    switch.done(Request::PortDel { port: PortId(1) });
    drop(flood.join().unwrap());
    switch.finish();
}

/// A VMM with many queues or memory slots says much when it starts, and QEMU says the same several times.
#[test]
fn a_start_is_not_delayed() {
    in_time(|| starts_within(Duration::from_secs(4)));
}

fn starts_within(bound: Duration) -> bool {
    let mut switch = Switch::with_ports(1);
    let mut guest = Guest::new(1, switch.attach(1), Setup::default());
    let start = Instant::now();
    guest.negotiate();
    let is_heard = (0..1500).all(|number| guest.session.tell(SET_VRING_BASE, &state(number % 2, 0), &[]));
    if !is_heard {
        return false;
    }
    assert_eq!(guest.set_memory(), Said::Yes);
    guest.post_all();
    for _ in 0..20 {
        guest.start_rings();
    }
    let time = start.elapsed();
    println!("{time:?}");
    switch.finish();
    time < bound
}

/// Half a message holds nobody up but its own port, and that not for ever.
#[test]
fn half_a_message_times_out() {
    let mut switch = Switch::with_ports(2);
    let mut session = Session::new(switch.attach(1));
    session.stream.set_read_timeout(Some(3 * TIMEOUT)).unwrap();
    session.raw(&Session::message(GET_FEATURES, 1, &[])[..7], &[]);
    works_at(&mut switch, 2);
    assert_eq!(session.reply(), None, "closed");
    session = Session::new(switch.attach(1));
    assert!(session.get(GET_FEATURES).is_some());
    switch.finish();
}

/// A TCP connection whose `close` waits for five seconds, since its peer does not read.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[0; 65_536]).is_ok() {}
    sockopt::set_socket_linger(&sender, Some(LINGER)).unwrap();
    (sender.into(), receiver)
}

/// A call's socket holds files that wait to be received; whoever closes it last closes them.
#[test]
fn files_that_are_slow_to_close_hold_up_no_request() {
    let mut switch = Switch::with_ports(1);
    for round in 0..4 {
        let port = 10 + round;
        switch.add(port);
        let guest = Guest::new(port, switch.attach(port), Setup::default());
        guest.negotiate();
        let (file, _receiver) = lingering();
        let (call, other) = UnixStream::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        sendmsg(&other, &[IoSlice::new(&[1])], &mut control, SendFlags::empty()).unwrap();
        let ring = words(&[u64::from(RECEIVE)]);
        guest.session.must(SET_VRING_CALL, &ring, &[call.as_fd()]);
        drop((file, call, other));
        let start = Instant::now();
        switch.done(Request::PortDel { port: PortId(port) });
        assert!(start.elapsed() < LINGER / 2, "{:?}", start.elapsed());
    }
    works(&mut switch);
    switch.finish();
}

/// The driver domain's descriptors go straight to the session.
#[test]
fn our_own_driver_domain_needs_no_gate() {
    let mut switch = Switch::start();
    let mut spec = Switch::spec(77);
    spec.connection = Connection::Driver;
    switch.done(Request::PortAdd(spec));
    works_at(&mut switch, 77);
    let is_gate = |task: std::io::Result<std::fs::DirEntry>| {
        let name = std::fs::read_to_string(task.unwrap().path().join("comm"));
        name.is_ok_and(|name| name.trim() == "gate-77")
    };
    assert!(!std::fs::read_dir("/proc/self/task").unwrap().any(is_gate));
    switch.finish();
}

/// A listening port takes connections in a loop, but not as many as a VMM likes.
#[test]
fn connects_have_a_rate() {
    let mut switch = Switch::start();
    let directory = std::env::temp_dir().join(format!("data-plane-connects-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("vm.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut spec = Switch::spec(1);
    spec.connection = Connection::Listener;
    assert!(
        switch
            .ask_with(Request::PortAdd(spec), &[listener.as_fd()])
            .is_ok()
    );
    let start = Instant::now();
    for _ in 0..24 {
        let session = Session::new(UnixStream::connect(&path).unwrap());
        assert!(session.get(GET_FEATURES).is_some());
    }
    // 16 at once, and 4 a second: a lower bound, which no load can break.
    assert!(
        start.elapsed() > Duration::from_millis(1500),
        "{:?}",
        start.elapsed()
    );
    std::fs::remove_dir_all(&directory).unwrap();
    switch.finish();
}
