//! The control process as a process, between a supervisor, a data plane and a driver domain played by the
//! test.

// The lint spares test functions, not the functions that they share.
#![allow(clippy::unwrap_used)]

mod bandwidth;
mod changes;
mod crowd;
mod events;
mod hostile;
mod p4runtime;
mod rig;
mod storm;
mod vcpus;
mod view;
mod withstands;

use control_protocol::data_plane::*;
use control_protocol::driver::{
    FromDriver, InterfaceKind, InterfaceSpec, InterfaceState, StackSettings, ToDriver,
};
use control_protocol::supervisor::ToChild;
use control_protocol::{Channel, ChannelError};
use flow::{Action, DropReason, PortId};
use management::{
    PortChanges, PortConfig, PortKind, PortMode, Reply, Request as Verb, SwitchConfig, SwitchKind, VlanConfig,
};
use rig::{CHILD, CONFIG, Plane, Rig, key, unmetered, wait};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

/// Not a test: the control process itself, when started by one.
#[test]
fn child() {
    let Some(run_dir) = std::env::var_os(CHILD) else {
        return;
    };
    let supervisor = Channel::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let config = std::env::var_os(CONFIG).map(PathBuf::from);
    control::run(
        supervisor,
        control::Options {
            run_dir: run_dir.into(),
            config,
            machine: None,
            cores: [0, 1].into(),
            groups: control::Groups::default(),
            p4: control::P4Files::NONE,
        },
    )
    .unwrap();
}

const TWO_PORTS: &str =
    "[[switch]]\nname = \"s\"\n[[switch.port]]\nname = \"a\"\n[[switch.port]]\nname = \"b\"\n";

/// A switch with two running ports.
fn two_ports() -> (Rig, PortId, PortId) {
    let rig = Rig::start(Some(TWO_PORTS));
    let (a, b) = (rig.number("a"), rig.number("b"));
    rig.set_state(a, PortState::Running);
    rig.set_state(b, PortState::Running);
    (rig, a, b)
}

fn running(rig: &Rig, count: usize) {
    wait("running ports", || match rig.call(Verb::Status) {
        Reply::Status(status) => (status.ports_running == count).then_some(()),
        _ => None,
    });
}

#[test]
fn ports_come_and_go_by_request() {
    let rig = Rig::start(None);
    wait("the data plane", || match rig.call(Verb::Status) {
        Reply::Status(status) => status.data_plane,
        _ => None,
    });
    rig.add("sw0", "vm1");
    let socket = rig.dir.path().join("vm1.sock");
    assert_eq!(
        std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o660
    );
    let number = rig.number("vm1");
    UnixStream::connect(&socket).unwrap();
    let mode = std::fs::metadata(management::control_socket(rig.dir.path()))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);

    let Reply::Ports(ports) = rig.call(Verb::PortShow { port: "vm1".into() }) else {
        panic!()
    };
    assert_eq!(
        (ports[0].number, ports[0].state.as_str()),
        (number.0, "disconnected")
    );
    assert_eq!(ports[0].socket.as_ref(), Some(&socket));
    let Reply::Stats(stats) = rig.call(Verb::Stats { port: None }) else {
        panic!()
    };
    assert_eq!((stats.total.received, stats.ports[0].port.as_str()), (3, "vm1"));
    let Reply::Placement(report) = rig.call(Verb::Placement) else {
        panic!()
    };
    assert_eq!(report.calls, 7);

    let changes = PortChanges {
        mtu: management::Mtu::new(9000),
        ..PortChanges::default()
    };
    rig.call(Verb::PortSet {
        port: "vm1".into(),
        changes,
    });
    wait("the MTU", || {
        (rig.plane.lock().unwrap().ports[&number].spec.mtu == 9000).then_some(())
    });

    rig.call(Verb::PortDel { port: "vm1".into() });
    wait("removal", || {
        rig.plane.lock().unwrap().ports.is_empty().then_some(())
    });
    assert!(!socket.exists());
}

