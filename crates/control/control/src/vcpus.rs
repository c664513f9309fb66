//! The vCPU threads of each port's guest.
//!
//! The data plane reads the states of threads, but may not look at other processes; it reports the process
//! behind each port. We look up its vCPU threads in /proc, register them with the eBPF programs, and send
//! their slots to the data plane. That is done when a port is connected; when its rings are started for the
//! first time after that, by which time a VMM has made its vCPUs; when one of the threads was seen to end;
//! and when the data plane has packets of a guest all of whose threads sleep. A look-up costs the more, the
//! more threads a VMM has, so look-ups are merged and have a [pace](crate::pace). Other controllers' ports
//! are treated as our own: only one process may register threads. For a port of the driver domain, the thread
//! that serves its interface is registered, found by its name among those of forwarders, so that packets of
//! containers and of the host are switched where they are sent, too.
//!
//! Correctness does not depend on it: the state of a thread that is not registered is unknown.

use crate::pace::Pace;
use control_protocol::data_plane::{PortState, Request};
use control_protocol::driver::thread_name;
use control_protocol::supervisor::VmStates;
use flow::PortId;
use management::VmStateStatus;
use pacing::Turns;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;
use vm_state::{Registry, Slot, ThreadState, threads_named, vcpu_threads};

/// Least time between checks for threads that have ended, in milliseconds.
const LOOK_MS: u64 = 1_000;

/// Threads of each guest that always get a slot, however many other guests have; with few ports it may be
/// more.
const LEAST: usize = 16;

/// The threads of all guests, and the programs' registry.
pub(crate) struct Vcpus {
    registry: Result<Registry, Unpublished>,
    /// When the last check for ended threads was.
    looked_ms: u64,
    /// Ports whose guests' threads are to be looked up.
    waiting: Turns<PortId>,
    pace: Pace,
    guests: BTreeMap<PortId, Guest>,
    /// The processes that serve interfaces.
    forwarders: Forwarders,
}

/// The forwarders of the driver domain.
#[derive(Debug, Default)]
struct Forwarders {
    processes: Vec<u32>,
    /// Number of the list.
    generation: u32,
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
type Vcpu = (u32, Slot);

/// A port's guest.
#[derive(Debug, Default)]
struct Guest {
    end: End,
    /// The threads that are registered.
    threads: Vec<Vcpu>,
    /// Whether the data plane knows them.
    are_sent: bool,
    /// The process whose threads were looked up last, or of interfaces the number of the list of forwarders,
    /// and whether its driver was running then.
    looked_at: Option<(u32, bool)>,
}

/// The process at the other end of a port's rings.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    /// The guest's VMM.
    peer: Option<u32>,
    /// The peer is the driver domain.
    is_interface: bool,
    is_connected: bool,
    /// Whether the driver of the rings runs.
    runs: bool,
}

impl End {
    fn new(is_interface: bool, state: &PortState, peer: Option<u32>) -> End {
        End {
            peer,
            is_interface,
            is_connected: *state != PortState::Disconnected,
            runs: *state == PortState::Running,
        }
    }

    /// The process, or of an interface the list of those that may serve it.
    fn identity(&self, forwarders: &Forwarders) -> Option<u32> {
        let has_forwarders = !forwarders.processes.is_empty();
        let identity = if self.is_interface {
            has_forwarders.then_some(forwarders.generation)
        } else {
            self.peer
        };
        identity.filter(|_| self.is_connected)
    }

    /// The threads of its process: vCPUs, or the one that serves the interface.
    fn threads(&self, port: PortId, forwarders: &Forwarders) -> Vec<u32> {
        let proc = Path::new("/proc");
        if !self.is_connected {
            return Vec::new();
        }
        // A process that has just ended has no threads.
        if self.is_interface {
            let name = thread_name(port);
            let named = |process: &u32| threads_named(proc, *process, &name).unwrap_or_default();
            return forwarders.processes.iter().flat_map(named).collect();
        }
        let threads = self.peer.and_then(|process| vcpu_threads(proc, process).ok());
        threads.unwrap_or_default()
    }
}

impl Guest {
    /// Notes its process and state; true if they have changed since its threads were looked up last, so that
    /// these may have changed.
    fn note_process(&mut self, forwarders: &Forwarders) -> bool {
        let seen = self.looked_at;
        self.looked_at = self.end.identity(forwarders).map(|pid| {
            let ran = seen.is_some_and(|(before, ran)| before == pid && ran);
            (pid, ran || self.end.runs)
        });
        self.looked_at != seen
    }
}

