//! Limits the files that a process may open, where it may open some (landlock(7)).
//!
//! A system call filter cannot read paths. Landlock can: all rights to files are taken, except those that a
//! rule gives back for a directory and everything below it, or for one file. It takes no privilege, holds for
//! all capabilities, and needs Linux 5.13 or newer with `landlock` among its security modules. It does not
//! restrict other operations: connecting to sockets, looking up names, and descriptors that arrive with a
//! message.

use landlock::{
    ABI, Access, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, make_bitflags,
};
use std::io;
use std::path::{Path, PathBuf};

/// The newest version of the interface whose rights are taken; of an older kernel, those that it knows.
const NEWEST: ABI = ABI::V5;

const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});

/// Rules: the rights that are given back, and the file or directory for which.
#[derive(Debug)]
pub(crate) struct Files {
    rules: Vec<(PathBuf, BitFlags<AccessFs>)>,
}

/// Control keeps its state in the run directory and reads the configuration, which an editor may replace by
/// another file of that name, so it is the directory that is named. Sockets of ports may be anywhere: it
/// makes and removes them there.
pub(crate) fn for_control(run_dir: &Path, config: Option<&Path>) -> Files {
    let state = READ
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeSock
        | AccessFs::RemoveFile;
    let mut rules = vec![
        (PathBuf::from("/"), AccessFs::MakeSock | AccessFs::RemoveFile),
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
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let mut rules = vec![(PathBuf::from("/dev/net/tun"), device)];
    let namespaces = ["/run", "/var/run"].map(PathBuf::from).into_iter();
    rules.extend(
        namespaces
            .filter(|path| path.exists())
            .map(|path| (path, AccessFs::ReadFile.into())),
    );
    Files { rules }
}

/// The process for Open vSwitch makes sockets in the run directory and below it, and TAPs, whose IPv6 it
/// switches off.
pub(crate) fn for_ovs(run_dir: &Path) -> Files {
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let setting = AccessFs::WriteFile | AccessFs::Truncate;
    let rules = [
        (run_dir.to_owned(), AccessFs::MakeSock | AccessFs::RemoveFile),
        (PathBuf::from("/dev/net/tun"), device),
        (PathBuf::from("/proc/sys/net/ipv6/conf"), setting),
    ];
    // A kernel may have no IPv6, a machine no TAPs.
    Files {
        rules: rules.into_iter().filter(|(path, _)| path.exists()).collect(),
    }
}

impl Files {
    /// Restricts the calling thread and those it starts. They cannot gain privileges by executing any more.
    ///
    /// # Errors
    /// The kernel has no Landlock, or a path of a rule cannot be opened; nothing is restricted then.
    pub(crate) fn restrict(&self) -> io::Result<()> {
        let of_kernel = |error: RulesetError| io::Error::other(error);
        let all = AccessFs::from_all(NEWEST);
        let ruleset = Ruleset::default().handle_access(all).map_err(of_kernel)?;
        let mut ruleset = ruleset.create().map_err(of_kernel)?;
        for (path, rights) in &self.rules {
            let named =
                |error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", path.display()));
            let place = PathFd::new(path).map_err(|error| named(&error))?;
            let rule = PathBeneath::new(place, *rights);
            ruleset = ruleset.add_rule(rule).map_err(|error| named(&error))?;
        }
        match ruleset.restrict_self().map_err(of_kernel)?.ruleset {
            RulesetStatus::NotEnforced => Err(io::ErrorKind::Unsupported.into()),
            RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        }
    }
}
