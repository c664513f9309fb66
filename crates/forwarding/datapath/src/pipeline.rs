//! The walk of a packet: from a transmit ring to receive rings.
//!
//! `Pipeline::switch` takes bursts from a port's transmit ring and runs each through its functions, a whole
//! burst per function:
//!
//! 1. *fetch* (`vnic::TransmitSide::fetch`): chains are translated, headers copied to private slots;
//! 2. *parse*: keys from the private heads;
//! 3. *look up* ([`LookUp`]): microflow cache, megaflow table, or a miss;
//! 4. *act*, unless the whole burst just goes to one port: sort packets that just go to a port by port, and
//!    apply other flows' actions, which append packets to internal receive queues;
//! 5. *deliver* ([`Step::hand_over`], [`Step::deliver`]): copy from the sender's to the receivers' memory;
//! 6. *complete*: give chains back to the sender whose packets are done.
//!
//! A packet that just goes to a port whose receive side is free is copied at once (`hand_over`): it stays
//! this thread's own from ring to ring, and costs no operation that other threads could see. Any other one,
//! and whatever follows it to the same port, goes through the port's internal receive queue.
//!
//! A `Pipeline` belongs to one thread, whose [`Scheduler`](scheduler::Scheduler) calls it for one ring after
//! the other. Rings belong to the thread that claims them: the holder serves a ring that this thread cannot
//! claim. Rings with work left are put on the [`Schedule`].

use crate::actions::{Means, Sink, apply};
use crate::burst::{Burst, PortSet, Verdict, change};
use crate::deliver::{Sender, Step, empty, vanished};
use crate::grace::Member;
use crate::injection::Injection;
use crate::kept::{Kept, TurnTime};
use crate::look_up::LookUp;
use crate::p4::{Crossings, Diverted, KeptVerdicts, P4Key, Shares};
use crate::port::Port;
use crate::sinks::Forward;
use crate::state::{Datapath, Ports, port_of, transmit_ring};
use classifier::{Decision, NoTables, Start, Tables, Train};
use control_protocol::data_plane::CaptureDirection;
use cpu::Deadline;
use flow::{Action, Context, DropReason, ExactKey, FlowKey, MirrorPoint, Op, PortId, Program, Stage};
use lock_free::Unique;
use scheduler::{Due, RingId, Rings, Schedule};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnic::{Fetched, Packet, TransmitSide};

/// Bursts taken from one port before others get their turn.
const ROUNDS: usize = 8;

/// For a thread that has rested.
static NO_PORTS: Ports = Ports::new();

/// One thread's means of forwarding.
pub(crate) struct Pipeline {
    pub datapath: Arc<Datapath>,
    /// The ports as of `ports_version`. Let go of before the thread sleeps.
    ports: Option<Arc<Ports>>,
    ports_version: u64,
    pub walk: Walk,
    /// Receivers that got packets in this step.
    receivers: PortSet,
    kept: Kept,
    /// Membership of this thread in grace periods: it flushes what it counted into flows' statistics.
    member: Member,
    /// When what the microflow cache counted was added to flows last.
    flushed_ms: u64,
}

/// What the functions keep from burst to burst.
pub(crate) struct Walk {
    look_up: LookUp,
    pub burst: Burst,
    /// As the placement policy says.
    copies_twice: bool,
    means: Means,
    /// Time that P4 switches have taken.
    pub shares: Shares,
    /// Verdicts of P4 programs.
    pub verdicts: KeptVerdicts,
    /// Packets between P4 programs; none between turns.
    pub crossings: Crossings,
}

/// A packet of the control process, and what is to be done with it.
pub(crate) struct Injected<'a> {
    /// The port it counts as having come from.
    pub port: &'a Port,
    pub packet: Unique<Packet>,
    pub key: FlowKey,
    /// The stage of the actions.
    pub stage: Stage,
    pub actions: &'a [Action],
}

impl Rings for Pipeline {
    type Homes = Ports;

    #[inline]
    fn refresh(&mut self) {
        let version = self.datapath.ports_version();
        if self.ports.is_none() {
            self.member.online();
        }
        if self.ports.is_none() || version != self.ports_version && !self.kept.has_any() {
            self.ports_version = version;
            self.ports = Some(self.datapath.ports());
        }
    }

