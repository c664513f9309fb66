//! The decisions. Each mechanism of the paper is one function here:
//!
//! | mechanism | section | where |
//! |---|---|---|
//! | switching on the sender's side | 3.1 | [`Policy::switcher`] |
//! | preemptive copy, bounded for a blocked receiver | 3.2, 3.4 | [`Policy::copier`] |
//! | VM-state-aware batching of notifications and of kicks | 3.3 | [`Policy::notify`], [`Policy::leave`] |
//! | offload to idle cores, cache awareness, spreading | 3.4, 5.2.3 | `helper` |
//! | hand-off of a sender that never blocks | | [`Policy::hand_off`] |
//! | hysteresis | 3.4 | [`Policy::linger_ns`], [`Policy::linger_for_ns`] |
//! | aborting for other tasks | 3.4 | [`Policy::must_give_way`], [`Policy::successor`] |
//! | helpers that poll transmit rings | 3.4 | [`Policy::polls`] |
//! | copying before switching, rings of blocked vCPUs first | 3.4, 3.5 | [`Policy::rank`] |
//! | serving the rings of a vCPU that blocks | 3.5 | [`Policy::on_block`], [`Policy::serves_on_block`] |
//!
//! Unlike in the paper, a helper that sleeps is woken only if the work that it takes over takes longer than
//! waking it takes from the waker; a helper that polls costs a message and comes first. And where no helper
//! is found, the worker that switched the packets copies them too, mostly on the sender's core, instead of
//! the worker of the receiver's core: a guest takes longer to receive than to send, and no worker has to be
//! woken.

mod helper;

use crate::costs::Costs;
use crate::topology::{Cpu, Reach, Topology};
use crate::view::{CoreState, VcpuState, View, VnicId};
use placement_config::{Config, Mode};

/// Bytes from which on copying is worth a message to another worker. Fewer are copied in less time than the
/// message takes, if the receiver runs and need not be woken.
pub const WORTH_SENDING: u64 = 8 * 1024;

/// Identifies the worker that does a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkerId {
    /// The worker of this core.
    Core(Cpu),
    /// The vNIC's own thread, on whatever core the operating system chooses ([`Mode::ThreadPerVnic`]).
    Thread(VnicId),
}

/// Packets that wait in an internal receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Number of the packets.
    pub packets: u32,
    /// Length of the packets in bytes.
    pub bytes: u64,
}

/// How the packets of an internal receive queue are shared out for copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPlan {
    /// Number of packets to copy here, at once, before the receiver is notified. Never more than the queue
    /// holds.
    pub now: u32,
    /// The copier of the others, and of packets that are added meanwhile.
    pub copier: Copier,
}

/// The copier of the packets that are not copied at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copier {
    /// The caller.
    Here,
    /// Another worker, to which a message has to be sent, and which has to be woken if it sleeps.
    Offload(WorkerId),
    /// The core that copies to this receiver already and will find them.
    LeaveTo(Cpu),
}

/// When to notify a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// At once.
    Now,
    /// At this time, in nanoseconds of [`View::now_ns`], unless the receiver blocks or the decision is
    /// repeated before.
    At(u64),
}

/// How a worker that goes to sleep leaves a transmit ring that it served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kicks {
    /// The guest has to kick.
    On,
    /// The guest need not kick. A worker looks at the ring at this time, in nanoseconds of [`View::now_ns`],
    /// and earlier if the vCPU blocks; if the ring is empty then, kicks are turned on.
    OffUntil(u64),
}

/// The role in which a worker works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// The worker works for a vNIC whose vCPU belongs to its core.
    Own,
    /// The worker works for other vNICs, on a core that was idle.
    Helping,
}

/// A piece of work that a worker may do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Copy from the internal receive queue to the vNIC.
    Copy(VnicId),
    /// Switch the packets in the vNIC's transmit ring.
    Switch(VnicId),
}

/// The order of work: the least rank first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Switching the packets that a vCPU left in its ring when it blocked: no other thread will serve that
    /// ring.
    Blocked,
    /// Copying, which takes longer than switching and whose receiver is more likely to be the bottleneck.
    Copy,
    /// Switching.
    Switch,
}

