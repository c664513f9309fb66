//! The time that waking a sleeping core takes from the core that wakes it: 2 us on bare metal, and ten times
//! as much where the processor to be woken belongs to a hypervisor. The placement policy weighs it against
//! the time that a helper saves.

use crate::executor::ring_bell;
use placement::Cpu;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Number of times that the core is woken; the median counts.
const ROUNDS: usize = 15;

/// Time in which the core falls asleep.
const SLEEP: Duration = Duration::from_micros(200);

/// The time that waking one of `cpus` takes from the calling thread, in nanoseconds; `None` if there are
/// none. Takes a few milliseconds.
///
/// # Errors
/// No thread or descriptor.
pub fn measure(cpus: &[Cpu]) -> std::io::Result<Option<u64>> {
    // One of two is not where the calling thread runs, and takes longer.
    let two = cpus.iter().take(2).map(|cpu| time_to_wake(*cpu));
    two.reduce(|a, b| Ok(a?.max(b?))).transpose()
}

/// Binds the calling thread to a core. One that has gone offline meanwhile is as good as any other.
pub(crate) fn bind(cpu: Cpu) {
    let mut set = CpuSet::new();
    set.set(cpu.0.into());
    if let Err(error) = sched_setaffinity(None, &set) {
        log::warn!("cannot work on CPU {}: {error}", cpu.0);
    }
}

fn time_to_wake(cpu: Cpu) -> std::io::Result<u64> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC)?;
    let measured = AtomicBool::new(false);
    thread::scope(|scope| {
        thread::Builder::new().spawn_scoped(scope, || {
            bind(cpu);
            while !measured.load(Ordering::Relaxed) {
                let _ = rustix::io::read(&bell, &mut [0u8; 8]);
            }
        })?;
        let mut times: [u64; ROUNDS] = std::array::from_fn(|_| time_to_ring(&bell));
        times.sort_unstable();
        measured.store(true, Ordering::Relaxed);
        ring_bell(&bell);
        Ok(times[ROUNDS / 2])
    })
}

fn time_to_ring(bell: &OwnedFd) -> u64 {
    thread::sleep(SLEEP);
    let start = Instant::now();
    ring_bell(bell);
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waking_takes_time_and_ends() {
        let all: Vec<_> = (0..64).map(Cpu).collect();
        let cost = measure(&all).unwrap().unwrap();
        assert!(cost > 100, "{cost} ns for a system call that wakes a thread");
        assert_eq!(measure(&[]).unwrap(), None);
    }
}
