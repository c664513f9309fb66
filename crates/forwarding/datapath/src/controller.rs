//! One controller, as the channel thread serves it: its channel, its answers and events, and its ports and
//! flows.
//!
//! The thread must never wait for a controller, which may be waiting for it: messages that cannot be sent at
//! once are kept, and nothing else is read or made for this controller until they are sent. Messages that are
//! made in one turn are gathered, up to a bound, and sent together. So it keeps at most the answers to
//! [`TOGETHER`] requests, or as many events and misses, and answers that wait for forwarding threads
//! (`ended`). Misses wait in their ports' bounded queues, events as one mark per port, and the two take
//! turns: neither a guest that makes up flows nor a VMM that connects and disconnects all the time holds up
//! the other kind. Nothing of it is shared with another controller, which so notices nothing.
//!
//! Ports, flows and waiting messages of a controller outlive its channel: a successor gets a new one and
//! finds them.

use crate::ended::Ended;
use crate::events::Events;
use crate::injection::Injection;
use crate::p4::P4Work;
use crate::rule_records::RuleRecords;
use crate::rule_requests::RuleWork;
use crate::state::Datapath;
use crate::switches::Switches;
use classifier::{FlowEntry, Rules};
use control_protocol::data_plane::{Answer, FromDataPlane, ToDataPlane, Upcall};
use control_protocol::{Channel, ChannelError, Debt};
use flow::{ControllerId, DropReason, PortId};
use pacing::Turns;
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Turns of misses and events before others get theirs.
const BATCH: usize = 64;
/// Messages gathered before they are sent.
const TOGETHER: usize = 32;
/// Bytes of packets gathered before they are sent.
const TOGETHER_BYTES: usize = 16 * 1024;
/// Time between checks of whether forwarding threads have flushed their counts, or let go of a P4 program or
/// a port, while something waits for that.
pub(crate) const ENDED_PERIOD: Duration = Duration::from_millis(1);

/// See the module's description.
pub(crate) struct Controller {
    pub id: ControllerId,
    channel: Option<Channel>,
    /// The controller has sent `Hello`, which ends the upcalls that its predecessor held.
    greeted: bool,
    /// Messages that were not sent yet.
    outbox: VecDeque<FromDataPlane>,
    /// Messages did not all fit: the controller is to read first.
    is_blocked: bool,
    turns: Turns<PortId>,
    /// Upcalls that it was sent and has not answered, besides those that were written off.
    unanswered: u64,
    debt: Debt,
    pub events: Events,
    /// Answers that wait for forwarding threads.
    ended: Ended,
    pub switches: Switches,
    /// Drafts of rule lists, and work on lists and sets.
    pub rule_work: RuleWork,
    rule_records: RuleRecords,
    /// Drafts of P4 switches, and work on them.
    pub p4_work: P4Work,
    pub injection: Injection,
}

/// A message of a controller.
#[allow(
    clippy::large_enum_variant,
    reason = "it lives from receipt to service; a box would only add an allocation"
)]
pub(crate) enum Received {
    /// A request, with its descriptors.
    Request(ToDataPlane, Vec<OwnedFd>),
    /// A malformed message.
    Malformed,
    /// Nothing now.
    Nothing,
}

impl Controller {
    /// One without ports and without a channel.
    pub fn new(id: ControllerId, rules: Arc<Rules>) -> Controller {
        Controller {
            id,
            channel: None,
            greeted: false,
            outbox: VecDeque::new(),
            is_blocked: false,
            turns: Turns::default(),
            unanswered: 0,
            debt: Debt::default(),
            events: Events::default(),
            ended: Ended::default(),
            rule_records: RuleRecords::new(id, &rules),
            switches: Switches::new(rules),
            rule_work: RuleWork::default(),
            p4_work: P4Work::default(),
            injection: Injection::new(),
        }
    }

    /// Gives the controller this channel. Upcalls that its predecessor held are lost.
    pub fn connect(&mut self, channel: Channel, datapath: &Datapath) {
        self.lose(datapath);
        self.channel = Some(channel);
    }

    /// Forgets the process that had the channel; upcalls that it held are lost.
    fn lose(&mut self, datapath: &Datapath) {
        self.channel = None;
        self.greeted = false;
        self.outbox.clear();
        self.is_blocked = false;
        self.ended.clear();
        self.rule_work.lose();
        self.p4_work.lose();
        self.events.forget_told();
        self.write_off(datapath);
    }

