//! The programs, one for each tracepoint.
//!
//! | tracepoint | runqueue lock held | publishes |
//! |---|---|---|
//! | `sched_switch` | of the core that switches | the task that the core runs, whether it is idle, its number of runnable tasks, the thread that blocked there; the states of both threads |
//! | `sched_wakeup`, `sched_wakeup_new` | of the core that the thread was put on | that core's number of runnable tasks; that the thread is runnable; when, if it waits for others to block |
//! | `sched_waking` | none | the thread that wakes another one, for the core that this one was on last; the thread that is woken, for the core from which it is |
//! | `sched_migrate_task`, if the task is queued | of the core that it leaves | that core's number of runnable tasks |
//!
//! The wake-up of a thread on an idle core, or on a core with another cache, is often left to that core
//! (`ttwu_queue`). There, in `sched_wakeup`, the waker is not known any more; `sched_waking` comes before
//! that.
//!
//! Since `nr_running` is read and published under the lock that guards it, what is published for a core is
//! never older than its last event. A task that is pulled to a core is counted there when that core switches
//! next. Tasks that have blocked and are still queued, as kernels from 6.12 on do (delayed dequeuing), are
//! not counted.
//!
//! Events can go unseen: a program that is interrupted is not run again inside itself, and on one virtual
//! machine no tracer at all (perf, ftrace, these programs) got the events when threads of one process were
//! switched from; the cause was not found. So each event sets the complete state that it shows instead of
//! stepping from state to state: the next event makes up for one that was not seen.
//!
//! The events are BTF-typed raw tracepoints (`tp_btf`): arguments are the kernel's own structures, whose
//! fields the verifier lets be read directly. That takes `CAP_BPF` and `CAP_PERFMON` and no file of tracefs,
//! costs no formatting of a trace record, and finds fields by name on every kernel that has BTF. Classic
//! tracepoints have stable formats but know no queue lengths and no parents.
//!
//! Reading the kernel's structures is open to programs under a license compatible with the GPL. These, some
//! hundred instructions, are therefore also licensed under [`LICENSE`].

use crate::area::{
    ASKED_NS, BLOCKED, BUCKET_SIZE, BUCKETS, CHILD_WAITS, CORE_SIZE, CORES, IDLE, KIND_SHIFT, KNOWN, Kind,
    LONG_NS, PREEMPTED, RUNNABLE, SINCE_NS, STATE, TASK, THREAD_SIZE, THREADS, TID, WAITS, WAKER, WAYS,
    WOKEN,
};
use crate::btf::Btf;
use crate::publisher::Unavailable;
use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8};
use ebpf::assembler::{Assembler, Constant, If, Label, Op, Reg, Size};

/// In the kernel's spelling (`include/linux/license.h`).
pub(crate) const LICENSE: &std::ffi::CStr = c"Dual BSD/GPL";

// Helpers (`include/uapi/linux/bpf.h`).
const KTIME_GET_NS: i32 = 5;
const GET_SMP_PROCESSOR_ID: i32 = 8;
const GET_CURRENT_PID_TGID: i32 = 14;

/// `TASK_DEAD` (`include/linux/sched.h`).
const TASK_DEAD: i32 = 0x80;
/// `SCHED_BATCH` (`include/uapi/linux/sched.h`).
const BATCH: i32 = 3;
/// `TASK_ON_RQ_MIGRATING` (`kernel/sched/sched.h`): taken off one queue to be put on another.
const ON_RQ_MIGRATING: i32 = 2;

