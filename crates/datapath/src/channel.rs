//! The channel thread: requests of the control process, misses and notices for it, orders of the supervisor.
//!
//! It must never wait for the control process, which may be waiting for it: what cannot be sent at once is kept,
//! and no further request is read until it is sent. So at most one request's answers are kept.

use crate::Error;
use crate::miss::Turns;
use crate::pipeline::Pipeline;
use crate::placement::Placement;
use crate::port::Port;
use crate::state::Datapath;
use crate::trace::trace;
use crate::wake_cost;
use crate::watchdog::Pulse;
use crate::work::Work;
use crate::worker;
use control_protocol::data_plane::{
    Answer, Connection, Execute, FromDataPlane, PortSpec, PortState, Request, ToDataPlane, UpcallId, VERSION,
};
use control_protocol::supervisor::{Role, ToChild};
use control_protocol::{Channel, ChannelError};
use flow::{DropReason, Flow, PortId, SwitchId};
use placement::{Config, Costs, Policy, Topology};
use ring::PoolOwner;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::thread::sched_getaffinity;
use std::collections::{HashMap, VecDeque};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vm_state::{Slot, VmState};
use vnic::{Counters, Host as _, MAX_FRAME, Packet};

/// Slots for packets the control process sends.
const INJECTION_SLOTS: u32 = 512;
/// Entries per listing message, so that it fits: a flow is below 600 bytes, a port below 2,000.
const FLOWS_PER_MESSAGE: usize = 64;
const PORTS_PER_MESSAGE: usize = 16;
/// Misses sent, and requests read, before the other gets its turn.
const BATCH: usize = 64;
/// Things done for packets before requests get their turn.
const STEPS: usize = 16;

/// Runs the data plane until the supervisor says so or is gone. Must be called with no other threads running.
/// `topology` is that of the machine; work is done on those of its CPUs that this process may use.
pub fn run(supervisor: Channel, topology: Topology) -> Result<(), Error> {
    guest_memory::survive_truncation()?;
    guest_memory::unmap_apart()?;
    sandbox::prepare_apart()?;
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
    let (ending, watchdog) = (datapath.crew.ending.clone(), datapath.crew.watchdog.clone());
    watchdog.start(&ending)?;
    let workers = worker::start_all(&datapath)?;
    let memory = Arc::new(guest_memory::GuestMemory::new());
    let account = Arc::new(Counters::default());
    let mut server = Server {
        pulse: Pulse::new(&watchdog),
        work: datapath.work.open("channel"),
        pipeline: Pipeline::new(datapath.clone(), None),
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
        states: HashMap::new(),
    };
    while server.turn(&supervisor)? {}
    ending.store(true, Ordering::Relaxed);
    Ok(())
}

