//! The programs beside a model of the published state, with random events of the scheduler.
//!
//! The instructions run in the [interpreter](super::interpreter), on memory that [`TestArea`] made and
//! [`VmState`] reads. The [model](super::model) keeps the same facts in ordinary structures. Events need not
//! be possible ones: a program that missed some sees impossible sequences too.

use super::interpreter::Machine;
use super::model::{Counts, Event, Lengths, Model, Task, Thread};
use super::{BATCH, Kernel, ON_RQ_MIGRATING, TASK_DEAD, Tracepoint};
use crate::area::{Area, LONG_NS};
use crate::{CoreState, Registry, TestArea, ThreadState, VmState, Woken};
use proptest::prelude::*;
use std::collections::HashMap;
use std::fs::File;

/// Cores that the events name. The last one is beyond those that can be published.
const CORES: [u32; 6] = [0, 1, 7, 64, 1023, 1024];

/// Numbers of the tasks: the idle task's, and others that no thread of a real machine has, seven in one
/// bucket.
const PIDS: [u32; 10] = [
    0,
    0x4000_0000,
    0x4000_0400,
    0x4000_0800,
    0x4000_0c00,
    0x4000_1000,
    0x4000_1400,
    0x4000_1800,
    0x4000_0001,
    0x4000_0401,
];

/// The programs, the memory that they write, and its readers.
struct Real {
    kernel: Kernel,
    machine: Machine,
    registry: Registry,
    state: VmState,
}

// Where the kernel's structures are.
const CONTEXT: u64 = 0x100;
const QUEUE: u64 = 0x1000;
const RUNQUEUE: u64 = 0x2000;
const TASKS: [u64; 2] = [0x3000, 0x4000];
const PARENT: u64 = 0x1000_0000;

impl Real {
    fn new(counts: Counts) -> Real {
        let area = TestArea::new().unwrap();
        let registry = Registry::map(area.descriptor()).unwrap();
        let state = VmState::map(area.descriptor()).unwrap();
        let file = File::from(area.descriptor().try_clone_to_owned().unwrap());
        Real {
            kernel: counts.kernel(),
            machine: Machine {
                map: (file, size_of::<Area>() as u64),
                kernel: HashMap::new(),
                core: 0,
                now_ns: 0,
                current: 0,
            },
            registry,
            state,
        }
    }

    fn field(&mut self, structure: u64, offset: usize, size: u64, content: u64) {
        self.machine
            .kernel
            .insert(structure + offset as u64, (size, content));
    }

    fn task(&mut self, at: u64, task: Task) {
        let Kernel {
            pid,
            state,
            cpu,
            on_rq,
            policy,
            parent,
            queue,
            ..
        } = self.kernel;
        let migrating = if task.migrating { ON_RQ_MIGRATING } else { 1 };
        self.field(at, pid, 4, task.pid.into());
        self.field(at, state, 4, task.state.cast_unsigned().into());
        self.field(at, cpu, 4, task.core.into());
        self.field(at, on_rq, 4, migrating.cast_unsigned().into());
        self.field(
            at,
            policy,
            4,
            if task.batch { BATCH } else { 0 }.cast_unsigned().into(),
        );
        self.field(at, parent, 8, at + PARENT);
        self.field(at + PARENT, pid, 4, task.parent.into());
        if let Some([own, ..]) = queue {
            self.field(at, own, 8, QUEUE);
        }
    }

    fn queue(&mut self, Lengths([length, more, less]): Lengths) {
        let Some([_, queue, offset]) = self.kernel.queue else {
            return;
        };
        self.field(QUEUE, queue, 8, RUNQUEUE);
        self.field(RUNQUEUE, offset, 4, length.into());
        for (field, content) in [(self.kernel.delayed.0, more), (self.kernel.delayed.1, less)] {
            if let Some(offset) = field {
                self.field(RUNQUEUE, offset, 4, content.into());
            }
        }
    }

