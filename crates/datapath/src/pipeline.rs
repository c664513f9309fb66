//! The walk of a packet: from a transmit ring to receive rings.
//!
//! [`Pipeline::switch`] takes bursts from a port's transmit ring and runs each through the stages, a whole
//! burst per stage:
//!
//! 1. *fetch* (`vnic::TransmitSide::fetch`): chains are translated, headers copied to private slots;
//! 2. *parse*: keys from the private heads;
//! 3. *look up*: microflow cache, megaflow table, or a miss;
//! 4. *act*, unless the whole burst just goes to one port: sort packets that just go to a port by port, and apply other
//!    flows' actions, which append packets to internal receive queues;
//! 5. *deliver* ([`Pipeline::hand_over`], [`Pipeline::deliver`]): copy from the sender's to the receivers' memory;
//! 6. *complete*: give chains back to the sender whose packets are done.
//!
//! A packet that just goes to a port whose receive side is free is copied at once (`hand_over`): it stays this
//! thread's own from ring to ring, and costs no operation that other threads could see. Any other one, and whatever
//! follows it to the same port, goes through the port's internal receive queue.
//!
//! A `Pipeline` belongs to one thread. Rings belong to whoever claims them; what this thread cannot claim, its
//! holder will see to. What is left to look at later is on the to-do list.

mod placing;
mod polling;
mod sinks;

use crate::actions::apply;
use crate::executor::Executor;
use crate::port::Port;
use crate::state::{Datapath, PortTable, Side, port_of};
use crate::work::Moved;
use classifier::{FlowEntry, MicroflowCache, Train};
use clock::Deadline;
use control_protocol::data_plane::CaptureDirection;
use flow::{Action, DropReason, ExactKey, FlowKey, PortId};
use placing::{Copier, UNKNOWN_BACKLOG};
use polling::{Due, Timer};
use ring::{Guard, PoolOwner, Unique};
use sinks::{Delivery, FlowRun, Forward, enqueue};
use std::collections::VecDeque;
use std::sync::Arc;
use vnic::{BURST, Fetched, Packet, TransmitSide, Turn, Wait};

/// Bursts taken from one port before others get their turn.
const ROUNDS: usize = 8;

/// How long a turn takes, in microseconds: no burst, and no packet of a receive queue, is begun later. What one of them
/// can cost is bounded as well (`vnic::Turn`).
const TURN_US: u64 = 100;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_US: u64 = 1000;

/// Longest tick of the clock that waits are measured with.
const TICK_MS: u64 = 10;

/// Tasks that may overtake an older one in sequence, lest that one wait for ever.
const OVERTAKEN: u32 = 8;

/// Packets delivered to one port before others get their turn.
const DELIVERY_BUDGET: usize = 256;

/// One thread's means of forwarding.
pub(crate) struct Pipeline {
    pub datapath: Arc<Datapath>,
    /// Through which others reach this thread, if it is a worker.
    me: Option<Arc<Executor>>,
    /// What it did, for the thread's account.
    pub moved: Moved,
    /// The ports as of `ports_version`. Let go of before the thread sleeps.
    ports: Option<Arc<PortTable>>,
    ports_version: u64,
    /// Time of the current step, as of the last tick.
    now_ms: u64,
    microflows: MicroflowCache,
    /// When the turn of the current step ends.
    ends: Deadline,
    /// When flows were last told what `microflows` counted.
    told_ms: u64,
    burst: Vec<Unique<Packet>>,
    /// For each packet of the burst its key, and what is to be done.
    keys: Box<[ExactKey; BURST]>,
    verdicts: [Verdict; BURST],
    /// Flows of the burst with other actions than to output to a port.
    flows: Vec<Arc<FlowEntry>>,
    outgoing: Outgoing,
    /// Receivers that got packets of the current burst in their queues.
    receivers: PortSet,
    /// Ports to look at next.
    todo: VecDeque<(PortId, Side)>,
    /// Tasks in sequence that were put before an older one.
    overtaken: u32,
    /// Ports whose transmit rings this thread polls, as their guests need not kick; and whether packets came since.
    polled: Vec<(PortId, bool)>,
    /// The one of them that was looked at last.
    turn: usize,
    /// Where the look at rings that others serve goes on.
    patrol: usize,
    /// What to look at when its time has come.
    timers: Vec<Timer>,
}