/// Offsets of the fields that the programs read, in this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// `task_struct.pid`.
    pid: usize,
    /// `task_struct.__state`.
    state: usize,
    /// Number of the core that a task is on or was on last: `task_struct.thread_info.cpu`, or
    /// `task_struct.cpu`.
    cpu: usize,
    /// `task_struct.policy`.
    policy: usize,
    /// `task_struct.on_rq`.
    on_rq: usize,
    /// `task_struct.real_parent`.
    parent: usize,
    /// From a task to the length of its core's runqueue: `task_struct.se.cfs_rq`, `cfs_rq.rq`,
    /// `rq.nr_running`. Nothing on a kernel without `CONFIG_FAIR_GROUP_SCHED`, where lengths stay unknown.
    queue: Option<[usize; 3]>,
    /// In `rq`: fields to add to its length, and to subtract, for the number of runnable tasks.
    delayed: (Option<usize>, Option<usize>),
}

impl Kernel {
    /// Looks the fields up.
    ///
    /// # Errors
    /// [`Unavailable::UnknownKernel`] names the field that is missing.
    pub fn of(btf: &Btf<'_>) -> Result<Kernel, Unavailable> {
        let member = |structure: &str, path: &[&str]| {
            let offset = btf
                .member(structure, path)
                .filter(|offset| i16::try_from(*offset).is_ok());
            offset.ok_or_else(|| Unavailable::UnknownKernel(format!("{structure}.{}", path.join("."))))
        };
        let queue = || -> Result<[usize; 3], Unavailable> {
            let own = member("task_struct", &["se", "cfs_rq"])?;
            Ok([own, member("cfs_rq", &["rq"])?, member("rq", &["nr_running"])?])
        };
        let fair = |field| member("rq", &["cfs", field]).ok();
        let delayed = match (fair("h_nr_runnable"), fair("h_nr_queued"), fair("h_nr_delayed")) {
            // 6.14 and later: the difference is the number of delayed tasks.
            (runnable @ Some(_), queued @ Some(_), _) => (runnable, queued),
            // 6.12 and 6.13.
            (_, _, delayed) => (None, delayed),
        };
        Ok(Kernel {
            pid: member("task_struct", &["pid"])?,
            state: member("task_struct", &["__state"])?,
            cpu: member("task_struct", &["thread_info", "cpu"])
                .or_else(|_| member("task_struct", &["cpu"]))?,
            policy: member("task_struct", &["policy"])?,
            on_rq: member("task_struct", &["on_rq"])?,
            parent: member("task_struct", &["real_parent"])?,
            queue: queue().ok(),
            delayed,
        })
    }
}

/// A tracepoint with its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tracepoint {
    Switch,
    Waking,
    Wakeup,
    WakeupNew,
    Migrate,
}

impl Tracepoint {
    pub const ALL: [Tracepoint; 5] = [
        Tracepoint::Switch,
        Tracepoint::Waking,
        Tracepoint::Wakeup,
        Tracepoint::WakeupNew,
        Tracepoint::Migrate,
    ];

    /// Name of the type definition by which it is attached.
    pub const fn type_name(self) -> &'static str {
        match self {
            Tracepoint::Switch => "btf_trace_sched_switch",
            Tracepoint::Waking => "btf_trace_sched_waking",
            Tracepoint::Wakeup => "btf_trace_sched_wakeup",
            Tracepoint::WakeupNew => "btf_trace_sched_wakeup_new",
            Tracepoint::Migrate => "btf_trace_sched_migrate_task",
        }
    }

    /// The program, for the area in this map.
    pub fn program(self, kernel: Kernel, map: i32) -> Vec<u64> {
        let program = Program {
            code: Assembler::default(),
            kernel,
            map,
        };
        match self {
            Tracepoint::Switch => program.switch(),
            Tracepoint::Waking => program.waking(),
            Tracepoint::Wakeup | Tracepoint::WakeupNew => program.wakeup(),
            Tracepoint::Migrate => program.migrate(),
        }
    }
}

struct Program {
    code: Assembler,
    kernel: Kernel,
    map: i32,
}

/// Offset of a tracepoint's argument in its context.
const fn argument(number: usize) -> usize {
    8 * number
}

/// A state on core 0 as the constant of an instruction.
fn word(kind: Kind) -> i32 {
    kind.word().cast_signed()
}

