//! How long tasks ran, to the nanosecond: the first number of `/proc/PID/task/TID/schedstat` (Linux,
//! `Documentation/scheduler/sched-stats.rst`), where `/proc/PID/stat` has ticks of 10 ms, taken as samples.
//!
//! The number is the time that the scheduler gave to a task: user and system time, and interrupts and
//! softirqs on top of it. Kernels with `CONFIG_IRQ_TIME_ACCOUNTING` leave those out; interrupts of idle
//! processors belong to no task anywhere.

use crate::process::{ProcStat, all_processes, families};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::Duration;

/// Nanoseconds that tasks ran, by thread identifier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunTime(BTreeMap<u32, u64>);

impl RunTime {
    /// Of all threads of these processes that run now, and of their descendants.
    pub fn of_families(roots: &[u32]) -> RunTime {
        RunTime::of(&families(roots, &all_processes()))
    }

    /// Of all threads of these processes that run now.
    pub fn of(processes: &HashSet<u32>) -> RunTime {
        let mut times = BTreeMap::new();
        for pid in processes {
            let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
                continue;
            };
            for task in tasks.flatten() {
                let tid = task.file_name().to_string_lossy().parse();
                if let (Ok(tid), Some(ns)) = (tid, read(&task.path().join("schedstat"))) {
                    times.insert(tid, ns);
                }
            }
        }
        RunTime(times)
    }

    /// Time since `before`. What a task that has ended meanwhile did since then is not known and left out;
    /// all time of one that has begun counts.
    pub fn since(&self, before: &RunTime) -> Duration {
        let times = self.0.iter();
        let ns = times.map(|(tid, ns)| ns.saturating_sub(before.0.get(tid).copied().unwrap_or(0)));
        Duration::from_nanos(ns.sum())
    }
}

/// The kernel's threads that do softirqs when there are too many: not those of a task.
pub fn softirq_threads() -> Vec<u32> {
    let is_one = |stat: &ProcStat| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", stat.pid));
        name.is_ok_and(|name| name.starts_with("ksoftirqd/"))
    };
    all_processes()
        .iter()
        .filter(|stat| is_one(stat))
        .map(|stat| stat.pid)
        .collect()
}

fn read(path: &Path) -> Option<u64> {
    parse(&std::fs::read_to_string(path).ok()?)
}

/// Time on the processor, time runnable, and times it was given a processor.
fn parse(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_tasks_that_are_there() {
        let times = |times: &[(u32, u64)]| RunTime(times.iter().copied().collect());
        let before = times(&[(1, 100), (2, 200), (3, 300)]);
        // 3 has ended, 4 has begun, and 2 is another one.
        let after = times(&[(1, 150), (2, 20), (4, 7)]);
        assert_eq!(after.since(&before), Duration::from_nanos(57));
        assert_eq!(before.since(&before), Duration::ZERO);
        assert_eq!(parse("692352 3369849 3\n"), Some(692_352));
        assert_eq!(parse(""), None);
    }

    #[test]
    fn families_have_all_generations() {
        let process = |pid, parent| ProcStat {
            pid,
            parent,
            group: pid,
            ended_ticks: 0,
        };
        // Children may be listed before their parents.
        let processes = [
            process(4, 3),
            process(3, 2),
            process(2, 1),
            process(6, 5),
            process(7, 1),
        ];
        assert_eq!(families(&[2], &processes), HashSet::from([2, 3, 4]));
        assert_eq!(families(&[2, 5], &processes), HashSet::from([2, 3, 4, 5, 6]));
        assert_eq!(families(&[], &processes), HashSet::new());
    }

    #[test]
    fn work_of_a_thread_shows() {
        let own = HashSet::from([std::process::id()]);
        let before = RunTime::of(&own);
        let mut sum = 0_u64;
        for number in 0..3_000_000_u64 {
            sum = std::hint::black_box(sum ^ number);
        }
        // The kernel counts at the latest when the thread leaves its processor.
        std::thread::sleep(Duration::from_millis(1));
        assert!(
            RunTime::of(&own).since(&before) > Duration::from_micros(100),
            "{sum}"
        );
    }
}
