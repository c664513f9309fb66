//! Choosing a helper: the nearest core, and among equally near ones the best [`Kind`]. Among equals the
//! vNIC's hash decides, which determines where the search begins. A worker that polls and has an empty buffer
//! comes first: it costs no more than a message. The search reads the cores' states as bits, 64 with a load
//! or a few, and examines only cores whose bit is set.
//!
//! A worker that has work already is no helper: work that waits for it is done later than at home. The paper
//! (section 5.2.3) takes idle modules of the receiver's node, then of other nodes, and no core beside a busy
//! one. Here, idle cores of busy modules come before other nodes: data that a helper on another node writes
//! reach the receiver so slowly that in the simulator it is better to have no helper. Where the configuration
//! asks for the paper's criteria, a worker that copies in an idle module of the receiver's node is a helper
//! already: it goes on, and does not ask other nodes.

use super::Policy;
use crate::topology::{Cpu, Reach, Tier};
use crate::view::{CoreState, View, VnicId};

/// The kinds of idle cores that can help, from the best to the last resort.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// A core in an idle module.
    IdleModule,
    /// A core in a module that is not idle.
    BusyModule,
    /// A core to which a vCPU is expected back.
    Lent,
}

/// Most cores that are examined in one reach, for workers that poll and for idle cores each. So the time of a
/// search does not depend on the number of cores and guests; if all of these are bad, a better one may be
/// missed.
pub(super) const LOOKS: u32 = 8;

impl Policy {
    /// A core other than `here` that helps a vNIC whose vCPU is on core `near`, with work that would take
    /// `saved_ns` here.
    pub(super) fn helper(
        &self,
        view: &impl View,
        here: Cpu,
        near: Cpu,
        vnic: VnicId,
        saved_ns: u64,
    ) -> Option<Cpu> {
        if !self.config.offload {
            return None;
        }
        let may_wake = saved_ns > self.costs.wake_waker_ns && self.config.vm_state;
        let search = Search {
            policy: self,
            here,
            near,
            hash: spread(vnic),
        };
        for tiers in self.topology.tiers(near).chunk_by(|a, b| a.reach == b.reach) {
            let helps_near = || {
                here != near && self.topology.reach(here, near) != Reach::OtherNode && self.helps(view, here)
            };
            if tiers[0].reach == Reach::OtherNode && (!self.config.other_nodes || helps_near()) {
                break;
            }
            let found = match search.polling(view, tiers) {
                None if may_wake => search.idle(view, tiers),
                found => found,
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Whether the worker that works on this core would be a helper if it were idle: its module is idle, and
    /// no other task wants the core.
    pub(super) fn helps(&self, view: &impl View, cpu: Cpu) -> bool {
        let works = matches!(view.core(cpu), CoreState::Worker { .. });
        works && !view.wanted(cpu) && self.has_idle_module(view, cpu)
    }

    /// Whether no vCPU is expected on any core of the module, and all but this one are idle.
    fn has_idle_module(&self, view: &impl View, cpu: Cpu) -> bool {
        let is_idle = |cpu: Cpu| view.idle(usize::from(cpu.0) / 64, 1 << (cpu.0 % 64)) != 0;
        let is_free = |other: &Cpu| (*other == cpu || is_idle(*other)) && !view.expects_vcpu(*other);
        self.topology.module(cpu).iter().all(is_free)
    }
}

/// A search for a helper.
struct Search<'a> {
    policy: &'a Policy,
    here: Cpu,
    near: Cpu,
    hash: u32,
}

impl Search<'_> {
    fn polling(&self, view: &impl View, tiers: &[Tier]) -> Option<Cpu> {
        let policy = self.policy;
        let is_good = |cpu: Cpu| policy.config.busy_modules || policy.has_idle_module(view, cpu);
        let helps = |cpu: Cpu| policy.polls_free(view, cpu) && is_good(cpu);
        let mut found = None;
        self.visit(
            tiers,
            |word, among| view.polling(word, among),
            |cpu| {
                found = Some(cpu).filter(|cpu| helps(*cpu));
                found.is_none()
            },
        );
        found
    }

    /// The best of the idle cores.
    fn idle(&self, view: &impl View, tiers: &[Tier]) -> Option<Cpu> {
        let mut best: Option<(Kind, Cpu)> = None;
        self.visit(
            tiers,
            |word, among| view.idle(word, among),
            |cpu| {
                if let Some(kind) = self.kind(view, cpu)
                    && best.is_none_or(|(least, _)| kind < least)
                    && view.core(cpu) == CoreState::Idle
                {
                    best = Some((kind, cpu));
                }
                !matches!(best, Some((Kind::IdleModule, _)))
            },
        );
        best.map(|(_, cpu)| cpu)
    }

    /// Calls `f` with the first cores that have a bit in `state`, until it returns false.
    fn visit(&self, tiers: &[Tier], state: impl Fn(usize, u64) -> u64, mut f: impl FnMut(Cpu) -> bool) {
        let mut looks = LOOKS;
        for tier in tiers {
            let start = tier.start(self.hash);
            let go_on = tier.visit(start, &state, |cpu| {
                if cpu == self.here || cpu == self.near {
                    return true;
                }
                looks -= 1;
                f(cpu) && looks > 0
            });
            if !go_on {
                return;
            }
        }
    }

    /// The kind of helper that the core would be, if it is idle.
    fn kind(&self, view: &impl View, cpu: Cpu) -> Option<Kind> {
        let policy = self.policy;
        if view.expects_vcpu(cpu) {
            Some(Kind::Lent).filter(|_| policy.config.busy_modules)
        } else if policy.has_idle_module(view, cpu) {
            Some(Kind::IdleModule)
        } else {
            Some(Kind::BusyModule).filter(|_| policy.config.busy_modules)
        }
    }
}

/// Spreads vNICs over equally good modules. Multiples of the golden ratio (Knuth's multiplicative hash) lie
/// apart for neighbours in number, often a pair that talks, and cover a range evenly for vNICs numbered in
/// sequence.
fn spread(vnic: VnicId) -> u32 {
    vnic.0.wrapping_mul(0x9E37_79B9)
}
