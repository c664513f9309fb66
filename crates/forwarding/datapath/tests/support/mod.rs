//! What the tests of the data plane stand on: the real `datapath::run` on a thread, a control process that
//! does what the test says, and guests that speak real vhost-user and own real rings, so that they can write
//! any bytes anywhere. Every wait has an end; what takes longer than [`TIMEOUT`] hangs and fails.

#![allow(
    dead_code,
    unused_imports,
    missing_docs,
    reason = "shared by several test programs"
)]

pub mod bystanders;
pub mod control;
pub mod frames;
pub mod fuse;
pub mod guest;
pub mod heavy_program;
pub mod mapper;
pub mod memory;
pub mod p4;
pub mod ring;
pub mod session;
pub mod waiters;

pub use bystanders::Bystanders;
pub use control::Switch;
pub use guest::{Guest, Layout, Setup};

use std::time::{Duration, Instant};

/// Long enough for a loaded machine, short enough to notice a hang.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Whether attacks last long and are held to bounds of time (`make test-attack`).
pub fn is_long() -> bool {
    std::env::var_os("HYPERSWITCH_ATTACK").is_some_and(|value| value == "1")
}

/// Tries again while the test's own thread had no processor, as packets wait for a moment only. `attempt` is
/// false if it was late.
#[track_caller]
pub fn in_time(attempt: impl FnMut() -> bool) {
    let mut attempts = std::iter::repeat_with(attempt).take(10);
    assert!(attempts.any(|in_time| in_time), "each attempt was late");
}

/// Waits until `done`, or fails.
#[track_caller]
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
