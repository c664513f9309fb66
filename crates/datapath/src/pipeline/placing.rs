//! Where the placement policy has its say: who serves a kick, who copies, when a driver is called, and when to give way.
//! Nothing of this is asked for threads that are no workers, nor where workers float.

use super::{OVERTAKEN, Pipeline};
use crate::executor::Executor;
use crate::placement::vnic;
use crate::port::Port;
use crate::state::{PortTable, Side, port_of};
use flow::PortId;
use placement::{Backlog, Cpu, Duty, Notify, Rest, Task, VcpuState, View as _};
use ring::Unique;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnic::{Packet, ReceiveSide};

/// What is in a receive queue that others fill as well: at least something.
pub(super) const UNKNOWN_BACKLOG: Backlog = Backlog {
    packets: 1,
    bytes: 1500,
};

/// Who copies to a receiver.
pub(super) enum Copier {
    /// This thread, all of it.
    Here,
    /// This thread so many packets, and then somebody else, who is to be told.
    Elsewhere(usize, Arc<Executor>),
    /// Somebody who copies to it already.
    Busy,
}

impl Pipeline {
    /// A guest kicked: its ring is served here, or by a worker that suits better.
    pub fn kicked(&mut self, id: PortId, side: Side) {
        let ports = self.ports();
        if let Some(port) = port_of(&ports, id) {
            port.vnic.account.kicks.fetch_add(1, Ordering::Relaxed);
            if side == Side::Receive || !self.sent_on(port, &ports) {
                self.later(id, side);
            }
        }
        self.ports = Some(ports);
    }

    /// Takes what is to be done next from the to-do list: in the policy's order, the oldest among equals.
    pub(super) fn next_task(&mut self, ports: &PortTable) -> Option<(PortId, Side)> {
        let placement = &self.datapath.placement;
        if self.todo.len() < 2 || !placement.knows_vcpus() || self.overtaken >= OVERTAKEN {
            self.overtaken = 0;
            return self.todo.pop_front();
        }
        let eyes = placement.eyes(ports);
        let rank = |&(_, &(port, side)): &(usize, &(PortId, Side))| {
            let task = match side {
                Side::Transmit => Task::Switch(vnic(port)),
                Side::Receive => Task::Copy(vnic(port)),
            };
            placement.policy.rank(&eyes, task)
        };
        let (place, _) = self.todo.iter().enumerate().min_by_key(rank)?;
        self.overtaken = if place == 0 { 0 } else { self.overtaken + 1 };
        self.todo.remove(place)
    }

    /// Leaves a transmit ring to a better worker, if there is one. Kicks that do so again and again go there at once.
    fn sent_on(&mut self, port: &Arc<Port>, ports: &PortTable) -> bool {
        let placement = &self.datapath.placement;
        if !placement.knows_vcpus() {
            return false;
        }
        let eyes = placement.eyes(ports);
        let wanted = placement.policy.switcher(&eyes, vnic(port.id()));
        match placement.find(wanted, ports) {
            Some(better) if !self.is_me(&better) => {
                port.prefer(&better);
                better.send((port.id(), Side::Transmit))
            }
            _ => {
                port.keep_home();
                false
            }
        }
    }

    /// Whether a task that is not ours waits for this core; `None` if nobody knows.
    pub fn is_wanted_elsewhere(&self) -> Option<bool> {
        let placement = &self.datapath.placement;
        let here = self.here().filter(|_| placement.knows_vcpus())?;
        let no_ports = PortTable::new();
        let eyes = placement.eyes(&no_ports);
        Some(placement.policy.must_give_way(&eyes, here, Duty::Helping))
    }

    /// Leaves a transmit ring that is polled, and so gets no kicks, to a helper, if its guest wants this core often enough.
    pub(super) fn relieve(&self, port: &Port, ports: &PortTable) -> bool {
        let placement = &self.datapath.placement;
        let Some(here) = self.here() else { return false };
        let eyes = placement.eyes(ports);
        // After a longer break a helper would sleep again.
        let within_ns = placement.policy.linger_ns().unwrap_or(u64::MAX);
        let times = port.waits_for_core(placement.now_ns(), within_ns);
        let relief = placement.policy.relief(&eyes, here, vnic(port.id()), times);
        let helper = relief.and_then(|helper| placement.find(helper, ports));
        let relieved = helper.is_some_and(|helper| helper.send((port.id(), Side::Transmit)));
        if relieved {
            port.has_core();
        }
        relieved
    }

