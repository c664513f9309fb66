//! Choosing a helper: the nearest, and among those equally near the best [`Kind`]. Among equals the vNIC's hash decides,
//! by where the topology's order begins. A search looks at each core once or twice, and only as far as it has to.
//!
//! A helper that has something to do already is none: work that waits for it is done later than at home. The paper
//! (section 5.2.3) takes idle modules of the receiver's node, then of other nodes, and no core beside a busy
//! one. Here, idle cores of busy modules come before other nodes: what a helper on another node writes reaches the
//! receiver so slowly that in the simulator it is better not to be helped.

use super::Policy;
use crate::topology::{Cpu, Reach};
use crate::view::{CoreState, View, Vnic};

/// What makes a helper, from the best to the last resort.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// A worker that polls and has an empty buffer: it costs no more than a message.
    Polling,
    /// A sleeping one in an idle module.
    IdleModule,
    /// A sleeping one in a module that is not idle.
    BusyModule,
    /// A sleeping one on a core to which a vCPU is expected back.
    Lent,
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
        let may_wake = saved_ns > self.costs.wake_waker_ns;
        let mut best: Option<(Reach, Kind, Cpu)> = None;
        for (reach, module) in self.topology.helpers(near, spread(vnic)) {
            let too_far = reach == Reach::OtherNode && !self.config.other_nodes;
            let found = best.is_some_and(|(nearest, kind, _)| nearest < reach || kind == Kind::Polling);
            if too_far || found {
                break;
            }
            let others = module.iter().filter(|cpu| **cpu != here && **cpu != near);
            for cpu in others.copied().filter(|cpu| self.topology.may_use(*cpu)) {
                let kind = self.kind(view, module, cpu);
                let kind = kind.filter(|kind| may_wake || *kind == Kind::Polling);
                if kind.is_some_and(|kind| best.is_none_or(|(_, least, _)| kind < least)) {
                    best = kind.map(|kind| (reach, kind, cpu));
                }
            }
        }
        best.map(|(.., cpu)| cpu)
    }

    /// What kind of helper the core of that module would be, if any.
    fn kind(&self, view: &impl View, module: &[Cpu], cpu: Cpu) -> Option<Kind> {
        let rests = |cpu: &Cpu| self.core(view, *cpu) == CoreState::Idle && !view.expects_vcpu(*cpu);
        match self.core(view, cpu) {
            CoreState::Worker {
                depth: 0,
                polling: true,
            } if !view.wanted(cpu) => Some(Kind::Polling),
            CoreState::Idle if module.iter().all(rests) => Some(Kind::IdleModule),
            CoreState::Idle if !self.config.busy_modules => None,
            CoreState::Idle if rests(&cpu) => Some(Kind::BusyModule),
            CoreState::Idle => Some(Kind::Lent),
            CoreState::Worker { .. } | CoreState::Guest | CoreState::Other => None,
        }
    }
}

/// Spreads vNICs over equally good modules. Multiples of the golden ratio (Knuth's multiplicative hash) lie apart for
/// neighbours in number, often a pair that talks, and cover a range evenly for vNICs numbered in sequence.
fn spread(vnic: Vnic) -> u32 {
    vnic.0.wrapping_mul(0x9E37_79B9)
}
