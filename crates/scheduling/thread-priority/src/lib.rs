//! The scheduling class of forwarding threads among the other tasks of a core.
//!
//! On a host whose cores are busy, a thread that is woken for a packet waits until the running task has used
//! up its time slice: milliseconds, where the kernel's own bridge forwards in the sender's context at once.
//! So forwarding threads belong to a raised class that *preempts on wake-up*. The supervisor chooses the best
//! class that the kernel grants ([`grant`]), before it gives up privileges:
//!
//! | class | raised | lowered | requires |
//! |---|---|---|---|
//! | [`Realtime`](Priority::Realtime) | `SCHED_FIFO`, priority 1 | `SCHED_OTHER` | `RLIMIT_RTPRIO` of 1, or `CAP_SYS_NICE` |
//! | [`Slice`](Priority::Slice) | a time slice of 100 us | the same | Linux 6.12 |
//! | [`Nice`](Priority::Nice) | nice -20 | nice 0 | `RLIMIT_NICE` of 40, or `CAP_SYS_NICE` |
//! | [`Normal`](Priority::Normal) | `SCHED_OTHER` | the same | nothing |
//!
//! A raised thread takes time from other tasks, so its time in the class is bounded by a token bucket
//! ([`Bucket`]), which fills only while the thread sleeps. A thread that is flooded never sleeps, gets no
//! tokens, falls to the normal class and gets its fair share there like any other thread. All threads of the
//! process that run on one core share another bucket (`core_bucket`). [`Booster`] keeps the buckets and makes
//! the system calls; while tokens last, it makes none.
//!
//! The safe direction of error is the normal class: a thread stays there if the kernel refuses a change.
//! Should a bug keep a thread in the real-time class, the kernel ends the process ([`RUNAWAY_US`]), and the
//! supervisor starts it again.
//!
//! Allowed `unsafe`: sched_setattr(2) and sched_getattr(2), which the C library does not wrap.

mod anchor;
mod booster;
mod bucket;
mod core_bucket;
mod kernel;

pub use booster::{Booster, WakeMode};
pub use bucket::Bucket;
pub use placement_config::Priority;

use kernel::Level;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fmt::Write as _;
use std::io;

/// Processor time in microseconds that a thread may use in the real-time class without ever sleeping, before
/// the kernel ends the process (`RLIMIT_RTTIME`). Two thousand times what a [`Booster`] allows: time counts
/// on while a thread comes and goes without ever being woken in that class.
pub const RUNAWAY_US: u64 = 10_000_000;

/// The outcome of [`grant`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The class; never [`Priority::Auto`].
    pub class: Priority,
    /// The classes that were refused before, for users; empty if none was.
    pub refused: String,
    /// Children need `CAP_SYS_NICE` for the class, since this process may not raise the limits (which
    /// requires `CAP_SYS_RESOURCE`).
    pub by_capability: bool,
}

/// Finds the class that children of this process may use, and raises its resource limits, which they inherit.
/// To be called by a privileged process before it starts them. The calling thread's own class changes for a
/// moment.
///
/// `wish` is one class, or [`Priority::Auto`] for the best one that is granted. Falls back to
/// [`Priority::Normal`].
pub fn grant(wish: Priority) -> Grant {
    let best_first = [Priority::Realtime, Priority::Slice, Priority::Nice];
    let mut refused = String::new();
    for class in best_first {
        if wish != Priority::Auto && wish != class {
            continue;
        }
        match admit(class) {
            Ok(by_capability) => {
                return Grant {
                    class,
                    refused,
                    by_capability,
                };
            }
            Err(error) => {
                let comma = if refused.is_empty() { "" } else { ", " };
                // Writing to a string does not fail.
                let _ = write!(refused, "{comma}{}: {error}", class.name());
            }
        }
    }
    Grant {
        class: Priority::Normal,
        refused,
        by_capability: false,
    }
}

/// Whether children need the capability for the class; an error if they may not use the class.
fn admit(class: Priority) -> io::Result<bool> {
    let limited = match class {
        Priority::Realtime => {
            // Lowering requires no privilege, so every thread that may be real-time can be lowered.
            set_limit(Resource::Rttime, RUNAWAY_US, true)?;
            set_limit(Resource::Rtprio, 1, false)
        }
        // As the limit counts: 20 - nice.
        Priority::Nice => set_limit(Resource::Nice, 40, false),
        Priority::Slice => {
            kernel::shorten_slice()?;
            return if kernel::has_slice() {
                Ok(false)
            } else {
                Err(io::Error::other("this kernel has no time slices per thread"))
            };
        }
        Priority::Auto | Priority::Normal => Ok(()),
    };
    let level = Level::raised(class);
    kernel::apply(Level::NORMAL, level)?;
    kernel::apply(level, Level::NORMAL)?;
    Ok(limited.is_err())
}

/// Raises a resource limit, soft and hard, to `value`; if it `is_bound`, also lowers a greater one to it.
fn set_limit(resource: Resource, value: u64, is_bound: bool) -> io::Result<()> {
    let now = getrlimit(resource);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= value);
    if !is_bound && enough(now.current) {
        return Ok(());
    }
    // A process that may not raise the hard limit may still raise the soft one up to it.
    let maximum = match now.maximum {
        Some(maximum) if is_bound => Some(maximum.min(value)),
        None if is_bound => Some(value),
        maximum if enough(maximum) => maximum,
        _ => Some(value),
    };
    setrlimit(
        resource,
        Rlimit {
            current: Some(value.min(maximum.unwrap_or(value))),
            maximum,
        },
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_granted_and_the_caller_stays_normal() {
        for wish in [
            Priority::Auto,
            Priority::Realtime,
            Priority::Nice,
            Priority::Slice,
            Priority::Normal,
        ] {
            let grant = grant(wish);
            assert_ne!(grant.class, Priority::Auto);
            assert!(wish == Priority::Auto || grant.class == wish || grant.class == Priority::Normal);
            let missed = grant.class == Priority::Normal && wish != Priority::Normal;
            assert!(!missed || !grant.refused.is_empty(), "{grant:?}");
            assert_eq!(kernel::policy(), libc::SCHED_OTHER);
        }
    }
}
