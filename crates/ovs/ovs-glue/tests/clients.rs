//! Clients of all sorts at the glue's socket: those that behave, and those that do not.

#![allow(clippy::unwrap_used)]

#[path = "doubles/memory.rs"]
mod memory;
#[path = "doubles/no_devices.rs"]
mod no_devices;

use memory::Memory;
use no_devices::NoDevices;
use ovs_frame::{
    DATA, Header, JOIN, MARK, MAX_UPCALLS, OPEN, OVERFLOW, REFUSED, REQUEST, TRACE, UPCALLS, WELCOME,
};
use ovs_glue::datapath::{
    Answer, Datapath, DatapathId, FlowId, FlowSpec, PortNo, PutMode, Question, Ticket, Upcall, UpcallKind,
};
use ovs_glue::placeholder::Placeholders;
use ovs_glue::server::Limits;
use ovs_glue::switch::Switch;
use ovs_glue::{Capabilities, Glue};
use ovs_netlink::attribute::Writer;
use ovs_netlink::family::Family;
use ovs_netlink::key::Ethernet;
use ovs_netlink::message::{self, Flags, Message, Status, messages};
use ovs_netlink::name::Name;
use ovs_netlink::vport::Kind;
use ovs_netlink::{Errno, Reply, Request, datapath, flow, vport};
use proptest::prelude::*;
use rustix::event::Timespec;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::path::PathBuf;

const GENERIC: u32 = 16;
const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

struct World {
    directory: tempfile::TempDir,
    glue: Glue<Memory, NoDevices>,
}

struct Client {
    socket: OwnedFd,
    sequence: u32,
}

impl World {
    fn new(limits: Limits) -> World {
        let directory = tempfile::tempdir().unwrap();
        let switch = Switch::new(Memory::default(), NoDevices::default(), Capabilities::kernel());
        let glue = Glue::listen(&directory.path().join("socket"), 7, limits, switch).unwrap();
        World { directory, glue }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Lets the glue do what there is to do.
    fn run(&mut self) {
        for _ in 0..50 {
            self.glue.turn(Some(&AT_ONCE)).unwrap();
        }
    }

    fn connect(&mut self) -> Client {
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(self.path()).unwrap()).unwrap();
        self.run();
        Client { socket, sequence: 0 }
    }

    /// A client that has opened, and its port id.
    fn open(&mut self) -> (Client, u32) {
        let client = self.connect();
        client.send(OPEN, GENERIC, &[]);
        self.run();
        let (header, instance) = client.receive().unwrap();
        assert_eq!((header.kind, instance), (WELCOME, 7_u64.to_ne_bytes().to_vec()));
        (client, header.number)
    }

    /// What a request is answered with: messages until the glue says that there are no more.
    fn ask(&mut self, client: &mut Client, request: &Request<'_>, flags: Flags) -> Vec<Vec<u8>> {
        client.request(request, flags);
        let mut answers = Vec::new();
        loop {
            self.run();
            let (header, datagram) = client.receive().expect("an answer is under way");
            if header.kind == DATA {
                answers.push(datagram);
            }
            if header.number == client.sequence {
                return answers;
            }
        }
    }

    fn make_datapath(&mut self, client: &mut Client, upcalls: u32) -> DatapathId {
        let request = Request::Datapath(datapath::Request::New {
            name: name("ovs-system"),
            upcall_pid: upcalls,
            ifindex: None,
            settings: datapath::Settings::default(),
        });
        let answers = self.ask(client, &request, Flags::ECHO);
        match reply(&answers[0]) {
            Reply::Datapath(told) => DatapathId(told.datapath),
            other => panic!("{other:?}"),
        }
    }
}

impl Client {
    fn send(&self, kind: u32, number: u32, contents: &[u8]) {
        let datagram = [&Header { kind, number }.to_bytes(), contents].concat();
        rustix::net::send(&self.socket, &datagram, SendFlags::NOSIGNAL).unwrap();
    }

    fn request(&mut self, request: &Request<'_>, flags: Flags) {
        self.sequence += 1;
        let mut writer = Writer::new();
        let header = message::Header {
            flags,
            sequence: self.sequence,
            ..message::Header::default()
        };
        request.write(header, &mut writer);
        self.send(REQUEST, 0, &writer.finish().unwrap());
    }