#[test]
fn bad_requests_change_nothing_and_say_why() {
    let (rig, ..) = two_ports();
    let foreign = rig.dir.path().join("foreign.sock");
    let _listener = UnixListener::bind(&foreign).unwrap();
    let port = |name: &str, socket: Option<PathBuf>| PortConfig {
        socket,
        ..PortConfig::new(name.parse().unwrap(), PortKind::VhostUser)
    };
    let control = management::control_socket(rig.dir.path());
    let before = rig.plane.lock().unwrap().ports.clone();
    let add = |switch: &str, config| Verb::PortAdd {
        switch: switch.into(),
        config: Box::new(config),
        exists_ok: false,
    };
    for (request, expected) in [
        (add("s", port("a", None)), "already a port a on switch s"),
        (add("t", port("c", None)), "no switch t"),
        (
            add("s", port("c", Some(foreign.clone()))),
            "another process listens",
        ),
        (add("s", port("c", Some(control))), "control process"),
        (
            add("s", port("c", Some(rig.dir.path().join("a.sock")))),
            "already that of a",
        ),
        (Verb::PortDel { port: "a".into() }, "configuration file"),
        (Verb::PortDel { port: "z".into() }, "no port z"),
        (Verb::SwitchDel { switch: "s".into() }, "configuration file"),
        (
            Verb::SwitchAdd {
                switch: SwitchConfig::new("x".parse().unwrap(), SwitchKind::External),
            },
            "needs `uplink`",
        ),
        (
            Verb::MacList {
                switch: Some("t".into()),
            },
            "no switch t",
        ),
        (
            Verb::Trace {
                port: "a".into(),
                frame: management::Hex(vec![0; 13]),
            },
            "14 to 65553",
        ),
        (
            Verb::Capture {
                port: "a".into(),
                snap_length: 10,
            },
            "exactly one socket",
        ),
    ] {
        let text = rig.refused(request);
        assert!(text.contains(expected), "{text}");
    }
    assert!(foreign.exists());
    let mut stream = UnixStream::connect(management::control_socket(rig.dir.path())).unwrap();
    stream
        .write_all(b"{\"verb\":\"dance\"}\nnonsense\n{\"verb\":\"version\"}\n")
        .unwrap();
    let mut answers = String::new();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream.read_to_string(&mut answers).unwrap();
    let lines: Vec<_> = answers.lines().collect();
    assert_eq!(lines.len(), 3, "{answers}");
    assert!(
        lines[0].contains("error") && lines[0].contains("port-set") && lines[2].contains("version"),
        "{answers}"
    );
    // A line without end, and a user who does not read: neither stops the others.
    let mut endless = UnixStream::connect(management::control_socket(rig.dir.path())).unwrap();
    assert!((0..200).any(|_| endless.write_all(&[b'x'; 16384]).is_err()));
    let mut deaf = UnixStream::connect(management::control_socket(rig.dir.path())).unwrap();
    deaf.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    while deaf.write_all(b"{\"verb\":\"status\"}\n").is_ok() {}
    assert!(matches!(rig.call(Verb::Version), Reply::Version(_)));
    assert_eq!(
        rig.plane.lock().unwrap().ports.keys().collect::<Vec<_>>(),
        before.keys().collect::<Vec<_>>()
    );
}

