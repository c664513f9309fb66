//! What an isolated process can and cannot do. Each attempt runs in a child of its own: this binary again.

#![allow(clippy::unwrap_used)]

use sandbox::{
    Kept, Violation, isolate_control, isolate_data_plane, isolate_driver, isolate_forwarder, isolate_ovs,
};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
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
    // The child may not be able to remove its files.
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("TMPDIR", directory.path())
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
    let socket = std::env::temp_dir().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let client = UnixStream::connect(&socket).unwrap();
    std::fs::remove_file(&socket).unwrap();
    let (free, name) = match name.strip_prefix("free ") {
        Some(name) => (true, name),
        None => (false, name.as_str()),
    };
    let place = Place::new();
    let _vmm = UnixListener::bind(place.elsewhere("vmm.sock")).unwrap();
    std::os::unix::fs::symlink(place.elsewhere("vmm.sock"), place.elsewhere("link")).unwrap();
    let (missing, name) = if let Some(name) = name.strip_prefix("control: ") {
        let isolate = || isolate_control(violation, &place.run_dir, Some(&place.config)).unwrap();
        (if free { Vec::new() } else { isolate() }, name)
    } else if let Some(name) = name.strip_prefix("driver: ") {
        let isolate = || isolate_driver(violation).unwrap();
        (if free { Vec::new() } else { isolate() }, name)
    } else if let Some(name) = name.strip_prefix("forwarder: ") {
        let isolate = || isolate_forwarder(violation, Kept::Nothing, 1).unwrap();
        (if free { Vec::new() } else { isolate() }, name)
    } else if let Some(name) = name.strip_prefix("ovs: ") {
        let isolate = || isolate_ovs(violation, &place.run_dir).unwrap();
        (if free { Vec::new() } else { isolate() }, name)
    } else if let Some(name) = name.strip_prefix("sending: ") {
        let isolate = || isolate_data_plane(violation, Kept::Nothing, true).unwrap();
        (if free { Vec::new() } else { isolate() }, name)
    } else {
        let isolate = || isolate_data_plane(violation, Kept::Nothing, false).unwrap();
        (if free { Vec::new() } else { isolate() }, name)
    };
    // Where the kernel has no Landlock there is nothing to be tried about files.
    let landlocked = !missing.iter().any(|what| what.contains("Landlock"));
    match name.strip_prefix("file ") {
        Some(name) if landlocked => touch_files(name, &place),
        Some(_) => {}
        None => do_attempt(name, &listener, client),
    }
    std::process::exit(DONE);
}

/// Files of the child: a run directory, a configuration, and something that is none of its business.
struct Place {
    base: PathBuf,
    run_dir: PathBuf,
    config: PathBuf,
}

impl Place {
    fn new() -> Place {
        let base = std::env::temp_dir().join("place");
        let place = Place {
            run_dir: base.join("run"),
            config: base.join("etc/c.toml"),
            base,
        };
        std::fs::create_dir_all(&place.run_dir).unwrap();
        std::fs::create_dir_all(place.base.join("etc")).unwrap();
        std::fs::create_dir_all(place.base.join("elsewhere")).unwrap();
        std::fs::write(&place.config, "a configuration").unwrap();
        std::fs::write(place.elsewhere("secret"), "not yours").unwrap();
        place
    }

    fn elsewhere(&self, name: &str) -> PathBuf {
        self.base.join("elsewhere").join(name)
    }
}