/// A number as the constant of an instruction.
fn constant(number: usize) -> i32 {
    i32::try_from(number).expect("the area is small")
}

impl Program {
    /// `sched_switch(preempt, prev, next)`. R6: context, R7: this core, R8: the time.
    fn switch(mut self) -> Vec<u64> {
        let (next, publish, end) = (self.code.label(), self.code.label(), self.code.label());
        self.code.register(Op::Move, R6, R1);
        self.code.call(KTIME_GET_NS);
        self.code.register(Op::Move, R8, R0);
        self.code.call(GET_SMP_PROCESSOR_ID);
        self.code.register(Op::Move, R7, R0);
        self.code.jump_if(If::NotBelow, R7, constant(CORES), end);

        self.code.load(Size::Double, R1, R6, argument(1));
        self.code.register(Op::Move, R5, R1);
        self.find_thread(next);
        self.leave();
        self.left(next);

        self.code.place(next);
        self.code.load(Size::Double, R1, R6, argument(2));
        self.code.register(Op::Move, R5, R1);
        self.find_thread(publish);
        self.code.load(Size::Word, R1, R5, self.kernel.pid);
        self.end_wait();
        self.code.constant(Op::Move, R5, word(Kind::Running));
        self.code.register(Op::Or, R5, R7);
        self.code.store(Size::Word, R3, STATE, R5);

        self.code.place(publish);
        self.code.load(Size::Double, R1, R6, argument(2));
        self.code.load(Size::Word, R5, R1, self.kernel.pid);
        self.publish_idle();
        self.code.wide(R3, Constant::Number(KNOWN));
        self.code.register(Op::Or, R5, R3);
        self.core_address();
        self.note_preemption();
        self.code.store(Size::Double, R2, TASK, R5);
        self.publish_runnable();
        self.code.place(end);
        self.code.exit();
        self.code.finish()
    }

    /// `sched_waking(task)`, in the thread that wakes it. R6: the task's number, R7: its core, and then this
    /// one.
    fn waking(mut self) -> Vec<u64> {
        let (here, end) = (self.code.label(), self.code.label());
        self.code.load(Size::Double, R1, R1, argument(0));
        self.code.load(Size::Word, R6, R1, self.kernel.pid);
        self.code.load(Size::Word, R7, R1, self.kernel.cpu);
        self.code.jump_if(If::NotBelow, R7, constant(CORES), here);
        self.code.call(GET_CURRENT_PID_TGID);
        self.core_address();
        self.code.store(Size::Word, R2, WAKER, R0);
        self.code.place(here);
        self.code.call(GET_SMP_PROCESSOR_ID);
        self.code.register(Op::Move, R7, R0);
        self.code.jump_if(If::NotBelow, R7, constant(CORES), end);
        self.core_address();
        self.code.load(Size::Double, R3, R2, WOKEN);
        self.code.constant(Op::RightShift, R3, 32);
        self.code.constant(Op::Add, R3, 1);
        self.code.constant(Op::LeftShift, R3, 32);
        self.code.register(Op::Or, R3, R6);
        self.code.store(Size::Double, R2, WOKEN, R3);
        self.code.place(end);
        self.code.exit();
        self.code.finish()
    }