#[test]
fn a_miss_is_executed_before_its_flow_is_installed() {
    let (mut rig, a, b) = two_ports();
    running(&rig, 2);
    // Another station's frame is flooded when control knows that both ports are up: no flow of the next is
    // changed for that.
    rig.upcall(a, 2, 0xff);
    let (ended, position) = rig.upcall(a, 1, 0xff);
    let Request::Execute(execute) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(
        (unmetered(&execute.actions), execute.in_port),
        (&[Action::Output(b)][..], a)
    );
    assert_eq!(execute.packet.frame, vec![7; 60]);
    rig.flow(a, 1, 0xff, Some(&[Action::Output(b)]));
    let put = |request: &Request| matches!(request, Request::FlowPut { flow, .. } if flow.key.eth_src() == key(a, 1, 0xff).eth_src());
    assert!(rig.plane.lock().unwrap().log.iter().position(put).unwrap() > position);

    // To itself: dropped, with a flow that drops.
    let (ended, _) = rig.upcall(a, 1, 1);
    assert!(
        matches!(
            ended,
            Request::Discard {
                reason: DropReason::NoDestination,
                ..
            }
        ),
        "{ended:?}"
    );
    rig.flow(a, 1, 1, Some(&[Action::Drop(DropReason::NoDestination)]));
    let learned = ["02:00:00:00:00:01", "02:00:00:00:00:02"].map(|mac| (mac.to_owned(), "a".to_owned()));
    assert_eq!(rig.macs(), learned);

    // A station is used on another port as well; flows to it follow, and it is shown.
    rig.executed(a, 9, 0xff);
    rig.executed(a, 2, 3);
    rig.upcall(a, 2, 1);
    rig.flow(a, 2, 1, Some(&[Action::Drop(DropReason::NoDestination)]));
    rig.executed(b, 1, 9);
    rig.flow(a, 2, 1, Some(&[Action::Output(b)]));
    rig.flow(a, 1, 0xff, Some(&[Action::Output(b)]));
    let places = ["a", "b"].map(|port| ("02:00:00:00:00:01".to_owned(), port.to_owned()));
    assert_eq!(rig.macs()[..2], places);
    let Reply::Status(status) = rig.call(Verb::Status) else {
        panic!()
    };
    let warning = "switch s: 02:00:00:00:00:01 is used on a and b, so frames for it go to all of them";
    assert!(
        status.warnings.iter().any(|text| text.starts_with(warning)),
        "{:?}",
        status.warnings
    );
    // A port that is disconnected is left out of floods.
    rig.set_state(b, PortState::Disconnected);
    rig.flow(a, 2, 3, Some(&[Action::Drop(DropReason::NoDestination)]));
    let Reply::Flows(flows) = rig.call(Verb::FlowList {
        switch: Some("s".into()),
    }) else {
        panic!()
    };
    assert!(
        flows
            .iter()
            .any(|flow| flow.matches.starts_with("in_port=b,") && flow.actions == ["output(a)"]),
        "{flows:?}"
    );
}

#[test]
fn a_new_control_process_takes_over() {
    let (mut rig, a, b) = two_ports();
    rig.add("s", "c");
    let c = rig.number("c");
    rig.set_state(c, PortState::Running);
    let isolate = PortChanges {
        isolated: Some(true),
        ..PortChanges::default()
    };
    rig.call(Verb::PortSet {
        port: "c".into(),
        changes: isolate.clone(),
    });
    rig.call(Verb::PortSet {
        port: "a".into(),
        changes: isolate,
    });
    running(&rig, 3);
    rig.executed(a, 1, 0xff);
    rig.executed(b, 2, 1);
    rig.executed(a, 1, 2);
    rig.flow(a, 1, 2, Some(&[Action::Output(b)]));
    rig.flow(a, 1, 0xff, Some(&[Action::Output(b)]));
    // An edited file does not matter until a reload is asked for.
    std::fs::write(rig.config.as_ref().unwrap(), "nonsense").unwrap();
    let (ports, flows) = {
        let plane = rig.plane.lock().unwrap();
        (plane.ports.clone(), plane.flows.clone())
    };
    rig.restart_control();
    let macs = wait("stations", || Some(rig.macs()).filter(|macs| macs.len() == 2));
    assert_eq!(macs[0].1, "a");
    assert_eq!(macs[1].1, "b");
    // Not one port or flow was touched. Limits are told again, as they may have changed.
    let plane = rig.plane.lock().unwrap();
    assert_eq!((&plane.ports, &plane.flows), (&ports, &flows));
    let touching = |request: &&Request| {
        !matches!(
            request,
            Request::Hello { .. }
                | Request::PortList
                | Request::FlowList { .. }
                | Request::MeterSet { .. }
                | Request::PortRates { .. }
        )
    };
    assert_eq!(plane.log.iter().find(touching), None);
    drop(plane);
    assert!(rig.refused(Verb::Reload).contains("config.toml:1:"));
    assert_eq!(rig.executed(c, 3, 0xff), [Action::Output(b)]);
    // Deleting a port whose socket an earlier process bound removes the socket.
    rig.call(Verb::PortDel { port: "c".into() });
    assert!(!rig.dir.path().join("c.sock").exists());
}