/// What is to be done with a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It just goes to a port.
    Output(PortId),
    /// The actions of a flow, by its place in `flows`.
    Actions(u32),
    /// Nobody knows.
    Miss,
}

impl Verdict {
    #[inline]
    fn of(entry: &Arc<FlowEntry>, flows: &mut Vec<Arc<FlowEntry>>) -> Verdict {
        if let Some(port) = entry.output {
            return Verdict::Output(port);
        }
        // Neighbours are often of the same flow, and then share one reference to it.
        if !flows.last().is_some_and(|last| Arc::ptr_eq(last, entry)) {
            flows.push(Arc::clone(entry));
        }
        Verdict::Actions(flows.len() as u32 - 1)
    }
}

/// Packets of a burst that just go to a port, by port.
#[derive(Default)]
struct Outgoing {
    groups: Vec<(PortId, Vec<Unique<Packet>>)>,
    used: usize,
}

impl Outgoing {
    #[inline]
    fn add(&mut self, to: PortId, packet: Unique<Packet>) {
        let known = self.groups[..self.used].iter().rposition(|(port, _)| *port == to);
        let group = known.unwrap_or_else(|| self.open(to));
        self.groups[group].1.push(packet);
    }

    fn open(&mut self, to: PortId) -> usize {
        if self.used == self.groups.len() {
            self.groups.push((to, Vec::with_capacity(BURST)));
        }
        self.groups[self.used].0 = to;
        self.used += 1;
        self.used - 1
    }
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
    /// The means of a worker, or of a thread that forwards besides.
    pub fn new(datapath: Arc<Datapath>, me: Option<Arc<Executor>>) -> Pipeline {
        Pipeline {
            datapath,
            me,
            moved: Moved::default(),
            ports: None,
            ports_version: 0,
            now_ms: 0,
            microflows: MicroflowCache::default(),
            ends: Deadline::after_us(TURN_US),
            told_ms: 0,
            burst: Vec::with_capacity(BURST),
            keys: Box::new([ExactKey::default(); BURST]),
            verdicts: [Verdict::Miss; BURST],
            flows: Vec::with_capacity(BURST),
            outgoing: Outgoing::default(),
            receivers: PortSet::default(),
            todo: VecDeque::new(),
            overtaken: 0,
            polled: Vec::new(),
            turn: 0,
            patrol: 0,
            timers: Vec::new(),
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
        if self.todo.is_empty() {
            return false;
        }
        let ports = self.ports();
        self.now_ms = self.datapath.now_ms();
        self.ends = Deadline::after_us(TURN_US);
        if let Some((id, side)) = self.next_task(&ports)
            && let Some(port) = port_of(&ports, id)
        {
            match side {
                _ if self.gave_way(port, &ports, side) => {}
                Side::Transmit => self.switch(port, &ports),
                Side::Receive => self.deliver(port, &ports, None),
            }
        }
        self.ports = Some(ports);
        self.tell_flows_at(self.now_ms);
        true
    }

    /// The ports as they are now, without the lock if they have not changed since the last step. To be put back.
    fn ports(&mut self) -> Arc<PortTable> {
        let version = self.datapath.ports_version();
        match self.ports.take() {
            Some(ports) if version == self.ports_version => ports,
            _ => {
                self.ports_version = version;
                self.datapath.ports()
            }
        }
    }

    /// Tells flows what was counted, once in a tick of the clock.
    pub fn tell_flows(&mut self) {
        self.tell_flows_at(self.datapath.now_ms());
    }

    fn tell_flows_at(&mut self, now_ms: u64) {
        if self.told_ms != now_ms {
            self.told_ms = now_ms;
            self.microflows.tell(now_ms);
        }
    }

    /// Lets go of what others may wait for, before the thread sleeps.
    pub fn rest(&mut self) {
        self.microflows.tell(self.datapath.now_ms());
        self.ports = None;
    }

    /// Serves a port's transmit ring.
    fn switch(&mut self, port: &Arc<Port>, ports: &PortTable) {
        let Some(mut transmit) = port.vnic.transmit.try_claim() else {
            return;
        };
        let (mut more, before) = (true, self.moved.packets);
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
            self.process_burst(port, ports, &mut transmit);
            let idle = transmit.with(|side| finish_round(side.as_mut(), end));
            if idle {
                more = false;
                self.poll_from_now(port.id(), self.moved.packets > before);
                break;
            }
            if self.ends.has_passed() {
                break;
            }
        }
        if transmit.release() || more {
            self.later(port.id(), Side::Transmit);
        }
    }

