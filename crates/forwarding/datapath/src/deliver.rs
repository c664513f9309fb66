//! Delivery: packets are copied from the sender's to the receivers' memory, at once or through an internal
//! receive queue.

use crate::burst::PortSet;
use crate::kept::{Kept, TurnTime};
use crate::mirror::Reach;
use crate::port::Port;
use crate::sinks::{Delivery, enqueue};
use crate::state::{Ports, receive_ring, transmit_ring};
use cpu::Deadline;
use flow::PortId;
use lock_free::{Guard, Unique};
use placement::{Backlog, WORTH_SENDING};
use scheduler::{Copier, Due, Schedule, UNKNOWN_BACKLOG};
use std::sync::Arc;
use vnic::{Packet, ReceiveSide, TransmitSide, Turn, Wait};

/// Packets delivered to one port before others get their turn.
const DELIVERY_BUDGET: usize = 256;

/// Time in microseconds for each piece of a queue that is emptied.
const PIECE_US: u64 = 100;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_US: u64 = 1000;

/// Longest tick of the clock that waits are measured with.
const TICK_MS: u64 = 10;

/// What all functions of one turn share.
pub(crate) struct Step<'a> {
    pub ports: &'a Ports,
    pub schedule: &'a mut Schedule,
    /// Receivers that got packets of the current burst in their queues.
    pub receivers: &'a mut PortSet,
    /// The thread's claims.
    pub kept: &'a mut Kept,
    pub time: TurnTime,
}

/// A port whose transmit side this thread holds.
pub(crate) struct Sender<'a> {
    pub port: &'a Arc<Port>,
    pub transmit: Guard<'a, Option<TransmitSide>>,
}

