//! The system calls of the data plane: the whole list.
//!
//! A call that is not here ends the process. Calls with an `Errno` are refused but survived, because the C
//! library or the standard library tries them of its own accord and has a way out: nothing is lost by telling
//! it no. Arguments are compared where that is cheap and worth something; pointers cannot be.

use libc::c_int;

/// What happens to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// Allowed.
    Always,
    /// Allowed if all of these hold for its arguments; otherwise the process ends.
    If(&'static [Check]),
    /// Fails with this error number.
    Errno(c_int),
}

/// A condition on an argument, counted from 0. Only the low 32 bits are compared: all of these are `int`,
/// or flags that lie there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Check {
    /// Is one of these.
    OneOf(u8, &'static [u32]),
    /// Among the bits of the first value, exactly those of the second are set.
    Bits(u8, u32, u32),
    /// Is this process, as known when the filter is installed.
    OwnPid(u8),
    /// Is a null pointer (64 bits).
    Null(u8),
}

use Check::{Bits, Null, OneOf, OwnPid};
use Rule::{Always, Errno, If};

/// Of a flag constant, the bits as the filter sees them.
const fn bits(flags: c_int) -> u32 {
    flags.cast_unsigned()
}

/// No page may be both guest-controlled data and code.
const NOT_EXECUTABLE: Check = Bits(2, bits(libc::PROT_EXEC), 0);

