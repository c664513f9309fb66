//! Choosing a helper. There are four classes; within a class the nearest module counts, and among equally near ones
//! the vNIC's hash decides:
//!
//! 1. a worker on the receiver's node that polls and has an empty buffer: it costs no more than a message;
//! 2. an idle core of an idle module, if the work is worth waking it;
//! 3. a worker that is awake on a core nobody else wants, the one with the fewest messages;
//! 4. if allowed, an idle core beside busy ones, if the work is worth waking it.
//!
//! A search looks at each core once or twice.

use super::Policy;
use crate::topology::Cpu;
use crate::view::{CoreState, View, Vnic};

/// Messages that may wait in a helper's buffer; with more, one's own core is faster.
const DEEPEST: u16 = 2;

/// The best of each class so far; modules come from near to far, so the first one stays.
#[derive(Default)]
struct Found {
    polling: Option<Cpu>,
    idle: Option<Cpu>,
    awake: Option<(u16, Cpu)>,
    beside_busy: Option<Cpu>,
}

impl Policy {
    /// A core other than `here` that helps a vNIC whose vCPU is at `near` with work that would take `saved_ns` here.
    pub(super) fn helper(
        &self,
        view: &impl View,
        here: Cpu,
        near: Cpu,
        vnic: Vnic,
        saved_ns: u64,
    ) -> Option<Cpu> {
        if !self.config.offload {
            return None;
        }
        let mut found = Found::default();
        for module in self.topology.helpers(near, spread(vnic)) {
            self.look_at(view, module, here, &mut found);
            if found
                .polling
                .is_some_and(|cpu| self.topology.same_node(cpu, near))
            {
                return found.polling;
            }
        }
        let awake = found.awake.map(|(_, cpu)| cpu);
        if saved_ns <= self.costs.wake_waker_ns {
            return awake;
        }
        let beside_busy = found.beside_busy.filter(|_| self.config.busy_siblings);
        found.idle.or(awake).or(beside_busy)
    }

    fn look_at(&self, view: &impl View, module: &[Cpu], here: Cpu, found: &mut Found) {
        let all_idle = module.iter().all(|cpu| self.core(view, *cpu) == CoreState::Idle);
        let candidates = module.iter().copied();
        for cpu in candidates.filter(|cpu| *cpu != here && self.topology.location(*cpu).is_some()) {
            match self.core(view, cpu) {
                CoreState::Idle if all_idle => found.idle = found.idle.or(Some(cpu)),
                CoreState::Idle => found.beside_busy = found.beside_busy.or(Some(cpu)),
                CoreState::Worker { depth, polling } if depth <= DEEPEST && !view.wanted(cpu) => {
                    if polling && depth == 0 {
                        found.polling = found.polling.or(Some(cpu));
                    }
                    if found.awake.is_none_or(|(least, _)| depth < least) {
                        found.awake = Some((depth, cpu));
                    }
                }
                CoreState::Worker { .. } | CoreState::Guest | CoreState::Other => {}
            }
        }
    }
}

/// Spreads vNICs over equally good modules. Multiples of the golden ratio (Knuth's multiplicative hash) lie apart for
/// neighbours in number, often a pair that talks, and cover a range evenly for vNICs numbered in sequence.
fn spread(vnic: Vnic) -> u32 {
    vnic.0.wrapping_mul(0x9E37_79B9)
}
