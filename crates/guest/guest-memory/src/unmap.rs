//! Unmapping apart from forwarding.
//!
//! The last reference to a departed guest's memory may be that of a packet, which a forwarding thread drops.
//! Unmapping then walks the page tables of the whole region and, if the VMM has gone, frees the file's pages:
//! for a large guest that takes seconds, which other guests' packets would wait for. So mappings are handed
//! to a thread that does nothing else. They are counted until they are gone (`budget.rs`), so that not more
//! wait here than are allowed.

use crate::mapping::Mapping;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

static UNMAPPER: OnceLock<Sender<Mapping>> = OnceLock::new();

/// Handed over and not unmapped yet.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Starts the thread that unmaps from now on, as long as the process lives. Without it, the thread that drops
/// the last reference unmaps.
///
/// # Errors
/// The thread cannot be started.
pub fn unmap_apart() -> std::io::Result<()> {
    let (sender, mappings) = channel::<Mapping>();
    if UNMAPPER.set(sender).is_ok() {
        std::thread::Builder::new()
            .name("unmapper".into())
            .stack_size(64 * 1024)
            .spawn(move || {
                for mapping in mappings {
                    #[cfg(test)]
                    pause::here();
                    drop(mapping);
                    WAITING.fetch_sub(1, Ordering::Relaxed);
                }
            })?;
    }
    Ok(())
}

/// Unmaps, soon.
pub(crate) fn hand_over(mapping: Mapping) {
    if let Some(unmapper) = UNMAPPER.get() {
        WAITING.fetch_add(1, Ordering::Relaxed);
        // The mapping comes back, and is dropped here, only if the thread could not be started.
        if unmapper.send(mapping).is_err() {
            WAITING.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether something is still to be unmapped.
pub(crate) fn is_waiting() -> bool {
    WAITING.load(Ordering::Relaxed) > 0
}

/// Lets a test hold the thread up.
#[cfg(test)]
pub(crate) mod pause {
    use std::sync::{Mutex, PoisonError};

    pub static HOLD: Mutex<()> = Mutex::new(());

    pub(super) fn here() {
        drop(HOLD.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
