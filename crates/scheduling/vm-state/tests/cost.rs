//! What the programs cost, and how late they are.
//!
//! `cargo test --release -p vm-state --test cost -- --ignored --nocapture`

#![allow(clippy::unwrap_used)]

use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use vm_state::{Publisher, Registry, ThreadState, VmState};

fn pin(cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).unwrap();
}

fn cores() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

fn tid() -> u32 {
    gettid().as_raw_nonzero().get().cast_unsigned()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Processor time of this process, which others on the machine do not lengthen.
fn cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Nanoseconds of processor time per context switch: two threads on one core wake each other over pipes.
fn switch_ns(cpu: usize, registry: Option<&Registry>) -> f64 {
    const ROUNDS: u32 = 20_000;
    let (mut from_us, mut to_them) = std::io::pipe().unwrap();
    let (mut from_them, mut to_us) = std::io::pipe().unwrap();
    let (sender, receiver) = mpsc::channel();
    let echo = std::thread::spawn(move || {
        pin(cpu);
        sender.send(tid()).unwrap();
        let mut byte = [0];
        while from_us.read(&mut byte).unwrap() == 1 {
            to_us.write_all(&byte).unwrap();
        }
    });
    let slots: Vec<_> = [tid(), receiver.recv().unwrap()]
        .iter()
        .filter_map(|tid| registry?.add(*tid))
        .collect();
    let mut byte = [0];
    let mut round = || {
        to_them.write_all(&byte).unwrap();
        from_them.read_exact(&mut byte).unwrap();
    };
    (0..ROUNDS / 10).for_each(|_| round());
    let start = cpu_ns();
    (0..ROUNDS).for_each(|_| round());
    let spent = cpu_ns() - start;
    drop(to_them);
    echo.join().unwrap();
    slots.iter().for_each(|slot| registry.unwrap().remove(*slot));
    spent as f64 / f64::from(ROUNDS) / 2.0
}

#[test]
#[ignore = "a measurement"]
fn a_context_switch_costs_little_more() {
    let cpu = cores()[0];
    pin(cpu);
    let (mut without, mut with, mut registered) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..15 {
        without.push(switch_ns(cpu, None));
        let publisher = Publisher::attach().unwrap();
        let registry = Registry::map(publisher.area()).unwrap();
        with.push(switch_ns(cpu, None));
        registered.push(switch_ns(cpu, Some(&registry)));
    }
    let [without, with, registered] = [without, with, registered].map(median);
    println!(
        "ns per switch with wake-up: without {without:.0}, other threads {with:.0}, registered {registered:.0}"
    );
    assert!(registered < without * 1.5, "{without} {registered}");
}

/// From the moment at which a thread begins to go to sleep, as it says itself, until another core sees it
/// blocked. Going to sleep is part of that.
#[test]
fn a_state_is_seen_within_50_microseconds() {
    const ROUNDS: usize = 200;
    let Ok(publisher) = Publisher::attach() else {
        return;
    };
    let [here, .., there] = cores()[..] else { return };
    let (state, registry) = (
        VmState::map(publisher.area()).unwrap(),
        Registry::map(publisher.area()).unwrap(),
    );
    let (epoch, stamp) = (Instant::now(), AtomicU64::new(0));
    let now = || u64::try_from(epoch.elapsed().as_nanos()).unwrap();
    let in_time = |what: &str| {
        assert!(epoch.elapsed() < Duration::from_secs(60), "never seen: {what}");
        std::hint::spin_loop();
    };
    let (sender, receiver) = mpsc::channel();
    let (mut from_us, mut to_sleeper) = std::io::pipe().unwrap();
    std::thread::scope(|scope| {
        let (stamp, now) = (&stamp, &now);
        scope.spawn(move || {
            pin(there);
            sender.send(tid()).unwrap();
            while from_us.read(&mut [0]).unwrap() == 1 {
                stamp.store(now(), SeqCst);
            }
        });
        pin(here);
        let slot = registry.add(receiver.recv().unwrap()).unwrap();
        let mut late = Vec::new();
        for round in 0..ROUNDS {
            while !matches!(state.thread(slot), ThreadState::Blocked(_)) {
                in_time("it is blocked");
            }
            let (seen, began) = (now(), stamp.load(SeqCst));
            if round > 0 {
                late.push(seen.saturating_sub(began) as f64 / 1000.0);
            }
            std::thread::sleep(Duration::from_micros(200));
            let before = stamp.load(SeqCst);
            to_sleeper.write_all(&[0]).unwrap();
            // Until it has said that it runs, its old state may still be there.
            while stamp.load(SeqCst) == before {
                in_time("it runs");
            }
        }
        drop(to_sleeper);
        let late = median(late);
        println!("a thread is seen to block {late:.1} us after it began to");
        assert!(late < 50.0, "{late} us");
    });
}
