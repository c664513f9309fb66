//! The modelled machine: time, events, and the state that cores, guests and workers share.
//!
//! A core runs one task at a time, in *steps*: a guest's packet, a worker's batch. A step takes effect when
//! it ends, and the scheduler chooses the next task of the core then. Costs of the effects, for example of a
//! kick, are added to the task's next step.

mod cores;
mod guest;
mod view;
mod worker;

use crate::machine::Machine;
use cores::Core;
use guest::{Guest, Role};
use placement::{Cpu, Mode, Policy, Shape, VnicId, WorkerId};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use worker::Worker;

/// A task of the modelled scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    /// A guest's only vCPU.
    Guest(usize),
    /// A worker thread of the switch.
    Worker(usize),
}

/// An event at a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The step on this core ends.
    StepDone(usize),
    /// A task that was woken arrives at its core.
    Woken(Task),
    /// A worker that polled has found work.
    Seen(usize),
    /// The end of a worker's polling, if it is still in the period with this number.
    LingerEnd(usize, u64),
    /// A delayed notification of a vNIC is due, if its due time is still this one.
    NotifyDue(usize, u64),
    /// A transmit ring with kicks off is to be looked at, if that is still planned for this time.
    LookAgain(usize, u64),
}

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
struct Packet {
    bytes: u64,
    /// The core that wrote the bytes.
    written_by: Cpu,
}

/// A vNIC: its rings, and the switch's internal receive queue. Its guest has the same number.
#[derive(Debug)]
struct Port {
    /// The vNIC with which it exchanges packets.
    peer: usize,
    transmit: VecDeque<Packet>,
    /// The worker that is switching from the transmit ring.
    switching: Option<usize>,
    /// The worker that watches the transmit ring, so that no kicks are needed.
    watcher: Option<usize>,
    /// The time at which a worker looks at the ring again, if its watcher sleeps and kicks are off.
    look_again_ns: Option<u64>,
    /// How often in sequence its guest waited for the core on which its ring was served, and when it last
    /// did.
    waits: u32,
    waited_at_ns: u64,
    /// The internal receive queue.
    queue: VecDeque<Packet>,
    queued_bytes: u64,
    /// The worker that copies from the queue, or was asked to.
    copying: Option<usize>,
    /// The packets in the receive ring; `written_by` is the core that copied them there.
    receive: VecDeque<Packet>,
    /// The guest wants to be called when something is put in the receive ring.
    wants_calls: bool,
    last_notified_ns: u64,
    /// When a delayed notification is due.
    due_ns: Option<u64>,
}

/// Counts of events, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Counters {
    /// Packets that receivers took.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Times a guest kicked.
    pub kicks: u64,
    /// Times an idle core was woken.
    pub wakeups: u64,
    /// Times a guest was notified.
    pub notifications: u64,
    /// Times copying was handed to another core.
    pub offloads: u64,
    /// Packets that were copied on a core that belongs to neither guest of the pair.
    pub copied_by_helpers: u64,
    /// Packets that were copied on another node than their receiver's.
    pub copied_afar: u64,
    /// Times a helper stopped for another task.
    pub aborts: u64,
    /// Time that cores worked, in nanoseconds.
    pub busy_ns: u64,
    /// Time that workers polled without finding anything, in nanoseconds.
    pub polling_ns: u64,
    /// Part of the time that cores worked by which others of their module slowed them down, in nanoseconds.
    pub interference_ns: u64,
    /// Part of the time that cores worked in which they waited for memory, in nanoseconds.
    pub memory_wait_ns: u64,
}

/// The traffic between the guests.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Pairs of guests, each with one stream.
    pub pairs: usize,
    /// Bytes per packet.
    pub bytes: u64,
    /// Packets that a sender may have under way before it waits for acknowledgements.
    pub window: u32,
}

/// The modelled machine with guests and switch.
pub struct World<'a> {
    machine: &'a Machine,
    policy: &'a Policy,
    traffic: Traffic,
    random: fastrand::Rng,
    now_ns: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Number of events so far; it orders events at the same time.
    sequence: u64,
    cores: Vec<Core>,
    guests: Vec<Guest>,
    /// The guests of each core.
    pinned: Vec<Vec<usize>>,
    workers: Vec<Worker>,
    ports: Vec<Port>,
    /// Numbers of workers, by id.
    by_id: HashMap<WorkerId, usize>,
    /// Per node, the time at which its memory will have moved all bytes that it was asked to.
    memory: Vec<u64>,
    counters: Counters,
}

impl<'a> World<'a> {
    /// Senders are the first half of the vNICs, so that modes which spread vNICs by number spread senders.
    pub fn new(machine: &'a Machine, policy: &'a Policy, traffic: Traffic, seed: u64) -> Self {
        let pairs = traffic.pairs;
        let sites = guest_cpus(machine, policy, pairs);
        let workers = worker::all(machine, policy, &sites);
        let by_id = workers
            .iter()
            .enumerate()
            .map(|(number, worker)| (worker.id, number))
            .collect();
        let pinned_to = |cpu| (0..sites.len()).filter(|guest| sites[*guest].0 == cpu).collect();
        let role = |vnic| {
            if vnic < pairs {
                Role::Sender
            } else {
                Role::Receiver
            }
        };
        let mut world = World {
            machine,
            policy,
            traffic,
            random: fastrand::Rng::with_seed(seed),
            now_ns: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            cores: (0..machine.cpus()).map(|_| Core::default()).collect(),
            guests: sites
                .iter()
                .enumerate()
                .map(|(vnic, cpu)| Guest::new(role(vnic), *cpu))
                .collect(),
            pinned: (0..machine.cpus()).map(pinned_to).collect(),
            workers,
            by_id,
            ports: (0..2 * pairs)
                .map(|vnic| Port::new((vnic + pairs) % (2 * pairs)))
                .collect(),
            memory: vec![0; usize::from(machine.shape.nodes)],
            counters: Counters::default(),
        };
        world.start();
        world
    }

