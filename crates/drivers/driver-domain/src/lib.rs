//! The driver domain process: joins network interfaces to the data plane.
//!
//! To the data plane an interface is one more guest: this process is a vhost-user *front end*, with memory
//! and virtqueues of its own, and the driver of a virtio network device whose other side happens to be a TAP
//! or a packet socket. So the data plane needs no code for devices, and a crash here is a guest that
//! disconnects.
//!
//! | module | contents |
//! |---|---|
//! | `process` | the main thread: channels to supervisor and controllers, one worker per port |
//! | `controller` | one controller: its channel, and messages that wait for it |
//! | `interface` | a worker: life of one interface, waiting, repeated attempts |
//! | `coalescing` | whether a worker sleeps until the next frame, or for a fixed time |
//! | `waking_core` | the core from which a worker is woken, where it stays |
//! | `nic` | opening a TAP or uplink; a frame in, batches of frames out |
//! | `session` | vhost-user negotiation, memory, rings |
//! | `forward` | frames between the two, in batches |
//! | `area`, `outbound` | memory of frames on their way to the data plane; frames on their way to an interface |
//!
//! Frames of a TAP are read straight into the shared memory of the transmit ring, and all are sent from that
//! of the receive ring. Those of an uplink lie in its ring already, from which they are copied; only long
//! ones take a system call each. One thread serves both directions of an interface and sleeps whenever there
//! is nothing to do.
//!
//! Nothing that happens to one interface reaches another, and nothing ends the process except the supervisor.
//! Without its controller, forwarding goes on.

#![forbid(unsafe_code)]

mod area;
mod coalescing;
mod controller;
mod forward;
mod interface;
mod nic;
mod outbound;
mod process;
mod session;
mod waking_core;

pub use nic_packet::Owner;
pub use process::{DriverError, run};