    #[inline]
    fn homes(&self) -> &Ports {
        self.ports.as_deref().unwrap_or(&NO_PORTS)
    }

    fn serve(&mut self, ring: RingId, schedule: &mut Schedule) {
        let now_ms = self.in_step(schedule, |walk, step| {
            let Some(port) = step.ports.get(port_of(ring)) else {
                return;
            };
            if !ring.is_transmit() {
                step.deliver(port, None);
            } else if let Some(transmit) = step.kept.claim_transmit(port) {
                walk.switch(Sender { port, transmit }, step);
            }
        });
        self.flush_stats_at(now_ms);
    }

    /// What the look finds is served under its claim.
    fn serve_found(&mut self, ring: RingId, looked: usize, schedule: &mut Schedule) -> bool {
        let (ports, kept) = (self.ports.as_deref().unwrap_or(&NO_PORTS), &mut self.kept);
        let Some((sender, come)) = look_at(ports, ring, kept) else {
            return false;
        };
        if !come || schedule.queue_others(looked, |other| has_work(ports, other, kept)) {
            let found = kept.end(sender.transmit, ring) || come;
            if found {
                schedule.later(ring);
            }
            return found;
        }
        let time = (kept.time()).unwrap_or_else(|| begin_turn(&self.datapath, schedule));
        let mut step = Step {
            ports,
            schedule,
            receivers: &mut self.receivers,
            kept,
            time,
        };
        self.walk.switch(sender, &mut step);
        self.kept.begin(time);
        self.flush_stats_at(time.now_ms);
        true
    }

    fn on_kick(&mut self, ring: RingId) -> Option<u64> {
        let account = &self.homes().get(port_of(ring))?.vnic.account;
        account.kicks.fetch_add(1, Ordering::Relaxed);
        let packets = if ring.is_transmit() {
            &account.received
        } else {
            &account.transmitted
        };
        Some(packets.load(Ordering::Relaxed))
    }

    fn has_work(&mut self, ring: RingId) -> bool {
        has_work(self.ports.as_deref().unwrap_or(&NO_PORTS), ring, &mut self.kept)
    }

    #[inline]
    fn give_up_claims(&mut self, schedule: &mut Schedule) {
        let ports = self.ports.as_deref().unwrap_or(&NO_PORTS);
        self.kept.give_up(ports, schedule);
    }

    fn enable_kicks(&mut self, ring: RingId) -> bool {
        let Some(port) = self.homes().get(port_of(ring)) else {
            return false;
        };
        // The thread that holds it now polls it from now on.
        let Some(mut transmit) = port.vnic.transmit.try_claim() else {
            return false;
        };
        let come = transmit.with(|side| {
            side.as_mut()
                .is_some_and(|side| side.enable_kicks().unwrap_or(true))
        });
        transmit.release() || come
    }

