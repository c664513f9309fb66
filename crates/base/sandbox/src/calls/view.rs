//! System calls of the process that serves metrics besides the common ones: it accepts clients at the socket
//! that it was given, and makes none itself.

use super::Calls;
use super::Rule::Always;

/// Calls of every architecture.
pub(crate) const CALLS: Calls = &[(libc::SYS_accept4, Always)];

/// Older calls that newer architectures do not have.
pub(crate) const LEGACY: Calls = &[];
