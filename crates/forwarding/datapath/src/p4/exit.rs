//! Where packets go that a program has run: to a port, once, changed in their slots; to several, as copies
//! that share payload; to the clients of the P4 switch; over a link to another one; on, from a stage to what
//! is behind it; or nowhere, for a reason that is counted.

use super::Bound;
use super::links::{Crossings, Place};
use super::outputs::{Outputs, Sent};
use super::version::Counts;
use crate::burst::Outgoing;
use crate::mirror::Reach;
use crate::port::Port;
use crate::sinks::enqueue;
use flow::{DropReason, MirrorPoint, PortId};
use lock_free::{Shared, Unique};
use p4_interpreter::{Drop, End, Tail, Verdict};
use std::sync::atomic::Ordering::Relaxed;
use vnic::{MAX_FRAME, Packet};
use wire::VnetHeader;

/// Shortest frame: an Ethernet header.
pub(super) const MIN_FRAME: usize = 14;

/// The bytes of a packet behind its head, which may lie in its guest's memory.
pub(super) struct Behind<'a>(pub &'a Packet);

impl Tail for Behind<'_> {
    fn len(&self) -> usize {
        self.0.tail_len()
    }

    fn read(&self, offset: usize, to: &mut [u8]) {
        self.0.read_tail(offset, to);
    }
}

/// Where packets go that a program has run.
pub(super) struct Exit<'a, S> {
    pub bound: &'a Bound<'a>,
    pub counts: &'a Counts,
    /// The port that packets came by, or for those of clients another one that is bound.
    pub port: &'a Port,
    /// A capture or mirror copies packets that come.
    pub is_copied: bool,
    /// Captures and mirrors are given packets as they come.
    pub records: bool,
    /// Links that the packets have crossed.
    pub crossed: u8,
    pub crossings: &'a mut Crossings,
    pub reach: Reach<'a>,
    pub outgoing: &'a mut Outgoing,
    /// Where the last packet left to: the program's number, and what is behind it.
    pub last: Option<(u32, Receiver)>,
    pub spare: S,
}

