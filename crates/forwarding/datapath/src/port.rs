//! A port: its guest interface, flows, misses and copies, its place among executors, and the peer at its
//! other end.

use crate::copies::Copies;
use crate::miss::MissQueue;
use crate::notices::Notices;
use crate::peer::Peer;
use crate::refusal::Refusal;
use accelerator::Queue;
use classifier::{MegaflowTable, PortFlows, Rules};
use control_protocol::Channel;
use control_protocol::data_plane::{
    CaptureDirection, Connection, Costly, GuestState, PortInfo, PortSpec, PortState,
};
use flow::{DropReason, Filters, Mirror, PortId, PortRates, RateClass, SwitchId};
use pacing::TokenBucket;
use parking_lot::{Mutex, MutexGuard};
use rustix::fd::BorrowedFd;
use scheduler::{Executor, ForwardingThreads, Home, RingId};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use vm_state::{Slot, ThreadState};
use vnic::{ArrivalQueue, Counters, DeviceConfig, Host, Mark, Packet, QueueCounts, RECEIVE_QUEUE, Vnic};

/// Packets of a port per second whose headers are looked for behind their heads: each costs an allocation and
/// a copy of up to 4 KiB.
const DEEP_HEADERS_PER_SECOND: u32 = 20_000;

/// Answers to rejected packets of a port per second, as many as the kernel's ICMP errors at most
/// (`icmp_msgs_per_sec`).
const ANSWERS_PER_SECOND: u32 = 1000;

/// In [`Port::held_back`]: bandwidths.
const RATES: u8 = 1;
/// In [`Port::held_back`]: rates of classes.
const CLASSES: u8 = 2;

/// A switch's flow table.
pub(crate) struct Switch {
    pub id: SwitchId,
    /// For changes. Look-ups go through [`Port::flows`].
    pub flows: Mutex<MegaflowTable>,
}

/// The parts of a port's specification that are kept nowhere else, and never change.
struct Properties {
    name: Box<str>,
    connection: Connection,
    mac: Option<[u8; 6]>,
    masked_features: u64,
}

/// Parts that most ports never need.
#[derive(Default)]
struct Rare {
    copies: Copies,
    queue: Mutex<Option<Arc<QueueCounts>>>,
    arrivals: Mutex<Option<ArrivalQueue>>,
    bounds: Mutex<Bounds>,
}

/// Costly work for packets of a port that may still be done.
struct Bounds {
    /// Headers copied from behind packets' heads.
    header_copies: TokenBucket,
    /// Answers to rejected packets.
    answers: TokenBucket,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            header_copies: TokenBucket::new(DEEP_HEADERS_PER_SECOND, DEEP_HEADERS_PER_SECOND),
            answers: TokenBucket::new(ANSWERS_PER_SECOND, ANSWERS_PER_SECOND),
        }
    }
}

/// A port of the data plane.
pub(crate) struct Port {
    pub vnic: Arc<Vnic>,
    pub switch: Arc<Switch>,
    /// Flows of the switch that are for this port's packets.
    pub flows: PortFlows,
    pub misses: MissQueue,
    /// A capture or mirror copies packets of the port.
    is_copied: AtomicBool,
    has_queue: AtomicBool,
    /// What holds its packets back: [`RATES`], [`CLASSES`].
    held_back: AtomicU8,
    rare: OnceLock<Box<Rare>>,
    pub home: Home,
    pub peer: Arc<Peer>,
    properties: Properties,
    /// Of [`PortSpec`], as changed last.
    miss_rate: AtomicU32,
    shared: Arc<ForwardingThreads>,
    pub notices: Arc<Notices>,
}

impl Port {
    /// A port that is in no table yet. Fails if it needs an executor and there are no descriptors left.
    pub fn new(
        spec: PortSpec,
        switch: Arc<Switch>,
        shared: Arc<ForwardingThreads>,
        notices: Arc<Notices>,
        account: Arc<Counters>,
    ) -> std::io::Result<Arc<Port>> {
        let own = if shared.placement.has_threads() {
            Some(Arc::new(Executor::new()?))
        } else {
            None
        };
        let flows = switch.flows.lock().port(spec.port);
        let vnic = Arc::new(Vnic::new(spec.port, spec.mtu, account));
        let config = DeviceConfig {
            mac: spec.mac,
            masked_features: spec.masked_features,
            trusted: matches!(spec.connection, Connection::Driver | Connection::Veth),
        };
        Ok(Arc::new(Port {
            peer: Peer::new(vnic.clone(), config),
            vnic,
            switch,
            flows,
            misses: MissQueue::new(spec.miss_rate),
            is_copied: AtomicBool::new(false),
            has_queue: AtomicBool::new(false),
            held_back: AtomicU8::new(0),
            rare: OnceLock::new(),
            home: Home::new(placement::VnicId(spec.port.0), own),
            properties: Properties {
                name: spec.name.into(),
                connection: spec.connection,
                mac: spec.mac,
                masked_features: spec.masked_features,
            },
            miss_rate: AtomicU32::new(spec.miss_rate),
            shared,
            notices,
        }))
    }

