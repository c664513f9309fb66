//! A port's guest interface, as workers and the vhost-user session share it.

use crate::call_cost::CallCost;
use crate::pause::{Forgiven, LONG_WORK, Pace};
use crate::receive::{QueueCounts, ReceiveSide, Wait};
use crate::shortfall::Shortfalls;
use crate::transmit::{RingSetup, SendLimit, TransmitSide};
use crate::{Call, Counters, Mark, Packet};
use flow::{DropReason, PortCounters, PortId, PortRates, RateClass};
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
/// In [`Vnic::diverted`]: a program is the port's forwarder.
const PROGRAMMED: u8 = 4;
/// In [`Vnic::diverted`]: programs see packets before the port's forwarder.
const STAGED: u8 = 8;

/// In [`Vnic::diverted`]: packets come by a queue of the device besides.
const QUEUED: u8 = 16;

/// In [`Vnic::detour`]: nothing can be queued because the receiver stalls.
const STALLED: u16 = 1;
/// The bandwidth of the receiver is bounded, so everything is queued.
const LIMITED: u16 = 2;
/// Behind these bits is the number of packets that wait for the receiver.
const WAITING: u32 = 2;

/// What few ports have.
#[derive(Default)]
struct Rare {
    broken: Option<Box<str>>,
    limits: Option<Box<Limits>>,
}

/// Bandwidths.
#[derive(Default)]
struct Limits {
    from: Option<Arc<SendLimit>>,
    /// How often packets for the guest began to wait.
    waits_to: Arc<AtomicU64>,
}

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
    /// Reasons for which packets of the guest are not looked up: [`DISABLED`], [`PROGRAMMED`],
    /// [`STAGED`]; or for which the ring alone does not have them: [`QUEUED`]; none, mostly.
    diverted: AtomicU8,
    /// The transmit ring runs.
    transmitting: AtomicBool,
    /// The connection is being ended, and the thread that does so waits.
    ending: AtomicBool,
    /// Why nothing is copied to the receiver at once: [`STALLED`], [`LIMITED`]; and what [waits](WAITING).
    detour: AtomicU16,
    mtu: AtomicU16,
    features: AtomicU64,
    rare: Mutex<Rare>,
    pub(crate) shortfalls: Shortfalls,
}

impl Rare {
    /// Changes the limits; returns that of packets from the guest, and the counter for those to it.
    fn set_rates(&mut self, rates: PortRates) -> (Option<Arc<SendLimit>>, Arc<AtomicU64>) {
        if (rates.from, rates.to) == (None, None) && self.limits.is_none() {
            return Default::default();
        }
        let limits = self.limits.get_or_insert_default();
        match (rates.from, &limits.from) {
            (Some(limit), Some(state)) => state.set(limit),
            (Some(limit), None) => limits.from = Some(Arc::new(SendLimit::new(limit, cpu::now_ns()))),
            (None, _) => limits.from = None,
        }
        (limits.from.clone(), limits.waits_to.clone())
    }

    fn from(&self) -> Option<Arc<SendLimit>> {
        self.limits.as_ref()?.from.clone()
    }
}

fn set_bit(bits: &AtomicU8, bit: u8, set: bool) {
    if set {
        bits.fetch_or(bit, Ordering::Relaxed);
    } else {
        bits.fetch_and(!bit, Ordering::Relaxed);
    }
}

impl fmt::Debug for Vnic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vnic(port {})", self.port)
    }
}

impl Vnic {
    /// An interface without a guest, which counts in that account.
    pub fn new(port: PortId, mtu: u16, account: Arc<Counters>) -> Vnic {
        let (inbox, receiver) = Queue::new(INBOX);
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
            diverted: AtomicU8::new(0),
            transmitting: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            detour: AtomicU16::new(0),
            mtu: AtomicU16::new(mtu),
            features: AtomicU64::new(0),
            rare: Mutex::default(),
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
        set_bit(&self.diverted, DISABLED, disabled);
    }

    /// Whether packets of the guest are not fetched from its ring and looked up as they come: the port was
    /// taken down, or they meet a program, or come by a queue as well.
    #[inline]
    pub fn is_diverted(&self) -> bool {
        self.diverted.load(Ordering::Relaxed) != 0
    }

    /// Whether packets come by a queue of the device besides.
    #[inline]
    pub fn is_queued(&self) -> bool {
        self.diverted.load(Ordering::Relaxed) & QUEUED != 0
    }

    /// Whether packets are looked up as they come, by a queue or otherwise.
    pub fn is_looked_up(&self) -> bool {
        self.diverted.load(Ordering::Relaxed) & !QUEUED == 0
    }

    /// Has packets come by a queue besides, or no longer.
    pub fn set_queued(&self, queued: bool) {
        if queued {
            self.account.mark(Mark::Queued);
        }
        set_bit(&self.diverted, QUEUED, queued);
    }

    /// Whether a program forwards the guest's packets.
    pub fn is_programmed(&self) -> bool {
        self.diverted.load(Ordering::Relaxed) & PROGRAMMED != 0
    }

    /// Has a program forward the guest's packets, or no longer.
    pub fn set_programmed(&self, programmed: bool) {
        set_bit(&self.diverted, PROGRAMMED, programmed);
    }

