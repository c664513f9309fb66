//! What a controller asks for, one function per kind of request. Ports, switches and flows of others do not
//! exist for it.

use crate::accounts::Accounts;
use crate::controller::{Controller, Received};
use crate::kernel_requests::changed_port;
use crate::meter::Meters;
use crate::ownership::foreign_port;
use crate::p4::{Clients, P4Key, P4Refused};
use crate::pipeline::{Injected, Pipeline};
use crate::port::Port;
use crate::refusal::Refusal;
use crate::removed::RemovedPorts;
use crate::report::{count_ports, work_report};
use crate::rule_requests::page;
use crate::state::Datapath;
use crate::trace::trace;
use classifier::FlowEntry;
use control_protocol::data_plane::{
    Answer, Connection, Detail, Execute, FromDataPlane, PortInfo, PortSpec, Request, ToDataPlane, UpcallId,
    VERSION,
};
use control_protocol::p4::{P4Attachment, P4Request};
use control_protocol::work::Misses;
use control_protocol::{Channel, MAX_MESSAGE, encoded_len};
use cpu::Deadline;
use flow::{
    ControllerId, DropReason, Filters, Flow, FlowId, MAX_MIRRORS, Mirror, P4Id, PortId, PutMode, RateClass,
    Stage, SwitchId,
};
use rustix::fd::OwnedFd;
use scheduler::{Account, Scheduler, start_own};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vm_state::Slot;
use vnic::{Host as _, MAX_FRAME};

/// Flows per page, and their bytes, so that it fits and takes a short time: identifier and statistics take 51
/// bytes at most.
const FLOWS_PER_PAGE: usize = 64;
const TERSE_FLOWS_PER_PAGE: usize = 512;
pub(crate) const PAGE_BYTES: usize = MAX_MESSAGE / 2;
/// Ports per message, so that it fits: a port is below 2,000 bytes.
const PORTS_PER_MESSAGE: usize = 16;

/// Requests read before others get their turn.
const BATCH: usize = 64;
/// How long a controller's turn takes, in microseconds: no request is begun later.
const TURN_US: u64 = 1000;

/// What the channel thread answers from and forwards with.
pub(crate) struct Engine {
    pub datapath: Arc<Datapath>,
    pub scheduler: Scheduler<Pipeline>,
    pub work: Arc<Account>,
    pub workers: usize,
    /// Packets without a flow that were answered.
    pub misses: Misses,
    /// For those who read counters of all ports.
    pub accounts: Accounts,
    pub removed: RemovedPorts,
}

/// A controller in its turn.
pub(crate) struct Serving<'a> {
    pub controller: &'a mut Controller,
    pub engine: &'a mut Engine,
}

impl Engine {
    /// Drops what threads that still knew removed ports have queued for them.
    pub fn finish_removed(&mut self) {
        for port in self.removed.take_unknown(&self.datapath.periods) {
            write_off(&port, &mut self.scheduler);
        }
    }
}

/// Drops all packets of a port that was taken out of the table.
fn write_off(port: &Port, scheduler: &mut Scheduler<Pipeline>) {
    let Scheduler { rings, schedule } = scheduler;
    rings.empty(port, schedule);
    let lost = port.misses.clear() + port.misses.write_off();
    port.vnic.account.discarded(DropReason::PortRemoved, lost);
}

