//! A port's guest interface, as workers and the vhost-user session share it.

use crate::call_cost::CallCost;
use crate::pause::{Forgiven, LONG_WORK, Pace};
use crate::receive::ReceiveSide;
use crate::shortfall::Shortfalls;
use crate::transmit::{RingSetup, TransmitSide};
use crate::{Call, Counters, Packet};
use flow::{DropReason, PortId};
use guest_memory::{Account, GuestMemory, MapError, Region};
use lock_free::{Claim, Guard, Queue, Shared};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use virtqueue::QueueError;
use virtqueue::net::{RECEIVE_QUEUE, TRANSMIT_QUEUE};

/// Mapping a file takes a lock of the file while all other mapping in the process waits, and a VMM that has
/// mapped the file a million times can hold that lock for seconds. The thread that maps may also have lost
/// its core meanwhile.
const FORGIVEN_MAPPING: Forgiven = Forgiven {
    pauses_us: 6_000_000,
    work_us: 50_000,
};

/// Longest sleep of a thread that waits for such a pause, in microseconds.
const MAPPING_NAP_US: u64 = 10_000;

/// Places in a port's internal receive queue.
const INBOX: usize = 2048;

/// Places of it for senders that have more than a burst of packets under way. The other places are for
/// senders with fewer: while no worker sorts the queue by sender, a flood leaves room for a port that sends
/// now and then.
const INBOX_OF_MANY: usize = 1024;

/// Places of it for copies of mirrors, each of which takes as many bytes of our memory as the frame has.
const INBOX_OF_COPIES: usize = 64;

/// In [`Vnic::open`]: the receive ring runs.
const RECEIVES: u8 = 1;
/// The port was taken down.
const DISABLED: u8 = 2;

/// The reason for which a queue refuses a packet, and the packet.
pub type Refused = (DropReason, Shared<Packet>);

/// The two rings of a guest, its internal receive queue and its counters.
///
/// A thread that is no worker changes rings through `claim_blocking`, and has a worker serve the port
/// afterwards, as a worker that failed to claim meanwhile has gone on to other work.
pub struct Vnic {
    /// The port's number.
    pub port: PortId,
    /// Counters of the port.
    pub account: Arc<Counters>,
    /// Of the guest's memory that is mapped.
    memory: Account,
    /// Of mapping it.
    mapping: Mutex<Pace>,
    /// What calls of its driver cost.
    pub(crate) call_cost: Arc<CallCost>,
    /// From the guest; `None` while the ring is stopped.
    pub transmit: Claim<Option<TransmitSide>>,
    /// To the guest.
    pub receive: Claim<ReceiveSide>,
    inbox: Arc<Queue<Shared<Packet>>>,
    /// [`RECEIVES`] alone if it can receive.
    open: AtomicU8,
    /// The transmit ring runs.
    transmitting: AtomicBool,
    /// The connection is being ended, and the thread that does so waits.
    ending: AtomicBool,
    /// Nothing can be queued because the receiver stalls.
    stalled: AtomicBool,
    mtu: AtomicU16,
    features: AtomicU64,
    broken: Mutex<Option<String>>,
    pub(crate) shortfalls: Shortfalls,
}

impl fmt::Debug for Vnic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vnic(port {})", self.port)
    }
}

impl Vnic {
    /// An interface without a guest.
    pub fn new(port: PortId, mtu: u16) -> Vnic {
        let (inbox, receiver) = Queue::new(INBOX);
        let account = Arc::new(Counters::default());
        Vnic {
            port,
            transmit: Claim::new(None),
            receive: Claim::new(ReceiveSide::new(receiver, account.clone())),
            account,
            memory: Account::default(),
            mapping: Mutex::new(Pace::new(&LONG_WORK, FORGIVEN_MAPPING)),
            call_cost: Arc::default(),
            inbox,
            open: AtomicU8::new(0),
            transmitting: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            mtu: AtomicU16::new(mtu),
            features: AtomicU64::new(0),
            broken: Mutex::new(None),
            shortfalls: Shortfalls::default(),
        }
    }

