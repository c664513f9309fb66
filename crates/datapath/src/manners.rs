//! Whether a worker that is woken takes its core from who has it.
//!
//! A kick wakes the worker of the sender's core while the sender runs there. Mostly it blocks a moment later, and has more
//! to send until then: a worker that waits for that finds everything at once, and nobody loses time to switches between
//! the two (Hyper-Switch 3.5). A sender that goes on instead would keep the worker waiting for a whole time slice,
//! milliseconds. So who got the core only when somebody had used up a slice does not wait for a while.

use crate::executor::Executor;
use std::sync::Arc;
use vm_state::VmState;

/// How long a worker does not wait, once it has waited in vain: a slice is some 4 ms, so what is still waited in vain is
/// a small part of the time.
const HURRY_MS: u64 = 250;

/// See the module's description. Belongs to the worker's thread.
pub(crate) struct Manners {
    executor: Arc<Executor>,
    cpu: u32,
    /// When to wait again.
    hurries_until_ms: Option<u64>,
}

impl Manners {
    /// The calling thread, which is bound to the executor's core, waits from now on; `None` if the system does not let
    /// it, or there is no core.
    pub fn new(executor: &Arc<Executor>) -> Option<Manners> {
        let cpu = executor.cpu?;
        if let Err(error) = sandbox::preempt_others(false) {
            log::warn!("workers take guests' cores at once: {error}");
            return None;
        }
        Some(Manners {
            executor: executor.clone(),
            cpu: cpu.0.into(),
            hurries_until_ms: None,
        })
    }

    /// The thread was woken and has its core.
    pub fn woken(&mut self, facts: &VmState, now_ms: u64) {
        match self.hurries_until_ms {
            None if facts.preempted(self.cpu) => self.hurry(Some(now_ms + HURRY_MS)),
            Some(until_ms) if until_ms <= now_ms => self.hurry(None),
            _ => {}
        }
    }

    fn hurry(&mut self, until_ms: Option<u64>) {
        let hurries = until_ms.is_some();
        // It worked the first time.
        if sandbox::preempt_others(hurries).is_ok() {
            self.hurries_until_ms = until_ms;
            self.executor.set_kept_out(hurries);
        }
    }
}
