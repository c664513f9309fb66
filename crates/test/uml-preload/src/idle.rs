//! An idle loop that misses no wake-up.
//!
//! A guest that has nothing to do waits for a signal in `sigsuspend` (`os_idle_sleep` in
//! `arch/um/os-Linux/time.c`, Linux 6.1). Interrupts are signals (`SIGIO`), for which the guest then asks an
//! epoll descriptor. Two of them are lost, and the guest sleeps until its next timer, which is up to 10 ms
//! away, or until what it waits for times out:
//!
//! * one that comes after the idle loop disabled interrupts, and before it waits: it is only noted, and the
//!   wait begins;
//! * one of a TAP whose file is not readable yet: the host's driver sends the signal first (`tun_net_xmit` in
//!   `drivers/net/tun.c`), so a guest that is quick finds nothing.
//!
//! Our `sigsuspend` looks at the epoll descriptor before it waits. After a wake-up for nothing it waits for
//! the descriptor as well as for signals. It does not always do so, since that takes longer: guests are to be
//! as fast as they are without this library.

use libc::{SIGIO, c_int, pid_t, pollfd, sigset_t};
use std::mem::MaybeUninit;
use std::ptr::{from_mut, null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Bytes of a signal set in system calls.
const SIGNAL_SET: usize = 8;

/// The epoll descriptor of interrupts, and the process that has them: helper processes of User Mode Linux
/// wait for signals as well.
static INTERRUPTS: AtomicI32 = AtomicI32::new(-1);
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Whether the last wake-up was for nothing.
static FOR_NOTHING: AtomicBool = AtomicBool::new(false);

/// `epoll_create(2)`, which User Mode Linux calls once.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn epoll_create(_size: c_int) -> c_int {
    // SAFETY: it takes no memory of ours.
    let (descriptor, process) = unsafe { (libc::epoll_create1(0), libc::getpid()) };
    INTERRUPTS.store(descriptor, Ordering::Relaxed);
    OWNER.store(process, Ordering::Relaxed);
    descriptor
}

/// `sigsuspend(2)`, which also returns when the epoll descriptor is readable. A `SIGIO` tells the guest so.
///
/// # Safety
/// As the C library's: `mask` is a signal set.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigsuspend(mask: *const sigset_t) -> c_int {
    let interrupts = INTERRUPTS.load(Ordering::Relaxed);
    // SAFETY: it takes no memory of ours.
    let process = unsafe { libc::getpid() };
    if interrupts < 0 || process != OWNER.load(Ordering::Relaxed) {
        // SAFETY: the caller promised a set.
        return unsafe { wait_for_signal(mask) };
    }
    // A signal from here on is delivered while waiting, not before.
    let before = block(SIGIO);
    // SAFETY: the caller promised a set.
    unsafe { wait(interrupts, process, mask) };
    // SAFETY: the set lives here. `errno` is this thread's.
    unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &raw const before, null_mut());
        *libc::__errno_location() = libc::EINTR;
    }
    -1
}

/// Waits for a signal or for the descriptor.
///
/// # Safety
/// `mask` is a signal set.
unsafe fn wait(interrupts: c_int, process: pid_t, mask: *const sigset_t) {
    let readable = if FOR_NOTHING.load(Ordering::Relaxed) {
        let mut asked = question(interrupts);
        // SAFETY: one question, which lives here; the caller promised a set.
        unsafe { libc::ppoll(from_mut(&mut asked), 1, null(), mask) > 0 }
    } else if is_readable(interrupts) {
        true
    } else {
        // SAFETY: the caller promised a set.
        unsafe { wait_for_signal(mask) };
        false
    };
    if readable {
        // SAFETY: a signal for this process.
        unsafe { libc::kill(process, SIGIO) };
    }
    FOR_NOTHING.store(!readable && !is_readable(interrupts), Ordering::Relaxed);
}

/// # Safety
/// `mask` is a signal set.
unsafe fn wait_for_signal(mask: *const sigset_t) -> c_int {
    // SAFETY: the caller promised a set. It returns -1.
    unsafe { libc::syscall(libc::SYS_rt_sigsuspend, mask, SIGNAL_SET) as c_int }
}

fn question(descriptor: c_int) -> pollfd {
    pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    }
}

fn is_readable(descriptor: c_int) -> bool {
    let mut asked = question(descriptor);
    // SAFETY: one question, which lives here.
    unsafe { libc::poll(from_mut(&mut asked), 1, 0) > 0 }
}

/// Blocks a signal, and returns the set that was blocked before.
fn block(signal: c_int) -> sigset_t {
    let mut set = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: the first two calls fill `set`, the third one reads it and fills `before`.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::io::{Read, Write, pipe};
    use std::os::fd::AsRawFd;
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    extern "C" fn ignore(_signal: c_int) {}

    /// All signals unblocked.
    fn nothing_blocked() -> sigset_t {
        let mut set = MaybeUninit::uninit();
        // SAFETY: the call fills the set.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        }
    }

    /// One test, since there is one descriptor per process.
    #[test]
    fn what_is_readable_and_signals_wake_it() {
        let handler: extern "C" fn(c_int) = ignore;
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(SIGIO, handler as libc::sighandler_t) };
        let interrupts = epoll_create(1);
        let (mut reader, mut writer) = pipe().unwrap();
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        // SAFETY: both descriptors are open, and the event lives here.
        let added = unsafe {
            libc::epoll_ctl(
                interrupts,
                libc::EPOLL_CTL_ADD,
                reader.as_raw_fd(),
                &raw mut event,
            )
        };
        assert_eq!(added, 0);

        let (woken, wake_ups) = mpsc::channel();
        let guest = thread::spawn(move || {
            let mask = nothing_blocked();
            for _ in 0..3 {
                // SAFETY: the set lives here.
                unsafe { sigsuspend(&raw const mask) };
                woken.send(()).unwrap();
            }
        });
        let (soon, long) = (Duration::from_millis(100), Duration::from_secs(20));

        // A signal while nothing is readable.
        assert!(wake_ups.recv_timeout(soon).is_err(), "it waits");
        // SAFETY: the thread lives.
        unsafe { libc::pthread_kill(guest.as_pthread_t(), SIGIO) };
        wake_ups.recv_timeout(long).unwrap();
        // It was for nothing, and no signal says that the descriptor is readable now.
        assert!(wake_ups.recv_timeout(soon).is_err(), "it waits");
        writer.write_all(b"1").unwrap();
        wake_ups.recv_timeout(long).unwrap();
        // Readable before it waits.
        wake_ups.recv_timeout(long).unwrap();
        guest.join().unwrap();
        reader.read_exact(&mut [0]).unwrap();
    }
}
