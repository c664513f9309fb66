//! The ring of a port whose packets are not looked up as they come: a P4 program forwards them, they pass
//! stages first, or the port was taken down.
//!
//! As in the usual walk, packets are fetched, parsed and delivered a burst at a time; in between, the
//! program runs packet by packet. Packets that the program sends to one port, once, are changed in their
//! slots and handed over from ring to ring. A packet whose verdict is kept need not run.

use super::exit::Exit;
use super::links::{Bounds, Held};
use super::run::Run;
use super::share::{Diverted, Due, Load, Payer, Turn};
use super::stages::{Course, Lanes};
use super::verdicts::NONE;
use super::version::Lane;
use super::{Bound, P4Key, P4Switch};
use crate::arrivals::fetch_few;
use crate::deliver::{Sender, Step};
use crate::injection::Injection;
use crate::mirror::Reach;
use crate::pipeline::Walk;
use crate::port::Port;
use flow::{DropReason, PortId};
use lock_free::Unique;
use vnic::{BURST, Fetched, Packet, QueueError, TransmitSide};

impl Walk {
    /// Fetches packets of a port that are not looked up as they come. Those are left that have passed stages
    /// and are looked up now.
    #[cold]
    #[inline(never)]
    pub fn serve_diverted(
        &mut self,
        sender: &mut Sender<'_>,
        step: &mut Step<'_>,
    ) -> Result<Diverted, QueueError> {
        let (port, ports) = (sender.port, step.ports);
        // Most bursts are followed by none.
        let is_empty = |side: &mut Option<TransmitSide>| side.as_mut().is_some_and(TransmitSide::is_empty);
        let has_ring_alone = !port.vnic.is_queued() && guest_memory::fault_count() == 0;
        if has_ring_alone && sender.transmit.with(is_empty) {
            return Ok(Diverted::Fetched(Fetched::Empty));
        }
        let course = Course::of(ports.p4(), port.id());
        let program = course.program();
        let way = Way {
            bounds: course.bounds(program.as_ref()),
            course: &course,
            program: program.as_ref(),
        };
        let begin_ns = cpu::now_ns();
        if let Some(diverted) = self.wait_for_turn(&way, begin_ns, sender, step) {
            return Ok(diverted);
        }
        let Some(lanes) = course.try_hold() else {
            return Ok(Diverted::PassedOn);
        };
        let most = way.bounds.burst;
        let end = fetch_few(sender, most, &mut self.burst.packets, step)?;
        if self.burst.packets.is_empty() {
            return Ok(Diverted::Fetched(end));
        }
        self.begin_burst(sender, step);
        if port.vnic.is_disabled() {
            self.refuse(port, |_, _| Some(DropReason::PortDisabled));
            self.deliver_outgoing(sender, step);
        } else if course.is_whole() && (course.bound.is_some() || !port.vnic.is_programmed()) {
            self.follow(&way, lanes, begin_ns, sender, step);
        } else {
            self.refuse(port, |_, _| Some(DropReason::NoRules));
            self.deliver_outgoing(sender, step);
        }
        Ok(Diverted::Fetched(end))
    }

