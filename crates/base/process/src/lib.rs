//! Processes and threads as the switch starts them.
//!
//! * [`spawn`], [`supervisor_channel`] and [`Signals`]: a supervisor starts a child with one descriptor and
//!   nothing else, the child finds that descriptor, and the supervisor receives signals as a descriptor.
//! * [`spawn_apart`] starts a thread with a descriptor table of its own, through a thread that
//!   [`prepare_apart`] starts.
//! * [`Thread::interrupt`] ends a system call in which a thread waits.
//! * `Stepped`, with feature `step`, which is for tests: a thread of another process, instruction by
//!   instruction.
//! * [`unread`] says what another process has not read yet, [`monotonic`] what time it is for all processes.
//!
//! Crate `sandbox` has the rights that a process gives up once it runs. [`spawn_apart`],
//! [`Thread::interrupt`], [`unread`] and [`monotonic`] may be called from any thread. Everything else is
//! called while a process has one thread; [`Signals`] is used by that thread only.
//!
//! Allowed `unsafe`: system calls that `rustix` does not wrap, and taking over inherited descriptors.

mod apart;
mod child;
mod clock;
mod interrupt;
mod signals;
#[cfg(feature = "step")]
mod step;
mod unread;

pub use apart::{prepare_apart, spawn_apart};
pub use child::{
    CHANNEL_FD, name_process, peer_process, raise_descriptor_limit, return_freed_memory, spawn,
    supervisor_channel,
};
pub use clock::monotonic;
pub use interrupt::{Thread, allow_interrupts};
pub use signals::{Signal, Signals};
#[cfg(feature = "step")]
pub use step::Stepped;
pub use unread::unread;
