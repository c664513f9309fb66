//! Requests under way.
//!
//! A caller's datagram has up to hundreds of messages, most often flows. Flows and packets are passed to the
//! data plane one after the other without waiting for its answers, as far as it has room; any other request
//! waits until those before it are answered, and those after it wait for it, since it may change what they
//! mean. The results of a datagram's messages are sent together, in their order.

use super::{Dump, Outcome, Refusal, Result, Step, Switch, Then, dump::Piece, netfilter, refused};
use crate::datapath::{Answer as Told, Datapath, DatapathId, Errno, Question, Ticket};
use crate::placeholder::Placeholders;
use crate::server::{Answer, Caller};
use ovs_netlink::attribute::Writer;
use ovs_netlink::family::Family;
use ovs_netlink::message::{FIRST_TYPE, Flags, Header, Message, Status, messages};

/// `struct nlmsghdr`.
const HEADER: usize = 16;

/// A caller's datagram.
#[derive(Default)]
pub(super) struct Job {
    protocol: u32,
    datagram: Vec<u8>,
    /// Where the messages begin that have not begun.
    next: usize,
    /// The results of those before.
    slots: Vec<Slot>,
    /// Of these, questions without answers.
    open: usize,
    /// The message begun last is one for which others wait.
    alone: bool,
    dump: Option<Dump>,
    /// All that precedes the dump was answered.
    dumping: bool,
}

/// A message.
struct Slot {
    /// Where it lies in the datagram.
    at: usize,
    outcome: Option<Outcome>,
    acknowledgement: Option<Vec<u8>>,
}

/// The purpose of a ticket.
pub(super) struct Asked {
    caller: Caller,
    for_what: For,
}

enum For {
    /// The message of that slot.
    Message(usize, Header, Then),
    Dump,
}

impl Job {
    pub fn new(protocol: u32, datagram: &[u8]) -> Job {
        Job {
            protocol,
            datagram: datagram.to_vec(),
            ..Job::default()
        }
    }

    /// The next message, unless it has to wait. What follows an error in a length is not looked at, as in the
    /// kernel.
    fn message(&self) -> Option<(Message<'_>, bool)> {
        let message = messages(self.datagram.get(self.next..)?).next()?.ok()?;
        let family = Family::of_number(message.header.kind);
        let alone = !matches!(family, Some(Family::Flow | Family::Packet));
        let waits = self.open > 0 && (alone || self.alone);
        (!waits).then_some((message, alone))
    }

    fn is_begun(&self) -> bool {
        let rest = self.datagram.get(self.next..).unwrap_or_default();
        !matches!(messages(rest).next(), Some(Ok(_)))
    }

    /// Writes down the result of a message.
    fn record(&mut self, slot: usize, result: Result<Outcome>) {
        let Some(slot) = self.slots.get_mut(slot) else {
            return;
        };
        let Some(Ok(message)) = messages(&self.datagram[slot.at..]).next() else {
            return;
        };
        let mut outcome = result.unwrap_or_else(|Refusal(errno)| {
            log::debug!("refused with {errno}: {:?}", message.header);
            slot.acknowledgement = acknowledgement(&message, Some(errno));
            Outcome::default()
        });
        if let Some(dump) = outcome.dump.take() {
            if self.dump.is_some() {
                // As in the kernel, a socket has one dump at a time.
                slot.acknowledgement = acknowledgement(&message, Some(Errno::EBUSY));
            } else {
                self.dump = Some(dump);
            }
        } else if slot.acknowledgement.is_none() && message.header.flags.contains(Flags::ACK) {
            slot.acknowledgement = acknowledgement(&message, None);
        }
        slot.outcome = Some(outcome);
    }