    /// Has a port's packets pass its stages, and those that are left run through its program, if that is its
    /// forwarder.
    fn follow<'a>(
        &mut self,
        way: &Way<'a>,
        mut lanes: Lanes<'a>,
        mut begin_ns: u64,
        sender: &mut Sender<'_>,
        step: &mut Step<'_>,
    ) {
        self.crossings.begin(&way.bounds);
        if !way.course.stages.is_empty() {
            begin_ns = self.pass_stages(way, &mut lanes.others, begin_ns, sender, step);
        }
        match way.program.zip(lanes.own) {
            Some((program, own)) => {
                self.forward_burst(way, program, (own, lanes.others), begin_ns, sender, step);
            }
            None if self.burst.packets.is_empty() => self.deliver_outgoing(sender, step),
            None => {
                // Packets are counted when they are looked up.
                step.schedule.progress.bursts -= 1;
                step.schedule.progress.packets -= self.burst.packets.len() as u64;
                self.burst.is_recorded = sender.port.is_copied() && !way.course.stages.is_empty();
            }
        }
    }

    /// Has packets pass a port's stages, and charges the port for it. Those that pass are left. Returns the
    /// time, in nanoseconds.
    fn pass_stages(
        &mut self,
        way: &Way<'_>,
        held: &mut [Held<'_>],
        begin_ns: u64,
        sender: &mut Sender<'_>,
        step: &mut Step<'_>,
    ) -> u64 {
        let turn = turn(&self.burst.packets);
        let mut source = Source {
            port: sender.port,
            is_copied: sender.port.is_copied(),
            is_recorded: false,
            hands_over: true,
            spare: || sender.transmit.with(|side| side.as_mut()?.spare()),
        };
        let mut now_ns = begin_ns;
        for place in way.course.stages {
            let held = held.iter_mut().find(|held| held.key == place.0);
            let Some((held, bound)) = held.zip(way.course.stage(*place)) else {
                continue;
            };
            self.run_burst(held, (&bound, 0), &mut source, step);
            source.is_recorded = true;
            let began_ns = std::mem::replace(&mut now_ns, cpu::now_ns());
            held.switch.counts.add_time(now_ns.saturating_sub(began_ns));
            if self.burst.packets.is_empty() {
                break;
            }
        }
        for packet in &mut self.burst.packets {
            packet.keep_request();
        }
        let payer = (Payer::Port(sender.port.id()), way.bounds.length);
        let took_ns = now_ns.saturating_sub(begin_ns);
        self.shares.charge(payer, turn, took_ns, now_ns);
        now_ns
    }

    /// What becomes of a turn that a port's packets do not have now.
    fn wait_for_turn(
        &mut self,
        way: &Way<'_>,
        now_ns: u64,
        sender: &mut Sender<'_>,
        step: &mut Step<'_>,
    ) -> Option<Diverted> {
        let (load, port) = (load(step), sender.port.id());
        self.shares.begin_turn(now_ns, load.packets);
        let mut due = Due::Now;
        if !way.course.stages.is_empty() {
            let payer = (Payer::Port(port), way.bounds.length);
            due = self.shares.due_of(payer, now_ns, load);
        }
        if let Some(program) = way.program.filter(|_| due == Due::Now) {
            due = self.shares.due(port, program.turns(), now_ns, load);
        }
        if due == Due::Now {
            self.shares.begin_charge();
            return None;
        }
        way.add_passed_on();
        let Due::After(wait_ns) = due else {
            return Some(Diverted::PassedOn);
        };
        sender.transmit.with(|side| {
            if let Some(side) = side {
                give_back(side);
                side.wait();
            }
        });
        let at_ns = step.schedule.now_ns() + wait_ns;
        step.schedule
            .set_timer(at_ns, sender.port.transmit_ring(), scheduler::Due::Bandwidth);
        Some(Diverted::Waits)
    }

    /// Runs a port's packets, at its P4 switch and behind links, delivers them, and charges the time.
    fn forward_burst(
        &mut self,
        way: &Way<'_>,
        program: &Program<'_>,
        (mut own, mut others): (Held<'_>, Vec<Held<'_>>),
        begin_ns: u64,
        sender: &mut Sender<'_>,
        step: &mut Step<'_>,
    ) {
        let turn = turn(&self.burst.packets);
        let mut source = Source {
            port: sender.port,
            is_copied: sender.port.is_copied(),
            is_recorded: !way.course.stages.is_empty(),
            hands_over: true,
            spare: || sender.transmit.with(|side| side.as_mut()?.spare()),
        };
        let common = self.run_burst(&mut own, (program.bound, 0), &mut source, step);
        let linked_ns = self.cross_links(program, (&mut own, &mut others), &mut source, step);
        drop((own, others));
        if let Some(to) = common {
            step.hand_over(sender, to, &mut self.burst.packets);
        }
        self.deliver_outgoing(sender, step);
        let now_ns = cpu::now_ns();
        let took_ns = now_ns.saturating_sub(begin_ns).saturating_sub(linked_ns);
        program.switch.counts.add_time(took_ns);
        self.shares.charge(program.turns(), turn, took_ns, now_ns);
        self.shares
            .end_turn(program.bound.key, now_ns, step.schedule.packets());
    }

    /// Runs packets behind links until none waits to cross one. Returns how long that took, in nanoseconds,
    /// which is charged to whoever ran.
    fn cross_links<'a, S>(
        &mut self,
        program: &Program<'_>,
        (own, others): (&mut Held<'a>, &mut [Held<'a>]),
        source: &mut Source<'_, S>,
        step: &mut Step<'_>,
    ) -> u64
    where
        S: FnMut() -> Option<Unique<Packet>>,
    {
        if others.is_empty() && self.crossings.is_empty() {
            return 0;
        }
        self.shares.forget_met(source.port.id());
        let (mut begin_ns, mut all_ns) = (cpu::now_ns(), 0);
        while let Some((to, crossed)) = self.crossings.take(&mut self.burst.packets) {
            let mut all = std::iter::once(&mut *own).chain(others.iter_mut());
            let Some(held) = all.find(|held| held.key == to.0) else {
                let packets = self.burst.packets.drain(..);
                packets.for_each(|packet| packet.account.dropped(DropReason::NoRules, 1));
                continue;
            };
            let (bound, turn) = (program.bound.table.at(to), turn(&self.burst.packets));
            self.run_burst(held, (&bound, crossed), source, step);
            let now_ns = cpu::now_ns();
            let took_ns = now_ns.saturating_sub(begin_ns);
            held.switch.counts.add_time(took_ns);
            self.shares
                .charge((to.0, program.bounds.length), turn, took_ns, now_ns);
            self.shares.record_met(source.port.id(), to.0);
            (begin_ns, all_ns) = (now_ns, all_ns + took_ns);
        }
        all_ns
    }

    /// Runs packets of a P4 switch's clients, up to their receivers' queues.
    pub fn serve_clients(&mut self, key: P4Key, slots: &mut Injection, step: &mut Step<'_>) {
        let Some(table) = step.ports.p4() else {
            return;
        };
        let Some(from) = table.of_clients(key, step.ports) else {
            return table.discard_of_clients(key);
        };
        let Some(program) = Program::of(&from.bound, 0) else {
            return;
        };
        let begin_ns = cpu::now_ns();
        let load = load(step);
        let is_due = self.shares.due_of(program.turns(), begin_ns, load) == Due::Now;
        let held = is_due.then(|| program.try_hold()).flatten();
        from.clients.set_waits(held.is_none());
        let Some((mut own, mut others)) = held else {
            return from.switch.counts.add_passed_on();
        };
        self.shares.begin_charge();
        slots.reclaim();
        from.receive(program.bounds.burst, slots, &mut self.burst.packets);
        self.crossings.begin(&program.bounds);
        let turn = turn(&self.burst.packets);
        let mut source = Source {
            port: from.port,
            is_copied: false,
            is_recorded: false,
            hands_over: false,
            spare: || slots.take(from.port.id()),
        };
        self.run_burst(&mut own, (&from.bound, 0), &mut source, step);
        let linked_ns = self.cross_links(&program, (&mut own, &mut others), &mut source, step);
        let now_ns = cpu::now_ns();
        let took_ns = now_ns.saturating_sub(begin_ns).saturating_sub(linked_ns);
        from.switch.counts.add_time(took_ns);
        self.shares.charge(program.turns(), turn, took_ns, now_ns);
    }

    fn deliver_outgoing(&mut self, sender: &mut Sender<'_>, step: &mut Step<'_>) {
        let outgoing = &mut self.burst.outgoing;
        let used = std::mem::take(&mut outgoing.used);
        for (to, packets) in &mut outgoing.groups[..used] {
            step.hand_over(sender, *to, packets);
        }
        step.deliver_all(Some(sender));
    }

    /// Runs the packets of a burst through a program, but for those whose verdicts are kept. If all of them
    /// just go to a port, and can be handed over, they are left, and the port is returned. Packets that pass
    /// a stage are left as well.
    #[inline(never)]
    fn run_burst<S>(
        &mut self,
        held: &mut Held<'_>,
        (bound, crossed): (&Bound<'_>, u8),
        source: &mut Source<'_, S>,
        step: &mut Step<'_>,
    ) -> Option<PortId>
    where
        S: FnMut() -> Option<Unique<Packet>>,
    {
        let (switch, guard) = (held.switch, &held.guard);
        let (version, packets) = (&switch.version, &mut self.burst.packets);
        version.watch(|port| bound.is_up(port, step.ports));
        held.lane.with(|Lane { context, outputs }| {
            let before = *context.counts();
            context.set_spare_passes(version.passes(self.crossings.spare));
            let mut run = Run {
                bound,
                ports: step.ports,
                version,
                guard,
                context,
                outputs,
                now: version.now(),
                own: self.verdicts.of(bound.key, version.number),
            };
            let mut places = [NONE; BURST];
            let found = run.find(packets, &mut places, source.is_copied);
            switch.counts.add_repeated(found);
            let (found, is_stage) = (&places[..packets.len()], bound.is_stage);
            let number = (!is_stage).then(|| run.common_port(found)).flatten();
            let hands_over = source.hands_over && crossed == 0;
            let common = number.filter(|_| hands_over).and_then(|port| bound.port_of(port));
            let link = number.filter(|port| bound.clients_at(*port).is_none());
            let link = link.and_then(|port| bound.link_at(port));
            let link = link.filter(|_| self.crossings.admits(packets.len(), crossed));
            if common.is_some() || link.is_some() || is_stage && run.all_pass(found) {
                run.repeat_all(packets, found);
                if let Some(to) = link.filter(|_| !packets.is_empty()) {
                    self.crossings.add_all(to, crossed, packets);
                }
            } else {
                let mut exit = Exit {
                    bound,
                    counts: &switch.counts,
                    port: source.port,
                    is_copied: source.is_copied,
                    records: source.is_copied && !source.is_recorded && crossed == 0,
                    crossed,
                    crossings: &mut self.crossings,
                    reach: Reach {
                        ports: step.ports,
                        receivers: &mut *step.receivers,
                        now_ms: step.time.now_ms,
                    },
                    outgoing: &mut self.burst.outgoing,
                    last: None,
                    spare: &mut source.spare,
                };
                run.each(packets, &places, &mut exit);
                if !source.hands_over {
                    exit.queue_outgoing();
                }
                if is_stage {
                    std::mem::swap(packets, &mut self.crossings.passed);
                }
            }
            switch.counts.add(&before, run.context.counts());
            let left = u64::from(run.context.spare_passes());
            self.crossings.spare = self
                .crossings
                .spare
                .min(left.saturating_mul(version.operations.max(1)));
            common.filter(|_| !packets.is_empty())
        })
    }
}

