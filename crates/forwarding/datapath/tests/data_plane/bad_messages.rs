//! VMMs that break the vhost-user protocol.

use crate::support::frames::plain;
use crate::support::guest::{ALL, RECEIVE, TRANSMIT};
use crate::support::memory::{GUEST_BASE, memfd};
use crate::support::ring::Ring;
use crate::support::session::{
    GET_CONFIG, GET_FEATURES, RESET_DEVICE, SET_FEATURES, SET_LOG_BASE, SET_MEM_TABLE, SET_VRING_ADDR,
    SET_VRING_BASE, SET_VRING_CALL, SET_VRING_ENABLE, SET_VRING_ERR, SET_VRING_KICK, SET_VRING_NUM, Said,
    Session, state, words,
};
use crate::support::{Bystanders, Guest, Layout, Setup, Switch};
use control_protocol::data_plane::{Connection, Packet, PortState, Request};
use flow::{DropReason, PortId, PutMode, Statistics};
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use vnic::features as f;

const GET_INFLIGHT_FD: u32 = 31;
const SET_INFLIGHT_FD: u32 = 32;

fn fresh(switch: &mut Switch, port: u32) -> Guest {
    let stream = switch.attach(port);
    let guest = Guest::new(port, stream, Setup::default());
    guest.negotiate();
    guest
}

/// Port 1 can be used by a guest that behaves.
#[track_caller]
fn still_works(switch: &mut Switch) {
    let mut a = Guest::usual(switch, 1);
    switch.flow(1, &[flow::Action::Output(PortId(1))]);
    for seed in 0..3 {
        a.send(&plain(1, 1, 300, seed));
        a.expect_plain(&plain(1, 1, 300, seed));
    }
    a.all_sent();
}

#[test]
fn garbage_is_no_message() {
    let mut switch = Switch::with_ports(1);
    let bystanders = Bystanders::start(&mut switch);
    let mut state = 99u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..300 {
        let session = Session::new(switch.attach(1));
        let len = random() as usize % 400;
        let mut bytes: Vec<u8> = (0..len).map(|_| random() as u8).collect();
        if round % 2 == 0 && len >= 12 {
            // A header that looks right.
            let request = random() as u32 % 45;
            bytes[..4].copy_from_slice(&request.to_le_bytes());
            bytes[4..8].copy_from_slice(&(1 | (random() as u32 & 8)).to_le_bytes());
            bytes[8..12].copy_from_slice(&(len as u32 - 12).to_le_bytes());
        }
        session.raw(&bytes, &[]);
        // A few more, then the end.
        if round % 3 == 0 {
            session.raw(&bytes, &[]);
            session.raw(&bytes[..len / 2], &[]);
        }
        if round % 50 == 0 {
            bystanders.alive();
        }
    }
    still_works(&mut switch);
    bystanders.finish(&mut switch);
    switch.finish();
}

#[test]
fn connections_end_in_the_middle_of_anything() {
    let mut switch = Switch::with_ports(2);
    let bystanders = Bystanders::start(&mut switch);
    let mut peer = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    let message = Session::message(SET_FEATURES, 1, &words(&[ALL]));
    for cut in 0..message.len() {
        let session = Session::new(switch.attach(1));
        session.raw(&message[..cut], &[]);
        drop(session);
    }
    // With descriptors of which nothing comes.
    let file = crate::support::memory::memfd(4096);
    for cut in [1, 12, 20] {
        let guest = fresh(&mut switch, 1);
        let table = Session::message(SET_MEM_TABLE, 1, &Session::memory_table(&[guest.region()]));
        guest
            .session
            .raw(&table[..cut], &[file.as_fd(), file.as_fd(), file.as_fd()]);
    }
    // In mid-traffic.
    for round in 0..20u8 {
        let mut guest = Guest::usual(&mut switch, 1);
        for seed in 0..round {
            guest.send(&plain(1, 2, 1000, seed));
            peer.send(&plain(2, 1, 1000, seed));
        }
        drop(guest);
        while peer.try_receive().is_some() {}
    }
    switch.until_state(1, |state| *state == PortState::Disconnected);
    // None of it is left for the next guest.
    peer.all_sent();
    still_works(&mut switch);
    bystanders.finish(&mut switch);
    switch.finish();
}

