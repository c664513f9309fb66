//! Users of the socket for queries.

use crate::rig::{Rig, wait};
use crate::two_ports;
use management::{PortConfig, PortKind, Reply, Request as Verb, Response};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

fn path(rig: &Rig) -> PathBuf {
    management::view_socket(rig.dir.path())
}

fn connect(rig: &Rig) -> UnixStream {
    let stream = UnixStream::connect(path(rig)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// The answer to a request; `None` if the connection is over.
fn ask(mut stream: &UnixStream, request: &Verb) -> Option<Result<Reply, String>> {
    let line = serde_json::to_string(request).unwrap() + "\n";
    stream.write_all(line.as_bytes()).ok()?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).ok()?;
    match serde_json::from_str(&answer).ok()? {
        Response::Ok(reply) => Some(Ok(reply)),
        Response::Error(report) => Some(Err(report.error)),
    }
}

#[test]
fn queries_are_answered_and_changes_refused_with_the_reason() {
    let (rig, ..) = two_ports();
    let viewer = connect(&rig);
    for query in [
        Verb::Status,
        Verb::PortList { switch: None },
        Verb::Stats { port: None },
        Verb::ConfigShow,
    ] {
        assert!(matches!(ask(&viewer, &query), Some(Ok(_))), "{query:?}");
    }
    assert!(matches!(ask(&viewer, &Verb::Timeout { seconds: 9 }), Some(Ok(_))));
    let before = rig.plane.lock().unwrap().log.len();
    let port = PortConfig::new("c".parse().unwrap(), PortKind::VhostUser);
    for change in [
        Verb::PortAdd {
            switch: "s".into(),
            config: Box::new(port),
            exists_ok: false,
        },
        Verb::PortDel { port: "a".into() },
        Verb::Capture {
            port: "a".into(),
            snap_length: 64,
        },
        Verb::FlowFlush { switch: None },
        Verb::Reload,
    ] {
        let refusal = ask(&viewer, &change).unwrap().unwrap_err();
        assert!(
            refusal.contains("view.sock answers queries only") && refusal.contains("control.sock"),
            "{refusal}"
        );
    }
    assert_eq!(
        rig.plane.lock().unwrap().log.len(),
        before,
        "the data plane was asked"
    );
}

#[test]
fn viewers_take_no_place_of_the_owner_s() {
    let (rig, ..) = two_ports();
    let mut owner = rig.client();
    let crowd: Vec<UnixStream> = (0..300).map(|_| connect(&rig)).collect();
    // Of the viewers, the latest have places.
    wait("a place", || ask(crowd.last().unwrap(), &Verb::Version)?.ok());
    assert!(ask(&crowd[0], &Verb::Version).is_none());
    // A request that is not repeated, so that the connection is the one from before.
    let flush = Verb::MacFlush {
        switch: None,
        port: None,
    };
    assert!(matches!(owner.call(&flush), Ok(Reply::Done)));
}

/// Group and mode follow the configuration, and so do those who are connected.
#[test]
fn a_reload_changes_who_may_view() {
    let switch = "[[switch]]\nname = \"s\"\n";
    let rig = Rig::start(Some(switch));
    let file = rig.config.clone().unwrap();
    let mode = || std::fs::metadata(path(&rig)).map(|found| found.permissions().mode() & 0o777);
    assert_eq!(wait("the socket", || mode().ok()), 0o660);
    let viewer = connect(&rig);
    assert!(ask(&viewer, &Verb::Version).is_some());
    std::fs::write(&file, format!("{switch}[access]\nview-mode = \"0600\"\n")).unwrap();
    rig.call(Verb::Reload);
    assert_eq!(mode().unwrap(), 0o600);
    assert!(ask(&viewer, &Verb::Version).is_none());
    assert!(ask(&connect(&rig), &Verb::Version).is_some());
    std::fs::write(&file, format!("{switch}[access]\nview-group = \"nobodys\"\n")).unwrap();
    rig.call(Verb::Reload);
    assert!(mode().is_err(), "there is a socket of another group");
    let Reply::Status(status) = rig.call(Verb::Status) else {
        panic!()
    };
    let warning = status.warnings.iter().find(|text| text.contains("view.sock"));
    assert!(warning.unwrap().contains("no group nobodys"), "{warning:?}");
}
