//! The ring of a port whose packets are not looked up: a P4 program forwards them, or the port was taken
//! down.
//!
//! As in the usual walk, packets are fetched, parsed and delivered a burst at a time; in between, the
//! program runs packet by packet. Packets that the program sends to one port, once, are changed in their
//! slots and handed over from ring to ring. A packet whose verdict is kept need not run.

use super::outputs::{Outputs, Sent};
use super::share::Diverted;
use super::verdicts::{NONE, Own, Places};
use super::version::{Lane, Version};
use super::{Bound, P4Switch};
use crate::burst::Outgoing;
use crate::deliver::{Sender, Step, vanished};
use crate::mirror::Reach;
use crate::pipeline::{Walk, record};
use crate::port::Port;
use crate::sinks::enqueue;
use flow::{DropReason, MirrorPoint, PortId};
use lock_free::{Shared, Unique};
use p4_interpreter::{Context, Drop, End, NoObserver, Notes, Observer, ReadGuard, Tail, Verdict};
use scheduler::Due;
use std::sync::atomic::Ordering::Relaxed;
use vnic::{BURST, Fetched, MAX_FRAME, Packet, QueueError, TransmitSide};

/// Shortest frame: an Ethernet header.
const MIN_FRAME: usize = 14;

impl Walk {
    /// Fetches packets of a port that are not looked up, and forwards or drops them: none is left.
    #[cold]
    #[inline(never)]
    pub fn serve_diverted(
        &mut self,
        sender: &mut Sender<'_>,
        step: &mut Step<'_>,
    ) -> Result<Diverted, QueueError> {
        let (port, ports) = (sender.port, step.ports);
        let bound = ports.p4().and_then(|table| table.bound(port.id()));
        let switch = bound.as_ref().and_then(|bound| bound.switch);
        let most = switch.map_or(BURST, |switch| switch.version.burst());
        let begin_ns = cpu::now_ns();
        let load = (step.schedule.waiting(), step.schedule.progress.packets);
        if let (Some(bound), Some(switch)) = (&bound, switch) {
            let turns = (bound.key, switch.version.length_of_turn());
            if let Some(wait_ns) = self.shares.wait_ns(turns, begin_ns) {
                switch.counts.add_passed_on();
                sender
                    .transmit
                    .with(|side| side.iter_mut().for_each(TransmitSide::disable_kicks));
                let at_ns = step.schedule.now_ns() + wait_ns;
                step.schedule
                    .set_timer(at_ns, port.transmit_ring(), Due::Bandwidth);
                return Ok(Diverted::Waits);
            }
            if self.shares.pass_on(bound.key, begin_ns, load) {
                switch.counts.add_passed_on();
                return Ok(Diverted::PassedOn);
            }
        }
        let lane = switch.map(|switch| switch.version.try_lane().zip(switch.version.state.try_read()));
        if matches!(lane, Some(None)) {
            return Ok(Diverted::PassedOn);
        }
        let end = sender.transmit.with(|side| match side {
            Some(side) if guest_memory::fault_count() > 0 && side.is_broken() => Err(vanished()),
            Some(side) => {
                side.reclaim();
                side.fetch_few(most, &mut self.burst.packets)
            }
            None => Ok(Fetched::Empty),
        })?;
        if self.burst.packets.is_empty() {
            return Ok(Diverted::Fetched(end));
        }
        self.begin_burst(sender, step);
        match (&bound, switch, lane.flatten()) {
            _ if port.vnic.is_disabled() => self.refuse(port, |_, _| Some(DropReason::PortDisabled)),
            (Some(bound), Some(switch), Some((mut lane, guard))) => {
                lane.with(|lane| self.run_program((bound, switch), &guard, lane, sender, step));
            }
            _ => self.refuse(port, |_, _| Some(DropReason::NoRules)),
        }
        self.deliver_outgoing(sender, step);
        if let (Some(bound), Some(switch)) = (&bound, switch) {
            let now_ns = cpu::now_ns();
            let took_ns = now_ns.saturating_sub(begin_ns);
            switch.counts.add_time(took_ns);
            let length = switch.version.length_of_turn();
            self.shares.charge((bound.key, length), took_ns, now_ns);
        }
        Ok(Diverted::Fetched(end))
    }