    /// Leaves work for another core's guest to somebody else, if this core is wanted.
    pub(super) fn gave_way(&mut self, port: &Port, ports: &PortTable, side: Side) -> bool {
        let placement = &self.datapath.placement;
        let Some(here) = self.here().filter(|_| placement.knows_vcpus()) else {
            return false;
        };
        let (eyes, vnic) = (placement.eyes(ports), vnic(port.id()));
        if !eyes.wanted(here) {
            return false;
        }
        let duty = match eyes.vcpu(vnic) {
            VcpuState::Running(cpu) | VcpuState::Runnable(cpu) | VcpuState::Blocked(cpu) if cpu != here => {
                Duty::Helping
            }
            _ => Duty::Own,
        };
        if !placement.policy.must_give_way(&eyes, here, duty) {
            return false;
        }
        let heir = match side {
            Side::Transmit => placement.policy.switcher(&eyes, vnic),
            Side::Receive => placement.policy.heir(&eyes, here, vnic, UNKNOWN_BACKLOG),
        };
        let heir = placement.find(heir, ports).filter(|heir| !self.is_me(heir));
        let sent = heir.is_some_and(|heir| heir.send((port.id(), side)));
        self.moved.aborts += u64::from(sent);
        sent
    }

    /// Who is to copy packets that nobody else has seen.
    pub(super) fn copier(&self, receiver: &Port, ports: &PortTable, packets: &[Unique<Packet>]) -> Copier {
        let placement = &self.datapath.placement;
        if placement.floats() || self.me.is_none() {
            return Copier::Here;
        }
        let bytes = packets.iter().map(|packet| packet.frame_len() as u64).sum();
        let backlog = Backlog {
            packets: packets.len() as u32,
            bytes,
        };
        self.plan(receiver, ports, backlog)
    }

    pub(super) fn plan(&self, receiver: &Port, ports: &PortTable, backlog: Backlog) -> Copier {
        let placement = &self.datapath.placement;
        let eyes = placement.eyes(ports);
        let here = self.here().unwrap_or(Cpu(u16::MAX));
        let plan = placement.policy.copier(&eyes, here, vnic(receiver.id()), backlog);
        match plan.rest {
            Rest::Here => Copier::Here,
            Rest::LeaveTo(_) => Copier::Busy,
            Rest::Offload(executor) => match placement.find(executor, ports) {
                Some(executor) if !self.is_me(&executor) => Copier::Elsewhere(plan.now as usize, executor),
                _ => Copier::Here,
            },
        }
    }

    /// Tells a worker to copy what is queued for a receiver; false if it has too many messages already.
    pub(super) fn tell_copier(&mut self, receiver: &Port, executor: &Executor) -> bool {
        receiver.set_copier(executor.cpu);
        let told = executor.send((receiver.id(), Side::Receive));
        if !told {
            receiver.set_copier(None);
        }
        self.moved.offloads += u64::from(told);
        told
    }

    /// Calls a driver that is owed it, or returns until when that is put off: if its guest runs and was called a moment
    /// ago.
    pub(super) fn settle_call(
        &self,
        side: &mut ReceiveSide,
        receiver: &Port,
        ports: &PortTable,
    ) -> Option<u64> {
        if !side.owes_call() {
            return None;
        }
        let placement = &self.datapath.placement;
        if placement.knows_vcpus() && self.me.is_some() {
            let eyes = placement.eyes(ports);
            let last_ns = receiver.called_ns.load(Ordering::Relaxed);
            if let Notify::At(at_ns) = placement.policy.notify(&eyes, vnic(receiver.id()), last_ns) {
                return Some(at_ns);
            }
            receiver.called_ns.store(placement.now_ns(), Ordering::Relaxed);
        }
        side.call();
        None
    }

    pub(super) fn is_me(&self, executor: &Arc<Executor>) -> bool {
        self.me.as_ref().is_some_and(|me| Arc::ptr_eq(me, executor))
    }

    pub(super) fn here(&self) -> Option<Cpu> {
        self.me.as_ref()?.cpu
    }
}