    /// The next datagram; `None` if there is none for now. The end is a header without meaning.
    fn receive(&self) -> Option<(Header, Vec<u8>)> {
        let mut buffer = vec![0; 1 << 17];
        match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => {
                Some((Header { kind: 0, number: 0 }, Vec::new()))
            }
            Ok((length, _)) => {
                let (header, contents) = Header::split(&buffer[..length]).unwrap();
                Some((header, contents.to_vec()))
            }
            Err(errno) => {
                assert_eq!(errno, rustix::io::Errno::AGAIN);
                None
            }
        }
    }

    fn is_ended(&self) -> bool {
        self.receive().is_some_and(|(header, _)| header.kind == 0)
    }
}

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

fn message(datagram: &[u8]) -> Message<'_> {
    messages(datagram).next().unwrap().unwrap()
}

fn reply(datagram: &[u8]) -> Reply<'_> {
    Reply::read(&message(datagram)).unwrap()
}

fn errno(answers: &[Vec<u8>]) -> Option<Errno> {
    match message(&answers[0]).status().unwrap() {
        Some(Status::Answer(errno)) => errno,
        other => panic!("{other:?}"),
    }
}

fn new_port(datapath: DatapathId, port: &str) -> Request<'static> {
    Request::Vport(vport::Request::New {
        datapath: datapath.0,
        name: name(port),
        kind: Kind::Internal,
        port: None,
        upcall_pids: vec![0],
        options: None,
        ifindex: None,
    })
}

fn dump_flows(datapath: DatapathId) -> Request<'static> {
    Request::Flow(
        datapath.0,
        flow::Request::Dump {
            omit: flow::Omit::default(),
        },
    )
}

fn upcall(datapath: DatapathId) -> Upcall {
    Upcall {
        datapath,
        port: PortNo(0),
        kind: UpcallKind::Miss,
        packet: vec![0; 1500],
        key: Box::default(),
        mru: None,
        length: None,
        serial: 1,
        hash: 0,
    }
}

/// How many upcalls a datagram has.
fn upcalls_in(header: Header, datagram: &[u8]) -> usize {
    match header.kind {
        DATA => 1,
        UPCALLS => messages(datagram).map(Result::unwrap).count(),
        _ => 0,
    }
}

/// The flow with this number as identifier, which is also its key.
fn add_flow(world: &mut World, datapath: DatapathId, number: u32) {
    let mut flow = ovs_netlink::key::Match::default();
    flow.key.metadata.mark = number;
    flow.key.eth_type = 0x88b5;
    flow.mask = flow.key.exact_mask();
    let spec = FlowSpec {
        id: FlowId::Ufid(flow::Ufid::new(&number.to_ne_bytes()).unwrap()),
        matches: Box::new(flow),
        actions: Vec::new(),
    };
    let memory = &mut world.glue.switch.datapath;
    let ticket = Ticket(u64::from(number));
    memory.ask(ticket, datapath, Question::PutFlow(spec, PutMode::Create));
    assert_eq!(memory.next_answer(), Some((ticket, Ok(Answer::Done))));
}