#[test]
fn messages_in_another_order() {
    let mut switch = Switch::with_ports(2);
    let bystanders = Bystanders::start(&mut switch);
    let mut peer = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    // Every order of what a ring needs ends with a running port, without a refusal.
    let mut orders = Vec::new();
    permute(&mut vec![0, 1, 2, 3], 0, &mut orders);
    for (number, order) in orders.into_iter().enumerate() {
        let mut guest = fresh(&mut switch, 1);
        guest.post(0..64);
        for step in order {
            if step == 0 {
                assert_eq!(guest.set_memory(), Said::Yes);
                continue;
            }
            for index in [RECEIVE, TRANSMIT] {
                let (session, ring) = (&guest.session, guest.ring(index));
                match step {
                    1 => {
                        session.must(SET_VRING_NUM, &state(index, ring.size.into()), &[]);
                        session.must(SET_VRING_BASE, &state(index, 0), &[]);
                        session.must(SET_VRING_ADDR, &guest.address_payload(index), &[]);
                    }
                    2 => {
                        session.must(SET_VRING_CALL, &words(&[index.into()]), &[ring.call.as_fd()]);
                        session.must(SET_VRING_KICK, &words(&[index.into()]), &[ring.kick.as_fd()]);
                    }
                    _ => session.must(SET_VRING_ENABLE, &state(index, 1), &[]),
                }
            }
        }
        switch.until_state(1, |state| *state == PortState::Running);
        let frame = plain(1, 2, 500, number as u8);
        guest.send(&frame);
        peer.expect_plain(&frame);
        peer.send(&frame);
        guest.expect_plain(&frame);
        peer.all_sent();
    }
    bystanders.finish(&mut switch);
    switch.finish();
}

fn permute(items: &mut Vec<u32>, from: usize, orders: &mut Vec<Vec<u32>>) {
    if from == items.len() {
        return orders.push(items.clone());
    }
    for at in from..items.len() {
        items.swap(from, at);
        permute(items, from + 1, orders);
        items.swap(from, at);
    }
}

#[test]
fn what_does_not_exist_is_refused() {
    let mut switch = Switch::with_ports(1);
    let bystanders = Bystanders::start(&mut switch);
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    for index in [2u32, 3, 255, 256, 0xffff_ffff] {
        let guest = fresh(&mut switch, 1);
        assert_eq!(guest.set_memory(), Said::Yes);
        let session = &guest.session;
        assert_ne!(session.say(SET_VRING_NUM, &state(index, 256), &[]), Said::Yes);
        let session = &fresh(&mut switch, 1).session;
        assert_ne!(session.say(SET_VRING_BASE, &state(index, 0), &[]), Said::Yes);
        let session = &fresh(&mut switch, 1).session;
        assert_ne!(session.say(SET_VRING_ENABLE, &state(index, 1), &[]), Said::Yes);
        let session = &fresh(&mut switch, 1).session;
        let address = [state(index, 0), words(&[0, 0, 0, 0])].concat();
        assert_ne!(session.say(SET_VRING_ADDR, &address, &[]), Said::Yes);
        // Its reply has no place for a refusal: the connection ends, rather than leave the VMM waiting.
        let session = &fresh(&mut switch, 1).session;
        assert_eq!(session.stop(index), None);
        if index < 256 {
            for request in [SET_VRING_KICK, SET_VRING_CALL] {
                let session = &fresh(&mut switch, 1).session;
                assert_ne!(
                    session.say(request, &words(&[index.into()]), &[bell.as_fd()]),
                    Said::Yes
                );
            }
        }
    }
    let offered = fresh(&mut switch, 1).session.get(GET_FEATURES).unwrap();
    assert_eq!(offered, f::OFFERED);
    for features in [
        u64::MAX,
        offered | 1 << 34,
        offered | 1 << 17,
        offered | 1 << 22,
        1 << 63,
    ] {
        let session = &fresh(&mut switch, 1).session;
        assert_ne!(
            session.say(SET_FEATURES, &words(&[features]), &[]),
            Said::Yes,
            "{features:#x}"
        );
    }
    for size in [0, 3, 257, 32_769, 65_536, u32::MAX] {
        let session = &fresh(&mut switch, 1).session;
        assert_ne!(
            session.say(SET_VRING_NUM, &state(0, size), &[]),
            Said::Yes,
            "{size}"
        );
    }
    for base in [65_536, u32::MAX] {
        let session = &fresh(&mut switch, 1).session;
        assert_ne!(session.say(SET_VRING_BASE, &state(0, base), &[]), Said::Yes);
    }
    let session = &fresh(&mut switch, 1).session;
    assert_ne!(session.say(SET_VRING_ENABLE, &state(0, 2), &[]), Said::Yes);
    for request in [0, 7, 46, 100, u32::MAX] {
        let session = &fresh(&mut switch, 1).session;
        assert_ne!(session.say(request, &[], &[]), Said::Yes);
    }
    still_works(&mut switch);
    bystanders.finish(&mut switch);
    switch.finish();
}