/// What a process does with files, or is refused; it survives both.
fn touch_files(name: &str, place: &Place) {
    let refused = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    };
    let read = |path: &Path| std::fs::read(path).map(drop);
    match name {
        "of control" => {
            std::fs::create_dir_all(&place.run_dir).unwrap();
            let (new, state) = (place.run_dir.join("state.new"), place.run_dir.join("state"));
            for _ in 0..2 {
                std::fs::write(&new, "state").unwrap();
                std::fs::rename(&new, &state).unwrap();
            }
            read(&state).unwrap();
            std::fs::remove_file(&state).unwrap();
            read(&place.config).unwrap();
            std::fs::read_dir("/proc/self/task").unwrap().for_each(|task| {
                read(&task.unwrap().path().join("comm")).unwrap();
            });
            for socket in [place.run_dir.join("vm.sock"), place.elsewhere("vm.sock")] {
                let listener = UnixListener::bind(&socket).unwrap();
                UnixStream::connect(&socket).unwrap();
                drop(listener);
                assert!(std::fs::symlink_metadata(&socket).is_ok());
                std::fs::remove_file(&socket).unwrap();
            }
        }
        // As `socket-path` walks: from descriptor to descriptor, reading links, and to what a descriptor is
        // of.
        "of a VMM" => {
            use rustix::fs::{CWD, Mode, OFlags, fstat, openat, readlinkat};
            let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let link = openat(CWD, place.elsewhere("link"), flags, Mode::empty()).unwrap();
            let target = readlinkat(&link, "", Vec::new()).unwrap();
            let socket = openat(CWD, target.as_c_str(), flags, Mode::empty()).unwrap();
            let found = fstat(&socket).unwrap();
            assert_eq!((found.st_uid, found.st_gid), (user.as_raw(), group.as_raw()));
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&socket));
            let stream = UnixStream::connect(path).unwrap();
            rustix::net::sockopt::socket_peercred(&stream).unwrap();
        }
        "not of control" => {
            refused(read(&place.elsewhere("secret")));
            refused(std::fs::write(place.elsewhere("secret"), "changed"));
            refused(std::fs::write(place.elsewhere("new"), "planted"));
            refused(std::fs::write(&place.config, "changed"));
            refused(std::fs::write("/proc/self/comm", "changed"));
            refused(
                std::fs::rename(place.run_dir.join("nothing"), place.elsewhere("secret")).map_err(|error| {
                    match error.kind() {
                        // There is nothing to be moved, which is noticed first.
                        std::io::ErrorKind::NotFound => std::io::ErrorKind::PermissionDenied.into(),
                        _ => error,
                    }
                }),
            );
        }
        "of a driver domain" => match std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/net/tun")
        {
            Ok(_) => {}
            // The machine may have none, or not for us.
            Err(error) => assert_ne!(error.raw_os_error(), Some(libc::ENOSYS)),
        },
        "not of a driver domain" => {
            refused(read(&place.elsewhere("secret")));
            refused(
                std::fs::OpenOptions::new()
                    .write(true)
                    .open(&place.config)
                    .map(drop),
            );
        }
        other => panic!("no such attempt: {other}"),
    }
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
        "apart" => apart(client),
        "asynchronous I/O" => {
            let mut context: libc::c_ulong = 0;
            // SAFETY: the kernel writes one number to `context`.
            let made = unsafe { libc::syscall(libc::SYS_io_setup, 4, &raw mut context) };
            assert_eq!(made, 0);
        }
        "new namespace" => raw(libc::SYS_unshare, [libc::CLONE_NEWUTS, 0, 0, 0]),
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
        "send many" => raw(libc::SYS_sendmmsg, [0, 0, 0, libc::MSG_DONTWAIT]),
        "send many and wait" => raw(libc::SYS_sendmmsg, [0, 0, 0, 0]),
        "input to a terminal" => raw(libc::SYS_ioctl, [0, 0x5412, 0, 0]),
        "class of another" => raw(
            libc::SYS_sched_setscheduler,
            [std::process::id().cast_signed(), 0, 0, 0],
        ),
        "move another" => raw(
            libc::SYS_sched_setaffinity,
            [std::process::id().cast_signed(), 0, 0, 0],
        ),
        "priority of another" => raw(
            libc::SYS_sched_setscheduler,
            [std::process::id().cast_signed(), 0, 0, 0],
        ),
        "deadlines" => raw(libc::SYS_sched_setscheduler, [0, libc::SCHED_DEADLINE, 0, 0]),
        "own core" => {
            let set = rustix::thread::sched_getaffinity(None).unwrap();
            rustix::thread::sched_setaffinity(None, &set).unwrap();
        }
        "set-user-ID of a descriptor" => raw(libc::SYS_fchmod, [-1, 0o4755, 0, 0]),
        "set-user-ID" => raw(libc::SYS_fchmodat, [-1, 0, 0o4755, 0]),
        "owner" => raw(libc::SYS_fchownat, [-1, 0, 0, 0]),
        "create a file" => raw(libc::SYS_openat, [-1, 0, libc::O_CREAT | libc::O_WRONLY, 0]),
        "remove a file" => raw(libc::SYS_unlinkat, [-1, 0, 0, 0]),
        "remove a directory" => raw(libc::SYS_unlinkat, [-1, 0, libc::AT_REMOVEDIR, 0]),
        "mount" => raw(libc::SYS_mount, [0, 0, 0, 0]),
        "bpf" => raw(libc::SYS_bpf, [-1, 0, 0, 0]),
        "enter a mount namespace" => raw(libc::SYS_setns, [-1, libc::CLONE_NEWNS, 0, 0]),
        "enter a network namespace" => raw(libc::SYS_setns, [-1, libc::CLONE_NEWNET, 0, 0]),
        "netlink" => raw(libc::SYS_socket, [libc::AF_NETLINK, libc::SOCK_RAW, 0, 0]),
        "audit" => raw(
            libc::SYS_socket,
            [libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT, 0],
        ),
        "namespaces of its own" => raw(libc::SYS_unshare, [libc::CLONE_NEWUTS, 0, 0, 0]),
        "TUN request" => raw(libc::SYS_ioctl, [-1, 0x4004_54ca, 0, 0]),
        "offloads of a TAP" => raw(libc::SYS_ioctl, [-1, 0x4004_54d0, 0, 0]),
        "persistence of a TAP" => raw(libc::SYS_ioctl, [-1, 0x4004_54cb, 0, 0]),
        "packet socket" => raw(libc::SYS_socket, [libc::AF_PACKET, libc::SOCK_RAW, 0, 0]),
        "socket pair" => raw(libc::SYS_socketpair, [-1, 0, 0, 0]),
        "bind" => raw(libc::SYS_bind, [-1, 0, 0, 0]),
        "membership of a packet socket" => raw(
            libc::SYS_setsockopt,
            [-1, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, 0],
        ),
        "TUN owner" => raw(libc::SYS_ioctl, [-1, 0x4004_54cc, 0, 0]),
        "shared memory" => {
            let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&file, 4096).unwrap();
            rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).unwrap();
        }
        "another filter" => raw(libc::SYS_seccomp, [99, 0, 0, 0]),
        other => panic!("no such attempt: {other}"),
    }
}

