//! The vCPU threads of each port's guest.
//!
//! The data plane reads the states of threads, but may not look at other processes; it reports the process behind each port.
//! We look up its vCPU threads in /proc, register them with the eBPF programs, and send their slots to the data plane. That
//! is done when a port is connected; when its rings are started for the first time after that, by which time a VMM has made
//! its vCPUs; when one of the threads was seen to end; and when the data plane has packets of a guest all of whose threads
//! sleep. A look-up costs the more, the more threads a VMM has, so look-ups are merged and have a [pace](crate::pace).
//! Other controllers' ports are treated alike: only one process may register threads.
//! For a port of the driver domain, the thread that serves its interface is registered, found by its name, so that packets of
//! containers and of the host are switched where they are sent, too.
//!
//! Correctness does not depend on it: the state of a thread that is not registered is unknown.

use crate::answers::Pending;
use crate::pace::{Pace, Queue};
use crate::process::Control;
use crate::state::Link;
use control_protocol::data_plane::{Connection, PortState, Request};
use control_protocol::driver::thread_name;
use control_protocol::supervisor::{ProcessStatus, Role, VmStates};
use flow::{ControllerId, PortId};
use management::VmStateStatus;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;
use vm_state::{Registry, Slot, ThreadState, threads_named, vcpu_threads};

/// Least time between checks for threads that have ended, in milliseconds.
const LOOK_MS: u64 = 1_000;

/// Threads of each guest that always get a slot, however many other guests have; with few ports it may be more.
const LEAST: usize = 16;

/// The programs' registry, or why there is none.
pub(crate) struct Vcpus {
    registry: Result<Registry, Unpublished>,
    /// When the last check for ended threads was.
    looked_ms: u64,
    /// Ports whose guests' threads are to be looked up.
    waiting: Queue<PortId>,
    pace: Pace,
    foreign: BTreeMap<PortId, ForeignPort>,
}

/// Why states of cores and guests are not known.
#[derive(Debug, thiserror::Error)]
enum Unpublished {
    #[error("the supervisor has not said")]
    Unsaid,
    /// The supervisor's reason.
    #[error("{0}")]
    Unavailable(String),
    #[error("the memory was announced and not sent")]
    NotSent,
    #[error("cannot map it: {0}")]
    Unmapped(std::io::Error),
}

/// A thread of a guest, and its slot.
pub(crate) type Vcpu = (u32, Slot);

/// The threads of a port's guest.
#[derive(Debug, Default)]
pub(crate) struct Guest {
    /// The threads that are registered.
    threads: Vec<Vcpu>,
    /// Whether the data plane knows them.
    are_sent: bool,
    /// The process whose threads were looked up last, and whether its driver was running then.
    looked_at: Option<(u32, bool)>,
}

impl Guest {
    /// The threads that are registered.
    pub fn threads(&self) -> impl Iterator<Item = &Vcpu> {
        self.threads.iter()
    }

    /// Has the threads looked up again at the next opportunity.
    pub fn look_again(&mut self) {
        self.looked_at = None;
    }

    /// Notes that the data plane knows none of the threads any more. Returns the threads, which are to be unregistered.
    #[must_use]
    pub fn forget(&mut self) -> Vec<Vcpu> {
        std::mem::take(self).threads
    }
}

/// A port of another controller, as the data plane reported it last.
#[derive(Debug)]
struct ForeignPort {
    end: End,
    guest: Guest,
}

/// The other end of a port's rings.
#[derive(Clone, Copy, Debug)]
struct End {
    /// The guest's VMM, or the driver domain.
    process: Option<u32>,
    is_interface: bool,
    /// Whether the driver of the rings runs.
    runs: bool,
}

impl End {
    fn new(is_interface: bool, state: &PortState, peer: Option<u32>, driver: Option<u32>) -> End {
        let process = if is_interface { driver } else { peer };
        End {
            process: process.filter(|_| *state != PortState::Disconnected),
            is_interface,
            runs: *state == PortState::Running,
        }
    }