/// Gives back what is done of a ring whose packets wait.
fn give_back(side: &mut TransmitSide) {
    side.reclaim();
    side.publish();
    if side.owes_call() {
        side.call();
    }
}

/// What the thread does besides.
fn load(step: &Step<'_>) -> Load {
    let schedule = &step.schedule;
    Load {
        waiting: schedule.waiting(),
        packets: schedule.packets(),
        is_wanted: schedule.is_wanted_elsewhere() == Some(true),
    }
}

fn turn(packets: &[Unique<Packet>]) -> Turn {
    let bytes = packets.iter().map(|packet| packet.frame_len() as u64);
    Turn {
        packets: packets.len() as u64,
        bytes: bytes.sum(),
    }
}

/// Where the packets of a turn come from.
struct Source<'a, S> {
    /// The port, or for packets of clients another one that is bound.
    port: &'a Port,
    /// A capture or mirror copies packets that come.
    is_copied: bool,
    /// Captures and mirrors have the packets, as they came.
    is_recorded: bool,
    /// Packets can be handed over from ring to ring.
    hands_over: bool,
    /// Gives slots for copies.
    spare: S,
}

/// What the packets of a turn meet.
struct Way<'a> {
    course: &'a Course<'a>,
    program: Option<&'a Program<'a>>,
    bounds: Bounds,
}