impl<S: FnMut() -> Option<Unique<Packet>>> Exit<'_, S> {
    /// Ends a packet as its verdict says.
    pub fn send_again(&mut self, mut packet: Unique<Packet>, verdict: &Verdict) {
        let port = match verdict.end() {
            End::Leaves(port) => port,
            End::Dropped(reason) => return packet.account.dropped(reason_of(reason), 1),
        };
        if !change(&mut packet, verdict) {
            return;
        }
        let Some(to) = self.receiver_of(port) else {
            return packet.account.dropped(DropReason::NoSuchPort, 1);
        };
        match to {
            Receiver::Port(to) => self.outgoing.add(to, packet),
            Receiver::Link(to) => {
                if let Err(packet) = self.cross(to, packet) {
                    packet.account.dropped(DropReason::TooDeep, 1);
                }
            }
            Receiver::Onward => self.crossings.passed.push(packet),
            Receiver::Clients => {
                let header = *packet.offload.header();
                let sent = self.send_in(&packet, packet.to_bytes(usize::MAX), &header);
                sent.unwrap_or_else(|reason| packet.account.dropped(reason, 1));
            }
        }
    }

    /// Has a packet cross a link; otherwise counts that, and returns the packet.
    fn cross(&mut self, to: Place, packet: Unique<Packet>) -> Result<(), Unique<Packet>> {
        let crossed = self.crossings.add(to, self.crossed, packet);
        if crossed.is_err() {
            self.counts.add_link_drop();
        }
        crossed
    }

    /// Has a packet leave that is sent once.
    fn leave(&mut self, to: Receiver, packet: Unique<Packet>) -> Result<(), Refused> {
        match to {
            Receiver::Port(to) => self.outgoing.add(to, packet),
            Receiver::Link(to) => {
                return (self.cross(to, packet)).map_err(|packet| (DropReason::TooDeep, packet));
            }
            Receiver::Onward => self.crossings.passed.push(packet),
            // Clients get bytes, not packets.
            Receiver::Clients => return Err((DropReason::NoSuchPort, packet)),
        }
        Ok(())
    }

    /// Sends digests to the clients, and counts those that are lost.
    #[cold]
    fn send_digests(&self, outputs: &Outputs) {
        let mut lost = outputs.digests_lost;
        for (digest, values) in outputs.digests() {
            let version = self.bound.switch.map(|switch| &switch.version);
            let sent = self.bound.clients.zip(version).is_some_and(|(clients, version)| {
                clients.send_digest((version.lineage.0, digest), values, self.reach.now_ms)
            });
            lost += u64::from(!sent);
        }
        self.counts.add_digests_lost(lost);
    }

    /// Ends a packet as the program says. Each end is a delivery or a drop.
    pub fn send(&mut self, packet: Unique<Packet>, outputs: &Outputs) {
        if outputs.has_digests() {
            self.send_digests(outputs);
        }
        if outputs.sent.is_empty() && self.is_copied {
            self.port
                .mirror(&packet, MirrorPoint::DroppedFrom, &mut self.reach);
        }
        let account = &packet.account;
        for reason in &outputs.ended {
            account.dropped(reason_of(*reason), 1);
        }
        if outputs.lost > 0 {
            account.dropped(DropReason::TooDeep, outputs.lost);
        }
        match outputs.ends() {
            0 => account.dropped(DropReason::Policy, 1),
            1 => {}
            ends => drop(account.copies.fetch_add(ends - 1, Relaxed)),
        }
        match &outputs.sent[..] {
            [] => {}
            [sent] => self.send_or_drop(packet, sent, outputs.head(sent)),
            several if self.bound.is_stage => self.pass_one(packet, several, outputs),
            several => self.send_copies(&packet.share(), several, outputs),
        }
    }

    fn send_or_drop(&mut self, packet: Unique<Packet>, sent: &Sent, head: &[u8]) {
        if let Err((reason, packet)) = self.send_one(packet, sent, head) {
            packet.account.dropped(reason, 1);
        }
    }

    fn send_one(&mut self, mut packet: Unique<Packet>, sent: &Sent, head: &[u8]) -> Result<(), Refused> {
        let to = match self.receiver(sent, head) {
            Ok(to) => to,
            Err(reason) => return Err((reason, packet)),
        };
        if matches!(to, Receiver::Clients) {
            let sent = self.send_to_clients(&packet, sent, head);
            return sent.map_err(|reason| (reason, packet));
        }
        let is_whole = sent.offset + sent.length >= packet.frame_len();
        match is_whole.then(|| packet.replace_front(head, sent.offset)) {
            Some(Err(_)) => return Err((DropReason::BadOffload, packet)),
            Some(Ok(true)) => return self.leave(to, packet),
            Some(Ok(false)) | None => {}
        }
        match self.copy(&packet, sent, head) {
            Ok(copy) => self.leave(to, copy),
            Err(reason) => Err((reason, packet)),
        }
    }

    /// Has a packet pass a stage that has made copies for clients.
    fn pass_one(&mut self, packet: Unique<Packet>, several: &[Sent], outputs: &Outputs) {
        let mut passes = None;
        for sent in several {
            let head = outputs.head(sent);
            let left = match self.receiver(sent, head) {
                Ok(Receiver::Clients) => self.send_to_clients(&packet, sent, head),
                Ok(_) if passes.is_none() => {
                    passes = Some(sent);
                    Ok(())
                }
                Ok(_) => Err(DropReason::NoSuchPort),
                Err(reason) => Err(reason),
            };
            if let Err(reason) = left {
                packet.account.dropped(reason, 1);
            }
        }
        if let Some(sent) = passes {
            self.send_or_drop(packet, sent, outputs.head(sent));
        }
    }

    /// Has packets leave that were to be handed over, through their receivers' queues.
    pub fn queue_outgoing(&mut self) {
        let used = std::mem::take(&mut self.outgoing.used);
        for (to, packets) in &mut self.outgoing.groups[..used] {
            for packet in packets.drain(..) {
                enqueue(packet.share(), self.port, *to, &mut self.reach);
            }
        }
    }

    /// Sends packets that share the payload of the received one. They go through the receivers' queues, and
    /// so do those that were to leave before them.
    fn send_copies(&mut self, packet: &Shared<Packet>, several: &[Sent], outputs: &Outputs) {
        self.queue_outgoing();
        for sent in several {
            let head = outputs.head(sent);
            let left = match self.receiver(sent, head) {
                Ok(Receiver::Clients) => self.send_to_clients(packet, sent, head),
                Ok(Receiver::Port(to)) => self.shared_copy(packet, sent, head).map(|copy| {
                    enqueue(copy.share(), self.port, to, &mut self.reach);
                }),
                // Stages pass one alone.
                Ok(Receiver::Onward) => Err(DropReason::NoSuchPort),
                Ok(Receiver::Link(to)) => {
                    let copy = self.shared_copy(packet, sent, head);
                    copy.and_then(|copy| self.cross(to, copy).map_err(|_| DropReason::TooDeep))
                }
                Err(reason) => Err(reason),
            };
            if let Err(reason) = left {
                packet.account.dropped(reason, 1);
            }
        }
    }

    fn shared_copy(
        &mut self,
        packet: &Shared<Packet>,
        sent: &Sent,
        head: &[u8],
    ) -> Result<Unique<Packet>, DropReason> {
        let mut spare = (self.spare)().ok_or(DropReason::QueueFull)?;
        spare.fill_from(packet);
        let is_whole = sent.offset + sent.length >= packet.frame_len();
        if is_whole
            && spare
                .replace_front(head, sent.offset)
                .map_err(|_| DropReason::BadOffload)?
        {
            return Ok(spare);
        }
        drop(spare);
        self.copy(packet, sent, head)
    }

    /// Where a packet leaves to, if it can.
    fn receiver(&mut self, sent: &Sent, head: &[u8]) -> Result<Receiver, DropReason> {
        match head.len() + sent.length {
            ..MIN_FRAME => return Err(DropReason::NoHeader),
            len if len > MAX_FRAME as usize => return Err(DropReason::OversizedFrame),
            _ => {}
        }
        let to = self.receiver_of(sent.port);
        let to = to.filter(|to| !(sent.is_copy && matches!(to, Receiver::Onward)));
        to.ok_or(DropReason::NoSuchPort)
    }

    /// What is behind a number that the program knows, which mostly is that of the last packet.
    fn receiver_of(&mut self, port: u32) -> Option<Receiver> {
        let known = self.last.filter(|(known, _)| *known == port);
        let to = known.map(|(_, to)| to).or_else(|| self.receiver_at(port))?;
        self.last = Some((port, to));
        Some(to)
    }

    /// What is behind a number that the program knows.
    fn receiver_at(&self, port: u32) -> Option<Receiver> {
        if self.bound.clients_at(port).is_some() {
            return Some(Receiver::Clients);
        }
        if self.bound.is_stage {
            return Some(Receiver::Onward);
        }
        let link = self.bound.link_at(port).map(Receiver::Link);
        link.or_else(|| self.bound.port_of(port).map(Receiver::Port))
    }

    fn send_to_clients(&mut self, packet: &Packet, sent: &Sent, head: &[u8]) -> Result<(), DropReason> {
        let frame = frame_of(packet, sent, head);
        let header = header_of(packet, sent, frame.len())?;
        self.send_in(packet, frame, &header)
    }

    /// Sends a frame made of a packet to the clients, and counts it.
    fn send_in(&mut self, packet: &Packet, frame: Vec<u8>, header: &VnetHeader) -> Result<(), DropReason> {
        let clients = self.bound.clients.ok_or(DropReason::NoSuchPort)?;
        let length = frame.len() as u64;
        let result = clients.send_in(frame, header, self.reach.now_ms);
        self.counts.add_packet_in(result.is_ok());
        result?;
        packet.account.delivered.fetch_add(1, Relaxed);
        packet.account.copied_up.fetch_add(length, Relaxed);
        Ok(())
    }

    /// A copy in our memory, payload and all, as it leaves: cut, or with more bytes in front than a slot has
    /// room for. The number of those is bounded.
    fn copy(&mut self, packet: &Packet, sent: &Sent, head: &[u8]) -> Result<Unique<Packet>, DropReason> {
        if !self.port.admit_header_copy(self.reach.now_ms) {
            return Err(DropReason::DeepHeaders);
        }
        let mut spare = (self.spare)().ok_or(DropReason::QueueFull)?;
        let frame = frame_of(packet, sent, head);
        packet.account.copied_in.fetch_add(sent.length as u64, Relaxed);
        let header = header_of(packet, sent, frame.len());
        spare.fill(packet.origin, packet.account.clone(), frame);
        spare.header = header?.to_bytes();
        spare.parse_flow_key()?;
        Ok(spare)
    }
}

