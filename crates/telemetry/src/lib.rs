//! Logging and rate limits.
//!
//! Every crate logs through the `log` facade; [`init`] decides once per process where the lines go: to
//! standard error, one `write` per line, so that lines of the supervisor and its children, which share that
//! descriptor, do not mix. There are no files, no rotation and no threads: whoever collects standard error
//! does that better.
//!
//! A line that a guest can cause goes through [`limited!`], which lets a burst per call site pass and counts
//! the rest. The safe direction of error is to say too little: a suppressed line is only counted, whereas a
//! line per bad descriptor would let a guest fill a disk and slow its neighbours down. For the same reason
//! guest-caused lines must not be the only place where something is told; counters are.
//!
//! [`init`] is called once by the main thread. Everything else may be called from any thread and takes no
//! locks of ours; a line that is let through may wait for whoever reads standard error.

#![forbid(unsafe_code)]

mod limit;
mod logger;

pub use limit::{RateLimit, Verdict, log_limited};
pub use log;
pub use logger::{LEVEL_VARIABLE, init};

/// Logs like `log::log!`, at most [`RateLimit::BURST`] lines per [`RateLimit::INTERVAL_MS`] from this place in
/// the source; the next line after that says how many were left out.
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
