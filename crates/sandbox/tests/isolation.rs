//! What an isolated process can and cannot do. Each attempt runs in a child of its own: this binary again.

#![allow(clippy::unwrap_used)]

use sandbox::{Kept, Violation, isolate_data_plane};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};

const ATTEMPT: &str = "SANDBOX_TEST_ATTEMPT";
const REPORT: &str = "SANDBOX_TEST_REPORT";
const DONE: i32 = 77;

/// What happened to an attempt.
#[derive(Debug, PartialEq)]
enum End {
    Worked,
    Killed,
    Other(Output),
}

fn attempt(name: &str, report: bool) -> (End, Output) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(ATTEMPT, name)
        .env(REPORT, if report { "1" } else { "0" })
        .output()
        .unwrap();
    let end = match (output.status.code(), output.status.signal()) {
        (Some(DONE), _) => End::Worked,
        (_, Some(libc::SIGSYS)) => End::Killed,
        _ => End::Other(output.clone()),
    };
    (end, output)
}

fn works(name: &str) {
    assert_eq!(attempt(name, false).0, End::Worked, "{name}");
}

fn is_killed(name: &str) {
    assert_eq!(attempt(name, false).0, End::Killed, "{name}");
    // The same attempt without isolation does something: otherwise this shows nothing.
    let (end, output) = attempt(&format!("free {name}"), false);
    assert!(end == End::Worked, "{name} without isolation: {output:?}");
}

/// Not a test by itself: the child of the tests below.
#[test]
fn child() {
    let Ok(name) = std::env::var(ATTEMPT) else { return };
    let violation = if std::env::var(REPORT).unwrap() == "1" {
        Violation::Report
    } else {
        Violation::Kill
    };
    let directory = std::env::temp_dir().join(format!("sandbox-test-{}", std::process::id()));
    let listener = UnixListener::bind(&directory).unwrap();
    let client = UnixStream::connect(&directory).unwrap();
    std::fs::remove_file(&directory).unwrap();
    let name = match name.strip_prefix("free ") {
        Some(name) => name,
        None => {
            isolate_data_plane(violation, Kept::Nothing).unwrap();
            &name
        }
    };
    do_attempt(name, &listener, client);
    std::process::exit(DONE);
}

