//! The model of the published state: the same facts in ordinary structures.

use crate::area::LONG_NS;
use crate::program::{Kernel, TASK_DEAD};
use crate::{Slot, ThreadState};
use std::collections::HashMap;

/// A task at the time of an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub pid: u32,
    pub parent: u32,
    pub state: i32,
    pub core: u32,
    pub migrating: bool,
    /// The thread waits until others block.
    pub batch: bool,
}

/// The kernel's counts for the queue that an event is about: `nr_running`, and two counts of which the
/// difference, or the second alone, is the number of delayed tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths(pub [u32; 3]);

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Switch {
        core: u32,
        preempted: bool,
        from: Task,
        to: Task,
        queue: Lengths,
    },
    /// By the task with this number, on this core.
    Waking(Task, u32, u32),
    Wakeup(Task, Lengths),
    Migrate(Task, Lengths),
    Time(u64),
    Register(u32),
    Remove(u32),
}

/// Versions of the kernel, by how they count runnable tasks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counts {
    Unknown,
    All,
    /// From 6.12 on.
    LessDelayed,
    /// From 6.14 on.
    RunnableOfQueued,
}

impl Counts {
    pub fn kernel(self) -> Kernel {
        let (queue, delayed) = match self {
            Counts::Unknown => (None, (None, None)),
            Counts::All => (Some([0x80, 0x10, 0x20]), (None, None)),
            Counts::LessDelayed => (Some([0x80, 0x10, 0x20]), (None, Some(0x48))),
            Counts::RunnableOfQueued => (Some([0x80, 0x10, 0x20]), (Some(0x40), Some(0x48))),
        };
        Kernel {
            pid: 0x8,
            state: 0x10,
            cpu: 0x18,
            on_rq: 0x20,
            policy: 0x24,
            parent: 0x30,
            queue,
            delayed,
        }
    }

    pub fn runnable(self, Lengths([running, more, less]): Lengths) -> u32 {
        match self {
            Counts::Unknown => 0,
            Counts::All => running,
            Counts::LessDelayed => running.wrapping_sub(less),
            Counts::RunnableOfQueued => running.wrapping_add(more).wrapping_sub(less),
        }
    }
}

/// The published state of a core.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Core {
    pub runs: Option<u32>,
    pub preempted: bool,
    pub since_ns: u64,
    pub runnable: u32,
    pub blocked: u32,
    /// When a task that waits until others block was woken.
    pub asked_ns: Option<u64>,
    /// The task that woke one which was here before.
    pub waker: u32,
    /// The task that was woken from here.
    pub woken: u32,
}

/// The published state of a registered thread and its children.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thread {
    pub slot: Slot,
    pub state: ThreadState,
    pub waits: bool,
    pub waiting_child: Option<u32>,
}

pub(super) struct Model {
    pub counts: Counts,
    pub now_ns: u64,
    pub cores: HashMap<u32, Core>,
    pub threads: HashMap<u32, Thread>,
}

impl Model {
    fn core(&mut self, core: u32) -> &mut Core {
        self.cores.entry(core).or_default()
    }

    /// The registered thread that a task counts as: itself, or its parent.
    fn thread_of(&mut self, task: Task) -> Option<(u32, &mut Thread)> {
        let tid = [task.pid, task.parent]
            .into_iter()
            .find(|pid| self.threads.contains_key(pid))?;
        self.threads.get_mut(&tid).map(|thread| (tid, thread))
    }

    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Time(nanoseconds) => self.now_ns += nanoseconds,
            Event::Switch { core, .. } if core >= 1024 => {}
            Event::Switch {
                core,
                preempted,
                from,
                to,
                queue,
            } => {
                self.switched_from(core, preempted, from);
                if let Some((tid, thread)) = self.thread_of(to) {
                    thread.end_wait(tid, to.pid);
                    thread.state = ThreadState::Running(core);
                }
                self.core_switches(core, preempted || from.state == 0, (from, to), queue);
            }
            Event::Waking(task, waker, core) => {
                if task.core < 1024 {
                    self.core(task.core).waker = waker;
                }
                if core < 1024 {
                    self.core(core).woken = task.pid;
                }
            }
            Event::Wakeup(task, _) | Event::Migrate(task, _) if task.core >= 1024 => {}
            Event::Wakeup(task, queue) => {
                self.woken(task);
                let (now_ns, runnable) = (self.now_ns, self.counts.runnable(queue));
                let core = self.core(task.core);
                core.runnable = runnable;
                if task.batch {
                    core.asked_ns = Some(now_ns);
                }
            }
            Event::Migrate(task, queue) if task.migrating => {
                self.core(task.core).runnable = self.counts.runnable(queue);
            }
            Event::Migrate(..) | Event::Register(_) | Event::Remove(_) => {}
        }
    }

    fn switched_from(&mut self, core: u32, preempted: bool, task: Task) {
        let Some((tid, thread)) = self.thread_of(task) else {
            return;
        };
        let state = if preempted || task.state == 0 {
            thread.begin_wait(tid, task.pid);
            ThreadState::Runnable(core)
        } else {
            thread.end_wait(tid, task.pid);
            if task.pid == tid && task.state & TASK_DEAD != 0 {
                ThreadState::Dead
            } else if thread.waits || thread.waiting_child.is_some() {
                ThreadState::Runnable(core)
            } else {
                ThreadState::Blocked(core)
            }
        };
        if matches!(thread.state, ThreadState::Running(other) if other != core) {
            return;
        }
        thread.state = state;
        if let ThreadState::Blocked(_) = state {
            self.core(core).blocked = tid;
        }
    }

    fn core_switches(&mut self, core: u32, wanted: bool, (from, to): (Task, Task), queue: Lengths) {
        let (now_ns, runnable) = (self.now_ns, self.counts.runnable(queue));
        let core = self.core(core);
        core.preempted = from.pid != 0 && wanted && now_ns - core.since_ns >= LONG_NS as u64;
        core.since_ns = now_ns;
        core.runs = Some(to.pid);
        core.runnable = runnable;
    }

    fn woken(&mut self, task: Task) {
        let Some((tid, thread)) = self.thread_of(task) else {
            return;
        };
        thread.begin_wait(tid, task.pid);
        if let ThreadState::Blocked(_) = thread.state {
            thread.state = ThreadState::Runnable(task.core);
        }
    }
}

impl Thread {
    fn begin_wait(&mut self, own: u32, pid: u32) {
        match pid == own {
            true => self.waits = true,
            false => self.waiting_child = Some(pid),
        }
    }

    fn end_wait(&mut self, own: u32, pid: u32) {
        if pid == own {
            self.waits = false;
        }
        if self.waiting_child == Some(pid) {
            self.waiting_child = None;
        }
    }
}