    /// `sched_wakeup(task)`, `sched_wakeup_new(task)`. R6: the task, R7: its core.
    fn wakeup(mut self) -> Vec<u64> {
        let (publish, end) = (self.code.label(), self.code.label());
        self.code.load(Size::Double, R6, R1, argument(0));
        self.code.load(Size::Word, R7, R6, self.kernel.cpu);
        self.code.jump_if(If::NotBelow, R7, constant(CORES), end);
        self.code.register(Op::Move, R1, R6);
        self.find_thread(publish);
        self.code.load(Size::Word, R1, R6, self.kernel.pid);
        self.begin_wait();
        // One that is about to block may be woken while it still runs: it goes on running.
        self.code.load(Size::Word, R5, R3, STATE);
        self.code.constant(Op::RightShift, R5, KIND_SHIFT.cast_signed());
        self.code.jump_if(If::NotEqual, R5, Kind::Blocked as i32, publish);
        self.code.constant(Op::Move, R5, word(Kind::Runnable));
        self.code.register(Op::Or, R5, R7);
        self.code.store(Size::Word, R3, STATE, R5);
        self.code.place(publish);
        self.code.register(Op::Move, R1, R6);
        self.core_address();
        self.publish_runnable();
        // From the wake-up of a task that waits until others block, it can be told how long it waited.
        self.code.load(Size::Word, R1, R6, self.kernel.policy);
        self.code.jump_if(If::NotEqual, R1, BATCH, end);
        self.code.register(Op::Move, R8, R2);
        self.code.call(KTIME_GET_NS);
        self.code.store(Size::Double, R8, ASKED_NS, R0);
        self.code.place(end);
        self.code.exit();
        self.code.finish()
    }

    /// `sched_migrate_task(task, core)`, before the task's own number of its core changes.
    fn migrate(mut self) -> Vec<u64> {
        let end = self.code.label();
        self.code.load(Size::Double, R1, R1, argument(0));
        // One that is being woken is in no queue, and no lock of one is held.
        self.code.load(Size::Word, R2, R1, self.kernel.on_rq);
        self.code.jump_if(If::NotEqual, R2, ON_RQ_MIGRATING, end);
        self.code.load(Size::Word, R7, R1, self.kernel.cpu);
        self.code.jump_if(If::NotBelow, R7, constant(CORES), end);
        self.core_address();
        self.publish_runnable();
        self.code.place(end);
        self.code.exit();
        self.code.finish()
    }

    /// R3 = the place of the task in R1 or of its parent, and R2 its number, or jumps if neither has one.
    /// Uses R1, R4.
    fn find_thread(&mut self, none: Label) {
        let (parent, found) = (self.code.label(), self.code.label());
        self.find_number(parent, found);
        self.code.place(parent);
        self.code.load(Size::Double, R1, R1, self.kernel.parent);
        self.find_number(none, found);
        self.code.place(found);
    }

    /// R3 = the place of the task in R1. Uses R2, R4.
    fn find_number(&mut self, none: Label, found: Label) {
        self.code.load(Size::Word, R2, R1, self.kernel.pid);
        self.code.jump_if(If::Equal, R2, 0, none);
        self.code.register(Op::Move, R4, R2);
        self.code.constant(Op::And, R4, constant(BUCKETS - 1));
        self.code
            .constant(Op::LeftShift, R4, BUCKET_SIZE.ilog2().cast_signed());
        let threads = u32::try_from(THREADS).expect("the area is small");
        self.code.wide(
            R3,
            Constant::MapValue {
                map: self.map,
                offset: threads,
            },
        );
        self.code.register(Op::Add, R3, R4);
        for way in 0..WAYS {
            self.code.load(Size::Word, R4, R3, TID);
            self.code.jump_if_register(If::Equal, R4, R2, found);
            if way + 1 < WAYS {
                self.code.constant(Op::Add, R3, constant(THREAD_SIZE));
            }
        }
        self.code.jump(none);
    }

