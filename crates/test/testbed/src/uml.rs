//! User Mode Linux: a Linux kernel as a process, with the real virtio-net driver, near native speed and one
//! processor.
//!
//! The guest connects to the switch's socket as a vhost-user client and cannot return after its connection
//! broke (its kernel oopses if the socket closes under it), so it stands for guests that come and go, not for
//! ones that outlive a switch. Standard output must be a pipe or a terminal, not a file. Its memory is an
//! unlinked file in a temporary file system, chosen here to have room for it.

use crate::build_dir;
use crate::guest::{Guest, GuestOptions, Network};
use crate::{initrd, process};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;

/// User Mode Linux guests.
#[derive(Debug)]
pub struct UmlGuest;

impl UmlGuest {
    /// Starts a guest and waits until it is up.
    pub fn boot(options: GuestOptions) -> Result<Guest> {
        let mut guest = UmlGuest::start(options)?;
        guest.wait_ready()?;
        Ok(guest)
    }

    /// Starts guests side by side and waits until all are up.
    pub fn boot_all(options: impl IntoIterator<Item = GuestOptions>) -> Result<Vec<Guest>> {
        let mut guests = options
            .into_iter()
            .map(UmlGuest::start)
            .collect::<Result<Vec<_>>>()?;
        for guest in &mut guests {
            guest.wait_ready()?;
        }
        Ok(guests)
    }

    /// Starts a guest without waiting: several boot faster side by side.
    pub fn start(options: GuestOptions) -> Result<Guest> {
        let initrd = initrd::build("uml", &modules()?)?;
        let directory = tempfile::Builder::new().prefix("hs-uml-").tempdir()?;
        let (device, interface, mut namespace) = match &options.network {
            Network::None => (String::new(), "none", None),
            Network::VhostUser(socket) => (format!("virtio_uml.device={}:1", socket.display()), "eth0", None),
            Network::VhostUserServer(_) => bail!("User Mode Linux cannot listen on a vhost-user socket"),
            Network::Tap { interface, namespace } => (
                format!(
                    "vec0:transport=tap,ifname={interface},depth=128,gro=1,mtu={}",
                    options.mtu.unwrap_or(1500)
                ),
                "vec0",
                namespace.clone(),
            ),
        };
        let card = options.card.as_ref().map(|(interface, within)| {
            namespace = Some(within.clone());
            format!("vec0:transport=tap,ifname={interface},depth=128,gro=1")
        });
        let mut words = Vec::new();
        if let Some(namespace) = namespace {
            words.extend(["ip".into(), "netns".into(), "exec".into(), namespace]);
        }
        if let Some(processor) = options.processor {
            words.extend(["taskset".into(), "--cpu-list".into(), processor.to_string()]);
        }
        if let Some(library) = build_dir::sibling("deps/libuml_preload.so") {
            words.extend(["env".into(), format!("LD_PRELOAD={}", library.display())]);
        }
        words.push("linux.uml".into());
        let mut command = process::command_with_children(&words[0]);
        command.args(&words[1..]);
        command
            .arg(format!("mem={}M", options.memory))
            .arg(format!("initrd={}", initrd.display()))
            .args(["con=null", "con0=fd:0,fd:1", "loglevel=4", "rw"])
            .arg(format!("uml_dir={}/", directory.path().display()))
            .arg(format!("umid={}", options.name))
            .args(options.kernel_arguments(interface).split(' '));
        if !device.is_empty() {
            command.arg(device);
        }
        command.args(card);
        command.env("TMPDIR", memory_directory(options.memory));
        command.current_dir(directory.path());
        Guest::start(options, command, directory)
    }
}

/// The module tree of the installed User Mode Linux.
fn modules() -> Result<PathBuf> {
    let root = PathBuf::from("/usr/lib/uml/modules");
    let versions = std::fs::read_dir(&root).context("user-mode-linux is missing: run scripts/setup")?;
    versions
        .flatten()
        .map(|entry| entry.path().join("kernel"))
        .find(|path| path.is_dir())
        .with_context(|| {
            format!(
                "no kernel modules in {}: reinstall user-mode-linux",
                root.display()
            )
        })
}

/// A directory with room for a guest's memory, in memory if possible: on a disk the kernel would write it
/// out.
fn memory_directory(memory: u32) -> PathBuf {
    let needed = u64::from(memory) << 20;
    let room = |path: &str| {
        rustix::fs::statvfs(path).is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) > 2 * needed)
    };
    ["/dev/shm", "/run"]
        .into_iter()
        .find(|path| room(path))
        .map_or_else(build_dir::path, PathBuf::from)
}
