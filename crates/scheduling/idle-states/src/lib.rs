//! Constraints on the resume latency of cores, which keep them from deep idle states.
//!
//! The kernel has a file per core, `power/pm_qos_resume_latency_us`
//! (Documentation/admin-guide/pm/cpuidle.rst, "Power Management Quality of Service for CPUs"). With `n/a` in
//! it the idle loop of the core polls and never halts, so that waking the core takes no interrupt and no exit
//! from an idle state; `0` means no constraint. The idle loop looks at the file's value each time it chooses
//! a state: a thread that writes for its own core before it sleeps is in time, and nothing is woken by the
//! write, which takes less than a microsecond.
//!
//! Two processes take part. The privileged one opens the files ([`Constraints`]) and lends each to the
//! unprivileged one that writes them ([`Constraint`]). The unprivileged process lifts the constraints that it
//! has set; the privileged one lifts those that are left when the other has died, and at its own end. If it
//! is killed itself, its successor lifts them: a note names the cores.
//!
//! The safe direction of error is no constraint: a core is used only if it had none, so a value that an
//! administrator set before stays, and a file that cannot be written is done without.

#![forbid(unsafe_code)]

mod constraint;
mod constraints;

pub use constraint::Constraint;
pub use constraints::{CPUS, Constraints};

/// The value that forbids all states but polling.
const POLL_ONLY: &str = "n/a";

/// The value that allows all states.
const ANY_STATE: &str = "0";
