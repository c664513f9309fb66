//! Logging and rate limits.
//!
//! Every crate logs through the `log` facade. Lines go to standard error, one `write` per line. In a process
//! that users start ([`init`]) they are complete: time or priority, level, role. In a supervised process
//! ([`init_child`]) standard error is a pipe to the supervisor, and a line is level and message; the
//! supervisor adds time and role ([`relay`]), so that no process can log under another's name. There are no
//! files and no rotation: the service manager that collects the supervisor's standard error does that better.
//!
//! A line that a guest can cause goes through [`limited_by!`], which passes a burst per call site and port
//! and counts further lines, so that no guest suppresses lines about another; or through [`limited!`], where
//! there is no port to name. The safe direction of error is to log too little: with a line per bad descriptor
//! a guest could fill a disk and slow its neighbours down. Since lines may be suppressed, every event that a
//! guest can cause is counted as well.
//!
//! The main thread calls [`init`] or [`init_child`] once. Everything else may be called from any thread and
//! takes no locks of this crate; a line that passes may wait for the reader of standard error.

#![forbid(unsafe_code)]

mod fields;
mod journal;
mod limit;
mod logger;
mod problems;

pub use limit::{PortLimits, RateLimit, Verdict, log_limited, log_limited_by};
pub use log;
pub use logger::{LEVEL_VARIABLE, init, init_child, push_time, relay};
pub use problems::{Problems, Told};

/// Logs like `log::log!`, at most [`RateLimit::BURST`] lines per [`RateLimit::INTERVAL_MS`] from this place
/// in the source; the next line after that says how many were left out.
///
/// ```
/// telemetry::limited!(log::Level::Warn, "port {}: chain loops", 3);
/// ```
#[macro_export]
macro_rules! limited {
    ($level:expr, $($message:tt)+) => {{
        static LIMIT: $crate::RateLimit = $crate::RateLimit::new();
        let level: $crate::log::Level = $level;
        if $crate::log::log_enabled!(level) {
            $crate::log_limited(&LIMIT, level, ::core::module_path!(), ::core::format_args!($($message)+));
        }
    }};
}

/// As [`limited!`], with a limit of its own for each port, which allows less and less while lines go on
/// coming. The first argument is the port's number, any `u32`.
///
/// ```
/// telemetry::limited_by!(3, log::Level::Warn, "port {}: chain loops", 3);
/// ```
#[macro_export]
macro_rules! limited_by {
    ($port:expr, $level:expr, $($message:tt)+) => {{
        static LIMITS: $crate::PortLimits = $crate::PortLimits::new();
        let level: $crate::log::Level = $level;
        if $crate::log::log_enabled!(level) {
            let limit = LIMITS.of($port);
            $crate::log_limited_by(limit, level, ::core::module_path!(), ::core::format_args!($($message)+));
        }
    }};
}