impl Serving<'_> {
    /// Serves requests as long as there are some and the controller takes the answers, for a bounded time.
    /// Packets that it sends are delivered, and answers sent, together at the end.
    pub fn read_requests(&mut self) {
        self.serve_requests();
        let Engine {
            datapath,
            scheduler,
            work,
            ..
        } = &mut *self.engine;
        scheduler.accounted(work, |Scheduler { rings, schedule }| {
            rings.deliver_executed(schedule)
        });
        self.controller.injection.reclaim();
        self.controller.send_outbox(datapath);
    }

    /// Works on rule lists and sets of the controller, for a bounded time.
    pub fn work_on_rules(&mut self) {
        let rules = &self.engine.datapath.rules;
        let ends = Deadline::after_us(TURN_US);
        let done = self.controller.rule_work.work(self.controller.id, rules, &ends);
        for (serial, result) in done {
            let result = result.map_err(Refusal::into);
            self.send(FromDataPlane::Answer { serial, result });
        }
        self.controller.send_outbox(&self.engine.datapath);
    }

    /// Goes on with work on P4 switches of the controller.
    pub fn work_on_p4(&mut self) {
        let Engine {
            datapath, workers, ..
        } = &*self.engine;
        let done = self
            .controller
            .p4_work
            .work(self.controller.id, datapath, *workers);
        for (serial, result) in done {
            let result = result.map_err(Refusal::into);
            self.send(FromDataPlane::Answer { serial, result });
        }
        self.controller.send_outbox(&self.engine.datapath);
    }

    fn serve_requests(&mut self) {
        let ends = Deadline::after_us(TURN_US);
        for _ in 0..BATCH {
            if self.controller.rule_work.is_full() || self.controller.p4_work.is_full() {
                return;
            }
            match self.controller.receive(&self.engine.datapath) {
                Received::Request(ToDataPlane { serial, request }, fds) => self.serve(serial, request, fds),
                Received::Malformed => {}
                Received::Nothing => return,
            }
            if ends.has_passed() {
                return;
            }
        }
    }

    fn serve(&mut self, serial: u32, request: Request, fds: Vec<OwnedFd>) {
        let controller = self.controller.id;
        self.flush_kernel_path(&request);
        let changed = changed_port(&request);
        let result = match request {
            Request::Execute(execute) => return self.execute(execute),
            Request::Discard { upcall, reason } => return self.discard(upcall, reason),
            Request::Taken { upcall } => {
                self.finish_upcall(Some(upcall));
                return;
            }
            Request::PortList => return self.list_ports(serial),
            Request::Counters => return self.list_counters(serial),
            Request::PortGet { port } => self.get_port(port),
            Request::FlowGet { switch, id } => Ok(self.get_flow(switch, id)),
            Request::FlowList {
                switch,
                after,
                detail,
            } => Ok(self.list_flows(switch, after, detail)),
            Request::Hello { version } => self.hello(version),
            Request::PortAdd(spec) => self.add_port(spec, fds).map(|()| Answer::Done),
            Request::PortAttach { port } => self.attach_port(port, fds).map(|()| Answer::Done),
            Request::PortDel { port } => self.delete_port(port).map(|()| Answer::Done),
            Request::PortSet { port, mtu, miss_rate } => self.change_port(port, |port| {
                port.set(mtu, miss_rate);
                port.schedule();
            }),
            Request::PortRates { rates, .. } if !rates.are_valid() => Err(Refusal::Rate),
            Request::PortRates { port, rates } => self.change_port(port, |port| {
                port.set_rates(rates);
                port.schedule();
            }),
            Request::PortClasses { classes, .. } if !RateClass::are_valid(&classes) => Err(Refusal::Rate),
            Request::PortClasses { port, classes } => self.change_port(port, |port| {
                port.set_classes(&classes);
                port.schedule();
            }),
            Request::PortEnable { port, up } => self.change_port(port, |port| port.vnic.set_disabled(!up)),
            Request::PortMirrors { port, mirrors } => self.set_mirrors(port, mirrors).map(|()| Answer::Done),
            Request::PortFilters { port, filters } => self.set_filters(port, filters),
            Request::PortP4 { port, attachment } => match self.attach_port_to_p4(serial, port, &attachment) {
                Ok(()) => return,
                Err(refusal) => Err(refusal),
            },
            Request::PortQueue {
                port,
                header_len,
                receives,
            } => self
                .set_queue(port, (header_len, receives), fds)
                .map(|()| Answer::Done),
            Request::PortSteering { port, change } => self.change_port(port, |port| port.steer(change)),
            Request::PortThreads { port, slots } => self.any_port(port).map(|port| {
                port.set_threads(slots.into_iter().map(Slot).collect());
                Answer::Done
            }),
            Request::FlowPut { flow, mode } => match self.put_flow(flow, mode) {
                Ok(ended) => return self.answer_with_ended(serial, ended),
                Err(refusal) => Err(refusal),
            },
            Request::FlowDel { switch, id } => return self.delete_flow(serial, switch, id),
            Request::FlowFlush { switch } => {
                self.controller.switches.flush(switch);
                Ok(Answer::Done)
            }
            Request::MeterSet { meter, spec } => {
                self.meters().set(controller, meter, spec).map(Answer::Meter)
            }
            Request::MeterGet { meter } => Ok(Answer::Meter(self.meters().stats(controller, meter))),
            Request::MeterDel { meter } => Ok(Answer::Meter(self.meters().remove(controller, meter))),
            Request::MeterFlush => {
                self.meters().clear(controller);
                Ok(Answer::Done)
            }
            Request::Rules(request) => {
                let now_ms = self.engine.datapath.now_ms();
                match page(self.controller.id, &self.engine.datapath.rules, &request, now_ms) {
                    Some(page) => page,
                    None => return self.controller.rule_work.push(serial, request),
                }
            }
            Request::P4(P4Request::Connect { switch, cpu_port }) => {
                match self.connect_clients(switch, cpu_port, fds) {
                    Ok(()) => {
                        return self
                            .controller
                            .p4_work
                            .answer_in_a_period(serial, &self.engine.datapath);
                    }
                    Err(refusal) => Err(refusal),
                }
            }
            Request::P4(request) => {
                let Serving { controller, engine } = &mut *self;
                let (id, datapath) = (controller.id, &engine.datapath);
                match controller.p4_work.serve(id, datapath, serial, request) {
                    Some(result) => result,
                    None => return,
                }
            }
            Request::Barrier => Ok(Answer::Done),
            Request::Work => Ok(Answer::Work(work_report(self.engine))),
            Request::Trace { in_port, frame } => self.trace(in_port, frame, None),
            Request::TraceActions {
                in_port,
                stage,
                frame,
                actions,
            } => self.trace(in_port, frame, Some((stage, &actions))),
            Request::Capture { port, snap_length } => {
                self.capture(port, snap_length, fds).map(|()| Answer::Done)
            }
        };
        if let Some(port) = changed {
            // The kernel obeys what was changed before that is answered.
            self.engine.datapath.look_at_kernel_path(port);
        }
        self.send(FromDataPlane::Answer {
            serial,
            result: result.map_err(Refusal::into),
        });
    }

    fn hello(&mut self, version: u32) -> Result<Answer, Refusal> {
        if version != VERSION {
            return Err(Refusal::Version(version));
        }
        self.controller.greet(&self.engine.datapath);
        let workers = u32::try_from(self.engine.workers).unwrap_or(u32::MAX);
        Ok(Answer::Welcome {
            controller: self.controller.id,
            workers,
            pid: std::process::id(),
        })
    }

    /// A port of the controller's own.
    pub fn port(&self, port: PortId) -> Result<Arc<Port>, Refusal> {
        let own = Some(port).filter(|port| self.controller.id.owns(*port));
        own.and_then(|own| self.engine.datapath.port(own))
            .ok_or(Refusal::NoPort(port))
    }

    fn get_port(&self, port: PortId) -> Result<Answer, Refusal> {
        let ports = vec![self.info(&*self.port(port)?)];
        Ok(Answer::Ports { ports, more: false })
    }

    /// A port as it is.
    fn info(&self, port: &Port) -> PortInfo {
        let mut info = port.info();
        self.tell_kernel_path(port, &mut info.counters);
        info.spec.p4 = self.p4_attachment(port.id());
        info.kernel_path = port.is_veth().then(|| self.kernel_path_of(port));
        info.device_queue = self.queue_of(port);
        info
    }

    fn set_filters(&self, port: PortId, filters: Filters) -> Result<Answer, Refusal> {
        let found = self.port(port)?;
        if filters != Filters::default() && self.is_bound(port) {
            return Err(P4Refused::Filters(port).into());
        }
        found.set_filters(filters);
        Ok(Answer::Done)
    }

    /// The P4 switches that packets of a port meet.
    fn p4_attachment(&self, port: PortId) -> P4Attachment {
        let ports = self.engine.datapath.ports();
        ports
            .p4()
            .map_or_else(P4Attachment::default, |table| table.attachment(port))
    }

    /// Whether a P4 switch forwards the port's packets.
    fn is_bound(&self, port: PortId) -> bool {
        self.p4_attachment(port).forwarder.is_some()
    }

    /// Says what packets of a port meet, and has that answered when all that come meet it.
    fn attach_port_to_p4(
        &mut self,
        serial: u32,
        port: PortId,
        attachment: &P4Attachment,
    ) -> Result<(), Refusal> {
        let found = self.port(port)?;
        let filters = found.switch.flows.lock().filters(port);
        if attachment.forwarder.is_some() && filters != Filters::default() {
            return Err(P4Refused::Filters(port).into());
        }
        self.attach_to_p4(&found, attachment)?;
        let datapath = &self.engine.datapath;
        self.controller.p4_work.answer_in_a_period(serial, datapath);
        Ok(())
    }

    /// Says what packets of a port meet. In between, packets of a port that is bound or freed are dropped;
    /// those of others meet the former stages or the new ones.
    fn attach_to_p4(&self, port: &Port, attachment: &P4Attachment) -> Result<(), Refusal> {
        let datapath = &self.engine.datapath;
        datapath.change_p4(|table| table.attach(port.id(), attachment))?;
        port.vnic.set_programmed(attachment.forwarder.is_some());
        port.vnic.set_staged(!attachment.stages.is_empty());
        datapath.look_at_kernel_path(port.id());
        Ok(())
    }

    /// Joins a P4 switch with its clients.
    fn connect_clients(&self, id: P4Id, cpu_port: Option<u16>, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let fd = fds.into_iter().next().ok_or(Refusal::NoDescriptor("clients"))?;
        let clients = Clients::new(cpu_port, Channel::from(fd));
        let key = (self.controller.id, id);
        let datapath = &self.engine.datapath;
        Ok(datapath.change_p4(|table| table.connect(key, Arc::new(clients)))?)
    }

    /// Runs packets that clients of its P4 switches have sent, for those of `keys`.
    pub fn serve_clients(&mut self, keys: &[P4Key]) {
        let controller = self.controller.id;
        for key in keys.iter().filter(|(owner, _)| *owner == controller) {
            let Engine {
                datapath,
                scheduler,
                work,
                ..
            } = &mut *self.engine;
            let slots = &mut self.controller.injection;
            scheduler.accounted(work, |Scheduler { rings, schedule }| {
                rings.serve_clients(*key, slots, schedule);
                rings.deliver_executed(schedule);
            });
            slots.reclaim();
            let ports = datapath.ports();
            if ports.p4().is_some_and(|table| table.has_closed_clients(*key)) {
                datapath.change_p4(|table| table.part(*key));
            }
        }
    }

    fn change_port(&self, port: PortId, change: impl FnOnce(&Port)) -> Result<Answer, Refusal> {
        change(&*self.port(port)?);
        Ok(Answer::Done)
    }

    fn meters(&self) -> &Meters {
        &self.engine.datapath.meters
    }

    /// A port of this controller, or for the built-in controller any port.
    fn any_port(&self, port: PortId) -> Result<Arc<Port>, Refusal> {
        match self.controller.id {
            ControllerId::BUILT_IN => self.engine.datapath.port(port).ok_or(Refusal::NoPort(port)),
            _ => self.port(port),
        }
    }

    fn send(&mut self, message: FromDataPlane) {
        self.controller.send(message, &self.engine.datapath);
    }

    fn add_port(&mut self, spec: PortSpec, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let id = spec.port;
        if id.0 >= PortId::LIMIT {
            return Err(Refusal::PortNumber(id));
        }
        if !self.controller.id.owns(id) {
            return Err(Refusal::ForeignPort(id));
        }
        if self.engine.datapath.port(id).is_some() {
            return Err(Refusal::PortExists(id));
        }
        let listener = match (spec.connection, fds.into_iter().next()) {
            (Connection::Listener, Some(fd)) => Some(UnixListener::from(fd)),
            (Connection::Listener, None) => return Err(Refusal::NoDescriptor("a listening port")),
            (Connection::Attached | Connection::Driver | Connection::Veth, _) => None,
        };
        if spec.p4.forwarder.is_some() && spec.filters != Filters::default() {
            return Err(P4Refused::Filters(id).into());
        }
        let switch = self.controller.switches.get_or_new(spec.switch)?.clone();
        let datapath = &self.engine.datapath;
        check_mirrors(self.controller.id, id, &spec.mirrors)?;
        let (filters, p4, mirrors) = (spec.filters, spec.p4.clone(), spec.mirrors.clone());
        let port = datapath.make_port(spec, switch)?;
        let forwarder = datapath.clone();
        start_own(&datapath.shared, &port.home, move || Pipeline::new(forwarder))?;
        if let Some(listener) = listener {
            port.listen(listener).inspect_err(|_| port.home.end_own())?;
        }
        port.set_filters(filters);
        port.set_mirrors(mirrors, &datapath.rules);
        if !p4.is_none() {
            self.attach_to_p4(&port, &p4)
                .inspect_err(|_| port.home.end_own())?;
        }
        datapath.set_port(id, Some(port));
        Ok(())
    }

    fn set_mirrors(&self, id: PortId, mirrors: Vec<Mirror>) -> Result<(), Refusal> {
        let port = self.port(id)?;
        check_mirrors(self.controller.id, id, &mirrors)?;
        port.set_mirrors(mirrors, &self.engine.datapath.rules);
        Ok(())
    }

    fn attach_port(&mut self, port: PortId, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let fd = fds.into_iter().next().ok_or(Refusal::NoDescriptor("attaching"))?;
        Ok(self.port(port)?.attach(UnixStream::from(fd))?)
    }

    fn delete_port(&mut self, id: PortId) -> Result<(), Refusal> {
        let port = self.port(id)?;
        port.peer.stop();
        let is_attached = !self.p4_attachment(id).is_none();
        let Engine {
            datapath,
            scheduler,
            removed,
            ..
        } = &mut *self.engine;
        datapath.set_port(id, None);
        if is_attached {
            // Freeing a port is never refused.
            let _ = datapath.change_p4(|table| table.attach(id, &P4Attachment::default()));
        }
        port.home.end_own();
        // The next port of this number has none.
        port.switch.flows.lock().set_filters(id, Filters::default());
        // What is dropped now is copied nowhere.
        port.set_mirrors(Vec::new(), &datapath.rules);
        write_off(&port, scheduler);
        removed.push(port, &datapath.periods);
        self.controller.events.forget(id);
        datapath.notices.on_read(id);
        if self.controller.id != ControllerId::BUILT_IN {
            // Its guest's threads are registered.
            datapath.notices.changed(id);
        }
        Ok(())
    }

    fn put_flow(&mut self, flow: Flow, mode: PutMode) -> Result<Vec<Arc<FlowEntry>>, Refusal> {
        match foreign_port(self.controller.id, &flow) {
            Some(port) => Err(Refusal::ForeignPort(port)),
            None => self.controller.switches.put(flow, mode),
        }
    }

    fn delete_flow(&mut self, serial: u32, switch: SwitchId, id: FlowId) {
        let ended = self.controller.switches.remove(switch, id);
        self.answer_with_ended(serial, ended.into_iter().collect());
    }

    /// Answers when the statistics of these flows are their last ones.
    fn answer_with_ended(&mut self, serial: u32, flows: Vec<Arc<FlowEntry>>) {
        self.controller
            .answer_with_ended(serial, flows, &self.engine.datapath);
    }

    fn list_ports(&mut self, serial: u32) {
        let mut left = self.own_ports();
        loop {
            let now = left.by_ref().take(PORTS_PER_MESSAGE);
            let ports = now.map(|port| self.info(&port)).collect();
            let more = left.len() > 0;
            self.answer(serial, Answer::Ports { ports, more });
            if !more {
                return;
            }
        }
    }

    fn list_counters(&mut self, serial: u32) {
        let parts = count_ports(self.engine, self.controller.id);
        let last = parts.len() - 1;
        for (number, ports) in parts.into_iter().enumerate() {
            let more = number < last;
            self.answer(serial, Answer::Counters { ports, more });
        }
    }

    /// The controller's ports as they are now.
    fn own_ports(&self) -> std::vec::IntoIter<Arc<Port>> {
        let ports = self.engine.datapath.ports();
        let own: Vec<_> = ports.of(self.controller.id).cloned().collect();
        own.into_iter()
    }

    fn answer(&mut self, serial: u32, answer: Answer) {
        self.send(FromDataPlane::Answer {
            serial,
            result: Ok(answer),
        });
    }

    fn get_flow(&self, switch: SwitchId, id: FlowId) -> Answer {
        let found = self.flow_entry(switch, id);
        let flow = found.map(|entry| (id, entry.stats(self.engine.datapath.now_ms())));
        Answer::FlowStats {
            flows: flow.into_iter().collect(),
            more: false,
        }
    }

    fn list_flows(&self, switch: SwitchId, after: Option<FlowId>, detail: Detail) -> Answer {
        let most = match detail {
            Detail::Terse => TERSE_FLOWS_PER_PAGE,
            Detail::Full => FLOWS_PER_PAGE,
        };
        let mut page: Vec<_> = {
            let Some(switch) = self.controller.switches.get(switch) else {
                return no_flows(detail);
            };
            let flows = switch.flows.lock();
            if after.is_none() {
                // The control process asks every few seconds while there are flows: as good as a timer, and
                // idle when it is.
                flows.reorder();
            }
            flows.iter_after(after).take(most + 1).cloned().collect()
        };
        let mut more = page.len() > most;
        page.truncate(most);
        let now_ms = self.engine.datapath.now_ms();
        if detail == Detail::Terse {
            let flows = page.iter().map(|entry| (entry.flow.id, entry.stats(now_ms)));
            let flows = flows.collect();
            return Answer::FlowStats { flows, more };
        }
        let (mut flows, mut bytes) = (Vec::with_capacity(page.len()), 0);
        let (mut ways, ports) = (Vec::new(), self.engine.datapath.ports());
        for entry in page {
            let flow = (entry.flow.clone(), entry.stats(now_ms));
            bytes += encoded_len(&flow);
            // One fits always: it came in a message.
            if bytes > PAGE_BYTES && !flows.is_empty() {
                more = true;
                break;
            }
            flows.push(flow);
            ways.extend(self.way(&entry, &ports).map(|way| (entry.flow.id, way)));
        }
        Answer::Flows { flows, ways, more }
    }

    fn execute(&mut self, execute: Execute) {
        // An answer that comes too late: the packet was given up.
        if execute.upcall.is_some() && !self.finish_upcall(execute.upcall) {
            return;
        }
        let Ok(port) = self.port(execute.in_port) else {
            return;
        };
        let account = &port.vnic.account;
        account.injected.fetch_add(1, Ordering::Relaxed);
        let frame = execute.packet.frame;
        if frame.len() < 14 || frame.len() > MAX_FRAME as usize {
            return account.dropped(DropReason::ShortFrame, 1);
        }
        let injection = &mut self.controller.injection;
        injection.reclaim();
        let Some(mut packet) = injection.take(port.id()) else {
            return account.dropped(DropReason::QueueFull, 1);
        };
        packet.fill(port.id(), account.clone(), frame);
        packet.header = execute.packet.vnet_header;
        match packet.parse_flow_key() {
            Ok(mut key) => self.engine.scheduler.accounted(&self.engine.work, |scheduler| {
                key.set_recirc_id(execute.recirc_id);
                key.set_no_ethernet(execute.no_ethernet.into());
                key.set_dp_hash(execute.dp_hash);
                let injected = Injected {
                    port: &port,
                    packet,
                    key,
                    stage: execute.stage,
                    actions: &execute.actions,
                };
                let Scheduler { rings, schedule } = scheduler;
                rings.execute(injected, injection, schedule);
            }),
            Err(reason) => account.dropped(reason, 1),
        }
    }

    /// True if the upcall was outstanding.
    fn finish_upcall(&mut self, upcall: Option<UpcallId>) -> bool {
        let waited = upcall.and_then(|upcall| {
            let port = self.port(upcall.port).ok()?;
            port.misses.answered(upcall.serial)
        });
        if let Some(waited) = waited {
            self.controller.note_answer();
            self.engine.misses.add(waited);
        }
        waited.is_some()
    }

    fn discard(&mut self, upcall: UpcallId, reason: DropReason) {
        if self.finish_upcall(Some(upcall))
            && let Ok(port) = self.port(upcall.port)
        {
            port.vnic.account.discarded(reason, 1);
        }
    }

    fn trace(
        &self,
        in_port: PortId,
        frame: Vec<u8>,
        actions: Option<(Stage, &[flow::Action])>,
    ) -> Result<Answer, Refusal> {
        if frame.len() < 14 || frame.len() > MAX_FRAME as usize {
            return Err(Refusal::FrameLength(frame.len()));
        }
        if self.is_bound(in_port) {
            return Err(P4Refused::Trace(in_port).into());
        }
        let (port, len) = (self.port(in_port)?, frame.len());
        let mut steps = trace(&self.engine.datapath, &port, frame, actions)?;
        if actions.is_none() {
            steps.extend(self.way_of_packet(&port, len, &steps));
        }
        Ok(Answer::Trace(steps))
    }

    fn capture(&mut self, port: PortId, snap_length: u32, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let fd = fds.into_iter().next().ok_or(Refusal::NoDescriptor("a capture"))?;
        self.port(port)?.capture(Channel::from(fd), snap_length)
    }
}

