//! What the control process asks for, one function per kind of request.

use crate::channel::{BATCH, Server};
use crate::pipeline::{Injected, Pipeline};
use crate::port::Port;
use crate::refusal::Refusal;
use crate::report::work_report;
use crate::trace::trace;
use classifier::FlowEntry;
use control_protocol::data_plane::{
    Answer, Connection, Detail, Execute, FromDataPlane, PortSpec, Request, ToDataPlane, UpcallId, VERSION,
};
use control_protocol::{Channel, ChannelError, MAX_MESSAGE, encoded_len};
use flow::{DropReason, Flow, FlowId, PortId, PutMode, SwitchId};
use rustix::fd::OwnedFd;
use scheduler::{Scheduler, start_own};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vm_state::Slot;
use vnic::{Host as _, MAX_FRAME};

/// Flows per page, and their bytes, so that it fits and takes a short time: identifier and statistics take 51 bytes at most.
const FLOWS_PER_PAGE: usize = 64;
const TERSE_FLOWS_PER_PAGE: usize = 512;
const PAGE_BYTES: usize = MAX_MESSAGE / 2;
/// Ports per message, so that it fits: a port is below 2,000 bytes.
const PORTS_PER_MESSAGE: usize = 16;

impl Server {
    pub fn read_requests(&mut self) {
        for _ in 0..BATCH {
            let Some(control) = &self.control else { return };
            if !self.outbox.is_empty() {
                return;
            }
            match control.try_recv::<ToDataPlane>() {
                Ok((ToDataPlane { serial, request }, fds)) => self.serve(serial, request, fds),
                Err(ChannelError::WouldBlock) => return,
                Err(ChannelError::Malformed(error)) => {
                    telemetry::limited!(log::Level::Error, "control process: {error}");
                }
                Err(_) => return self.lose_control(),
            }
        }
    }

