//! Starting children, in processes of their own since descriptors, signals and parents are per process.

#![allow(clippy::unwrap_used)]

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "PROCESS_TEST_ROLE";

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn this_binary(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdout(Stdio::null());
    command
}

fn receive(channel: &OwnedFd) -> String {
    let mut bytes = [0u8; 4096];
    let (length, _) = rustix::net::recv(channel, &mut bytes, RecvFlags::empty()).unwrap();
    String::from_utf8(bytes[..length].to_vec()).unwrap()
}

/// Not a test by itself: what the children do.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.as_str() {
        "descriptors" => {
            let channel = process::supervisor_channel().unwrap();
            assert!(process::supervisor_channel().is_err(), "only once");
            let mut open: Vec<i32> = std::fs::read_dir("/proc/self/fd")
                .unwrap()
                .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
                .collect();
            open.sort_unstable();
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let blocked = status.lines().find(|line| line.starts_with("SigBlk")).unwrap();
            let group = rustix::process::getpgrp() == rustix::process::getpid();
            let answer = format!("{open:?} {blocked} {group}");
            rustix::net::send(&channel, answer.as_bytes(), SendFlags::empty()).unwrap();
        }
        "sleeper" => {
            let channel = process::supervisor_channel().unwrap();
            let _ = rustix::net::recv(&channel, &mut [0u8; 1], RecvFlags::empty());
            std::thread::sleep(Duration::from_secs(60));
        }
        "parent" => {
            let (ours, theirs) = pair();
            let child = process::spawn(
                &mut this_binary("child", "sleeper"),
                rustix::fd::AsFd::as_fd(&theirs),
            );
            eprintln!("grandchild {}", child.unwrap().id());
            std::thread::sleep(Duration::from_secs(60));
            drop(ours);
        }
        "signals" => {
            let signals = process::Signals::new().unwrap();
            assert_eq!(signals.take().unwrap(), None);
            for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGINT, libc::SIGCHLD] {
                // SAFETY: no memory is involved. The signal is blocked in this thread, to which it is sent.
                assert_eq!(unsafe { libc::raise(signal) }, 0);
            }
            let mut seen = Vec::new();
            while let Some(signal) = signals.take().unwrap() {
                seen.push(signal);
            }
            use process::Signal::{Child, Reload, Terminate};
            // In the order of their numbers, as the kernel hands them out.
            assert_eq!(seen, [Reload, Terminate, Terminate, Child]);
        }
        "nobody's" => assert!(process::supervisor_channel().is_err()),
        other => panic!("no such role: {other}"),
    }
}

#[test]
fn a_child_has_its_channel_and_nothing_else() {
    // Descriptors that must not get through, one of them deliberately without close-on-exec.
    let file = std::fs::File::open("/dev/null").unwrap();
    let _leak = rustix::io::dup(&file).unwrap();
    let (ours, theirs) = pair();
    let mut child = process::spawn(
        &mut this_binary("child", "descriptors"),
        rustix::fd::AsFd::as_fd(&theirs),
    )
    .unwrap();
    // 4 is the directory being read.
    assert_eq!(receive(&ours), "[0, 1, 2, 3, 4] SigBlk:\t0000000000000000 true");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_program_that_is_missing_is_an_error() {
    let (_ours, theirs) = pair();
    let error = process::spawn(
        &mut Command::new("/nonexistent"),
        rustix::fd::AsFd::as_fd(&theirs),
    )
    .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn a_process_started_by_hand_is_told_so() {
    assert!(this_binary("child", "nobody's").status().unwrap().success());
}

#[test]
fn signals_become_readable_instead_of_deadly() {
    assert!(this_binary("child", "signals").status().unwrap().success());
}

#[test]
fn children_die_with_the_supervisor() {
    let mut parent = this_binary("child", "parent")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(parent.stderr.take().unwrap()));
    let grandchild = loop {
        let line = lines.next().unwrap().unwrap();
        if let Some(pid) = line.strip_prefix("grandchild ") {
            break pid.to_owned();
        }
    };
    let alive = || {
        // A zombie that has not been reaped yet counts as dead.
        std::fs::read_to_string(format!("/proc/{grandchild}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    };
    assert!(alive());
    parent.kill().unwrap();
    parent.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while alive() {
        assert!(Instant::now() < deadline, "the grandchild lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
}