#[test]
fn descriptors_of_the_wrong_kind() {
    let mut switch = Switch::with_ports(2);
    let bystanders = Bystanders::start(&mut switch);
    let file = crate::support::memory::memfd(4096);
    let directory = File::open("/").unwrap();
    let null = File::options().write(true).read(true).open("/dev/null").unwrap();
    let (pipe_read, pipe_write) = rustix::pipe::pipe().unwrap();
    let (socket, _peer) = UnixStream::pair().unwrap();
    let closed = UnixStream::pair().unwrap().0;
    let datagram = UnixDatagram::unbound().unwrap();
    let kinds = [
        file.as_fd(),
        directory.as_fd(),
        null.as_fd(),
        pipe_read.as_fd(),
        pipe_write.as_fd(),
        socket.as_fd(),
        closed.as_fd(),
        datagram.as_fd(),
    ];
    // Neither refused nor accepted does it hold up the port's session, or anybody's packets.
    let mut peer = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    for (number, kind) in kinds.iter().enumerate() {
        for (request, index) in [
            (SET_VRING_CALL, RECEIVE),
            (SET_VRING_CALL, TRANSMIT),
            (SET_VRING_KICK, RECEIVE),
            (SET_VRING_KICK, TRANSMIT),
            (SET_VRING_ERR, RECEIVE),
        ] {
            let mut guest = Guest::usual(&mut switch, 1);
            let said = guest.session.say(request, &words(&[index.into()]), &[*kind]);
            let plain_file = number < 2;
            if plain_file && request != SET_VRING_ERR {
                assert_ne!(said, Said::Yes, "kind {number} for {request}");
            }
            if said == Said::Closed {
                continue;
            }
            for seed in 0..8 {
                let frame = plain(1, 2, 300, seed);
                guest.offer_packet(&wire::VnetHeader::default(), &frame, &Layout::One);
                guest.transmit.publish();
                guest.transmit.kick();
                peer.send(&plain(2, 1, 300, seed));
            }
            peer.all_sent();
            bystanders.alive();
            drop(guest);
            while peer.try_receive().is_some() {}
        }
    }
    still_works(&mut switch);
    // More than one, and some where none belong.
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let session = &fresh(&mut switch, 1).session;
    assert_ne!(
        session.say(SET_VRING_CALL, &words(&[0]), &[bell.as_fd(), bell.as_fd()]),
        Said::Yes
    );
    let session = &fresh(&mut switch, 1).session;
    assert_ne!(session.say(SET_VRING_KICK, &words(&[0]), &[]), Said::Yes);
    let session = &fresh(&mut switch, 1).session;
    assert_ne!(
        session.say(SET_VRING_KICK, &words(&[0x100]), &[]),
        Said::Yes,
        "polling is not offered"
    );
    let session = &fresh(&mut switch, 1).session;
    assert_ne!(
        session.say(SET_FEATURES, &words(&[ALL]), &[bell.as_fd()]),
        Said::Yes
    );
    while peer
        .receive_within(std::time::Duration::from_millis(10))
        .is_some()
    {}
    bystanders.finish(&mut switch);
    switch.finish();
}

#[test]
fn a_driver_that_polls_needs_no_call() {
    let mut switch = Switch::with_ports(1);
    let mut a = Guest::usual(&mut switch, 1);
    switch.flow(1, &[flow::Action::Output(PortId(1))]);
    for index in [0x100, 0x101] {
        a.session.must(SET_VRING_CALL, &words(&[index]), &[]);
    }
    for seed in 0..10 {
        a.send(&plain(1, 1, 300, seed));
        crate::support::eventually("it arrives", || {
            a.try_receive()
                .is_some_and(|(_, frame)| frame == plain(1, 1, 300, seed))
        });
    }
    a.all_sent();
    switch.finish();
}

