//! Runs checked P4 programs: the reference engine.
//!
//! An [`Engine`] takes a program that `p4-ir`'s checker found sound, compiles it to flat code once, and runs packets: parser,
//! ingress, egress, deparser, with clones, replicas, resubmitted and recirculated packets, exactly as v1model (and where
//! that leaves something open, BMv2's `simple_switch`) says. Other engines are compared with this one.
//!
//! | module | contents |
//! |---|---|
//! | `engine` | a program that is ready to run |
//! | `compile`, `code` | from the program to flat code; its form |
//! | `machine` | the loop that executes flat code |
//! | `pipeline` | the way of a packet: passes, copies, the ends of ingress and egress |
//! | `context` | a worker's scratch, allocated once |
//! | `state`, `tables` | state that a program keeps between packets |
//! | `packet` | packets as they come and leave: head and tail |
//! | `observe`, `notes` | watching a packet run; which bits decided, and which were only moved |
//! | `bits`, `wide`, `hash` | bit ranges, numbers of any width, hash algorithms |
//!
//! One direction of error is safe: whatever a packet brings, the worst is that it is dropped and counted. No packet makes
//! the engine allocate, wait without end, or index out of range; the bounds that the checker proved are kept here once
//! more, at run time, where they depend on packets.
//!
//! Packet-in and packet-out are ports: a controller's port is one like the others for a program.

#![forbid(unsafe_code)]

pub mod bits;
mod code;
mod compile;
mod context;
mod engine;
mod error;
pub mod externs;
pub mod hash;
mod machine;
mod notes;
pub mod observe;
mod packet;
mod pipeline;
mod state;
mod tables;
pub mod wide;

pub use context::{Context, MAX_COPIES};
pub use engine::{DROP_PORT, Engine, INITIAL_HEAD, MAX_PASSES, match_kind};
pub use error::Error;
pub use notes::Notes;
pub use observe::{Nobody, Observer};
pub use packet::{Collected, Counts, Drop, NoTail, Output, Packet, Sink, Tail};
pub use state::{CounterValue, Reading, Replica, Session, State, StateLimits};
pub use tables::Tables;
