//! Workers of the switch: they do work in the policy's order, a batch or a packet per step, hand over work
//! that others are to do, poll for a while, and sleep.

mod handover;

use super::cores::Scheduled;
use super::{Index, Packet, World};
use crate::machine::Machine;
use placement::{Backlog, Copier, Cpu, Duty, Mode, Policy, VnicId, Work, WorkerId};

/// Packets switched per step.
const BATCH: usize = 32;

/// Bytes copied per step: one large packet or several small ones.
const COPIED_AT_ONCE: u64 = 32 << 10;

/// Packets copied before a receiver is notified, if more wait.
const NOTIFY_BATCH: u32 = 32;

#[derive(Clone, Copy, Debug)]
enum Step {
    Nothing,
    Switching { vnic: usize, packets: usize },
    Copying { vnic: usize, packets: usize },
}

/// Packets that are copied before the receiver is notified and another worker may go on.
#[derive(Clone, Copy, Debug)]
struct AtOnce {
    vnic: usize,
    left: u32,
    /// The worker that copies the others; none if it is this one.
    next: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub id: WorkerId,
    pub cpu: Cpu,
    pub scheduled: Scheduled,
    /// The message buffer.
    pub inbox: Vec<Work>,
    todo: Vec<Work>,
    step: Step,
    at_once: Option<AtOnce>,
    /// Packets copied since their receiver was last considered for a notification.
    copied: u32,
    /// Time up to which it takes its core from guests at once.
    pub contended_until_ns: u64,
    /// The time since which it polls.
    polling_since_ns: Option<u64>,
    /// Number of its periods of polling so far.
    polls: u64,
}

impl Worker {
    fn new(id: WorkerId, cpu: Cpu) -> Self {
        Worker {
            id,
            cpu,
            scheduled: Scheduled::new(cpu),
            inbox: Vec::new(),
            todo: Vec::new(),
            step: Step::Nothing,
            at_once: None,
            copied: 0,
            contended_until_ns: 0,
            polling_since_ns: None,
            polls: 0,
        }
    }

    pub fn is_polling(&self) -> bool {
        self.polling_since_ns.is_some()
    }
}

/// The workers of a mode. Threads of vNICs are pinned as in the paper (section 5.2.1): on the guest's node,
/// to the core with the fewest tasks.
pub(super) fn all(machine: &Machine, policy: &Policy, guests: &[Cpu]) -> Vec<Worker> {
    if policy.config().mode != Mode::ThreadPerVnic {
        let all = (0..machine.cpus()).map(Cpu);
        let cpus = all.filter(|cpu| policy.dedicated().is_empty() || policy.dedicated().contains(cpu));
        return cpus.map(|cpu| Worker::new(WorkerId::Core(cpu), cpu)).collect();
    }
    let mut tasks = vec![0; usize::from(machine.cpus())];
    for cpu in guests {
        tasks[cpu.index()] += 1;
    }
    let siblings = machine.shape.cpus;
    let place = |(vnic, guest): (usize, &Cpu)| {
        let node = (0..machine.cpus())
            .map(Cpu)
            .filter(|cpu| machine.node(*cpu) == machine.node(*guest));
        let load = |cpu: &Cpu| {
            let module = cpu.index() / usize::from(siblings) * usize::from(siblings);
            let nearby: usize = tasks[module..][..usize::from(siblings)].iter().sum();
            (tasks[cpu.index()], nearby)
        };
        let cpu = node.min_by_key(load).expect("a guest's node has cores");
        tasks[cpu.index()] += 1;
        Worker::new(WorkerId::Thread(VnicId(vnic as u32)), cpu)
    };
    guests.iter().enumerate().map(place).collect()
}

