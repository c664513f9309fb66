//! The walk of a packet: from a transmit ring to receive rings.
//!
//! [`Pipeline::switch`] takes bursts from a port's transmit ring and runs each through the stages, a whole
//! burst per stage:
//!
//! 1. *fetch* (`vnic::TransmitSide::fetch`): chains are translated, headers copied to private slots;
//! 2. *parse*: keys from the private heads;
//! 3. *look up*: microflow cache, megaflow table, or a miss;
//! 4. *act*: apply the flow's actions, which append packets to internal receive queues;
//! 5. *deliver* ([`Pipeline::deliver`]): copy from the sender's to the receivers' memory;
//! 6. *complete*: give chains back to the sender whose packets are done.
//!
//! A `Pipeline` belongs to one thread. Rings belong to whoever claims them; what this thread cannot claim, its
//! holder will see to. What is left to look at later is on the to-do list.

use crate::actions::{Sink, apply};
use crate::miss::upcall;
use crate::port::Port;
use crate::state::{Datapath, PortTable, Side, port_of};
use classifier::{FlowEntry, MicroflowCache};
use control_protocol::data_plane::{CaptureDirection, UpcallCause};
use flow::{Action, DropReason, FlowKey, PortId};
use ring::{Guard, PoolOwner, Shared, Unique};
use std::collections::VecDeque;
use std::sync::Arc;
use vnic::{BURST, Fetched, Observer, Packet, STALL_TIMEOUT_MS, TransmitSide, Wait};

/// Bursts taken from one port before others get their turn.
const ROUNDS: usize = 8;

/// Packets delivered to one port before others get their turn.
const DELIVERY_BUDGET: usize = 256;

/// One thread's means of forwarding.
pub(crate) struct Pipeline {
    pub datapath: Arc<Datapath>,
    microflows: MicroflowCache,
    burst: Vec<Unique<Packet>>,
    keys: Vec<FlowKey>,
    verdicts: Vec<Option<Arc<FlowEntry>>>,
    /// Receivers that got packets of the current burst.
    receivers: PortSet,
    /// Ports to look at next.
    todo: VecDeque<(PortId, Side)>,
    /// Ports whose transmit rings this thread polls: their guests need not kick.
    polled: PortSet,
    /// Ports whose receivers have no buffers, and when their time is up.
    waiting: Vec<(u64, PortId)>,
}

/// A small set of ports in the order of their first addition.
#[derive(Debug, Default)]
struct PortSet(Vec<PortId>);

impl PortSet {
    #[inline]
    fn add(&mut self, port: PortId) {
        if !self.0.contains(&port) {
            self.0.push(port);
        }
    }
}

impl Pipeline {
    pub fn new(datapath: Arc<Datapath>) -> Pipeline {
        Pipeline {
            datapath,
            microflows: MicroflowCache::default(),
            burst: Vec::with_capacity(BURST),
            keys: Vec::with_capacity(BURST),
            verdicts: Vec::with_capacity(BURST),
            receivers: PortSet::default(),
            todo: VecDeque::new(),
            polled: PortSet::default(),
            waiting: Vec::new(),
        }
    }

    /// Puts a side of a port on the to-do list.
    pub fn later(&mut self, port: PortId, side: Side) {
        if !self.todo.contains(&(port, side)) {
            self.todo.push_back((port, side));
        }
    }

    /// Does one thing on the to-do list; false if it is empty.
    pub fn step(&mut self) -> bool {
        let Some((id, side)) = self.todo.pop_front() else {
            return false;
        };
        let Some(port) = self.datapath.port(id) else {
            return true;
        };
        match side {
            Side::Transmit => self.switch(&port),
            Side::Receive => self.deliver(&port, None, self.datapath.now_ms()),
        }
        true
    }

    /// Looks at the rings that are polled; true if something came and is on the to-do list.
    pub fn poll(&mut self) -> bool {
        for index in 0..self.polled.0.len() {
            let id = self.polled.0[index];
            let Some(port) = self.datapath.port(id) else {
                continue;
            };
            let Some(mut transmit) = port.vnic.transmit.try_claim() else {
                continue;
            };
            let come = transmit.with(|side| side.as_mut().is_some_and(TransmitSide::has_work));
            if transmit.release() || come {
                self.later(id, Side::Transmit);
            }
        }
        !self.todo.is_empty()
    }

