//! P4Runtime: clients over gRPC drive the P4 switches of an instance.
//!
//! A process of its own without privileges has it. Towards clients it is a server of P4Runtime 1.5; towards
//! the instance it is a user that may ask for P4 switches alone, and only for those that the configuration
//! calls devices. What it keeps can be lost: a pipeline and its entries are the instance's version.
//!
//! ```text
//!   clients == HTTP/2 == server == jobs == core_thread { service { device { pipeline } } } == control
//!                                                 packets == data_plane == data plane
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`proto`] | messages |
//! | [`failure`], [`bytestring`] | errors with gRPC's codes; numbers as byte strings |
//! | [`arbitration`] | which client may write, and what its role may do |
//! | [`entry`], [`replication`] | entries, groups and sessions in both forms |
//! | `rates`, `meters`, [`idle`] | rates and idle times in both forms; rates of cells and of entries; idle times |
//! | `value_set` | value sets of the parser |
//! | [`profile`], `uses` | action profiles: members, groups, one shots; what refers to them |
//! | [`pipeline`], [`inherit`] | a program with its entries; what another program takes over from it |
//! | [`write`], [`read`] | updates and reads of a pipeline |
//! | [`switches`], [`control`] | the instance, and the connection to its control process |
//! | [`packets`], [`digests`], [`data_plane`] | packets with metadata; lists of digests; connections by which both come |
//! | [`device`], `cells`, [`service`] | a P4 switch with its clients; cells that a batch sets; all devices |
//! | [`wire`], [`jobs`], [`core_thread`], [`server`] | paths and bytes; the thread that has the service, and work for it; transport |
//! | [`process`] | the process |

#![forbid(unsafe_code)]

pub mod arbitration;
pub mod bytestring;
mod cells;
pub mod control;
pub mod core_thread;
pub mod data_plane;
pub mod device;
pub mod digests;
pub mod entry;
pub mod failure;
pub mod idle;
mod inherit;
pub mod jobs;
mod meters;
pub mod packets;
pub mod pipeline;
pub mod process;
pub mod profile;
pub mod proto;
mod rates;
pub mod read;
pub mod replication;
pub mod server;
pub mod service;
pub mod switches;
#[cfg(test)]
mod testing;
mod uses;
mod value_set;
pub mod wire;
pub mod write;