/// Changes a packet as its verdict says; one that cannot be sent so is counted as dropped, and the answer is
/// false.
pub(super) fn change(packet: &mut Packet, verdict: &Verdict) -> bool {
    let edit = |head: &mut [u8]| verdict.edit(head);
    let is_changed = verdict.is_plain()
        || verdict.keeps_ether_type() && packet.rewrite_plain(edit)
        || packet.rewrite_front(edit).is_ok();
    if !is_changed {
        packet.account.dropped(DropReason::BadOffload, 1);
    }
    is_changed
}

/// A packet that does not leave, and why.
type Refused = (DropReason, Unique<Packet>);

/// Where a packet leaves to.
#[derive(Clone, Copy)]
pub(super) enum Receiver {
    Port(PortId),
    Link(Place),
    /// To what is behind a stage.
    Onward,
    Clients,
}

/// The bytes of a packet as it leaves.
fn frame_of(packet: &Packet, sent: &Sent, head: &[u8]) -> Vec<u8> {
    let mut frame = head.to_vec();
    frame.resize(head.len() + sent.length, 0);
    let received = p4_interpreter::Packet {
        port: 0,
        head: packet.head.bytes(),
        tail: &Behind(packet),
    };
    received.read(sent.offset, &mut frame[head.len()..]);
    frame
}

/// What is still to be done for a packet that leaves with so many bytes; of one that is cut, nothing.
fn header_of(packet: &Packet, sent: &Sent, length: usize) -> Result<VnetHeader, DropReason> {
    if sent.offset + sent.length < packet.frame_len() {
        return Ok(VnetHeader::default());
    }
    let header = packet.moved_header(packet.frame_len(), length);
    header.map_err(|_| DropReason::BadOffload)
}

/// What users are told of why a program, or a limit of it, ended a packet.
fn reason_of(reason: Drop) -> DropReason {
    match reason {
        Drop::Ingress | Drop::Egress => DropReason::Policy,
        Drop::NoReplica => DropReason::NoDestination,
        Drop::Passes | Drop::Copies | Drop::Grown | Drop::LoopTurns => DropReason::TooDeep,
    }
}
