//! System calls of the process for P4Runtime besides the common ones: connections of clients at a socket that
//! listens already, and memory files with programs for the control process. It opens nothing and makes no
//! socket but pairs.

use super::Calls;
use super::Check::OneOf;
use super::Rule::{Always, If};
use super::bits;

/// Calls of every architecture.
pub(crate) const CALLS: Calls = &[
    (libc::SYS_accept4, Always),
    (libc::SYS_getsockname, Always),
    (libc::SYS_getpeername, Always),
    (libc::SYS_socketpair, If(&[OneOf(0, &[bits(libc::AF_UNIX)])])),
    (
        libc::SYS_setsockopt,
        If(&[
            OneOf(1, &[bits(libc::IPPROTO_TCP)]),
            OneOf(2, &[bits(libc::TCP_NODELAY)]),
        ]),
    ),
    (libc::SYS_memfd_create, Always),
    (libc::SYS_fcntl, If(&[OneOf(1, &[bits(libc::F_ADD_SEALS)])])),
];

/// Older calls that newer architectures do not have.
pub(crate) const LEGACY: Calls = &[];