fn do_attempt(name: &str, listener: &UnixListener, mut client: UnixStream) {
    match name {
        "nothing" => {}
        "forward" => {
            let (mut server, _) = listener.accept().unwrap();
            server.set_nonblocking(true).unwrap();
            server
                .set_write_timeout(Some(std::time::Duration::from_secs(1)))
                .unwrap();
            client.write_all(b"hello").unwrap();
            let mut bytes = [0; 5];
            server.read_exact(&mut bytes).unwrap();
            let copy = server.try_clone().unwrap();
            copy.shutdown(std::net::Shutdown::Both).unwrap();
        }
        "threads" => {
            for round in 0..3u8 {
                let thread = std::thread::Builder::new().name("worker".into());
                let thread = thread.spawn(move || vec![round; 1 << 20].len()).unwrap();
                assert_eq!(thread.join().unwrap(), 1 << 20);
            }
        }
        "memory" => {
            let mut grown = vec![1u8; 1 << 20];
            grown.resize(64 << 20, 2);
            drop(grown);
        }
        "allocator" => {
            // Arenas of threads shrink when freed, for which the C library looks into /proc.
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    std::thread::spawn(|| {
                        let blocks: Vec<_> = (0..4000).map(|size| vec![0u8; 10_000 + size]).collect();
                        drop(blocks);
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
        "time" => {
            std::thread::sleep(std::time::Duration::from_millis(1));
            assert!(std::time::Instant::now().elapsed().as_secs() < 5);
            let _ = std::thread::available_parallelism();
        }
        "panic" => {
            let result = std::thread::spawn(|| panic!("said aloud")).join();
            assert!(result.is_err());
        }
        "poll" => {
            let (server, _) = listener.accept().unwrap();
            let mut fds = [rustix::event::PollFd::new(&server, rustix::event::PollFlags::OUT)];
            assert_eq!(rustix::event::poll(&mut fds, None).unwrap(), 1);
            let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
            let data = rustix::event::epoll::EventData::new_u64(7);
            rustix::event::epoll::add(&epoll, &server, data, rustix::event::epoll::EventFlags::OUT).unwrap();
            let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
            rustix::io::write(&wake, &1u64.to_ne_bytes()).unwrap();
        }
        "size" => {
            assert!(rustix::fs::fstat(listener).is_ok());
            let file = std::fs::File::from(client.try_clone().map(std::os::fd::OwnedFd::from).unwrap());
            assert!(
                file.metadata().is_ok(),
                "the standard library survives that statx() is refused"
            );
        }
        "open" => {
            let error = std::fs::File::open("/etc/passwd").unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        }
        "wait" => drop(std::io::stdin().read(&mut [0]).unwrap()),
        "stat" => drop(std::fs::symlink_metadata("/etc/passwd").unwrap()),
        "unlink" => drop(std::fs::remove_file("/nonexistent").unwrap_err()),
        "socket" => drop(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()),
        "connect" => drop(UnixStream::connect("/nonexistent").unwrap_err()),
        "execve" => drop(Command::new("/nonexistent").exec()),
        "fork" => raw(libc::SYS_clone, [libc::SIGCHLD, 0, 0, 0]),
        "vfork" => drop(Command::new("/bin/true").status().unwrap()),
        "kill" => raw(libc::SYS_kill, [std::process::id().cast_signed(), 0, 0, 0]),
        "signal another" => raw(libc::SYS_tgkill, [1, 1, 0, 0]),
        "ptrace" => raw(libc::SYS_ptrace, [libc::PTRACE_PEEKDATA.cast_signed(), 1, 0, 0]),
        "executable memory" => {
            let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            raw(
                libc::SYS_mmap,
                [0, 4096, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS],
            );
        }
        "set owner" => raw(libc::SYS_fcntl, [0, libc::F_SETOWN, 0, 0]),
        "terminal" => raw(libc::SYS_ioctl, [0, 0x5401, 0, 0]),
        "bind to device" => raw(
            libc::SYS_setsockopt,
            [0, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, 0],
        ),
        "another filter" => raw(libc::SYS_seccomp, [99, 0, 0, 0]),
        other => panic!("no such attempt: {other}"),
    }
}

/// Makes a system call whose result does not matter; further arguments are 0.
fn raw(number: i64, arguments: [i32; 4]) {
    let [a, b, c, d] = arguments.map(i64::from);
    // SAFETY: no argument is a pointer to anything of this process: the kernel cannot change its memory, and a
    // child made by clone() without flags has a memory of its own.
    unsafe { libc::syscall(number, a, b, c, d, 0, 0) };
}

#[test]
fn the_work_of_a_data_plane_goes_on() {
    for name in [
        "nothing",
        "forward",
        "threads",
        "memory",
        "allocator",
        "time",
        "panic",
        "poll",
        "size",
    ] {
        works(name);
    }
}

#[test]
fn the_file_system_is_out_of_reach() {
    works("open");
    is_killed("unlink");
    is_killed("stat");
}

#[test]
fn no_sockets_are_made() {
    is_killed("socket");
    is_killed("connect");
    is_killed("bind to device");
}

#[test]
fn no_processes_are_made_or_touched() {
    for name in ["execve", "fork", "vfork", "kill", "signal another", "ptrace"] {
        is_killed(name);
    }
}

#[test]
fn arguments_are_looked_at() {
    for name in ["executable memory", "set owner", "terminal", "another filter"] {
        is_killed(name);
    }
}

#[test]
fn a_violation_can_be_reported() {
    let (end, output) = attempt("socket", true);
    assert_eq!(end, End::Killed);
    let text = String::from_utf8(output.stderr).unwrap();
    let expected = format!("forbidden system call {:04}\n", libc::SYS_socket);
    assert!(text.contains(&expected), "{text}");
}

#[test]
fn privileges_are_gone() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(ATTEMPT, "wait")
        .env(REPORT, "0")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let isolated_thread = || {
        // The test harness of the child has a thread of its own, whose capabilities nobody dropped.
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).ok()?;
        let read = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status")).ok();
        let all: Vec<String> = tasks.flatten().filter_map(read).collect();
        let filtered = all.iter().all(|status| status.contains("Seccomp:\t2"));
        all.into_iter()
            .find(|status| filtered && status.contains("CapPrm:\t0000000000000000"))
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let status = loop {
        match isolated_thread() {
            Some(status) => break status,
            None => assert!(std::time::Instant::now() < deadline, "never isolated"),
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    for line in [
        "CapInh:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        assert!(status.contains(line), "{line} in {status}");
    }
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(DONE));
}
