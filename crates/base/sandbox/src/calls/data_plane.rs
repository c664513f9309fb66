//! System calls of the data plane besides the common ones. It opens no file and connects no socket:
//! connections arrive by accept4() or with a message.

use super::Check::OneOf;
use super::Rule::{Always, Errno, If};
use super::{CALLING_THREAD, Calls, bits};

/// Calls of every architecture.
pub(crate) const CALLS: Calls = &[
    (libc::SYS_readlinkat, Errno(libc::EACCES)), // of the standard library in a panic
    (libc::SYS_accept4, Always),
    // Between a session and the thread that receives a VMM's descriptors, which has a table of its own for
    // them.
    (libc::SYS_socketpair, If(&[OneOf(0, &[bits(libc::AF_UNIX)])])),
    (libc::SYS_unshare, If(&[OneOf(0, &[bits(libc::CLONE_FILES)])])),
    (libc::SYS_close_range, Always),
    // Eventfds of guests are distinguished from other files, and signalled, by operations without effect.
    (libc::SYS_io_setup, Always),
    (libc::SYS_io_submit, Always),
    (libc::SYS_timerfd_create, Always),
    (libc::SYS_timerfd_settime, Always),
    (libc::SYS_sched_setaffinity, If(&[CALLING_THREAD])),
    // Files that libraries try to open by themselves: the allocator
    // /proc/sys/vm/overcommit_memory, the standard library the cgroup's CPU quota.
    (libc::SYS_openat, Errno(libc::EACCES)),
    (libc::SYS_statx, Errno(libc::ENOSYS)), // the standard library falls back to fstat()
];

/// Calls of a data plane that sends by queues of devices: many frames at a time, without waiting.
pub(crate) const SENDING: Calls = &[(libc::SYS_sendmmsg, If(&[OneOf(3, &[bits(libc::MSG_DONTWAIT)])]))];

/// Older calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
pub(crate) const LEGACY: Calls = &[(libc::SYS_open, Errno(libc::EACCES))];

/// Older calls that newer architectures do not have.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const LEGACY: Calls = &[];
