//! The programs on the machine that runs the tests: real threads on real cores.
//!
//! Without the privilege, on a kernel without BTF, in a PID name space or on one core, nothing here can be
//! tried: that is said, and passes.

#![allow(clippy::unwrap_used)]

use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vm_state::{CoreState, Publisher, Registry, Slot, ThreadState, Unavailable, VmState};

const TIMEOUT: Duration = Duration::from_secs(10);

/// The tests pin threads to the same cores.
static MACHINE: Mutex<()> = Mutex::new(());

struct Rig {
    _alone: MutexGuard<'static, ()>,
    _publisher: Publisher,
    registry: Registry,
    state: VmState,
    /// Where actors are, and where the test is not: a reader on the same core never sees them run.
    stage: u32,
    /// Where the test is.
    seat: u32,
}

fn rig() -> Option<Rig> {
    let alone = MACHINE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let publisher = match Publisher::attach() {
        Ok(publisher) => publisher,
        Err(reason @ (Unavailable::NoPrivilege | Unavailable::NoTypes(_) | Unavailable::OtherNumbers)) => {
            eprintln!("not tried: {reason}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let set = sched_getaffinity(None).unwrap();
    let cores: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    let [seat, .., stage] = cores[..] else {
        eprintln!("not tried: it takes two cores");
        return None;
    };
    let [seat, stage] = [seat, stage].map(|cpu| cpu as u32);
    pin(seat);
    Some(Rig {
        registry: Registry::map(publisher.area()).unwrap(),
        state: VmState::map(publisher.area()).unwrap(),
        _publisher: publisher,
        _alone: alone,
        seat,
        stage,
    })
}

fn pin(cpu: u32) {
    let mut only = CpuSet::new();
    only.set(cpu as usize);
    sched_setaffinity(None, &only).unwrap();
}

fn tid() -> u32 {
    gettid().as_raw_nonzero().get().cast_unsigned()
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < end, "never seen: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A thread on one core that spins or sleeps on command.
struct Actor {
    tid: u32,
    spin: Arc<AtomicBool>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Actor {
    fn start(cpu: u32) -> Actor {
        let (spin, end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (spinning, ending) = (spin.clone(), end.clone());
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            pin(cpu);
            sender.send(tid()).unwrap();
            while !ending.load(SeqCst) {
                if spinning.load(SeqCst) {
                    std::hint::spin_loop();
                } else {
                    std::thread::park();
                }
            }
        });
        Actor {
            tid: receiver.recv().unwrap(),
            spin,
            end,
            thread: Some(thread),
        }
    }

    fn spin(&self, spin: bool) {
        self.spin.store(spin, SeqCst);
        self.thread.as_ref().unwrap().thread().unpark();
    }

    fn end(&mut self) {
        self.end.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            thread.join().unwrap();
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn a_thread_runs_blocks_and_ends_as_it_does() {
    let Some(rig) = rig() else { return };
    let cpu = rig.stage;
    let mut actor = Actor::start(cpu);
    let slot = rig.registry.add(actor.tid).unwrap();
    assert_eq!(rig.registry.add(actor.tid), Some(slot), "it is there already");
    eventually("it is blocked", || {
        rig.state.thread(slot) == ThreadState::Blocked(cpu)
    });
    actor.spin(true);
    eventually("it runs, and its core runs it", || {
        rig.state.thread(slot) == ThreadState::Running(cpu) && rig.state.core(cpu) == CoreState::Vcpu(slot)
    });
    actor.spin(false);
    eventually("it blocks again", || {
        rig.state.thread(slot) == ThreadState::Blocked(cpu)
    });
    assert_ne!(rig.state.core(cpu), CoreState::Vcpu(slot));
    actor.end();
    eventually("it is dead", || rig.state.thread(slot) == ThreadState::Dead);
    rig.registry.remove(slot);
    assert_eq!(rig.state.thread(slot), ThreadState::Unknown);
}

#[test]
fn what_waits_when_it_is_registered_is_known_at_once() {
    let Some(rig) = rig() else { return };
    let actor = Actor::start(rig.stage);
    let stat = format!("/proc/{}/stat", actor.tid);
    eventually("it sleeps", || {
        std::fs::read_to_string(&stat).unwrap().contains(") S ")
    });
    let slot = rig.registry.add(actor.tid).unwrap();
    assert_eq!(rig.state.thread(slot), ThreadState::Blocked(rig.stage));
    assert_eq!(rig.state.thread(Slot(Slot::LIMIT - 1)), ThreadState::Unknown);
    assert_eq!(rig.state.thread(Slot(u16::MAX)), ThreadState::Unknown);
    assert_eq!(rig.state.core(u32::MAX), CoreState::Unknown);
    assert!(!rig.state.wanted(u32::MAX));
}

#[test]
fn of_two_that_want_one_core_one_waits() {
    let Some(rig) = rig() else { return };
    let cpu = rig.stage;
    let (first, second) = (Actor::start(cpu), Actor::start(cpu));
    let slots = [&first, &second].map(|actor| rig.registry.add(actor.tid).unwrap());
    first.spin(true);
    second.spin(true);
    let turns: std::cell::Cell<[bool; 2]> = Default::default();
    eventually("each runs while the other waits", || {
        let states = slots.map(|slot| rig.state.thread(slot));
        let mut seen = turns.get();
        for (index, other) in [(0, 1), (1, 0)] {
            seen[index] |= states[index] == ThreadState::Running(cpu)
                && states[other] == ThreadState::Runnable(cpu)
                && rig.state.wanted(cpu);
        }
        turns.set(seen);
        seen == [true; 2]
    });
    let both = rig.state.guest(&slots);
    assert!(
        matches!(both, ThreadState::Running(_) | ThreadState::Runnable(_)),
        "{both:?}"
    );
    first.spin(false);
    second.spin(false);
    eventually("both are blocked", || {
        slots
            .iter()
            .all(|slot| rig.state.thread(*slot) == ThreadState::Blocked(cpu))
    });
    assert_eq!(rig.state.guest(&slots), ThreadState::Blocked(cpu));
    assert_eq!(rig.state.guest(&[]), ThreadState::Unknown);
}

#[test]
fn who_had_to_wait_for_a_core_that_was_kept_knows_it() {
    let Some(rig) = rig() else { return };
    let cpu = rig.stage;
    let (first, second) = (Actor::start(cpu), Actor::start(cpu));
    let has_core = |actor: &Actor| rig.state.core(cpu) == CoreState::Task(actor.tid);
    first.spin(true);
    eventually("one found the core free", || {
        has_core(&first) && !rig.state.preempted(cpu)
    });
    second.spin(true);
    eventually("the other one waited for it", || {
        has_core(&second) && rig.state.preempted(cpu)
    });
    first.spin(false);
    second.spin(false);
    eventually("nobody has it", || !rig.state.preempted(cpu));
}

#[test]
fn idle_cores_and_busy_ones_are_told_apart() {
    let Some(rig) = rig() else { return };
    let (here, there) = (rig.seat, rig.stage);
    assert_eq!(
        rig.state.core(here),
        CoreState::Task(tid()),
        "this one runs the question"
    );
    // Others may use that core as well. It has to be seen idle only if the kernel says that it was.
    let (end, before) = (Instant::now() + Duration::from_secs(2), idle_ticks(there));
    let seen = |state: &VmState| state.core(there) == CoreState::Idle && !state.wanted(there);
    while !seen(&rig.state) && Instant::now() < end {
        assert!(idle_ticks(there) < before + 10, "it was idle, and not seen so");
        std::thread::sleep(Duration::from_micros(200));
    }
    let actor = Actor::start(there);
    actor.spin(true);
    eventually("a busy core", || {
        rig.state.core(there) == CoreState::Task(actor.tid)
    });
}

/// Ticks of 10 ms that a core was idle, by the kernel's own account.
fn idle_ticks(cpu: u32) -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let line = stat
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cpu{cpu} ")));
    line.unwrap().split(' ').nth(3).unwrap().parse().unwrap()
}

/// A process that ends with the test, however that ends.
struct Spinner(Child);

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// As User Mode Linux runs its guest: in another process, for which the thread that is known waits.
#[test]
fn a_child_process_counts_as_its_parent() {
    let Some(rig) = rig() else { return };
    let cpu = rig.stage;
    let (to_parent, orders) = mpsc::channel::<()>();
    let (to_us, answers) = mpsc::channel();
    let parent = std::thread::spawn(move || {
        pin(cpu);
        to_us.send((tid(), None)).unwrap();
        orders.recv().unwrap();
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        to_us.send((tid(), child.ok().map(Spinner))).unwrap();
        // Waits until the test has seen enough.
        let _ = orders.recv();
    });
    let (known, _) = answers.recv().unwrap();
    let slot = rig.registry.add(known).unwrap();
    eventually("it waits for orders", || {
        rig.state.thread(slot) == ThreadState::Blocked(cpu)
    });
    to_parent.send(()).unwrap();
    let spinner = answers.recv().unwrap().1.expect("there is a shell");
    let stat = format!("/proc/{known}/stat");
    eventually("it waits while its child runs", || {
        std::fs::read_to_string(&stat).unwrap().contains(") S ")
            && rig.state.thread(slot) == ThreadState::Running(cpu)
    });
    drop(spinner);
    eventually("neither runs", || {
        matches!(rig.state.thread(slot), ThreadState::Blocked(_))
    });
    drop(to_parent);
    parent.join().unwrap();
}

/// Parent and child wait for each other in turns, as a User Mode Linux guest that makes system calls does; on
/// a core that others want, the one whose turn it is waits for that.
#[test]
fn a_parent_that_waits_for_its_child_is_not_blocked_while_the_child_wants_to_run() {
    let Some(rig) = rig() else { return };
    let cpu = rig.stage;
    let hog = Actor::start(cpu);
    hog.spin(true);
    let (end, ending) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
    let ended = end.clone();
    let parent = std::thread::spawn(move || {
        pin(cpu);
        let mut command = Command::new("cat");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        ending.0.send(tid()).unwrap();
        let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut byte = [0];
        while !ended.load(SeqCst) {
            to.write_all(&byte).unwrap();
            from.read_exact(&mut byte).unwrap();
        }
        drop(to);
        child.wait().unwrap();
    });
    let slot = rig.registry.add(ending.1.recv().unwrap()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let blocked = (0..1000)
        .filter(|_| {
            std::thread::sleep(Duration::from_micros(300));
            matches!(rig.state.thread(slot), ThreadState::Blocked(_))
        })
        .count();
    end.store(true, SeqCst);
    parent.join().unwrap();
    assert!(blocked < 50, "{blocked} of 1000");
}

#[test]
fn a_successor_begins_with_nothing() {
    let Some(rig) = rig() else { return };
    let actor = Actor::start(rig.stage);
    let slot = rig.registry.add(actor.tid).unwrap();
    eventually("it is known", || rig.state.thread(slot) != ThreadState::Unknown);
    let successor = Registry::map(rig._publisher.area()).unwrap();
    assert_eq!(rig.state.thread(slot), ThreadState::Unknown);
    assert!(successor.add(actor.tid).is_some());
}

#[test]
fn buckets_are_bounded() {
    let Some(rig) = rig() else { return };
    // Numbers beyond those that the kernel gives out, so that no thread has them; all in one bucket.
    let tids = (0..6).map(|index| 0x4000_0000 + index * 1024);
    let slots: Vec<Option<Slot>> = tids.map(|tid| rig.registry.add(tid)).collect();
    assert_eq!(slots.iter().flatten().count(), 4, "{slots:?}");
    assert_eq!(rig.registry.add(0), None);
    slots.iter().flatten().for_each(|slot| rig.registry.remove(*slot));
    assert!(rig.registry.add(0x4000_0000 + 5 * 1024).is_some());
}

/// Nothing stays attached, and nothing mapped breaks, when the publisher ends.
#[test]
fn what_was_mapped_outlives_the_publisher() {
    let Some(rig) = rig() else { return };
    let Rig {
        _publisher: publisher,
        state,
        seat,
        stage,
        ..
    } = rig;
    drop(publisher);
    // The last published state stays: the present task of a core is not published any more.
    let word = || [seat, stage].map(|cpu| state.core(cpu));
    let last = word();
    for cpu in [seat, stage] {
        pin(cpu);
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(word(), last);
    }
}
