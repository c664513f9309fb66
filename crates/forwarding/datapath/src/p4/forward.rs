//! The ring of a port whose packets are not looked up: a P4 program forwards them, or the port was taken
//! down.
//!
//! As in the usual walk, packets are fetched, parsed and delivered a burst at a time; in between, the
//! program runs packet by packet. Packets that the program sends to one port, once, are changed in their
//! slots and handed over from ring to ring. A packet whose verdict is kept need not run.

use super::clients::FromClients;
use super::exit::{Behind, Exit, MIN_FRAME};
use super::outputs::Outputs;
use super::share::Diverted;
use super::verdicts::{NONE, Own, Places};
use super::version::{Lane, Version};
use super::{Bound, P4Key, P4Switch};
use crate::deliver::{Sender, Step, vanished};
use crate::injection::Injection;
use crate::mirror::Reach;
use crate::pipeline::{Walk, record};
use crate::port::Port;
use flow::{DropReason, MirrorPoint, PortId};
use lock_free::Unique;
use p4_interpreter::{Context, End, NoObserver, Notes, Observer, ReadGuard, Verdict};
use scheduler::Due;
use vnic::{BURST, Fetched, Packet, QueueError, TransmitSide};

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

    /// Runs packets of a P4 switch's clients, up to their receivers' queues.
    pub fn serve_clients(&mut self, key: P4Key, slots: &mut Injection, step: &mut Step<'_>) {
        let Some(table) = step.ports.p4() else {
            return;
        };
        let Some(from) = table.of_clients(key, step.ports) else {
            return table.discard_of_clients(key);
        };
        let (version, counts, begin_ns) = (&from.switch.version, &from.switch.counts, cpu::now_ns());
        let turns = (key, version.length_of_turn());
        let load = (step.schedule.waiting(), step.schedule.progress.packets);
        let must_wait =
            self.shares.wait_ns(turns, begin_ns).is_some() || self.shares.pass_on(key, begin_ns, load);
        let lane = (!must_wait).then(|| version.try_lane().zip(version.state.try_read()));
        let lane = lane.flatten();
        from.clients.set_waits(lane.is_none());
        let Some((mut lane, guard)) = lane else {
            return counts.add_passed_on();
        };
        slots.reclaim();
        from.receive(slots, &mut self.burst.packets);
        lane.with(|lane| self.run_of_clients(&from, &guard, lane, slots, step));
        let now_ns = cpu::now_ns();
        let took_ns = now_ns.saturating_sub(begin_ns);
        counts.add_time(took_ns);
        self.shares.charge(turns, took_ns, now_ns);
    }

    fn run_of_clients(
        &mut self,
        from: &FromClients<'_>,
        guard: &ReadGuard<'_>,
        lane: &mut Lane,
        slots: &mut Injection,
        step: &mut Step<'_>,
    ) {
        let Lane { context, outputs } = lane;
        let (version, counts, before) = (&from.switch.version, &from.switch.counts, *context.counts());
        context.set_spare_passes(version.spare_passes());
        let mut run = Run {
            bound: &from.bound,
            version,
            guard,
            context,
            outputs,
            now: version.now(),
            own: self.verdicts.of(from.bound.key, version.number),
        };
        let mut exit = Exit {
            bound: &from.bound,
            counts,
            port: from.port,
            is_copied: false,
            reach: Reach {
                ports: step.ports,
                receivers: &mut *step.receivers,
                now_ms: step.time.now_ms,
            },
            outgoing: &mut self.burst.outgoing,
            spare: || slots.take(from.port.id()),
        };
        for packet in self.burst.packets.drain(..) {
            run.outputs.clear();
            run.run(&packet, &mut NoObserver);
            exit.send(packet, run.outputs);
        }
        exit.queue_outgoing();
        counts.add(&before, run.context.counts());
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
        let Lane { context, outputs } = lane;
        let (version, before) = (&switch.version, *context.counts());
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
            let mut exit = Exit {
                bound,
                counts: &switch.counts,
                port: sender.port,
                is_copied: sender.port.is_copied(),
                reach: Reach {
                    ports: step.ports,
                    receivers: &mut *step.receivers,
                    now_ms: step.time.now_ms,
                },
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
        let may_have = self.version.engine.may_have_verdicts() && !exit.is_copied;
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
            if exit.is_copied {
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