impl Vcpus {
    pub fn new() -> Self {
        Vcpus {
            registry: Err(Unpublished::Unsaid),
            looked_ms: 0,
            waiting: Turns::default(),
            pace: Pace::default(),
            guests: BTreeMap::new(),
            forwarders: Forwarders::default(),
        }
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

    /// For users.
    pub fn status(&self) -> VmStateStatus {
        VmStateStatus {
            published: self.registry.is_ok(),
            reason: self.registry.as_ref().err().map(ToString::to_string),
        }
    }

    /// The threads of a port's guest that are registered.
    pub fn threads(&self, id: PortId) -> impl Iterator<Item = u32> {
        let threads = self.guests.get(&id).into_iter().flat_map(|guest| &guest.threads);
        threads.map(|(tid, _)| *tid)
    }

    /// The data plane gets a port of ours, whose guest is not known.
    pub fn added(&mut self, id: PortId) {
        self.removed(id);
        self.guests.insert(id, Guest::default());
    }

    /// The data plane has a port no longer.
    pub fn removed(&mut self, id: PortId) {
        if let Some(guest) = self.guests.remove(&id) {
            self.unregister(guest.threads);
        }
    }

    /// The data plane is gone, and with it what it knew.
    pub fn forget(&mut self) {
        let guests = std::mem::take(&mut self.guests);
        guests
            .into_values()
            .for_each(|guest| self.unregister(guest.threads));
    }

    /// A port's process or state is this: its guest's threads are looked up if they may have changed.
    pub fn on_port(&mut self, id: PortId, is_interface: bool, state: &PortState, peer: Option<u32>) {
        let guest = self.guests.entry(id).or_default();
        guest.end = End::new(is_interface, state, peer);
        if guest.note_process(&self.forwarders) {
            self.look(id);
        }
    }

    /// A port is new, or its guest's threads are to be looked up anew and sent in any case: it may be another
    /// port, which took this number.
    pub fn look_anew(&mut self, id: PortId, is_interface: bool, state: &PortState, peer: Option<u32>) {
        let guest = self.guests.entry(id).or_default();
        guest.end = End::new(is_interface, state, peer);
        guest.are_sent = false;
        self.look(id);
    }

    /// Looks up the threads of a port's guest, now or later.
    pub fn look(&mut self, id: PortId) {
        self.waiting.add(id);
    }

    /// The forwarders are these processes. The threads of interfaces may be those of others than before.
    pub fn on_forwarders(&mut self, processes: Vec<u32>) {
        if processes == self.forwarders.processes {
            return;
        }
        self.forwarders = Forwarders {
            processes,
            generation: self.forwarders.generation.wrapping_add(1),
        };
        for (id, guest) in &mut self.guests {
            if guest.note_process(&self.forwarders) {
                self.waiting.add(*id);
            }
        }
    }

    /// When the next guest's threads are to be looked up, if any.
    pub fn deadline_ms(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then(|| self.pace.due_ms())
    }

    /// Looks up the threads of a guest if that is due. Returns what the data plane is to be told, if they
    /// have changed.
    pub fn work(&mut self, now_ms: u64) -> Option<Request> {
        self.find_ended(now_ms);
        if !self.pace.is_due(now_ms) {
            return None;
        }
        let id = self.waiting.take()?;
        let start = Instant::now();
        let request = self.look_up(id);
        self.pace.worked(start.elapsed(), now_ms);
        request
    }

    /// Finds the threads of a port's guest.
    fn look_up(&mut self, id: PortId) -> Option<Request> {
        let share = (usize::from(Slot::LIMIT) / self.guests.len().max(1)).max(LEAST);
        let registry = self.registry.as_ref().ok()?;
        let guest = self.guests.get_mut(&id)?;
        let threads = guest.end.threads(id, &self.forwarders);
        let threads = threads.into_iter().take(share);
        let found: Vec<Vcpu> = threads
            .filter_map(|tid| Some((tid, registry.add(tid)?)))
            .collect();
        if guest.are_sent && guest.threads == found {
            return None;
        }
        log::debug!("port {id}: {} threads", found.len());
        let slots = found.iter().map(|(_, slot)| slot.0).collect();
        let before = std::mem::replace(&mut guest.threads, found);
        guest.are_sent = true;
        self.unregister(before);
        Some(Request::PortThreads { port: id, slots })
    }

    /// Unregisters threads that were a guest's, unless they are another one's too.
    fn unregister(&self, threads: Vec<Vcpu>) {
        let Ok(registry) = &self.registry else {
            return;
        };
        if threads.is_empty() {
            return;
        }
        let known = self.guests.values().flat_map(|guest| &guest.threads);
        let used: BTreeSet<Slot> = known.map(|(_, slot)| *slot).collect();
        let unused = threads.into_iter().filter(|(_, slot)| !used.contains(slot));
        unused.for_each(|(_, slot)| registry.remove(slot));
    }

    /// Has the threads of guests looked up of which one has ended. It has no deadline of its own: while this
    /// process has nothing else to do, there is little traffic to place.
    fn find_ended(&mut self, now_ms: u64) {
        let Ok(registry) = &self.registry else {
            return;
        };
        if now_ms < self.looked_ms + LOOK_MS {
            return;
        }
        self.looked_ms = now_ms;
        for (id, guest) in &self.guests {
            let mut slots = guest.threads.iter().map(|(_, slot)| *slot);
            if slots.any(|slot| registry.thread(slot) == ThreadState::Dead) {
                self.waiting.add(*id);
            }
        }
    }
}
