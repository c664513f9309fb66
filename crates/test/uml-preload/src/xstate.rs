//! Extended registers of processors that have more than User Mode Linux knows.
//!
//! User Mode Linux up to 6.12 keeps 2,696 bytes of extended registers per task, as far as AVX-512 reaches.
//! The host's kernel gives as many as there is room for, but takes nothing less than all (`xstateregs_set` in
//! `arch/x86/kernel/fpu/regset.c`). On processors with AMX all is 11,008 bytes, and User Mode Linux panics
//! when it starts its first task.
//!
//! Our `ptrace` fills up what User Mode Linux gives with zeros. The header in front says which components the
//! registers have; the tasks have not asked for AMX, so those that are filled up are not among them.

use libc::{c_int, c_long, c_uint, c_void, iovec, pid_t};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// `ELF_NOTE` type of the extended registers (`NT_X86_XSTATE`).
const EXTENDED_REGISTERS: usize = 0x202;

/// More than any processor has.
const ROOM: usize = 64 << 10;

/// The registers on their way to the kernel. Not on the stack: User Mode Linux runs on kernel stacks of 16
/// KiB.
struct Registers {
    in_use: AtomicBool,
    bytes: UnsafeCell<[u8; ROOM]>,
}

// SAFETY: `bytes` is touched only by the thread that has set `in_use`.
unsafe impl Sync for Registers {}

static REGISTERS: Registers = Registers {
    in_use: AtomicBool::new(false),
    bytes: UnsafeCell::new([0; ROOM]),
};

/// Bytes of all extended registers of this host; 0 until they are known.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// `ptrace(2)`, with extended registers filled up to as many bytes as the kernel takes.
///
/// # Safety
/// As the C library's: `address` and `data` are what `request` needs.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ptrace(
    request: c_uint,
    pid: pid_t,
    address: *mut c_void,
    data: *mut c_void,
) -> c_long {
    if request == libc::PTRACE_SETREGSET && address.addr() == EXTENDED_REGISTERS && !data.is_null() {
        // SAFETY: with this request `data` is an `iovec` of the registers.
        let given = unsafe { data.cast::<iovec>().read() };
        // SAFETY: likewise.
        if let Some(result) = unsafe { set_filled_up(pid, given) } {
            return result;
        }
    }
    let mut word: c_long = 0;
    // The system call writes the word that the C library's function returns.
    let peek = matches!(
        request,
        libc::PTRACE_PEEKTEXT | libc::PTRACE_PEEKDATA | libc::PTRACE_PEEKUSER
    );
    let data = if peek { (&raw mut word).cast() } else { data };
    // SAFETY: the caller keeps the contract; `word` outlives the call.
    let result = unsafe { system_call(request, pid, address, data) };
    if peek && result >= 0 {
        // SAFETY: `errno` is this thread's. It tells a word of -1 from a failure.
        unsafe { *libc::__errno_location() = 0 };
        return word;
    }
    result
}

/// Sets the extended registers if fewer are `given` than the kernel takes.
///
/// # Safety
/// `given` is readable.
unsafe fn set_filled_up(pid: pid_t, given: iovec) -> Option<c_long> {
    if REGISTERS.in_use.swap(true, Ordering::Acquire) {
        return None;
    }
    let bytes = REGISTERS.bytes.get();
    let mut registers = iovec {
        iov_base: bytes.cast(),
        iov_len: ROOM,
    };
    let address = EXTENDED_REGISTERS as *mut c_void;
    if ALL.load(Ordering::Relaxed) == 0 {
        // SAFETY: `registers` has room; the kernel writes how many bytes it used.
        let got = unsafe { system_call(libc::PTRACE_GETREGSET, pid, address, (&raw mut registers).cast()) };
        if got == 0 {
            ALL.store(registers.iov_len, Ordering::Relaxed);
        }
        // SAFETY: `in_use` makes the bytes this thread's.
        unsafe { bytes.write_bytes(0, 1) };
    }
    registers.iov_len = ALL.load(Ordering::Relaxed);
    let result = (given.iov_len < registers.iov_len).then(|| {
        // SAFETY: the caller promised so many readable bytes, and there is room for them. What is behind them
        // stays zero, as User Mode Linux always gives the same length.
        unsafe {
            bytes
                .cast::<u8>()
                .copy_from_nonoverlapping(given.iov_base.cast(), given.iov_len);
            system_call(libc::PTRACE_SETREGSET, pid, address, (&raw mut registers).cast())
        }
    });
    REGISTERS.in_use.store(false, Ordering::Release);
    result
}

/// # Safety
/// As `ptrace(2)`'s.
unsafe fn system_call(request: c_uint, pid: pid_t, address: *mut c_void, data: *mut c_void) -> c_long {
    // SAFETY: the caller keeps the contract.
    unsafe {
        libc::syscall(
            libc::SYS_ptrace,
            c_long::from(request),
            c_long::from(pid as c_int),
            address,
            data,
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::ptr::null_mut;

    /// A child that stands at its first instruction.
    fn stopped_child() -> (std::process::Child, pid_t) {
        let mut command = Command::new("true");
        // SAFETY: one system call, which allocates nothing.
        unsafe {
            command.pre_exec(|| {
                ptrace(libc::PTRACE_TRACEME, 0, null_mut(), null_mut());
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        let pid = child.id() as pid_t;
        let mut status = 0;
        // SAFETY: the status is written to a variable.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert!(libc::WIFSTOPPED(status));
        (child, pid)
    }

    #[test]
    fn fewer_registers_than_the_host_has_can_be_set() {
        let (mut child, pid) = stopped_child();
        // What every x86-64 processor has: 512 bytes of FXSAVE and the header of XSAVE.
        let mut room = [0u8; 576];
        let mut registers = iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        };
        let data = (&raw mut registers).cast();
        let address = EXTENDED_REGISTERS as *mut c_void;
        // SAFETY: the requests write to, and read from, `room`.
        unsafe {
            assert_eq!(ptrace(libc::PTRACE_GETREGSET, pid, address, data), 0);
            assert_eq!(
                system_call(libc::PTRACE_SETREGSET, pid, address, data),
                -1,
                "the kernel takes less than all"
            );
            // The components behind the header were not read, so they are said to be as after a reset.
            room[512..520].copy_from_slice(&3u64.to_ne_bytes());
            assert_eq!(ptrace(libc::PTRACE_SETREGSET, pid, address, data), 0);
            assert_eq!(ptrace(libc::PTRACE_CONT, pid, null_mut(), null_mut()), 0);
        }
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_word_is_returned_and_a_failure_told_from_it() {
        let (mut child, pid) = stopped_child();
        // SAFETY: words of the child's own registers; of no memory.
        unsafe {
            let instruction = 8 * libc::RIP as usize;
            assert_ne!(
                ptrace(libc::PTRACE_PEEKUSER, pid, instruction as *mut c_void, null_mut()),
                -1
            );
            assert_eq!(*libc::__errno_location(), 0);
            assert_eq!(ptrace(libc::PTRACE_PEEKDATA, pid, null_mut(), null_mut()), -1);
            assert_ne!(*libc::__errno_location(), 0);
            assert_eq!(ptrace(libc::PTRACE_CONT, pid, null_mut(), null_mut()), 0);
        }
        assert!(child.wait().unwrap().success());
    }
}
