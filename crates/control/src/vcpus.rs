//! The vCPU threads of each port's guest.
//!
//! The data plane reads the states of threads, but may not look at other processes; it reports the process behind each port.
//! We look up its vCPU threads in /proc, register them with the eBPF programs, and send their slots to the data plane. That
//! is done when a port is connected; when its rings are started for the first time after that, by which time a VMM has made
//! its vCPUs; when one of the threads was seen to end; and when the data plane has packets of a guest all of whose threads
//! sleep. A look-up costs the more, the more threads a VMM has, so look-ups are merged and have a [pace](crate::pace).
//! For a port of the driver domain, the thread that serves its interface is registered, found by its name, so that packets of
//! containers and of the host are switched where they are sent, too.
//!
//! Correctness does not depend on it: the state of a thread that is not registered is unknown.

use crate::links::PortRun;
use crate::pace::{Pace, Queue};
use crate::process::Control;
use crate::state::Link;
use control_protocol::data_plane::{PortState, Request};
use control_protocol::driver::thread_name;
use control_protocol::supervisor::{ProcessStatus, Role, VmStates};
use management::VmStateStatus;
use std::collections::BTreeSet;
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
    waiting: Queue<String>,
    pace: Pace,
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

impl Vcpus {
    pub fn new() -> Self {
        Vcpus {
            registry: Err(Unpublished::Unsaid),
            looked_ms: 0,
            waiting: Queue::default(),
            pace: Pace::default(),
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

impl PortRun {
    /// The process on the other side of the rings: the guest's VMM, or the driver domain.
    fn process(&self, driver: Option<u32>) -> Option<u32> {
        let process = match self.wanted.link {
            Link::Listen(_) | Link::Connect(_) => self.peer,
            Link::Interface(_) => driver,
        };
        process.filter(|_| self.state != PortState::Disconnected)
    }

    /// The threads on the other side: vCPUs, or the one that serves the interface.
    fn threads(&self, driver: Option<u32>) -> Vec<u32> {
        let proc = Path::new("/proc");
        let threads = self
            .process(driver)
            .map(|pid| match (&self.wanted.link, self.id) {
                (Link::Interface(_), Some(port)) => threads_named(proc, pid, &thread_name(port)),
                _ => vcpu_threads(proc, pid),
            });
        // A process that has just ended has no threads.
        threads.and_then(Result::ok).unwrap_or_default()
    }
}

impl Control {
    /// A port's process or state has changed: its guest's threads are looked up, now or later, if they may have changed.
    pub fn guest_changed(&mut self, name: &str) {
        let driver = self.driver_pid();
        let Some(run) = self.ports.get_mut(name) else {
            return;
        };
        let runs = run.state == PortState::Running;
        let seen = run.looked_at;
        run.looked_at = run.process(driver).map(|pid| {
            let ran = seen.is_some_and(|(before, ran)| before == pid && ran);
            (pid, ran || runs)
        });
        if run.looked_at != seen {
            self.look_at_guest(name);
        }
    }

    /// The supervisor has said which processes there are. The threads of interfaces may be those of another driver domain.
    pub fn processes_are(&mut self, processes: Vec<ProcessStatus>) {
        let before = self.driver_pid();
        self.processes = processes;
        if self.driver_pid() == before {
            return;
        }
        let is_interface = |run: &PortRun| matches!(run.wanted.link, Link::Interface(_));
        let ports = self.ports.iter().filter(|(_, run)| is_interface(run));
        let names: Vec<String> = ports.map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.guest_changed(name));
    }

    fn driver_pid(&self) -> Option<u32> {
        let driver = self.processes.iter().find(|process| process.role == Role::Driver);
        driver.and_then(|driver| driver.pid)
    }

    /// Looks up the threads of a port's guest, now or later.
    pub fn look_at_guest(&mut self, name: &str) {
        self.vcpus.waiting.add(name.to_owned());
        let now_ms = self.now_ms();
        self.watch_guests(now_ms);
    }

    /// Looks up the threads of the guests that are due.
    pub fn watch_guests(&mut self, now_ms: u64) {
        if self.vcpus.pace.is_due(now_ms)
            && let Some(name) = self.vcpus.waiting.next()
        {
            let start = Instant::now();
            self.watch_guest(&name);
            self.vcpus.pace.worked(start.elapsed(), now_ms);
        }
    }

    /// Finds the threads of a port that the data plane has, and sends them to it if they have changed.
    fn watch_guest(&mut self, name: &str) {
        let driver = self.driver_pid();
        let share = (usize::from(Slot::LIMIT) / self.ports.len().max(1)).max(LEAST);
        let (Ok(registry), Some(run)) = (&self.vcpus.registry, self.ports.get_mut(name)) else {
            return;
        };
        let Some(port) = run.id.filter(|_| run.added) else {
            return;
        };
        let threads = run.threads(driver).into_iter().take(share);
        let found: Vec<Vcpu> = threads
            .filter_map(|tid| Some((tid, registry.add(tid)?)))
            .collect();
        if run.vcpus.as_ref() == Some(&found) {
            return;
        }
        log::debug!("port {name}: {} threads", found.len());
        let slots = found.iter().map(|(_, slot)| slot.0).collect();
        let before = run.vcpus.replace(found);
        self.forget_threads(before);
        self.ask_quietly(Request::PortThreads { port, slots });
    }

    /// Unregisters threads that were a port's, unless they are another port's too.
    pub fn forget_threads(&self, threads: impl IntoIterator<Item = Vec<Vcpu>>) {
        let Ok(registry) = &self.vcpus.registry else {
            return;
        };
        let known = self.ports.values().flat_map(|run| run.vcpus.iter().flatten());
        let used: BTreeSet<Slot> = known.map(|(_, slot)| *slot).collect();
        let unused = threads
            .into_iter()
            .flatten()
            .filter(|(_, slot)| !used.contains(slot));
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
        let ended = |run: &PortRun| {
            let mut slots = run.vcpus.iter().flatten().map(|(_, slot)| *slot);
            slots.any(|slot| registry.thread(slot) == ThreadState::Dead)
        };
        let ports = self.ports.iter().filter(|(_, run)| ended(run));
        let names: Vec<String> = ports.map(|(name, _)| name.clone()).collect();
        self.vcpus.looked_ms = now_ms;
        names.into_iter().for_each(|name| self.vcpus.waiting.add(name));
    }
}
