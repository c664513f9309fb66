//! Child processes that never outlive the test.
//!
//! A guest is several processes (User Mode Linux forks one per address space of its guest), and tests end in
//! every possible way: normally, by panic, by Ctrl-C, by kill -9. So each child leads a process group, its
//! handle kills the group when dropped, and `setpriv --pdeathsig` makes the kernel kill the leader if we die
//! without that; where the leader has children of its own, it is the first process of a process namespace, so
//! that they end with it. The parent death signal is tied to the *thread* that forked, not to the process;
//! test threads come and go, so one thread that lives as long as the process does all the forking. Any thread
//! may call anything here.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

type Job = (Command, mpsc::Sender<io::Result<Child>>);

/// Forks on the thread that lives as long as the process.
fn spawn_on_long_lived_thread(command: Command) -> io::Result<Child> {
    static FORKER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();
    let forker = FORKER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        thread::spawn(move || {
            for (mut command, answer) in jobs {
                // The asker is waiting; if it is not, the child has nobody to own it and Child's pipes close.
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (answer, result) = mpsc::channel();
    forker
        .lock()
        .expect("no thread panics while it holds the sender")
        .send((command, answer))
        .expect("the forking thread never ends");
    result.recv().expect("the forking thread answers every job")
}

/// A command that the kernel kills when this process dies.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// As [`command`], for a program whose own children must not outlive it either: it becomes the first process
/// of a process namespace, which the kernel empties when it ends, however that happens.
pub fn command_with_children(program: impl AsRef<OsStr>) -> Command {
    let mut command = command("unshare");
    command
        .args(["--pid", "--fork", "--kill-child=KILL", "--"])
        .arg(program);
    command
}

/// A running process group; killed on drop.
#[derive(Debug)]
pub struct Group {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Group {
    /// Starts `command` as the leader of a new process group. Use [`command`] to make it.
    pub fn spawn(mut command: Command) -> Result<Group> {
        command.process_group(0);
        let text = format!("{command:?}");
        let child = spawn_on_long_lived_thread(command).with_context(|| format!("cannot start {text}"))?;
        Ok(Group { child, ended: None })
    }

    /// Process identifier of the leader, and name of the group.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The child's pipes, to take out.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// How the leader ended, or `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Waits until the leader has ended, at most `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        while self.ended().is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        self.ended()
    }

    /// Sends a signal to the leader alone. Nothing happens if it has ended.
    pub fn signal(&mut self, signal: Signal) {
        if self.ended().is_none()
            && let Some(pid) = Pid::from_raw(self.pid().cast_signed())
        {
            // It may end between the check and the call; its pid stays ours until we wait for it.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Sends a signal to all of the group.
    pub fn signal_all(&mut self, signal: Signal) {
        if let Some(group) = Pid::from_raw(self.pid().cast_signed()) {
            // It is no error if the receiver is gone.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Kills the whole group with SIGKILL and waits for the leader.
    pub fn kill(&mut self) {
        if let Some(group) = Pid::from_raw(self.pid().cast_signed()) {
            // Members may outlive the leader: the group exists as long as any of them does.
            let _ = kill_process_group(group, Signal::KILL);
        }
        if self.ended.is_none() {
            self.ended = self.child.wait().ok();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Values of `/proc/<pid>/stat` about a process.
#[derive(Clone, Copy, Debug)]
pub struct ProcStat {
    /// Process identifier.
    pub pid: u32,
    /// Identifier of the parent.
    pub parent: u32,
    /// Process group.
    pub group: u32,
    /// Clock ticks of 10 ms (USER_HZ is 100 on Linux) that its descendants spent which have ended and were
    /// waited for.
    pub ended_ticks: u64,
}

fn parse_stat(text: &str) -> Option<ProcStat> {
    // The second field is the program's name in parentheses and may contain anything, even parentheses.
    let (head, tail) = text.rsplit_once(')')?;
    let pid = head.split_once(' ')?.0.parse().ok()?;
    let fields: Vec<&str> = tail.split_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u32>().ok());
    Some(ProcStat {
        pid,
        parent: number(1)?,
        group: number(2)?,
        ended_ticks: u64::from(number(13)?) + u64::from(number(14)?),
    })
}

/// All processes of the machine.
pub fn all_processes() -> Vec<ProcStat> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .bytes()
                .all(|b| b.is_ascii_digit())
        })
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok())
        .filter_map(|text| parse_stat(&text))
        .collect()
}

/// Processes out of `all`, and all their descendants.
pub fn families(roots: &[u32], all: &[ProcStat]) -> HashSet<u32> {
    let mut family: HashSet<u32> = roots.iter().copied().collect();
    loop {
        let before = family.len();
        let children = all.iter().filter(|stat| family.contains(&stat.parent));
        let children: Vec<u32> = children.map(|stat| stat.pid).collect();
        family.extend(children);
        if family.len() == before {
            return family;
        }
    }
}

/// Proportional share of memory of a process in bytes; 0 if it is gone.
pub fn memory(pid: u32) -> u64 {
    bytes(pid, "smaps_rollup", "Pss:")
}

/// Resident memory of a process in bytes; 0 if it is gone.
pub fn resident_memory(pid: u32) -> u64 {
    bytes(pid, "status", "VmRSS:")
}

/// Resident memory of a process that is neither a file's nor shared, in bytes; 0 if it is gone.
pub fn own_memory(pid: u32) -> u64 {
    bytes(pid, "status", "RssAnon:")
}

/// The value in kilobytes of a line in a file of `/proc/<pid>`.
fn bytes(pid: u32, file: &str, key: &str) -> u64 {
    let kilobytes = || -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
        let line = text.lines().find(|line| line.starts_with(key))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    kilobytes().unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(group: u32) -> usize {
        all_processes().iter().filter(|stat| stat.group == group).count()
    }

    /// Orphans are reaped by init, soon but not at once.
    fn wait_for_members(group: u32, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while members(group) != count && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(members(group), count);
    }

    #[test]
    fn dropping_kills_the_whole_group() {
        let mut command = command("sh");
        command.args(["-c", "sleep 100 & sleep 100 & wait"]);
        let group = Group::spawn(command).expect("sh starts");
        let name = group.pid();
        wait_for_members(name, 3);
        drop(group);
        wait_for_members(name, 0);
    }

    /// The case that we are killed ourselves: the kernel then kills the leader only.
    #[test]
    fn the_end_of_the_leader_is_the_end_of_its_children() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let mut command = command_with_children("sh");
        command.args(["-c", "sleep 100 & sleep 100 & wait"]);
        let mut group = Group::spawn(command).expect("unshare starts");
        let name = group.pid();
        wait_for_members(name, 4);
        group.signal(Signal::KILL);
        group.wait(Duration::from_secs(5)).expect("it cannot refuse");
        wait_for_members(name, 0);
    }

    #[test]
    fn a_child_survives_the_thread_that_asked_for_it() {
        let mut group = thread::spawn(|| {
            let mut command = command("sleep");
            command.arg("100");
            Group::spawn(command).expect("sleep starts")
        })
        .join()
        .expect("the thread ends");
        assert!(
            group.wait(Duration::from_millis(200)).is_none(),
            "killed with its thread"
        );
    }

    #[test]
    fn stat_lines_with_odd_names_are_read() {
        let stat = parse_stat("12 (a) b (c) S 3 4 5 0 -1 0 0 0 0 0 10 20 30 40 20 0 1 0").expect("parses");
        assert_eq!(
            (stat.pid, stat.parent, stat.group, stat.ended_ticks),
            (12, 3, 4, 70)
        );
    }
}
