//! The data plane process.
//!
//! * [`pipeline`]: a packet's way from a transmit ring to receive rings, top to bottom. Start here.
//! * `actions`: what a flow's actions do to a packet.
//! * `executor`: how forwarding threads are woken and told.
//! * `placement`: which of them does what; the policy is in crate `placement`.
//! * `worker`: threads that sleep until a ring is kicked, and what they do then.
//! * `port`: a port with its guest interface and session thread.
//! * `miss`: packets for the control process, and `allowance`: how many of them.
//! * `capture`: copies of packets for `hyperswitch capture`.
//! * `state`: ports, switches and flow tables as everybody shares them.
//! * `channel`: requests of the control process.
//! * `trace`: a packet's way without the packet.
//! * `watchdog`: frees threads that a VMM holds up.
//! * `work`: who did the work, and what it cost.
//!
//! Threads: one *channel thread* (the caller of [`run`]) that serves the supervisor and the control process, as
//! many *workers* as processors (or as the mode says), and one *session thread* per port, with a *gate* before it that
//! receives a VMM's descriptors. Workers and the channel thread forward packets; session threads only start and stop
//! rings. Nothing here opens a file or connects a socket: [`run`] is called under seccomp, and all descriptors come over
//! channels.

#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as datapath;

mod actions;
mod allowance;
mod capture;
mod channel;
#[cfg(test)]
mod cycles;
mod executor;
mod manners;
mod miss;
pub mod pipeline;
mod placement;
mod port;
mod state;
mod trace;
mod wake_cost;
mod watchdog;
mod work;
mod worker;

pub use channel::run;

/// Why the data plane ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed at start-up.
    #[error("data plane: {0}")]
    Io(#[from] std::io::Error),
    /// The supervisor is gone or spoke nonsense.
    #[error("supervisor: {0}")]
    Supervisor(#[from] control_protocol::ChannelError),
}
