//! The channel thread: orders of the supervisor, notices of other threads, and each controller in its turn:
//! its requests (`requests`), and answers and events for it (`controller`).
//!
//! The thread waits for no other process. A controller's turn is bounded in messages and in time, and
//! messages for a controller wait with that controller alone: one that floods, stops reading or dies holds up
//! no other.

use crate::Error;
use crate::accounts::Accounts;
use crate::controller::{Controller, ENDED_PERIOD};
use crate::p4::{P4Key, P4Table};
use crate::pipeline::Pipeline;
use crate::removed::RemovedPorts;
use crate::requests::{Engine, Serving};
use crate::state::{Datapath, Queues};
use control_protocol::supervisor::{FromChild, Role, StuckThread, ToChild};
use control_protocol::work::Misses;
use control_protocol::{Channel, ChannelError};
use flow::ControllerId;
use kernel_path::Table;
use placement::{Config, Costs, Cpu, Policy, Topology};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::thread::sched_getaffinity;
use scheduler::{Placement, Pulse, Rings as _, Scheduler, Stuck, measure_wake_cost, start_all};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use vm_state::VmState;

/// Steps for packets before requests get their turn.
const STEPS: usize = 16;

/// Runs the data plane until the supervisor ends it or is gone. Must be called with no other threads running.
/// `topology` is that of the machine; work is done on those of its CPUs that this process may use.
/// `queues` says what the process may do besides.
pub fn run(supervisor: Channel, topology: Topology, queues: Queues) -> Result<(), Error> {
    guest_memory::survive_truncation()?;
    guest_memory::unmap_apart()?;
    vnic::call_apart()?;
    process::prepare_apart()?;
    if let Err(error) = eventfd::prepare() {
        log::warn!("no asynchronous I/O ({error}): a VMM may hold forwarding threads up for a moment");
    }
    let Some(orders) = receive_orders(&supervisor)? else {
        return Ok(());
    };
    let allowed = sched_getaffinity(None).map_err(std::io::Error::from)?;
    let topology = topology.restricted(|cpu| allowed.is_set(cpu.0.into()));
    let costs = costs(&topology)?;
    let policy = Policy::new(orders.config, topology, costs);
    let placement = Placement::new(policy, orders.vm_state)?.with_constraints(orders.constraints);
    let datapath = Datapath::with_queues(placement, queues)?;
    if let Some(table) = map_kernel_path(orders.kernel_path) {
        datapath.use_kernel_path(table);
    }
    let shared = datapath.shared.clone();
    // A channel of the watchdog's own, since this thread may be the one that hangs.
    let tell = Channel::from(supervisor.as_fd().try_clone_to_owned()?);
    shared.watch(move |stuck| report(&tell, stuck))?;
    let forwarder = datapath.clone();
    let workers = start_all(&shared, move || Pipeline::new(forwarder.clone()))?;
    let mut server = Server {
        pulse: shared.pulse(),
        engine: Engine {
            work: shared.ledger.open("channel"),
            scheduler: Scheduler::new(shared.clone(), None, Pipeline::new(datapath.clone())),
            datapath,
            workers,
            misses: Misses::default(),
            accounts: Accounts::default(),
            removed: RemovedPorts::default(),
        },
        controllers: BTreeMap::new(),
        kernel_path_due: None,
    };
    while server.turn(&supervisor)? {}
    shared.end();
    Ok(())
}

/// Has the supervisor look at a worker. Said again if it goes on.
fn report(supervisor: &Channel, stuck: Stuck) {
    let at_ms = u64::try_from(process::monotonic().as_millis()).unwrap_or(0);
    let report = StuckThread {
        tid: stuck.tid,
        beats: stuck.beats,
        at_ms,
    };
    let _ = supervisor.try_send(&FromChild::Stuck(report), &[]);
}

/// The supervisor's first orders.
#[derive(Default)]
struct Orders {
    config: Config,
    /// What is known of cores and guests.
    vm_state: Option<VmState>,
    /// The files of the cores that may be kept from halting.
    constraints: Vec<(Cpu, OwnedFd)>,
    /// The table of the kernel path.
    kernel_path: Option<OwnedFd>,
}