    fn deliver_outgoing(&mut self, sender: &mut Sender<'_>, step: &mut Step<'_>) {
        let outgoing = &mut self.burst.outgoing;
        let used = std::mem::take(&mut outgoing.used);
        for (to, packets) in &mut outgoing.groups[..used] {
            step.hand_over(sender, *to, packets);
        }
        step.deliver_all(Some(sender));
    }

    /// Runs the packets of a burst through a program, but for those whose verdicts are kept.
    #[inline(never)]
    fn run_program(
        &mut self,
        (bound, switch): (&Bound<'_>, &P4Switch),
        guard: &ReadGuard<'_>,
        lane: &mut Lane,
        sender: &mut Sender<'_>,
        step: &mut Step<'_>,
    ) {
        let version = &switch.version;
        let Lane { context, outputs } = lane;
        let before = *context.counts();
        context.set_spare_passes(version.spare_passes());
        let mut run = Run {
            bound,
            version,
            guard,
            context,
            outputs,
            now: version.now(),
            own: self.verdicts.of(bound.key, version.number),
        };
        let packets = &mut self.burst.packets;
        let mut places = [NONE; BURST];
        let found = run.find(packets, &mut places, sender.port);
        switch.counts.add_repeated(found);
        if let Some(to) = run.common_output(&places[..packets.len()]) {
            run.repeat_all(packets, &places);
            step.hand_over(sender, to, packets);
        } else {
            let reach = Reach {
                ports: step.ports,
                receivers: &mut *step.receivers,
                now_ms: step.time.now_ms,
            };
            let mut exit = Exit {
                bound,
                port: sender.port,
                reach,
                outgoing: &mut self.burst.outgoing,
                spare: || sender.transmit.with(|side| side.as_mut()?.spare()),
            };
            run.each(packets, &places, &mut exit);
        }
        switch.counts.add(&before, run.context.counts());
    }
}

/// A burst on its way through a program.
struct Run<'a> {
    bound: &'a Bound<'a>,
    version: &'a Version,
    guard: &'a ReadGuard<'a>,
    context: &'a mut Context,
    outputs: &'a mut Outputs,
    now: u64,
    own: Own<'a>,
}

impl Run<'_> {
    /// Looks for verdicts about packets, unless all of them are to be seen; says how many there are.
    fn find(&mut self, packets: &[Unique<Packet>], places: &mut Places, from: &Port) -> usize {
        if from.is_copied() {
            return 0;
        }
        let (port, mask) = (u32::from(self.bound.port), &self.own.account.mask);
        let mut found = 0;
        for (packet, place) in packets.iter().zip(places) {
            let head = packet.head.bytes();
            if let Some(at) = self.own.verdicts.find(mask, port, head)
                && head.len() >= MIN_FRAME
            {
                *place = at;
                found += 1;
            }
        }
        self.own.account.credit(found, packets.len() - found);
        found
    }

    /// The port that all packets go to as they came.
    fn common_output(&self, places: &[u32]) -> Option<PortId> {
        let plain = |place: u32| match self.own.verdicts.get(place) {
            Some(verdict) if verdict.is_plain() => match verdict.end() {
                End::Leaves(port) => Some(port),
                End::Dropped(_) => None,
            },
            _ => None,
        };
        let (first, others) = places.split_first()?;
        let port = plain(*first)?;
        let is_common = others.iter().all(|place| plain(*place) == Some(port));
        self.bound.port_of(port).filter(|_| is_common)
    }

    /// Counts packets whose verdicts are kept.
    fn repeat_all(&mut self, packets: &[Unique<Packet>], places: &Places) {
        for (packet, place) in packets.iter().zip(places) {
            self.repeat(packet, *place);
        }
    }

    fn repeat(&mut self, packet: &Packet, place: u32) {
        let engine = &self.version.engine;
        if let Some(verdict) = self.own.verdicts.get(place) {
            engine.repeat(self.guard, self.context, verdict, packet.frame_len(), self.now);
        }
    }

    /// Runs packets, or repeats their verdicts, and sends them. One new verdict is made at most, and kept
    /// when the places of others are not needed any more.
    fn each<S>(&mut self, packets: &mut Vec<Unique<Packet>>, places: &Places, exit: &mut Exit<'_, S>)
    where
        S: FnMut() -> Option<Unique<Packet>>,
    {
        let mut made = None;
        let may_have = self.version.engine.may_have_verdicts() && !exit.port.is_copied();
        let mut may_make = may_have && self.own.account.may_make();
        let mut is_timed = false;
        for (packet, place) in packets.drain(..).zip(places) {
            if let Some(verdict) = self.own.verdicts.get(*place) {
                self.version
                    .engine
                    .repeat(self.guard, self.context, verdict, packet.frame_len(), self.now);
                exit.send_again(packet, verdict);
                continue;
            }
            if exit.port.is_copied() {
                exit.port.mirror(&packet, MirrorPoint::From, &mut exit.reach);
                record(exit.port, &packet, None);
            }
            self.outputs.clear();
            if std::mem::take(&mut may_make) {
                made = self.note(&packet);
            } else if std::mem::replace(&mut is_timed, true) {
                self.run(&packet, &mut NoObserver);
            } else {
                self.run_timed(&packet);
            }
            exit.send(packet, self.outputs);
        }
        if let Some((head, verdict)) = made {
            self.own.keep(self.bound.port, &head, verdict);
        }
    }

    /// Runs a packet, and makes a verdict of it if there is one.
    #[cold]
    fn note(&mut self, packet: &Packet) -> Option<(Vec<u8>, Verdict)> {
        let begin_ns = cpu::now_ns();
        let mut notes = Notes::new(&self.version.engine, &self.version.key_masks);
        self.run(packet, &mut notes);
        let verdict = notes.verdict();
        self.own.account.charge(cpu::now_ns().saturating_sub(begin_ns));
        Some((packet.head.bytes().to_vec(), verdict?))
    }

    fn run_timed(&mut self, packet: &Packet) {
        let begin_ns = cpu::now_ns();
        self.run(packet, &mut NoObserver);
        let took_ns = cpu::now_ns().saturating_sub(begin_ns);
        self.own.account.record_run(took_ns);
    }

    fn run(&mut self, packet: &Packet, observer: &mut impl Observer) {
        let received = p4_interpreter::Packet {
            port: self.bound.port.into(),
            head: packet.head.bytes(),
            tail: &Behind(packet),
        };
        let engine = &self.version.engine;
        engine.run(
            self.guard,
            self.context,
            &received,
            self.now,
            self.outputs,
            observer,
        );
    }
}

