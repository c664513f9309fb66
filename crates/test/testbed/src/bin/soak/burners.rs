//! Others who want the processors: on each, a thread of normal priority that computes for a moment and then
//! pauses. Whoever works for the switch there is pre-empted, or gives way.

use crate::Stop;
use fastrand::Rng;
use std::hint::black_box;
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

/// Longest time of computing, and of a pause.
const COMPUTE_MS: u64 = 20;
const PAUSE_MS: u64 = 60;

/// Starts one per processor.
pub fn start<'scope>(scope: &'scope Scope<'scope, '_>, seed: u64, stop: &'scope Stop) {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    for processor in 0..processors {
        scope.spawn(move || {
            stay_on(processor);
            let mut random = Rng::with_seed(seed.wrapping_add(processor as u64));
            while !stop.raised() {
                compute(Duration::from_millis(random.u64(1..=COMPUTE_MS)));
                thread::sleep(Duration::from_millis(random.u64(1..=PAUSE_MS)));
            }
        });
    }
}

fn stay_on(processor: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    // A processor that is not there leaves the thread where the kernel wants it.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn compute(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        black_box((0..1000_u64).fold(0, u64::wrapping_add));
    }
}
