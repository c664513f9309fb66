//! The data plane process.
//!
//! | module | contents |
//! |---|---|
//! | `pipeline` | a packet's way from a transmit ring to receive rings, top to bottom. Start here |
//! | `burst`, `look_up` | packets that are switched together; which decision holds for each |
//! | `police`, `meter` | how many packets of a flow may pass |
//! | `actions`, `sinks` | what a decision does to a packet; where packets end |
//! | `reject` | what the senders of rejected packets are told |
//! | `deliver` | how packets reach receivers |
//! | `device_queue`, `arrivals` | queues of devices, by which packets leave, and come, without a forwarder |
//! | `kernel_path`, `kernel_requests` | decisions that the kernel carries out between containers, and requests that concern them |
//! | `kept` | claims that a thread keeps from look to look |
//! | `copies`, `mirror` | copies of a port's packets for `hyperswitch capture`, and for its mirrors |
//! | `port`, `peer` | a port with its guest interface; the process at its other end |
//! | `state`, `report` | ports, switches and flow tables, which all threads share; what ports counted and forwarding threads did |
//! | `accounts`, `spare_accounts` | the accounts of all ports, for those who read all; accounts side by side |
//! | `channel`, `controller` | the channel thread, which serves controllers in turn; answers and events for one of them |
//! | `requests`, `refusal`, `injection` | a controller's requests; why one is refused; slots for packets that it sends |
//! | `rule_requests` | requests about rule lists and sets, and the work on them in pieces |
//! | `rule_records` | packets that rules noted, for controllers |
//! | `p4` | P4 programs as forwarders of ports, in place of flows |
//! | `miss` | packets for the control process, and how many of them |
//! | `switches`, `ownership` | a controller's switches; the ports that its flows may name |
//! | `ended`, `removed` | answers with last statistics of flows; ports that threads may still know |
//! | `grace` | when all threads have flushed their counts and let go of what they knew |
//! | `events`, `notices` | changes of ports, for controllers; how other threads pass them to the channel thread |
//! | `trace` | a packet's way without the packet |
//!
//! Which ring is served next, and by which thread, is in crate `scheduler`.
//!
//! Threads: one *channel thread* (the caller of [`run`]) that serves the supervisor and the controllers, as
//! many *workers* as processors (or as the mode says), and one *session thread* per port, with a *gate*
//! before it that receives a VMM's descriptors. Workers and the channel thread forward packets; session
//! threads only start and stop rings. Nothing here opens a file or connects a socket: [`run`] is called under
//! seccomp, and all descriptors come over channels.

#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as datapath;

mod accounts;
mod actions;
mod arrivals;
mod burst;
mod channel;
mod controller;
mod copies;
#[cfg(test)]
mod cycles;
#[cfg(test)]
mod deaths;
mod deliver;
mod device_queue;
mod ended;
mod events;
mod grace;
mod injection;
mod kept;
mod kernel_path;
mod kernel_requests;
mod look_up;
mod meter;
mod mirror;
mod miss;
mod notices;
mod ownership;
mod p4;
mod peer;
pub mod pipeline;
mod police;
mod port;
mod refusal;
mod reject;
mod removed;
mod report;
mod requests;
mod rule_records;
mod rule_requests;
mod sinks;
mod spare_accounts;
mod state;
mod switches;
mod trace;
#[cfg(test)]
mod worker_cycles;

pub use channel::run;
pub use p4::check_p4;
pub use state::Queues;

/// Why the data plane ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed at start-up.
    #[error("data plane: {0}")]
    Io(#[from] std::io::Error),
    /// The supervisor is gone or has sent a malformed message.
    #[error("supervisor: {0}")]
    Supervisor(#[from] control_protocol::ChannelError),
}