#[test]
fn a_new_data_plane_gets_everything_again() {
    let (mut rig, a, b) = two_ports();
    rig.executed(a, 1, 0xff);
    rig.flow(a, 1, 0xff, Some(&[Action::Output(b)]));
    let guest = UnixStream::connect(rig.dir.path().join("a.sock")).unwrap();
    *rig.plane.lock().unwrap() = Plane::default();
    // A guest that connects meanwhile is not refused.
    UnixStream::connect(rig.dir.path().join("b.sock")).unwrap();
    rig.connect_plane();
    assert_eq!((rig.number("a"), rig.number("b")), (a, b));
    rig.set_state(a, PortState::Running);
    rig.set_state(b, PortState::Running);
    running(&rig, 2);
    // It still knows where stations are, and that the flow is gone.
    assert_eq!(rig.executed(b, 2, 1), [Action::Output(a)]);
    rig.executed(a, 1, 0xff);
    rig.flow(a, 1, 0xff, Some(&[Action::Output(b)]));
    drop(guest);
}

#[test]
fn reload_changes_what_differs_and_bad_files_nothing() {
    let (rig, a, _) = two_ports();
    let file = rig.config.clone().unwrap();
    let Reply::Reloaded(summary) = rig.call(Verb::Reload) else {
        panic!()
    };
    assert_eq!(summary.changes, Vec::<String>::new());
    rig.add("s", "extra");
    std::fs::write(
        &file,
        TWO_PORTS.replace("\"b\"", "\"c\"\nvlan = { access = 9999 }"),
    )
    .unwrap();
    assert!(
        rig.refused(Verb::Reload).contains("config.toml:7:19: "),
        "{}",
        rig.refused(Verb::Reload)
    );
    std::fs::write(&file, "[[switch]]\nname=\"t\"\n").unwrap();
    assert!(rig.refused(Verb::Reload).contains("extra; delete them first"));
    assert_eq!(rig.plane.lock().unwrap().ports.len(), 3);
    std::fs::write(&file, TWO_PORTS.replace("\"b\"", "\"c\"\nvlan = { access = 9 }")).unwrap();
    let Reply::Reloaded(summary) = rig.call(Verb::Reload) else {
        panic!()
    };
    assert_eq!(summary.changes, ["port b removed", "port c added"]);
    rig.number("c");
    assert_eq!(rig.number("a"), a);
    let Reply::Ports(ports) = rig.call(Verb::PortList { switch: None }) else {
        panic!()
    };
    let names: Vec<_> = ports
        .iter()
        .map(|port| (port.name.as_str(), port.vlan.as_str()))
        .collect();
    assert_eq!(
        names,
        [("a", "untagged"), ("c", "access 9"), ("extra", "untagged")]
    );
}

#[test]
fn flows_and_stations_are_forgotten_and_learned_again() {
    let (mut rig, a, b) = two_ports();
    running(&rig, 2);
    let flows = |rig: &Rig| rig.plane.lock().unwrap().flows.len();
    let learn = |rig: &mut Rig| {
        rig.executed(a, 1, 0xff);
        rig.executed(b, 2, 1);
        rig.executed(a, 1, 2);
        rig.flow(a, 1, 2, Some(&[Action::Output(b)]));
    };
    learn(&mut rig);
    rig.call(Verb::FlowFlush {
        switch: Some("s".into()),
    });
    assert_eq!((flows(&rig), rig.macs().len()), (0, 2));
    assert_eq!(rig.executed(a, 1, 2), [Action::Output(b)], "the station is known");
    rig.flow(a, 1, 2, Some(&[Action::Output(b)]));
    let flush = |switch: Option<&str>, port: Option<&str>| Verb::MacFlush {
        switch: switch.map(str::to_owned),
        port: port.map(str::to_owned),
    };
    rig.call(flush(None, Some("b")));
    let macs = rig.macs();
    assert_eq!((flows(&rig), macs.len(), macs[0].1.as_str()), (0, 1, "a"));
    learn(&mut rig);
    assert_eq!(rig.macs().len(), 2);
    rig.call(flush(Some("s"), None));
    assert_eq!((flows(&rig), rig.macs().len()), (0, 0));
    learn(&mut rig);
    assert_eq!(rig.macs().len(), 2);
    for (verb, expected) in [
        (flush(None, Some("no")), "no port no"),
        (flush(Some("no"), None), "no switch no"),
        (
            Verb::FlowFlush {
                switch: Some("no".into()),
            },
            "no switch no",
        ),
    ] {
        assert!(rig.refused(verb).contains(expected), "{expected}");
    }
    assert_eq!(rig.macs().len(), 2);
}