/// What the supervisor says before anything else: how to place work, and where to see what cores and guests do.
/// `None` if it has ended.
fn hear_orders(supervisor: &Channel) -> Result<Option<(Config, Option<VmState>)>, Error> {
    let mut config = Config::default();
    loop {
        match supervisor.recv::<ToChild>() {
            Ok((ToChild::Placement(wanted), _)) => config = wanted,
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
    if let Some(wake_waker_ns) = wake_cost::measure(&cpus)? {
        costs.wake_waker_ns = wake_waker_ns;
        log::info!("waking a core takes {wake_waker_ns} ns from the core that wakes it");
    }
    Ok(costs)
}

/// Maps what says what cores and guests do. Without it, that is unknown.
fn map_vm_state(fds: &[OwnedFd]) -> Option<VmState> {
    let state = VmState::map(fds.first()?.as_fd());
    state
        .inspect_err(|error| log::error!("the state of cores and guests cannot be mapped: {error}"))
        .ok()
}

struct Server {
    pulse: Arc<Pulse>,
    work: Arc<Work>,
    datapath: Arc<Datapath>,
    pipeline: Pipeline,
    /// Packets of the control process under way.
    pool: PoolOwner<Packet>,
    /// For slots at rest.
    account: Arc<Counters>,
    workers: usize,
    control: Option<Channel>,
    /// It has said hello, which decides what its predecessor held.
    greeted: bool,
    /// What could not be sent yet.
    outbox: VecDeque<FromDataPlane>,
    turns: Turns,
    /// Port states and peers as last told.
    states: HashMap<PortId, (PortState, Option<u32>)>,
}

impl Server {
    /// Waits for something to do and does it; false at the end.
    fn turn(&mut self, supervisor: &Channel) -> Result<bool, Error> {
        let blocked = !self.outbox.is_empty();
        let control_events = if blocked { PollFlags::OUT } else { PollFlags::IN };
        let timeout = self.pipeline.next_deadline();
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
        self.send_misses();
        // Not until nothing is left: guests can keep a thread busy, and this one has others to serve.
        let _ = (0..STEPS).all(|_| self.work.run(&mut self.pipeline, Pipeline::step));
        self.pulse.beat();
        self.pipeline.stop_polling(false);
        self.pipeline.rest();
        Ok(true)
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
    fn lose_control(&mut self) {
        self.control = None;
        self.greeted = false;
        self.outbox.clear();
        self.states.clear();
        self.write_off();
    }

    fn write_off(&mut self) {
        for port in self.datapath.ports().iter().flatten() {
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
        for id in notices.changed {
            let Some(port) = self.datapath.port(id) else {
                continue;
            };
            let (state, peer) = (port.state(), port.peer());
            let now = (state.clone(), peer);
            if self.states.get(&id) != Some(&now) {
                self.states.insert(id, now);
                self.send(FromDataPlane::PortState {
                    port: id,
                    state,
                    peer,
                });
            }
        }
    }

    fn send(&mut self, message: FromDataPlane) {
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
                    log::error!("cannot tell the control process: {error}");
                    self.outbox.pop_front();
                }
            }
        }
    }

    /// Sends misses, one port after the other.
    fn send_misses(&mut self) {
        for _ in 0..BATCH {
            let Some(control) = &self.control else { return };
            if !self.greeted || !self.outbox.is_empty() {
                return;
            }
            let Some(id) = self.turns.next() else { return };
            let Some(port) = self.datapath.port(id) else {
                continue;
            };
            let Some((upcall, more)) = port.misses.pop(self.datapath.now_ms()) else {
                continue;
            };
            if more {
                self.turns.add(id);
            }
            let message = FromDataPlane::Upcall(upcall);
            match control.try_send(&message, &[]) {
                Ok(()) => {}
                Err(ChannelError::Closed) => return self.lose_control(),
                Err(_) => self.outbox.push_back(message),
            }
        }
        if !self.turns.is_empty() {
            self.datapath.notices.again();
        }
    }

    fn read_requests(&mut self) {
        for _ in 0..BATCH {
            let Some(control) = &self.control else { return };
            if !self.outbox.is_empty() {
                return;
            }
            match control.try_recv::<ToDataPlane>() {
                Ok((ToDataPlane { serial, request }, fds)) => self.serve(serial, request, fds),
                Err(ChannelError::WouldBlock) => return,
                Err(ChannelError::Malformed(error)) => log::error!("control process: {error}"),
                Err(_) => return self.lose_control(),
            }
        }
    }

    fn serve(&mut self, serial: u32, request: Request, fds: Vec<OwnedFd>) {
        let result = match request {
            Request::Execute(execute) => return self.execute(execute),
            Request::Discard { upcall, reason } => return self.discard(upcall, reason),
            Request::PortList => return self.list_ports(serial),
            Request::FlowList { switch } => return self.list_flows(serial, switch),
            Request::Hello { version } => self.hello(version),
            Request::PortAdd(spec) => self.add_port(spec, fds).map(|()| Answer::Done),
            Request::PortAttach { port } => self.attach_port(port, fds).map(|()| Answer::Done),
            Request::PortDel { port } => self.delete_port(port).map(|()| Answer::Done),
            Request::PortSet { port, mtu, miss_rate } => self.port(port).map(|port| {
                port.set(mtu, miss_rate);
                port.schedule();
                Answer::Done
            }),
            Request::PortThreads { port, slots } => self.port(port).map(|port| {
                port.set_threads(slots.into_iter().map(Slot).collect());
                Answer::Done
            }),
            Request::FlowPut(flow) => self.put_flow(flow).map(|()| Answer::Done),
            Request::FlowDel { switch, id } => {
                self.datapath.switch(switch).flows.lock().remove(id);
                Ok(Answer::Done)
            }
            Request::FlowFlush { switch } => {
                self.datapath.switch(switch).flows.lock().flush();
                Ok(Answer::Done)
            }
            Request::Work => Ok(Answer::Work(self.datapath.work.report(&self.datapath.ports()))),
            Request::Trace { in_port, frame } => self.trace(in_port, frame, None),
            Request::TraceActions {
                in_port,
                frame,
                actions,
            } => self.trace(in_port, frame, Some(&actions)),
            Request::Capture { port, snap_length } => {
                self.capture(port, snap_length, fds).map(|()| Answer::Done)
            }
        };
        self.send(FromDataPlane::Answer { serial, result });
    }

    fn hello(&mut self, version: u32) -> Result<Answer, String> {
        if version != VERSION {
            return Err(format!(
                "protocol version {version}, this data plane speaks {VERSION}"
            ));
        }
        self.write_off();
        self.greeted = true;
        let workers = u32::try_from(self.workers).unwrap_or(u32::MAX);
        Ok(Answer::Welcome {
            workers,
            pid: std::process::id(),
        })
    }

    fn port(&self, port: PortId) -> Result<Arc<Port>, String> {
        self.datapath
            .port(port)
            .ok_or_else(|| format!("port {port} does not exist"))
    }

    fn add_port(&mut self, spec: PortSpec, fds: Vec<OwnedFd>) -> Result<(), String> {
        let id = spec.port;
        if id.0 >= PortId::LIMIT {
            return Err(format!("port number {id} is not below {}", PortId::LIMIT));
        }
        if self.datapath.port(id).is_some() {
            return Err(format!("port {id} exists"));
        }
        let listener = match (spec.connection, fds.into_iter().next()) {
            (Connection::Listener, Some(fd)) => Some(UnixListener::from(fd)),
            (Connection::Listener, None) => return Err("a listening port needs a descriptor".into()),
            (Connection::Attached | Connection::Driver, _) => None,
        };
        let port = Port::new(spec, &self.datapath).map_err(|error| error.to_string())?;
        worker::start_own(&self.datapath, &port).map_err(|error| error.to_string())?;
        if let Some(listener) = listener {
            port.listen(listener).map_err(|error| {
                worker::end_own(&port);
                error.to_string()
            })?;
        }
        self.datapath.set_port(id, Some(port));
        Ok(())
    }

    fn attach_port(&mut self, port: PortId, fds: Vec<OwnedFd>) -> Result<(), String> {
        let fd = fds.into_iter().next().ok_or("attaching needs a descriptor")?;
        self.port(port)?
            .attach(UnixStream::from(fd))
            .map_err(|error| error.to_string())
    }

    fn delete_port(&mut self, id: PortId) -> Result<(), String> {
        let port = self.port(id)?;
        port.stop();
        self.datapath.set_port(id, None);
        worker::end_own(&port);
        self.pipeline.empty(&port);
        let lost = port.misses.clear() + port.misses.write_off();
        port.vnic.account.discarded(DropReason::PortRemoved, lost);
        self.states.remove(&id);
        Ok(())
    }

    fn put_flow(&mut self, flow: Flow) -> Result<(), String> {
        let switch = self.datapath.switch(flow.switch);
        switch
            .flows
            .lock()
            .insert(flow)
            .map(drop)
            .map_err(|error| error.to_string())
    }

    fn list_ports(&mut self, serial: u32) {
        let mut infos: Vec<_> = self
            .datapath
            .ports()
            .iter()
            .flatten()
            .map(|port| port.info())
            .collect();
        loop {
            let rest = infos.split_off(infos.len().min(PORTS_PER_MESSAGE));
            let more = !rest.is_empty();
            self.send(FromDataPlane::Answer {
                serial,
                result: Ok(Answer::Ports { ports: infos, more }),
            });
            if !more {
                return;
            }
            infos = rest;
        }
    }

    fn list_flows(&mut self, serial: u32, switch: SwitchId) {
        let now_ms = self.datapath.now_ms();
        let entries: Vec<_> = {
            let switch = self.datapath.switch(switch);
            let flows = switch.flows.lock();
            // The control process asks every few seconds while there are flows: as good as a timer, and idle when it is.
            flows.reorder();
            flows.iter().cloned().collect()
        };
        let mut rest = entries.as_slice();
        loop {
            let (now, later) = rest.split_at(rest.len().min(FLOWS_PER_MESSAGE));
            let flows = now
                .iter()
                .map(|entry| (entry.flow.clone(), entry.stats(now_ms)))
                .collect();
            let more = !later.is_empty();
            self.send(FromDataPlane::Answer {
                serial,
                result: Ok(Answer::Flows { flows, more }),
            });
            if !more {
                return;
            }
            rest = later;
        }
    }

    fn execute(&mut self, execute: Execute) {
        // An answer that comes too late: the packet was given up.
        if execute.upcall.is_some() && !self.finish_upcall(execute.upcall) {
            return;
        }
        let Some(port) = self.datapath.port(execute.in_port) else {
            return;
        };
        let account = &port.vnic.account;
        account.injected.fetch_add(1, Ordering::Relaxed);
        let frame = execute.packet.frame;
        if frame.len() < 14 || frame.len() > MAX_FRAME as usize {
            return account.dropped(DropReason::ShortFrame, 1);
        }
        self.reclaim();
        let Some(mut packet) = self.pool.take() else {
            return account.dropped(DropReason::QueueFull, 1);
        };
        packet.fill(port.id(), account.clone(), frame);
        packet.header = execute.packet.vnet_header;
        match packet.parse_flow_key() {
            Ok(key) => self.work.run(&mut self.pipeline, |pipeline| {
                pipeline.execute(&port, packet, &key, &execute.actions, &mut self.pool);
            }),
            Err(_) => account.dropped(DropReason::BadOffload, 1),
        }
        self.reclaim();
    }

    /// Makes slots free again, with nothing in them that belongs to a port.
    fn reclaim(&mut self) {
        let account = &self.account;
        self.pool.reclaim(|packet| packet.rest(account));
    }

    /// True if the upcall was outstanding.
    fn finish_upcall(&self, upcall: Option<UpcallId>) -> bool {
        upcall.is_some_and(|upcall| {
            self.datapath
                .port(upcall.port)
                .is_some_and(|port| port.misses.answered(upcall.serial))
        })
    }

    fn discard(&mut self, upcall: UpcallId, reason: DropReason) {
        if self.finish_upcall(Some(upcall))
            && let Some(port) = self.datapath.port(upcall.port)
        {
            port.vnic.account.discarded(reason, 1);
        }
    }

    fn trace(
        &self,
        in_port: PortId,
        frame: Vec<u8>,
        actions: Option<&[flow::Action]>,
    ) -> Result<Answer, String> {
        if frame.len() < 14 || frame.len() > MAX_FRAME as usize {
            return Err(format!(
                "a frame has 14 to {MAX_FRAME} bytes, not {}",
                frame.len()
            ));
        }
        trace(&self.datapath, &self.port(in_port)?, frame, actions).map(Answer::Trace)
    }

    fn capture(&mut self, port: PortId, snap_length: u32, fds: Vec<OwnedFd>) -> Result<(), String> {
        let fd = fds.into_iter().next().ok_or("a capture needs a descriptor")?;
        self.port(port)?.captures.add(Channel::from(fd), snap_length)
    }
}
