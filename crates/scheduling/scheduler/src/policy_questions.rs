//! Questions of a forwarding thread to the placement policy: which thread serves a kick, which one copies,
//! when a driver is notified, and when to give way. Threads that are no workers do not ask, nor do workers
//! that float.

use crate::executor::Executor;
use crate::home::{Home, Homes};
use crate::ring_id::RingId;
use crate::schedule::Schedule;
use placement::{Backlog, Cpu, Duty, Notify, VcpuState, View as _, VnicId, Work};
use std::sync::Arc;

/// The length of a receive queue that others fill as well: at least something.
pub const UNKNOWN_BACKLOG: Backlog = Backlog {
    packets: 1,
    bytes: 1500,
};

/// The thread that copies to a receiver.
pub enum Copier {
    /// The thread copies all packets itself.
    Here,
    /// The thread copies so many packets, and another one, which is to be told, copies the others.
    Elsewhere(usize, Arc<Executor>),
    /// Another thread, which copies to this receiver already.
    Busy,
}

/// No vNICs, for questions about cores only.
struct NoHomes;

impl Homes for NoHomes {
    fn home(&self, _vnic: VnicId) -> Option<&Home> {
        None
    }

    fn count(&self) -> u32 {
        0
    }

    fn nth(&self, _place: u32) -> Option<&Home> {
        None
    }
}

impl Schedule {
    /// Takes the ring that is served next: in the policy's order, the oldest among equals.
    pub(crate) fn next(&mut self, homes: &impl Homes) -> Option<RingId> {
        let placement = &self.shared.placement;
        if self.queue.len() < 2 || !placement.knows_vcpus() {
            return self.queue.pop();
        }
        let view = placement.view(homes);
        self.queue.pop_by(|ring| {
            let work = if ring.is_transmit() {
                Work::Switch(ring.vnic())
            } else {
                Work::Copy(ring.vnic())
            };
            placement.policy.rank(&view, work)
        })
    }

    /// Leaves a transmit ring to a better worker, if there is one. If that happens again and again, later
    /// kicks go there at once.
    pub(crate) fn sent_on(&self, vnic: VnicId, homes: &impl Homes) -> bool {
        let placement = &self.shared.placement;
        let Some(home) = homes.home(vnic).filter(|_| placement.knows_vcpus()) else {
            return false;
        };
        let wanted = placement.policy.switcher(&placement.view(homes), vnic);
        match placement.find(wanted, homes) {
            Some(better) if !self.is_me(&better) => {
                home.prefer(&better);
                better.send(RingId::transmit(vnic))
            }
            _ => {
                home.keep();
                false
            }
        }
    }

    /// Whether a task that is not ours waits for this core; `None` if it is not known.
    pub fn is_wanted_elsewhere(&self) -> Option<bool> {
        let placement = &self.shared.placement;
        let here = self.here().filter(|_| placement.knows_vcpus())?;
        let view = placement.view(&NoHomes);
        Some(placement.policy.must_give_way(&view, here, Duty::Helping))
    }

    /// Hands a transmit ring that is polled, and so gets no kicks, to a helper, if its guest has waited for
    /// this core often enough since `since_ns`, from when on this worker had no break in which a helper would
    /// have gone to sleep.
    pub(crate) fn handed_off(&self, home: &Home, homes: &impl Homes, since_ns: u64) -> bool {
        let placement = &self.shared.placement;
        let Some(here) = self.here() else { return false };
        let view = placement.view(homes);
        let times = home.count_wait(placement.now_ns(), since_ns);
        let helper = placement.policy.hand_off(&view, here, home.vnic(), times);
        let helper = helper.and_then(|helper| placement.find(helper, homes));
        let handed_off = helper.is_some_and(|helper| helper.hand(RingId::transmit(home.vnic())));
        if handed_off {
            home.forget_waits();
        }
        handed_off
    }

    /// Whether the guest must have threads that are not known: it waits for this core time and again, and all
    /// that are known sleep.
    pub(crate) fn misses_threads(&self, home: &Home, homes: &impl Homes) -> bool {
        let placement = &self.shared.placement;
        matches!(placement.view(homes).vcpu(home.vnic()), VcpuState::Blocked(_))
            && home.suspect_threads(placement.now_ns())
    }