    fn start(&mut self) {
        if self.policy.config().mode == Mode::Poll {
            for vnic in 0..self.ports.len() {
                let home = self.policy.switcher(self, VnicId(vnic as u32));
                self.ports[vnic].watcher = Some(self.worker(home));
            }
        }
        for worker in 0..self.workers.len() {
            if self.policy.linger_ns().is_none() {
                self.arrive(Task::Worker(worker));
            }
        }
        for guest in 0..self.guests.len() {
            self.arrive(Task::Guest(guest));
        }
    }

    /// Runs for some time, and returns the counts of that time.
    pub fn run(&mut self, ns: u64) -> Counters {
        self.counters = Counters::default();
        let end = self.now_ns + ns;
        while let Some(Reverse((at, _, event))) = self.events.peek().copied().filter(|event| event.0.0 <= end)
        {
            self.events.pop();
            self.now_ns = at;
            self.handle(event);
        }
        self.now_ns = end;
        self.counters
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::StepDone(cpu) => self.step_done(cpu),
            Event::Woken(task) => self.arrive(task),
            Event::Seen(worker) => self.begin_step(self.workers[worker].cpu.index()),
            Event::LingerEnd(worker, poll) => self.linger_end(worker, poll),
            Event::LookAgain(vnic, at) => self.look_again(vnic, at),
            Event::NotifyDue(vnic, at) => self.notify_due(vnic, at),
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn worker(&self, id: WorkerId) -> usize {
        self.by_id[&id]
    }

    /// A time with a tenth of jitter, so that nothing runs in lockstep.
    fn jittered(&mut self, ns: u64) -> u64 {
        ns * self.random.u64(95..=105) / 100
    }

    /// Time until the core's node has moved these bytes between memory and caches, after those that it was
    /// asked to move before.
    fn memory_ns(&mut self, cpu: Cpu, bytes: u64) -> u64 {
        let node = self.machine.node(cpu);
        let costs = &self.machine.costs;
        let time = (bytes as f64 * costs.memory_per_byte / costs.memory) as u64;
        let free_at = self.memory[node].max(self.now_ns) + time;
        self.memory[node] = free_at;
        free_at - self.now_ns
    }

    /// Time for work on bytes that a core at a distance wrote: the processor's or the memory's, whichever is
    /// longer.
    fn byte_ns(&mut self, here: Cpu, written_by: Cpu, bytes: u64, factor: f64) -> u64 {
        let distance = self.machine.distance(here, written_by);
        let kib = self.machine.costs.copy_kib[distance as usize];
        let own = (bytes as f64 / 1024.0 * kib as f64 * factor) as u64;
        let memory = self.memory_ns(here, bytes);
        self.counters.memory_wait_ns += memory.saturating_sub(own);
        own.max(memory)
    }
}

impl Port {
    fn new(peer: usize) -> Self {
        Port {
            peer,
            transmit: VecDeque::new(),
            switching: None,
            watcher: None,
            look_again_ns: None,
            waits: 0,
            waited_at_ns: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            copying: None,
            receive: VecDeque::new(),
            wants_calls: true,
            last_notified_ns: 0,
            due_ns: None,
        }
    }
}

/// Cores as they are filled in the paper's experiments (section 5.2.1): pairs go to nodes and their
/// last-level caches in turn, both guests of a pair to the same one; there, one core of each module is used
/// before the second ones. Dedicated cores are left out, and when all are taken it starts over, shifted, lest
/// one core get all senders.
fn guest_cpus(machine: &Machine, policy: &Policy, pairs: usize) -> Vec<Cpu> {
    let Shape {
        nodes,
        llcs,
        modules,
        cpus,
    } = machine.shape;
    let in_llc = |llc: u16| {
        let in_turn =
            (0..cpus).flat_map(move |second| (0..modules).map(move |module| module * cpus + second));
        let all = in_turn.map(move |cpu| Cpu(llc * modules * cpus + cpu));
        all.filter(|cpu| !policy.dedicated().contains(cpu))
            .collect::<Vec<_>>()
    };
    let groups: Vec<Vec<Cpu>> = (0..llcs)
        .flat_map(|llc| (0..nodes).map(move |node| node * llcs + llc))
        .map(in_llc)
        .collect();
    let site = |pair: usize, second: usize| {
        let cpus = &groups[pair % groups.len()];
        let number = pair / groups.len() * 2 + second;
        cpus[(number + number / cpus.len()) % cpus.len()]
    };
    (0..2)
        .flat_map(|second| (0..pairs).map(move |pair| site(pair, second)))
        .collect()
}

trait Index {
    fn index(self) -> usize;
}

impl Index for Cpu {
    fn index(self) -> usize {
        usize::from(self.0)
    }
}
