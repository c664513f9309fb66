//! The control process: configuration, names, the learning switch, and the socket for users.
//!
//! One thread runs one poll loop ([`process`]). It sleeps until a message or request arrives or a timer expires, and timers
//! exist only while something is due: a connection to be tried again, flows whose use has to be asked for, a station that
//! will be forgotten.
//!
//! | task | module |
//! |---|---|
//! | users' intent becomes desired state | `state` |
//! | desired state becomes changes | `plan` |
//! | changes are applied | `apply` |
//! | ports are connected, again and again | `links` |
//! | data plane: requests, upcalls, flows | `data_plane` |
//! | data plane: answers | `answers` |
//! | data plane: comparing the state of a new one with the desired state | `sync` |
//! | peers that a guest has taken over | `trust` (bounds), `clean` (text) |
//! | ageing of stations and flows | `ageing` |
//! | ports come and go | `ups` |
//! | bounding the work that guests can cause | `pace` |
//! | finding the vCPU threads of each guest | `vcpus` |
//! | decisions about packets | [`l2`] |
//! | users | `users` (bytes), `serve` and `edit` (requests), `describe` (names and texts) |
//! | why a request is refused, or a port not connected | `refusal` |
//! | state that outlives this process | `store` |
//!
//! The death of this process costs nothing but time: the intent is in the store, port numbers and flows are in the data
//! plane, and flows show where stations are.

#![forbid(unsafe_code)]

mod ageing;
mod answers;
mod apply;
mod clean;
mod data_plane;
mod describe;
mod edit;
pub mod l2;
mod links;
mod pace;
mod peer;
mod plan;
mod process;
mod refusal;
mod serve;
mod sockets;
mod state;
mod store;
mod sync;
mod trust;
mod ups;
mod users;
mod vcpus;

pub use refusal::{Problem, Refusal};
use std::path::PathBuf;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory for sockets and state; created if need be.
    pub run_dir: PathBuf,
    /// Configuration file; without one, a private switch `sw0` is made.
    pub config: Option<PathBuf>,
}

/// Why the control process could not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration cannot be used; the text names file and line where there is one.
    #[error(transparent)]
    Config(#[from] Refusal),
    /// The run directory or a file in it cannot be used.
    #[error("{path}: {error}")]
    RunDir {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Waiting failed.
    #[error("poll: {0}")]
    Poll(std::io::Error),
}

/// Runs until the supervisor says to finish, or is gone.
///
/// # Errors
/// See [`Error`]; only at the start, except for [`Error::Poll`].
pub fn run(supervisor: control_protocol::Channel, options: Options) -> Result<(), Error> {
    process::Control::new(supervisor, options)?.run()
}
