//! What the machine's cores and the guests' vCPU threads are doing at this moment.
//!
//! A small eBPF program sits on the scheduler's tracepoints and publishes, in memory that is mapped into the
//! processes which need it, what each core runs and whether each registered thread is running, runnable or blocked
//! (Hyper-Switch, Ram et al., USENIX ATC 2013, 3.3 and 3.4, where the hypervisor's scheduler tells). Readers use
//! plain loads: no system call, no lock.
//!
//! | file | what |
//! |---|---|
//! | `area` | the shared memory: what is written where, by whom |
//! | `program` | the programs, one per tracepoint |
//! | `assembler` | eBPF instructions with labels: nothing but Rust is needed to build the product |
//! | `btf` | where the running kernel keeps the few fields that the programs read |
//! | `kernel` | bpf(2) |
//! | `publisher` | loads and attaches; belongs to who has the privilege |
//! | `stage` | the same memory written by tests |
//! | `state` | readers, and who says which threads matter |
//! | `vcpus` | which threads of a VMM are vCPUs |
//!
//! Three processes take part. Who has the privilege (`CAP_BPF` and `CAP_PERFMON`, or root) keeps a [`Publisher`], with
//! which everything ends: the kernel detaches the programs when the last descriptor of their links is closed. The
//! descriptor of the shared memory goes to the others. One of them, and only one, maps it as [`Registry`]: it says
//! which threads matter by writing into the same memory, in which the programs look threads up, so that nobody but
//! the publisher ever needs bpf(2). Any number may map it as [`VmState`].
//!
//! Everything read here is a hint, true a moment ago. Whoever could write to the memory could mislead those who decide
//! where work is done, and nothing else: the programs check every index. What is not known is `Unknown`, never guessed.
//!
//! Allowed `unsafe`: bpf(2), mapping its memory, reading the map's bytes as `area::Area`.

mod area;
mod assembler;
mod btf;
mod kernel;
mod program;
mod publisher;
mod stage;
mod state;
mod vcpus;

pub use publisher::{Publisher, Unavailable};
pub use stage::Stage;
pub use state::{CoreState, Registry, Slot, ThreadState, VmState};
pub use vcpus::vcpu_threads;