/// A new thread of this process in the namespaces it is in; never a process.
const THREAD_ONLY: Check = Bits(0, bits(THREAD_FLAGS | NAMESPACE_FLAGS), bits(THREAD_FLAGS));
const THREAD_FLAGS: c_int = libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND;
const NAMESPACE_FLAGS: c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Calls of every architecture.
pub(crate) const CALLS: &[(i64, Rule)] = &[
    // Descriptors that are there already.
    (libc::SYS_read, Always),
    (libc::SYS_write, Always),
    (libc::SYS_readv, Always),
    (libc::SYS_writev, Always),
    (libc::SYS_close, Always),
    (libc::SYS_dup, Always),
    (libc::SYS_lseek, Always), // vm-memory asks for the size of a memory file this way
    (libc::SYS_fstat, Always),
    (
        libc::SYS_newfstatat,
        If(&[OneOf(3, &[bits(libc::AT_EMPTY_PATH)])]),
    ), // fstat() of newer C libraries
    (libc::SYS_statx, Errno(libc::ENOSYS)), // the standard library falls back to fstat()
    (
        libc::SYS_fcntl,
        If(&[OneOf(
            1,
            &[
                bits(libc::F_GETFD),
                bits(libc::F_SETFD),
                bits(libc::F_GETFL),
                bits(libc::F_SETFL),
                bits(libc::F_DUPFD_CLOEXEC),
                bits(libc::F_GET_SEALS),
            ],
        )]),
    ),
    (libc::SYS_ioctl, If(&[OneOf(1, &[0x5421])])), // FIONBIO: how the standard library makes a socket non-blocking
    // Sockets that are there already. Connections arrive by accept4() or with a message; none is made.
    (libc::SYS_recvmsg, Always),
    (libc::SYS_sendmsg, Always),
    (libc::SYS_recvfrom, Always),
    (libc::SYS_sendto, Always),
    (libc::SYS_accept4, Always),
    (libc::SYS_shutdown, Always),
    (
        libc::SYS_getsockopt,
        If(&[
            OneOf(1, &[bits(libc::SOL_SOCKET)]),
            OneOf(
                2,
                &[
                    bits(libc::SO_DOMAIN), // the vhost crate looks at the socket for our requests
                    bits(libc::SO_ERROR),
                    bits(libc::SO_TYPE),
                    bits(libc::SO_SNDBUF),
                    bits(libc::SO_PEERCRED),
                ],
            ),
        ]),
    ),
    (
        libc::SYS_setsockopt,
        If(&[
            OneOf(1, &[bits(libc::SOL_SOCKET)]),
            OneOf(
                2,
                &[
                    bits(libc::SO_RCVTIMEO),
                    bits(libc::SO_SNDTIMEO),
                    bits(libc::SO_SNDBUF),
                    bits(libc::SO_RCVBUF),
                ],
            ),
        ]),
    ),
    // Waiting.
    (libc::SYS_ppoll, Always),
    (libc::SYS_epoll_create1, Always),
    (libc::SYS_epoll_ctl, Always),
    (libc::SYS_epoll_pwait, Always),
    (libc::SYS_epoll_pwait2, Always),
    (libc::SYS_eventfd2, Always),
    (libc::SYS_timerfd_create, Always),
    (libc::SYS_timerfd_settime, Always),
    (libc::SYS_nanosleep, Always),
    (libc::SYS_clock_nanosleep, Always),
    (libc::SYS_restart_syscall, Always),
    // Memory.
    (libc::SYS_mmap, If(&[NOT_EXECUTABLE])),
    (libc::SYS_mprotect, If(&[NOT_EXECUTABLE])),
    (libc::SYS_munmap, Always),
    (libc::SYS_mremap, Always),
    (libc::SYS_madvise, Always),
    (libc::SYS_brk, Always),
    // Threads.
    (libc::SYS_clone, If(&[THREAD_ONLY])),
    (libc::SYS_clone3, Errno(libc::ENOSYS)), // its flags lie in memory; the C library falls back to clone()
    (libc::SYS_futex, Always),
    (libc::SYS_set_robust_list, Always),
    (libc::SYS_rseq, Always),
    (libc::SYS_membarrier, Always),
    (libc::SYS_sched_yield, Always),
    (libc::SYS_sched_getaffinity, Always),
    (libc::SYS_sched_setaffinity, If(&[OneOf(0, &[0])])),
    // The class of the calling thread; which ones it may have is up to its resource limits and
    // capability.
    (
        libc::SYS_sched_setscheduler,
        If(&[
            OneOf(0, &[0]),
            OneOf(
                1,
                &[
                    bits(libc::SCHED_OTHER),
                    bits(libc::SCHED_BATCH),
                    bits(libc::SCHED_FIFO),
                ],
            ),
        ]),
    ),
    (
        libc::SYS_setpriority,
        If(&[OneOf(0, &[libc::PRIO_PROCESS]), OneOf(1, &[0])]),
    ),
    (libc::SYS_getcpu, Always),
    (libc::SYS_gettid, Always),
    (libc::SYS_getpid, Always),
    (libc::SYS_prctl, If(&[OneOf(0, &[bits(libc::PR_SET_NAME)])])),
    (libc::SYS_prlimit64, If(&[OneOf(0, &[0]), Null(2)])), // pthread_getattr_np() asks for the stack limit
    (libc::SYS_exit, Always),
    (libc::SYS_exit_group, Always),
    // Signals: handlers for faults in guest memory, and abort().
    (libc::SYS_rt_sigaction, Always),
    (libc::SYS_rt_sigprocmask, Always),
    (libc::SYS_rt_sigreturn, Always),
    (libc::SYS_sigaltstack, Always),
    (libc::SYS_tgkill, If(&[OwnPid(0)])),
    // Time and chance.
    (libc::SYS_clock_gettime, Always),
    (libc::SYS_clock_getres, Always),
    (libc::SYS_gettimeofday, Always),
    (libc::SYS_getrandom, Always),
    // The file system, as far as libraries look for it unasked: the allocator for
    // /proc/sys/vm/overcommit_memory, the standard library for the cgroup's CPU quota and, in a panic, for the
    // program's symbols.
    (libc::SYS_openat, Errno(libc::EACCES)),
    (libc::SYS_readlinkat, Errno(libc::EACCES)),
    (libc::SYS_getcwd, Errno(libc::EACCES)),
];

/// Older calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
pub(crate) const LEGACY_CALLS: &[(i64, Rule)] = &[
    (libc::SYS_poll, Always),
    (libc::SYS_epoll_wait, Always),
    (libc::SYS_time, Always),
    (libc::SYS_open, Errno(libc::EACCES)),
    (libc::SYS_readlink, Errno(libc::EACCES)),
];

/// Older calls that newer architectures do not have.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const LEGACY_CALLS: &[(i64, Rule)] = &[];