impl Step<'_> {
    /// Delivers packets that just go to a port, at once as far as that is possible; what is left is queued.
    pub fn hand_over(&mut self, sender: &mut Sender<'_>, to: PortId, packets: &mut Vec<Unique<Packet>>) {
        sender.port.vnic.account.lender.sends_to(to, self.time.now_ms);
        let (ports, port) = (self.ports, sender.port);
        let receiver = ports.get(to).filter(|receiver| receiver.takes_at_once_from(port));
        let copier = receiver.map_or(Copier::Here, |receiver| self.copier(receiver, packets));
        let now = match &copier {
            Copier::Here => packets.len(),
            Copier::Elsewhere(now, _) => (*now).min(packets.len()),
            Copier::Busy => 0,
        };
        if let Some(receiver) = receiver.filter(|_| now > 0) {
            self.deliver_now(receiver, sender, packets, now);
        }
        if packets.is_empty() {
            return;
        }
        let mut reach = Reach {
            ports,
            receivers: &mut *self.receivers,
            now_ms: self.time.now_ms,
        };
        for packet in packets.drain(..) {
            enqueue(packet.share(), port, to, &mut reach);
        }
        if let (Some(receiver), Copier::Elsewhere(_, executor)) = (receiver, copier)
            && self.schedule.tell_copier(&receiver.home, &executor)
        {
            self.receivers.0.retain(|&port| port != to);
        }
    }

    /// Copies at most the first `limit` of a burst's packets straight to a receiver, and takes those out.
    fn deliver_now(
        &mut self,
        receiver: &Arc<Port>,
        sender: &mut Sender<'_>,
        packets: &mut Vec<Unique<Packet>>,
        limit: usize,
    ) {
        let Some(mut receive) = self.kept.claim_receive(receiver) else {
            return;
        };
        let call_at = receive.with(|side| {
            if guest_memory::fault_count() > 0 && side.is_broken() {
                return None;
            }
            let delivered = side.deliver_now(&packets[..limit]);
            self.schedule.progress.delivered += delivered as u64;
            sender.transmit.with(|sender| {
                let Some(sender) = sender else {
                    // They have come by a queue, whose slots find their way back.
                    packets.drain(..delivered).for_each(drop);
                    return side.publish();
                };
                // To drain a vector takes long beside a lone packet.
                if packets.len() > 1 || delivered == 0 {
                    sender.finish(packets.drain(..delivered));
                } else if let Some(packet) = packets.pop() {
                    sender.finish_one(packet);
                }
                side.publish_with(sender);
            });
            self.call_if_owed(side, receiver)
        });
        if self.kept.end(receive, receiver.receive_ring()) {
            self.schedule.later(receiver.receive_ring());
        }
        if let Some(at_ns) = call_at {
            self.schedule
                .set_timer(at_ns, receiver.receive_ring(), Due::Notify);
        }
    }

    /// Delivers to all receivers of the burst. `sender` is that whose transmit side this thread holds.
    #[inline]
    pub fn deliver_all(&mut self, sender: Option<&mut Sender<'_>>) {
        if !self.receivers.0.is_empty() {
            self.deliver_queued(sender);
        }
    }

    fn deliver_queued(&mut self, sender: Option<&mut Sender<'_>>) {
        let held = sender.as_ref().map(|sender| sender.port.id());
        let mut receivers = std::mem::take(&mut self.receivers.0);
        let (ports, has_choice) = (self.ports, self.schedule.chooses_copier());
        for &receiver in &receivers {
            let Some(port) = ports.get(receiver) else {
                continue;
            };
            let copier = if has_choice {
                port.home.announce_queued();
                self.schedule.copier(port.home.vnic(), ports, UNKNOWN_BACKLOG)
            } else {
                Copier::Here
            };
            match copier {
                Copier::Busy => {}
                Copier::Elsewhere(_, executor) if self.schedule.tell_copier(&port.home, &executor) => {}
                // A packet for hundreds of receivers.
                _ if self.time.ends.has_passed() => self.schedule.later(port.receive_ring()),
                Copier::Here | Copier::Elsewhere(..) => self.deliver(port, held),
            }
        }
        receivers.clear();
        self.receivers.0 = receivers;
        if let Some(sender) = sender {
            (sender.transmit).with(|side| side.iter_mut().for_each(TransmitSide::heed_receiver));
        }
    }

    /// Serves a port's internal receive queue.
    #[inline(never)]
    pub fn deliver(&mut self, port: &Port, held: Option<PortId>) {
        if port.has_queue() {
            // The thread is the kernel's while it sends: it keeps no rings of others.
            self.kept.give_up(self.ports, self.schedule);
        }
        let Some(mut receive) = self.kept.claim_receive(port) else {
            return;
        };
        let mut observer = Delivery::at(port, self.ports, self.time.now_ms);
        let (result, wait, watch_us, call_at) = receive.with(|side| {
            let mut result = if guest_memory::fault_count() > 0 && side.is_broken() {
                side.stop();
                Err(vanished())
            } else {
                if side.wait() == Wait::Stalled && side.look_for_buffers() {
                    port.vnic.set_detour(side);
                }
                side.run(
                    self.time.now_ms,
                    Turn::new(DELIVERY_BUDGET, self.time.ends),
                    &mut observer,
                )
            };
            if result == Ok(false) && port.home.copier().is_some() {
                port.home.set_copier(None);
                result = Ok(side.has_queued());
            }
            port.vnic.set_detour(side);
            let call_at = self.call_if_owed(side, port);
            (result, side.wait(), side.watch_us(self.time.now_ms), call_at)
        });
        if let Some(at_ns) = call_at {
            self.schedule.set_timer(at_ns, port.receive_ring(), Due::Notify);
        }
        self.schedule.progress.delivered += observer.delivered;
        let (origins, copied_to) = (observer.origins, observer.copied_to);
        if let Some(until_ms) = wait.until() {
            let at_ns = (until_ms + TICK_MS) * NS_PER_MS;
            self.schedule.set_timer(at_ns, port.receive_ring(), Due::Stall);
        }
        if let Some(watch_us) = watch_us {
            let at_ns = self.schedule.now_ns() + watch_us * NS_PER_US;
            self.schedule.set_timer(at_ns, port.receive_ring(), Due::Slow);
        }
        let wanted = receive.release();
        let more = result.unwrap_or_else(|error| {
            port.break_down(&error);
            true
        });
        if wanted || more {
            self.schedule.later(port.receive_ring());
        }
        for mirror in copied_to.0 {
            self.schedule.later(receive_ring(mirror));
        }
        for origin in origins.0.into_iter().filter(|&origin| Some(origin) != held) {
            self.schedule.later(transmit_ring(origin));
        }
    }

    /// Which thread is to copy packets that no other thread has seen. A thread that keeps the claim of the
    /// receive side goes on with little by itself.
    fn copier(&self, receiver: &Port, packets: &[Unique<Packet>]) -> Copier {
        if !self.schedule.chooses_copier() {
            return Copier::Here;
        }
        let bytes = packets.iter().map(|packet| packet.frame_len() as u64).sum();
        if bytes < WORTH_SENDING && self.kept.keeps_receive(receiver) {
            return Copier::Here;
        }
        let backlog = Backlog {
            packets: packets.len() as u32,
            bytes,
        };
        self.schedule.copier(receiver.home.vnic(), self.ports, backlog)
    }

    /// Calls a driver that is owed a call, or returns until when the call is put off.
    fn call_if_owed(&self, side: &mut ReceiveSide, receiver: &Port) -> Option<u64> {
        if !side.owes_call() {
            return None;
        }
        let put_off = self.schedule.put_off_notification(&receiver.home, self.ports);
        if put_off.is_none() {
            self.schedule.interrupt(&receiver.home, || side.call());
        }
        put_off
    }
}

/// Drops all that is queued for a port that was taken out of the table; returns whose packets they were.
/// Waits for a thread that holds the queue, which will not find the port again.
pub(crate) fn empty(port: &Port) -> PortSet {
    let no_ports = Ports::new();
    let mut observer = Delivery::at(port, &no_ports, 0);
    port.vnic.receive.claim_blocking().with(|side| {
        side.stop();
        let turn = || Turn::new(DELIVERY_BUDGET, Deadline::after_us(PIECE_US));
        while side.run(0, turn(), &mut observer).unwrap_or(false) {}
    });
    observer.origins
}

/// The guest has taken its memory away.
pub(crate) fn vanished() -> vnic::QueueError {
    vnic::QueueError::Address("guest memory")
}