    /// Adds [`PREEMPTED`] to R5 if the task that is switched from on the core at R2 has had it for long and
    /// goes on wanting it. Uses R3, R4.
    fn note_preemption(&mut self) {
        let [long, preempted, end] = [(); 3].map(|()| self.code.label());
        self.code.load(Size::Double, R3, R2, SINCE_NS);
        self.code.store(Size::Double, R2, SINCE_NS, R8);
        self.code.register(Op::Subtract, R8, R3);
        self.code.jump_if(If::NotBelow, R8, constant(LONG_NS), long);
        self.code.jump(end);
        self.code.place(long);
        self.code.load(Size::Double, R3, R6, argument(1));
        self.code.load(Size::Word, R4, R3, self.kernel.pid);
        self.code.jump_if(If::Equal, R4, 0, end);
        self.code.load(Size::Double, R4, R6, argument(0));
        self.code.jump_if(If::AnyOf, R4, 0xff, preempted);
        self.code.load(Size::Word, R4, R3, self.kernel.state);
        self.code.jump_if(If::NotEqual, R4, 0, end);
        self.code.place(preempted);
        self.code.wide(R3, Constant::Number(PREEMPTED));
        self.code.register(Op::Or, R5, R3);
        self.code.place(end);
    }

    /// Notes whether the task in R5, whose place R3 has the number R2, waits for a core once it is switched
    /// from. R5 = the state to be published in its place. Uses R1, R4.
    fn leave(&mut self) {
        let [preempted, blocks, alive, end] = [(); 4].map(|()| self.code.label());
        self.code.load(Size::Word, R1, R5, self.kernel.pid);
        // A preempted task stays runnable, whatever state it was about to enter.
        self.code.load(Size::Double, R4, R6, argument(0));
        self.code.jump_if(If::AnyOf, R4, 0xff, preempted);
        self.code.load(Size::Word, R5, R5, self.kernel.state);
        self.code.jump_if(If::NotEqual, R5, 0, blocks);
        self.code.place(preempted);
        self.begin_wait();
        self.code.constant(Op::Move, R5, word(Kind::Runnable));
        self.code.jump(end);

        self.code.place(blocks);
        self.end_wait();
        self.code.constant(Op::And, R5, TASK_DEAD);
        self.code.jump_if(If::Equal, R5, 0, alive);
        // A parent outlives its child.
        self.code.jump_if_register(If::NotEqual, R1, R2, alive);
        self.code.constant(Op::Move, R5, word(Kind::Dead));
        self.code.jump(end);

        self.code.place(alive);
        // Its parent or a child may still wait for a core.
        self.code.constant(Op::Move, R5, word(Kind::Runnable));
        for waits in [WAITS, CHILD_WAITS] {
            self.code.load(Size::Word, R4, R3, waits);
            self.code.jump_if(If::NotEqual, R4, 0, end);
        }
        self.code.constant(Op::Move, R5, word(Kind::Blocked));
        self.code.place(end);
    }

    /// The task with the number in R1 waits for a core; its place R3 has the number R2.
    fn begin_wait(&mut self) {
        let (child, end) = (self.code.label(), self.code.label());
        self.code.jump_if_register(If::NotEqual, R1, R2, child);
        self.code.store(Size::Word, R3, WAITS, R1);
        self.code.jump(end);
        self.code.place(child);
        self.code.store(Size::Word, R3, CHILD_WAITS, R1);
        self.code.place(end);
    }

    /// The task with the number in R1 runs or blocks; its place R3 has the number R2. Uses R4.
    fn end_wait(&mut self) {
        for waits in [WAITS, CHILD_WAITS] {
            let other = self.code.label();
            self.code.load(Size::Word, R4, R3, waits);
            self.code.jump_if_register(If::NotEqual, R4, R1, other);
            self.code.constant(Op::Move, R4, 0);
            self.code.store(Size::Word, R3, waits, R4);
            self.code.place(other);
        }
    }