#[test]
fn who_would_be_disconnected_is_said_before() {
    let (rig, a, _) = two_ports();
    running(&rig, 2);
    let pid = std::process::id();
    rig.set_peer(a, control_protocol::data_plane::PortState::Running, Some(pid));
    let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
    let first = format!("port a is in use (running, process {pid}, {})", comm.trim_end());
    let text = TWO_PORTS
        .replace("\"a\"", "\"a\"\nmac = \"52:54:00:00:00:01\"")
        .replace("\"b\"", "\"c\"");
    std::fs::write(rig.config.as_ref().unwrap(), text).unwrap();
    wait("the process that is connected", || {
        let Reply::Reloaded(plan) = rig.call(Verb::ReloadPlan) else {
            panic!()
        };
        let in_use: Vec<_> = plan.in_use.iter().map(ToString::to_string).collect();
        let second = in_use
            .get(1)
            .filter(|text| text.starts_with("port b is in use (running"));
        (in_use.len() == 2 && in_use[0] == first && second.is_some()).then_some(())
    });
}

/// Nothing happens to the ports, but that the file has them.
#[test]
fn the_file_takes_over_what_has_its_names() {
    let (rig, ..) = two_ports();
    rig.add("s", "extra");
    let mut added = SwitchConfig::new("added".parse().unwrap(), SwitchKind::Private);
    for port in ["inner", "left"] {
        let port = PortConfig::new(port.parse().unwrap(), PortKind::VhostUser);
        added.ports.push(port);
    }
    rig.call(Verb::SwitchAdd { switch: added });
    let numbers = || ["extra", "inner", "left"].map(|port| rig.number(port));
    let before = numbers();
    let port = |name: &str| format!("[[switch.port]]\nname = \"{name}\"\n");
    let switch = "[[switch]]\nname = \"added\"\n";
    let text = [TWO_PORTS, &port("extra"), switch, &port("inner")].concat();
    std::fs::write(rig.config.as_ref().unwrap(), text).unwrap();
    assert_eq!(
        rig.call(Verb::Reload),
        Reply::Reloaded(management::ReloadSummary::default())
    );
    assert_eq!(numbers(), before);
    let Reply::Ports(ports) = rig.call(Verb::PortList { switch: None }) else {
        panic!()
    };
    let origins: Vec<_> = ports
        .iter()
        .map(|port| (port.name.as_str(), port.origin))
        .collect();
    let [config, runtime] = [management::Origin::Config, management::Origin::Runtime];
    let expected = [
        ("a", config),
        ("b", config),
        ("extra", config),
        ("inner", config),
        ("left", runtime),
    ];
    assert_eq!(origins, expected);
    assert!(
        rig.refused(Verb::PortDel { port: "extra".into() })
            .contains("comes from the configuration file")
    );
    rig.call(Verb::PortDel { port: "left".into() });
}

#[test]
fn a_port_of_the_file_at_another_switch_is_another_port() {
    let (rig, ..) = two_ports();
    rig.add("s", "extra");
    let moved = format!("{TWO_PORTS}[[switch]]\nname = \"t\"\n[[switch.port]]\nname = \"extra\"\n");
    std::fs::write(rig.config.as_ref().unwrap(), moved).unwrap();
    let Reply::Reloaded(summary) = rig.call(Verb::Reload) else {
        panic!()
    };
    assert_eq!(summary.replaced[0].keys, ["switch"]);
}

