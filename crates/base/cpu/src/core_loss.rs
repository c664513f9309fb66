//! Whether a thread has lost its core, without a system call.
//!
//! The kernel keeps an area of each thread for *restartable sequences* (rseq(2), `linux/rseq.h`), which the C
//! library registers. The area can name a section of code. When the kernel takes the core from the thread,
//! or gives it a signal, it looks whether the thread was in that section, and clears the name if not. So an
//! empty section is named, and a name that is gone says that the thread has lost its core since.
//!
//! The kernel need not notice a loss within a system call. The C library has the area since version 2.35;
//! where there is none, as under valgrind, nothing is known.

use std::sync::OnceLock;

/// What stands before the code to which an interrupted section would return, by which the kernel knows it.
#[cfg(target_arch = "x86_64")]
const SIGNATURE: u32 = 0x5305_3053;
#[cfg(target_arch = "aarch64")]
const SIGNATURE: u32 = 0xd428_bc00;

/// `struct rseq`, of which these fields are since Linux 4.18.
#[repr(C, align(32))]
struct Area {
    cpu_id_start: u32,
    /// Negative until the area is registered.
    cpu_id: i32,
    section: *const Section,
}

/// `struct rseq_cs`.
#[repr(C, align(32))]
struct Section {
    version: u32,
    flags: u32,
    start: *const u32,
    length: u64,
    abort: *const u32,
}

// SAFETY: the pointers are numbers for the kernel, and lead to a constant.
unsafe impl Sync for Section {}

static SIGNED: [u32; 2] = [SIGNATURE, 0];

/// No instruction is in it, so its end is never returned to.
static EMPTY: Section = Section {
    version: 0,
    flags: 0,
    start: (&raw const SIGNED).cast(),
    length: 0,
    abort: (&raw const SIGNED).cast::<u32>().wrapping_add(1),
};

/// From now on the calling thread's loss of its core is noticed.
#[inline]
pub fn watch_core() {
    if let Some(area) = area() {
        // SAFETY: the area is this thread's, and lives as long as the thread; the kernel reads the field at
        // times of its own, and `EMPTY` is a valid section for ever. Nobody else here uses sections.
        unsafe { (&raw mut (*area).section).write_volatile(&raw const EMPTY) };
    }
}

/// Whether the calling thread has kept its core since it was [watched](watch_core); `None` if that is not
/// known.
#[inline]
#[must_use]
pub fn has_kept_core() -> Option<bool> {
    // SAFETY: as above.
    area().map(|area| unsafe { !(&raw const (*area).section).read_volatile().is_null() })
}

/// The thread's area, if it is registered.
#[inline]
fn area() -> Option<*mut Area> {
    let area = thread_pointer().wrapping_byte_offset(offset()?).cast::<Area>();
    // SAFETY: the C library says that each thread has the area there.
    let cpu_id = unsafe { (&raw const (*area).cpu_id).read_volatile() };
    (cpu_id >= 0).then_some(area)
}

/// Where the area lies from the thread pointer, if the C library has registered one.
#[inline]
fn offset() -> Option<isize> {
    static OFFSET: OnceLock<Option<isize>> = OnceLock::new();
    *OFFSET.get_or_init(|| {
        // SAFETY: the names are terminated; the variables are constants of these types (`sys/rseq.h`).
        unsafe {
            let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>();
            let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
            let is_registered = !size.is_null() && !offset.is_null() && *size > 0;
            is_registered.then(|| *offset)
        }
    })
}

#[inline]
fn thread_pointer() -> *mut u8 {
    let pointer: *mut u8;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first word of a thread's block is its own address (System V ABI, thread-local storage).
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly));
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nomem, nostack, preserves_flags));
    };
    pointer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Keeps a thread on a core.
    fn pin(core: usize) {
        // SAFETY: the set is a plain value, and valid during the call.
        let pinned = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
        };
        assert_eq!(pinned, 0);
    }

    #[test]
    fn a_core_that_is_lost_is_noticed() {
        watch_core();
        if has_kept_core().is_none() {
            eprintln!("left out: the C library has registered no area");
            return;
        }
        // SAFETY: no arguments.
        let core = usize::try_from(unsafe { libc::sched_getcpu() }).unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pin(core);
                while !is_done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            scope.spawn(|| {
                pin(core);
                let looks = (0..1_000_000).take_while(|_| {
                    watch_core();
                    has_kept_core() == Some(false)
                });
                assert!(
                    looks.count() < 1_000,
                    "mostly it is kept from one instruction to the next"
                );
                for _ in 0..3 {
                    watch_core();
                    while has_kept_core() == Some(true) {
                        std::hint::spin_loop();
                    }
                }
                is_done.store(true, Ordering::Relaxed);
            });
        });
    }
}