    /// Ends polling: asks for kicks again. True if something came meanwhile and is on the to-do list.
    pub fn stop_polling(&mut self) -> bool {
        for id in std::mem::take(&mut self.polled.0) {
            let Some(port) = self.datapath.port(id) else {
                continue;
            };
            // Whoever holds it now polls it from now on.
            let Some(mut transmit) = port.vnic.transmit.try_claim() else {
                continue;
            };
            let come = transmit.with(|side| {
                side.as_mut()
                    .is_some_and(|side| side.enable_kicks().unwrap_or(true))
            });
            if transmit.release() || come {
                self.later(id, Side::Transmit);
            }
        }
        !self.todo.is_empty()
    }

    /// Whether rings are polled.
    pub fn is_polling(&self) -> bool {
        !self.polled.0.is_empty()
    }

    /// Milliseconds this thread may sleep: none while something is on the to-do list, where receivers are put whose
    /// time is up; else until that is so for the next one; `None` when none waits.
    pub fn next_deadline(&mut self) -> Option<u64> {
        if !self.todo.is_empty() {
            return Some(0);
        }
        if self.waiting.is_empty() {
            return None;
        }
        let now_ms = self.datapath.now_ms();
        let due: Vec<_> = self
            .waiting
            .extract_if(.., |(deadline, _)| *deadline <= now_ms)
            .collect();
        due.into_iter()
            .for_each(|(_, port)| self.later(port, Side::Receive));
        if !self.todo.is_empty() {
            return Some(0);
        }
        self.waiting.iter().map(|(deadline, _)| deadline - now_ms).min()
    }

    /// Serves a port's transmit ring.
    fn switch(&mut self, port: &Arc<Port>) {
        let Some(mut transmit) = port.vnic.transmit.try_claim() else {
            return;
        };
        let mut more = true;
        for _ in 0..ROUNDS {
            let fetched = transmit.with(|side| match side {
                Some(side) if guest_memory::fault_count() > 0 && side.is_broken() => Err(vanished()),
                Some(side) => {
                    side.reclaim();
                    side.fetch(&mut self.burst)
                }
                None => Ok(Fetched::Empty),
            });
            let end = match fetched {
                Ok(end) => end,
                Err(error) => {
                    self.burst.clear();
                    transmit.with(|side| *side = None);
                    port.break_down(&error);
                    break;
                }
            };
            self.process_burst(port, &mut transmit);
            let idle = transmit.with(|side| finish_round(side.as_mut(), end));
            if idle {
                more = false;
                self.polled.add(port.id());
                break;
            }
        }
        if transmit.release() || more {
            self.later(port.id(), Side::Transmit);
        }
    }

    /// Runs what was fetched through parse, look-up, actions and delivery.
    fn process_burst(&mut self, port: &Arc<Port>, transmit: &mut Guard<'_, Option<TransmitSide>>) {
        if self.burst.is_empty() {
            return;
        }
        let now_ms = self.datapath.now_ms();
        self.parse(port);
        self.look_up(port);
        let datapath = self.datapath.clone();
        let ports = datapath.ports();
        self.act(port, &ports, transmit, now_ms);
        self.deliver_all(&ports, Some(port.id()), now_ms);
    }

    fn parse(&mut self, port: &Port) {
        self.keys.clear();
        self.burst.retain_mut(|packet| match packet.parse() {
            Ok(key) => {
                self.keys.push(key);
                true
            }
            Err(_) => {
                port.vnic.account.dropped(DropReason::BadOffload, 1);
                if port.captures.active() {
                    port.captures
                        .record(packet, CaptureDirection::FromGuest, Some(DropReason::BadOffload));
                }
                false
            }
        });
    }

    fn look_up(&mut self, port: &Port) {
        self.verdicts.clear();
        for key in &self.keys {
            self.verdicts.push(self.microflows.lookup(key).cloned());
        }
        if self.verdicts.iter().all(Option::is_some) {
            return;
        }
        let flows = port.switch.flows.read();
        for (key, verdict) in self.keys.iter().zip(&mut self.verdicts) {
            if verdict.is_none() {
                *verdict = flows.lookup(key).cloned();
                if let Some(entry) = verdict {
                    self.microflows.insert(key, entry);
                }
            }
        }
    }

