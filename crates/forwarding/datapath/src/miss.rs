//! Packets on their way to the control process.
//!
//! Each port has a queue of its own, bounded in packets and bytes; the channel thread serves the queues in
//! turn. A packet counts against both bounds until the control process has answered, so a guest that floods
//! misses, and a control process that is slow or gone, cost that guest its own new flows and no other guest
//! anything. Since deciding costs processor time, which all guests share, the rate of a port's misses is
//! bounded too.

use control_protocol::data_plane::{Packet as WirePacket, Upcall, UpcallCause, UpcallId};
use flow::{Context, DropReason, FlowKey, PortId, SwitchId};
use pacing::TokenBucket;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use vnic::Packet;
use wire::{MAX_HEADERS, parse};

/// Most packets of a port that wait or are being decided about.
const MAX_PACKETS: usize = 64;
/// Most bytes of them.
const MAX_BYTES: usize = 512 * 1024;
/// After this time the control process is taken to have lost the packet, in milliseconds.
const ANSWER_TIMEOUT_MS: u64 = 5_000;

/// A port's miss queue.
pub(crate) struct MissQueue(Mutex<Misses>);

struct Misses {
    bucket: TokenBucket,
    /// With the time of their arrival.
    waiting: VecDeque<(Upcall, Instant)>,
    /// Sent and not yet answered.
    sent: VecDeque<Sent>,
    /// Of both.
    bytes: usize,
    next_serial: u64,
}

struct Sent {
    serial: u64,
    /// When it was sent, in milliseconds.
    sent_ms: u64,
    /// When it came.
    since: Instant,
    bytes: usize,
}

/// The outcome for a packet offered to the queue.
pub(crate) enum Queued {
    /// The packet is the only one waiting: the channel thread must be notified.
    First,
    /// The packet waits behind others.
    Behind,
    /// The packet is not queued: no room, or too many lately.
    Refused(DropReason),
}

impl MissQueue {
    /// An empty queue that takes so many packets per second.
    pub fn new(per_second: u32) -> MissQueue {
        MissQueue(Mutex::new(Misses {
            bucket: TokenBucket::new(per_second, per_second),
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            bytes: 0,
            next_serial: 0,
        }))
    }

    /// Takes so many packets per second from now on.
    pub fn set_rate(&self, per_second: u32) {
        self.0.lock().bucket.set(per_second, per_second);
    }

    /// Queues a copy of `packet`, writing off answers that are overdue (their number is returned, to be
    /// counted).
    pub fn push(
        &self,
        packet: &Packet,
        switch: SwitchId,
        cause: UpcallCause,
        (key, context): (Option<&FlowKey>, &Context),
        now_ms: u64,
    ) -> (Queued, u64) {
        let mut misses = self.0.lock();
        let mut lost = 0;
        let is_overdue = |sent: &Sent| now_ms.saturating_sub(sent.sent_ms) > ANSWER_TIMEOUT_MS;
        while misses.sent.front().is_some_and(is_overdue) {
            misses.end(0);
            lost += 1;
        }
        let bytes = misses.bytes + packet.frame_len();
        if misses.waiting.len() + misses.sent.len() >= MAX_PACKETS || bytes > MAX_BYTES {
            return (Queued::Refused(DropReason::MissQueueFull), lost);
        }
        if !misses.bucket.take(Duration::from_millis(now_ms)) {
            return (Queued::Refused(DropReason::MissRate), lost);
        }
        let frame = packet.to_bytes(usize::MAX);
        let Some(key) = key.copied().or_else(|| whole_key(&frame, packet.origin)) else {
            return (Queued::Refused(DropReason::DeepHeaders), lost);
        };
        let id = UpcallId {
            port: packet.origin,
            serial: misses.next_serial,
        };
        misses.next_serial += 1;
        misses.bytes = bytes;
        let packet = WirePacket {
            vnet_header: packet.offload.header().to_bytes(),
            frame,
        };
        let upcall = Upcall {
            id,
            switch,
            cause,
            key,
            context: (!context.is_none()).then(|| Box::new(*context)),
            packet,
        };
        misses.waiting.push_back((upcall, Instant::now()));
        let is_first = misses.waiting.len() == 1;
        (if is_first { Queued::First } else { Queued::Behind }, lost)
    }

    /// The next packet to send, and whether another one waits behind it.
    pub fn pop(&self, now_ms: u64) -> Option<(Upcall, bool)> {
        let mut misses = self.0.lock();
        let (upcall, since) = misses.waiting.pop_front()?;
        misses.sent.push_back(Sent {
            serial: upcall.id.serial,
            sent_ms: now_ms,
            since,
            bytes: upcall.packet.frame.len(),
        });
        Some((upcall, !misses.waiting.is_empty()))
    }

    /// Ends an upcall, and returns how long the packet has waited; `None` if it is not outstanding (any
    /// more).
    pub fn answered(&self, serial: u64) -> Option<Duration> {
        let mut misses = self.0.lock();
        let place = misses.sent.iter().position(|sent| sent.serial == serial)?;
        let waited = misses.sent[place].since.elapsed();
        misses.end(place).then_some(waited)
    }

    /// Writes off the packets that a control process that has gone held; returns how many.
    pub fn write_off(&self) -> u64 {
        let mut misses = self.0.lock();
        let lost = misses.sent.len();
        while misses.end(0) {}
        lost as u64
    }

    /// Whether packets wait to be sent.
    pub fn is_waiting(&self) -> bool {
        !self.0.lock().waiting.is_empty()
    }

    /// Empties the queue of a port that goes; returns how many packets are lost.
    pub fn clear(&self) -> u64 {
        let mut misses = self.0.lock();
        let lost = misses.waiting.len();
        misses.waiting.clear();
        misses.bytes = misses.sent.iter().map(|sent| sent.bytes).sum();
        lost as u64
    }
}

/// The key of a whole frame, which the controller gets with it: flows are made from both together. `None` if
/// fields are unknown.
#[cold]
fn whole_key(frame: &[u8], from: PortId) -> Option<FlowKey> {
    let headers = &frame[..frame.len().min(MAX_HEADERS)];
    let parsed = parse(headers, frame.len(), from);
    parsed.unseen.is_nothing().then_some(parsed.key)
}

impl Misses {
    /// Ends the upcall at this place among those that were sent; false if there is none.
    fn end(&mut self, place: usize) -> bool {
        let ended = self.sent.remove(place);
        self.bytes -= ended.as_ref().map_or(0, |sent| sent.bytes);
        ended.is_some()
    }
}
