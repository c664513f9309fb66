//! System calls of the control process besides the common ones: sockets of VMMs and of users, all of them
//! Unix sockets; its state and the configuration file; `/proc`, for the threads of VMMs. Landlock
//! (`landlock.rs`) limits which files: a filter cannot read paths.

use super::Calls;
use super::Check::OneOf;
use super::Rule::{Always, If};
use super::bits;

const UNIX: super::Check = OneOf(0, &[bits(libc::AF_UNIX)]);

/// The modes of our sockets. None marks a program.
const SOCKET_MODES: super::Check = OneOf(1, &[0o600, 0o660, 0o666]);

/// Only the effective group of the calling thread changes, which new files get.
const AS_IT_IS: u32 = u32::MAX;

/// Calls of every architecture.
pub(crate) const CALLS: Calls = &[
    (libc::SYS_socket, If(&[UNIX])),
    (libc::SYS_socketpair, If(&[UNIX])),
    (libc::SYS_bind, Always),
    (libc::SYS_listen, Always),
    (libc::SYS_connect, Always),
    (libc::SYS_accept4, Always),
    (libc::SYS_umask, Always),
    (libc::SYS_fchmod, If(&[SOCKET_MODES])),
    (
        libc::SYS_setresgid,
        If(&[OneOf(0, &[AS_IT_IS]), OneOf(2, &[AS_IT_IS])]),
    ),
    (libc::SYS_openat, Always),
    (libc::SYS_getdents64, Always),
    (libc::SYS_newfstatat, Always),
    (libc::SYS_statx, Always),
    (libc::SYS_readlinkat, Always), // links on the way to a socket
    (libc::SYS_geteuid, Always),    // whose directories are ours
    (libc::SYS_getegid, Always),
    (libc::SYS_mkdirat, Always),
    (libc::SYS_renameat2, Always),
    (libc::SYS_unlinkat, If(&[OneOf(2, &[0])])),
];

/// Older calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
pub(crate) const LEGACY: Calls = &[
    (libc::SYS_open, Always),
    (libc::SYS_stat, Always),
    (libc::SYS_lstat, Always),
    (libc::SYS_mkdir, Always),
    (libc::SYS_rename, Always),
    (libc::SYS_renameat, Always),
    (libc::SYS_unlink, Always),
];

/// Older calls that newer architectures do not have.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const LEGACY: Calls = &[];
