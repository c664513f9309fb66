//! System calls of a forwarder besides the common ones: many frames at a time, memory shared with the data
//! plane, and what a TAP may leave to its reader. It opens no file and makes no socket: devices, streams and
//! channels arrive with messages.

use super::Check::OneOf;
use super::Rule::{Always, Errno, If};
use super::{CALLING_THREAD, Calls, bits, request};

/// Calls of every architecture.
pub(crate) const CALLS: Calls = &[
    (libc::SYS_readlinkat, Errno(libc::EACCES)), // of the standard library in a panic
    (libc::SYS_openat, Errno(libc::EACCES)),     // of the allocator and the standard library
    (libc::SYS_statx, Errno(libc::ENOSYS)),      // the standard library falls back to fstat()
    // Threads stay on their core while they are real-time.
    (libc::SYS_sched_setaffinity, If(&[CALLING_THREAD])),
    (libc::SYS_ioctl, If(&[OneOf(1, &[request(libc::TUNSETOFFLOAD)])])),
    // Where the rings of an AF_XDP socket lie in its mappings.
    (
        libc::SYS_getsockopt,
        If(&[
            OneOf(1, &[bits(libc::SOL_XDP)]),
            OneOf(2, &[bits(libc::XDP_MMAP_OFFSETS)]),
        ]),
    ),
    (libc::SYS_sendmmsg, Always),
    (libc::SYS_memfd_create, Always),
    (libc::SYS_ftruncate, Always),
    (libc::SYS_fcntl, If(&[OneOf(1, &[bits(libc::F_ADD_SEALS)])])),
];

/// Older calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
pub(crate) const LEGACY: Calls = &[(libc::SYS_open, Errno(libc::EACCES))];

/// Older calls that newer architectures do not have.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const LEGACY: Calls = &[];