/// A thread with descriptors of its own: it has what it was given, and nothing else.
fn apart(client: UnixStream) {
    use rustix::fd::{BorrowedFd, OwnedFd};
    let (ours, theirs) = UnixStream::pair().unwrap();
    process::spawn_apart("apart".into(), [OwnedFd::from(theirs)], move |[end]| {
        // SAFETY: the numbers are only asked for, and need not be open.
        let is_open =
            |number: &i32| rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(*number) }).is_ok();
        let open = (libc::STDERR_FILENO + 1..1000).filter(is_open).count();
        let said: &[u8] = if open == 1 { b"yes" } else { b"no" };
        UnixStream::from(end).write_all(said).unwrap();
    })
    .unwrap();
    // Closed here: the end comes when the thread has closed its own.
    let mut said = String::new();
    (&ours).read_to_string(&mut said).unwrap();
    assert_eq!(said, "yes");
    assert!(
        client.take_error().is_ok(),
        "what it closed in its table is open here"
    );
}

/// Makes a system call whose result does not matter; further arguments are 0.
fn raw(number: i64, arguments: [i32; 4]) {
    let [a, b, c, d] = arguments.map(i64::from);
    // SAFETY: no argument is a pointer to anything of this process: the kernel cannot change its memory, and
    // a child made by clone() without flags has a memory of its own.
    unsafe { libc::syscall(number, a, b, c, d, 0, 0) };
}

/// What every process does.
const ORDINARY: [&str; 7] = [
    "nothing",
    "threads",
    "memory",
    "allocator",
    "time",
    "panic",
    "size",
];

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
        "own core",
        "apart",
        "asynchronous I/O",
    ] {
        works(name);
    }
}

