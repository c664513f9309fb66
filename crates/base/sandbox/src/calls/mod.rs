//! The system calls of each process: the whole lists.
//!
//! A call that is neither in [`COMMON`] nor in the process's own list ends the process. Calls with an `Errno`
//! are refused but survived, because the C library or the standard library tries them by itself and has a
//! fallback: nothing is lost by refusing them. Arguments are compared where that is cheap and useful;
//! contents of pointers cannot be.
//!
//! A call may be listed with [`Rule::If`] several times, here and in the process's own list: the alternatives
//! add up.
//!
//! No list has calls for the following, so no process may: execute a program, start another process, send a
//! signal to one, trace one, or read or write the memory of one; mount, load modules, call bpf(2); change
//! owners, or credentials (but for the control process its effective group); install another filter; put
//! characters into a terminal's input (`TIOCSTI`); make memory executable.

pub(crate) mod control;
pub(crate) mod data_plane;
pub(crate) mod driver;
pub(crate) mod forwarder;
pub(crate) mod ovs;
pub(crate) mod p4runtime;
pub(crate) mod view;

use libc::c_int;

/// The verdict on a call.
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

/// System calls by number.
pub(crate) type Calls = &'static [(i64, Rule)];

/// The bits of a flag constant as the filter sees them.
const fn bits(flags: c_int) -> u32 {
    flags.cast_unsigned()
}

/// The 32 bits of an ioctl(2) request that the kernel uses.
#[allow(clippy::cast_possible_truncation)]
const fn request(number: libc::Ioctl) -> u32 {
    number as u32
}

/// Only the calling thread may be moved or given another policy: 0 means it. A thread identifier would let a
/// process that was taken over chase threads of other processes of its user from core to core.
const CALLING_THREAD: Check = OneOf(0, &[0]);

/// No page may be both data from outside and code.
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

/// Calls that every process needs for threads, memory, time, and the descriptors it was given.
pub(crate) const COMMON: Calls = &[
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
    // Sockets that are there already.
    (libc::SYS_recvmsg, Always),
    (libc::SYS_sendmsg, Always),
    (libc::SYS_recvfrom, Always),
    (libc::SYS_sendto, Always),
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
    // The class of the calling thread; its resource limits and capability determine which classes it may
    // have.
    (
        libc::SYS_sched_setscheduler,
        If(&[
            CALLING_THREAD,
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
    (libc::SYS_getppid, Always),
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
    // Calls of the standard library in a panic, to find the program's symbols.
    (libc::SYS_getcwd, Errno(libc::EACCES)),
];

/// Older calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
pub(crate) const LEGACY_COMMON: Calls = &[
    (libc::SYS_poll, Always),
    (libc::SYS_epoll_wait, Always),
    (libc::SYS_time, Always),
    (libc::SYS_readlink, Errno(libc::EACCES)),
];

/// Older calls that newer architectures do not have.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const LEGACY_COMMON: Calls = &[];
