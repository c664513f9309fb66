//! The channel thread: requests of the control process (`requests`), misses (`miss`) and ports' events (`events`) for it,
//! orders of the supervisor.
//!
//! It must never wait for the control process, which may be waiting for it: what cannot be sent at once is kept, and nothing
//! else is read or made until it is sent. So what is kept is at most one request's answers, one event and
//! one miss, and answers that wait for forwarding threads (`ended`). Misses wait in their ports' bounded queues, events as one mark per port, and the two take turns: neither a
//! guest that makes up flows nor a VMM that connects and disconnects all the time holds up the other kind.

use crate::Error;
use crate::ended::Ended;
use crate::events::Events;
use crate::miss::Turns;
use crate::pipeline::Pipeline;
use crate::state::Datapath;
use control_protocol::data_plane::FromDataPlane;
use control_protocol::supervisor::{Role, ToChild};
use control_protocol::{Channel, ChannelError};
use flow::{DropReason, PortId};
use placement::{Config, Costs, Policy, Topology};
use ring::PoolOwner;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::thread::sched_getaffinity;
use scheduler::{Account, Placement, Pulse, Rings as _, Scheduler, measure_wake_cost, start_all};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use vm_state::VmState;
use vnic::{Counters, Packet};

/// Slots for packets the control process sends.
const INJECTION_SLOTS: u32 = 512;
/// Misses and events sent, and requests read, before the others get their turn.
pub(crate) const BATCH: usize = 64;
/// Between looks at whether forwarding threads have told what they counted, while an answer waits for that.
const ENDED_PERIOD: Duration = Duration::from_millis(1);
/// Things done for packets before requests get their turn.
const STEPS: usize = 16;

/// Runs the data plane until the supervisor says so or is gone. Must be called with no other threads running.
/// `topology` is that of the machine; work is done on those of its CPUs that this process may use.
pub fn run(supervisor: Channel, topology: Topology) -> Result<(), Error> {
    guest_memory::survive_truncation()?;
    guest_memory::unmap_apart()?;
    process::prepare_apart()?;
    if let Err(error) = notifier::prepare() {
        log::warn!("no asynchronous I/O ({error}): a VMM may hold forwarding threads up for a moment");
    }
    let Some((config, vm_state)) = hear_orders(&supervisor)? else {
        return Ok(());
    };
    let allowed = sched_getaffinity(None).map_err(std::io::Error::from)?;
    let topology = topology.restricted(|cpu| allowed.is_set(cpu.0.into()));
    let costs = costs(&topology)?;
    let policy = Policy::new(config, topology, costs);
    let datapath = Datapath::new(Placement::new(policy, vm_state)?)?;
    let crew = datapath.crew.clone();
    crew.watch()?;
    let forwarder = datapath.clone();
    let workers = start_all(&crew, move || Pipeline::new(forwarder.clone()))?;
    let memory = Arc::new(guest_memory::GuestMemory::new());
    let account = Arc::new(Counters::default());
    let mut server = Server {
        pulse: crew.pulse(),
        work: crew.ledger.open("channel"),
        scheduler: Scheduler::new(crew.clone(), None, Pipeline::new(datapath.clone())),
        pool: PoolOwner::new(INJECTION_SLOTS, || {
            Packet::new(PortId(0), account.clone(), memory.clone())
        }),
        account,
        datapath,
        workers,
        control: None,
        greeted: false,
        outbox: VecDeque::new(),
        turns: Turns::default(),
        events: Events::default(),
        ended: Ended::default(),
    };
    while server.turn(&supervisor)? {}
    crew.end();
    Ok(())
}