#[test]
fn the_work_of_a_control_process_goes_on() {
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
        works(&format!("control: {name}"));
    }
    works("control: file of control");
    works("control: file of a VMM");
    works("ovs: file of a VMM");
}

#[test]
fn control_reaches_its_own_files_and_makes_sockets_of_one_kind() {
    works("control: file not of control");
    for name in [
        "socket",
        "netlink",
        "execve",
        "fork",
        "vfork",
        "kill",
        "signal another",
        "ptrace",
        "executable memory",
        "input to a terminal",
        "set-user-ID",
        "set-user-ID of a descriptor",
        "owner",
        "remove a directory",
        "mount",
        "bpf",
        "move another",
        "enter a network namespace",
        "TUN request",
        "another filter",
    ] {
        is_killed(&format!("control: {name}"));
    }
}

#[test]
fn the_work_of_a_driver_domain_goes_on() {
    for name in ORDINARY {
        works(&format!("driver: {name}"));
    }
    for name in [
        "netlink",
        "enter a network namespace",
        "TUN request",
        "file of a driver domain",
    ] {
        works(&format!("driver: {name}"));
    }
}

#[test]
fn a_driver_domain_reaches_interfaces_and_nothing_else() {
    works("driver: file not of a driver domain");
    for name in [
        "socket",
        "audit",
        "connect",
        "execve",
        "fork",
        "vfork",
        "kill",
        "signal another",
        "move another",
        "ptrace",
        "executable memory",
        "input to a terminal",
        "TUN owner",
        "create a file",
        "remove a file",
        "mount",
        "bpf",
        "enter a mount namespace",
        "move another",
        "another filter",
        "shared memory",
        "own core",
    ] {
        is_killed(&format!("driver: {name}"));
    }
}

#[test]
fn the_work_of_a_forwarder_goes_on() {
    for name in ORDINARY
        .into_iter()
        .chain(["own core", "shared memory", "offloads of a TAP"])
    {
        works(&format!("forwarder: {name}"));
    }
}

#[test]
fn a_forwarder_opens_and_configures_nothing() {
    // Refused, whatever for.
    works("forwarder: open");
    works("forwarder: create a file");
    for name in [
        "socket",
        "connect",
        "netlink",
        "packet socket",
        "socket pair",
        "bind to device",
        "bind",
        "TUN request",
        "TUN owner",
        "persistence of a TAP",
        "membership of a packet socket",
        "enter a network namespace",
        "enter a mount namespace",
        "new namespace",
        "execve",
        "fork",
        "vfork",
        "kill",
        "signal another",
        "move another",
        "class of another",
        "ptrace",
        "executable memory",
        "input to a terminal",
        "remove a file",
        "unlink",
        "mount",
        "bpf",
        "another filter",
    ] {
        is_killed(&format!("forwarder: {name}"));
    }
}

/// A thread identifier may be that of a thread of any process.
#[test]
fn only_the_calling_thread_is_moved() {
    is_killed("move another");
    is_killed("priority of another");
    is_killed("deadlines");
    is_killed("namespaces of its own");
    is_killed("class of another");
    is_killed("driver: class of another");
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
fn many_frames_are_sent_where_that_is_wanted_and_without_waiting() {
    is_killed("send many");
    works("sending: send many");
    is_killed("sending: send many and wait");
}

#[test]
fn no_processes_are_made_or_touched() {
    for name in [
        "execve",
        "fork",
        "vfork",
        "kill",
        "signal another",
        "ptrace",
        "new namespace",
    ] {
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
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("TMPDIR", directory.path())
        .env(ATTEMPT, "wait")
        .env(REPORT, "0")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let isolated_thread = || {
        // The test harness of the child has a thread of its own, whose capabilities were not dropped.
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
    if rustix::process::getuid().is_root() && status_of_self("CapEff").contains("ffffffff") {
        let user = sandbox::DATA_PLANE_USER;
        for line in [
            format!("Uid:\t{user}\t{user}\t{user}\t{user}"),
            format!("Gid:\t{user}\t{user}\t{user}\t{user}"),
            "Groups:\t \n".to_owned(),
        ] {
            assert!(status.contains(&line), "{line:?} in {status}");
        }
    }
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

fn status_of_self(name: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.to_owned()
}
