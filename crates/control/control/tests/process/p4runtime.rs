//! The process for P4Runtime, as a user with few rights.

use crate::rig::Rig;
use control_protocol::p4::P4Array;
use control_protocol::supervisor::{Role, ToChild};
use management::{P4Device, Reply, Request as Verb, Response};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const CONFIG: &str = "[[switch]]\nname = \"s\"\n[[switch.port]]\nname = \"a\"\n\
     [[p4runtime.device]]\nid = 7\nname = \"mine\"\nports = [\"1=a\"]\n";

fn attach(rig: &Rig) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let message = ToChild::Peer(Role::P4Runtime);
    rig.supervisor.send(&message, &[theirs.as_fd()]).unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    ours
}

fn ask(mut stream: &UnixStream, request: &Verb) -> Result<Reply, String> {
    let line = serde_json::to_string(request).unwrap() + "\n";
    stream.write_all(line.as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    match serde_json::from_str(&answer).unwrap() {
        Response::Ok(reply) => Ok(reply),
        Response::Error(report) => Err(report.error),
    }
}

#[test]
fn the_process_for_p4runtime_reaches_its_devices_only() {
    let rig = Rig::start(Some(CONFIG));
    let process = attach(&rig);
    let device = P4Device {
        id: 7,
        name: "mine".into(),
        tag: None,
    };
    assert_eq!(
        ask(&process, &Verb::P4Devices).unwrap(),
        Reply::P4Devices(vec![device])
    );
    let load = |name: &str| Verb::P4Load {
        name: name.parse().unwrap(),
        ports: None,
        operations: None,
        replaces: None,
        changes: false,
        writes: Vec::new(),
    };
    let program = |name: &str| Verb::P4Program {
        name: name.into(),
        offset: 0,
    };
    let read = |name: &str| Verb::P4Read {
        name: name.into(),
        tag: 0,
        array: P4Array::Counter(0),
        from: 0,
    };
    // About its device it is answered as any user: there is no program yet, and none came along.
    let connect = |name: &str| Verb::P4Connect { name: name.into() };
    for own in [load("mine"), program("mine"), read("mine"), connect("mine")] {
        let error = ask(&process, &own).unwrap_err();
        assert!(!error.contains("may ask for"), "{own:?}: {error}");
    }
    let others = [
        load("other"),
        Verb::P4WriteAll {
            name: "other".into(),
            tag: 0,
            writes: Vec::new(),
        },
        program("other"),
        read("other"),
        connect("other"),
        Verb::P4Unload { name: "mine".into() },
        Verb::P4List,
        Verb::Status,
        Verb::ConfigShow,
        Verb::PortDel { port: "a".into() },
        Verb::Capture {
            port: "a".into(),
            snap_length: 64,
        },
        Verb::Timeout { seconds: 9 },
    ];
    for other in others {
        let error = ask(&process, &other).unwrap_err();
        assert!(
            error.contains("programs of its devices only"),
            "{other:?}: {error}"
        );
    }
    assert!(matches!(rig.call(Verb::Status), Reply::Status(_)));
    // The next process takes its place.
    let next = attach(&rig);
    assert!(ask(&next, &Verb::P4Devices).is_ok());
    let mut end = String::new();
    assert_eq!(BufReader::new(&process).read_line(&mut end).unwrap(), 0);
}
