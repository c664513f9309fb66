//! Runs checked P4 programs: the reference engine.
//!
//! An [`Engine`] takes a program that `p4-ir`'s checker found sound, compiles it to flat code once, and runs
//! packets: parser, ingress, egress, deparser, with clones, replicas, resubmitted and recirculated packets,
//! exactly as v1model defines it, and as BMv2's `simple_switch` does where v1model leaves a choice. Other
//! engines are compared with this one.
//!
//! | module | contents |
//! |---|---|
//! | `engine`, `error` | a program that is ready to run; why one was not made |
//! | `compile`, `code` | the compiler from the program to flat code; the form of that code |
//! | `machine` | the loop that executes flat code |
//! | `pipeline` | the path of a packet: passes, copies, the ends of ingress and egress |
//! | `context` | a worker's scratch memory, allocated once |
//! | `state`, `tables` | state that a program keeps between packets |
//! | `packet` | packets as they are received and leave: head and tail |
//! | `observe`, `notes` | watching a packet run; which bits decided, and which were only moved |
//! | `verdict` | verdicts that are kept for packets of the same kind |
//! | `bits`, `wide`, `hash` | bit ranges, numbers of any width, hash algorithms |
//! | `externs` | functions of this target beyond v1model |
//!
//! The safe direction of error is to drop: the worst that the contents of a packet can cause is that it is
//! dropped and counted. No packet makes the engine allocate, wait without end, or index out of range; bounds
//! that depend on packets are checked at run time too, besides the checker's proof.
//!
//! Packet-in and packet-out are ports: for a program, a controller's port is like any other.

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
mod verdict;
pub mod wide;

pub use context::{Context, MAX_COPIES};
pub use engine::{DROP_PORT, Engine, INITIAL_HEAD, MAX_PASSES, match_kind};
pub use error::Error;
pub use notes::{KeyMasks, Notes};
pub use observe::{NoObserver, Observer};
pub use p4_tables::{MAX_WATCHING, MeterRates};
pub use packet::{Collected, Counts, Drop, NoTail, Output, Packet, Sink, Tail};
pub use state::{CloneSession, CounterValue, ReadGuard, Replica, State, StateLimits, losses};
pub use tables::{Tables, meter_rates};
pub use verdict::{End, KEY, Mask, Verdict, Verdicts};
