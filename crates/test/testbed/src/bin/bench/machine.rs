//! What it is measured on, and whose processor time goes where.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use testbed::endpoint::{Endpoint, Host};
use testbed::process::{all_processes, families};
use testbed::run_time::RunTime;

/// The machine, as named in results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model name of the processor.
    pub processor: String,
    /// Processors on line.
    pub cores: usize,
    /// Kernel of the machine.
    pub kernel: String,
    /// Whether it is a virtual machine itself; waking threads takes longer there.
    pub virtualised: bool,
    /// Versions of the packages that were measured against, or with.
    pub versions: BTreeMap<String, String>,
}

const PACKAGES: &str = "openvswitch-switch-dpdk dpdk-dev user-mode-linux iperf3";

fn cpuinfo(key: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(": ")?.1.to_owned())
}

impl Machine {
    /// The machine that runs this process.
    pub fn this() -> Machine {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let query = format!("dpkg-query -W -f '${{Package}} ${{Version}}\\n' {PACKAGES} 2>/dev/null");
        let versions = Host.run(&query).map(|output| output.stdout).unwrap_or_default();
        Machine {
            processor: cpuinfo("model name").unwrap_or_else(|| "an unknown processor".into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().into(),
            virtualised: cpuinfo("flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            versions: versions
                .lines()
                .filter_map(|line| line.split_once(' '))
                .map(|(package, version)| (package.to_owned(), version.to_owned()))
                .collect(),
        }
    }
}

/// Seconds that all processors together have not been idle since the machine started, stolen time not
/// included. Idle time is exact (proc(5), with `CONFIG_NO_HZ_COMMON`). What the kernel says of work is
/// sampled at its ticks, which tasks that sleep at each tick escape.
pub fn busy_seconds() -> f64 {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime = uptime.split(' ').next().and_then(|text| text.parse().ok());
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let processors = stat
        .lines()
        .filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "));
    let ticks: u64 = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .enumerate()
        // user, nice, system, idle, iowait, irq, softirq, steal.
        .filter(|(index, _)| matches!(index, 3 | 4 | 7))
        .filter_map(|(_, ticks)| ticks.parse::<u64>().ok())
        .sum();
    uptime.unwrap_or(0.0) * processors.count() as f64 - Duration::from_millis(ticks * 10).as_secs_f64()
}

/// What processors did for others while something was measured.
pub struct Neighbours {
    begin: Instant,
    busy: f64,
    ours: f64,
}

impl Neighbours {
    /// From now on.
    pub fn watch() -> Neighbours {
        Neighbours {
            begin: Instant::now(),
            busy: busy_seconds(),
            ours: our_seconds(),
        }
    }

    /// Seconds since then, and processor seconds that neither this process nor any that it started had.
    pub fn seen(&self) -> [f64; 2] {
        let others = busy_seconds() - self.busy - (our_seconds() - self.ours);
        [self.begin.elapsed().as_secs_f64(), others]
    }
}

/// Processor seconds of this process and of all that it started, those that have ended included.
fn our_seconds() -> f64 {
    let all = all_processes();
    let family = families(&[std::process::id()], &all);
    let living = RunTime::of(&family).since(&RunTime::default());
    let of_us = all.iter().filter(|stat| family.contains(&stat.pid));
    let ended: u64 = of_us.map(|stat| stat.ended_ticks).sum();
    (living + Duration::from_millis(ended * 10)).as_secs_f64()
}

/// Nanoseconds in which a cache line goes from the first processor to the last one and back: the shortest of
/// many times, which other tasks do not lengthen. A virtual machine's host places the two near each other or
/// far apart, and changes that at any time. There is none of a single processor.
pub fn cache_line_round_trip() -> Option<f64> {
    const TIMES: u32 = 200;
    const TRIPS: u32 = 10;
    let last = std::thread::available_parallelism().map_or(0, |count| count.get() - 1);
    if last == 0 {
        return None;
    }
    let turn = AtomicU32::new(0);
    let wait_for = |number| {
        while turn.load(Ordering::Acquire) != number {
            std::hint::spin_loop();
        }
    };
    let mut shortest = Duration::MAX;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            on_processor(last, || {
                for trip in 0..TIMES * TRIPS {
                    wait_for(2 * trip + 1);
                    turn.store(2 * trip + 2, Ordering::Release);
                }
            });
        });
        on_processor(0, || {
            for time in 0..TIMES {
                let begin = Instant::now();
                for trip in time * TRIPS..(time + 1) * TRIPS {
                    turn.store(2 * trip + 1, Ordering::Release);
                    wait_for(2 * trip + 2);
                }
                shortest = shortest.min(begin.elapsed() / TRIPS);
            }
        });
    });
    Some(1e9 * shortest.as_secs_f64())
}

/// How often processors have switched to another task since the machine started.
pub fn context_switches() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("ctxt "));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0.0)
}

/// Seconds that idle processors have polled instead of halting since the machine started, which no count of
/// processor time has in it.
pub fn polled_seconds() -> f64 {
    let states = (0..).map(|cpu| format!("/sys/devices/system/cpu/cpu{cpu}/cpuidle/state0"));
    let read = |path: String| std::fs::read_to_string(path).ok();
    let polls = states.map_while(|state| {
        let time = read(format!("{state}/time"))?.trim().parse::<u64>().ok()?;
        Some(if read(format!("{state}/name"))?.trim() == "POLL" {
            time
        } else {
            0
        })
    });
    Duration::from_micros(polls.sum()).as_secs_f64()
}

/// Idle processors look for work for a while before they halt, until this is dropped (Linux,
/// `Documentation/virt/guest-halt-polling.rst`): waking one takes no interrupt from the host then.
pub struct HaltPolling {
    before: String,
}

impl HaltPolling {
    /// Linux' default, which hosts may turn off.
    const TIME: Duration = Duration::from_micros(200);
    const PARAMETER: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

    /// Whether this machine has it: virtual ones with that idle governor.
    pub fn is_possible() -> bool {
        let governor = std::fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_governor");
        governor.is_ok_and(|name| name.trim() == "haltpoll") && Path::new(Self::PARAMETER).exists()
    }

    /// Starts it.
    pub fn start() -> Result<HaltPolling> {
        let before = std::fs::read_to_string(Self::PARAMETER)?;
        std::fs::write(Self::PARAMETER, Self::TIME.as_nanos().to_string())?;
        Ok(HaltPolling { before })
    }
}

impl Drop for HaltPolling {
    fn drop(&mut self) {
        // It could be written a moment ago.
        let _ = std::fs::write(Self::PARAMETER, &self.before);
    }
}

/// Runs `work` on one processor. It is this thread that does, as a virtual processor's lives as long as its
/// guest: the switch has known it since the guest was connected, which a thread that comes and goes with the
/// measurement would not be.
pub fn on_processor<T>(number: usize, work: impl FnOnce() -> T) -> T {
    let before = rustix::thread::sched_getaffinity(None);
    let mut set = rustix::thread::CpuSet::new();
    set.set(number);
    // A processor that is not there leaves the thread where the kernel wants it.
    let _ = rustix::thread::sched_setaffinity(None, &set);
    let result = work();
    if let Ok(before) = before {
        let _ = rustix::thread::sched_setaffinity(None, &before);
    }
    result
}
