//! Finds the threads of a VMM that are vCPUs, in /proc.
//!
//! | VMM | its vCPU threads |
//! |---|---|
//! | QEMU | `CPU 0/KVM`, `CPU 0/TCG`, if it names its threads (`-name debug-threads=on`, which libvirt passes) |
//! | Cloud Hypervisor | `vcpu0` |
//! | Firecracker | `fc_vcpu 0` |
//! | crosvm | `crosvm_vcpu0` |
//! | others, User Mode Linux among them | not distinguished: all threads |
//!
//! Too many threads only make a guest look busier than it is.

use crate::area::Kind;
use std::fs;
use std::io;
use std::path::Path;

/// vCPU threads that are taken of one process, at most: others have processes, too.
const MOST: usize = 256;

/// Threads that are taken of a process that does not name its vCPUs. The state of each is read when work is
/// placed.
const MOST_UNNAMED: usize = 32;

/// Threads whose names are read. VMMs start their vCPUs early.
const MOST_READ: usize = 1024;

/// Numbers of the threads of a process that run its guest, in ascending order. `proc` is `/proc`.
///
/// # Errors
/// There is no such process, or it may not be looked at.
pub fn vcpu_threads(proc: &Path, pid: u32) -> io::Result<Vec<u32>> {
    let (mut all, mut vcpus) = (Vec::new(), Vec::new());
    for (tid, name) in threads(proc, pid)? {
        if is_vcpu(&name) {
            vcpus.push(tid);
        }
        all.push(tid);
    }
    let (mut found, most) = match vcpus.is_empty() {
        true => (all, MOST_UNNAMED),
        false => (vcpus, MOST),
    };
    found.sort_unstable();
    found.truncate(most);
    Ok(found)
}

/// Numbers of the threads of a process that have this name. `proc` is `/proc`.
///
/// # Errors
/// There is no such process, or it may not be looked at.
pub fn threads_named(proc: &Path, pid: u32, wanted: &str) -> io::Result<Vec<u32>> {
    let found = threads(proc, pid)?.filter(|(_, name)| name == wanted);
    Ok(found.map(|(tid, _)| tid).take(MOST_UNNAMED).collect())
}

/// Numbers and names of a process's threads.
fn threads(proc: &Path, pid: u32) -> io::Result<impl Iterator<Item = (u32, String)>> {
    let tasks = fs::read_dir(proc.join(pid.to_string()).join("task"))?;
    Ok(tasks.take(MOST_READ).flatten().filter_map(|task| {
        let tid = task.file_name().to_str()?.parse().ok()?;
        // One that has ended meanwhile has no name.
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        Some((tid, name.trim_end().to_owned()))
    }))
}

fn is_vcpu(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((cpu, accelerator)) = name.split_once('/') {
        let known = ["KVM", "TCG", "HVF", "WHPX", "MSHV"].contains(&accelerator);
        return known && cpu.strip_prefix("CPU ").is_some_and(number);
    }
    ["vcpu", "fc_vcpu ", "crosvm_vcpu"]
        .iter()
        .any(|prefix| name.strip_prefix(prefix).is_some_and(number))
}

/// The state of a thread, as a word of the shared memory, if it can be known: not for a running or runnable
/// thread, because that changes while it is read.
pub(crate) fn state_of(proc: &Path, tid: u32) -> Option<u32> {
    let text = fs::read_to_string(proc.join(tid.to_string()).join("stat")).ok()?;
    // The second field is the name in parentheses, with anything in it (proc_pid_stat(5)).
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let core: u16 = fields.get(36)?.parse().ok()?;
    let kind = match *fields.first()? {
        "R" => return None,
        "X" | "Z" => Kind::Dead,
        _ => Kind::Blocked,
    };
    Some(kind.word() | u32::from(core))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(proc: &Path, pid: u32, threads: &[(u32, &str)]) {
        for (tid, name) in threads {
            let task = proc.join(format!("{pid}/task/{tid}"));
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("comm"), format!("{name}\n")).unwrap();
        }
    }

    #[test]
    fn vcpus_are_told_by_their_names() {
        let directory = tempfile::tempdir().unwrap();
        let proc = directory.path();
        process(
            proc,
            10,
            &[
                (10, "qemu-system-x86"),
                (12, "CPU 1/KVM"),
                (11, "CPU 0/KVM"),
                (13, "IO mon_iothread"),
            ],
        );
        process(
            proc,
            20,
            &[
                (20, "cloud-hyperviso"),
                (21, "vcpu0"),
                (22, "vcpu10"),
                (23, "vcpu_ctl"),
            ],
        );
        process(
            proc,
            30,
            &[(30, "firecracker"), (31, "fc_api"), (32, "fc_vcpu 0")],
        );
        process(proc, 40, &[(40, "linux.uml")]);
        process(
            proc,
            50,
            &[
                (50, "qemu-system-x86"),
                (51, "qemu-system-x86"),
                (52, "CPU /KVM"),
                (53, "CPU 0/usb"),
            ],
        );
        let found = |pid| vcpu_threads(proc, pid).unwrap();
        assert_eq!(found(10), [11, 12]);
        assert_eq!(found(20), [21, 22]);
        assert_eq!(found(30), [32]);
        assert_eq!(found(40), [40]);
        assert_eq!(found(50), [50, 51, 52, 53]);
        assert!(vcpu_threads(proc, 60).is_err());
        assert_eq!(threads_named(proc, 30, "fc_api").unwrap(), [31]);
        assert!(threads_named(proc, 30, "fc_vcpu").unwrap().is_empty());
        assert!(threads_named(proc, 60, "x").is_err());
    }

    #[test]
    fn a_process_cannot_take_all_places() {
        let directory = tempfile::tempdir().unwrap();
        for (pid, name, most) in [(1, "x", MOST_UNNAMED), (2, "vcpu1", MOST)] {
            let threads: Vec<(u32, &str)> = (1..=1500).map(|tid| (tid, name)).collect();
            process(directory.path(), pid, &threads);
            assert_eq!(vcpu_threads(directory.path(), pid).unwrap().len(), most);
        }
    }

    #[test]
    fn states_are_read_over_any_name() {
        let directory = tempfile::tempdir().unwrap();
        let task = directory.path().join("7");
        fs::create_dir_all(&task).unwrap();
        let fields = " 0".repeat(35);
        let state = |letter: &str| {
            fs::write(task.join("stat"), format!("7 (a) R 9 (b) {letter}{fields} 3 0\n")).unwrap();
            state_of(directory.path(), 7)
        };
        assert_eq!(state("S"), Some(Kind::Blocked.word() | 3));
        assert_eq!(state("D"), Some(Kind::Blocked.word() | 3));
        assert_eq!(state("Z"), Some(Kind::Dead.word() | 3));
        assert_eq!(state("R"), None);
        assert_eq!(state_of(directory.path(), 8), None);
    }
}