    fn apply(&mut self, event: Event) {
        self.machine.kernel.clear();
        match event {
            Event::Time(nanoseconds) => self.machine.now_ns += nanoseconds,
            Event::Switch {
                core,
                preempted,
                from,
                to,
                queue,
            } => {
                self.machine.core = core.into();
                self.task(TASKS[0], from);
                self.task(TASKS[1], to);
                self.queue(queue);
                let arguments = [u64::from(preempted), TASKS[0], TASKS[1]];
                self.run(Tracepoint::Switch, &arguments);
            }
            Event::Waking(task, waker, core) => {
                self.machine.core = core.into();
                self.machine.current = u64::MAX << 32 | u64::from(waker);
                self.task(TASKS[0], task);
                self.run(Tracepoint::Waking, &TASKS[..1]);
            }
            Event::Wakeup(task, queue) => {
                self.task(TASKS[0], task);
                self.queue(queue);
                self.run(Tracepoint::Wakeup, &TASKS[..1]);
            }
            Event::Migrate(task, queue) => {
                self.task(TASKS[0], task);
                self.queue(queue);
                self.run(Tracepoint::Migrate, &TASKS[..1]);
            }
            Event::Register(_) | Event::Remove(_) => {}
        }
    }

    fn run(&mut self, tracepoint: Tracepoint, arguments: &[u64]) {
        for (at, argument) in arguments.iter().enumerate() {
            self.field(CONTEXT, 8 * at, 8, *argument);
        }
        self.machine.run(&tracepoint.program(self.kernel, 0), CONTEXT);
    }
}

struct Twins {
    model: Model,
    real: Real,
}

impl Twins {
    fn new(counts: Counts) -> Twins {
        let model = Model {
            counts,
            now_ns: 0,
            cores: HashMap::new(),
            threads: HashMap::new(),
        };
        let mut twins = Twins {
            model,
            real: Real::new(counts),
        };
        // As after the start of a machine.
        twins.apply(Event::Time(LONG_NS as u64));
        twins
    }

    fn apply(&mut self, event: Event) {
        self.model.apply(event);
        self.real.apply(event);
        match event {
            Event::Register(pid) => self.register(pid),
            Event::Remove(pid) => {
                if let Some(thread) = self.model.threads.remove(&pid) {
                    self.real.registry.remove(thread.slot);
                }
            }
            _ => {}
        }
    }

    fn register(&mut self, pid: u32) {
        let Some(slot) = self.real.registry.add(pid) else {
            return;
        };
        self.model.threads.entry(pid).or_insert(Thread {
            slot,
            state: ThreadState::Unknown,
            waits: false,
            waiting_child: None,
        });
    }

    /// Readers see the state that the model has.
    fn compare(&self) {
        let state = &self.real.state;
        for thread in self.model.threads.values() {
            assert_eq!(state.thread(thread.slot), thread.state);
        }
        for number in CORES {
            let core = self.model.cores.get(&number).copied().unwrap_or_default();
            let runs = match core.runs {
                None => CoreState::Unknown,
                Some(0) => CoreState::Idle,
                Some(pid) => match self.model.threads.get(&pid) {
                    Some(thread) => CoreState::Vcpu(thread.slot),
                    None => CoreState::Task(pid),
                },
            };
            let busy = core.runs.is_some_and(|pid| pid != 0);
            let expected = self.model.threads.get(&core.blocked);
            assert_eq!(state.core(number), runs, "core {number}");
            assert_eq!(state.preempted(number), core.preempted, "core {number}");
            let waker = self.model.threads.get(&core.waker);
            assert_eq!(
                state.waker(number),
                waker.map(|thread| thread.slot),
                "core {number}"
            );
            let woken = self.model.threads.get(&core.woken);
            assert_eq!(
                state.woken_since(number, Woken::default()),
                woken.map(|thread| thread.slot),
                "core {number}"
            );
            let waited = core
                .asked_ns
                .map_or(0, |asked_ns| core.since_ns.saturating_sub(asked_ns));
            assert_eq!(state.waited_ns(number), waited, "core {number}");
            assert_eq!(
                state.wanted(number),
                core.runnable > u32::from(busy),
                "core {number}"
            );
            assert_eq!(
                state.expects(number),
                expected.is_some_and(|thread| thread.state == ThreadState::Blocked(number)),
                "core {number}"
            );
        }
        for word in 0..16 {
            let idle = |core: &u32| {
                self.model
                    .cores
                    .get(core)
                    .is_some_and(|core| core.runs == Some(0))
            };
            let bits = CORES.iter().filter(|core| *core / 64 == word && idle(core));
            let bits = bits.fold(0, |bits, core| bits | 1u64 << (core % 64));
            assert_eq!(
                state.idle(word as usize, u64::MAX),
                bits,
                "cores from {}",
                64 * word
            );
        }
    }
}

fn pid() -> impl Strategy<Value = u32> {
    prop::sample::select(&PIDS[..])
}

fn core() -> impl Strategy<Value = u32> {
    prop::sample::select(&CORES[..])
}

