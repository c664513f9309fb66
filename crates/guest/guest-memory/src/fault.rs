//! Survives accesses to mapped memory that has vanished.
//!
//! The handler may run at any instruction that touches guest memory, in any thread. It reads a fixed table of
//! atomics and makes one system call; both are allowed in a signal handler.
//!
//! Each place of the table is a sequence lock: a version that is odd while start and length change. A reader
//! that sees two versions, or an odd one, takes nothing from that place, so it never joins one mapping's
//! start with another one's length. It need not look again: the mapping that it is after is held by the
//! thread that faulted, was entered before that thread could touch it, and does not change meanwhile. Entries
//! are cleared before their mapping goes, and so before their addresses can belong to another mapping.

use crate::budget::ALL_REGIONS;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, PoisonError};

struct Place {
    /// Odd while the others change.
    version: AtomicUsize,
    start: AtomicUsize,
    /// 0 when the place is free.
    len: AtomicUsize,
    broken: AtomicBool,
}

impl Place {
    /// Enters a mapping, or nothing. Only for the place's owner.
    fn write(&self, start: usize, len: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // What follows is not seen before the odd version.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.broken.store(false, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// The mapping's start and length, if they belong together.
    fn read(&self) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let (start, len) = (
            self.start.load(Ordering::Relaxed),
            self.len.load(Ordering::Relaxed),
        );
        // The second look comes after the loads.
        fence(Ordering::Acquire);
        let whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        whole.then_some((start, len))
    }
}

static TABLE: [Place; ALL_REGIONS] = [const {
    Place {
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
    }
}; ALL_REGIONS];

/// Places that were ever used: those before this one.
static END: AtomicUsize = AtomicUsize::new(0);

/// Places before the end that are free again. Never locked by the handler.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

static FAULTS: AtomicUsize = AtomicUsize::new(0);

/// Number of mappings lost so far in this process: a cheap check whether
/// [`GuestMemory::is_broken`](crate::GuestMemory::is_broken) can have changed.
#[inline]
pub fn fault_count() -> usize {
    // A thread that reads a number also sees which mappings were lost up to it.
    FAULTS.load(Ordering::Acquire)
}

/// A mapping's entry in the table.
#[derive(Debug)]
pub(crate) struct Registration(Option<usize>);

impl Registration {
    pub(crate) fn new(start: usize, len: usize) -> Self {
        let place = {
            let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
            free.pop().or_else(|| {
                let end = END.load(Ordering::Relaxed);
                (end < ALL_REGIONS).then(|| {
                    END.store(end + 1, Ordering::Release);
                    end
                })
            })
        };
        if let Some(index) = place {
            TABLE[index].write(start, len);
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
            TABLE[index].write(0, 0);
            FREE.lock().unwrap_or_else(PoisonError::into_inner).push(index);
        }
    }
}

/// The mapping in which an address lies: its place, start and length.
fn find(address: usize) -> Option<(&'static Place, usize, usize)> {
    TABLE[..END.load(Ordering::Acquire)].iter().find_map(|place| {
        let (start, len) = place.read()?;
        (address.wrapping_sub(start) < len).then_some((place, start, len))
    })
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
    if let Some((place, start, len)) = find(address) {
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
            // Two threads may have found the same hole.
            if !place.broken.swap(true, Ordering::Release) {
                FAULTS.fetch_add(1, Ordering::Release);
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Places change between a large mapping and a small one far above it; an address shortly behind the
    /// small one is in neither, but would be in what has the one's start and the other's length. (No real
    /// mapping is up there.)
    #[test]
    fn no_mapping_is_made_of_two() {
        const LARGE: (usize, usize) = (1 << 52, 1 << 40);
        const SMALL: (usize, usize) = (1 << 56, 1 << 12);
        const BETWEEN: usize = SMALL.0 + (1 << 20);
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !end.load(Ordering::Relaxed) {
                        for (start, len) in [LARGE, SMALL] {
                            let mut registration = Registration::new(start, len);
                            assert!(registration.is_valid());
                            registration.clear();
                        }
                    }
                });
            }
            let mut seen = [0u32; 2];
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            // Enough looks, and both were there at some of them.
            for look in 0.. {
                if std::time::Instant::now() > deadline
                    || look >= 100_000 && seen.iter().all(|&count| count > 100)
                {
                    break;
                }
                if let Some((_, start, len)) = find(BETWEEN) {
                    end.store(true, Ordering::Relaxed);
                    panic!("a mapping of {len:#x} bytes at {start:#x}");
                }
                seen[0] += u32::from(find(LARGE.0 + 5).is_some());
                seen[1] += u32::from(find(SMALL.0 + 5).is_some());
            }
            end.store(true, Ordering::Relaxed);
            assert!(seen.iter().all(|&count| count > 100), "{seen:?}");
        });
    }
}
