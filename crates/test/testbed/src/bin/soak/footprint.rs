//! Resources that the processes of the switch hold: memory, threads, descriptors and mapped files.

use anyhow::{Context, Result};
use std::fmt;
use std::fs;
use testbed::switch::Role;
use testbed::{Switch, process};

/// Bytes that an allocator may keep of memory that visitors needed for a while.
const SLACK: u64 = 8 << 20;

/// The resources that one process holds.
#[derive(Clone, Debug)]
pub struct Footprint {
    name: &'static str,
    /// Resident memory in bytes.
    resident: u64,
    /// The process's own part of that. The resident part of guests' memory grows with the guests' use of it.
    own: u64,
    threads: u64,
    descriptors: u64,
    /// Mapped files; guests' memory is some.
    files: u64,
}

impl Footprint {
    /// Of the supervisor and the processes it started.
    pub fn of(switch: &Switch) -> Result<Vec<Footprint>> {
        let roles = [Role::DataPlane, Role::Control, Role::Driver, Role::Taps];
        let mut all = vec![Footprint::of_process("supervisor", switch.supervisor())?];
        for role in roles {
            all.push(Footprint::of_process(role.name(), switch.pid(role)?)?);
        }
        Ok(all)
    }

    /// Of the data plane.
    pub fn of_data_plane(switch: &Switch) -> Result<Footprint> {
        Footprint::of_process("data-plane", switch.pid(Role::DataPlane)?)
    }

    fn of_process(name: &'static str, pid: u32) -> Result<Footprint> {
        let count = |what: &str| -> Result<u64> {
            let entries = fs::read_dir(format!("/proc/{pid}/{what}")).context(name)?;
            Ok(entries.count() as u64)
        };
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).context(name)?;
        Ok(Footprint {
            name,
            resident: process::resident_memory(pid),
            own: process::own_memory(pid),
            threads: count("task")?,
            descriptors: count("fd")?,
            files: maps.lines().filter(|line| line.contains('/')).count() as u64,
        })
    }

    /// The resources of which it holds more than before, in words.
    pub fn growth(&self, before: &Footprint) -> Vec<String> {
        let mut grown = Vec::new();
        let mut check = |what, now: u64, before: u64, slack: u64| {
            if now > before + slack {
                grown.push(format!("{}: {now} {what}, before {before}", self.name));
            }
        };
        check("bytes of memory", self.own, before.own, SLACK);
        check("threads", self.threads, before.threads, 0);
        check("descriptors", self.descriptors, before.descriptors, 0);
        check("mapped files", self.files, before.files, 0);
        grown
    }
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = |bytes: u64| bytes >> 20;
        write!(
            f,
            "{} {} MiB resident ({} own), {} threads, {} descriptors, {} mapped files",
            self.name,
            mebibytes(self.resident),
            mebibytes(self.own),
            self.threads,
            self.descriptors,
            self.files
        )
    }
}
