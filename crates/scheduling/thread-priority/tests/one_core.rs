//! Many threads on one core, each within its bound.

#![allow(clippy::unwrap_used, reason = "tests")]
#![forbid(unsafe_code)]

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};
use thread_priority::{Booster, Priority, WakeMode, grant};

const THREADS: usize = 8;
const TIME: Duration = Duration::from_secs(1);

/// Processor time of the calling thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap())
}

/// Works for a tenth of the time, as interfaces do that get a packet now and then; returns the time for which
/// it had the core in the raised class.
fn work_now_and_then(core: &CpuSet, end: Instant) -> Duration {
    sched_setaffinity(None, core).unwrap();
    let (mut booster, mut raised) = (Booster::new(Priority::Realtime), Duration::ZERO);
    while Instant::now() < end {
        booster.prepare_sleep(WakeMode::Preempting);
        std::thread::sleep(Duration::from_millis(18));
        booster.woken();
        let start = processor_time();
        let mut last = start;
        while last - start < Duration::from_millis(2) {
            let was_raised = booster.is_raised();
            booster.check();
            let now = processor_time();
            raised += if was_raised { now - last } else { Duration::ZERO };
            last = now;
        }
        booster.lower();
    }
    raised
}

#[test]
fn raised_threads_of_a_process_hold_a_core_for_a_bounded_time() {
    if grant(Priority::Realtime).class != Priority::Realtime {
        return;
    }
    let all = sched_getaffinity(None).unwrap();
    let mut core = CpuSet::new();
    core.set((0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap());
    let start = Instant::now();
    let raised: Duration = std::thread::scope(|scope| {
        let spawn = |_| scope.spawn(|| work_now_and_then(&core, start + TIME));
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // A fifth of the time, a burst, and what passes between two looks of each thread.
    let most = start.elapsed() / 5 + Duration::from_millis(10 + 20);
    assert!(raised < most, "{raised:?}, not {most:?}");
    assert!(raised > Duration::from_millis(5), "{raised:?}");
}
