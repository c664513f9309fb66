//! The way to a socket's directory, one name at a time.

use super::{Refusal, SocketPath};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Symbolic links on a way; the kernel follows as many.
const MAX_LINKS: u32 = 40;

/// Only a place: the file is not opened, so nothing happens to it.
const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Who can make and replace files in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writers {
    /// Root, or the user as whom we run.
    Us,
    /// Another user.
    User,
    /// Several users.
    Many {
        /// Nobody replaces a file of ours: the sticky bit is set.
        sticky: bool,
    },
}

/// A file on the way, which is kept from now on, wherever its name may lead.
#[derive(Debug)]
pub(crate) struct Entry {
    pub fd: OwnedFd,
    pub at: PathBuf,
    stat: Stat,
}

impl Entry {
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    pub fn user(&self) -> u32 {
        self.stat.st_uid
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Resolution {
    directory: Entry,
    /// Names that are left, the next one last.
    names: Vec<OsString>,
    links: u32,
    /// As configured.
    owner: Option<u32>,
    /// The first other user to whom a directory belonged.
    tenant: Option<u32>,
    /// Nobody else can move the directory.
    is_fixed: bool,
}

/// Whether a user may do as it likes with our files.
pub(crate) fn is_us(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

impl Resolution {
    /// Finds the directory in which the socket is, or is to be.
    pub fn of_directory(socket: &SocketPath) -> Result<Resolution, Refusal> {
        let mut resolution = Resolution {
            directory: start(Path::new("."))?,
            names: Vec::new(),
            links: 0,
            owner: socket.owner,
            tenant: None,
            is_fixed: true,
        };
        resolution.insert(&socket.path)?;
        resolution.enter_directories()?;
        Ok(resolution)
    }

    /// Puts the names of a path before those that are left.
    fn insert(&mut self, path: &Path) -> Result<(), Refusal> {
        if path.is_absolute() {
            self.directory = start(Path::new("/"))?;
        }
        let names = path.components().rev().filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        });
        self.names.extend(names);
        Ok(())
    }

    fn enter_directories(&mut self) -> Result<(), Refusal> {
        while self.names.len() > 1 {
            let name = self.names.pop().unwrap_or_default();
            let entry = self.look(&name).map_err(|refusal| self.about(&name, refusal))?;
            match entry.kind() {
                FileType::Symlink => self.follow(&entry)?,
                FileType::Directory => self.enter(&name, entry)?,
                _ => return Err(self.about(&name, Errno::NOTDIR.into())),
            }
        }
        Ok(())
    }

    fn about(&self, name: &OsStr, refusal: Refusal) -> Refusal {
        let at = self.directory.at.join(name);
        match refusal {
            Refusal::System { error } => Refusal::Directory { at, error },
            other => other,
        }
    }

    fn look(&self, name: &OsStr) -> Result<Entry, Refusal> {
        let fd = openat(&self.directory.fd, name, PLACE, Mode::empty())?;
        Ok(Entry {
            stat: fstat(&fd)?,
            fd,
            at: self.directory.at.join(name),
        })
    }

    fn writers(&self) -> Writers {
        let (stat, mode) = (
            &self.directory.stat,
            Mode::from_raw_mode(self.directory.stat.st_mode),
        );
        if !is_us(stat.st_uid) {
            return Writers::User;
        }
        // Without privileges our group, too, is as good as we are. With root's it is not certain who is in
        // it.
        let is_our_group = !geteuid().is_root() && stat.st_gid == getegid().as_raw();
        if mode.contains(Mode::WOTH) || mode.contains(Mode::WGRP) && !is_our_group {
            let sticky = mode.contains(Mode::SVTX);
            return Writers::Many { sticky };
        }
        Writers::Us
    }

    /// Follows a link, if only we can have made it.
    fn follow(&mut self, link: &Entry) -> Result<(), Refusal> {
        let is_ours = match self.writers() {
            Writers::Us => self.tenant.is_none(),
            Writers::User => false,
            Writers::Many { sticky } => sticky && is_us(link.user()),
        };
        if !is_ours {
            return Err(Refusal::Link { at: link.at.clone() });
        }
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(self.about(OsStr::new(""), Errno::LOOP.into()));
        }
        let target = readlinkat(&link.fd, "", Vec::new())?;
        self.insert(Path::new(&OsString::from_vec(target.into_bytes())))
    }

    fn enter(&mut self, name: &OsStr, directory: Entry) -> Result<(), Refusal> {
        let writers = self.writers();
        if name == ".." && writers != Writers::Us {
            return Err(Refusal::Up { at: directory.at });
        }
        self.check(&directory)?;
        self.is_fixed &= match writers {
            Writers::Us => true,
            Writers::User => false,
            Writers::Many { sticky } => sticky && is_us(directory.user()),
        };
        if !is_us(directory.user()) {
            self.tenant.get_or_insert(directory.user());
        }
        self.directory = directory;
        Ok(())
    }

    /// Whether a directory or socket belongs to a user to whom it may.
    fn check(&self, entry: &Entry) -> Result<(), Refusal> {
        let (at, user) = (|| entry.at.clone(), entry.user());
        if self.owner == Some(user) {
            return Ok(());
        }
        if let Writers::Many { sticky } = self.writers()
            && !(is_us(user) && (sticky || self.owner.is_some()))
        {
            return Err(Refusal::Shared { at: at(), user });
        }
        match self.tenant.filter(|tenant| *tenant != user && !is_us(user)) {
            None => Ok(()),
            Some(expected) => Err(Refusal::Owner {
                at: at(),
                user,
                expected,
                whose: "the directories before it",
            }),
        }
    }

    /// Finds the socket of a process that listens, through links that may be followed.
    pub fn socket(&mut self) -> Result<Entry, Refusal> {
        loop {
            let name = self.name()?.to_owned();
            let entry = self.look(&name)?;
            match entry.kind() {
                FileType::Symlink => {
                    self.names.pop();
                    self.follow(&entry)?;
                    self.enter_directories()?;
                }
                FileType::Socket => {
                    self.check_socket(&entry)?;
                    return Ok(entry);
                }
                _ => return Err(Refusal::InTheWay("a file that is not a socket")),
            }
        }
    }

    fn check_socket(&self, socket: &Entry) -> Result<(), Refusal> {
        self.check(socket)?;
        let user = socket.user();
        match self.owner.filter(|owner| *owner != user) {
            None => Ok(()),
            Some(expected) => Err(Refusal::Owner {
                at: socket.at.clone(),
                user,
                expected,
                whose: "configured",
            }),
        }
    }

    /// What has the socket's name now, itself: no link is followed, and it may belong to any user.
    pub fn present(&self) -> Result<Entry, Refusal> {
        self.look(self.name()?)
    }

    /// The directory in which the socket is, or is to be.
    pub fn directory(&self) -> &OwnedFd {
        &self.directory.fd
    }

    /// The name of the socket in its directory.
    pub fn name(&self) -> Result<&OsStr, Refusal> {
        let name = self.names.last().filter(|name| *name != "..");
        Ok(name.ok_or(Errno::INVAL)?)
    }

    /// Whether no other user can move the directory, so that its path leads there in the next system call as
    /// well.
    pub fn is_fixed(&self) -> bool {
        self.is_fixed
    }
}

/// Where ways begin. Who can change the root directory can do anything.
fn start(path: &Path) -> Result<Entry, Refusal> {
    let fd = openat(CWD, path, PLACE, Mode::empty())?;
    Ok(Entry {
        stat: fstat(&fd)?,
        fd,
        at: path.to_owned(),
    })
}
