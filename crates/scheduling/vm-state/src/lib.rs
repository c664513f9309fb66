//! The state of the machine's cores and of the guests' vCPU threads at this moment.
//!
//! A small eBPF program sits on the scheduler's tracepoints and publishes, in memory that is mapped into the
//! processes which need it, the task that each core runs and whether each registered thread is running,
//! runnable or blocked (as the hypervisor's scheduler does in Hyper-Switch, Ram et al., USENIX ATC 2013, 3.3
//! and 3.4). Readers use plain loads: no system call, no lock.
//!
//! | module | contents |
//! |---|---|
//! | `area` | the shared memory: its parts, and the writer of each |
//! | `program` | the programs, one per tracepoint |
//! | `btf` | offsets of the few kernel fields that the programs read |
//! | `kernel` | bpf(2) |
//! | `publisher` | loads and attaches the programs, in the privileged process |
//! | `test_area` | the same memory written by tests |
//! | `state` | readers, and the registry of threads |
//! | `vcpus` | finds the vCPU threads of a VMM |
//!
//! Three processes take part. The privileged one (`CAP_BPF` and `CAP_PERFMON`, or root) keeps a
//! [`Publisher`]. When that is dropped, everything ends: the kernel detaches the programs when the last
//! descriptor of their links is closed. The descriptor of the shared memory goes to the other processes. One
//! of them, and only one, maps it as [`Registry`]: it registers threads by writing into the same memory, in
//! which the programs look threads up, so that no process but the publisher ever needs bpf(2). Any number of
//! processes may map it as [`VmState`].
//!
//! Everything read here is a hint, true a moment ago. A process that could write to the memory could mislead
//! the decisions on where work is done, and nothing else: the programs check every index. A state that is not
//! known is `Unknown`, never guessed.
//!
//! Allowed `unsafe`: mapping the memory of the map, reading the map's bytes as `area::Area`.

mod area;
mod btf;
mod kernel;
mod program;
mod publisher;
mod state;
mod test_area;
mod vcpus;

pub use publisher::{Publisher, Unavailable};
pub use state::{CoreState, Registry, Slot, ThreadState, VmState, Woken};
pub use test_area::TestArea;
pub use vcpus::{threads_named, vcpu_threads};
