//! Seccomp, privileges and process plumbing.
//!
//! The processes of the switch trust each other as little as their work allows. This crate holds the parts of
//! that which need the kernel's help and a few lines of `unsafe`:
//!
//! * [`isolate_data_plane`], [`isolate_control`] and [`isolate_driver`] give up, for good, everything a process does not
//!   need: user, namespaces, files, capabilities, system calls. The data plane gives up most: it maps the memory of
//!   guests and reads what they write, so it is the process most worth taking over. What system calls remain is listed in
//!   `calls/`.
//! * [`spawn`], [`supervisor_channel`] and [`Signals`] are how a supervisor starts a child with one descriptor
//!   and nothing else, how the child finds it, and how the supervisor hears of signals as a descriptor.
//!
//! The safe direction of error is to refuse too much: a system call missing from a list ends the process
//! at once and the supervisor says so and starts it again, whereas one too many would go unnoticed.
//!
//! * [`spawn_apart`] starts a thread whose descriptors are its own, through a thread that [`prepare_apart`] starts.
//!
//! All but [`spawn_apart`] is called while a process has one thread; [`Signals`] is used by that thread only.

mod apart;
mod calls;
mod filter;
mod interrupt;
mod isolation;
mod landlock;
mod process;
mod report;
mod separate;
mod signals;

pub use apart::{prepare_apart, spawn_apart};
pub use interrupt::{Thread, allow_interrupts};
pub use isolation::{
    DATA_PLANE_USER, IsolationError, Kept, Missing, Violation, isolate_control, isolate_data_plane,
    isolate_driver,
};
pub use process::{
    CHANNEL_FD, name_process, peer_process, raise_descriptor_limit, return_freed_memory, spawn,
    supervisor_channel,
};
pub use signals::{Signal, Signals};
