//! The glue process of the tests: a data plane in memory, placeholders that are TAPs, commands on standard
//! input.

use crate::memory::Memory;
use ovs_glue::datapath::{DatapathId, PortNo, Seen, Upcall, UpcallKind};
use ovs_glue::placeholder::Placeholders;
use ovs_glue::server::{Caller, Limits, Service};
use ovs_glue::switch::Switch;
use ovs_glue::tap::TapPlaceholders;
use ovs_glue::{Capabilities, Glue, Owner};
use ovs_netlink::action::Action;
use ovs_netlink::attribute::Writer;
use ovs_netlink::flow::Stats;
use ovs_netlink::key::{Ethernet, Key};
use ovs_netlink::message::{Header, messages};
use ovs_netlink::name::Name;
use ovs_netlink::{Reply, Request, vport};
use std::io::BufRead;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// What a line with an answer begins with: the test harness writes lines of its own.
pub const ANSWER: &str = "answer: ";

/// Set for a data plane that can do less than a kernel.
pub const FIRST: &str = "HYPERSWITCH_TEST_FIRST";

type TestGlue = Glue<Memory, TapPlaceholders>;

/// The lines of standard input, until it ends.
pub fn commands() -> mpsc::Receiver<String> {
    let (sender, commands) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if sender.send(line.unwrap()).is_err() {
                break;
            }
        }
    });
    commands
}

/// The instance is known by its socket's directory.
pub fn owner(socket: &Path) -> Owner {
    Owner::new(socket.parent().unwrap())
}

/// Serves until standard input ends.
pub fn run(socket: &Path) {
    let capabilities = match std::env::var_os(FIRST) {
        Some(_) => Capabilities::first(),
        None => Capabilities {
            meters: 4096,
            ..Capabilities::kernel()
        },
    };
    let switch = Switch::new(
        Memory::default(),
        TapPlaceholders::new(owner(socket)).unwrap(),
        capabilities,
    );
    let instance = u64::from(std::process::id());
    let mut glue = Glue::listen(socket, instance, Limits::default(), switch).unwrap();
    let commands = commands();
    let pause = Duration::from_millis(5).try_into().unwrap();
    loop {
        while glue.turn(Some(&pause)).unwrap() {}
        match commands.try_recv() {
            // First a new line: the harness may have begun one.
            Ok(command) => println!("\n{ANSWER}{}", carry_out(&mut glue, &command)),
            Err(mpsc::TryRecvError::Empty) => {}
            Err(mpsc::TryRecvError::Disconnected) => return,
        }
    }
}

/// What the switch says of a port when it is asked.
fn vport(glue: &mut TestGlue, port: &str) -> String {
    let which = vport::Which {
        name: Name::new(port),
        datapath: 0,
        port: None,
    };
    let mut writer = Writer::new();
    Request::Vport(vport::Request::Get(which)).write(Header::default(), &mut writer);
    let generic = libc::NETLINK_GENERIC.cast_unsigned();
    // No connection has this number.
    glue.switch
        .request(Caller(u64::MAX), generic, &writer.finish().unwrap());
    let (_, answer) = glue.switch.next_answer().unwrap();
    let message = messages(&answer.datagrams[0]).next().unwrap().unwrap();
    match Reply::read(&message).unwrap() {
        Reply::Vport(told) => format!("namespace={:?} index={:?}", told.netns_id, told.ifindex),
        other => panic!("{other:?}"),
    }
}

fn carry_out(glue: &mut TestGlue, command: &str) -> String {
    if let Some(port) = command.strip_prefix("vport ") {
        return vport(glue, port);
    }
    let memory = &mut glue.switch.datapath;
    match command.split(' ').collect::<Vec<_>>()[..] {
        ["ports"] => {
            let datapaths: Vec<_> = memory.datapaths().collect();
            let ports = datapaths.iter().flat_map(|datapath| memory.ports(*datapath));
            let mut names: Vec<_> = ports.map(|port| port.name.as_str()).collect();
            names.sort_unstable();
            names.join(" ")
        }
        ["state", port] => {
            let state = memory.states.get(&find(memory, port)).unwrap();
            format!("up={} mtu={}", state.up, state.mtu)
        }
        ["carrier", port, connected] => {
            let (datapath, number) = find(memory, port);
            memory.carriers.push_back((datapath, number, connected == "on"));
            String::new()
        }
        ["remove-abandoned"] => glue.switch.placeholders.remove_abandoned().to_string(),
        ["sent"] => memory.sent.to_string(),
        ["last"] => memory.last_sent.as_ref().map_or_else(String::new, |sent| {
            let output = |action: &Action| match action {
                Action::Output(port) => Some(*port),
                _ => None,
            };
            let mut ports: Vec<_> = sent.actions.iter().filter_map(output).collect();
            ports.sort_unstable();
            format!("outputs={ports:?} serial={:?}", sent.serial)
        }),
        ["inject", port, first, count] => {
            let first: u32 = first.parse().unwrap();
            let (datapath, port) = find(memory, port);
            for number in first..first + count.parse::<u32>().unwrap() {
                memory.inject(miss(datapath, port, number));
            }
            String::new()
        }
        // The last flow that was installed sees packets.
        ["hit", packets, bytes] => {
            let seen = Seen {
                stats: Stats {
                    packets: packets.parse().unwrap(),
                    bytes: bytes.parse().unwrap(),
                },
                used: Some(monotonic_ms()),
                tcp_flags: 0,
            };
            let (datapath, id) = memory.last_flow.clone().unwrap();
            memory.hit(datapath, &id, seen);
            String::new()
        }
        _ => panic!("{command}"),
    }
}

fn find(memory: &Memory, name: &str) -> (DatapathId, PortNo) {
    let datapath = memory.datapaths().next().unwrap();
    let port = memory.ports(datapath).find(|port| port.name == name).unwrap();
    (datapath, port.number)
}

/// A broadcast frame that no flow matched; its sender's address ends with `number`.
fn miss(datapath: DatapathId, port: PortNo, number: u32) -> Upcall {
    let [a, b, c, d] = number.to_be_bytes();
    let source = [2, 0, a, b, c, d];
    let mut key = Key {
        ethernet: Some(Ethernet {
            source,
            destination: [0xff; 6],
        }),
        eth_type: 0x88b5,
        ..Key::default()
    };
    key.metadata.in_port = Some(port.0);
    let mut packet = [&[0xff; 6], &source[..], &[0x88, 0xb5]].concat();
    packet.resize(60, 0);
    Upcall {
        datapath,
        port,
        kind: UpcallKind::Miss,
        packet,
        key: Box::new(key),
        mru: None,
        length: None,
        serial: u64::from(number),
        hash: number,
    }
}

fn monotonic_ms() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a `timespec`, which lives during the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    assert_eq!(result, 0);
    u64::try_from(time.tv_sec * 1000 + time.tv_nsec / 1_000_000).unwrap()
}
