//! Keeps a real-time thread on a core.
//!
//! The kernel moves a real-time thread that is woken by another one to some other core, unless it is bound to
//! its own. A packet that several threads pass on, one after the other, would then go from core to core, and
//! wait for an interrupt between processors each time.
//!
//! Nor does the kernel ever move such a thread to the core from which it is woken, though to wake another
//! core costs more than a packet. A thread that knows that core [stays](Anchor::stay_on) there.

use crate::kernel;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::{Duration, Instant};

/// Time for which a thread is bound before the kernel may choose its core again.
pub(crate) const HOLD: Duration = Duration::from_secs(1);

/// Binds the calling thread to the core that it has chosen. A thread that has chosen none is bound to its
/// present core, and released for one sleep after each [`HOLD`]: if another task wants its core when it
/// wakes, the kernel chooses a better one.
#[derive(Debug)]
pub(crate) struct Anchor {
    /// The cores on which the thread may run.
    allowed: CpuSet,
    /// The time since which it is bound; `None` if it is not.
    held: Option<Instant>,
    /// The core that the thread has chosen.
    chosen: Option<usize>,
}

impl Anchor {
    /// `None` if the thread may run on one core only, or if its set of cores is larger than `CpuSet` can
    /// hold.
    pub fn new() -> Option<Anchor> {
        let allowed = sched_getaffinity(None).ok().filter(|set| set.count() > 1)?;
        Some(Anchor {
            allowed,
            held: None,
            chosen: None,
        })
    }

    /// To be called before the thread sleeps in the real-time class: binds it, or releases it after [`HOLD`].
    pub fn hold(&mut self, now: Instant) {
        match self.held {
            Some(_) if self.chosen.is_some() => {}
            Some(since) if now.saturating_duration_since(since) >= HOLD => self.release(),
            Some(_) => {}
            None => {
                let mut core = CpuSet::new();
                core.set(self.chosen.unwrap_or_else(kernel::cpu));
                bind(&core);
                self.held = Some(now);
            }
        }
    }

    /// Chooses the core to which the thread is bound from its next sleep on. A core on which it may not run
    /// is ignored.
    pub fn stay_on(&mut self, core: usize) {
        if self.chosen != Some(core) && core < CpuSet::MAX_CPU && self.allowed.is_set(core) {
            self.chosen = Some(core);
            self.release();
        }
    }

    /// Lets the thread run on all its cores again.
    pub fn release(&mut self) {
        if self.held.take().is_some() {
            bind(&self.allowed);
        }
    }
}

/// Binds the calling thread. This fails if the cores have gone offline; the kernel has chosen others for the
/// thread then.
fn bind(set: &CpuSet) {
    if let Err(error) = sched_setaffinity(None, set) {
        log::warn!("cannot choose the core: {error}");
    }
}