impl Way<'_> {
    /// Counts a turn that was passed on, at the forwarder, or at stages if that is none.
    fn add_passed_on(&self) {
        match self.program {
            Some(program) => program.switch.counts.add_passed_on(),
            None => {
                let stages = self.course.stages.iter();
                let stages = stages.filter_map(|place| self.course.stage(*place)?.switch);
                stages.for_each(|switch| switch.counts.add_passed_on());
            }
        }
    }
}

/// The program that forwards a port's packets.
pub(super) struct Program<'a> {
    pub bound: &'a Bound<'a>,
    pub switch: &'a P4Switch,
    pub bounds: Bounds,
}

impl<'a> Program<'a> {
    /// With so many operations of stages before it. `None` if it is missing.
    pub fn of(bound: &'a Bound<'a>, before: u64) -> Option<Program<'a>> {
        let switch = bound.switch?;
        let bounds = bound.table.bounds(before, bound.key, &switch.version);
        Some(Program {
            bound,
            switch,
            bounds,
        })
    }

    /// The P4 switch, and how long a turn of it may take.
    fn turns(&self) -> (P4Key, u64) {
        (self.bound.key, self.bounds.length)
    }

    fn try_hold(&self) -> Option<(Held<'a>, Vec<Held<'a>>)> {
        self.bound.table.try_hold(self.bound.key, self.switch)
    }
}
