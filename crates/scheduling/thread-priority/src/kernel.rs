//! sched(7): policy, priority, nice value and time slice of the calling thread.

use placement_config::Priority;
use std::io;

/// The lowest real-time priority: above all normal tasks, and not above any other real-time one.
pub(crate) const RT_PRIORITY: i32 = 1;

/// Time slice in nanoseconds, the least that the kernel takes (`sched_setattr`'s runtime for normal tasks,
/// Linux 6.12).
const SLICE_NS: u64 = 100_000;

/// Policy, priority and nice value of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    policy: i32,
    nice: i32,
    rt_priority: i32,
}

impl Level {
    /// The level of a new thread.
    pub const NORMAL: Level = Level {
        policy: libc::SCHED_OTHER,
        nice: 0,
        rt_priority: 0,
    };

    /// The level of a thread that, when it is woken, waits until the running task blocks or has used up its
    /// time slice.
    pub const PATIENT: Level = Level {
        policy: libc::SCHED_BATCH,
        ..Level::NORMAL
    };

    /// The level of a thread in the class, with tokens. A short slice is inherited from the supervisor, and
    /// lost with any change of the level.
    pub const fn raised(class: Priority) -> Level {
        match class {
            Priority::Realtime => Level {
                policy: libc::SCHED_FIFO,
                rt_priority: RT_PRIORITY,
                ..Level::NORMAL
            },
            Priority::Nice => Level {
                nice: -20,
                ..Level::NORMAL
            },
            Priority::Auto | Priority::Slice | Priority::Normal => Level::NORMAL,
        }
    }
}

/// Changes the calling thread's level from `now` to `level`. (Two calls whose arguments a system call filter
/// can see, instead of sched_setattr(2), whose arguments are in memory.)
///
/// # Errors
/// As sched_setscheduler(2) and setpriority(2).
pub(crate) fn apply(now: Level, level: Level) -> io::Result<()> {
    if now.nice != level.nice {
        // SAFETY: takes numbers; 0 is the calling thread.
        check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, level.nice) }.into())?;
    }
    if (now.policy, now.rt_priority) != (level.policy, level.rt_priority) {
        let parameters = libc::sched_param {
            sched_priority: level.rt_priority,
        };
        // SAFETY: the call reads `parameters`; 0 is the calling thread.
        check(unsafe { libc::sched_setscheduler(0, level.policy, &raw const parameters) }.into())?;
    }
    Ok(())
}

/// The core that the calling thread is on. (rustix would call prctl(2) first, which filters refuse.)
pub(crate) fn cpu() -> usize {
    // SAFETY: takes nothing and writes nothing. It fails only on a kernel without getcpu(2), older than any
    // supported one.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

fn check(result: i64) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// `struct sched_attr` (sched_setattr(2)) in its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SIZE: u32 = size_of::<Attributes>() as u32;
const _: () = assert!(SIZE == 48);

/// Gives the calling thread, and the processes that it starts from then on, the shortest time slice.
///
/// # Errors
/// As sched_setattr(2).
pub(crate) fn shorten_slice() -> io::Result<()> {
    let attributes = Attributes {
        size: SIZE,
        policy: libc::SCHED_OTHER.cast_unsigned(),
        runtime: SLICE_NS,
        ..Attributes::default()
    };
    // SAFETY: the call reads `attributes`, as many bytes as its first field says; 0 is the calling thread.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })
}

/// Whether the calling thread has the time slice that [`shorten_slice`] asks for: older kernels show 0 or
/// ignore the request.
pub(crate) fn has_slice() -> bool {
    read().is_ok_and(|attributes| attributes.runtime == SLICE_NS)
}

fn read() -> io::Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the call writes at most `SIZE` bytes to `attributes`, all of whose bit patterns are valid; 0 is
    // the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, SIZE, 0) };
    check(result).map(|()| attributes)
}

/// The calling thread's policy.
#[cfg(test)]
pub(crate) fn policy() -> i32 {
    read().unwrap().policy.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_that_need_no_privilege_are_taken() {
        let mut now = Level::NORMAL;
        for level in [Level::PATIENT, Level::PATIENT, Level::NORMAL] {
            apply(now, level).unwrap();
            assert_eq!(policy(), level.policy);
            now = level;
        }
    }
}
