//! The contract between processes: the messages of each channel, and their framing.
//!
//! Every pair of processes talks over a `SOCK_SEQPACKET` Unix socket pair made by the supervisor: messages,
//! `postcard`-encoded, with file descriptors attached where the message says so. A datagram holds one, or
//! several without descriptors.
//!
//! | channel | from -> to | messages |
//! |---|---|---|
//! | supervisor | supervisor -> any child | [`supervisor::ToChild`] |
//! | data plane | control -> data plane | [`data_plane::ToDataPlane`] |
//! | data plane | data plane -> control | [`data_plane::FromDataPlane`] |
//! | driver | control -> driver domain | [`driver::ToDriver`] |
//! | driver | driver domain -> control | [`driver::FromDriver`] |
//! | forwarder | broker -> forwarder | [`forwarder::ToForwarder`] |
//! | forwarder | forwarder -> broker | [`forwarder::FromForwarder`] |
//!
//! | module | contents |
//! |---|---|
//! | `channel`, `error` | messages on sockets; refusals |
//! | `data_plane`, `rules` | requests to the data plane; those about rule lists and sets |
//! | `port_counts` | what ports have counted |
//! | `p4` | requests about P4 switches |
//! | `driver`, `forwarder` | messages between controllers and the broker of the driver domain; between it and forwarders |
//! | `supervisor` | messages between supervisor and children |
//! | `work`, `debt` | what threads of the data plane did; how long an answer is owed |
//!
//! A child inherits the supervisor channel as descriptor [`supervisor::CHANNEL_FD`]. The other channels reach
//! it over that one, again each time its peer was restarted: the new channel replaces the old one. The
//! control process is one of several *controllers* that data plane and driver domain may have, each with
//! channels of its own ([`flow::ControllerId`]).

#![forbid(unsafe_code)]

mod channel;
pub mod data_plane;
mod debt;
pub mod driver;
mod error;
pub mod forwarder;
pub mod p4;
pub mod port_counts;
pub mod rules;
pub mod supervisor;
pub mod work;

pub use channel::{Channel, ChannelError, MAX_DESCRIPTORS, MAX_MESSAGE, encoded_len};
pub use debt::Debt;
pub use error::RequestError;