#[test]
fn the_socket_is_the_owners_alone() {
    let world = World::new(Limits::default());
    let mode = rustix::fs::stat(world.path()).unwrap().st_mode;
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_device_is_made_once() {
    let mut devices = NoDevices::default();
    let index = devices.create("vm1").unwrap();
    assert_eq!(devices.create("vm1"), Err(Errno::EEXIST));
    assert_eq!(devices.index("vm1"), Some(index));
    devices.remove("vm1");
    assert_eq!(devices.set_carrier("vm1", true), Err(Errno::ENODEV));
}

#[test]
fn a_file_that_is_no_socket_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    std::fs::write(&path, "mine").unwrap();
    let switch = Switch::new(Memory::default(), NoDevices::default(), Capabilities::first());
    assert!(Glue::listen(&path, 1, Limits::default(), switch).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}

#[test]
fn the_last_answer_says_that_it_is_the_last() {
    let mut world = World::new(Limits::default());
    let (mut client, _) = world.open();
    let datapath = world.make_datapath(&mut client, 0);
    // Without echo or acknowledgement there is nothing to say but that it is done.
    client.request(&new_port(datapath, "vm1"), Flags::default());
    world.run();
    let mark = Header {
        kind: MARK,
        number: 2,
    };
    assert_eq!(client.receive(), Some((mark, Vec::new())));
    // Refused: the name is taken.
    let answers = world.ask(&mut client, &new_port(datapath, "vm1"), Flags::ECHO);
    assert_eq!((answers.len(), errno(&answers)), (1, Some(Errno::EEXIST)));
    // Done, and acknowledged.
    let answers = world.ask(&mut client, &new_port(datapath, "vm2"), Flags::ECHO | Flags::ACK);
    assert!(matches!(reply(&answers[0]), Reply::Vport(port) if port.port == 2));
    assert_eq!(errno(&answers[1..]), None);
    assert_eq!(client.receive(), None);
}

#[test]
fn one_too_many_is_refused_and_a_place_becomes_free() {
    let mut world = World::new(Limits {
        connections: 2,
        ..Limits::default()
    });
    let (first, first_id) = world.open();
    let (_second, second_id) = world.open();
    assert_ne!(first_id, second_id);
    let third = world.connect();
    let (header, _) = third.receive().unwrap();
    assert_eq!((header.kind, header.number), (REFUSED, 23), "ENFILE");
    assert_eq!(world.glue.counters().too_many, 1);
    drop(first);
    world.run();
    let (_, third_id) = world.open();
    assert!(![0, first_id, second_id].contains(&third_id));
}

#[test]
fn whoever_does_not_keep_to_the_protocol_is_dropped_alone() {
    let mut world = World::new(Limits::default());
    let (mut good, _) = world.open();
    let before = world.glue.counters().violations;
    // A request before opening, a header cut short, no such kind, a second opening.
    let bad: [(&[u32], &[u8]); 4] = [
        (&[], &[0; 8]),
        (&[], &[1]),
        (&[OPEN], &[99, 0, 0, 0, 0, 0, 0, 0]),
        (&[OPEN], &[1, 0, 0, 0, 16, 0, 0, 0]),
    ];
    for (first, datagram) in bad {
        let client = world.connect();
        for kind in first {
            client.send(*kind, GENERIC, &[]);
            world.run();
            client.receive().unwrap();
        }
        rustix::net::send(&client.socket, datagram, SendFlags::NOSIGNAL).unwrap();
        world.run();
        assert!(client.is_ended(), "{datagram:?}");
    }
    assert_eq!(world.glue.counters().violations, before + 4);
    world.make_datapath(&mut good, 0);
}

#[test]
fn a_dump_half_read_holds_nobody_up_and_is_complete() {
    let mut world = World::new(Limits::default());
    let (mut reader, _) = world.open();
    let (mut other, _) = world.open();
    let datapath = world.make_datapath(&mut other, 0);
    let count = 20_000;
    for number in 1..=count {
        add_flow(&mut world, datapath, number);
    }
    reader.request(&dump_flows(datapath), Flags::ACK);
    world.run();
    // Nothing was read. Others change the same flows, and ports, meanwhile.
    for number in 0..10 {
        let port = new_port(datapath, &format!("vm{number}"));
        assert_eq!(world.ask(&mut other, &port, Flags::ECHO).len(), 1);
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut done = false;
    while !done {
        world.run();
        let (header, datagram) = reader.receive().expect("the dump is under way");
        for message in messages(&datagram).map(Result::unwrap) {
            assert!(!done && message.header.sequence == 1);
            done = message.status().unwrap() == Some(Status::Done(None));
            if !done {
                let Reply::Flow(_, flow) = Reply::read(&message).unwrap() else {
                    panic!()
                };
                assert!(seen.insert(flow.key.unwrap().metadata.mark));
            }
        }
        // Only the end says that the request is answered.
        assert_eq!(header.number, u32::from(done));
    }
    assert_eq!(seen.len(), count as usize);
}

#[test]
fn upcalls_wait_for_their_own_socket_only() {
    let mut world = World::new(Limits {
        queue: 10_000,
        ..Limits::default()
    });
    let (reader, port_id) = world.open();
    let (mut other, _) = world.open();
    let datapath = world.make_datapath(&mut other, port_id);
    // Far more than a socket and the queue hold. What waits for room stays with the data plane.
    for _ in 0..10_000 {
        world.glue.switch.datapath.inject(upcall(datapath));
    }
    while world.glue.turn(Some(&AT_ONCE)).unwrap() {}
    // Others are served.
    assert_eq!(
        world
            .ask(&mut other, &new_port(datapath, "vm1"), Flags::ECHO)
            .len(),
        1
    );
    assert_eq!(upcalls_of(&reader, &mut world), 10_000, "none was lost");

    // Those of another socket do not wait for this one.
    let (second, second_id) = world.open();
    let mut spec = new_port(datapath, "vm2");
    if let Request::Vport(vport::Request::New { upcall_pids, .. }) = &mut spec {
        *upcall_pids = vec![second_id];
    }
    world.ask(&mut other, &spec, Flags::ECHO);
    let of_second = Upcall {
        port: PortNo(2),
        ..upcall(datapath)
    };
    for _ in 0..1000 {
        world.glue.switch.datapath.inject(upcall(datapath));
    }
    world.glue.switch.datapath.inject(of_second);
    while world.glue.turn(Some(&AT_ONCE)).unwrap() {}
    assert_eq!(upcalls_of(&second, &mut world), 1);
    assert_eq!(upcalls_of(&reader, &mut world), 1000);

    // One for which there can be no room is lost, and the socket is told.
    let too_long = Upcall {
        packet: vec![0; 20_000],
        ..upcall(datapath)
    };
    world.glue.switch.datapath.inject(too_long);
    while world.glue.turn(Some(&AT_ONCE)).unwrap() {}
    assert_eq!(world.glue.counters().overflows, 1);
    assert_eq!(reader.receive().unwrap().0.kind, OVERFLOW);
    let request = Request::Datapath(datapath::Request::Get(datapath::Which {
        datapath: datapath.0,
        name: None,
        upcall_pid: None,
    }));
    let answers = world.ask(&mut other, &request, Flags::default());
    let Reply::Datapath(told) = reply(&answers[0]) else {
        panic!()
    };
    assert_eq!(told.stats.unwrap().lost, 1);
    // Those of a socket that has gone are lost as well, as long as there are others.
    drop(second);
    world.run();
    let of_second = Upcall {
        port: PortNo(2),
        ..upcall(datapath)
    };
    world.glue.switch.datapath.inject(of_second);
    world.glue.switch.datapath.inject(upcall(datapath));
    while world.glue.turn(Some(&AT_ONCE)).unwrap() {}
    assert_eq!(upcalls_of(&reader, &mut world), 1);
}

/// How many upcalls a client reads until there are no more.
fn upcalls_of(reader: &Client, world: &mut World) -> usize {
    let mut read = 0;
    while let Some((header, datagram)) = reader.receive() {
        assert!([DATA, UPCALLS, MARK].contains(&header.kind), "{header:?}");
        read += upcalls_in(header, &datagram);
        world.glue.turn(Some(&AT_ONCE)).unwrap();
    }
    read
}

#[test]
fn upcalls_that_are_ready_together_share_a_datagram() {
    let mut world = World::new(Limits::default());
    let (mut reader, port_id) = world.open();
    let datapath = world.make_datapath(&mut reader, port_id);
    let inject = |world: &mut World, serials: std::ops::Range<u64>, length: usize| {
        for serial in serials {
            let packet = vec![0; length];
            let mut upcall = upcall(datapath);
            upcall.key.ethernet = Some(Ethernet::default());
            upcall.key.eth_type = 0x88b5;
            upcall.key.metadata.in_port = Some(0);
            let upcall = Upcall {
                packet,
                serial,
                ..upcall
            };
            world.glue.switch.datapath.inject(upcall);
        }
    };
    let serials = |datagram: &[u8]| -> Vec<u64> {
        let messages = messages(datagram).map(Result::unwrap);
        let serial = |message: Message<'_>| match Reply::read(&message).unwrap() {
            Reply::Upcall(_, upcall) => upcall.hash.unwrap(),
            other => panic!("{other:?}"),
        };
        messages.map(serial).collect()
    };
    let mark = Header {
        kind: MARK,
        number: 1,
    };
    inject(&mut world, 1..2, 60);
    world.run();
    let (header, datagram) = reader.receive().unwrap();
    assert_eq!((header.kind, serials(&datagram)), (DATA, vec![1]));
    assert_eq!(reader.receive(), None);
    // In their order. What follows keeps the socket readable while they are read.
    inject(&mut world, 1..20, 61);
    world.run();
    let (header, datagram) = reader.receive().unwrap();
    assert_eq!((header.kind, header.number), (UPCALLS, 1));
    assert_eq!(serials(&datagram), (1..20).collect::<Vec<_>>());
    assert_eq!(reader.receive(), Some((mark, Vec::new())));
    assert_eq!(reader.receive(), None);
    // Not more than is allowed, and a long one alone.
    inject(&mut world, 1..50, 1500);
    inject(&mut world, 50..51, 40_000);
    inject(&mut world, 51..52, 60);
    world.run();
    let mut seen = Vec::new();
    while let Some((header, datagram)) = reader.receive() {
        // What the socket had no room for follows.
        world.run();
        if header.kind == MARK {
            continue;
        }
        let here = serials(&datagram);
        assert_eq!(header.kind, if here.len() > 1 { UPCALLS } else { DATA });
        assert!(datagram.len() <= MAX_UPCALLS || here == [50]);
        seen.extend(here);
    }
    assert_eq!(seen, (1..52).collect::<Vec<_>>());
    // An answer between them is none of them.
    inject(&mut world, 1..3, 60);
    let answers = world.ask(&mut reader, &new_port(datapath, "vm1"), Flags::ECHO);
    assert!(matches!(reply(answers.last().unwrap()), Reply::Vport(_)));
}

#[test]
fn members_of_a_group_are_told_unless_they_asked() {
    let mut world = World::new(Limits::default());
    let (mut asker, asker_id) = world.open();
    let (member, member_id) = world.open();
    let (stranger, _) = world.open();
    let datapath = world.make_datapath(&mut asker, 0);
    let group = Family::Vport.group().unwrap();
    let mut join = |port_id: u32, group: u32| {
        let client = world.connect();
        client.send(JOIN, port_id, &group.to_ne_bytes());
        world.run();
        client.receive().unwrap().0
    };
    assert_eq!(join(asker_id, group).kind, MARK);
    assert_eq!(join(member_id, group).kind, MARK);
    assert_eq!(
        join(member_id, 5),
        Header {
            kind: REFUSED,
            number: 22
        }
    );
    assert_eq!(
        join(99, group),
        Header {
            kind: REFUSED,
            number: 9
        }
    );
    let answers = world.ask(&mut asker, &new_port(datapath, "vm1"), Flags::ECHO);
    assert_eq!(answers.len(), 1, "the echo, and no notice beside it");
    let (header, notice) = member.receive().unwrap();
    assert_eq!((header.kind, header.number, &notice), (DATA, 0, &answers[0]));
    assert_eq!(stranger.receive(), None);
    // Without an echo the one that asked is told as all others.
    assert_eq!(
        world
            .ask(&mut asker, &new_port(datapath, "vm2"), Flags::default())
            .len(),
        0
    );
    assert_eq!(asker.receive().unwrap().0.kind, DATA);
}

#[test]
fn who_goes_away_in_the_middle_of_a_dump_is_forgotten() {
    let mut world = World::new(Limits::default());
    let (mut other, _) = world.open();
    let datapath = world.make_datapath(&mut other, 0);
    for number in 1..=20_000 {
        add_flow(&mut world, datapath, number);
    }
    let (mut reader, _) = world.open();
    reader.request(&dump_flows(datapath), Flags::ACK);
    world.run();
    drop(reader);
    world.run();
    assert_eq!(
        world
            .ask(&mut other, &new_port(datapath, "vm1"), Flags::ECHO)
            .len(),
        1
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever a request is: there is an answer, and the next one is served.
    #[test]
    fn garbage_is_answered(
        kind in prop_oneof![Just(0x10_u16), 0x20_u16..0x27, any::<u16>()],
        flags in any::<u16>(),
        payload in proptest::collection::vec(any::<u8>(), 0..200),
        protocol in prop_oneof![Just(GENERIC), Just(12), Just(TRACE), any::<u32>()],
    ) {
        let mut switch = Switch::new(Memory::default(), NoDevices::default(), Capabilities::kernel());
        let length = u32::try_from(16 + payload.len()).unwrap();
        let header = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &(flags | 1).to_ne_bytes(), &[0; 8]].concat();
        prop_assert!(answers(&mut switch, protocol, &[header, payload].concat()).is_some());
        let mut writer = Writer::new();
        Request::Datapath(datapath::Request::Dump).write(message::Header::default(), &mut writer);
        let dumped = answers(&mut switch, GENERIC, &writer.finish().unwrap()).unwrap();
        prop_assert_eq!(message(&dumped[0]).status().unwrap(), Some(Status::Done(None)));
    }
}

#[test]
fn packets_to_be_traced_come_from_a_port_that_there_is() {
    let mut switch = Switch::new(Memory::default(), NoDevices::default(), Capabilities::kernel());
    for (payload, errno) in [
        (&b""[..], Errno::EINVAL),
        (b"vm1", Errno::EINVAL),
        (b"\0frame", Errno::ENODEV),
        (b"vm1\0frame", Errno::ENODEV),
        (b"a name longer than that of any port\0frame", Errno::ENODEV),
    ] {
        let header = message::Header {
            kind: message::FIRST_TYPE,
            flags: Flags::REQUEST,
            ..message::Header::default()
        };
        let mut writer = Writer::new();
        writer.message(header, |body| body.raw(payload));
        let told = answers(&mut switch, TRACE, &writer.finish().unwrap()).unwrap();
        assert_eq!(
            message(&told[0]).status().unwrap(),
            Some(Status::Answer(Some(errno)))
        );
    }
}

/// All that a datagram is answered with; `None` if the answer does not end.
fn answers(switch: &mut Switch<Memory, NoDevices>, protocol: u32, datagram: &[u8]) -> Option<Vec<Vec<u8>>> {
    use ovs_glue::server::{Caller, Service};
    let caller = Caller(1);
    switch.request(caller, protocol, datagram);
    let mut datagrams = Vec::new();
    loop {
        let (answered, answer) = switch.next_answer()?;
        assert_eq!(answered, caller);
        datagrams.extend(answer.datagrams);
        if !answer.more {
            return Some(datagrams);
        }
        switch.go_on(caller);
    }
}

/// A flow with this number, as a message.
fn new_flow(datapath: DatapathId, number: u32) -> Vec<u8> {
    let mut flow = ovs_netlink::key::Match::default();
    flow.key.metadata.mark = number;
    flow.key.eth_type = 0x88b5;
    flow.mask = flow.key.exact_mask();
    let request = Request::Flow(
        datapath.0,
        flow::Request::New {
            flow: Box::new(flow),
            actions: Vec::new(),
            ufid: flow::Ufid::new(&number.to_ne_bytes()),
            omit: flow::Omit::default(),
            probe: false,
        },
    );
    let mut writer = Writer::new();
    let header = message::Header {
        flags: Flags::CREATE | Flags::ACK,
        sequence: number,
        ..message::Header::default()
    };
    request.write(header, &mut writer);
    writer.finish().unwrap()
}

#[test]
fn many_are_under_way_at_one_time_and_answered_in_their_order() {
    let mut world = World::new(Limits::default());
    let (mut client, _) = world.open();
    let (mut other, _) = world.open();
    let datapath = world.make_datapath(&mut other, 0);
    world.glue.switch.datapath.holds_answers = true;
    // 50 flows, of which one is there already, in one datagram.
    let flows = (0..50).map(|number| new_flow(datapath, if number == 30 { 29 } else { number }));
    client.sequence += 1;
    client.send(REQUEST, 0, &flows.collect::<Vec<_>>().concat());
    world.run();
    assert_eq!(
        client.receive(),
        None,
        "none is answered before it is carried out"
    );
    // Who does not need the data plane is served meanwhile, and whoever goes away is forgotten.
    let request = Request::Datapath(datapath::Request::Dump);
    assert!(!world.ask(&mut other, &request, Flags::default()).is_empty());
    let (mut third, _) = world.open();
    third.request(&dump_flows(datapath), Flags::ACK);
    world.run();
    drop(third);
    world.run();
    world.glue.switch.datapath.holds_answers = false;
    let mut answered = Vec::new();
    loop {
        world.run();
        let (header, datagram) = client.receive().expect("an answer is under way");
        let message = message(&datagram);
        let errno = match message.status().unwrap() {
            Some(Status::Answer(errno)) => errno,
            other => panic!("{other:?}"),
        };
        answered.push((message.header.sequence, errno));
        if header.number == client.sequence {
            break;
        }
    }
    let wanted = (0..50).map(|number| match number {
        30 => (29, Some(Errno::EEXIST)),
        _ => (number, None),
    });
    assert_eq!(answered, wanted.collect::<Vec<_>>());
}