    fn serve(&mut self, serial: u32, request: Request, fds: Vec<OwnedFd>) {
        let result = match request {
            Request::Execute(execute) => return self.execute(execute),
            Request::Discard { upcall, reason } => return self.discard(upcall, reason),
            Request::Taken { upcall } => {
                self.finish_upcall(Some(upcall));
                return;
            }
            Request::PortList => return self.list_ports(serial),
            Request::PortGet { port } => self.port(port).map(|port| Answer::Ports {
                ports: vec![port.info()],
                more: false,
            }),
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
            Request::PortSet { port, mtu, miss_rate } => self.port(port).map(|port| {
                port.set(mtu, miss_rate);
                port.schedule();
                Answer::Done
            }),
            Request::PortThreads { port, slots } => self.port(port).map(|port| {
                port.set_threads(slots.into_iter().map(Slot).collect());
                Answer::Done
            }),
            Request::FlowPut { flow, mode } => match self.put_flow(flow, mode) {
                Ok(ended) => return self.answer_with_ended(serial, ended),
                Err(refusal) => Err(refusal),
            },
            Request::FlowDel { switch, id } => {
                let ended = self.datapath.switch(switch).flows.lock().remove(id);
                return self.answer_with_ended(serial, ended.into_iter().collect());
            }
            Request::FlowFlush { switch } => {
                self.datapath.switch(switch).flows.lock().flush();
                Ok(Answer::Done)
            }
            Request::Work => Ok(Answer::Work(work_report(&self.datapath))),
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
        self.send(FromDataPlane::Answer {
            serial,
            result: result.map_err(Refusal::into),
        });
    }

    fn hello(&mut self, version: u32) -> Result<Answer, Refusal> {
        if version != VERSION {
            return Err(Refusal::Version(version));
        }
        self.write_off();
        self.greeted = true;
        let workers = u32::try_from(self.workers).unwrap_or(u32::MAX);
        Ok(Answer::Welcome {
            workers,
            pid: std::process::id(),
        })
    }

    fn port(&self, port: PortId) -> Result<Arc<Port>, Refusal> {
        self.datapath.port(port).ok_or(Refusal::NoPort(port))
    }

    fn add_port(&mut self, spec: PortSpec, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let id = spec.port;
        if id.0 >= PortId::LIMIT {
            return Err(Refusal::PortNumber(id));
        }
        if self.datapath.port(id).is_some() {
            return Err(Refusal::PortExists(id));
        }
        let listener = match (spec.connection, fds.into_iter().next()) {
            (Connection::Listener, Some(fd)) => Some(UnixListener::from(fd)),
            (Connection::Listener, None) => return Err(Refusal::NoDescriptor("a listening port")),
            (Connection::Attached | Connection::Driver, _) => None,
        };
        let port = self.datapath.make_port(spec)?;
        let datapath = self.datapath.clone();
        start_own(&self.datapath.crew, &port.home, move || Pipeline::new(datapath))?;
        if let Some(listener) = listener {
            port.listen(listener).inspect_err(|_| port.home.end_own())?;
        }
        self.datapath.set_port(id, Some(port));
        Ok(())
    }

    fn attach_port(&mut self, port: PortId, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let fd = fds.into_iter().next().ok_or(Refusal::NoDescriptor("attaching"))?;
        Ok(self.port(port)?.attach(UnixStream::from(fd))?)
    }

    fn delete_port(&mut self, id: PortId) -> Result<(), Refusal> {
        let port = self.port(id)?;
        port.peer.stop();
        self.datapath.set_port(id, None);
        port.home.end_own();
        let Scheduler { rings, schedule } = &mut self.scheduler;
        rings.empty(&port, schedule);
        let lost = port.misses.clear() + port.misses.write_off();
        port.vnic.account.discarded(DropReason::PortRemoved, lost);
        self.events.forget(id);
        self.datapath.notices.heard(id);
        Ok(())
    }

    fn put_flow(&mut self, flow: Flow, mode: PutMode) -> Result<Vec<Arc<FlowEntry>>, Refusal> {
        let switch = self.datapath.switch(flow.switch);
        let ended = switch.flows.lock().put(flow, mode)?;
        Ok(ended)
    }

    /// Answers when the statistics of these flows are their last ones.
    fn answer_with_ended(&mut self, serial: u32, flows: Vec<Arc<FlowEntry>>) {
        if flows.is_empty() {
            let result = Ok(Answer::Ended {
                flows: Vec::new(),
                complete: true,
            });
            return self.send(FromDataPlane::Answer { serial, result });
        }
        let (periods, now_ms) = (&self.datapath.periods, self.datapath.now_ms());
        self.ended.push(serial, flows, periods, now_ms);
    }

    fn list_ports(&mut self, serial: u32) {
        let mut infos: Vec<_> = self.datapath.ports().iter().map(|port| port.info()).collect();
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

    fn get_flow(&self, switch: SwitchId, id: FlowId) -> Answer {
        let switch = self.datapath.switch(switch);
        let found = switch.flows.lock().get(id).cloned();
        let flow = found.map(|entry| (id, entry.stats(self.datapath.now_ms())));
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
            let switch = self.datapath.switch(switch);
            let flows = switch.flows.lock();
            if after.is_none() {
                // The control process asks every few seconds while there are flows: as good as a timer, and idle when it is.
                flows.reorder();
            }
            flows.iter_after(after).take(most + 1).cloned().collect()
        };
        let mut more = page.len() > most;
        page.truncate(most);
        let now_ms = self.datapath.now_ms();
        if detail == Detail::Terse {
            let flows = page.iter().map(|entry| (entry.flow.id, entry.stats(now_ms)));
            let flows = flows.collect();
            return Answer::FlowStats { flows, more };
        }
        let (mut flows, mut bytes) = (Vec::with_capacity(page.len()), 0);
        for entry in page {
            let flow = (entry.flow.clone(), entry.stats(now_ms));
            bytes += encoded_len(&flow);
            // One fits always: it came in a message.
            if bytes > PAGE_BYTES && !flows.is_empty() {
                more = true;
                break;
            }
            flows.push(flow);
        }
        Answer::Flows { flows, more }
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
            Ok(key) => self.scheduler.accounted(&self.work, |scheduler| {
                let injected = Injected {
                    port: &port,
                    packet,
                    key,
                    actions: &execute.actions,
                };
                let Scheduler { rings, schedule } = scheduler;
                rings.execute(injected, &mut self.pool, schedule);
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
    ) -> Result<Answer, Refusal> {
        if frame.len() < 14 || frame.len() > MAX_FRAME as usize {
            return Err(Refusal::FrameLength(frame.len()));
        }
        trace(&self.datapath, &self.port(in_port)?, frame, actions).map(Answer::Trace)
    }

    fn capture(&mut self, port: PortId, snap_length: u32, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let fd = fds.into_iter().next().ok_or(Refusal::NoDescriptor("a capture"))?;
        self.port(port)?.captures.add(Channel::from(fd), snap_length)
    }
}