    /// Has programs see the guest's packets before they are forwarded, or no longer.
    pub fn set_staged(&self, staged: bool) {
        set_bit(&self.diverted, STAGED, staged);
    }

    fn set_open(&self, bit: u8, set: bool) {
        set_bit(&self.open, bit, set);
    }

    /// Appends to the internal receive queue. The caller then claims `receive`, or leaves its mark on it.
    #[inline]
    pub fn enqueue(&self, packet: Shared<Packet>) -> Result<(), Refused> {
        if !self.is_open() {
            return Err((self.why_closed(), packet));
        }
        if self.is_stalled() {
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

    /// Says what packets for the guest meet, from the receive side's state: [`enqueue`](Self::enqueue)
    /// refuses while the receiver stalls, and nothing is copied at once while its bandwidth is bounded.
    #[inline]
    pub fn set_detour(&self, side: &ReceiveSide) {
        let (stalled, limited) = (side.wait() == Wait::Stalled, side.is_limited());
        let waiting = side.waiting().min(u32::from(u16::MAX >> WAITING)) as u16;
        let detour = (u16::from(stalled) * STALLED) | (u16::from(limited) * LIMITED) | waiting << WAITING;
        if self.detour.load(Ordering::Relaxed) != detour {
            self.detour.store(detour, Ordering::Relaxed);
        }
    }

    /// Whether packets may be copied to the guest without a detour through the queue.
    #[inline]
    pub fn takes_at_once(&self) -> bool {
        self.detour.load(Ordering::Relaxed) & (STALLED | LIMITED) == 0
    }

    /// Packets that wait for the receiver's buffers, its bandwidth or a thread's next turn, as the last turn
    /// left them; 16,383 stands for that many and more.
    pub fn queue_depth(&self) -> u32 {
        (self.detour.load(Ordering::Relaxed) >> WAITING).into()
    }

    /// Whether the receiver is known to stall.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.detour.load(Ordering::Relaxed) & STALLED != 0
    }

    /// Bounds the bandwidth of what the guest sends and receives, or no longer. The caller then has a worker
    /// serve the port.
    pub fn set_rates(&self, rates: PortRates) {
        self.account.lender.set_share(rates.share);
        if rates.from.is_some() || rates.to.is_some() {
            self.account.mark(Mark::Limited);
        }
        let (from, waits_to) = self.rare().set_rates(rates);
        self.transmit.claim_blocking().with(|side| {
            if let Some(side) = side {
                side.set_limit(from);
            }
        });
        // Without the claim, a thread that ends a limit at this moment would win.
        let mut receive = self.receive.claim_blocking();
        receive.with(|side| {
            side.set_limit(rates.to, &waits_to);
            self.set_detour(side);
        });
    }

    /// Has packets to the guest, a forwarder of the driver domain, leave by a queue of the device as far as
    /// that takes them, or no longer. The caller then has a worker serve the port.
    pub fn set_queue(&self, queue: Option<Box<dyn accelerator::Queue>>, counts: &Arc<QueueCounts>) {
        self.receive.claim_blocking().with(|side| {
            side.set_queue(queue, counts);
            self.set_detour(side);
        });
    }

    /// Changes the classes of packets to the guest, which are valid, if that bandwidth is bounded. The caller
    /// then has a worker serve the port.
    pub fn set_classes(&self, classes: &[RateClass]) {
        self.receive
            .claim_blocking()
            .with(|side| side.set_classes(classes));
    }

    /// The port's counters now. Not atomic as a whole while packets flow.
    pub fn counters(&self) -> PortCounters {
        PortCounters {
            bandwidth_waits: self.bandwidth_waits(),
            ..self.account.read()
        }
    }

    /// How often packets from or to the port began to wait for its bandwidth; 0 without [`Mark::Limited`].
    pub fn bandwidth_waits(&self) -> u64 {
        self.rare().limits.as_deref().map_or(0, |limits| {
            let from = limits.from.as_ref().map_or(0, |limit| limit.waits());
            from + limits.waits_to.load(Ordering::Relaxed)
        })
    }

    fn rare(&self) -> MutexGuard<'_, Rare> {
        self.rare.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.rare().broken.as_deref().map(str::to_owned)
    }

    /// What its VMM wants and the port does not have, and what to do, for users.
    pub fn shortfall(&self) -> Option<String> {
        self.shortfalls.text()
    }

    /// Notes that a ring was stopped, or cannot be started, for `error`, until the guest starts anew.
    pub fn set_broken<E: fmt::Display>(&self, error: Option<E>) {
        self.rare().broken = error.map(|error| error.to_string().into());
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
        let mut side = TransmitSide::new(setup, self.port, self.account.clone())?;
        self.transmit.claim_blocking().with(|transmit| {
            side.set_limit(self.rare().from());
            *transmit = Some(side);
        });
        self.transmitting.store(true, Ordering::Relaxed);
        // Both were closed if the other ring was the malformed one.
        let receiving = self.receive.claim_blocking().with(|side| side.is_running());
        self.set_open(RECEIVES, receiving);
        Ok(())
    }

    pub(crate) fn start_receive(&self, setup: RingSetup) -> Result<(), QueueError> {
        self.receive.claim_blocking().with(|side| {
            let started = side.start(setup, self.mtu());
            self.set_detour(side);
            started
        })?;
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
        let vnic = Vnic::new(PortId(9), 1500, Arc::default());
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
