//! A burst on its way through a program: packet by packet, but for those whose verdicts are kept.

use super::Bound;
use super::exit::{Behind, Exit, MIN_FRAME, change};
use super::outputs::Outputs;
use super::verdicts::{NONE, Own, Places};
use super::version::Version;
use crate::pipeline::record;
use crate::state::Ports;
use flow::MirrorPoint;
use lock_free::Unique;
use p4_interpreter::{
    Context, CounterValue, Drop, End, NoObserver, Notes, Observer, Output, ReadGuard, Sink, Verdict,
};
use p4_ir::DigestId;
use vnic::Packet;

/// A burst on its way through a program.
pub(super) struct Run<'a> {
    pub bound: &'a Bound<'a>,
    pub ports: &'a Ports,
    pub version: &'a Version,
    pub guard: &'a ReadGuard<'a>,
    pub context: &'a mut Context,
    pub outputs: &'a mut Outputs,
    pub now: u64,
    pub own: Own<'a>,
}

impl Run<'_> {
    /// Looks for verdicts about packets, unless all of them are to be seen; says how many there are.
    pub fn find(&mut self, packets: &[Unique<Packet>], places: &mut Places, is_copied: bool) -> usize {
        if is_copied {
            return 0;
        }
        let (port, mask) = (u32::from(self.bound.port), &self.own.account.mask);
        let (mut found, mut last) = (0, NONE);
        for (packet, place) in packets.iter().zip(places) {
            let head = packet.head.bytes();
            if let Some(at) = self.own.verdicts.find(mask, port, head, last)
                && head.len() >= MIN_FRAME
            {
                (*place, last) = (at, at);
                found += 1;
            }
        }
        self.own.account.credit(found, packets.len() - found);
        found
    }

    /// The program's number of the port by which all packets leave.
    pub fn common_port(&self, places: &[u32]) -> Option<u32> {
        let mut ports = self.ports(places);
        let port = ports.next()??;
        ports.all(|other| other == Some(port)).then_some(port)
    }

    /// Whether all packets pass a stage.
    pub fn all_pass(&self, places: &[u32]) -> bool {
        let clients = |port| self.bound.clients_at(port).is_some();
        self.ports(places)
            .all(|port| port.is_some_and(|port| !clients(port)))
    }

    /// By which ports packets leave, if their verdicts are kept and say so; once for those in sequence of one
    /// verdict.
    fn ports(&self, places: &[u32]) -> impl Iterator<Item = Option<u32>> {
        let trains = places.chunk_by(|one, next| one == next);
        trains.map(|train| match self.own.verdicts.get(train[0])?.end() {
            End::Leaves(port) => Some(port),
            End::Dropped(_) => None,
        })
    }

    /// Counts packets whose verdicts are kept, and changes them. Those that cannot be sent so are dropped.
    pub fn repeat_all(&mut self, packets: &mut Vec<Unique<Packet>>, places: &[u32]) {
        let (engine, mut is_plain, mut first) = (&self.version.engine, true, 0);
        for train in places.chunk_by(|one, next| one == next) {
            let end = first + train.len();
            let bytes = packets[first..end].iter().map(|packet| packet.frame_len() as u64);
            let train_of = CounterValue {
                packets: train.len() as u64,
                bytes: bytes.sum(),
            };
            if let Some(verdict) = self.own.verdicts.get(train[0]) {
                engine.repeat(self.guard, self.context, verdict, train_of, self.now);
                is_plain &= verdict.is_plain();
            }
            first = end;
        }
        if !is_plain {
            let mut verdicts = places.iter().map(|place| self.own.verdicts.get(*place));
            packets.retain_mut(|packet| match verdicts.next().flatten() {
                Some(verdict) => change(packet, verdict),
                None => true,
            });
        }
    }

    /// Runs packets, or repeats their verdicts, and sends them. One new verdict is made at most, and kept
    /// when the places of others are not needed any more.
    pub fn each<S>(&mut self, packets: &mut Vec<Unique<Packet>>, places: &Places, exit: &mut Exit<'_, S>)
    where
        S: FnMut() -> Option<Unique<Packet>>,
    {
        let mut made = None;
        let may_have = self.version.engine.may_have_verdicts() && !exit.is_copied;
        let mut may_make = may_have && self.own.account.may_make();
        let mut is_timed = false;
        for (packet, place) in packets.drain(..).zip(places) {
            if let Some(verdict) = self.own.verdicts.get(*place) {
                let one = CounterValue::one(packet.frame_len());
                self.version
                    .engine
                    .repeat(self.guard, self.context, verdict, one, self.now);
                exit.send_again(packet, verdict);
                continue;
            }
            if exit.records {
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
        let mut leaving = Leaving {
            outputs: &mut *self.outputs,
            bound: self.bound,
            ports: self.ports,
        };
        let engine = &self.version.engine;
        engine.run(
            self.guard,
            self.context,
            &received,
            self.now,
            &mut leaving,
            observer,
        );
    }
}

/// What a packet sends, and the queues of ports that it may leave by.
struct Leaving<'a> {
    outputs: &'a mut Outputs,
    bound: &'a Bound<'a>,
    ports: &'a Ports,
}

impl Sink for Leaving<'_> {
    fn output(&mut self, output: &Output<'_>) {
        self.outputs.output(output);
    }

    fn queue_depth(&self, port: u32) -> u32 {
        let port = self.bound.port_of(port).and_then(|port| self.ports.get(port));
        port.map_or(0, |port| port.vnic.queue_depth())
    }

    fn digest(&mut self, digest: DigestId, values: &[u8]) {
        self.outputs.digest(digest, values);
    }

    fn dropped(&mut self, reason: Drop) {
        self.outputs.dropped(reason);
    }
}
