//! Groups and permissions of sockets, and users without privileges.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::{Instance, eventually};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Numbers that no group has.
const VIEWERS: u32 = 60_931;
const VMMS: u32 = 60_932;
const OTHERS: u32 = 60_933;
const NOBODY: u32 = 65_534;

struct World {
    directory: TempDir,
    instance: Instance,
}

impl World {
    /// Starts an instance whose sockets other users can reach; `None` without root's privileges.
    fn start() -> Option<World> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("left out: sockets can be given to groups by root only");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        // Where it is built, others may have no way to it.
        let program = directory.path().join("hyperswitch");
        fs::copy(env!("CARGO_BIN_EXE_hyperswitch"), &program).unwrap();
        let file = directory.path().join("c.toml");
        let config = format!(
            "[access]\nview-group = \"{VIEWERS}\"\ngroup = \"{VMMS}\"\n\
             [[switch]]\nname = \"s\"\n[[switch.port]]\nname = \"usual\"\n\
             [[switch.port]]\nname = \"own\"\ngroup = \"{OTHERS}\"\nsocket-mode = \"0600\"\n"
        );
        fs::write(&file, config).unwrap();
        let instance = Instance::start(&directory.path().join("run"), &file);
        // Without a data plane there are neither sockets nor counters.
        eventually("counters of both ports", || {
            let ports = instance.verb(&["stats"]).unwrap_or_default()["ports"].clone();
            ports.as_array().is_some_and(|ports| ports.len() == 2)
        });
        Some(World { directory, instance })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A command by nobody, in a group.
    fn asks(&self, group: u32, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.path("hyperswitch"));
        command.arg("--run-dir").arg(self.path("run")).args(arguments);
        command.current_dir("/").gid(group).uid(NOBODY).output().unwrap()
    }
}

fn of(path: &Path) -> (u32, u32) {
    let found = fs::metadata(path).unwrap();
    (found.gid(), found.mode() & 0o777)
}

#[test]
fn sockets_have_the_groups_and_modes_of_the_configuration() {
    let Some(world) = World::start() else { return };
    assert_eq!(of(&world.path("run/view.sock")), (VIEWERS, 0o660));
    assert_eq!(of(&world.path("run/control.sock")), (0, 0o600));
    assert_eq!(of(&world.path("run/usual.sock")), (VMMS, 0o660));
    assert_eq!(of(&world.path("run/own.sock")), (OTHERS, 0o600));
    let socket = world.path("vm.sock");
    let add = [
        "port",
        "add",
        "s",
        "vm",
        "--socket",
        socket.to_str().unwrap(),
        "--group",
    ];
    let added = |group: &str, more: &[&str]| {
        let arguments = [&add[..], &[group], more].concat();
        world.instance.verb(&arguments)
    };
    added("60934", &["--socket-mode", "0666"]).unwrap();
    assert_eq!(of(&socket), (60_934, 0o666));
    world.instance.verb(&["port", "del", "vm"]).unwrap();
    // No group is better than a wrong one.
    let problem = added("no-such-group", &[]).unwrap_err();
    assert!(problem.contains("there is no group no-such-group"), "{problem}");
    assert!(!socket.exists());
    let problem = added("60934", &["--mode", "client"]).unwrap_err();
    assert!(
        problem.contains("`group` is for sockets that the switch makes"),
        "{problem}"
    );
}

#[test]
fn a_group_may_look_and_change_nothing() {
    let Some(world) = World::start() else { return };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for query in [
        &["status"][..],
        &["port", "list"],
        &["stats"],
        &["config", "show"],
        &["--json", "--timeout", "20", "mac", "list"],
    ] {
        let output = world.asks(VIEWERS, query);
        assert!(output.status.success(), "{query:?}: {}", text(&output.stderr));
        assert!(!output.stdout.is_empty());
    }
    for change in [
        &["port", "add", "s", "x"][..],
        &["reload"],
        &["capture", "usual", "-w", "/dev/null"],
        &["apply", "/dev/null"],
    ] {
        let output = world.asks(VIEWERS, change);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{change:?}: {error}");
        assert!(
            error.contains("view.sock answers queries only"),
            "{change:?}: {error}"
        );
    }
    let output = world.asks(OTHERS, &["status"]);
    let error = text(&output.stderr);
    assert!(
        !output.status.success() && error.contains("permission denied"),
        "{error}"
    );
    let ports = world.instance.verb(&["port", "list"]).unwrap();
    assert_eq!(ports.as_array().unwrap().len(), 2);
}
