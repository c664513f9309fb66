//! What to do when mapped memory turns out to be gone.
//!
//! The handler may run at any instruction that touches guest memory, in any thread. It reads a fixed table of
//! atomics and makes one system call; both are allowed in a signal handler.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Most mappings at a time; 4,096 ports with four regions each.
const PLACES: usize = 16 * 1024;

struct Place {
    start: AtomicUsize,
    /// 0 when the place is free, 1 while it is being written.
    len: AtomicUsize,
    broken: AtomicBool,
}

static TABLE: [Place; PLACES] = [const {
    Place {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
    }
}; PLACES];

static FAULTS: AtomicUsize = AtomicUsize::new(0);

/// Number of mappings lost so far in this process. A cheap check whether it is worth asking
/// [`GuestMemory::is_broken`](crate::GuestMemory::is_broken).
#[inline]
pub fn fault_count() -> usize {
    FAULTS.load(Ordering::Relaxed)
}

/// A mapping's entry in the table.
#[derive(Debug)]
pub(crate) struct Registration(Option<usize>);

impl Registration {
    pub(crate) fn new(start: usize, len: usize) -> Self {
        let place = TABLE.iter().position(|place| {
            place
                .len
                .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        });
        if let Some(index) = place {
            TABLE[index].start.store(start, Ordering::Relaxed);
            TABLE[index].broken.store(false, Ordering::Relaxed);
            TABLE[index].len.store(len, Ordering::Release);
        }
        Registration(place)
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.0
            .is_some_and(|index| TABLE[index].broken.load(Ordering::Acquire))
    }

    pub(crate) fn clear(&mut self) {
        if let Some(index) = self.0.take() {
            TABLE[index].len.store(0, Ordering::Release);
        }
    }
}

/// Installs the SIGBUS handler for the whole process. A SIGBUS anywhere else keeps its meaning: it kills.
pub fn survive_truncation() -> std::io::Result<()> {
    // SAFETY: `action` is plain data for which zero is valid; the handler has the signature that SA_SIGINFO
    // asks for and does only what a signal handler may.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut())
    };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

extern "C" fn on_bus_error(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler, with an address for SIGBUS.
    let address = unsafe { (*info).si_addr() } as usize;
    for place in &TABLE {
        let (len, start) = (
            place.len.load(Ordering::Acquire),
            place.start.load(Ordering::Relaxed),
        );
        if len <= 1 || address.wrapping_sub(start) >= len {
            continue;
        }
        // SAFETY: replaces exactly a mapping that a `Region` holds (it clears its entry before unmapping), by
        // memory of the same size and protection; mmap is a plain system call here.
        let mapped = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if mapped != libc::MAP_FAILED {
            place.broken.store(true, Ordering::Release);
            FAULTS.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
    // Not guest memory: die as without a handler, at the same instruction.
    // SAFETY: resetting a signal's action is allowed in a handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}