    /// Runs what was fetched through parse, look-up, actions and delivery: each a function of its own, never inlined,
    /// which has the processor's registers for its loop.
    #[inline(never)]
    fn process_burst(
        &mut self,
        port: &Arc<Port>,
        ports: &PortTable,
        transmit: &mut Guard<'_, Option<TransmitSide>>,
    ) {
        if self.burst.is_empty() {
            return;
        }
        self.moved.bursts += 1;
        self.moved.packets += self.burst.len() as u64;
        if self.datapath.placement.policy.copies_twice() {
            transmit.with(|side| side.iter_mut().for_each(|side| side.detach(&mut self.burst)));
        }
        self.parse(port);
        self.look_up(port);
        if let Some(to) = self.common_output()
            && !port.captures.active()
        {
            let mut packets = std::mem::take(&mut self.burst);
            self.hand_over(port, ports, transmit, to, &mut packets);
            self.burst = packets;
        } else {
            self.act(port, ports, transmit);
        }
        self.deliver_all(ports, Some(port.id()));
    }

    /// The port that all packets of the burst just go to.
    fn common_output(&self) -> Option<PortId> {
        let (first, others) = self.verdicts[..self.burst.len()].split_first()?;
        match first {
            Verdict::Output(to) if others.iter().all(|verdict| verdict == first) => Some(*to),
            _ => None,
        }
    }

    /// Makes the keys. What contradicts itself is dropped.
    #[inline(never)]
    fn parse(&mut self, port: &Port) {
        let count = self.burst.len();
        let (packets, keys) = (&mut self.burst[..count], &mut self.keys[..count]);
        let mut bad = 0u32;
        for at in 0..count {
            bad |= u32::from(packets[at].parse(&mut keys[at]).is_err()) << at;
        }
        if bad != 0 {
            self.refuse(bad, port);
        }
    }

    /// Drops packets that contradict themselves, of which there are as many as bits in `bad`.
    #[cold]
    fn refuse(&mut self, bad: u32, port: &Port) {
        let mut kept = 0;
        for at in 0..self.burst.len() {
            if bad >> at & 1 == 0 {
                self.burst.swap(kept, at);
                self.keys.swap(kept, at);
                kept += 1;
                continue;
            }
            port.vnic.account.dropped(DropReason::BadOffload, 1);
            if port.captures.active() {
                let reason = Some(DropReason::BadOffload);
                port.captures
                    .record(&self.burst[at], CaptureDirection::FromGuest, reason);
            }
        }
        self.burst.truncate(kept);
    }

    /// Finds what is to be done. Packets that flows treat alike often come in trains, which need one look.
    #[inline(never)]
    fn look_up(&mut self, port: &Port) {
        let count = self.burst.len();
        let (packets, keys) = (&self.burst[..count], &self.keys[..count]);
        let verdicts = &mut self.verdicts[..count];
        let (mut at, mut missing) = (0, false);
        while at < count {
            let (first, begin, mut train) = (&keys[at], at, Train::default());
            let significant = port.flows.significant(first);
            loop {
                train.add(packets[at].frame_len(), keys[at].tcp_flags());
                at += 1;
                if at == count || !first.is_equal_in(&keys[at], significant) {
                    break;
                }
            }
            let hash = self.microflows.hash(first, significant);
            let cached = self.microflows.hit(hash, first, significant, &train);
            missing |= cached.is_none();
            let verdict = cached.map_or(Verdict::Miss, |entry| Verdict::of(entry, &mut self.flows));
            verdicts[begin..at].fill(verdict);
        }
        if missing {
            self.look_up_missing(port);
        }
    }

