//! What waking a thread on a sleeping core takes on this machine: the waker's time, which the data plane
//! measures when it starts, and the time until the other thread runs. These are `wake` and `wake_latency` of
//! the modelled machine `virtual-2`.
//!
//! `cargo test --release -p placement-simulator --test wake_up -- --ignored --nocapture`

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const ROUNDS: usize = 1_000;

/// Time in which the core falls asleep.
const SLEEP: Duration = Duration::from_micros(200);

fn bind(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("a core of this machine");
}

fn quartiles(mut times: Vec<u64>) -> [u64; 3] {
    times.sort_unstable();
    [1, 2, 3].map(|quarter| times[times.len() * quarter / 4])
}

#[test]
#[ignore = "a measurement"]
fn waking_a_thread_on_a_sleeping_core() {
    let bell = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
    let start = Instant::now();
    let now_ns = || start.elapsed().as_nanos() as u64;
    let woken_at = AtomicU64::new(0);
    let (mut waker, mut latency) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            bind(1);
            for _ in 0..ROUNDS {
                rustix::io::read(&bell, &mut [0; 8]).expect("a bell");
                woken_at.store(now_ns(), Ordering::Release);
            }
        });
        bind(0);
        for _ in 0..ROUNDS {
            thread::sleep(SLEEP);
            let before = woken_at.load(Ordering::Acquire);
            let rung_at = now_ns();
            rustix::io::write(&bell, &1u64.to_ne_bytes()).expect("a bell");
            waker.push(now_ns() - rung_at);
            let woken = loop {
                match woken_at.load(Ordering::Acquire) {
                    at if at == before => std::hint::spin_loop(),
                    at => break at,
                }
            };
            latency.push(woken - rung_at);
        }
    });
    let [waker, latency] = [waker, latency].map(quartiles);
    println!("nanoseconds, quartiles: the waker's time {waker:?}, until the other thread runs {latency:?}");
}