    fn kicks_paused(&mut self, ring: RingId) {
        if let Some(port) = self.homes().get(port_of(ring)) {
            port.vnic.account.kick_pauses.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn missed_threads(&mut self, vnic: placement::VnicId) {
        self.datapath.notices.changed(PortId(vnic.0));
    }

    fn flush_stats(&mut self) {
        self.flush_stats_at(self.datapath.now_ms());
    }

    fn before_sleep(&mut self) {
        // None is left, but at a thread's end.
        self.kept
            .release_all(self.ports.as_deref().unwrap_or(&NO_PORTS), |_| ());
        let now_ms = self.datapath.now_ms();
        self.member.offline(|| self.walk.look_up.flush_stats(now_ms));
        self.ports = None;
    }
}

impl Drop for Pipeline {
    /// A thread's last counts are not lost with it.
    fn drop(&mut self) {
        self.before_sleep();
    }
}

impl Pipeline {
    /// The means of a worker, or of a thread that forwards besides.
    pub fn new(datapath: Arc<Datapath>) -> Pipeline {
        Pipeline {
            walk: Walk {
                look_up: LookUp::new(datapath.meters.clone(), datapath.kernel_path.get().cloned()),
                means: Means::default(),
                burst: Burst::new(),
                copies_twice: datapath.shared.placement.policy.copies_twice(),
                shares: Shares::default(),
                verdicts: KeptVerdicts::default(),
                crossings: Crossings::default(),
            },
            member: datapath.periods.join(),
            datapath,
            ports: None,
            ports_version: 0,
            receivers: PortSet::default(),
            kept: Kept::default(),
            flushed_ms: 0,
        }
    }

    /// A step with the ports as of the last [`refresh`](Rings::refresh); returns when it began.
    #[inline]
    fn in_step(&mut self, schedule: &mut Schedule, f: impl FnOnce(&mut Walk, &mut Step<'_>)) -> u64 {
        let time = begin_turn(&self.datapath, schedule);
        let mut step = Step {
            ports: self.ports.as_deref().unwrap_or(&NO_PORTS),
            schedule,
            receivers: &mut self.receivers,
            kept: &mut self.kept,
            time,
        };
        f(&mut self.walk, &mut step);
        time.now_ms
    }

    fn flush_stats_at(&mut self, now_ms: u64) {
        if self.flushed_ms != now_ms {
            self.flushed_ms = now_ms;
            let (datapath, kept, known) = (&self.datapath, &self.kept, self.ports_version);
            self.member.quiescent(|| {
                self.walk.look_up.flush_stats(now_ms);
                !kept.has_any() || datapath.ports_version() == known
            });
        }
    }

    /// Forwards a packet that does not come from a ring, up to its receivers' queues, which
    /// [`deliver_executed`](Self::deliver_executed) empties. `slots` gives some for copies of its head.
    pub fn execute(&mut self, injected: Injected<'_>, slots: &mut Injection, schedule: &mut Schedule) {
        self.refresh();
        let came = ExactKey::of(&injected.key);
        self.in_step(schedule, |walk, step| {
            let mut forward = Forward {
                came: Some(&came),
                ports: step.ports,
                port: injected.port,
                now_ms: step.time.now_ms,
                receivers: &mut *step.receivers,
                meters: &mut walk.look_up.meters,
                spare: || slots.take(injected.port.id()),
            };
            match Program::compile(injected.actions, injected.stage) {
                Ok(program) => {
                    let flows = injected.port.flows.read();
                    let packet = (injected.packet, Some(injected.key));
                    apply(
                        Start::InStage(&program, injected.stage),
                        &flows,
                        packet,
                        &mut walk.means,
                        &mut forward,
                    );
                }
                Err(_) => forward.dropped(&injected.packet, DropReason::BadActions),
            }
        });
    }

    /// Runs packets of a P4 switch's clients, likewise.
    pub fn serve_clients(&mut self, key: P4Key, slots: &mut Injection, schedule: &mut Schedule) {
        self.refresh();
        self.in_step(schedule, |walk, step| walk.serve_clients(key, slots, step));
    }

    /// Delivers what was [executed](Self::execute): to be called before the thread does anything else with
    /// packets.
    pub fn deliver_executed(&mut self, schedule: &mut Schedule) {
        if !self.receivers.0.is_empty() {
            // A port may have gone since.
            self.refresh();
            self.in_step(schedule, |_, step| step.deliver_all(None));
        }
    }

    /// Drops what is queued for a port that was taken out of the table, and has its senders looked at.
    pub fn empty(&mut self, port: &Port, schedule: &mut Schedule) {
        for origin in empty(port).0 {
            schedule.later(transmit_ring(origin));
        }
    }
}

impl Walk {
    /// Serves a port's transmit ring.
    fn switch(&mut self, mut sender: Sender<'_>, step: &mut Step<'_>) {
        let port = sender.port;
        let (mut more, before) = (true, step.schedule.progress.packets);
        for _ in 0..ROUNDS {
            let fetched = if port.vnic.is_diverted() {
                match self.fetch_diverted(&mut sender, step) {
                    Ok(Diverted::Fetched(end)) => Ok(end),
                    Ok(Diverted::PassedOn) => break,
                    Ok(Diverted::Waits) => {
                        more = false;
                        break;
                    }
                    Err(error) => Err(error),
                }
            } else {
                sender.transmit.with(|side| match side {
                    Some(side) if guest_memory::fault_count() > 0 && side.is_broken() => Err(vanished()),
                    Some(side) => {
                        side.reclaim();
                        side.fetch(&mut self.burst.packets)
                    }
                    None => Ok(Fetched::Empty),
                })
            };
            let end = match fetched {
                Ok(end) => end,
                Err(error) => {
                    self.burst.packets.clear();
                    sender.transmit.with(|side| *side = None);
                    port.break_down(&error);
                    break;
                }
            };
            self.process_burst(&mut sender, step);
            let idle = sender
                .transmit
                .with(|side| finish_round(side.as_mut(), end, port, step));
            if idle {
                more = false;
                if end == Fetched::Waits {
                    break;
                }
                let fresh = step.schedule.progress.packets > before;
                step.schedule.poll_from_now(port.transmit_ring(), fresh);
                break;
            }
            if step.time.ends.has_passed() {
                break;
            }
        }
        if step.kept.end(sender.transmit, port.transmit_ring()) || more {
            step.schedule.later(port.transmit_ring());
        }
    }

    /// Runs what was fetched through parse, look-up, actions and delivery: each a function of its own, never
    /// inlined, which has the processor's registers for its loop.
    #[inline(never)]
    fn process_burst(&mut self, sender: &mut Sender<'_>, step: &mut Step<'_>) {
        if self.burst.packets.is_empty() {
            return;
        }
        let port = sender.port;
        step.schedule.progress.bursts += 1;
        step.schedule.progress.packets += self.burst.packets.len() as u64;
        if self.copies_twice {
            self.detach(sender);
        }
        self.parse(port, step.time.now_ms);
        self.look_up
            .find_verdicts(&mut self.burst, port, step.time.now_ms);
        let common = if port.is_copied() {
            None
        } else {
            (self.burst.common_output()).or_else(|| self.burst.edit_alike())
        };
        match common {
            Some(to) => step.hand_over(sender, to, &mut self.burst.packets),
            None => self.act(sender, step),
        }
        step.deliver_all(Some(sender));
    }

    /// Copies what the burst's packets still have in the sender's memory.
    #[cold]
    #[inline(never)]
    fn detach(&mut self, sender: &mut Sender<'_>) {
        let packets = &mut self.burst.packets;
        (sender.transmit).with(|side| side.iter_mut().for_each(|side| side.detach(packets)));
    }

    /// Makes the keys. Packets whose offload fields contradict the frame are dropped.
    #[inline(never)]
    fn parse(&mut self, port: &Port, now_ms: u64) {
        let count = self.burst.packets.len();
        let (packets, keys) = (&mut self.burst.packets[..count], &mut self.burst.keys[..count]);
        let mut again = 0u32;
        for at in 0..count {
            again |= u32::from(packets[at].parse(&mut keys[at]).is_err()) << at;
        }
        if again != 0 {
            self.parse_again(again, port, now_ms);
        }
    }

    /// Parses those packets further whose bits are set. Where flows look at headers behind the head, the
    /// number of packets is bounded.
    #[cold]
    fn parse_again(&mut self, packets: u32, port: &Port, now_ms: u64) {
        let mut position = 0;
        self.refuse(port, |packet, key| {
            position += 1;
            if packets >> (position - 1) & 1 == 0 {
                return None;
            }
            let is_read = |unseen| port.flows.may_look_at(unseen);
            packet
                .parse_again(key, is_read, || port.admit_header_copy(now_ms))
                .err()
        });
    }

    /// What is done with fetched packets of a port that is diverted before anything is decided.
    pub fn begin_burst(&mut self, sender: &mut Sender<'_>, step: &mut Step<'_>) {
        step.schedule.progress.bursts += 1;
        step.schedule.progress.packets += self.burst.packets.len() as u64;
        if self.copies_twice {
            self.detach(sender);
        }
        self.parse_diverted(sender.port, step.time.now_ms);
    }

    /// Parses packets that no flow looks at, which need no key if they are plain. There is one caller of the
    /// parser, into which it is inlined.
    fn parse_diverted(&mut self, port: &Port, now_ms: u64) {
        let are_plain = self.burst.packets.iter_mut().all(|packet| packet.parse_plain());
        if !are_plain {
            self.parse(port, now_ms);
        }
    }

    /// Drops the packets for which there is a reason.
    #[cold]
    pub fn refuse(
        &mut self,
        port: &Port,
        mut reason: impl FnMut(&mut Packet, &mut ExactKey) -> Option<DropReason>,
    ) {
        let mut kept = 0;
        let Burst { packets, keys, .. } = &mut self.burst;
        for at in 0..packets.len() {
            let Some(reason) = reason(&mut packets[at], &mut keys[at]) else {
                packets.swap(kept, at);
                keys.swap(kept, at);
                kept += 1;
                continue;
            };
            port.vnic.account.dropped(reason, 1);
            if port.is_copied() {
                record(port, &packets[at], Some(reason));
            }
        }
        packets.truncate(kept);
    }

    /// Sorts packets that just go to a port by port, and does what was decided about the others.
    #[inline(never)]
    fn act(&mut self, sender: &mut Sender<'_>, step: &mut Step<'_>) {
        let Burst {
            packets,
            keys,
            verdicts,
            decisions,
            outgoing,
            is_recorded,
            ..
        } = &mut self.burst;
        let port = sender.port;
        let copying = port.is_copied() && !std::mem::take(is_recorded);
        let mut forward = Forward {
            came: None,
            ports: step.ports,
            port,
            now_ms: step.time.now_ms,
            receivers: &mut *step.receivers,
            meters: &mut self.look_up.meters,
            spare: || sender.transmit.with(|side| side.as_mut()?.spare()),
        };
        for ((mut packet, verdict), key) in packets.drain(..).zip(*verdicts).zip(keys.iter()) {
            if copying {
                forward.mirror(&packet, MirrorPoint::From);
                capture(port, &packet, verdict, decisions);
            }
            match verdict {
                Verdict::Output(to) => outgoing.add(to, packet),
                Verdict::Actions(decision) => {
                    let decision = &decisions[decision as usize];
                    match decision.shape.edited() {
                        Some(edited) if change(&mut packet, edited) => outgoing.add(edited.port, packet),
                        Some(_) if copying => forward.mirror(&packet, MirrorPoint::DroppedFrom),
                        Some(_) => {}
                        None => forward.run(decision, packet, key, &mut self.means),
                    }
                }
                Verdict::Walk => forward.walk(packet, key, &mut self.means),
                Verdict::Metered(reason) => forward.dropped(&packet, reason),
                Verdict::Miss => forward.miss_first(&packet, copying),
            }
        }
        let used = std::mem::take(&mut outgoing.used);
        for (to, packets) in &mut outgoing.groups[..used] {
            step.hand_over(sender, *to, packets);
        }
        decisions.clear();
    }
}

impl<'a, S: FnMut() -> Option<Unique<Packet>>> Forward<'a, S> {
    /// Runs a decision's program on a packet.
    fn run(&mut self, decision: &Decision, packet: Unique<Packet>, key: &'a ExactKey, means: &mut Means) {
        self.came = Some(key);
        let mut train = Train::default();
        train.add(packet.frame_len(), key.tcp_flags());
        let start = Start::Program(decision.program());
        apply(start, &NoTables, (packet, None), means, self);
        if decision.counts_apart() {
            decision.record_metered(means.stopped(), &train, self.now_ms);
        }
    }

    /// Takes a packet from flow to flow.
    fn walk(&mut self, packet: Unique<Packet>, key: &'a ExactKey, means: &mut Means) {
        self.came = Some(key);
        let flows = self.port.flows.read();
        let start = Start::LookUp(Stage::first(&flows.filters(self.port.id())));
        // Fields that were not looked at before may be now.
        let key = key.flow_key().filter(|_| key.unseen().is_nothing());
        apply(start, &flows, (packet, key), means, self);
    }

    /// Queues a packet that no flow of its first stage matches for the controller.
    fn miss_first(&mut self, packet: &Packet, copying: bool) {
        let key = packet.key();
        let stage = first_stage(self.port);
        let dropped = self.miss(stage, packet, (key.as_ref(), &Context::NONE)).err();
        if copying {
            record(self.port, packet, dropped);
        }
    }
}

/// Captures a packet with what becomes of it. One that misses is captured once it is known whether it has
/// found room.
#[cold]
fn capture(port: &Port, packet: &Packet, verdict: Verdict, decisions: &[Arc<Decision>]) {
    match verdict {
        Verdict::Output(_) | Verdict::Walk => record(port, packet, None),
        Verdict::Actions(decision) => {
            let program = decisions[decision as usize].program();
            record(port, packet, drop_reason(program));
        }
        Verdict::Metered(reason) => record(port, packet, Some(reason)),
        Verdict::Miss => {}
    }
}

pub(crate) fn record(port: &Port, packet: &Packet, dropped: Option<DropReason>) {
    port.record(packet, CaptureDirection::FromGuest, dropped);
}

/// Where packets that come from the port are looked up first.
#[cold]
fn first_stage(port: &Port) -> Stage {
    Stage::first(&port.flows.read().filters(port.id()))
}

/// The time of a turn that begins now.
#[inline]
fn begin_turn(datapath: &Datapath, schedule: &Schedule) -> TurnTime {
    TurnTime {
        now_ms: datapath.now_ms(),
        ends: Deadline::after_us(schedule.turn_us()),
    }
}

/// Claims a transmit ring, unless another thread holds it, which sees packets that come. Says whether there
/// are packets.
#[inline]
fn look_at<'a>(ports: &'a Ports, ring: RingId, kept: &Kept) -> Option<(Sender<'a>, bool)> {
    let port = ports.get(port_of(ring))?;
    let mut transmit = kept.claim_free_transmit(port)?;
    let come = transmit.with(|side| side.as_mut().is_some_and(TransmitSide::has_work));
    let come = come || port.vnic.is_queued() && port.has_arrivals();
    Some((Sender { port, transmit }, come))
}

fn has_work(ports: &Ports, ring: RingId, kept: &mut Kept) -> bool {
    look_at(ports, ring, kept).is_some_and(|(sender, come)| kept.end(sender.transmit, ring) || come)
}

/// Ends a round at a transmit ring: gives back what is done. True if there is nothing more to do now.
fn finish_round(side: Option<&mut TransmitSide>, end: Fetched, port: &Port, step: &mut Step<'_>) -> bool {
    let Some(side) = side else {
        return end == Fetched::Empty;
    };
    side.reclaim();
    side.publish();
    if side.owes_call() {
        call_if_owed(side, port, step);
    }
    // The usual end.
    if end == Fetched::Empty {
        side.disable_kicks();
        return true;
    }
    match end {
        Fetched::Full | Fetched::Empty => false,
        // The thread that delivers a packet of ours will have this side served again.
        Fetched::NoSlots => !side.has_slots(),
        Fetched::Waits => {
            wait_for_bandwidth(side, port, step);
            true
        }
    }
}

/// The guest has sent as much as it may: nothing is asked of it, nor of its ring, until it may send more.
#[cold]
fn wait_for_bandwidth(side: &mut TransmitSide, port: &Port, step: &mut Step<'_>) {
    side.disable_kicks();
    let at_ns = step.schedule.now_ns() + side.wait_ns();
    step.schedule
        .set_timer(at_ns, port.transmit_ring(), Due::Bandwidth);
}

/// Calls a driver that is owed a call for sent frames, or sees to it that it is called later.
fn call_if_owed(side: &mut TransmitSide, port: &Port, step: &mut Step<'_>) {
    let schedule = &mut *step.schedule;
    let now_ns = schedule.now_ns();
    let interval_ns = schedule.completion_interval_ns(port.home.vnic(), step.ports, now_ns);
    match side.put_off_call(now_ns, interval_ns) {
        Some(at_ns) => schedule.reset_timer(at_ns, port.transmit_ring(), Due::Notify),
        None => side.call(),
    }
}

/// Why a program drops all packets, if it does.
fn drop_reason(program: &Program) -> Option<DropReason> {
    let mut ops = program.ops().iter().filter(|op| !matches!(op, Op::Log { .. }));
    match ops.next() {
        Some(Op::End) => Some(DropReason::NoAction),
        Some(Op::Drop(reason)) => Some(*reason),
        _ => None,
    }
}