impl World<'_> {
    pub(super) fn duty(&self, worker: usize) -> Duty {
        let worker = &self.workers[worker];
        if matches!(self.policy.config().mode, Mode::Hyperswitch) {
            let own = |work: &Work| {
                let (Work::Copy(vnic) | Work::Switch(vnic)) = work;
                self.guests[vnic.0 as usize].scheduled.cpu == worker.cpu
            };
            if !worker.todo.iter().chain(&worker.inbox).any(own) {
                return Duty::Helping;
            }
        }
        Duty::Own
    }

    pub(super) fn worker_step(&mut self, number: usize) -> Option<u64> {
        let told = std::mem::take(&mut self.workers[number].inbox);
        let taken = told.len() as u64 * self.machine.costs.message;
        for work in told {
            self.add(number, work);
        }
        while let Some(work) = self.choose(number) {
            let time = match work {
                Work::Copy(vnic) => self.begin_copy(number, vnic.0 as usize),
                Work::Switch(vnic) => self.begin_switch(number, vnic.0 as usize),
            };
            if let Some(time) = time {
                return Some(taken + time);
            }
            self.workers[number].todo.retain(|todo| *todo != work);
        }
        self.workers[number].scheduled.carry_ns += taken;
        self.poll(number);
        None
    }

    fn add(&mut self, number: usize, work: Work) {
        if !self.workers[number].todo.contains(&work) {
            self.workers[number].todo.push(work);
        }
    }

    /// The next piece of work: copying that was begun for a blocked receiver, else the first in the policy's
    /// order.
    fn choose(&mut self, number: usize) -> Option<Work> {
        if let Some(at_once) = self.workers[number].at_once {
            return Some(Work::Copy(VnicId(at_once.vnic as u32)));
        }
        let todo = self.workers[number].todo.iter().copied();
        todo.min_by_key(|work| self.policy.rank(self, *work))
            .or_else(|| self.unserved_ring(number))
    }

    /// A ring with packets that no worker is switching: one that this worker watches, else one that the
    /// policy lets it poll.
    fn unserved_ring(&mut self, number: usize) -> Option<Work> {
        let here = self.workers[number].cpu;
        let waits = |vnic: &usize| {
            let port = &self.ports[*vnic];
            !port.transmit.is_empty()
                && port.switching.is_none()
                && port.watcher.is_some_and(|watcher| {
                    watcher == number || self.policy.polls(self, here, VnicId(*vnic as u32))
                })
        };
        let found = (0..self.ports.len())
            .filter(waits)
            .min_by_key(|vnic| self.ports[*vnic].watcher != Some(number))?;
        let work = Work::Switch(VnicId(found as u32));
        self.add(number, work);
        Some(work)
    }

    fn begin_switch(&mut self, number: usize, vnic: usize) -> Option<u64> {
        let costs = self.machine.costs;
        let port = &mut self.ports[vnic];
        if port.transmit.is_empty() || port.switching.is_some_and(|other| other != number) {
            return None;
        }
        port.switching = Some(number);
        port.watcher = Some(number);
        port.look_again_ns = None;
        let packets = port.transmit.len().min(BATCH);
        self.workers[number].step = Step::Switching { vnic, packets };
        let mut time = costs.switch_batch + packets as u64 * costs.switch_packet;
        if self.policy.copies_twice() {
            let taken: Vec<Packet> = self.ports[vnic].transmit.iter().take(packets).copied().collect();
            let cpu = self.workers[number].cpu;
            time += taken.iter().map(|packet| self.copy_ns(cpu, *packet)).sum::<u64>();
        }
        Some(self.jittered(time))
    }

    fn copy_ns(&mut self, cpu: Cpu, packet: Packet) -> u64 {
        self.machine.costs.copy_packet + self.byte_ns(cpu, packet.written_by, packet.bytes, 1.0)
    }

    fn begin_copy(&mut self, number: usize, vnic: usize) -> Option<u64> {
        let port = &mut self.ports[vnic];
        if port.copying.is_some_and(|other| other != number) {
            return None;
        }
        if port.queue.is_empty() {
            port.copying = None;
            return None;
        }
        port.copying = Some(number);
        let limit = self.workers[number]
            .at_once
            .map_or(usize::MAX, |at_once| at_once.left as usize);
        let mut bytes = 0;
        let fits = |packet: &&Packet| {
            bytes += packet.bytes;
            bytes <= COPIED_AT_ONCE
        };
        let fitting = port.queue.iter().take_while(fits).count();
        let packets = fitting.max(1).min(limit);
        let taken: Vec<Packet> = port.queue.iter().take(packets).copied().collect();
        let cpu = self.workers[number].cpu;
        self.workers[number].step = Step::Copying { vnic, packets };
        let time = taken.iter().map(|packet| self.copy_ns(cpu, *packet)).sum();
        Some(self.jittered(time))
    }

    pub(super) fn worker_step_done(&mut self, number: usize) {
        match std::mem::replace(&mut self.workers[number].step, Step::Nothing) {
            Step::Nothing => {}
            Step::Switching { vnic, packets } => self.switched(number, vnic, packets),
            Step::Copying { vnic, packets } => self.copied(number, vnic, packets),
        }
    }

    fn switched(&mut self, number: usize, vnic: usize, packets: usize) {
        let here = self.workers[number].cpu;
        let twice = self.policy.copies_twice();
        let peer = self.ports[vnic].peer;
        self.ports[vnic].switching = None;
        let batch: Vec<Packet> = self.ports[vnic].transmit.drain(..packets).collect();
        for packet in batch {
            let written_by = if twice { here } else { packet.written_by };
            self.ports[peer].queued_bytes += packet.bytes;
            self.ports[peer].queue.push_back(Packet { written_by, ..packet });
        }
        self.place_copies(number, peer);
    }

    fn backlog(&self, vnic: usize) -> Backlog {
        let port = &self.ports[vnic];
        Backlog {
            packets: port.queue.len().try_into().unwrap_or(u32::MAX),
            bytes: port.queued_bytes,
        }
    }

    /// Asks the policy how the packets for a receiver are shared out for copying, and carries the plan out.
    fn place_copies(&mut self, number: usize, vnic: usize) {
        let here = self.workers[number].cpu;
        let port = VnicId(vnic as u32);
        let plan = self.policy.copier(self, here, port, self.backlog(vnic));
        self.workers[number].scheduled.carry_ns += self.machine.costs.decide;
        let other = match plan.copier {
            Copier::LeaveTo(_) => return,
            Copier::Here => None,
            Copier::Offload(id) => Some(self.worker(id)).filter(|worker| *worker != number),
        };
        if plan.now > 0 {
            self.workers[number].at_once = Some(AtOnce {
                vnic,
                left: plan.now,
                next: other,
            });
        }
        match other {
            Some(worker) if plan.now == 0 => self.offload(number, worker, vnic),
            _ => {
                self.ports[vnic].copying.get_or_insert(number);
                self.add(number, Work::Copy(port));
            }
        }
    }

    fn offload(&mut self, number: usize, to: usize, vnic: usize) {
        self.counters.offloads += 1;
        if self.policy.config().mode == Mode::Hyperswitch {
            self.ports[vnic].copying = Some(to);
        }
        let from = self.workers[number].cpu;
        self.workers[number].scheduled.carry_ns += self.tell(to, Work::Copy(VnicId(vnic as u32)), from);
    }

    fn copied(&mut self, number: usize, vnic: usize, packets: usize) {
        let here = self.workers[number].cpu;
        let afar = self.machine.node(here) != self.machine.node(self.guests[vnic].scheduled.cpu);
        let guest_cpus = [vnic, self.ports[vnic].peer].map(|guest| self.guests[guest].scheduled.cpu);
        let batch: Vec<Packet> = self.ports[vnic].queue.drain(..packets).collect();
        for packet in batch {
            self.ports[vnic].queued_bytes -= packet.bytes;
            self.ports[vnic].receive.push_back(Packet {
                written_by: here,
                ..packet
            });
            if packet.bytes == self.traffic.bytes {
                self.counters.copied_by_helpers += u64::from(!guest_cpus.contains(&here));
                self.counters.copied_afar += u64::from(afar);
            }
        }
        let packets = u32::try_from(packets).unwrap_or(u32::MAX);
        self.workers[number].copied += packets;
        let at_once_done = self.count_at_once(number, packets);
        let empty = self.ports[vnic].queue.is_empty();
        if empty || at_once_done.is_some() || self.workers[number].copied >= NOTIFY_BATCH {
            self.workers[number].copied = 0;
            self.workers[number].scheduled.carry_ns += self.notify(vnic, here);
        }
        if empty {
            self.ports[vnic].copying = None;
            self.workers[number].at_once = None;
            self.workers[number]
                .todo
                .retain(|todo| *todo != Work::Copy(VnicId(vnic as u32)));
        } else if let Some(to) = at_once_done.flatten() {
            self.workers[number]
                .todo
                .retain(|todo| *todo != Work::Copy(VnicId(vnic as u32)));
            self.offload(number, to, vnic);
        }
    }

    /// Counts packets that were to be copied at once. After the last one, returns the worker that copies the
    /// others, if it is another one.
    fn count_at_once(&mut self, number: usize, packets: u32) -> Option<Option<usize>> {
        let at_once = self.workers[number].at_once.as_mut()?;
        at_once.left = at_once.left.saturating_sub(packets);
        if at_once.left > 0 {
            return None;
        }
        self.workers[number].at_once.take().map(|at_once| at_once.next)
    }
}
