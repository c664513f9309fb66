//! State that all forwarding threads share.

use crate::account::Ledger;
use crate::placement::Placement;
use crate::watchdog::{Pulse, Stuck, Watchdog};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The forwarding threads of a process.
pub struct ForwardingThreads {
    /// The placement of work on threads.
    pub placement: Placement,
    /// The accounts of the threads.
    pub ledger: Ledger,
    pub(crate) watchdog: Arc<Watchdog>,
    /// Whether the threads are to end.
    pub(crate) ending: Arc<AtomicBool>,
}

impl ForwardingThreads {
    /// Without threads for now.
    pub fn new(placement: Placement) -> Arc<ForwardingThreads> {
        Arc::new(ForwardingThreads {
            placement,
            ledger: Ledger::new(),
            watchdog: Arc::default(),
            ending: Arc::default(),
        })
    }

    /// Starts the watchdog. To be called before any other of these threads is started. `report` is called
    /// by the watchdog's thread, again and again for each worker that makes no progress.
    ///
    /// # Errors
    /// The thread cannot be started, or the signal's handler cannot be installed.
    pub fn watch(&self, report: impl Fn(Stuck) + Send + 'static) -> std::io::Result<()> {
        self.watchdog.start(&self.ending, report)
    }

    /// Watches the calling thread. Needed for threads that are no workers: workers are watched anyway.
    pub fn pulse(&self) -> Arc<Pulse> {
        Pulse::new(&self.watchdog, false)
    }

    /// Watches the calling thread, a worker.
    pub(crate) fn worker_pulse(&self) -> Arc<Pulse> {
        Pulse::new(&self.watchdog, true)
    }

    /// Has all workers end soon.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }
}