    /// Publishes R5, the state of the thread at R3 after it was switched from on the core in R7, unless it
    /// runs elsewhere by now because a parent and its child took turns. The state published before does not
    /// matter: the switch to the thread may have gone unseen. Uses R1, R2, R4, R5.
    fn left(&mut self, elsewhere: Label) {
        let ours = self.code.label();
        self.code.constant(Op::Move, R1, word(Kind::Running));
        self.code.register(Op::Or, R1, R7);
        self.code.load(Size::Word, R4, R3, STATE);
        self.code.jump_if_register(If::Equal, R4, R1, ours);
        self.code.constant(Op::RightShift, R4, KIND_SHIFT.cast_signed());
        self.code.jump_if(If::Equal, R4, Kind::Running as i32, elsewhere);
        self.code.place(ours);
        self.code.register(Op::Or, R5, R7);
        self.code.store(Size::Word, R3, STATE, R5);
        // The core on which it is expected to run again.
        self.code.constant(Op::RightShift, R5, KIND_SHIFT.cast_signed());
        self.code
            .jump_if(If::NotEqual, R5, Kind::Blocked as i32, elsewhere);
        self.code.load(Size::Word, R4, R3, TID);
        self.code.register(Op::Move, R1, R7);
        self.code
            .constant(Op::LeftShift, R1, CORE_SIZE.ilog2().cast_signed());
        let map = self.map;
        self.code.wide(R2, Constant::MapValue { map, offset: 0 });
        self.code.register(Op::Add, R2, R1);
        self.code.store(Size::Word, R2, BLOCKED, R4);
    }

    /// Publishes whether the core in R7 is idle: it runs the task with the number in R5. Writes only what
    /// changes, since the line is that of many cores. Uses R2, R3, R4.
    fn publish_idle(&mut self) {
        let [idle, same] = [(); 2].map(|()| self.code.label());
        self.code.constant(Op::Move, R3, 1);
        self.code.jump_if(If::Equal, R5, 0, idle);
        self.code.constant(Op::Move, R3, 0);
        self.code.place(idle);
        let offset = u32::try_from(IDLE).expect("the area is small");
        let map = self.map;
        self.code.wide(R2, Constant::MapValue { map, offset });
        self.code.register(Op::Add, R2, R7);
        self.code.load(Size::Byte, R4, R2, 0);
        self.code.jump_if_register(If::Equal, R4, R3, same);
        self.code.store(Size::Byte, R2, 0, R3);
        self.code.place(same);
    }

    /// R2 = the place of the core in R7, which is lost.
    fn core_address(&mut self) {
        self.code
            .constant(Op::LeftShift, R7, CORE_SIZE.ilog2().cast_signed());
        self.code.wide(
            R2,
            Constant::MapValue {
                map: self.map,
                offset: 0,
            },
        );
        self.code.register(Op::Add, R2, R7);
    }

    /// Publishes the number of runnable tasks of the core at R2, that of the task in R1. Uses R1, R3, R4.
    fn publish_runnable(&mut self) {
        let Some([own, queue, length]) = self.kernel.queue else {
            return;
        };
        self.code.load(Size::Double, R1, R1, own);
        self.code.load(Size::Double, R1, R1, queue);
        self.code.load(Size::Word, R3, R1, length);
        let (more, less) = self.kernel.delayed;
        for (op, field) in [(Op::Add, more), (Op::Subtract, less)] {
            if let Some(field) = field {
                self.code.load(Size::Word, R4, R1, field);
                self.code.register(op, R3, R4);
            }
        }
        self.code.store(Size::Word, R2, RUNNABLE, R3);
    }
}

#[cfg(test)]
mod interpreter;
#[cfg(test)]
mod model;
#[cfg(test)]
mod twin;

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields that the programs need exist in the kernel that runs the tests, where that has BTF.
    #[test]
    fn this_kernel_has_the_fields() {
        let Ok(bytes) = std::fs::read(crate::kernel::BTF) else {
            return;
        };
        let btf = Btf::parse(&bytes).unwrap();
        let kernel = Kernel::of(&btf).unwrap();
        assert_ne!(kernel.pid, kernel.state);
        for tracepoint in Tracepoint::ALL {
            assert!(btf.typedef(tracepoint.type_name()).is_some(), "{tracepoint:?}");
            let program = tracepoint.program(kernel, 0);
            assert!(
                (10..250).contains(&program.len()),
                "{tracepoint:?} {}",
                program.len()
            );
        }
    }
}