    fn act(
        &mut self,
        port: &Arc<Port>,
        ports: &PortTable,
        transmit: &mut Guard<'_, Option<TransmitSide>>,
        now_ms: u64,
    ) {
        let capturing = port.captures.active();
        let mut run = FlowRun::default();
        for ((packet, key), verdict) in self.burst.drain(..).zip(&self.keys).zip(self.verdicts.drain(..)) {
            let spare = || transmit.with(|side| side.as_mut()?.spare());
            let mut forward = Forward {
                datapath: &self.datapath,
                ports,
                port,
                key,
                now_ms,
                receivers: &mut self.receivers,
                spare,
            };
            match verdict {
                Some(entry) => {
                    if capturing {
                        let dropped = drop_reason(&entry.flow.actions);
                        port.captures
                            .record(&packet, CaptureDirection::FromGuest, dropped);
                    }
                    run.count(&entry, &packet, key, now_ms);
                    apply(&entry.flow.actions, packet, &mut forward);
                }
                None => {
                    let result = forward.miss(&packet);
                    if capturing {
                        port.captures
                            .record(&packet, CaptureDirection::FromGuest, result.err());
                    }
                }
            }
        }
        run.flush(now_ms);
    }

    /// Forwards a packet that does not come from a ring. `pool` gives slots for copies of its head.
    pub fn execute(
        &mut self,
        port: &Arc<Port>,
        packet: Unique<Packet>,
        key: &FlowKey,
        actions: &[Action],
        pool: &mut PoolOwner<Packet>,
    ) {
        let datapath = self.datapath.clone();
        let ports = datapath.ports();
        let now_ms = datapath.now_ms();
        let mut forward = Forward {
            datapath: &datapath,
            ports: &ports,
            port,
            key,
            now_ms,
            receivers: &mut self.receivers,
            spare: || pool.take(),
        };
        apply(actions, packet, &mut forward);
        self.deliver_all(&ports, None, now_ms);
    }

    /// Delivers to all receivers of the burst. `held` is the sender whose transmit side this thread holds.
    fn deliver_all(&mut self, ports: &PortTable, held: Option<PortId>, now_ms: u64) {
        let mut receivers = std::mem::take(&mut self.receivers.0);
        for &receiver in &receivers {
            if let Some(port) = port_of(ports, receiver) {
                self.deliver(port, held, now_ms);
            }
        }
        receivers.clear();
        self.receivers.0 = receivers;
    }

    /// Serves a port's internal receive queue.
    fn deliver(&mut self, port: &Arc<Port>, held: Option<PortId>, now_ms: u64) {
        let Some(mut receive) = port.vnic.receive.try_claim() else {
            return;
        };
        let mut observer = Delivery::at(port);
        let (result, wait) = receive.with(|side| {
            let result = if guest_memory::fault_count() > 0 && side.is_broken() {
                side.stop();
                Err(vanished())
            } else {
                if side.wait() == Wait::Stalled && side.has_buffers() {
                    port.vnic.set_stalled(false);
                }
                side.run(now_ms, DELIVERY_BUDGET, &mut observer)
            };
            (result, side.wait())
        });
        let origins = observer.origins;
        if port.vnic.is_stalled() != (wait == Wait::Stalled) {
            port.vnic.set_stalled(wait == Wait::Stalled);
        }
        if let Wait::Since(since) = wait
            && !self.waiting.iter().any(|&(_, waiting)| waiting == port.id())
        {
            self.waiting.push((since + STALL_TIMEOUT_MS, port.id()));
        }
        let wanted = receive.release();
        let more = result.unwrap_or_else(|error| {
            port.break_down(&error);
            true
        });
        if wanted || more {
            self.later(port.id(), Side::Receive);
        }
        for origin in origins.0.into_iter().filter(|&origin| Some(origin) != held) {
            self.later(origin, Side::Transmit);
        }
    }

    /// Drops what is queued for a port that was taken out of the table. Waits for a thread that holds its queue,
    /// which will not find the port again.
    pub fn empty(&mut self, port: &Arc<Port>) {
        let mut observer = Delivery::at(port);
        port.vnic.receive.claim_blocking().with(|side| {
            side.stop();
            while side.run(0, DELIVERY_BUDGET, &mut observer).unwrap_or(false) {}
        });
        for origin in observer.origins.0 {
            self.later(origin, Side::Transmit);
        }
    }
}

fn vanished() -> vnic::QueueError {
    vnic::QueueError::Address("guest memory")
}

/// Ends a round at a transmit ring: gives back what is done. True if there is nothing more to do now.
fn finish_round(side: Option<&mut TransmitSide>, end: Fetched) -> bool {
    let Some(side) = side else { return true };
    side.reclaim();
    side.publish();
    match end {
        Fetched::Full => false,
        // Whoever delivers a packet of ours will look at this side again.
        Fetched::NoSlots => !side.has_slots(),
        Fetched::Empty => {
            side.disable_kicks();
            true
        }
    }
}

