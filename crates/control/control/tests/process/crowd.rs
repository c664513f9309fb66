//! Users who send too much, too deep, too long, or are too many: the others are served.

use crate::rig::{Rig, wait};
use crate::two_ports;
use management::{Reply, Request as Verb};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// As in `management`.
const MAX_REQUEST: usize = 1 << 20;

fn connect(rig: &Rig) -> UnixStream {
    let path = management::control_socket(rig.dir.path());
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// The answer to a line.
fn answer(mut stream: &UnixStream, line: &[u8]) -> String {
    stream.write_all(line).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

#[test]
fn requests_that_nest_too_deep_are_refused() {
    let (rig, ..) = two_ports();
    let stream = connect(&rig);
    for open in ["[", "{\"a\":", "{\"port-add\":{\"config\":[["] {
        let line = format!("{}\n", open.repeat(30_000));
        let said = answer(&stream, line.as_bytes());
        assert!(said.contains("not a request"), "{said}");
    }
    assert!(answer(&stream, b"\xff\xfe\0\n").contains("not a request"));
    // The connection is as good as before.
    let line = serde_json::to_string(&Verb::Version).unwrap() + "\n";
    assert!(answer(&stream, line.as_bytes()).contains("version"));
}

#[test]
fn a_line_without_end_is_hung_up_on() {
    let (rig, ..) = two_ports();
    let mut stream = connect(&rig);
    let block = [b' '; 65_536];
    let mut sent = 0;
    while stream.write_all(&block).is_ok() {
        sent += block.len();
        assert!(sent < 8 * MAX_REQUEST, "it is listened to for ever");
    }
    assert!(matches!((&stream).read(&mut [0; 10]), Ok(0) | Err(_)));
    assert!(matches!(rig.call(Verb::Status), Reply::Status(_)));
}

#[test]
fn a_crowd_keeps_nobody_out() {
    let (rig, ..) = two_ports();
    let idle: Vec<UnixStream> = (0..300).map(|_| connect(&rig)).collect();
    for stream in idle.iter().step_by(7) {
        let _ = (&mut &*stream).write_all(b"half a requ");
    }
    for _ in 0..20 {
        assert!(matches!(rig.call(Verb::Status), Reply::Status(_)));
    }
}

/// As many requests in one write as fit, again and again.
#[test]
fn a_torrent_of_requests_holds_up_nobody() {
    let (rig, ..) = two_ports();
    let line = serde_json::to_string(&Verb::Version).unwrap() + "\n";
    let requests = 40_000;
    let torrent = connect(&rig);
    let mut writer = torrent.try_clone().unwrap();
    let writing = std::thread::spawn(move || writer.write_all(line.repeat(requests).as_bytes()));
    let mut reader = BufReader::new(torrent).lines();
    for _ in 0..100 {
        assert!(reader.next().unwrap().unwrap().contains("version"));
    }
    // Others are served while most of it is still to be done.
    assert!(matches!(rig.call(Verb::Status), Reply::Status(_)));
    let answered = wait("all answers", || {
        let mut left = requests - 100;
        while left > 0 && reader.next()?.is_ok() {
            left -= 1;
        }
        Some(left)
    });
    assert_eq!(answered, 0);
    writing.join().unwrap().unwrap();
}