    pub fn id(&self) -> PortId {
        self.vnic.port
    }

    /// The number of its receive ring.
    #[inline]
    pub fn receive_ring(&self) -> RingId {
        RingId::receive(self.home.vnic())
    }

    /// The number of its transmit ring.
    #[inline]
    pub fn transmit_ring(&self) -> RingId {
        RingId::transmit(self.home.vnic())
    }

    /// Changes properties that can change without the guest noticing.
    pub fn set(&self, mtu: u16, miss_rate: u32) {
        self.miss_rate.store(miss_rate, Ordering::Relaxed);
        self.vnic.set_mtu(mtu);
        self.misses.set_rate(miss_rate);
    }

    /// Changes the port's filters. Packets that are looked up afterwards meet them.
    pub fn set_filters(&self, filters: Filters) {
        self.switch.flows.lock().set_filters(self.id(), filters);
    }

    pub fn state(&self) -> PortState {
        if !self.peer.is_connected() {
            PortState::Disconnected
        } else if let Some(text) = self.vnic.broken() {
            PortState::Broken(text)
        } else if self.vnic.is_running() {
            PortState::Running
        } else {
            PortState::Connected
        }
    }

    pub fn connection(&self) -> Connection {
        self.properties.connection
    }

    /// As given, with what was changed since. Where it is bound is not known here.
    fn spec(&self) -> PortSpec {
        let filters = self.switch.flows.lock().filters(self.id());
        let properties = &self.properties;
        PortSpec {
            port: self.id(),
            switch: self.switch.id,
            name: properties.name.to_string(),
            connection: properties.connection,
            mtu: self.vnic.mtu(),
            miss_rate: self.miss_rate.load(Ordering::Relaxed),
            mac: properties.mac,
            masked_features: properties.masked_features,
            filters,
            mirrors: self.mirrors(),
            p4: control_protocol::p4::P4Attachment::default(),
        }
    }

    pub fn info(&self) -> PortInfo {
        PortInfo {
            spec: self.spec(),
            state: self.state(),
            peer: self.peer.pid(),
            shortfall: self.vnic.shortfall(),
            guest: self.guest(),
            features: self.vnic.features(),
            counters: self.vnic.counters(),
            kernel_path: None,
            device_queue: None,
            costly: Costly {
                call_us: self.vnic.costly_call_ns().map(|ns| ns / 1000),
                kick_us: self.home.costly_kick_ns().map(|ns| ns / 1000),
            },
        }
    }

    /// The core whose worker receives its kicks, and how often packets waited for its bandwidth: what its
    /// account does not say.
    pub fn core_and_waits(&self) -> (Option<u16>, u64) {
        let waits = match self.vnic.account.has(Mark::Limited) {
            true => self.vnic.bandwidth_waits(),
            false => 0,
        };
        (self.home.core().map(|core| core.0), waits)
    }

    /// Sets the guest's vCPU threads. When the guest has gone, the control process clears them a moment
    /// later.
    pub fn set_threads(&self, threads: Box<[Slot]>) {
        self.home.set_threads(threads);
    }

    /// The state of the guest, for users.
    fn guest(&self) -> GuestState {
        match self.shared.placement.guest(&self.home) {
            Some(ThreadState::Running(core)) => GuestState::Running(core),
            Some(ThreadState::Runnable(core)) => GuestState::Runnable(core),
            Some(ThreadState::Blocked(core)) => GuestState::Blocked(core),
            Some(ThreadState::Dead | ThreadState::Unknown) | None => GuestState::Unknown,
        }
    }

    /// Accepts VMMs on `listener`, one after the other, until its [`peer`](Self::peer) is stopped.
    pub fn listen(self: &Arc<Self>, listener: UnixListener) -> std::io::Result<()> {
        self.peer.listen(self.clone(), listener)
    }

    /// Serves a connected VMM or driver domain instead of the one before.
    pub fn attach(self: &Arc<Self>, connection: UnixStream) -> std::io::Result<()> {
        self.peer.attach(self.clone(), connection)
    }

    /// Whether it is at the same switch, and so of the same controller: packets never cross to another one.
    #[inline]
    pub fn is_beside(&self, other: &Port) -> bool {
        Arc::ptr_eq(&self.switch, &other.switch)
    }

    /// Whether packets of `sender` may be copied here at once: the port receives, without a bound on its
    /// bandwidth, and no capture or mirror has to see them.
    #[inline]
    pub fn takes_at_once_from(&self, sender: &Port) -> bool {
        self.is_beside(sender) && self.vnic.is_open() && self.vnic.takes_at_once() && !self.is_copied()
    }

    fn rare(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }

    /// Captures and mirrors.
    pub fn copies(&self) -> &Copies {
        &self.rare().copies
    }

    /// Whether the port is a veth pair, which the kernel may forward to.
    pub fn is_veth(&self) -> bool {
        self.properties.connection == Connection::Veth
    }