    /// Looks in the megaflow table for what the cache does not know, and has it remember what is there.
    #[inline(never)]
    fn look_up_missing(&mut self, port: &Port) {
        let flows = port.flows.read();
        let mut run = FlowRun::default();
        for (at, packet) in self.burst.iter().enumerate() {
            let key = &self.keys[at];
            if self.verdicts[at] == Verdict::Miss
                && let Some(entry) = flows.lookup(&key.flow_key().unwrap_or_else(|| packet.key()))
            {
                run.count(entry, packet.frame_len(), key.tcp_flags(), self.now_ms);
                self.verdicts[at] = Verdict::of(entry, &mut self.flows);
                if !key.is_none() {
                    let significant = port.flows.significant(key);
                    let hash = self.microflows.hash(key, significant);
                    self.microflows.insert(hash, key, significant, entry, self.now_ms);
                }
            }
        }
        run.flush(self.now_ms);
    }

    #[inline(never)]
    fn act(&mut self, port: &Arc<Port>, ports: &PortTable, transmit: &mut Guard<'_, Option<TransmitSide>>) {
        let capturing = port.captures.active();
        for (packet, verdict) in self.burst.drain(..).zip(self.verdicts) {
            if let Verdict::Output(to) = verdict
                && !capturing
            {
                self.outgoing.add(to, packet);
                continue;
            }
            let mut forward = Forward {
                datapath: &self.datapath,
                ports,
                port,
                key: &packet.key(),
                now_ms: self.now_ms,
                receivers: &mut self.receivers,
                spare: || transmit.with(|side| side.as_mut()?.spare()),
            };
            let output;
            let actions = match verdict {
                Verdict::Output(to) => {
                    output = [Action::Output(to)];
                    Ok(&output[..])
                }
                Verdict::Actions(flow) => Ok(&self.flows[flow as usize].flow.actions[..]),
                Verdict::Miss => Err(forward.miss(&packet).err()),
            };
            if capturing {
                let dropped = actions.map_or_else(|dropped| dropped, drop_reason);
                port.captures
                    .record(&packet, CaptureDirection::FromGuest, dropped);
            }
            if let Ok(actions) = actions {
                apply(actions, packet, &mut forward);
            }
        }
        for group in 0..std::mem::take(&mut self.outgoing.used) {
            let (to, mut packets) = std::mem::take(&mut self.outgoing.groups[group]);
            self.hand_over(port, ports, transmit, to, &mut packets);
            self.outgoing.groups[group] = (to, packets);
        }
        self.flows.clear();
    }

    /// Delivers packets that just go to a port, at once as far as that is possible; what is left is queued.
    fn hand_over(
        &mut self,
        port: &Arc<Port>,
        ports: &PortTable,
        transmit: &mut Guard<'_, Option<TransmitSide>>,
        to: PortId,
        packets: &mut Vec<Unique<Packet>>,
    ) {
        port.vnic.account.lender.sends_to(to, self.now_ms);
        let receiver = port_of(ports, to).filter(|receiver| receiver.takes_at_once_from(port));
        let copier = receiver.map_or(Copier::Here, |receiver| self.copier(receiver, ports, packets));
        let now = match &copier {
            Copier::Here => packets.len(),
            Copier::Elsewhere(now, _) => (*now).min(packets.len()),
            Copier::Busy => 0,
        };
        if let Some(receiver) = receiver.filter(|_| now > 0) {
            self.deliver_now(receiver, ports, transmit, packets, now);
        }
        if packets.is_empty() {
            return;
        }
        for packet in packets.drain(..) {
            enqueue(packet.share(), port, to, ports, &mut self.receivers);
        }
        if let (Some(receiver), Copier::Elsewhere(_, executor)) = (receiver, copier)
            && self.tell_copier(receiver, &executor)
        {
            self.receivers.0.retain(|&port| port != to);
        }
    }