#[test]
fn a_port_that_exists_is_no_error_if_that_is_asked_for() {
    let (rig, a, _) = two_ports();
    let add = |switch: &str, config: &PortConfig, exists_ok| Verb::PortAdd {
        switch: switch.into(),
        config: Box::new(config.clone()),
        exists_ok,
    };
    let mut config = PortConfig::new("a".parse().unwrap(), PortKind::VhostUser);
    assert!(rig.refused(add("s", &config, false)).contains("already a port a"));
    assert_eq!(rig.call(add("s", &config, true)), Reply::Done);
    assert_eq!(rig.number("a"), a);
    config.isolated = true;
    config.mtu = management::Mtu::new(1400);
    let refusal = rig.refused(add("s", &config, true));
    assert!(refusal.ends_with("differs in isolated, mtu"), "{refusal}");
    // What was changed by command counts.
    let changes = management::PortChanges {
        isolated: Some(true),
        mtu: config.mtu,
        ..management::PortChanges::default()
    };
    rig.call(Verb::PortSet {
        port: "a".into(),
        changes,
    });
    assert_eq!(rig.call(add("s", &config, true)), Reply::Done);
    let other = PortConfig::new("new".parse().unwrap(), PortKind::VhostUser);
    assert_eq!(rig.call(add("s", &other, true)), Reply::Done);
    rig.number("new");
}

/// Whatever of the file contradicts whatever was added by command: the error has a place in the file, and a
/// way out.
#[test]
fn a_file_that_contradicts_what_was_added_is_refused_with_its_place() {
    let (rig, ..) = two_ports();
    let file = rig.config.clone().unwrap();
    let mac = "52:54:00:00:00:77";
    let mut config = PortConfig::new("extra".parse().unwrap(), PortKind::VhostUser);
    config.static_macs = vec![mac.parse().unwrap()];
    config.socket = Some("/tmp/hs-contradicted".into());
    let (switch, config) = ("s".to_owned(), Box::new(config));
    let exists_ok = false;
    rig.call(Verb::PortAdd {
        switch,
        config,
        exists_ok,
    });
    let mut added = SwitchConfig::new("added".parse().unwrap(), SwitchKind::Private);
    added
        .ports
        .push(PortConfig::new("inner".parse().unwrap(), PortKind::VhostUser));
    rig.call(Verb::SwitchAdd { switch: added });
    let port = |name: &str, rest: &str| format!("{TWO_PORTS}[[switch.port]]\nname = \"{name}\"\n{rest}\n");
    let line = TWO_PORTS.lines().count() + 2;
    for (text, line, expected) in [
        (
            port("c", &format!("static-macs = [\"{mac}\"]")),
            line + 1,
            "`hyperswitch port del`",
        ),
        (
            port("c", "socket = \"/tmp/hs-contradicted\""),
            line + 1,
            "`hyperswitch port del`",
        ),
    ] {
        std::fs::write(&file, &text).unwrap();
        let refusal = rig.refused(Verb::Reload);
        let place = format!("config.toml:{line}:");
        assert!(
            refusal.contains(&place) && refusal.contains(expected),
            "{text}: {refusal}"
        );
    }
}

#[test]
fn trace_and_capture() {
    let (rig, ..) = two_ports();
    running(&rig, 2);
    let frame = vec![0x02, 0, 0, 0, 0, 5, 0x02, 0, 0, 0, 0, 1, 8, 0, 0];
    let Reply::Trace(report) = rig.call(Verb::Trace {
        port: "a".into(),
        frame: management::Hex(frame),
    }) else {
        panic!()
    };
    let text = serde_json::to_string(&report.steps).unwrap();
    assert!(
        text.contains("its source would be learned") && text.contains("output(b)"),
        "{text}"
    );
    assert!(
        matches!(report.steps.last(), Some(management::TraceStep::Action { action }) if action == "output(b)")
    );
    assert_eq!(rig.macs(), [], "a trace learns nothing");

    let mut client = rig.client();
    let packets = client.capture("a", 96).unwrap();
    let fd = wait("the capture's socket", || {
        rig.plane.lock().unwrap().capture.take()
    });
    let sent = CapturedPacket {
        time_ns: 1,
        direction: CaptureDirection::FromGuest,
        dropped: Some(DropReason::Policy),
        length: 60,
        lost: 0,
        vnet_header: [0; 12],
        frame: vec![1; 60],
    };
    Channel::from(fd).send(&sent, &[]).unwrap();
    assert_eq!(packets.recv::<CapturedPacket>().unwrap().0, sent);
    assert!(matches!(
        packets.recv::<CapturedPacket>(),
        Err(ChannelError::Closed)
    ));
}