    /// The threads: vCPUs, or the one that serves the interface.
    fn threads(&self, port: PortId) -> Vec<u32> {
        let proc = Path::new("/proc");
        let threads = self.process.map(|pid| {
            if self.is_interface {
                threads_named(proc, pid, &thread_name(port))
            } else {
                vcpu_threads(proc, pid)
            }
        });
        // A process that has just ended has no threads.
        threads.and_then(Result::ok).unwrap_or_default()
    }
}

impl Vcpus {
    pub fn new() -> Self {
        Vcpus {
            registry: Err(Unpublished::Unsaid),
            looked_ms: 0,
            waiting: Queue::default(),
            pace: Pace::default(),
            foreign: BTreeMap::new(),
        }
    }

    /// Forgets the ports of other controllers; returns their threads, which are to be unregistered.
    #[must_use]
    pub fn forget_foreign(&mut self) -> Vec<Vcpu> {
        let foreign = std::mem::take(&mut self.foreign);
        foreign
            .into_values()
            .flat_map(|port| port.guest.threads)
            .collect()
    }

    /// The supervisor has sent the memory in which states are published, or the reason why there is none.
    pub fn attach(&mut self, states: VmStates, fds: &[OwnedFd]) {
        self.registry = match (states, fds.first()) {
            (VmStates::Unavailable(reason), _) => Err(Unpublished::Unavailable(reason)),
            (VmStates::Published, None) => Err(Unpublished::NotSent),
            (VmStates::Published, Some(area)) => Registry::map(area.as_fd()).map_err(Unpublished::Unmapped),
        };
        match &self.registry {
            Ok(_) => log::info!("vm-state: published by eBPF programs"),
            Err(reason) => log::warn!("vm-state: ring hints only ({reason})"),
        }
    }

    /// When the next guest's threads are to be looked up, if any.
    pub fn deadline_ms(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then(|| self.pace.due_ms())
    }

    /// For users.
    pub fn status(&self) -> VmStateStatus {
        VmStateStatus {
            published: self.registry.is_ok(),
            reason: self.registry.as_ref().err().map(ToString::to_string),
        }
    }
}

impl Control {
    /// A port of another controller has changed, or its guest's threads are to be looked up anew.
    pub fn foreign_port_changed(
        &mut self,
        id: PortId,
        connection: Connection,
        state: PortState,
        peer: Option<u32>,
    ) {
        // Numbers that no such port has come from a data plane that lies.
        if id.0 >= PortId::LIMIT || ControllerId::BUILT_IN.owns(id) {
            return;
        }
        if state == PortState::Disconnected {
            let gone = self.vcpus.foreign.remove(&id);
            return self.forget_threads(gone.into_iter().flat_map(|port| port.guest.threads));
        }
        let end = End::new(connection == Connection::Driver, &state, peer, self.driver_pid());
        let port = self.vcpus.foreign.entry(id).or_insert_with(|| ForeignPort {
            end,
            guest: Guest::default(),
        });
        port.end = end;
        // It may be another port, which took its number.
        port.guest.are_sent = false;
        self.look_at_guest(id);
    }

    /// The other end of a port that the data plane has.
    fn end(&self, id: PortId) -> Option<End> {
        if let Some(port) = self.vcpus.foreign.get(&id) {
            return Some(port.end);
        }
        let run = self.ports.get(self.names.get(&id)?).filter(|run| run.added)?;
        let is_interface = matches!(run.wanted.link, Link::Interface(_));
        Some(End::new(is_interface, &run.state, run.peer, self.driver_pid()))
    }

    fn guest(&mut self, id: PortId) -> Option<&mut Guest> {
        if let Some(port) = self.vcpus.foreign.get_mut(&id) {
            return Some(&mut port.guest);
        }
        let run = self.ports.get_mut(self.names.get(&id)?)?;
        Some(&mut run.guest)
    }

    /// All ports' guests.
    fn guests(&self) -> impl Iterator<Item = (PortId, &Guest)> {
        let own = self.ports.values().filter_map(|run| Some((run.id?, &run.guest)));
        let foreign = self.vcpus.foreign.iter().map(|(id, port)| (*id, &port.guest));
        own.chain(foreign)
    }