/// The placement policy of one data plane.
#[derive(Clone, Debug)]
pub struct Policy {
    config: Config,
    topology: Topology,
    costs: Costs,
    cpus: Vec<Cpu>,
    dedicated: Vec<Cpu>,
}

impl Policy {
    /// A policy for these CPUs. Dedicated cores that the topology lacks are ignored; if none remains, it is
    /// the last CPU of each node.
    pub fn new(config: Config, topology: Topology, costs: Costs) -> Self {
        let cpus: Vec<Cpu> = topology.usable().collect();
        let wanted = config.dedicated_cores.iter().map(|cpu| Cpu(*cpu));
        let mut dedicated: Vec<Cpu> = wanted.filter(|cpu| topology.may_use(*cpu)).collect();
        if dedicated.is_empty() {
            dedicated = topology.last_of_each_node();
        }
        Policy {
            config,
            topology,
            costs,
            cpus,
            dedicated,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The cores on which work may be done.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// The cores that modes `poll` and `driver-domain` work on, and none in other modes.
    pub fn dedicated(&self) -> &[Cpu] {
        match self.config.mode {
            Mode::Poll | Mode::DriverDomain => &self.dedicated,
            Mode::Hyperswitch | Mode::ThreadPerVnic => &[],
        }
    }

    /// Whether packets are copied to a buffer of the switch and from there to the receiver, as a driver
    /// domain that does not map guests' memory has to.
    pub fn copies_twice(&self) -> bool {
        self.config.mode == Mode::DriverDomain
    }

    /// The worker that serves the transmit ring of a vNIC that kicked: the worker of the core where the
    /// sender's vCPU runs, in the sender's time as in the paper, or of the core where it ran before it
    /// blocked. A helper is asked only if another task has that core now. A helper that polls takes a busy
    /// ring over by itself.
    pub fn switcher(&self, view: &impl View, sender: VnicId) -> WorkerId {
        if let Some(worker) = self.fixed(view, sender) {
            return worker;
        }
        let (home, helper) = match self.sender(view, sender) {
            VcpuState::Running(cpu) | VcpuState::Runnable(cpu) | VcpuState::Blocked(cpu)
                if view.is_contended(cpu) =>
            {
                (cpu, self.helper(view, cpu, cpu, sender, u64::MAX))
            }
            VcpuState::Running(cpu) => (cpu, None),
            VcpuState::Runnable(cpu) | VcpuState::Blocked(cpu) if self.is_ours(view, cpu) => (cpu, None),
            // A worker has to be woken in any case.
            VcpuState::Runnable(cpu) | VcpuState::Blocked(cpu) => {
                (cpu, self.helper(view, cpu, cpu, sender, u64::MAX))
            }
            VcpuState::Unknown => {
                let home = self.home(&self.cpus, sender);
                (home, self.helper(view, home, home, sender, 0))
            }
        };
        WorkerId::Core(helper.unwrap_or_else(|| self.usable(home, sender)))
    }

    /// The helper to which the worker of core `here` hands the transmit ring of `sender`, whose vCPU waits
    /// for that core. `times` is how often it has waited, without a break in which a helper would have gone
    /// to sleep ([`linger_ns`](Self::linger_ns)). A helper is asked once the waits have cost more than waking
    /// it does, and at once on a contended core, whose task would otherwise lose the core to the worker for
    /// each batch.
    ///
    /// Must not be asked about a sender that comes back to a core which a worker kept awake: that sender has
    /// lost no time, and would find the core asleep if a helper served its ring.
    pub fn hand_off(&self, view: &impl View, here: Cpu, sender: VnicId, times: u32) -> Option<WorkerId> {
        let contended = view.is_contended(here);
        let waits = match self.sender(view, sender) {
            VcpuState::Running(cpu) | VcpuState::Runnable(cpu) => cpu == here,
            VcpuState::Blocked(cpu) => cpu == here && contended,
            VcpuState::Unknown => false,
        };
        if self.config.mode != Mode::Hyperswitch || !waits {
            return None;
        }
        let lost_ns = if contended {
            u64::MAX
        } else {
            u64::from(times) * self.costs.take_core_ns
        };
        self.helper(view, here, here, sender, lost_ns).map(WorkerId::Core)
    }

    /// Shares out the packets in the receiver's internal receive queue for copying. The caller is the worker
    /// of core `here`, which put packets there or was asked to copy them.
    ///
    /// One core copies to a receiver at a time. A blocked receiver gets a bounded number of packets at once,
    /// so that it can begin, and the others while it works; a running one needs none at once.
    pub fn copier(&self, view: &impl View, here: Cpu, receiver: VnicId, queued: Backlog) -> CopyPlan {
        let all_to = |copier| CopyPlan { now: 0, copier };
        match view.copying(receiver) {
            Some(cpu) if cpu == here => return all_to(Copier::Here),
            Some(cpu) => return all_to(Copier::LeaveTo(cpu)),
            None => {}
        }
        match self.fixed(view, receiver) {
            // A switch that polls copies where it has switched.
            Some(_) if self.config.mode == Mode::Poll => return all_to(Copier::Here),
            Some(WorkerId::Core(cpu)) if cpu == here => return all_to(Copier::Here),
            Some(worker) => return all_to(Copier::Offload(worker)),
            None => {}
        }
        let (near, limit) = match self.receiver(view, receiver) {
            VcpuState::Running(_) if self.config.preemptive_copy && queued.bytes < WORTH_SENDING => {
                return all_to(Copier::Here);
            }
            VcpuState::Running(cpu) => (cpu, 0),
            // A worker that polls there finds the work at once, and wakes the receiver on its own core: no
            // other core is interrupted. A stream is better copied on a core near the receiver.
            VcpuState::Blocked(cpu)
                if cpu != here
                    && queued.bytes < WORTH_SENDING
                    && self.config.offload
                    && self.polls_free(view, cpu) =>
            {
                return all_to(Copier::Offload(WorkerId::Core(cpu)));
            }
            VcpuState::Runnable(cpu) | VcpuState::Blocked(cpu) => (cpu, self.config.copy_limit),
            VcpuState::Unknown => (here, u32::MAX),
        };
        if !self.config.preemptive_copy {
            let side = self.usable(near, receiver);
            let elsewhere = side != here;
            return all_to(if elsewhere {
                Copier::Offload(WorkerId::Core(side))
            } else {
                Copier::Here
            });
        }
        let now = limit.min(queued.packets);
        let saved = self.copy_ns(queued.without(now));
        let helper = self.helper(view, here, near, receiver, saved);
        // Where helpers may be on other nodes, so may the caller. Unless its module is idle, the receiver's
        // core copies, as in the paper.
        let side = self.usable(near, receiver);
        let is_far = self.config.other_nodes
            && self.topology.reach(here, near) == Reach::OtherNode
            && !self.helps(view, here);
        let other = helper.or_else(|| (is_far && side != here).then_some(side));
        let copier = other.map_or(Copier::Here, |cpu| Copier::Offload(WorkerId::Core(cpu)));
        CopyPlan { now, copier }
    }

    /// The worker that goes on copying to `receiver` when the helper on core `here` has to stop: another
    /// helper, or the worker of the receiver's core.
    pub fn successor(&self, view: &impl View, here: Cpu, receiver: VnicId, queued: Backlog) -> WorkerId {
        let near = match self.receiver(view, receiver) {
            VcpuState::Running(cpu) | VcpuState::Runnable(cpu) | VcpuState::Blocked(cpu) => cpu,
            VcpuState::Unknown => self.home(&self.cpus, receiver),
        };
        let helper = self.helper(view, here, near, receiver, self.copy_ns(queued));
        WorkerId::Core(helper.unwrap_or_else(|| self.usable(near, receiver)))
    }

    /// Chooses when to notify `receiver`, which was last notified at `last_ns`. A receiver that does not run
    /// is notified at once. One that runs is notified at most once per interval: it polls its ring meanwhile
    /// anyway.
    pub fn notify(&self, view: &impl View, receiver: VnicId, last_ns: u64) -> Notify {
        let running = matches!(self.receiver(view, receiver), VcpuState::Running(_));
        if !(running && self.config.state_aware_batching && self.config.mode == Mode::Hyperswitch) {
            return Notify::Now;
        }
        let due = last_ns.saturating_add(u64::from(self.config.notify_interval_us) * 1000);
        if due <= view.now_ns() {
            Notify::Now
        } else {
            Notify::At(due)
        }
    }

    /// The time in nanoseconds for which a driver that frees sent frames when it receives need not be
    /// notified of them. 0 for a guest that sleeps: it may be waiting for that.
    pub fn completion_interval_ns(&self, view: &impl View, sender: VnicId) -> u64 {
        let batches = self.config.mode == Mode::Hyperswitch && self.config.state_aware_batching;
        match self.receiver(view, sender) {
            VcpuState::Running(_) | VcpuState::Runnable(_) if batches => {
                u64::from(self.config.completion_interval_us) * 1000
            }
            VcpuState::Running(_) | VcpuState::Runnable(_) | VcpuState::Blocked(_) | VcpuState::Unknown => 0,
        }
    }

    /// Chooses how to leave the transmit ring of `sender`, which is empty. A sender that runs will go on
    /// sending; a kick for each packet would interrupt it more often than it is worth.
    pub fn leave(&self, view: &impl View, sender: VnicId) -> Kicks {
        let interval = u64::from(self.config.kick_interval_us) * 1000;
        let batches =
            self.config.mode == Mode::Hyperswitch && self.config.state_aware_batching && interval > 0;
        match self.vcpu(view, sender) {
            VcpuState::Running(_) | VcpuState::Runnable(_) if batches => {
                Kicks::OffUntil(view.now_ns() + interval)
            }
            VcpuState::Running(_) | VcpuState::Runnable(_) | VcpuState::Blocked(_) | VcpuState::Unknown => {
                Kicks::On
            }
        }
    }

    /// The time for which a worker looks for work after its last packet before it sleeps, in nanoseconds;
    /// `None`: for ever.
    pub fn linger_ns(&self) -> Option<u64> {
        match self.config.mode {
            Mode::Poll => None,
            Mode::Hyperswitch => Some(u64::from(self.config.hysteresis_us) * 1000),
            Mode::ThreadPerVnic | Mode::DriverDomain => Some(0),
        }
    }

    /// As [`linger_ns`](Self::linger_ns), for a worker whose last breaks took `expected_ns` on average. If
    /// the next packet is not expected before the worker would have gone to sleep and been woken again,
    /// looking for it wastes time: with the default hysteresis of 50 us, a worker with at most 10,000 packets
    /// per second sleeps between them.
    pub fn linger_for_ns(&self, expected_ns: u64) -> Option<u64> {
        match self.linger_ns() {
            // The cost of waking counts only up to half of the hysteresis: a kick mostly wakes the worker of
            // the sender's own core, which takes less than waking another core.
            Some(longest) if expected_ns > longest + self.costs.wake_waker_ns.min(longest / 2) => Some(0),
            longest => longest,
        }
    }

    /// Whether a worker without own work on core `here` looks at the transmit ring of a vNIC that it did not
    /// serve.
    pub fn polls(&self, view: &impl View, here: Cpu, vnic: VnicId) -> bool {
        let helps = self.config.mode == Mode::Hyperswitch && self.config.offload && self.config.poll_transmit;
        helps
            && match self.vcpu(view, vnic) {
                VcpuState::Running(cpu) | VcpuState::Runnable(cpu) | VcpuState::Blocked(cpu) => {
                    self.config.other_nodes || self.topology.reach(here, cpu) != Reach::OtherNode
                }
                VcpuState::Unknown => true,
            }
    }

    /// Whether the worker of core `here` has to stop, because a task that is not ours waits for the core. To
    /// be asked after each packet. A worker finishes its own work nevertheless, as no other one would do it.
    pub fn must_give_way(&self, view: &impl View, here: Cpu, duty: Duty) -> bool {
        self.config.mode == Mode::Hyperswitch
            && self.config.give_way
            && duty == Duty::Helping
            && view.wanted(here)
    }

    /// The rank of a piece of work.
    pub fn rank(&self, view: &impl View, work: Work) -> Rank {
        let (Work::Copy(vnic) | Work::Switch(vnic)) = work;
        let blocked = matches!(self.vcpu(view, vnic), VcpuState::Blocked(_));
        match work {
            Work::Switch(_) if blocked && self.serves_on_block() => Rank::Blocked,
            Work::Copy(_) => Rank::Copy,
            Work::Switch(_) => Rank::Switch,
        }
    }

    /// The worker that looks at the rings of a vNIC whose vCPU has just blocked on `cpu`, if there is one.
    pub fn on_block(&self, view: &impl View, cpu: Cpu) -> Option<WorkerId> {
        (self.serves_on_block() && self.is_ours(view, cpu)).then_some(WorkerId::Core(cpu))
    }

    /// Whether rings are served when vCPUs block, so that a worker that is woken need not take its core from
    /// a vCPU.
    pub fn serves_on_block(&self) -> bool {
        self.config.mode == Mode::Hyperswitch && self.config.serve_on_block && self.config.vm_state
    }

    /// The worker that does all work of a vNIC, in modes that do not choose.
    fn fixed(&self, view: &impl View, vnic: VnicId) -> Option<WorkerId> {
        match self.config.mode {
            Mode::Hyperswitch => None,
            Mode::ThreadPerVnic => Some(WorkerId::Thread(vnic)),
            Mode::Poll | Mode::DriverDomain => Some(WorkerId::Core(self.dedicated_to(view, vnic))),
        }
    }

    /// One of the dedicated cores on the vNIC's node, as poll-mode switches assign ports to theirs, or of all
    /// if there is none. vNICs are dealt out in turn, whether nodes get them in turn or one node gets all.
    fn dedicated_to(&self, view: &impl View, vnic: VnicId) -> Cpu {
        let near = |cpu: &&Cpu| match self.vcpu(view, vnic) {
            VcpuState::Running(at) | VcpuState::Runnable(at) | VcpuState::Blocked(at) => {
                self.topology.reach(**cpu, at) != Reach::OtherNode
            }
            VcpuState::Unknown => true,
        };
        let count = self.dedicated.iter().filter(near).count().max(1);
        let number = vnic.0 as usize / (self.dedicated.len() / count).max(1) % count;
        let found = self.dedicated.iter().filter(near).nth(number);
        found.copied().unwrap_or_else(|| self.home(&self.dedicated, vnic))
    }

    /// One of `cpus` for each vNIC, the same number of vNICs for each.
    fn home(&self, cpus: &[Cpu], vnic: VnicId) -> Cpu {
        let count = cpus.len().max(1);
        cpus.get(vnic.0 as usize % count).copied().unwrap_or(Cpu(0))
    }

    /// `cpu`, or the vNIC's home if there is no worker on that one.
    fn usable(&self, cpu: Cpu, vnic: VnicId) -> Cpu {
        if self.topology.may_use(cpu) {
            cpu
        } else {
            self.home(&self.cpus, vnic)
        }
    }

    fn vcpu(&self, view: &impl View, vnic: VnicId) -> VcpuState {
        if self.config.vm_state {
            view.vcpu(vnic)
        } else {
            VcpuState::Unknown
        }
    }

    fn sender(&self, view: &impl View, vnic: VnicId) -> VcpuState {
        if self.config.vm_state {
            view.sender(vnic)
        } else {
            VcpuState::Unknown
        }
    }

    fn receiver(&self, view: &impl View, vnic: VnicId) -> VcpuState {
        if self.config.vm_state {
            view.receiver(vnic)
        } else {
            VcpuState::Unknown
        }
    }

    /// Whether a worker of ours may run on the core without taking time from a guest. Asked only where vCPUs'
    /// states are known.
    fn is_ours(&self, view: &impl View, cpu: Cpu) -> bool {
        self.topology.may_use(cpu) && matches!(view.core(cpu), CoreState::Idle | CoreState::Worker { .. })
    }

    /// Whether the core's worker looks for work and has none, and no other task wants the core.
    fn polls_free(&self, view: &impl View, cpu: Cpu) -> bool {
        let free = CoreState::Worker {
            depth: 0,
            polling: true,
        };
        self.topology.may_use(cpu) && view.core(cpu) == free && !view.wanted(cpu)
    }

    fn copy_ns(&self, work: Backlog) -> u64 {
        u64::from(work.packets) * self.costs.copy_packet_ns + work.bytes / 1024 * self.costs.copy_kib_ns
    }
}

impl Backlog {
    /// The backlog that remains after `packets` of average size.
    fn without(self, packets: u32) -> Backlog {
        let rest = self.packets.saturating_sub(packets);
        let bytes = self.bytes * u64::from(rest) / u64::from(self.packets.max(1));
        Backlog { packets: rest, bytes }
    }
}
