//! The control process: configuration, names, the learning switch, and the socket for users.
//!
//! One thread runs one poll loop ([`process`]). It sleeps until a message or request arrives or a timer
//! expires, and timers exist only while something is due: a connection to be tried again, flows whose use has
//! to be asked for, a station that will be forgotten.
//!
//! Parts have state, and know nothing of each other except for what is said here:
//!
//! | part | module |
//! |---|---|
//! | data plane: what is asked of it, and the purpose of each request | `data_plane`, `pending` |
//! | switches: decisions about packets, and upkeep of flows; asks the data plane | `switches` |
//! | rule lists and sets: what the data plane has of them, and the way to what it should have | `policies` |
//! | P4 switches: what the data plane has of them, and the way to what it should have | `p4` |
//! | Port maps of P4 switches, and links between them | `p4_map` |
//! | Ports of P4 switches that are stages | `p4_stages` |
//! | the deciders of a switch, and their chain; the learning switch, which is one of them | [`provider`], [`l2`] |
//! | a port | `port` |
//! | vCPU threads of each guest | `vcpus` |
//! | users' connections; groups of users; the socket for queries | `users`, `groups`, `view` |
//! | bounding the work that guests can cause | `pace` |
//! | the latest events, for users; what becomes one | `events`, `tell` |
//! | state that outlives this process | `store` |
//! | all of these | `control` |
//!
//! What joins them:
//!
//! | task | module |
//! |---|---|
//! | waiting for descriptors and deadlines | `process` |
//! | messages of the data plane, and its answers | `messages`, `answers` |
//! | comparing the state of a new data plane with the desired state | `sync` |
//! | users' intent becomes desired state, that becomes changes, and these are applied | `intent`, `state`, `mac`, `plan`, `apply` |
//! | ports are connected, again and again | `links` |
//! | for which stations frames come by an uplink's queue; its filters | `steering`, `filters` |
//! | users' requests; names, their order, and texts for them; why one is refused, or a port not connected; warnings | `serve`, `snapshot`, `devices`, `edit`, `order`, `describe`, `refusal`, `warnings` |
//! | the configuration file is read again, or another one applied; one that is not confirmed ends | `reload`, `unconfirmed` |
//! | texts that users send in memory | `sealed` |
//! | addresses of ports by DHCP and first use; messages of DHCP | `sources`, `learning`, `dhcp` |
//!
//! The death of this process costs nothing but time: the intent is in the store, port numbers and flows are
//! in the data plane, and flows show where stations are.

#![forbid(unsafe_code)]

mod answers;
mod apply;
mod control;
mod data_plane;
mod describe;
mod devices;
mod dhcp;
mod edit;
mod events;
mod filters;
mod groups;
mod intent;
pub mod l2;
mod learning;
mod links;
mod mac;
mod messages;
mod order;
mod p4;
mod p4_map;
mod p4_stages;
mod pace;
mod pending;
mod plan;
mod policies;
mod port;
mod process;
pub mod provider;
mod refusal;
mod reload;
mod sealed;
mod serve;
mod snapshot;
mod sources;
mod state;
mod steering;
mod store;
mod switches;
mod sync;
mod tell;
mod unconfirmed;
mod users;
mod vcpus;
mod view;
mod warnings;

pub use groups::Groups;
pub use refusal::{Problem, Refusal};
pub use reload::check;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
pub use warnings::users_warning;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory for sockets and state; created if need be.
    pub run_dir: PathBuf,
    /// Configuration file; without one, a private switch `sw0` is made.
    pub config: Option<PathBuf>,
    /// The number of the machine (machine-id(5)), if it has one.
    pub machine: Option<u128>,
    /// Cores that the switch may use.
    pub cores: BTreeSet<u16>,
    /// Groups of users, by name.
    pub groups: Groups,
    /// Reads P4 programs of the configuration.
    pub p4: P4Files,
}

/// What is known about P4 programs outside of this crate, which has them as bytes.
#[derive(Clone, Copy, Debug)]
pub struct P4Files {
    /// Reads a program with its entries, whose files are seen from a directory, as a data plane with so many
    /// forwarding threads takes it; or says why it cannot be used.
    pub read: fn(&management::P4Config, &Path, threads: usize) -> Result<Vec<u8>, String>,
    /// What of a program's state would be lost if another one came in its place, for users.
    pub losses: fn(former: &[u8], next: &[u8]) -> Vec<String>,
}

impl P4Files {
    /// Reads none: a configuration that has programs cannot be used.
    pub const NONE: P4Files = P4Files {
        read: |_, _, _| Err("P4 programs are not read here".into()),
        losses: |_, _| Vec::new(),
    };
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
    control::Control::new(supervisor, options)?.run()
}