    /// Copies at most the first `limit` of a burst's packets straight to a receiver, and takes those out.
    fn deliver_now(
        &mut self,
        receiver: &Arc<Port>,
        ports: &PortTable,
        transmit: &mut Guard<'_, Option<TransmitSide>>,
        packets: &mut Vec<Unique<Packet>>,
        limit: usize,
    ) {
        let Some(mut receive) = receiver.vnic.receive.try_claim() else {
            return;
        };
        let call_at = receive.with(|side| {
            if guest_memory::fault_count() > 0 && side.is_broken() {
                return None;
            }
            let delivered = side.deliver_now(&packets[..limit]);
            self.moved.delivered += delivered as u64;
            transmit.with(|sender| {
                if let Some(sender) = sender {
                    sender.finish(packets.drain(..delivered));
                    side.publish_with(sender);
                }
            });
            self.settle_call(side, receiver, ports)
        });
        if receive.release() {
            self.later(receiver.id(), Side::Receive);
        }
        if let Some(at_ns) = call_at {
            self.set_timer(at_ns, receiver.id(), Due::Call);
        }
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
        let ports = self.ports();
        self.now_ms = self.datapath.now_ms();
        self.ends = Deadline::after_us(TURN_US);
        let mut forward = Forward {
            datapath: &self.datapath,
            ports: &ports,
            port,
            key,
            now_ms: self.now_ms,
            receivers: &mut self.receivers,
            spare: || pool.take(),
        };
        apply(actions, packet, &mut forward);
        self.deliver_all(&ports, None);
    }

    /// Delivers to all receivers of the burst. `held` is the sender whose transmit side this thread holds.
    fn deliver_all(&mut self, ports: &PortTable, held: Option<PortId>) {
        let mut receivers = std::mem::take(&mut self.receivers.0);
        let floats = self.datapath.placement.floats() || self.me.is_none();
        for &receiver in &receivers {
            let Some(port) = port_of(ports, receiver) else {
                continue;
            };
            let copier = if floats {
                Copier::Here
            } else {
                port.announce_queued();
                self.plan(port, ports, UNKNOWN_BACKLOG)
            };
            match copier {
                Copier::Busy => {}
                Copier::Elsewhere(_, executor) if self.tell_copier(port, &executor) => {}
                // A packet for hundreds of receivers.
                _ if self.ends.has_passed() => self.later(receiver, Side::Receive),
                Copier::Here | Copier::Elsewhere(..) => self.deliver(port, ports, held),
            }
        }
        receivers.clear();
        self.receivers.0 = receivers;
    }

    /// Serves a port's internal receive queue.
    #[inline(never)]
    fn deliver(&mut self, port: &Arc<Port>, ports: &PortTable, held: Option<PortId>) {
        let Some(mut receive) = port.vnic.receive.try_claim() else {
            return;
        };
        let mut observer = Delivery::at(port);
        let (result, wait, watch_us, call_at) = receive.with(|side| {
            let mut result = if guest_memory::fault_count() > 0 && side.is_broken() {
                side.stop();
                Err(vanished())
            } else {
                if side.wait() == Wait::Stalled && side.has_buffers() {
                    port.vnic.set_stalled(false);
                }
                side.run(self.now_ms, Turn::new(DELIVERY_BUDGET, self.ends), &mut observer)
            };
            if result == Ok(false) && port.copier().is_some() {
                port.set_copier(None);
                result = Ok(side.has_queued());
            }
            let call_at = self.settle_call(side, port, ports);
            (result, side.wait(), side.watch_us(self.now_ms), call_at)
        });
        if let Some(at_ns) = call_at {
            self.set_timer(at_ns, port.id(), Due::Call);
        }
        self.moved.delivered += observer.delivered;
        let origins = observer.origins;
        if port.vnic.is_stalled() != (wait == Wait::Stalled) {
            port.vnic.set_stalled(wait == Wait::Stalled);
        }
        if let Some(until_ms) = wait.until() {
            self.set_timer((until_ms + TICK_MS) * NS_PER_MS, port.id(), Due::Stall);
        }
        if let Some(watch_us) = watch_us {
            let at_ns = self.datapath.placement.now_ns() + watch_us * NS_PER_US;
            self.set_timer(at_ns, port.id(), Due::Slow);
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
            let turn = || Turn::new(DELIVERY_BUDGET, Deadline::after_us(TURN_US));
            while side.run(0, turn(), &mut observer).unwrap_or(false) {}
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

impl Port {
    /// Whether packets of `sender` may be copied here without anybody being told.
    #[inline]
    fn takes_at_once_from(&self, sender: &Port) -> bool {
        self.switch.id == sender.switch.id
            && self.vnic.is_open()
            && !self.vnic.is_stalled()
            && !self.captures.active()
    }

    /// Stops serving a guest that broke the rules, until it sets its rings up again.
    fn break_down(&self, error: &vnic::QueueError) {
        use vnic::Host as _;
        self.vnic.break_down(error);
        self.schedule();
        self.changed();
    }
}