fn task() -> impl Strategy<Value = Task> {
    // TASK_RUNNING twice as often as others; TASK_INTERRUPTIBLE, TASK_UNINTERRUPTIBLE, and two that are dead.
    let state = prop::sample::select(vec![0, 0, 1, 2, TASK_DEAD, TASK_DEAD | 0x10]);
    let task = (pid(), pid(), state, core(), any::<bool>(), any::<bool>());
    task.prop_map(|(pid, parent, state, core, migrating, batch)| Task {
        pid,
        // An idle task is no thread's child.
        parent: if pid == 0 { 0 } else { parent },
        state,
        core,
        migrating,
        batch,
    })
}

fn lengths() -> impl Strategy<Value = Lengths> {
    prop::array::uniform3(0..4u32).prop_map(|[length, more, less]| Lengths([length + less, more, less]))
}

fn event() -> impl Strategy<Value = Event> {
    let switch = (core(), any::<bool>(), task(), task(), lengths());
    let switch = switch.prop_map(|(core, preempted, from, to, queue)| Event::Switch {
        core,
        preempted,
        from,
        to,
        queue,
    });
    let time = prop::sample::select(vec![1, LONG_NS as u64 - 1, LONG_NS as u64]);
    prop_oneof![
        6 => switch,
        3 => (task(), lengths()).prop_map(|(task, queue)| Event::Wakeup(task, queue)),
        1 => (task(), pid(), core()).prop_map(|(task, waker, core)| Event::Waking(task, waker, core)),
        1 => (task(), lengths()).prop_map(|(task, queue)| Event::Migrate(task, queue)),
        2 => time.prop_map(Event::Time),
        2 => pid().prop_map(Event::Register),
        1 => pid().prop_map(Event::Remove),
    ]
}

fn counts() -> impl Strategy<Value = Counts> {
    prop::sample::select(vec![
        Counts::Unknown,
        Counts::All,
        Counts::LessDelayed,
        Counts::RunnableOfQueued,
    ])
}

proptest! {
    #[test]
    fn the_programs_publish_what_the_model_says(
        counts in counts(), events in prop::collection::vec(event(), 1..120)
    ) {
        let mut twins = Twins::new(counts);
        for event in events {
            twins.apply(event);
            twins.compare();
        }
    }
}

/// A single thread on a machine that hides no event: the published state is its real state.
#[derive(Clone, Copy, Debug)]
enum Life {
    Runs,
    Waits,
    Sleeps,
}

proptest! {
    #[test]
    fn a_thread_of_which_all_is_seen_is_told_truly(
        steps in prop::collection::vec((0..3u32, 0..4u8), 1..80)
    ) {
        let mut twins = Twins::new(Counts::All);
        let pid = PIDS[1];
        twins.register(pid);
        let slot = twins.model.threads[&pid].slot;
        let (mut life, mut core) = (Life::Sleeps, 0);
        let idle = Task { pid: 0, parent: 0, state: 0, core: 0, migrating: false, batch: false };
        let queue = Lengths([0; 3]);
        let mut known = false;
        for (number, choice) in steps {
            let mut task = Task { pid, parent: PIDS[9], state: 0, core, migrating: false, batch: false };
            let switch = |from, to, core, preempted| Event::Switch { core, preempted, from, to, queue };
            let event = match (life, choice) {
                // About to sleep, it is woken or preempted before it does.
                (Life::Runs, 0) => Event::Wakeup(task, queue),
                (Life::Runs, 1 | 2) => {
                    task.state = 1;
                    let preempted = choice == 1;
                    life = if preempted { Life::Waits } else { Life::Sleeps };
                    switch(task, idle, core, preempted)
                }
                (Life::Runs, _) => {
                    life = Life::Waits;
                    switch(task, idle, core, false)
                }
                (Life::Waits, _) => {
                    (life, core) = (Life::Runs, number);
                    switch(idle, task, number, false)
                }
                (Life::Sleeps, _) => {
                    (life, core, task.core) = (Life::Waits, number, number);
                    Event::Wakeup(task, queue)
                }
            };
            // The state of a thread that was registered is unknown until it is switched to or from.
            known |= matches!(event, Event::Switch { .. });
            twins.apply(event);
            let told = twins.real.state.thread(slot);
            let truth = match life {
                Life::Runs => ThreadState::Running(core),
                Life::Waits => ThreadState::Runnable(core),
                Life::Sleeps => ThreadState::Blocked(core),
            };
            prop_assert_eq!(told, if known { truth } else { ThreadState::Unknown });
        }
    }
}