    /// Whether packets to it may leave by a queue of its device.
    #[inline]
    pub fn has_queue(&self) -> bool {
        self.has_queue.load(Ordering::Relaxed)
    }

    /// Where the queue is by which packets come from its device. Taken by who holds the transmit side, or for
    /// a moment.
    pub fn arrivals(&self) -> MutexGuard<'_, Option<ArrivalQueue>> {
        self.rare().arrivals.lock()
    }

    /// What its device's queue has counted, if it has one.
    pub fn queue_counts(&self) -> Option<Arc<QueueCounts>> {
        self.rare.get()?.queue.lock().clone()
    }

    /// Has packets to the port leave by a queue of its device, or no longer.
    pub fn set_queue(&self, queue: Option<Box<dyn Queue>>) {
        if queue.is_none() && self.rare.get().is_none() {
            return;
        }
        let counts = Arc::new(QueueCounts::default());
        let mut shown = self.rare().queue.lock();
        *shown = queue.is_some().then(|| counts.clone());
        self.has_queue.store(queue.is_some(), Ordering::Relaxed);
        self.vnic.set_queue(queue, &counts);
    }

    /// Whether the port's bandwidth is limited.
    pub fn is_held_back(&self) -> bool {
        self.held_back.load(Ordering::Relaxed) != 0
    }

    /// Limits the port's bandwidth, or no longer.
    pub fn set_rates(&self, rates: PortRates) {
        self.hold_back(RATES, rates.from.is_some() || rates.to.is_some());
        self.vnic.set_rates(rates);
    }

    /// Limits classes of packets to the guest.
    pub fn set_classes(&self, classes: &[RateClass]) {
        self.hold_back(CLASSES, !classes.is_empty());
        self.vnic.set_classes(classes);
    }

    /// The executor that receives its kicks from now on.
    pub fn first_executor(&self) -> Arc<Executor> {
        self.vnic.account.mark(Mark::Served);
        self.shared.placement.executor_of(&self.home)
    }

    fn hold_back(&self, by: u8, is_so: bool) {
        if is_so {
            self.held_back.fetch_or(by, Ordering::Relaxed);
        } else {
            self.held_back.fetch_and(!by, Ordering::Relaxed);
        }
    }

    /// Whether a capture or mirror copies packets of the port.
    #[inline]
    pub fn is_copied(&self) -> bool {
        self.is_copied.load(Ordering::Relaxed)
    }

    fn set_copied(&self, is_copied: bool) {
        self.is_copied.store(is_copied, Ordering::Release);
    }

    /// Adds a capture; errors when there are too many.
    pub fn capture(&self, channel: Channel, snap_length: u32) -> Result<(), Refusal> {
        self.copies().capture(channel, snap_length)?;
        self.set_copied(true);
        Ok(())
    }

    /// Puts mirrors in the place of those that there are. Packets that are forwarded afterwards meet them.
    pub fn set_mirrors(&self, mirrors: Vec<Mirror>, rules: &Arc<Rules>) {
        if !mirrors.is_empty() || self.is_copied() {
            self.copies()
                .set_mirrors(mirrors, rules, |are_made| self.set_copied(are_made));
        }
    }

    /// The mirrors as they were given.
    fn mirrors(&self) -> Vec<Mirror> {
        if self.is_copied() {
            self.copies().mirrors.read().all.to_vec()
        } else {
            Vec::new()
        }
    }

    /// Sends a copy of a packet to all captures.
    #[cold]
    pub fn record(&self, packet: &Packet, direction: CaptureDirection, dropped: Option<DropReason>) {
        self.copies().record(packet, direction, dropped, |are_made| {
            self.set_copied(are_made);
            if self.is_veth() && !are_made {
                self.notices.uncopied(self.id());
            }
        });
    }

    /// Whether the headers of one more packet may be copied from behind its head.
    pub fn admit_header_copy(&self, now_ms: u64) -> bool {
        let now = Duration::from_millis(now_ms);
        self.rare().bounds.lock().header_copies.take(now)
    }

    /// Whether one more rejected packet may be answered.
    pub fn admit_answer(&self, now_ms: u64) -> bool {
        let now = Duration::from_millis(now_ms);
        self.rare().bounds.lock().answers.take(now)
    }

    /// Stops serving a guest that broke the rules, until it sets its rings up again.
    pub fn break_down(&self, error: &vnic::QueueError) {
        self.vnic.break_down(error);
        self.schedule();
        self.changed();
    }

    /// Where a virtqueue is among its rings.
    fn ring_of(queue: usize) -> u32 {
        u32::from(queue != RECEIVE_QUEUE)
    }
}

impl Host for Port {
    fn watch(&self, queue: usize, kick: BorrowedFd<'_>) -> std::io::Result<()> {
        self.home
            .watch(Port::ring_of(queue), kick, || self.first_executor())
    }

    fn unwatch(&self, queue: usize) {
        self.home.unwatch(Port::ring_of(queue));
    }

    fn schedule(&self) {
        self.home.post(|| self.first_executor());
    }

    fn changed(&self) {
        self.notices.changed(self.id());
    }
}