/// Whether a controller's port may have these mirrors.
fn check_mirrors(owner: ControllerId, port: PortId, mirrors: &[Mirror]) -> Result<(), Refusal> {
    if mirrors.len() > MAX_MIRRORS {
        return Err(Refusal::TooMany(mirrors.len(), MAX_MIRRORS));
    }
    for mirror in mirrors {
        if !owner.owns(mirror.to) {
            return Err(Refusal::ForeignPort(mirror.to));
        }
        if !mirror.is_valid_at(port) {
            return Err(Refusal::Mirror);
        }
    }
    Ok(())
}

/// The page of a switch that has no flows, or does not exist.
fn no_flows(detail: Detail) -> Answer {
    let more = false;
    match detail {
        Detail::Terse => Answer::FlowStats {
            flows: Vec::new(),
            more,
        },
        Detail::Full => Answer::Flows {
            flows: Vec::new(),
            ways: Vec::new(),
            more,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::ControllerId;
    use placement::{Config, Costs, Policy, Topology};
    use scheduler::Placement;

    fn engine() -> Engine {
        let policy = Policy::new(Config::default(), Topology::of_machine(), Costs::default());
        let datapath = Datapath::new(Placement::new(policy, None).unwrap()).unwrap();
        let shared = datapath.shared.clone();
        Engine {
            work: shared.ledger.open("test"),
            scheduler: Scheduler::new(shared, None, Pipeline::new(datapath.clone())),
            datapath,
            workers: 0,
            misses: Misses::default(),
            accounts: Accounts::default(),
            removed: RemovedPorts::default(),
        }
    }

    #[test]
    fn a_turn_ends_however_many_requests_wait() {
        let mut engine = engine();
        let mut controller = Controller::new(ControllerId(1), engine.datapath.rules.clone());
        let (channel, theirs) = Channel::pair().unwrap();
        controller.connect(theirs, &engine.datapath);
        let upcall = UpcallId {
            port: PortId(ControllerId::PORTS),
            serial: 1,
        };
        let reason = DropReason::Policy;
        let request = Request::Discard { upcall, reason };
        let message = ToDataPlane { serial: 1, request };
        let mut waiting = 0;
        while waiting < 2 * BATCH + 1 {
            // Every other one is none.
            match waiting % 2 {
                0 => channel.try_send(&message, &[]).unwrap(),
                _ => channel.try_send(&0xffu8, &[]).unwrap(),
            }
            waiting += 1;
        }
        Serving {
            controller: &mut controller,
            engine: &mut engine,
        }
        .read_requests();
        let mut left = 0;
        while !matches!(controller.receive(&engine.datapath), Received::Nothing) {
            left += 1;
        }
        assert!(left >= waiting - BATCH, "{left} of {waiting} are left");
        assert!(left < waiting, "nothing was read");
    }
}