#[test]
fn a_running_ring_is_told_everything_again() {
    let mut switch = Switch::with_ports(2);
    let bystanders = Bystanders::start(&mut switch);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    let check = |a: &mut Guest, b: &mut Guest, seed| {
        a.send(&plain(1, 2, 400, seed));
        b.expect_plain(&plain(1, 2, 400, seed));
        b.send(&plain(2, 1, 400, seed));
        a.expect_plain(&plain(2, 1, 400, seed));
    };
    check(&mut a, &mut b, 0);
    a.session.must(SET_FEATURES, &words(&[ALL]), &[]);
    check(&mut a, &mut b, 1);
    for index in [RECEIVE, TRANSMIT] {
        let address = a.address_payload(index);
        a.session.must(SET_VRING_ADDR, &address, &[]);
        let (session, ring) = (&a.session, a.ring(index));
        session.must(SET_VRING_KICK, &words(&[index.into()]), &[ring.kick.as_fd()]);
        session.must(SET_VRING_CALL, &words(&[index.into()]), &[ring.call.as_fd()]);
        session.must(SET_VRING_ENABLE, &state(index, 1), &[]);
    }
    check(&mut a, &mut b, 2);
    // Off and on again: what was posted stays.
    for round in 3..8 {
        for index in [RECEIVE, TRANSMIT] {
            a.session.must(SET_VRING_ENABLE, &state(index, 0), &[]);
        }
        switch.until_state(1, |state| *state == PortState::Connected);
        for index in [RECEIVE, TRANSMIT] {
            a.session.must(SET_VRING_ENABLE, &state(index, 1), &[]);
        }
        switch.until_state(1, |state| *state == PortState::Running);
        check(&mut a, &mut b, round);
    }
    // Stopped twice.
    for index in [RECEIVE, TRANSMIT] {
        let base = a.session.stop(index).unwrap();
        assert_eq!(
            base,
            u32::from(if index == RECEIVE {
                a.receive.seen
            } else {
                a.transmit.next
            })
        );
        assert_eq!(a.session.stop(index), Some(base));
    }
    a.restart(&mut switch);
    check(&mut a, &mut b, 9);
    // Reset, and everything from the start on the same connection.
    a.session.must(RESET_DEVICE, &[], &[]);
    switch.until_state(1, |state| *state == PortState::Connected);
    a.forget();
    a.bring_up();
    switch.until_state(1, |state| *state == PortState::Running);
    check(&mut a, &mut b, 10);
    bystanders.finish(&mut switch);
    switch.finish();
}

/// Packed rings, completion in order, a log of dirty memory, and memory for requests in flight are not
/// offered. A VMM that asks for them all the same, whatever its files are like, is refused, and its guest's
/// rings go on.
#[test]
fn what_is_not_offered_stops_no_ring() {
    const LOG_ALL: u64 = 1 << 26;
    const RING_PACKED: u64 = 1 << 34;
    const IN_ORDER: u64 = 1 << 35;
    let mut switch = Switch::with_ports(2);
    let bystanders = Bystanders::start(&mut switch);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    let mut seed = 0;
    let mut flows = |a: &mut Guest, b: &mut Guest| {
        for len in [60, 1400] {
            seed += 1;
            a.send(&plain(1, 2, len, seed));
            b.expect_plain(&plain(1, 2, len, seed));
            b.send(&plain(2, 1, len, seed));
            a.expect_plain(&plain(2, 1, len, seed));
        }
    };
    for bit in [LOG_ALL, RING_PACKED, IN_ORDER, RING_PACKED | IN_ORDER] {
        let said = a.session.say(SET_FEATURES, &words(&[ALL | bit]), &[]);
        assert_eq!(said, Said::No, "{bit:#x}");
        flows(&mut a, &mut b);
    }
    // Used rings to be logged, somewhere.
    for log in [0, GUEST_BASE, u64::MAX] {
        let mut address = a.address_payload(TRANSMIT);
        address[4] = 1;
        address.splice(32.., log.to_le_bytes());
        a.session.must(SET_VRING_ADDR, &address, &[]);
        flows(&mut a, &mut b);
    }
    let file = memfd(4096);
    let inflight = |size: u64| {
        let rings = [2u16.to_le_bytes(), 256u16.to_le_bytes()].concat();
        [words(&[size, 0]), rings, vec![0; 4]].concat()
    };
    for len in [4096, 100, 0] {
        rustix::fs::ftruncate(&file, len).unwrap();
        for (request, payload, files) in [
            (SET_LOG_BASE, words(&[4096, 0]), 1),
            (GET_INFLIGHT_FD, inflight(0), 0),
            (SET_INFLIGHT_FD, inflight(4096), 1),
        ] {
            let said = a.session.say(request, &payload, &vec![file.as_fd(); files]);
            assert_ne!(said, Said::Yes, "request {request}");
            if said == Said::Closed {
                a.go_on(&mut switch, Ring::used_index);
            }
            flows(&mut a, &mut b);
        }
    }
    bystanders.finish(&mut switch);
    switch.finish();
}