fn drop_reason(actions: &[Action]) -> Option<DropReason> {
    match actions {
        [] => Some(DropReason::NoAction),
        [Action::Drop(reason)] => Some(*reason),
        _ => None,
    }
}

/// Statistics of consecutive packets of one flow, so that the flow is told once.
#[derive(Default)]
struct FlowRun {
    entry: Option<Arc<FlowEntry>>,
    packets: u64,
    bytes: u64,
    tcp_flags: u16,
}

impl FlowRun {
    fn count(&mut self, entry: &Arc<FlowEntry>, packet: &Packet, key: &FlowKey, now_ms: u64) {
        if !self
            .entry
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, entry))
        {
            self.flush(now_ms);
            self.entry = Some(entry.clone());
        }
        self.packets += 1;
        self.bytes += packet.frame_len() as u64;
        self.tcp_flags |= key.tcp_flags();
    }

    fn flush(&mut self, now_ms: u64) {
        if let Some(entry) = self.entry.take() {
            entry.record(self.packets, self.bytes, self.tcp_flags, now_ms);
        }
        *self = FlowRun::default();
    }
}

/// The real sink of actions.
struct Forward<'a, S> {
    datapath: &'a Datapath,
    ports: &'a PortTable,
    port: &'a Port,
    key: &'a FlowKey,
    now_ms: u64,
    receivers: &'a mut PortSet,
    spare: S,
}

impl<S> Forward<'_, S> {
    fn miss(&self, packet: &Packet) -> Result<(), DropReason> {
        let result = upcall(
            self.datapath,
            self.port,
            packet,
            UpcallCause::Miss,
            self.key,
            self.now_ms,
        );
        if let Err(reason) = result {
            packet.account.dropped(reason, 1);
        }
        result
    }
}

impl<S: FnMut() -> Option<Unique<Packet>>> Sink for Forward<'_, S> {
    #[inline]
    fn output(&mut self, port: PortId, packet: Shared<Packet>) {
        let receiver = port_of(self.ports, port).filter(|receiver| receiver.switch.id == self.port.switch.id);
        let Some(receiver) = receiver else {
            return self.dropped(&packet, DropReason::NoSuchPort);
        };
        match receiver.vnic.enqueue(packet) {
            Ok(()) => self.receivers.add(port),
            Err((reason, packet)) => {
                receiver.vnic.account.egress_dropped(reason, 1);
                if receiver.captures.active() {
                    receiver
                        .captures
                        .record(&packet, CaptureDirection::ToGuest, Some(reason));
                }
                self.dropped(&packet, reason);
            }
        }
    }

    fn upcall(&mut self, cookie: u64, packet: &Packet) {
        let cause = UpcallCause::Action(cookie);
        if let Err(reason) = upcall(self.datapath, self.port, packet, cause, self.key, self.now_ms) {
            self.dropped(packet, reason);
        }
    }

    fn dropped(&mut self, packet: &Packet, reason: DropReason) {
        packet.account.dropped(reason, 1);
    }

    fn spare(&mut self) -> Option<Unique<Packet>> {
        (self.spare)()
    }
}

/// Notes whose packets were delivered, and captures.
struct Delivery<'a> {
    port: &'a Port,
    capturing: bool,
    origins: PortSet,
}

impl<'a> Delivery<'a> {
    fn at(port: &'a Port) -> Delivery<'a> {
        Delivery {
            port,
            capturing: port.captures.active(),
            origins: PortSet::default(),
        }
    }
}

impl Observer for Delivery<'_> {
    #[inline]
    fn delivered(&mut self, packet: &Packet) {
        self.origins.add(packet.origin);
        if self.capturing {
            self.port.captures.record(packet, CaptureDirection::ToGuest, None);
        }
    }

    fn dropped(&mut self, packet: &Packet, reason: DropReason) {
        self.origins.add(packet.origin);
        if self.capturing {
            self.port
                .captures
                .record(packet, CaptureDirection::ToGuest, Some(reason));
        }
    }
}

impl Port {
    /// Stops serving a guest that broke the rules, until it sets its rings up again.
    fn break_down(&self, error: &vnic::QueueError) {
        use vnic::Host as _;
        self.vnic.break_down(error);
        self.schedule();
        self.changed();
    }
}
