//! sched(7): one call sets policy, priority, nice value and time slice of the calling thread.

use placement::Priority;
use std::io;

/// The lowest real-time priority: above all normal tasks, below everybody else's real-time ones.
pub(crate) const RT_PRIORITY: u32 = 1;

/// Time slice in nanoseconds, the least that the kernel takes (`sched_setattr`'s runtime for normal tasks, Linux 6.12).
const SLICE_NS: u64 = 100_000;

/// A place among other tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    policy: i32,
    nice: i32,
    rt_priority: u32,
    slice_ns: u64,
}

impl Level {
    /// As threads are born.
    pub const NORMAL: Level = Level {
        policy: libc::SCHED_OTHER,
        nice: 0,
        rt_priority: 0,
        slice_ns: 0,
    };

    /// A thread that, when it is woken, waits until the running task blocks or its time slice is over.
    pub const PATIENT: Level = Level {
        policy: libc::SCHED_BATCH,
        ..Level::NORMAL
    };

    /// In the class, with tokens.
    pub const fn raised(class: Priority) -> Level {
        match class {
            Priority::Realtime => Level {
                policy: libc::SCHED_FIFO,
                rt_priority: RT_PRIORITY,
                ..Level::NORMAL
            },
            Priority::Nice => Level {
                nice: -20,
                slice_ns: SLICE_NS,
                ..Level::NORMAL
            },
            Priority::Slice => Level {
                slice_ns: SLICE_NS,
                ..Level::NORMAL
            },
            Priority::Auto | Priority::Normal => Level::NORMAL,
        }
    }

    /// In the class, without tokens.
    pub const fn lowered(class: Priority) -> Level {
        match class {
            Priority::Auto | Priority::Normal => Level::NORMAL,
            // Kernels that know no slices ignore it.
            Priority::Realtime | Priority::Nice | Priority::Slice => Level {
                slice_ns: SLICE_NS,
                ..Level::NORMAL
            },
        }
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

/// Puts the calling thread there.
///
/// # Errors
/// As sched_setattr(2).
pub(crate) fn apply(level: Level) -> io::Result<()> {
    let attributes = Attributes {
        size: SIZE,
        policy: level.policy.cast_unsigned(),
        nice: level.nice,
        priority: level.rt_priority,
        runtime: level.slice_ns,
        ..Attributes::default()
    };
    // SAFETY: the call reads `attributes`, as many bytes as its first field says; 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether the calling thread has a time slice as short as was asked for: older kernels say 0 or ignore the wish.
pub(crate) fn has_slice() -> bool {
    read().is_ok_and(|attributes| attributes.runtime == SLICE_NS)
}

fn read() -> io::Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the call writes at most `SIZE` bytes to `attributes`, all of whose bit patterns are valid; 0 is the calling
    // thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, SIZE, 0) };
    if result == 0 {
        Ok(attributes)
    } else {
        Err(io::Error::last_os_error())
    }
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
        for level in [Level::PATIENT, Level::lowered(Priority::Realtime), Level::NORMAL] {
            apply(level).unwrap();
            assert_eq!(policy(), level.policy);
        }
    }
}