#[test]
fn a_client_port_connects_as_soon_as_somebody_listens_and_again() {
    let rig = Rig::start(None);
    let socket = rig.dir.path().join("vmm.sock");
    let config = PortConfig {
        socket: Some(socket.clone()),
        mode: Some(PortMode::Client),
        ..PortConfig::new("vm".parse().unwrap(), PortKind::VhostUser)
    };
    rig.call(Verb::PortAdd {
        switch: "sw0".into(),
        config: Box::new(config),
        exists_ok: false,
    });
    let number = rig.number("vm");
    wait("the reason", || {
        match rig.call(Verb::PortShow { port: "vm".into() }) {
            Reply::Ports(ports) => ports[0]
                .problem
                .clone()
                .filter(|problem| problem.contains("cannot connect")),
            _ => None,
        }
    });
    let listener = UnixListener::bind(&socket).unwrap();
    for _ in 0..2 {
        let (mut vmm, _) = listener.accept().unwrap();
        let fd = wait("the stream", || rig.plane.lock().unwrap().fds.remove(&number));
        UnixStream::from(fd).write_all(b"hello").unwrap();
        let mut text = String::new();
        vmm.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        rig.set_state(number, PortState::Running);
        rig.set_state(number, PortState::Disconnected);
    }
}

#[test]
fn interfaces_are_joined_with_the_data_plane() {
    let config = "[[switch]]\nname = \"s\"\ntype = \"internal\"\nhost = { addresses = [\"10.1.2.3/24\"] }\n";
    let mut rig = Rig::start(Some(config));
    let host = rig.number("s:host");
    let driver = rig.connect_driver();
    let attached = |driver: &Channel| loop {
        match driver.recv::<ToDriver>().unwrap() {
            (ToDriver::List, _) => driver.send(&FromDriver::Interfaces(vec![]), &[]).unwrap(),
            (ToDriver::Attach { port, spec }, mut fds) => return (port, spec, fds.pop().unwrap()),
            other => panic!("{other:?}"),
        }
    };
    let joined = |rig: &Rig, fd: OwnedFd| {
        let other = wait("the other end", || rig.plane.lock().unwrap().fds.remove(&host));
        UnixStream::from(fd).write_all(b"x").unwrap();
        UnixStream::from(other).read_exact(&mut [0]).unwrap();
    };
    let (port, spec, fd) = attached(&driver);
    let addresses = vec![("10.1.2.3".parse().unwrap(), 24)];
    let kind = InterfaceKind::Tap(StackSettings {
        addresses,
        ..StackSettings::default()
    });
    assert_eq!(
        (port, &spec),
        (
            host,
            &InterfaceSpec {
                kind,
                name: "s".into(),
                mtu: Some(1500)
            }
        )
    );
    joined(&rig, fd);
    driver
        .send(
            &FromDriver::State {
                port,
                state: InterfaceState::Up,
            },
            &[],
        )
        .unwrap();
    rig.set_state(host, PortState::Running);

    // The driver domain ends; the next one is given the interface again.
    drop(driver);
    rig.set_state(host, PortState::Disconnected);
    let driver = rig.connect_driver();
    let (_, again, fd) = attached(&driver);
    assert_eq!(again, spec);
    joined(&rig, fd);
    driver
        .send(
            &FromDriver::State {
                port,
                state: InterfaceState::Up,
            },
            &[],
        )
        .unwrap();
    rig.set_state(host, PortState::Running);

    // The data plane ends; the interface stays and gets another stream.
    *rig.plane.lock().unwrap() = Plane::default();
    rig.connect_plane();
    let (_, again, fd) = attached(&driver);
    assert_eq!(again, spec);
    joined(&rig, fd);
    rig.set_state(host, PortState::Running);

    // The control process ends; its successor finds everything in order and detaches interfaces that are not
    // wanted.
    rig.restart_control();
    let driver = rig.connect_driver();
    assert_eq!(driver.recv::<ToDriver>().unwrap().0, ToDriver::List);
    let list = [host, PortId(77)].map(|port| (port, spec.clone(), InterfaceState::Up));
    driver.send(&FromDriver::Interfaces(list.into()), &[]).unwrap();
    assert_eq!(
        driver.recv::<ToDriver>().unwrap().0,
        ToDriver::Detach { port: PortId(77) }
    );
    assert!(
        rig.refused(Verb::PortDel {
            port: "s:host".into()
        })
        .contains("switch s")
    );
    std::thread::sleep(Duration::from_millis(300));
    assert!(matches!(
        driver.try_recv::<ToDriver>(),
        Err(ChannelError::WouldBlock)
    ));
}