    /// Leaves work for another core's guest to another thread, if this core is wanted.
    #[inline]
    pub(crate) fn gave_way(&mut self, ring: RingId, homes: &impl Homes) -> bool {
        match self.here() {
            Some(here) if self.shared.placement.knows_vcpus() => self.gave_way_on(here, ring, homes),
            _ => false,
        }
    }

    fn gave_way_on(&mut self, here: Cpu, ring: RingId, homes: &impl Homes) -> bool {
        let placement = &self.shared.placement;
        let (view, vnic) = (placement.view(homes), ring.vnic());
        if !view.wanted(here) {
            return false;
        }
        let duty = match view.vcpu(vnic) {
            VcpuState::Running(cpu) | VcpuState::Runnable(cpu) | VcpuState::Blocked(cpu) if cpu != here => {
                Duty::Helping
            }
            _ => Duty::Own,
        };
        if !placement.policy.must_give_way(&view, here, duty) {
            return false;
        }
        let successor = if ring.is_transmit() {
            placement.policy.switcher(&view, vnic)
        } else {
            placement.policy.successor(&view, here, vnic, UNKNOWN_BACKLOG)
        };
        let successor = placement
            .find(successor, homes)
            .filter(|successor| !self.is_me(successor));
        let sent = successor.is_some_and(|successor| successor.send(ring));
        self.progress.aborts += u64::from(sent);
        sent
    }

    /// Whether there is a choice of the thread that copies. If not, it is this one.
    pub fn chooses_copier(&self) -> bool {
        !self.shared.placement.floats() && self.me.is_some()
    }

    /// The thread that is to copy a backlog. To be asked where [`chooses_copier`](Self::chooses_copier).
    pub fn copier(&self, vnic: VnicId, homes: &impl Homes, backlog: Backlog) -> Copier {
        let placement = &self.shared.placement;
        let view = placement.view(homes);
        let here = self.here().unwrap_or(Cpu(u16::MAX));
        let plan = placement.policy.copier(&view, here, vnic, backlog);
        match plan.copier {
            placement::Copier::Here => Copier::Here,
            placement::Copier::LeaveTo(_) => Copier::Busy,
            placement::Copier::Offload(executor) => match placement.find(executor, homes) {
                Some(executor) if !self.is_me(&executor) => Copier::Elsewhere(plan.now as usize, executor),
                _ => Copier::Here,
            },
        }
    }

    /// Tells a worker to copy what is queued for a receiver; false if it has too many messages already.
    pub fn tell_copier(&mut self, receiver: &Home, executor: &Executor) -> bool {
        receiver.set_copier(executor.cpu);
        let told = executor.send(RingId::receive(receiver.vnic()));
        if !told {
            receiver.set_copier(None);
        }
        self.progress.offloads += u64::from(told);
        told
    }

    /// The time until which a notification owed to a receiver's driver is put off, if its guest runs and was
    /// notified a moment ago. `None`: the caller notifies it now.
    pub fn put_off_notification(&self, receiver: &Home, homes: &impl Homes) -> Option<u64> {
        let placement = &self.shared.placement;
        if !placement.knows_vcpus() || self.me.is_none() {
            return None;
        }
        let view = placement.view(homes);
        let notify = placement
            .policy
            .notify(&view, receiver.vnic(), receiver.notified_ns());
        if let Notify::At(at_ns) = notify {
            return Some(at_ns);
        }
        receiver.set_notified_ns(placement.now_ns());
        None
    }

    /// The time in nanoseconds for which the call that `sender` is owed for sent frames may be put off. 0
    /// unless the sender has this worker to itself: where guests share a core, one that is interrupted later
    /// sends less before the others' turn.
    pub fn completion_interval_ns(&mut self, sender: VnicId, homes: &impl Homes, now_ns: u64) -> u64 {
        if self.me.is_none() || !self.sole_sender.served(sender, now_ns) {
            return 0;
        }
        let placement = &self.shared.placement;
        placement
            .policy
            .completion_interval_ns(&placement.view(homes), sender)
    }

    /// Calls a receiver's driver.
    pub fn interrupt(&self, receiver: &Home, call: impl FnOnce()) {
        match self.here() {
            Some(here) => self.shared.placement.interrupt(receiver, here, call),
            None => call(),
        }
    }
}
