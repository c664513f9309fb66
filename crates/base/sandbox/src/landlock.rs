//! Limits the files that a process may open, where it may open some (landlock(7)).
//!
//! A system call filter cannot read paths. Landlock can: all rights to files are taken, except those that a
//! rule gives back for a directory and everything below it, or for one file. It takes no privilege, holds for
//! all capabilities, and needs Linux 5.13 or newer with `landlock` among its security modules. It does not
//! restrict other operations: connecting to sockets, looking up names, and descriptors that arrive with a
//! message.

use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::path::{Path, PathBuf};

/// Rights to files, as in `linux/landlock.h`.
mod right {
    pub(super) const WRITE_FILE: u64 = 1 << 1;
    pub(super) const READ_FILE: u64 = 1 << 2;
    pub(super) const READ_DIR: u64 = 1 << 3;
    pub(super) const REMOVE_FILE: u64 = 1 << 5;
    pub(super) const MAKE_REG: u64 = 1 << 8;
    pub(super) const MAKE_SOCK: u64 = 1 << 9;
    /// Since the third version.
    pub(super) const TRUNCATE: u64 = 1 << 14;
    /// Since the fifth version.
    pub(super) const IOCTL_DEV: u64 = 1 << 15;

    /// All that a version of the interface knows.
    pub(super) fn all(version: i64) -> u64 {
        let number = match version {
            ..=1 => 13,
            2 => 14,
            3 | 4 => 15,
            _ => 16,
        };
        (1 << number) - 1
    }
}

const READ: u64 = right::READ_FILE | right::READ_DIR;

/// Rules: the rights that are given back, and the file or directory for which.
#[derive(Debug)]
pub(crate) struct Files {
    rules: Vec<(PathBuf, u64)>,
}

/// Control keeps its state in the run directory and reads the configuration, which an editor may replace by
/// another file of that name, so it is the directory that is named. Sockets of ports may be anywhere: it
/// makes and removes them there.
pub(crate) fn for_control(run_dir: &Path, config: Option<&Path>) -> Files {
    let state =
        READ | right::WRITE_FILE | right::TRUNCATE | right::MAKE_REG | right::MAKE_SOCK | right::REMOVE_FILE;
    let mut rules = vec![
        (PathBuf::from("/"), right::MAKE_SOCK | right::REMOVE_FILE),
        (PathBuf::from("/proc"), READ),
        (run_dir.to_owned(), state),
    ];
    // The file may be a symbolic link: both the name and what it leads to.
    let target = config.and_then(|file| file.canonicalize().ok());
    let directories = [config.map(Path::to_owned), target];
    for directory in directories.iter().flatten().filter_map(|file| file.parent()) {
        rules.push((directory.to_owned(), READ));
    }
    Files { rules }
}

/// The driver domain opens the device that makes TAPs, and network namespaces. Those have names below `/run`;
/// the path of one under `/proc` is refused, since looking at other processes is.
pub(crate) fn for_driver() -> Files {
    let device = right::READ_FILE | right::WRITE_FILE | right::IOCTL_DEV;
    let mut rules = vec![(PathBuf::from("/dev/net/tun"), device)];
    let namespaces = ["/run", "/var/run"].map(PathBuf::from).into_iter();
    rules.extend(
        namespaces
            .filter(|path| path.exists())
            .map(|path| (path, right::READ_FILE)),
    );
    Files { rules }
}

/// The process for Open vSwitch makes sockets in the run directory and below it, and TAPs, whose IPv6 it
/// switches off.
pub(crate) fn for_ovs(run_dir: &Path) -> Files {
    let device = right::READ_FILE | right::WRITE_FILE | right::IOCTL_DEV;
    let setting = right::WRITE_FILE | right::TRUNCATE;
    let rules = [
        (run_dir.to_owned(), right::MAKE_SOCK | right::REMOVE_FILE),
        (PathBuf::from("/dev/net/tun"), device),
        (PathBuf::from("/proc/sys/net/ipv6/conf"), setting),
    ];
    // A kernel may have no IPv6, a machine no TAPs.
    Files {
        rules: rules.into_iter().filter(|(path, _)| path.exists()).collect(),
    }
}

/// `struct landlock_ruleset_attr` of the first version.
#[repr(C)]
struct Attributes {
    handled: u64,
}

/// `struct landlock_path_beneath_attr`, which is packed.
#[repr(C, packed)]
struct Beneath {
    allowed: u64,
    parent: i32,
}

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

impl Files {
    /// Restricts the calling thread and those it starts. It must not be able to gain privileges by executing.
    ///
    /// # Errors
    /// The kernel has no Landlock, or a path of a rule cannot be opened; nothing is restricted then.
    pub(crate) fn restrict(&self) -> io::Result<()> {
        let handled = right::all(version()?);
        let attributes = Attributes { handled };
        // SAFETY: `attributes` is readable for the length given.
        let ruleset = check(unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const attributes,
                size_of::<Attributes>(),
                0,
            )
        })?;
        let ruleset = i32::try_from(ruleset).map_err(io::Error::other)?;
        // SAFETY: a descriptor just made, which nothing else owns.
        let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset) };
        for (path, rights) in &self.rules {
            add_rule(&ruleset, path, rights & handled)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        }
        // SAFETY: takes numbers.
        check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) }).map(drop)
    }
}

/// The version of the kernel's interface.
fn version() -> io::Result<i64> {
    // SAFETY: with this flag the call takes no attributes.
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<Attributes>(),
            0_usize,
            CREATE_RULESET_VERSION,
        )
    })
}

fn add_rule(ruleset: &OwnedFd, path: &Path, allowed: u64) -> io::Result<()> {
    let parent = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let rule = Beneath {
        allowed,
        parent: parent.as_raw_fd(),
    };
    // SAFETY: `rule` is a `struct landlock_path_beneath_attr`, as the type says, and readable.
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            RULE_PATH_BENEATH,
            &raw const rule,
            0,
        )
    })
    .map(drop)
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
