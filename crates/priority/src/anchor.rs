//! Keeps a real-time thread on a core.
//!
//! The kernel moves a real-time thread that is woken by another one to some other core, unless it is bound to its own. A
//! packet that several threads pass on, one after the other, would then go from core to core, and wait for an interrupt
//! between processors each time.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds the calling thread to one of its cores, or lets it go.
#[derive(Debug)]
pub(crate) struct Anchor {
    /// The cores on which the thread may run.
    allowed: CpuSet,
    /// The one of them on which it is to stay.
    home: CpuSet,
    bound: bool,
}

impl Anchor {
    /// For the thread that serves the interface of a port. None if there is nothing to choose: the thread may run on one
    /// core only, or on more than this can represent.
    pub fn new(port: u32) -> Option<Anchor> {
        let allowed = sched_getaffinity(None).ok()?;
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let count = allowed.count() as usize;
        let mut home = CpuSet::new();
        home.set(cpus.nth(placement_config::home(count, port))?);
        (count > 1).then_some(Anchor {
            allowed,
            home,
            bound: false,
        })
    }

    /// Binds the thread, or lets it go.
    pub fn set(&mut self, bound: bool) {
        if bound == self.bound {
            return;
        }
        self.bound = bound;
        let set = if bound { &self.home } else { &self.allowed };
        // Cores can have gone offline. Then the kernel has chosen others for the thread.
        if let Err(error) = sched_setaffinity(None, set) {
            log::warn!("cannot choose the core: {error}");
        }
    }
}