    /// All answers, once they are there.
    fn answer(&mut self) -> Answer {
        let mut answer = Answer::default();
        for slot in self.slots.drain(..) {
            let outcome = slot.outcome.unwrap_or_default();
            answer.datagrams.extend(outcome.reply);
            answer.datagrams.extend(slot.acknowledgement);
            answer.notices.extend(outcome.notice);
        }
        answer.more = self.dump.is_some();
        self.dumping = answer.more;
        answer
    }
}

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    /// Goes on with the data plane's answers, until there are none.
    pub(super) fn follow_datapath(&mut self) {
        loop {
            let mut answered = false;
            while let Some((ticket, answer)) = self.datapath.next_answer() {
                answered = true;
                self.take_answer(ticket, answer);
            }
            // Those that had to wait go on in the order in which they came.
            for _ in 0..self.stalled.len() {
                let Some(caller) = self.stalled.pop_front() else {
                    break;
                };
                self.advance(caller);
            }
            if !answered {
                return;
            }
        }
    }

    /// Whether a request waits for room in the data plane, and there is some; or something is to be
    /// announced.
    pub fn can_go_on(&self) -> bool {
        !self.stalled.is_empty() && self.datapath.has_room() || self.to_announce.is_some()
    }

    /// Begins as many messages as can be begun.
    pub(super) fn advance(&mut self, caller: Caller) {
        while let Some(job) = self.jobs.get_mut(&caller) {
            if !self.datapath.has_room() && !job.is_begun() {
                if !self.stalled.contains(&caller) {
                    self.stalled.push_back(caller);
                }
                return;
            }
            let Some((message, alone)) = job.message() else {
                break;
            };
            let (header, at) = (message.header, job.next);
            let length = (HEADER + message.payload.len()).next_multiple_of(4);
            let datagram = std::mem::take(&mut job.datagram);
            job.next = at + length;
            job.alone = alone;
            let slot = job.slots.len();
            let protocol = job.protocol;
            let step = match messages(&datagram[at..]).next() {
                Some(Ok(message)) => self.begin(protocol, &message),
                _ => Ok(Step::Done(Outcome::default())),
            };
            let Some(job) = self.jobs.get_mut(&caller) else {
                return;
            };
            job.datagram = datagram;
            job.slots.push(Slot {
                at,
                outcome: None,
                acknowledgement: None,
            });
            self.follow(caller, slot, header, step);
        }
        self.finish(caller);
    }

    fn begin(&mut self, protocol: u32, message: &Message<'_>) -> Result<Step> {
        const GENERIC: u32 = super::GENERIC;
        const NETFILTER: u32 = super::NETFILTER;
        if !message.header.flags.contains(Flags::REQUEST) {
            return Ok(Step::Unanswered);
        }
        match protocol {
            _ if message.header.kind < FIRST_TYPE => Ok(Step::Done(Outcome::default())),
            GENERIC => self.carry_out(message),
            NETFILTER => netfilter::carry_out(message).map(Step::Done),
            ovs_frame::TRACE => self.trace(message),
            ovs_frame::COUNTERS => self.counters(message),
            ovs_frame::QUEUES => self.queue(message),
            _ => refused(Errno::EOPNOTSUPP),
        }
    }

    /// Does what a message has come to: it is done, or something is to be asked.
    fn follow(&mut self, caller: Caller, slot: usize, header: Header, step: Result<Step>) {
        let Some(job) = self.jobs.get_mut(&caller) else {
            return;
        };
        match step {
            Ok(Step::Ask(datapath, question, then)) => {
                job.open += 1;
                self.ask(caller, For::Message(slot, header, then), datapath, question);
            }
            Ok(Step::Done(outcome)) => job.record(slot, Ok(outcome)),
            Ok(Step::Unanswered) => {}
            Err(refusal) => job.record(slot, Err(refusal)),
        }
    }

    fn ask(&mut self, caller: Caller, for_what: For, datapath: DatapathId, question: Question) {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.asked.insert(ticket, Asked { caller, for_what });
        self.datapath.ask(ticket, datapath, question);
    }

    fn take_answer(&mut self, ticket: Ticket, answer: std::result::Result<Told, Errno>) {
        let Some(Asked { caller, for_what }) = self.asked.remove(&ticket) else {
            return;
        };
        // Its caller may have gone.
        let Some(job) = self.jobs.get_mut(&caller) else {
            return;
        };
        match for_what {
            For::Message(slot, header, then) => {
                job.open -= 1;
                let step = match answer {
                    Ok(answer) => self.proceed(header, then, answer),
                    Err(errno) => refused(errno),
                };
                self.follow(caller, slot, header, step);
                self.advance(caller);
            }
            For::Dump => {
                if let Some(dump) = &mut job.dump {
                    dump.take(answer);
                }
                self.continue_job(caller);
            }
        }
    }

    /// Answers, if all messages are done.
    fn finish(&mut self, caller: Caller) {
        let Some(job) = self.jobs.get_mut(&caller) else {
            return;
        };
        if job.open > 0 || job.dumping || !job.is_begun() {
            return;
        }
        let answer = job.answer();
        if !answer.more {
            self.jobs.remove(&caller);
        }
        self.answers.push_back((caller, answer));
    }

    /// The next piece of the caller's dump.
    pub(super) fn continue_job(&mut self, caller: Caller) {
        let Some(mut dump) = self.jobs.get_mut(&caller).and_then(|job| job.dump.take()) else {
            return;
        };
        match self.continue_dump(&mut dump) {
            Piece::Ask(datapath, question) => {
                if let Some(job) = self.jobs.get_mut(&caller) {
                    job.dump = Some(dump);
                }
                self.ask(caller, For::Dump, datapath, question);
            }
            Piece::Ready(datagram, last) => {
                if last {
                    self.jobs.remove(&caller);
                } else if let Some(job) = self.jobs.get_mut(&caller) {
                    job.dump = Some(dump);
                }
                let answer = Answer {
                    datagrams: vec![datagram],
                    more: !last,
                    notices: Vec::new(),
                };
                self.answers.push_back((caller, answer));
            }
        }
    }
}

/// `NLMSG_ERROR`. `None` cannot happen: it repeats a message that was short enough.
fn acknowledgement(message: &Message<'_>, errno: Option<Errno>) -> Option<Vec<u8>> {
    let mut writer = Writer::new();
    Status::Answer(errno).write(message, &mut writer);
    writer.finish().ok()
}