/// Receives the supervisor's first orders; the state of cores and guests is the last one. `None` if it has
/// ended.
fn receive_orders(supervisor: &Channel) -> Result<Option<Orders>, Error> {
    let mut orders = Orders::default();
    loop {
        match supervisor.recv::<ToChild>() {
            Ok((ToChild::Placement(wanted), _)) => orders.config = wanted,
            // The class that the kernel grants replaces the configured one.
            Ok((ToChild::Priority(granted), _)) => orders.config.priority = granted.class,
            Ok((ToChild::Constraints(cpus), fds)) => {
                orders.constraints.extend(cpus.into_iter().map(Cpu).zip(fds));
            }
            Ok((ToChild::KernelPath, fds)) => orders.kernel_path = fds.into_iter().next(),
            Ok((ToChild::VmState(_), fds)) => {
                orders.vm_state = map_vm_state(&fds);
                return Ok(Some(orders));
            }
            Ok((ToChild::Shutdown, _)) | Err(ChannelError::Closed) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The cost of moving work on this machine.
fn costs(topology: &Topology) -> std::io::Result<Costs> {
    let mut costs = Costs::default();
    let cpus: Vec<_> = topology.usable().collect();
    if let Some(wake_waker_ns) = measure_wake_cost(&cpus)? {
        costs.wake_waker_ns = wake_waker_ns;
        log::info!("waking a core takes {wake_waker_ns} ns from the core that wakes it");
    }
    Ok(costs)
}

/// Maps the area in which the supervisor publishes the state of cores and guests. Without it, their state is
/// unknown.
fn map_vm_state(fds: &[OwnedFd]) -> Option<VmState> {
    let state = VmState::map(fds.first()?.as_fd());
    state
        .inspect_err(|error| log::error!("the state of cores and guests cannot be mapped: {error}"))
        .ok()
}

/// Maps the table by which the kernel forwards between containers. Without it, all packets go through this
/// process.
fn map_kernel_path(fd: Option<OwnedFd>) -> Option<Table> {
    let table = Table::map(fd?.as_fd());
    table
        .inspect_err(|error| log::error!("the table of the kernel path cannot be mapped: {error}"))
        .ok()
}

/// A wait until something can be read.
fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// The process that is a controller.
fn role_of(controller: ControllerId) -> Option<Role> {
    match controller {
        ControllerId::BUILT_IN => Some(Role::Control),
        ControllerId::OVS => Some(Role::Ovs),
        _ => None,
    }
}

struct Server {
    pulse: Arc<Pulse>,
    engine: Engine,
    /// Controllers that ever had a channel. A controller's ports and flows outlive it.
    controllers: BTreeMap<ControllerId, Controller>,
    /// Time until copies of decisions in the kernel have to be looked at.
    kernel_path_due: Option<Duration>,
}

/// The sources that are ready after a wait.
struct Ready {
    supervisor: bool,
    notices: bool,
    /// Controllers with requests.
    requests: Vec<ControllerId>,
    /// P4 switches whose clients have sent something.
    clients: Vec<P4Key>,
}

impl Server {
    /// Waits for something to do and does it; false at the end.
    fn turn(&mut self, supervisor: &Channel) -> Result<bool, Error> {
        let ready = self.wait(supervisor)?;
        if ready.supervisor && !self.on_supervisor(supervisor)? {
            return Ok(false);
        }
        if ready.notices {
            self.take_notices();
        }
        let engine = &mut self.engine;
        for controller in self.controllers.values_mut() {
            controller.send_outbox(&engine.datapath);
            if ready.requests.contains(&controller.id) {
                Serving { controller, engine }.read_requests();
            }
            if controller.has_rule_work() {
                Serving { controller, engine }.work_on_rules();
            }
            if controller.has_p4_work() {
                Serving { controller, engine }.work_on_p4();
            }
            if !ready.clients.is_empty() {
                Serving { controller, engine }.serve_clients(&ready.clients);
            }
            controller.send_news(&engine.datapath);
        }
        let Engine { scheduler, work, .. } = engine;
        // Not until nothing is left: guests can keep a thread busy, and this one has others to serve.
        let _ = (0..STEPS).all(|_| scheduler.accounted(work, Scheduler::step));
        self.pulse.beat();
        scheduler.stop_polling(None);
        scheduler.rings.before_sleep();
        engine.finish_removed();
        for controller in self.controllers.values_mut() {
            controller.send_ended(&engine.datapath);
            if controller.take_overdue(engine.datapath.now_ms())
                && let Some(role) = role_of(controller.id)
            {
                // Said again if it goes on.
                let _ = supervisor.try_send(&FromChild::Owes(role), &[]);
            }
        }
        self.kernel_path_due = self.engine.datapath.step_kernel_path();
        Ok(true)
    }

    fn wait(&mut self, supervisor: &Channel) -> Result<Ready, Error> {
        let timeout = self.timeout();
        let Engine { datapath, work, .. } = &self.engine;
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = vec![
            PollFd::new(supervisor, PollFlags::IN),
            readable(datapath.notices.as_fd()),
        ];
        let ports = datapath.ports();
        let clients = ports.p4().into_iter().flat_map(P4Table::clients);
        let (waiting, polled): (Vec<_>, Vec<_>) = clients.partition(|(_, clients)| clients.waits());
        fds.extend(polled.iter().map(|(_, clients)| readable(clients.as_fd())));
        let others = fds.len();
        let mut watched = Vec::with_capacity(self.controllers.len());
        for controller in self.controllers.values() {
            if let Some((channel, events)) = controller.watched() {
                fds.push(PollFd::from_borrowed_fd(channel, events));
                watched.push(controller);
            }
        }
        let mut result = Ok(0);
        work.asleep(|| {
            let mut wait = || rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()));
            result = self.pulse.asleep(&mut wait);
            result.is_ok_and(|ready| ready > 0)
        });
        result.map_err(std::io::Error::from)?;
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let answering = watched.into_iter().zip(&fds[others..]);
        let sent = polled.iter().zip(&fds[others - polled.len()..]);
        let sent = sent.filter(|((_, clients), fd)| ready(fd) || clients.has_received());
        let sent = sent.map(|((key, _), _)| *key);
        Ok(Ready {
            supervisor: ready(&fds[0]),
            notices: ready(&fds[1]),
            clients: waiting.iter().map(|(key, _)| *key).chain(sent).collect(),
            requests: answering
                .filter(|(controller, fd)| {
                    !controller.is_blocked() && (controller.has_received() || ready(fd))
                })
                .map(|(controller, _)| controller.id)
                .collect(),
        })
    }

    /// Time until the next thing to do, if no event comes before.
    fn timeout(&mut self) -> Option<Duration> {
        let is_busy = |controller: &Controller| controller.has_received() || controller.has_rule_work();
        if self.controllers.values().any(is_busy) {
            return Some(Duration::ZERO);
        }
        let now_ms = self.engine.datapath.now_ms();
        let timers = self.engine.scheduler.schedule.next_deadline();
        let news = self.controllers.values().map(|one| one.timeout(now_ms));
        let ports = self.engine.datapath.ports();
        let clients = ports.p4().and_then(P4Table::next_turn_of_clients);
        let removed = (!self.engine.removed.is_empty()).then_some(ENDED_PERIOD);
        news.chain([timers, clients, self.kernel_path_due, removed])
            .flatten()
            .min()
    }

    fn on_supervisor(&mut self, supervisor: &Channel) -> Result<bool, Error> {
        match supervisor.try_recv::<ToChild>() {
            Ok((ToChild::Controller(id), fds)) => {
                self.connect(id, fds);
                Ok(true)
            }
            Ok((ToChild::Ping(ping), _)) => {
                // The supervisor reads, or it is gone.
                let _ = supervisor.try_send(&FromChild::Pong(ping), &[]);
                Ok(true)
            }
            Ok((ToChild::Shutdown, _)) | Err(ChannelError::Closed) => Ok(false),
            Ok(_) | Err(ChannelError::WouldBlock) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn connect(&mut self, id: ControllerId, fds: Vec<OwnedFd>) {
        let Some(channel) = fds.into_iter().next().filter(|_| id.0 < ControllerId::LIMIT) else {
            return log::error!("controller {id} cannot be: no channel, or no such number");
        };
        let new = || Controller::new(id, self.engine.datapath.rules.clone());
        let controller = self.controllers.entry(id).or_insert_with(new);
        controller.connect(Channel::from(channel), &self.engine.datapath);
    }

    /// Passes notices about ports on to the ports' controllers.
    fn take_notices(&mut self) {
        let datapath = &self.engine.datapath;
        let notices = datapath.notices.take();
        for id in notices.missing {
            if let Some(owner) = self.controllers.get_mut(&id.controller()) {
                owner.note_miss(id);
            }
        }
        for id in notices.uncopied {
            datapath.look_at_kernel_path(id);
        }
        let now_ms = datapath.now_ms();
        for id in notices.changed {
            for (number, controller) in &mut self.controllers {
                if number.owns(id) || *number == ControllerId::BUILT_IN {
                    controller.events.note(id, now_ms);
                }
            }
        }
    }
}
