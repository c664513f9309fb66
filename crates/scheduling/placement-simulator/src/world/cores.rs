//! Cores and their scheduler: fair among tasks that want to run, with the least virtual time next, as Linux's
//! CFS. A task that slept is ahead of those that ran, within bounds, and so preempts them at the end of their
//! step. Workers that help run only where no other task wants to, and workers that wait for vCPUs to block
//! preempt them only after a time slice. A core where that has happened counts as contended for a while, and
//! its worker preempts at once.

use super::{Event, Index, Task, World};
use placement::{Cpu, Duty};

/// Difference in virtual time by which another task preempts, in nanoseconds (CFS's `wakeup_granularity`).
const GRANULARITY_NS: u64 = 1_000_000;

/// Virtual time by which a task that slept is ahead at most, in nanoseconds (CFS's `sched_latency`, halved).
const CREDIT_NS: u64 = 3_000_000;

/// Time after which a worker that waits for a task to block gets the core, in nanoseconds.
const SLICE_NS: u64 = 3_000_000;

/// After a fruitless wait a worker skips waiting for this long, in nanoseconds
/// (`scheduler::wakeup_preemption`).
const CONTENDED_NS: u64 = 250_000_000;

/// One core.
#[derive(Debug, Default)]
pub(super) struct Core {
    pub current: Option<Task>,
    pub ready: Vec<Task>,
    /// Tasks that were woken and will arrive soon.
    pub coming: Vec<Task>,
    /// A step is under way; a current worker without one polls.
    in_step: bool,
    last: Option<Task>,
    /// The time at which the current task got the core.
    since_ns: u64,
    virtual_ns: u64,
}

/// The scheduler's state of a task.
#[derive(Debug)]
pub(super) struct Scheduled {
    pub cpu: Cpu,
    pub state: State,
    virtual_ns: u64,
    /// Time for effects of earlier steps, to be added to the next step.
    pub carry_ns: u64,
    /// Length of the step under way.
    step_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Asleep,
    /// Woken, and on the way to its core.
    Coming,
    Ready,
    Running,
}

impl Scheduled {
    pub fn new(cpu: Cpu) -> Self {
        Scheduled {
            cpu,
            state: State::Asleep,
            virtual_ns: 0,
            carry_ns: 0,
            step_ns: 0,
        }
    }
}

