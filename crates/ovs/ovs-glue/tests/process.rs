//! The process `ovs` beside data planes that a guest has taken over while ovs-vswitchd could be served: the
//! tests that each client of the contract passes. The test plays supervisor and data plane.

#![allow(clippy::unwrap_used)]

#[path = "../../../control/controller/tests/hostile/mod.rs"]
mod suite;

use control_protocol::Channel;
use control_protocol::supervisor::{FromChild, Role, ToChild};
use flow::{ControllerId, PortId, SwitchId};
use ovs_glue::Owner;
use ovs_glue::process::Options;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use suite::Victim;

/// Environment variable that makes the test program the process: its directory.
const CHILD: &str = "OVS_TEST_DIRECTORY";

/// What goes wrong with the test itself.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Not a test: the process itself, when started by one.
#[test]
fn child() {
    let Some(directory) = std::env::var_os(CHILD).map(PathBuf::from) else {
        return;
    };
    let supervisor = Channel::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let options = Options {
        socket: directory.join("socket"),
        databases: Vec::new(),
        claim_connections: false,
        owner: Owner::new(&directory),
        directory,
    };
    ovs_glue::process::run(supervisor, &options).unwrap();
}

struct Ovs {
    directory: tempfile::TempDir,
    child: Child,
    supervisor: Channel,
}

impl Drop for Ovs {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Victim for Ovs {
    fn meet(&mut self) -> Channel {
        let (ours, theirs) = Channel::pair().unwrap();
        let peer = ToChild::Peer(Role::DataPlane);
        self.supervisor.send(&peer, &[theirs.as_fd()]).unwrap();
        ours
    }

    fn go_on(&mut self) {
        std::thread::sleep(Duration::from_millis(1));
    }

    fn pass(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    fn take_replace_request(&mut self) -> bool {
        self.said().contains(&FromChild::Replace(Role::DataPlane))
    }

    fn memory(&self) -> u64 {
        suite::memory(self.child.id())
    }

    fn controller(&self) -> ControllerId {
        ControllerId::OVS
    }

    fn port(&self) -> Option<(PortId, SwitchId)> {
        Some((ControllerId::OVS.port(1)?, SwitchId(1)))
    }
}

impl Ovs {
    /// A process that has an honest data plane, and listens for ovs-vswitchd.
    fn start() -> Ovs {
        let directory = tempfile::tempdir().unwrap();
        let (supervisor, theirs) = Channel::pair().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let child = command
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, directory.path())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut ovs = Ovs {
            directory,
            child,
            supervisor,
        };
        suite::recovers(&mut ovs);
        let end = Instant::now() + TIMEOUT;
        while !ovs.directory.path().join("socket").exists() {
            assert!(Instant::now() < end, "it does not listen");
            ovs.go_on();
        }
        ovs
    }

    /// What it has said to the supervisor since it was asked last.
    fn said(&self) -> Vec<FromChild> {
        let said = std::iter::from_fn(|| Some(self.supervisor.try_recv::<FromChild>().ok()?.0));
        said.collect()
    }
}

#[test]
fn a_live_data_plane_that_speaks_nonsense_is_replaced() {
    suite::nonsense(&mut Ovs::start());
}

#[test]
fn so_is_one_that_answers_what_nobody_asked() {
    suite::answers_that_nobody_asked_for(&mut Ovs::start());
}

#[test]
fn so_is_one_that_answers_other_questions() {
    suite::answers_to_other_questions(&mut Ovs::start());
}

#[test]
fn so_is_one_that_lists_ports_without_end() {
    suite::lists_without_end(&mut Ovs::start());
}

#[test]
fn so_is_one_that_closes_its_channel_and_lives_on() {
    suite::absence(&mut Ovs::start());
}

#[test]
fn packets_without_end_are_not_kept() {
    suite::packets_without_end(&mut Ovs::start());
}

#[test]
fn each_packet_ends_once() {
    suite::each_packet_ends_once(&mut Ovs::start());
}

/// What hangs keeps its channel. The supervisor looks at it once it is told, and replaces it if it hangs.
#[test]
fn a_data_plane_that_hangs_is_looked_at() {
    let mut ovs = Ovs::start();
    let hung = ovs.meet();
    let end = Instant::now() + TIMEOUT;
    while !ovs.said().contains(&FromChild::Owes(Role::DataPlane)) {
        assert!(Instant::now() < end, "the supervisor is not told");
        ovs.go_on();
    }
    // The process itself does not hang.
    ovs.supervisor.send(&ToChild::Ping(7), &[]).unwrap();
    while !ovs.said().contains(&FromChild::Pong(7)) {
        assert!(Instant::now() < end, "it does not answer the supervisor");
        ovs.go_on();
    }
    drop(hung);
    suite::recovers(&mut ovs);
}

/// Even if the supervisor finds that it does not hang.
#[test]
fn a_data_plane_that_never_lists_its_ports_is_replaced() {
    suite::silence(&mut Ovs::start());
}