/// The bytes of a packet behind its head, which may lie in its guest's memory.
struct Behind<'a>(&'a Packet);

impl Tail for Behind<'_> {
    fn len(&self) -> usize {
        self.0.tail_len()
    }

    fn read(&self, offset: usize, to: &mut [u8]) {
        self.0.read_tail(offset, to);
    }
}

/// Where packets go that a program has run.
struct Exit<'a, S> {
    bound: &'a Bound<'a>,
    port: &'a Port,
    reach: Reach<'a>,
    outgoing: &'a mut Outgoing,
    spare: S,
}

impl<S: FnMut() -> Option<Unique<Packet>>> Exit<'_, S> {
    /// Ends a packet as its verdict says.
    fn send_again(&mut self, mut packet: Unique<Packet>, verdict: &Verdict) {
        let port = match verdict.end() {
            End::Leaves(port) => port,
            End::Dropped(reason) => return packet.account.dropped(reason_of(reason), 1),
        };
        let Some(to) = self.bound.port_of(port) else {
            return packet.account.dropped(DropReason::NoSuchPort, 1);
        };
        if !verdict.is_plain() && packet.rewrite_front(|head| verdict.edit(head)).is_err() {
            return packet.account.dropped(DropReason::BadOffload, 1);
        }
        self.outgoing.add(to, packet);
    }

    /// Ends a packet as the program says. Each end is a delivery or a drop.
    fn send(&mut self, packet: Unique<Packet>, outputs: &Outputs) {
        if outputs.sent.is_empty() && self.port.is_copied() {
            self.port
                .mirror(&packet, MirrorPoint::DroppedFrom, &mut self.reach);
        }
        let account = packet.account.clone();
        for reason in &outputs.ended {
            account.dropped(reason_of(*reason), 1);
        }
        if outputs.lost > 0 {
            account.dropped(DropReason::TooDeep, outputs.lost);
        }
        match outputs.ends() {
            0 => account.dropped(DropReason::Policy, 1),
            ends => drop(account.copies.fetch_add(ends - 1, Relaxed)),
        }
        let result = match &outputs.sent[..] {
            [] => Ok(()),
            [sent] => self.send_one(packet, sent, outputs.head(sent)),
            several => {
                self.send_copies(&packet.share(), several, outputs);
                Ok(())
            }
        };
        if let Err(reason) = result {
            account.dropped(reason, 1);
        }
    }

    fn send_one(&mut self, mut packet: Unique<Packet>, sent: &Sent, head: &[u8]) -> Result<(), DropReason> {
        let to = self.receiver(sent, head)?;
        let is_whole = sent.offset + sent.length >= packet.frame_len();
        if is_whole
            && packet
                .replace_front(head, sent.offset)
                .map_err(|_| DropReason::BadOffload)?
        {
            self.outgoing.add(to, packet);
            return Ok(());
        }
        let copy = self.copy(&packet, sent, head)?;
        self.outgoing.add(to, copy);
        Ok(())
    }

    /// Sends packets that share the payload of the received one. They go through the receivers' queues, and
    /// so do those that were to leave before them.
    fn send_copies(&mut self, packet: &Shared<Packet>, several: &[Sent], outputs: &Outputs) {
        let used = std::mem::take(&mut self.outgoing.used);
        for (to, packets) in &mut self.outgoing.groups[..used] {
            for packet in packets.drain(..) {
                enqueue(packet.share(), self.port, *to, &mut self.reach);
            }
        }
        for sent in several {
            match self.shared_copy(packet, sent, outputs.head(sent)) {
                Ok((to, copy)) => enqueue(copy.share(), self.port, to, &mut self.reach),
                Err(reason) => packet.account.dropped(reason, 1),
            }
        }
    }

    fn shared_copy(
        &mut self,
        packet: &Shared<Packet>,
        sent: &Sent,
        head: &[u8],
    ) -> Result<(PortId, Unique<Packet>), DropReason> {
        let to = self.receiver(sent, head)?;
        let mut spare = (self.spare)().ok_or(DropReason::QueueFull)?;
        spare.fill_from(packet);
        let is_whole = sent.offset + sent.length >= packet.frame_len();
        if is_whole
            && spare
                .replace_front(head, sent.offset)
                .map_err(|_| DropReason::BadOffload)?
        {
            return Ok((to, spare));
        }
        drop(spare);
        Ok((to, self.copy(packet, sent, head)?))
    }

    /// The port that a packet leaves by, if it can.
    fn receiver(&self, sent: &Sent, head: &[u8]) -> Result<PortId, DropReason> {
        match head.len() + sent.length {
            ..MIN_FRAME => return Err(DropReason::NoHeader),
            len if len > MAX_FRAME as usize => return Err(DropReason::OversizedFrame),
            _ => {}
        }
        self.bound.port_of(sent.port).ok_or(DropReason::NoSuchPort)
    }

    /// A copy in our memory, payload and all, as it leaves: cut, or with more bytes in front than a slot has
    /// room for. The number of those is bounded.
    fn copy(&mut self, packet: &Packet, sent: &Sent, head: &[u8]) -> Result<Unique<Packet>, DropReason> {
        if !self.port.admit_header_copy(self.reach.now_ms) {
            return Err(DropReason::DeepHeaders);
        }
        let mut spare = (self.spare)().ok_or(DropReason::QueueFull)?;
        let frame_len = packet.frame_len();
        let mut frame = head.to_vec();
        frame.resize(head.len() + sent.length, 0);
        let received = p4_interpreter::Packet {
            port: 0,
            head: packet.head.bytes(),
            tail: &Behind(packet),
        };
        received.read(sent.offset, &mut frame[head.len()..]);
        packet.account.copied_in.fetch_add(sent.length as u64, Relaxed);
        let is_cut = sent.offset + sent.length < frame_len;
        let header = if is_cut {
            Ok(wire::VnetHeader::default())
        } else {
            packet.moved_header(frame_len, frame.len())
        };
        spare.fill(packet.origin, packet.account.clone(), frame);
        spare.header = header.map_err(|_| DropReason::BadOffload)?.to_bytes();
        spare.parse_flow_key()?;
        Ok(spare)
    }
}

/// What users are told of why a program, or a limit of it, ended a packet.
fn reason_of(reason: Drop) -> DropReason {
    match reason {
        Drop::Ingress | Drop::Egress => DropReason::Policy,
        Drop::NoReplica => DropReason::NoDestination,
        Drop::Passes | Drop::Copies | Drop::Grown | Drop::LoopTurns => DropReason::TooDeep,
    }
}
