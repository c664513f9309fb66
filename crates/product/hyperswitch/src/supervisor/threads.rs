//! The threads of a child as the kernel describes them in `/proc`: asleep, at work, or held.
//!
//! The states of threads tell a process that hangs from one that gets no processor, which no answer and no
//! clock of ours can tell. Reading them wakes nothing. What cannot be read is unknown, and whoever asks must
//! not kill because of it.

use std::collections::BTreeMap;
use std::fs;

/// What a thread does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Sleeps until something happens (state S).
    Asleep,
    /// Has a processor, or waits for one (state R).
    Runnable,
    /// Anything else: held by the kernel (state D), stopped, traced, ended.
    Held,
}

/// A thread at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// What it does.
    pub condition: Condition,
    /// Processor time that it has used.
    pub cpu_ms: u64,
    /// How often it has lost or given up a processor.
    pub switches: u64,
}

/// Threads that may hang without harm, since no other thread waits for them: they close or unmap files of
/// VMMs.
const MAY_HANG: [&str; 2] = ["gate-", "unmapper"];

/// Milliseconds of the unit in which the kernel counts processor time (`USER_HZ`: 100 a second on all
/// machines that we run on).
const TICK_MS: u64 = 10;

/// One thread of a process; `None` if it is gone, or cannot be seen.
pub fn thread(pid: u32, tid: u32) -> Option<Thread> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}")).ok();
    let (_, thread) = parse(&read("stat")?)?;
    let status = read("status")?;
    let switches = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
    let switches = switches.map(|name| field(&status, name).and_then(|count| count.parse::<u64>().ok()));
    Some(Thread {
        switches: switches[0]? + switches[1]?,
        ..thread
    })
}

/// The threads of a process that others may have to wait for. Their switches are not counted.
pub fn all(pid: u32) -> BTreeMap<u32, Thread> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let read = |task: fs::DirEntry| {
        let tid = task.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        let (name, thread) = parse(&stat)?;
        let counts = !MAY_HANG.iter().any(|prefix| name.starts_with(prefix));
        counts.then_some((tid, thread))
    };
    tasks.filter_map(Result::ok).filter_map(read).collect()
}

/// Whether a debugger or another tracer has a process.
pub fn is_traced(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    field(&status, "TracerPid:").is_some_and(|tracer| tracer != "0")
}

/// Name and state from a line of `stat` (proc_pid_stat(5)): number, name in brackets, state, and further
/// fields.
fn parse(stat: &str) -> Option<(&str, Thread)> {
    let (begin, rest) = stat.rsplit_once(") ")?;
    let (_, name) = begin.split_once('(')?;
    let mut fields = rest.split_ascii_whitespace();
    let condition = match fields.next()? {
        "S" => Condition::Asleep,
        "R" => Condition::Runnable,
        _ => Condition::Held,
    };
    // Fields 14 and 15, `utime` and `stime`; the state was field 3.
    let mut times = fields.skip(10).map_while(|time| time.parse::<u64>().ok());
    let ticks = times.next()? + times.next()?;
    let thread = Thread {
        condition,
        cpu_ms: ticks * TICK_MS,
        switches: 0,
    };
    Some((name, thread))
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_line_is_read_whatever_the_name() {
        let line = "7 (a) R (x) S 1 7 7 0 -1 4194304 91 0 0 0 12 30 0 0 20 0 1 0 100 5 6";
        let (name, thread) = parse(line).unwrap();
        assert_eq!(
            (name, thread.condition, thread.cpu_ms),
            ("a) R (x", Condition::Asleep, 420)
        );
        assert!(parse("7 (a) S 1 7").is_none());
        assert!(parse("").is_none());
    }

    #[test]
    fn sleepers_and_workers_are_told_apart() {
        let me = std::process::id();
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let (say, tids) = std::sync::mpsc::channel();
        let tid = || u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        std::thread::scope(|scope| {
            let say_too = say.clone();
            scope.spawn(move || {
                say.send(tid()).unwrap();
                let _ = receiver.recv();
            });
            let sleeper = tids.recv().unwrap();
            let end = Instant::now() + Duration::from_secs(60);
            let worker = scope.spawn(move || {
                say_too.send(tid()).unwrap();
                let mut thread = thread(me, tid()).unwrap();
                while thread.cpu_ms < 50 {
                    assert!(Instant::now() < end, "it gets no processor time");
                    thread = super::thread(me, tid()).unwrap();
                }
                thread
            });
            tids.recv().unwrap();
            assert_eq!(worker.join().unwrap().condition, Condition::Runnable);
            let asleep = || Some(thread(me, sleeper)?).filter(|it| it.condition == Condition::Asleep);
            while asleep().is_none() {
                assert!(Instant::now() < end, "it does not sleep");
            }
            assert_eq!(
                asleep().unwrap(),
                thread(me, sleeper).unwrap(),
                "and goes on sleeping"
            );
            assert_eq!(all(me)[&sleeper].condition, Condition::Asleep);
            drop(sender);
        });
        assert!(thread(me, u32::MAX).is_none());
        assert!(!is_traced(me));
    }
}
