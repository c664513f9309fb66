//! The clock that all processes share.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Time of `CLOCK_MONOTONIC`.
#[must_use]
pub fn monotonic() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}
