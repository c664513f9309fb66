//! The scheduling class of forwarding threads among the other tasks of a core.
//!
//! On a host whose cores are busy, a thread that is woken for a packet waits until the running task has used up its time slice:
//! milliseconds, where the kernel's own bridge forwards in the sender's context at once. So forwarding threads belong to a
//! raised class that *preempts on wake-up*. The supervisor chooses the best one that the kernel grants
//! ([`grant`]), before privileges are given up:
//!
//! | class | raised | lowered | takes |
//! |---|---|---|---|
//! | [`Realtime`](Priority::Realtime) | `SCHED_FIFO`, priority 1 | `SCHED_OTHER` | `RLIMIT_RTPRIO` of 1, or `CAP_SYS_NICE` |
//! | [`Nice`](Priority::Nice) | nice -20 | nice 0 | `RLIMIT_NICE` of 40, or `CAP_SYS_NICE` |
//! | [`Slice`](Priority::Slice) | a time slice of 100 us | the same | Linux 6.12 |
//! | [`Normal`](Priority::Normal) | `SCHED_OTHER` | the same | nothing |
//!
//! A raised thread takes from others, so its time there is bounded by a token bucket ([`Bucket`]), which fills only while the
//! thread sleeps. A thread that is flooded never sleeps, gets no tokens, falls to the normal class and has its fair share
//! there like any other thread. [`Booster`] keeps the bucket and makes the calls; while tokens last, it makes none.
//!
//! The safe direction of error is the normal class: whatever the kernel refuses leaves a thread there. Should a bug keep a
//! thread in the real-time class, the kernel ends the process ([`RUNAWAY`]), and the supervisor starts it again.
//!
//! Allowed `unsafe`: sched_setattr(2) and sched_getattr(2), which the C library does not wrap.

mod anchor;
mod booster;
mod bucket;
mod kernel;

pub use booster::{Booster, Rest};
pub use bucket::Bucket;
pub use placement_config::Priority;

use kernel::Level;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fmt::Write as _;
use std::io;

/// Processor time in microseconds that a thread may use in the real-time class without ever sleeping, before the kernel ends the
/// process (`RLIMIT_RTTIME`). Two thousand times what a [`Booster`] allows: time counts on
/// while a thread comes and goes without ever being woken in that class.
pub const RUNAWAY: u64 = 10_000_000;

/// The outcome of [`grant`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The class; never [`Priority::Auto`].
    pub class: Priority,
    /// The classes that were refused before, for users; empty if none was.
    pub refused: String,
    /// Children need `CAP_SYS_NICE` for it, since the limits may not be raised (which takes `CAP_SYS_RESOURCE`).
    pub by_capability: bool,
}

/// Finds the class that children of this process may use, and raises its resource limits, which they inherit. To be called by
/// a privileged process before it starts them. The calling thread's own class changes for a moment.
///
/// `wish` is a class, which is granted or not, or [`Priority::Auto`] for the best one. Falls back to [`Priority::Normal`].
pub fn grant(wish: Priority) -> Grant {
    let best_first = [Priority::Realtime, Priority::Nice, Priority::Slice];
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

/// Whether children may use the class, and if so, whether it is the capability that they need for it.
fn admit(class: Priority) -> io::Result<bool> {
    let limited = match class {
        Priority::Realtime => {
            // Lowering takes no privilege: whoever may be real-time is bounded.
            raise(Resource::Rttime, RUNAWAY, RUNAWAY)?;
            raise(Resource::Rtprio, 1, 0)
        }
        // As the limit counts: 20 - nice.
        Priority::Nice => raise(Resource::Nice, 40, 0),
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

/// Sets a limit, soft and hard, to `value`, unless it is at least that and `most` is 0.
fn raise(resource: Resource, value: u64, most: u64) -> io::Result<()> {
    let now = getrlimit(resource);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= value);
    if most == 0 && enough(now.current) {
        return Ok(());
    }
    // Who may not raise the hard limit may still use all of it.
    let maximum = match now.maximum {
        Some(maximum) if most != 0 => Some(maximum.min(value)),
        None if most != 0 => Some(value),
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