/// What the supervisor says before anything else: how to place work, and where to see what cores and guests do.
/// `None` if it has ended.
fn hear_orders(supervisor: &Channel) -> Result<Option<(Config, Option<VmState>)>, Error> {
    let mut config = Config::default();
    loop {
        match supervisor.recv::<ToChild>() {
            Ok((ToChild::Placement(wanted), _)) => config = wanted,
            // What the kernel grants takes the place of what was wished for.
            Ok((ToChild::Priority(granted), _)) => config.priority = granted.class,
            Ok((ToChild::VmState(_), fds)) => return Ok(Some((config, map_vm_state(&fds)))),
            Ok((ToChild::Shutdown, _)) | Err(ChannelError::Closed) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What moving work costs on this machine.
fn costs(topology: &Topology) -> std::io::Result<Costs> {
    let mut costs = Costs::default();
    let cpus: Vec<_> = topology.usable().collect();
    if let Some(wake_waker_ns) = measure_wake_cost(&cpus)? {
        costs.wake_waker_ns = wake_waker_ns;
        log::info!("waking a core takes {wake_waker_ns} ns from the core that wakes it");
    }
    Ok(costs)
}

/// Maps the area in which the supervisor publishes the state of cores and guests. Without it, their state is unknown.
fn map_vm_state(fds: &[OwnedFd]) -> Option<VmState> {
    let state = VmState::map(fds.first()?.as_fd());
    state
        .inspect_err(|error| log::error!("the state of cores and guests cannot be mapped: {error}"))
        .ok()
}

pub(crate) struct Server {
    pulse: Arc<Pulse>,
    pub work: Arc<Account>,
    pub datapath: Arc<Datapath>,
    pub scheduler: Scheduler<Pipeline>,
    /// Packets of the control process under way.
    pub pool: PoolOwner<Packet>,
    /// For slots at rest.
    pub account: Arc<Counters>,
    pub workers: usize,
    pub control: Option<Channel>,
    /// It has said hello, which decides what its predecessor held.
    pub greeted: bool,
    /// What could not be sent yet: answers to one request, an event and a miss.
    pub outbox: VecDeque<FromDataPlane>,
    turns: Turns,
    pub events: Events,
    /// Answers that wait for forwarding threads.
    pub ended: Ended,
}

impl Server {
    /// Waits for something to do and does it; false at the end.
    fn turn(&mut self, supervisor: &Channel) -> Result<bool, Error> {
        let blocked = !self.outbox.is_empty();
        let control_events = if blocked { PollFlags::OUT } else { PollFlags::IN };
        let timeout = self.timeout();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let (from_supervisor, from_workers, from_control) = {
            let mut fds = vec![
                PollFd::new(supervisor, PollFlags::IN),
                PollFd::from_borrowed_fd(self.datapath.notices.as_fd(), PollFlags::IN),
            ];
            fds.extend(
                self.control
                    .as_ref()
                    .map(|control| PollFd::new(control, control_events)),
            );
            let mut result = Ok(0);
            self.work.asleep(|| {
                let mut wait = || rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()));
                result = self.pulse.asleep(&mut wait);
                result.is_ok_and(|ready| ready > 0)
            });
            result.map_err(std::io::Error::from)?;
            let ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
            (ready(0), ready(1), ready(2))
        };
        if from_supervisor && !self.obey(supervisor)? {
            return Ok(false);
        }
        if from_workers {
            self.take_notices();
        }
        self.send_outbox();
        if from_control && !blocked {
            self.read_requests();
        }
        self.send_news();
        // Not until nothing is left: guests can keep a thread busy, and this one has others to serve.
        let _ = (0..STEPS).all(|_| self.scheduler.accounted(&self.work, Scheduler::step));
        self.pulse.beat();
        self.scheduler.stop_polling(false);
        self.scheduler.rings.before_sleep();
        self.send_ended();
        Ok(true)
    }

    /// How long there is nothing to do unless something happens.
    fn timeout(&mut self) -> Option<Duration> {
        let events = self.events.next_due().filter(|_| self.control.is_some());
        let events =
            events.map(|due| Duration::from_millis(due.saturating_sub(self.datapath.now_ms()).max(1)));
        let waits = !self.ended.is_empty() && self.outbox.is_empty();
        let ended = waits.then_some(ENDED_PERIOD);
        [self.scheduler.schedule.next_deadline(), events, ended]
            .into_iter()
            .flatten()
            .min()
    }

    fn obey(&mut self, supervisor: &Channel) -> Result<bool, Error> {
        match supervisor.try_recv::<ToChild>() {
            Ok((ToChild::Peer(Role::Control), fds)) => {
                self.lose_control();
                self.control = fds.into_iter().next().map(Channel::from);
                Ok(true)
            }
            Ok((ToChild::Shutdown, _)) | Err(ChannelError::Closed) => Ok(false),
            Ok(_) | Err(ChannelError::WouldBlock) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Forgets a control process; what it held is lost.
    pub fn lose_control(&mut self) {
        self.control = None;
        self.greeted = false;
        self.outbox.clear();
        self.ended.clear();
        self.events.forget_told();
        self.write_off();
    }

    pub fn write_off(&mut self) {
        for port in self.datapath.ports().iter() {
            let lost = port.misses.write_off();
            if lost > 0 {
                port.vnic.account.discarded(DropReason::ControlLost, lost);
            }
            if port.misses.is_waiting() {
                self.turns.add(port.id());
            }
        }
    }

    fn take_notices(&mut self) {
        let notices = self.datapath.notices.take();
        for id in notices.missing {
            self.turns.add(id);
        }
        let now_ms = self.datapath.now_ms();
        for id in notices.changed {
            self.events.note(id, now_ms);
        }
    }

    /// Answers a request.
    pub fn send(&mut self, message: FromDataPlane) {
        if self.control.is_some() {
            self.outbox.push_back(message);
            self.send_outbox();
        }
    }

    fn send_outbox(&mut self) {
        while let (Some(control), Some(message)) = (&self.control, self.outbox.front()) {
            match control.try_send(message, &[]) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(ChannelError::WouldBlock) => return,
                Err(ChannelError::Closed) => return self.lose_control(),
                Err(error) => {
                    telemetry::limited!(log::Level::Error, "cannot tell the control process: {error}");
                    self.outbox.pop_front();
                }
            }
        }
    }

    /// Answers requests for which forwarding threads have told what they counted.
    fn send_ended(&mut self) {
        while self.outbox.is_empty()
            && let Some(answer) = self.ended.next(&self.datapath.periods, self.datapath.now_ms())
        {
            self.send(answer);
        }
    }

    /// Sends what nobody asked for as far as there is room: an event, a miss, an event, and so on.
    fn send_news(&mut self) {
        self.events.wake(self.datapath.now_ms());
        for _ in 0..BATCH {
            if self.control.is_none() || !self.outbox.is_empty() {
                return;
            }
            let news = [self.events.next(&self.datapath), self.next_miss()];
            if news.iter().all(Option::is_none) {
                return;
            }
            self.outbox.extend(news.into_iter().flatten());
            self.send_outbox();
        }
        if !self.turns.is_empty() || self.events.is_ready() {
            self.datapath.notices.again();
        }
    }

    /// The next packet for the control process, one port after the other.
    fn next_miss(&mut self) -> Option<FromDataPlane> {
        while self.greeted {
            let id = self.turns.next()?;
            let Some(port) = self.datapath.port(id) else {
                continue;
            };
            let Some((upcall, more)) = port.misses.pop(self.datapath.now_ms()) else {
                continue;
            };
            if more {
                self.turns.add(id);
            }
            return Some(FromDataPlane::Upcall(upcall));
        }
        None
    }
}