#[test]
fn vlans_can_be_changed_under_traffic() {
    let (mut rig, a, b) = two_ports();
    running(&rig, 2);
    rig.executed(a, 1, 0xff);
    rig.flow(a, 1, 0xff, Some(&[Action::Output(b)]));
    let vlan = Some(VlanConfig::Access(management::VlanId::new(7).unwrap()));
    rig.call(Verb::PortSet {
        port: "b".into(),
        changes: PortChanges {
            vlan,
            ..PortChanges::default()
        },
    });
    rig.flow(a, 1, 0xff, Some(&[Action::Drop(DropReason::NoDestination)]));
}

#[test]
fn shutdown_leaves_nothing_behind() {
    let (mut rig, ..) = two_ports();
    rig.supervisor.send(&ToChild::Shutdown, &[]).unwrap();
    assert!(rig.child.wait().unwrap().success());
    let left: Vec<_> = std::fs::read_dir(rig.dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["config.toml"]);
}

/// Idle costs nothing: with nothing learned there is no timer, so the process does not run at all.
#[test]
fn an_idle_control_process_sleeps() {
    let (rig, ..) = two_ports();
    running(&rig, 2);
    let switches = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", rig.child.id())).unwrap();
        let status = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap());
        status
            .map(|text| {
                text.lines()
                    .filter(|line| line.contains("ctxt_switches"))
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    };
    // The process settles in first.
    let sleeps = (0..5).any(|_| {
        let before = switches();
        std::thread::sleep(Duration::from_secs(2));
        switches() == before
    });
    assert!(sleeps, "{:?}", switches());
}

/// The data plane says it once; the port's problem is shown until the data plane says otherwise, whatever its
/// state.
#[test]
fn what_a_vmm_lacks_is_shown() {
    let mut rig = Rig::start(Some("[[switch]]\nname = \"s\"\n[[switch.port]]\nname = \"a\"\n"));
    let a = rig.number("a");
    let text = "its VMM wants more";
    let shown = |rig: &Rig| {
        let Reply::Ports(ports) = rig.call(Verb::PortShow { port: "a".into() }) else {
            panic!()
        };
        let Reply::Status(status) = rig.call(Verb::Status) else {
            panic!()
        };
        let warned = status
            .warnings
            .iter()
            .any(|warning| warning == &format!("port a: {text}"));
        (ports[0].problem.clone(), warned)
    };
    for state in [PortState::Connected, PortState::Disconnected, PortState::Running] {
        rig.tell(a, state, None, Some(text));
        wait("it is shown", || {
            (shown(&rig) == (Some(text.into()), true)).then_some(())
        });
    }
    rig.restart_control();
    wait("it is shown", || {
        (shown(&rig) == (Some(text.into()), true)).then_some(())
    });
    rig.tell(a, PortState::Running, None, None);
    wait("it is gone", || (shown(&rig) == (None, false)).then_some(()));
}
