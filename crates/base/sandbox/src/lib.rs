//! Isolation of processes.
//!
//! The processes of the switch trust each other as little as their work allows. [`isolate_data_plane`],
//! [`isolate_control`], [`isolate_driver`], [`isolate_forwarder`], [`isolate_ovs`] and [`isolate_p4runtime`]
//! give up, for good, all rights that a process does not need: user, namespaces, files, capabilities, system
//! calls. The data plane and forwarders give up most: they read what guests and the network send, and the
//! data plane maps the memory of guests, so it is the process most worth taking over. The lists of remaining
//! system calls are in `calls/`.
//!
//! The safe direction of error is to refuse too much: a system call missing from a list ends the process
//! at once and the supervisor logs it and starts the process again, whereas one too many would go unnoticed.
//!
//! Everything here is called while a process has one thread. How processes and threads are started is in
//! crate `process`.

mod calls;
mod filter;
mod isolation;
mod landlock;
mod report;
mod separate;

pub use isolation::{
    DATA_PLANE_USER, IsolationError, Kept, Missing, VIEW_USER, Violation, forwarder_user, isolate_control,
    isolate_data_plane, isolate_driver, isolate_forwarder, isolate_ovs, isolate_p4runtime, isolate_view,
};