    /// Handles `Hello`: the controller holds no upcalls, and gets misses from now on. The built-in one hears
    /// of others' ports.
    pub fn greet(&mut self, datapath: &Datapath) {
        self.write_off(datapath);
        self.greeted = true;
        if self.id == ControllerId::BUILT_IN {
            let ports = datapath.ports();
            let foreign = ports.iter().filter(|port| !self.id.owns(port.id()));
            foreign.for_each(|port| self.events.note(port.id(), datapath.now_ms()));
        }
    }

    /// Notes that the controller has ended an upcall.
    pub fn note_answer(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    /// Whether it has owed an answer for too long, and the supervisor is to look at it.
    pub fn take_overdue(&mut self, now_ms: u64) -> bool {
        self.debt.set(self.unanswered > 0, now_ms);
        self.debt.take_overdue(now_ms)
    }

    fn write_off(&mut self, datapath: &Datapath) {
        self.unanswered = 0;
        for port in datapath.ports().of(self.id) {
            let lost = port.misses.write_off();
            if lost > 0 {
                port.vnic.account.discarded(DropReason::ControlLost, lost);
            }
            if port.misses.is_waiting() {
                self.turns.add(port.id());
            }
        }
    }

    /// Whether it has to take earlier messages before anything is done for it.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Whether a message of it can be received without waiting for its channel.
    pub fn has_received(&self) -> bool {
        !self.is_blocked && self.channel.as_ref().is_some_and(Channel::has_received)
    }

    /// Whether there is work on its rule lists, and room for answers.
    pub fn has_rule_work(&self) -> bool {
        !self.is_blocked && self.rule_work.is_busy()
    }

    /// Whether there is work on its P4 switches, and room for answers.
    pub fn has_p4_work(&self) -> bool {
        !self.is_blocked && self.p4_work.is_busy()
    }

    /// What to wait for.
    pub fn watched(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let events = if self.is_blocked() {
            PollFlags::OUT
        } else {
            PollFlags::IN
        };
        self.channel.as_ref().map(|channel| (channel.as_fd(), events))
    }

    /// Time until the next message to it, if no event comes before.
    pub fn timeout(&self, now_ms: u64) -> Option<Duration> {
        let events = self.events.next_due().filter(|_| self.channel.is_some());
        let events = events.map(|due| Duration::from_millis(due.saturating_sub(now_ms).max(1)));
        let waits = !self.ended.is_empty() && !self.is_blocked() || self.has_p4_work();
        let ended = waits.then_some(ENDED_PERIOD);
        let debt = self.debt.due_ms();
        let debt = debt.map(|due| Duration::from_millis(due.saturating_sub(now_ms).max(1)));
        let records = self
            .rule_records
            .due_ms()
            .filter(|_| self.channel.is_some() && !self.is_blocked());
        let records = records.map(|due| Duration::from_millis(due.saturating_sub(now_ms).max(1)));
        events.into_iter().chain(ended).chain(debt).chain(records).min()
    }

    /// A port of its own has misses.
    pub fn note_miss(&mut self, port: PortId) {
        self.turns.add(port);
    }

    /// The next message of its channel, unless it has to take earlier messages first.
    pub fn receive(&mut self, datapath: &Datapath) -> Received {
        let Some(channel) = self.channel.as_ref().filter(|_| !self.is_blocked()) else {
            return Received::Nothing;
        };
        match channel.try_recv() {
            Ok((request, fds)) => {
                self.debt.heard();
                Received::Request(request, fds)
            }
            Err(ChannelError::WouldBlock) => Received::Nothing,
            Err(ChannelError::Malformed(error)) => {
                telemetry::limited_by!(
                    self.id.0.into(),
                    log::Level::Error,
                    "controller {}: {error}",
                    self.id
                );
                Received::Malformed
            }
            Err(_) => {
                self.lose(datapath);
                Received::Nothing
            }
        }
    }

    /// Answers a request, at the latest when [`send_outbox`](Self::send_outbox) is called.
    pub fn send(&mut self, message: FromDataPlane, datapath: &Datapath) {
        if self.channel.is_some() {
            self.outbox.push_back(message);
            if self.outbox.len() >= TOGETHER {
                self.send_outbox(datapath);
            }
        }
    }

    /// Sends what waits, as far as there is room.
    pub fn send_outbox(&mut self, datapath: &Datapath) {
        self.is_blocked = false;
        while let Some(channel) = self.channel.as_ref().filter(|_| !self.outbox.is_empty()) {
            match channel.try_send_all(&self.outbox) {
                Ok(count) => drop(self.outbox.drain(..count)),
                Err(ChannelError::WouldBlock) => {
                    self.is_blocked = true;
                    return;
                }
                Err(ChannelError::Closed) => return self.lose(datapath),
                Err(error) => {
                    telemetry::limited_by!(
                        self.id.0.into(),
                        log::Level::Error,
                        "cannot tell controller {}: {error}",
                        self.id
                    );
                    self.outbox.pop_front();
                }
            }
        }
    }

    /// Answers the request when the statistics of these flows, which have ended just now, are their last
    /// ones.
    pub fn answer_with_ended(&mut self, serial: u32, flows: Vec<Arc<FlowEntry>>, datapath: &Datapath) {
        if flows.is_empty() {
            let result = Ok(Answer::Ended {
                flows: Vec::new(),
                complete: true,
            });
            return self.send(FromDataPlane::Answer { serial, result }, datapath);
        }
        self.ended
            .push(serial, flows, &datapath.periods, datapath.now_ms());
    }

    /// Answers requests for which forwarding threads have flushed their counts.
    pub fn send_ended(&mut self, datapath: &Datapath) {
        while !self.is_blocked()
            && let Some(answer) = self.ended.next(&datapath.periods, datapath.now_ms())
        {
            self.send(answer, datapath);
        }
        self.send_outbox(datapath);
    }

    /// Sends messages that are no answers, as far as there is room: an event, a miss, an event, and so on.
    pub fn send_news(&mut self, datapath: &Datapath) {
        self.events.wake(datapath.now_ms());
        if self.channel.is_some() && !self.is_blocked() {
            self.outbox.extend(self.rule_records.next(datapath.now_ms()));
        }
        let mut bytes = 0;
        for _ in 0..BATCH {
            if self.channel.is_none() || self.is_blocked() {
                return;
            }
            let (event, miss) = (self.events.next(self.id, datapath), self.next_miss(datapath));
            if event.is_none() && miss.is_none() {
                return self.send_outbox(datapath);
            }
            bytes += miss.as_ref().map_or(0, |miss| miss.packet.frame.len());
            self.outbox.extend(event);
            self.outbox.extend(miss.map(FromDataPlane::Upcall));
            if self.outbox.len() >= TOGETHER || bytes >= TOGETHER_BYTES {
                bytes = 0;
                self.send_outbox(datapath);
            }
        }
        self.send_outbox(datapath);
        if !self.turns.is_empty() || self.events.is_ready() {
            datapath.notices.again();
        }
    }

    /// The next packet for it, one port after the other.
    fn next_miss(&mut self, datapath: &Datapath) -> Option<Upcall> {
        while self.greeted {
            let id = self.turns.take()?;
            let Some(port) = datapath.port(id) else {
                continue;
            };
            let Some((upcall, more)) = port.misses.pop(datapath.now_ms()) else {
                continue;
            };
            if more {
                self.turns.add(id);
            }
            self.unanswered += 1;
            return Some(upcall);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{Flow, FlowId, FlowKey, FlowMask, PutMode, SwitchId};
    use placement::{Config, Costs, Policy, Topology};
    use scheduler::Placement;

    #[test]
    fn a_successor_is_not_answered_what_others_asked() {
        let policy = Policy::new(Config::default(), Topology::of_machine(), Costs::default());
        let datapath = Datapath::new(Placement::new(policy, None).unwrap()).unwrap();
        let mut controller = Controller::new(ControllerId(1), datapath.rules.clone());
        let (first, theirs) = Channel::pair().unwrap();
        controller.connect(theirs, &datapath);
        // A thread that has not flushed yet.
        let member = datapath.periods.join();
        member.online();
        let flow = Flow::new(
            FlowId(1),
            SwitchId(1),
            FlowKey::default(),
            FlowMask::ANY,
            Vec::new(),
        );
        let end = |controller: &mut Controller, serial| {
            controller.switches.put(flow.clone(), PutMode::Create).unwrap();
            let ended = controller.switches.remove(SwitchId(1), FlowId(1));
            controller.answer_with_ended(serial, ended.into_iter().collect(), &datapath);
            controller.send_ended(&datapath);
        };
        end(&mut controller, 1);
        assert!(first.try_recv::<FromDataPlane>().is_err(), "too early");
        let (second, theirs) = Channel::pair().unwrap();
        controller.connect(theirs, &datapath);
        end(&mut controller, 2);
        member.offline(|| {});
        controller.send_ended(&datapath);
        let Ok((FromDataPlane::Answer { serial, .. }, _)) = second.try_recv() else {
            panic!("no answer")
        };
        assert_eq!(serial, 2);
        assert!(second.try_recv::<FromDataPlane>().is_err());
    }
}