    /// A port's process or state has changed: its guest's threads are looked up, now or later, if they may have changed.
    pub fn guest_changed(&mut self, id: PortId) {
        let Some(end) = self.end(id) else {
            return;
        };
        let Some(guest) = self.guest(id) else {
            return;
        };
        let seen = guest.looked_at;
        guest.looked_at = end.process.map(|pid| {
            let ran = seen.is_some_and(|(before, ran)| before == pid && ran);
            (pid, ran || end.runs)
        });
        if guest.looked_at != seen {
            self.look_at_guest(id);
        }
    }

    /// The supervisor has said which processes there are. The threads of interfaces may be those of another driver domain.
    pub fn processes_are(&mut self, processes: Vec<ProcessStatus>) {
        let before = self.driver_pid();
        self.processes = processes;
        let driver = self.driver_pid();
        if driver == before {
            return;
        }
        let foreign = self.vcpus.foreign.values_mut();
        for port in foreign.filter(|port| port.end.is_interface) {
            port.end.process = driver;
        }
        let ports: Vec<PortId> = self.guests().map(|(id, _)| id).collect();
        ports.into_iter().for_each(|id| self.guest_changed(id));
    }

    fn driver_pid(&self) -> Option<u32> {
        let driver = self.processes.iter().find(|process| process.role == Role::Driver);
        driver.and_then(|driver| driver.pid)
    }

    /// Looks up the threads of a port's guest, now or later.
    pub fn look_at_guest(&mut self, id: PortId) {
        self.vcpus.waiting.add(id);
        let now_ms = self.now_ms();
        self.watch_guests(now_ms);
    }

    /// Looks up the threads of the guests that are due.
    pub fn watch_guests(&mut self, now_ms: u64) {
        if self.vcpus.pace.is_due(now_ms)
            && let Some(id) = self.vcpus.waiting.next()
        {
            let start = Instant::now();
            self.watch_guest(id);
            self.vcpus.pace.worked(start.elapsed(), now_ms);
        }
    }

    /// Finds the threads of a port that the data plane has, and sends them to it if they have changed.
    fn watch_guest(&mut self, id: PortId) {
        let share = (usize::from(Slot::LIMIT) / self.guests().count().max(1)).max(LEAST);
        let (Ok(registry), Some(end)) = (&self.vcpus.registry, self.end(id)) else {
            return;
        };
        let threads = end.threads(id).into_iter().take(share);
        let found: Vec<Vcpu> = threads
            .filter_map(|tid| Some((tid, registry.add(tid)?)))
            .collect();
        let slots = found.iter().map(|(_, slot)| slot.0).collect();
        let Some(guest) = self.guest(id) else {
            return;
        };
        if guest.are_sent && guest.threads == found {
            return;
        }
        log::debug!("port {id}: {} threads", found.len());
        let before = std::mem::replace(&mut guest.threads, found);
        guest.are_sent = true;
        self.forget_threads(before);
        let request = Request::PortThreads { port: id, slots };
        self.ask(request, Vec::new(), Pending::Threads);
    }

    /// Unregisters threads that were a port's, unless they are another port's too.
    pub fn forget_threads(&self, threads: impl IntoIterator<Item = Vcpu>) {
        let Ok(registry) = &self.vcpus.registry else {
            return;
        };
        let known = self.guests().flat_map(|(_, guest)| guest.threads());
        let used: BTreeSet<Slot> = known.map(|(_, slot)| *slot).collect();
        let unused = threads.into_iter().filter(|(_, slot)| !used.contains(slot));
        unused.for_each(|(_, slot)| registry.remove(slot));
    }

    /// Looks up the threads of guests of which a thread has ended. It has no deadline of its own: while this process has nothing
    /// else to do, there is little traffic to place.
    pub fn refresh_guests(&mut self, now_ms: u64) {
        let Ok(registry) = &self.vcpus.registry else {
            return;
        };
        if now_ms < self.vcpus.looked_ms + LOOK_MS {
            return;
        }
        let ended = |guest: &Guest| {
            let mut slots = guest.threads().map(|(_, slot)| *slot);
            slots.any(|slot| registry.thread(slot) == ThreadState::Dead)
        };
        let ports = self.guests().filter(|(_, guest)| ended(guest));
        let ports: Vec<PortId> = ports.map(|(id, _)| id).collect();
        self.vcpus.looked_ms = now_ms;
        ports.into_iter().for_each(|id| self.vcpus.waiting.add(id));
    }
}
