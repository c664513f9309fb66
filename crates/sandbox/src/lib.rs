//! Seccomp, privileges and process plumbing.
//!
//! The processes of the switch trust each other as little as their work allows. This crate holds the parts of
//! that which need the kernel's help and a few lines of `unsafe`:
//!
//! * [`isolate_data_plane`] gives up, for good, everything the data plane does not need: it maps the memory of
//!   guests and reads what they write, so it is the process most worth taking over. What remains is listed in
//!   one table, `calls.rs`.
//! * [`spawn`], [`supervisor_channel`] and [`Signals`] are how a supervisor starts a child with one descriptor
//!   and nothing else, how the child finds it, and how the supervisor hears of signals as a descriptor.
//!
//! The safe direction of error is to refuse too much: a system call missing from the table ends the data plane
//! at once and the supervisor says so and starts it again, whereas one too many would go unnoticed.
//!
//! Everything here is called while a process has one thread; [`Signals`] is used by that thread only.

mod calls;
mod data_plane;
mod filter;
mod interrupt;
mod process;
mod signals;

pub use data_plane::{IsolationError, Kept, Violation, isolate_data_plane};
pub use interrupt::{Thread, allow_interrupts};
pub use process::{
    CHANNEL_FD, name_process, peer_process, raise_descriptor_limit, return_freed_memory, spawn,
    supervisor_channel,
};
pub use signals::{Signal, Signals};