#[test]
fn the_configuration_space() {
    let mut switch = Switch::with_ports(1);
    let guest = fresh(&mut switch, 1);
    let get = |session: &Session, offset: u32, size: u32| {
        let mut payload = [offset, size, 0].map(u32::to_le_bytes).concat();
        payload.resize(12 + size as usize, 0);
        session.tell(GET_CONFIG, &payload, &[]);
        session
            .reply()
            .map(|reply| reply.get(12..).map(<[u8]>::to_vec).unwrap_or_default())
    };
    let space = get(&guest.session, 0, 12).unwrap();
    assert_eq!(space, [2, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0xdc, 5]);
    assert_eq!(get(&guest.session, 10, 2), Some(vec![0xdc, 5]));
    assert_eq!(get(&guest.session, 0, 64).unwrap()[..12], space);
    for (offset, size) in [(250, 20), (u32::MAX, 4), (4000, 1)] {
        let guest = fresh(&mut switch, 1);
        let answer = get(&guest.session, offset, size);
        assert!(answer.is_none_or(|bytes| bytes.is_empty()), "{offset} {size}");
    }
    still_works(&mut switch);
    switch.finish();
}

#[test]
fn a_listening_port_takes_one_after_the_other() {
    let mut switch = Switch::start();
    let directory = std::env::temp_dir().join(format!("datapath-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("vm1.sock");
    let listener = UnixListener::bind(&path).unwrap();
    // With it the port's thread would not sleep but look again and again.
    listener.set_nonblocking(true).unwrap();
    let mut spec = Switch::spec(1);
    spec.connection = Connection::Listener;
    let added = switch.ask_with(Request::PortAdd(spec), &[listener.as_fd()]);
    assert!(added.is_ok(), "{added:?}");
    assert!(
        !rustix::fs::fcntl_getfl(&listener)
            .unwrap()
            .contains(OFlags::NONBLOCK)
    );
    drop(listener);
    switch.flow(1, &[flow::Action::Output(PortId(1))]);
    for seed in 0..5 {
        let stream = UnixStream::connect(&path).unwrap();
        let mut guest = Guest::new(1, stream, Setup::default());
        guest.bring_up();
        switch.until_state(1, |state| *state == PortState::Running);
        guest.send(&plain(1, 1, 200, seed));
        guest.expect_plain(&plain(1, 1, 200, seed));
        drop(guest);
        switch.until_state(1, |state| *state == PortState::Disconnected);
    }
    // One that says nothing, while the port goes.
    let silent = UnixStream::connect(&path).unwrap();
    switch.until_state(1, |state| *state == PortState::Connected);
    switch.done(Request::PortDel { port: PortId(1) });
    assert_eq!(Session::new(silent).reply(), None);
    std::fs::remove_dir_all(&directory).unwrap();
    switch.finish();
}

#[test]
fn a_front_end_that_never_reads() {
    let mut switch = Switch::with_ports(1);
    let bystanders = Bystanders::start(&mut switch);
    let session = Session::new(switch.attach(1));
    session
        .stream
        .set_write_timeout(Some(std::time::Duration::from_millis(300)))
        .unwrap();
    // The replies fill the socket, and then the requests do.
    let message = Session::message(GET_FEATURES, 1, &[]);
    while session.raw(&message, &[]) {}
    bystanders.alive();
    assert_ne!(switch.port(1).state, PortState::Running);
    // The port can be attached anew and removed all the same.
    still_works(&mut switch);
    switch.done(Request::PortDel { port: PortId(1) });
    bystanders.finish(&mut switch);
    switch.finish();
}

#[test]
fn requests_control_must_not_make() {
    let mut switch = Switch::with_ports(1);
    let mut listening = Switch::spec(2);
    listening.connection = Connection::Listener;
    let flow = Switch::port_flow(1, &[]);
    let mut same_match = flow.clone();
    same_match.id = flow::FlowId(99);
    let put = |flow: &flow::Flow, mode| Request::FlowPut {
        flow: flow.clone(),
        mode,
    };
    let keeping = PutMode::Modify(Statistics::Kept);
    let frame = |len| Request::Trace {
        in_port: PortId(1),
        frame: vec![0; len],
    };
    let (mtu, miss_rate, snap_length) = (1500, 100_000, 10);
    assert_eq!(switch.refused(put(&flow, keeping)), Errno::NOENT);
    switch.put(flow.clone());
    for (request, errno) in [
        (Request::PortAdd(Switch::spec(1)), Errno::EXIST),
        (Request::PortAdd(Switch::spec(PortId::LIMIT)), Errno::INVAL),
        (Request::PortAdd(listening), Errno::BADF),
        (Request::PortAttach { port: PortId(1) }, Errno::BADF),
        (Request::PortAttach { port: PortId(5) }, Errno::BADF),
        (
            Request::PortSet {
                port: PortId(5),
                mtu,
                miss_rate,
            },
            Errno::NODEV,
        ),
        (
            Request::Capture {
                port: PortId(1),
                snap_length,
            },
            Errno::BADF,
        ),
        (put(&flow, PutMode::Create), Errno::EXIST),
        (put(&same_match, PutMode::Create), Errno::EXIST),
        (frame(13), Errno::MSGSIZE),
    ] {
        assert_eq!(switch.refused(request.clone()), errno, "{request:?}");
    }
    assert_eq!(switch.flows()[0].0, flow);
    let unknown = control_protocol::data_plane::UpcallId {
        port: PortId(1),
        serial: 999,
    };
    switch.discard(unknown, DropReason::Policy);
    assert_eq!(switch.counters(1).discarded.total(), 0);
    // A stream that is none.
    let file = crate::support::memory::memfd(10);
    let _ = switch.ask_with(Request::PortAttach { port: PortId(1) }, &[file.as_fd()]);
    still_works(&mut switch);
    switch.finish();
}

/// The non-blocking flag belongs to whoever has the eventfd, so a VMM can make a call wait. It costs that VMM
/// its calls, and others nothing but a moment.
#[test]
fn a_call_that_blocks_holds_nobody_up_for_long() {
    let mut switch = Switch::with_ports(2);
    let bystanders = Bystanders::start(&mut switch);
    let setup = Setup::features(ALL & !f::RING_EVENT_IDX);
    let attacker = Guest::start(&mut switch, 1, setup);
    let mut sender = Guest::usual(&mut switch, 2);
    let to_attacker = [flow::Action::Output(PortId(1))];
    switch.flow(2, &to_attacker);
    for port in [3, 4] {
        let call = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).expect("an eventfd");
        let payload = words(&[RECEIVE.into()]);
        attacker.session.must(SET_VRING_CALL, &payload, &[call.as_fd()]);
        rustix::fs::fcntl_setfl(&call, rustix::fs::OFlags::empty()).expect("set blocking");
        rustix::io::write(&call, &(u64::MAX - 1).to_ne_bytes()).expect("filled");
        attacker.ring(RECEIVE).ask_for_call();
        let frame = plain(2, 1, 500, 7);
        if port == 3 {
            // Holds up a worker,
            sender.send(&frame);
        } else {
            // and the channel thread.
            let packet = Packet {
                vnet_header: [0; 12],
                frame,
            };
            switch.inject(2, packet, &to_attacker);
        }
        let expected = u64::from(port) - 2;
        switch.until(1, "the packet is delivered", |counters| {
            counters.transmitted == expected
        });
        // Needs the port table and the flow table to itself.
        switch.add(port);
        switch.flow(port, &to_attacker);
        bystanders.alive();
    }
    sender.all_sent();
    attacker.session.must(SET_VRING_ENABLE, &state(RECEIVE, 0), &[]);
    bystanders.finish(&mut switch);
    switch.finish();
}