impl World<'_> {
    pub(super) fn scheduled(&mut self, task: Task) -> &mut Scheduled {
        match task {
            Task::Guest(guest) => &mut self.guests[guest].scheduled,
            Task::Worker(worker) => &mut self.workers[worker].scheduled,
        }
    }

    /// Wakes a sleeping task on behalf of one that runs on `from`; returns the time that this takes the
    /// latter.
    pub(super) fn wake(&mut self, task: Task, from: Cpu) -> u64 {
        let costs = self.machine.costs;
        let scheduled = self.scheduled(task);
        if scheduled.state != State::Asleep {
            return 0;
        }
        scheduled.state = State::Coming;
        let cpu = scheduled.cpu;
        let core = &mut self.cores[cpu.index()];
        core.coming.push(task);
        let idle = core.current.is_none() && core.ready.is_empty() && core.coming.len() == 1;
        let (cost, latency) = match () {
            () if cpu == from => (costs.context_switch / 2, 0),
            () if idle => (costs.wake, costs.wake_latency),
            () => (costs.wake_busy, costs.wake_busy),
        };
        self.counters.wakeups += u64::from(idle && cpu != from);
        self.at(self.now_ns + latency, Event::Woken(task));
        cost
    }

    /// Makes a task runnable that was woken.
    pub(super) fn arrive(&mut self, task: Task) {
        let scheduled = self.scheduled(task);
        scheduled.state = State::Ready;
        let cpu = scheduled.cpu.index();
        let core = &mut self.cores[cpu];
        core.coming.retain(|coming| *coming != task);
        core.ready.push(task);
        let least = core.virtual_ns.saturating_sub(CREDIT_NS);
        let scheduled = self.scheduled(task);
        scheduled.virtual_ns = scheduled.virtual_ns.max(least);
        match self.cores[cpu].current {
            None => self.dispatch(cpu),
            Some(Task::Worker(worker)) if !self.cores[cpu].in_step => self.stop_polling(worker),
            Some(_) => {}
        }
    }

    /// Gives a free core to the next task.
    fn dispatch(&mut self, cpu: usize) {
        let Some(task) = self.next(cpu, None) else { return };
        let core = &mut self.cores[cpu];
        core.since_ns = self.now_ns;
        core.ready.retain(|ready| *ready != task);
        core.current = Some(task);
        let switched = core.last.replace(task) != Some(task);
        let switch = if switched {
            self.machine.costs.context_switch
        } else {
            0
        };
        let scheduled = self.scheduled(task);
        scheduled.state = State::Running;
        scheduled.carry_ns += switch;
        self.begin_step(cpu);
    }

    /// The task that gets the core next, either by preempting `current` or because the core is free.
    fn next(&self, cpu: usize, current: Option<Task>) -> Option<Task> {
        let ready = self.cores[cpu].ready.iter().copied();
        let ready = ready.filter(|task| !current.is_some_and(|current| self.waits(*task, current)));
        ready.min_by_key(|task| (self.is_helping(*task), self.virtual_ns(*task)))
    }

    fn virtual_ns(&self, task: Task) -> u64 {
        match task {
            Task::Guest(guest) => self.guests[guest].scheduled.virtual_ns,
            Task::Worker(worker) => self.workers[worker].scheduled.virtual_ns,
        }
    }

    /// Whether a task lets the current one of its core go on.
    fn waits(&self, task: Task, current: Task) -> bool {
        let (Task::Worker(worker), Task::Guest(_)) = (task, current) else {
            return false;
        };
        let had_it_for = self.now_ns - self.cores[self.workers[worker].cpu.index()].since_ns;
        self.is_patient(worker) && had_it_for < SLICE_NS
    }

    fn is_patient(&self, worker: usize) -> bool {
        self.policy.serves_on_block() && !self.is_contended_for(worker)
    }

    /// Whether a worker's core is contended: the worker has waited in vain, and takes the core from guests at
    /// once.
    pub(super) fn is_contended_for(&self, worker: usize) -> bool {
        self.workers[worker].contended_until_ns > self.now_ns
    }

    fn is_helping(&self, task: Task) -> bool {
        match task {
            Task::Guest(_) => false,
            Task::Worker(worker) => self.policy.config().give_way && self.duty(worker) == Duty::Helping,
        }
    }

    /// Begins the next step of the core's current task, if it has work.
    pub(super) fn begin_step(&mut self, cpu: usize) {
        let task = self.cores[cpu].current.expect("a core with a step has a task");
        let time = match task {
            Task::Guest(guest) => self.guest_step(guest),
            Task::Worker(worker) => self.worker_step(worker),
        };
        let Some(time) = time else { return };
        let carry = std::mem::take(&mut self.scheduled(task).carry_ns);
        let time = self.interfered(cpu, time + carry);
        let core = &mut self.cores[cpu];
        core.in_step = true;
        self.scheduled(task).step_ns = time;
        self.at(self.now_ns + time, Event::StepDone(cpu));
    }

    fn interfered(&mut self, cpu: usize, time: u64) -> u64 {
        let siblings = usize::from(self.machine.shape.cpus);
        let module = &self.cores[cpu / siblings * siblings..][..siblings];
        // The core itself is not in its step yet.
        let disturbed = module.iter().any(|core| core.in_step);
        let factor = if disturbed {
            self.machine.costs.interference
        } else {
            1.0
        };
        let slowed = (time as f64 * factor) as u64;
        self.counters.interference_ns += slowed - time;
        slowed
    }

    pub(super) fn step_done(&mut self, cpu: usize) {
        let task = self.cores[cpu].current.expect("a core with a step has a task");
        let step = self.scheduled(task).step_ns;
        self.counters.busy_ns += step;
        self.cores[cpu].in_step = false;
        self.scheduled(task).virtual_ns += step;
        let own = self.virtual_ns(task);
        self.cores[cpu].virtual_ns = self.cores[cpu].virtual_ns.max(own.saturating_sub(GRANULARITY_NS));
        match task {
            Task::Guest(guest) => self.guest_step_done(guest),
            Task::Worker(worker) => self.worker_step_done(worker),
        }
        if self.cores[cpu].current == Some(task) {
            self.reschedule(cpu, task);
        }
    }

    fn reschedule(&mut self, cpu: usize, task: Task) {
        if let Task::Worker(worker) = task
            && self
                .policy
                .must_give_way(self, self.workers[worker].cpu, self.duty(worker))
        {
            return self.abort(worker);
        }
        let own = self.virtual_ns(task);
        let next = self
            .next(cpu, Some(task))
            .filter(|next| !self.is_helping(*next) && self.virtual_ns(*next) + GRANULARITY_NS < own);
        if let Some(next) = next {
            if let (Task::Worker(worker), Task::Guest(_)) = (next, task)
                && self.is_patient(worker)
            {
                self.workers[worker].contended_until_ns = self.now_ns + CONTENDED_NS;
            }
            self.scheduled(task).state = State::Ready;
            self.cores[cpu].current = None;
            self.cores[cpu].ready.push(task);
            self.dispatch(cpu);
        } else {
            self.begin_step(cpu);
        }
    }

    /// Puts a task, the current one of its core, to sleep until it is woken.
    pub(super) fn sleep(&mut self, task: Task) {
        let scheduled = self.scheduled(task);
        scheduled.state = State::Asleep;
        let cpu = scheduled.cpu.index();
        self.cores[cpu].current = None;
        self.dispatch(cpu);
    }
}