    /// Whether the guest can receive: its receive ring runs, and the port was not taken down.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) == RECEIVES
    }

    /// Why the guest cannot receive.
    #[cold]
    fn why_closed(&self) -> DropReason {
        if self.is_disabled() {
            DropReason::PortDisabled
        } else {
            DropReason::PortDown
        }
    }

    /// Whether the port was taken down.
    #[inline]
    pub fn is_disabled(&self) -> bool {
        self.open.load(Ordering::Relaxed) & DISABLED != 0
    }

    /// Takes the port down, or up again: packets for it are refused meanwhile. The guest does not notice.
    pub fn set_disabled(&self, disabled: bool) {
        self.set_open(DISABLED, disabled);
    }

    fn set_open(&self, bit: u8, set: bool) {
        if set {
            self.open.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.open.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Appends to the internal receive queue. The caller then claims `receive`, or leaves its mark on it.
    #[inline]
    pub fn enqueue(&self, packet: Shared<Packet>) -> Result<(), Refused> {
        if !self.is_open() {
            return Err((self.why_closed(), packet));
        }
        if self.stalled.load(Ordering::Relaxed) {
            return Err((DropReason::ReceiverStalled, packet));
        }
        let queued = if packet.account.lender.has_many() {
            self.inbox.push_below(INBOX_OF_MANY, packet)
        } else {
            self.inbox.push(packet)
        };
        queued.map_err(|packet| (DropReason::QueueFull, packet))
    }

    /// Appends a mirror's copy; false if there are others enough. The caller goes on as after
    /// [`enqueue`](Self::enqueue).
    pub fn enqueue_copy(&self, copy: Shared<Packet>) -> bool {
        self.is_open() && !self.is_stalled() && self.inbox.push_below(INBOX_OF_COPIES, copy).is_ok()
    }

    /// The reason for which this packet would not arrive, if one is known without reading the ring.
    pub fn would_refuse(&self, packet: &Packet) -> Option<DropReason> {
        if !self.is_open() {
            Some(self.why_closed())
        } else if self.is_stalled() {
            Some(DropReason::ReceiverStalled)
        } else if packet.offload.l3_len(&packet.layers, packet.frame_len()) > usize::from(self.mtu()) {
            Some(DropReason::ExceedsMtu)
        } else {
            None
        }
    }

    /// Has a ring that stops not wait for packets under way, as a thread on which others depend waits for its
    /// session.
    pub fn set_ending(&self, ending: bool) {
        self.ending.store(ending, Ordering::Relaxed);
    }

    /// Maps a region of the guest's memory, after the pauses that the port owes for regions that took long;
    /// `None` if the connection is ended meanwhile.
    pub(crate) fn map(
        &self,
        map: impl FnOnce(&Account) -> Result<Region, MapError>,
    ) -> Option<Result<Region, MapError>> {
        while let Err(us) = self.mapping().begin(cpu::now_us()) {
            if self.is_ending() {
                return None;
            }
            std::thread::sleep(Duration::from_micros(us.min(MAPPING_NAP_US)));
        }
        let mapped = map(&self.memory);
        if let Ok(region) = &mapped {
            let took_us = u64::try_from(region.took().as_micros()).unwrap_or(u64::MAX);
            self.mapping().end(took_us, cpu::now_us());
        }
        Some(mapped)
    }

    fn mapping(&self) -> MutexGuard<'_, Pace> {
        self.mapping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Makes [`enqueue`](Self::enqueue) refuse, or accept again.
    pub fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    /// Whether the receiver is known to stall.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Largest IP packet the guest takes.
    pub fn mtu(&self) -> u16 {
        self.mtu.load(Ordering::Relaxed)
    }

    /// Changes the largest IP packet. The caller then has a worker serve the port.
    pub fn set_mtu(&self, mtu: u16) {
        self.mtu.store(mtu, Ordering::Relaxed);
        self.receive.claim_blocking().with(|side| side.set_mtu(mtu));
    }

    /// Feature bits the driver accepted.
    pub fn features(&self) -> u64 {
        self.features.load(Ordering::Relaxed)
    }

    pub(crate) fn set_features(&self, features: u64) {
        self.features.store(features, Ordering::Relaxed);
    }

    /// The guest's error for which its rings were stopped, if any.
    pub fn broken(&self) -> Option<String> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What its VMM wants and the port does not have, and what to do, for users.
    pub fn shortfall(&self) -> Option<String> {
        self.shortfalls.text()
    }

    /// Notes that a ring was stopped, or cannot be started, for `error`, until the guest starts anew.
    pub fn set_broken<E: fmt::Display>(&self, error: Option<E>) {
        *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = error.map(|error| error.to_string());
    }

    /// Stops both rings at once because of `error`, from the side that found it.
    pub fn break_down(&self, error: &QueueError) {
        telemetry::limited_by!(
            self.port.0,
            log::Level::Warn,
            "port {}: stopped: {error}",
            self.port
        );
        self.set_broken(Some(error));
        self.set_open(RECEIVES, false);
        self.transmitting.store(false, Ordering::Relaxed);
    }

    pub(crate) fn start_transmit(&self, setup: RingSetup) -> Result<(), QueueError> {
        let side = TransmitSide::new(setup, self.port, self.account.clone())?;
        self.transmit
            .claim_blocking()
            .with(|transmit| *transmit = Some(side));
        self.transmitting.store(true, Ordering::Relaxed);
        // Both were closed if the other ring was the malformed one.
        let receiving = self.receive.claim_blocking().with(|side| side.is_running());
        self.set_open(RECEIVES, receiving);
        Ok(())
    }

    pub(crate) fn start_receive(&self, setup: RingSetup) -> Result<(), QueueError> {
        self.receive
            .claim_blocking()
            .with(|side| side.start(setup, self.mtu()))?;
        self.set_stalled(false);
        self.set_open(RECEIVES, true);
        let transmitting = self.transmit.claim_blocking().with(|side| side.is_some());
        self.transmitting.store(transmitting, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the transmit ring; `None` if it did not run, else its base. Waits, at most `patience_ms`, for
    /// packets under way to come back, so that the guest gets all its chains.
    pub(crate) fn stop_transmit(&self, patience_ms: u32) -> Option<u16> {
        let base = self
            .claim_drained(patience_ms)
            .with(|transmit| {
                // The guest would wait for ever for a call that is put off for a worker that finds no ring.
                transmit.iter_mut().for_each(TransmitSide::call_if_owed);
                transmit.take()
            })
            .map(|side| side.base());
        self.transmitting.store(false, Ordering::Relaxed);
        base
    }

    /// Claims the transmit side when its packets under way have come back, or when the time is up. It fetches
    /// no more.
    fn claim_drained(&self, patience_ms: u32) -> Guard<'_, Option<TransmitSide>> {
        let mut left_ms = patience_ms;
        loop {
            let mut guard = self.transmit.claim_blocking();
            let drained = guard.with(|transmit| transmit.as_mut().is_none_or(TransmitSide::drain));
            if drained || left_ms == 0 || self.is_ending() {
                return guard;
            }
            drop(guard);
            std::thread::sleep(Duration::from_millis(1));
            left_ms -= 1;
        }
    }

    /// Ends the receive ring; `None` if it did not run, else its base. Queued packets are dropped by the next
    /// worker that looks.
    pub(crate) fn stop_receive(&self) -> Option<u16> {
        self.set_open(RECEIVES, false);
        self.receive.claim_blocking().with(ReceiveSide::stop)
    }

    pub(crate) fn set_call(&self, transmit: bool, call: Call) {
        if transmit {
            self.transmit
                .claim_blocking()
                .with(|side| side.iter_mut().for_each(|side| side.set_call(call.clone())));
        } else {
            self.receive.claim_blocking().with(|side| side.set_call(call));
        }
        self.call_cost
            .waiting
            .forget(if transmit { TRANSMIT_QUEUE } else { RECEIVE_QUEUE });
    }

    /// Goes on with other memory. Waits, at most `patience_ms`, for packets under way to come back: the
    /// chains of those that do not are the guest's loss. After an error the rings must be stopped.
    pub(crate) fn move_to(&self, memory: &Arc<GuestMemory>, patience_ms: u32) -> Result<(), QueueError> {
        self.claim_drained(patience_ms)
            .with(|side| side.as_mut().map_or(Ok(()), |side| side.move_to(memory.clone())))?;
        self.receive
            .claim_blocking()
            .with(|side| side.move_to(memory.clone()))
    }

    /// How long the last call of its driver took, in nanoseconds of processor time, if calls cost so much
    /// that a thread of their own makes them.
    pub fn costly_call_ns(&self) -> Option<u64> {
        self.call_cost.apart_ns()
    }

    /// Whether both rings run.
    pub fn is_running(&self) -> bool {
        self.open.load(Ordering::Relaxed) & RECEIVES != 0 && self.transmitting.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Source;

    /// While no worker serves the receive side, so that all packets lie in the internal receive queue.
    #[test]
    fn senders_of_many_packets_leave_room_for_those_of_few() {
        let vnic = Vnic::new(PortId(9), 1500);
        vnic.set_open(RECEIVES, true);
        let mut many = Source::new(1);
        many.account.lender.set_under_way(crate::BURST + 1);
        let enqueue = |source: &mut Source| vnic.enqueue(source.packet(&[2; 60]).share());
        for _ in 0..INBOX_OF_MANY {
            enqueue(&mut many).unwrap();
        }
        for _ in 0..10 {
            let (reason, _) = enqueue(&mut many).unwrap_err();
            assert_eq!(reason, DropReason::QueueFull);
        }
        let mut few = Source::new(2);
        few.account.lender.set_under_way(crate::BURST);
        for _ in INBOX_OF_MANY..INBOX {
            enqueue(&mut few).unwrap();
        }
        let (reason, _) = enqueue(&mut few).unwrap_err();
        assert_eq!(reason, DropReason::QueueFull, "it is bounded");
    }
}
