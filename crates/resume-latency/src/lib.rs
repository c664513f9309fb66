//! Constraints on the resume latency of cores, which keep them from deep idle states.
//!
//! The kernel has a file per core, `power/pm_qos_resume_latency_us` (Documentation/admin-guide/pm/cpuidle.rst, "Power Management
//! Quality of Service for CPUs"). With `n/a` in it the idle loop of the core polls and never halts, so that whoever wakes the core sends no
//! interrupt and waits for no wake-up; `0` means no constraint. The idle loop looks at the file's value each time it chooses a
//! state: a thread that writes for its own core before it sleeps is in time, and nothing is woken by the write, which takes less than
//! a microsecond.
//!
//! Two processes take part. The privileged one opens the files ([`Constraints`]) and lends each to the unprivileged one that
//! writes them ([`Constraint`]). That one lifts what it has set, and the privileged process lifts what is left when the other has
//! died, and at its own end. It leaves a note, by which its successor knows what it has to lift if it was killed itself.
//!
//! The safe direction of error is no constraint: a core is used only if it had none, so a value that an administrator set before stays, and a
//! file that cannot be written is done without.

#![forbid(unsafe_code)]

mod constraint;
mod constraints;

pub use constraint::Constraint;
pub use constraints::{CPUS, Constraints};

/// The value that forbids all states but polling.
const POLL_ONLY: &str = "n/a";

/// The value that allows all states.
const ANY_STATE: &str = "0";
