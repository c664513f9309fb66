//! Decisions that the kernel carries out: copies of them in the table of crate `kernel-path`.
//!
//! A worker offers a decision when it walks for a packet: one output without changes, made by one flow, at a
//! port whose look-ups compare nothing but Ethernet addresses. The channel thread takes the offer: both ports
//! are veth pairs of one switch. As long as nothing has to see the packets of either port (a capture, a
//! mirror, a bandwidth, a P4 program), the copy is in force; otherwise it *pauses*.
//!
//! A copy has the life of its decision: whoever ends the decision withdraws the copy, and goes on when no
//! program in the kernel uses it any more ([`classifier::Copied`]). What pauses a copy is looked at before
//! the request that causes it is answered. So a change that has been answered is obeyed by every packet.
//!
//! | copy | packets go | next |
//! |---|---|---|
//! | pauses | through the data plane | armed, when nothing has to see the packets any more |
//! | armed | through the data plane, and are counted | in force, in a gap of [`GAP_MS`] between packets or after [`LONGEST_MS`] |
//! | in force | from container to container | pauses, or ends |
//!
//! Packets and bytes of a copy are added to its flow and its ports before they are told to a controller, and
//! when the copy pauses or ends. Nothing runs while packets only pass.
//!
//! Safe direction of error: a decision without a copy costs time only.

use crate::port::Port;
use crate::state::Ports;
use classifier::{Copied, Decision};
use flow::PortId;
use kernel_path::{ENTRIES, Key, PORTS, Place, State, Table};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use vnic::Counters;

/// A gap between packets in which a copy comes in force: what came before has left the data plane.
const GAP_MS: u64 = 5;

/// A copy is armed for this long at most. Packets on the way may be overtaken once then.
const LONGEST_MS: u64 = 20;

/// Time between looks at copies that are armed.
const LOOK: Duration = Duration::from_millis(2);

/// Offers that wait for the channel thread.
const MAX_OFFERS: usize = 256;

/// Most copies of decisions about packets from one port: others have room left, whatever one sends.
const MOST_OF_PORT: usize = ENTRIES / 8;

/// Length of an Ethernet header.
const HEADER: u32 = 14;

/// A decision that the kernel could carry out.
pub(crate) struct Offer {
    pub key: Key,
    pub to: PortId,
    pub decision: Arc<Decision>,
}

/// The copies of decisions, and the table that has them.
pub(crate) struct KernelPath {
    offers: Mutex<Vec<Offer>>,
    copies: Mutex<Copies>,
    start_ms: u64,
}

struct Copies {
    table: Table,
    held: HashMap<Place, Held>,
    places: HashMap<Key, Place>,
    /// Places by the address of the decision.
    of_decisions: HashMap<usize, Vec<Place>>,
    /// Number of copies by the port from which packets come.
    of_ports: HashMap<u32, usize>,
    /// Copies that are armed, or to be armed.
    armed: Vec<Place>,
}

/// A copy.
struct Held {
    key: Key,
    to: PortId,
    decision: Arc<Decision>,
    /// Counters of the ports from and to which packets go.
    accounts: [Arc<Counters>; 2],
    /// Packets and bytes that flow and ports have been told of.
    told: [u64; 2],
    /// When it was armed.
    armed_ms: u64,
    /// Packets since, at the last look that saw another number, and its time.
    seen: (u64, u64),
}

impl std::fmt::Debug for KernelPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelPath").finish_non_exhaustive()
    }
}

impl KernelPath {
    /// Copies in this table, which has none. `start_ms` is when the clock of flows began.
    pub fn new(table: Table, start_ms: u64) -> KernelPath {
        KernelPath {
            offers: Mutex::default(),
            copies: Mutex::new(Copies {
                table,
                held: HashMap::new(),
                places: HashMap::new(),
                of_decisions: HashMap::new(),
                of_ports: HashMap::new(),
                armed: Vec::new(),
            }),
            start_ms,
        }
    }

    fn now_ms(&self) -> u64 {
        cpu::tick_ms().saturating_sub(self.start_ms)
    }

    /// Offers a decision; false if there is no room. The channel thread then has to take a turn.
    pub fn offer(&self, offer: Offer) -> bool {
        let mut offers = self.offers.lock();
        let has_room = offers.len() < MAX_OFFERS;
        if has_room {
            offers.push(offer);
        }
        has_room
    }

    /// Takes offers, and goes on with copies that are armed. Returns when to do so again at the latest.
    pub fn step(self: &Arc<Self>, ports: &Ports) -> Option<Duration> {
        let now_ms = self.now_ms();
        let offers = std::mem::take(&mut *self.offers.lock());
        let mut copies = self.copies.lock();
        for offer in offers {
            copies.take(offer, ports, self, now_ms);
        }
        let armed = std::mem::take(&mut copies.armed);
        copies.adjust_all(armed, ports, now_ms);
        (!copies.armed.is_empty()).then_some(LOOK)
    }

    /// Has each copy be as its ports are now.
    pub fn look_at_all(&self, ports: &Ports) {
        let mut copies = self.copies.lock();
        copies.armed.clear();
        let all = copies.held.keys().copied().collect();
        copies.adjust_all(all, ports, self.now_ms());
    }

    /// Adds what the kernel has counted to flows and ports.
    pub fn flush(&self) {
        let now_ms = self.now_ms();
        let copies = &mut *self.copies.lock();
        for (place, held) in &mut copies.held {
            held.tell(copies.table.counts(*place), now_ms);
        }
    }

    /// How many copies a port's packets have: in force, and others.
    pub fn copies_from(&self, port: PortId) -> (u32, u32) {
        let copies = self.copies.lock();
        let own = copies.held.iter().filter(|(_, held)| held.key.from == port.0);
        own.fold((0, 0), |(live, others), (place, _)| {
            match copies.table.state(*place) {
                State::Live => (live + 1, others),
                State::Withdrawn | State::Armed(_) => (live, others + 1),
            }
        })
    }
}

impl Copied for KernelPath {
    fn withdraw(&self, decision: &Decision) {
        let now_ms = self.now_ms();
        let mut copies = self.copies.lock();
        let all = copies.of_decisions.get(&std::ptr::from_ref(decision).addr());
        let all = all.cloned().unwrap_or_default();
        all.into_iter().for_each(|place| copies.release(place, now_ms));
    }
}

impl Copies {
    fn take(&mut self, offer: Offer, ports: &Ports, owner: &Arc<KernelPath>, now_ms: u64) {
        let (from, to) = (ports.get(PortId(offer.key.from)), ports.get(offer.to));
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        if !from.is_veth() || !to.is_veth() || !from.is_beside(to) || offer.to.0 >= PORTS {
            return;
        }
        if let Some(place) = self.places.get(&offer.key).copied() {
            let is_same = |held: &Held| Arc::ptr_eq(&held.decision, &offer.decision);
            if self.held.get(&place).is_some_and(is_same) {
                return;
            }
            self.release(place, now_ms);
        }
        if self
            .of_ports
            .get(&offer.key.from)
            .is_some_and(|own| *own >= MOST_OF_PORT)
        {
            return;
        }
        let is_taken = |place| self.held.contains_key(&place);
        let longest = u32::from(to.vnic.mtu()) + HEADER;
        let Some(place) = self.table.take(&offer.key, offer.to.0, longest, is_taken) else {
            return;
        };
        let accounts = [from.vnic.account.clone(), to.vnic.account.clone()];
        self.insert(place, &offer, accounts, now_ms);
        // One that ends the decision from now on finds the copy; one that was before is found here.
        if !offer.decision.note_copied(owner.clone()) {
            self.release(place, now_ms);
        }
    }

    /// Enters a copy, which is to be armed.
    fn insert(&mut self, place: Place, offer: &Offer, accounts: [Arc<Counters>; 2], now_ms: u64) {
        *self.of_ports.entry(offer.key.from).or_default() += 1;
        let decision = Arc::as_ptr(&offer.decision).addr();
        self.of_decisions.entry(decision).or_default().push(place);
        let held = Held {
            key: offer.key,
            to: offer.to,
            decision: offer.decision.clone(),
            accounts,
            told: [0; 2],
            armed_ms: now_ms,
            seen: (0, now_ms),
        };
        self.places.insert(offer.key, place);
        self.held.insert(place, held);
        self.armed.push(place);
    }

    fn adjust_all(&mut self, places: Vec<Place>, ports: &Ports, now_ms: u64) {
        for place in places {
            if self.adjust(place, ports, now_ms) {
                self.armed.push(place);
            }
        }
    }

    /// Has a copy be as its ports are now. Whether it is armed.
    fn adjust(&mut self, place: Place, ports: &Ports, now_ms: u64) -> bool {
        let Some(held) = self.held.get_mut(&place) else {
            return false;
        };
        let (from, to) = (ports.get(PortId(held.key.from)), ports.get(held.to));
        let (Some(from), Some(to)) = (from, to) else {
            self.release(place, now_ms);
            return false;
        };
        let longest = u32::from(to.vnic.mtu()) + HEADER;
        let goes_on = obstacle(from, to).is_none() && self.table.longest(place) == longest;
        match self.table.state(place) {
            State::Withdrawn if obstacle(from, to).is_none() => {
                self.table.set_longest(place, longest);
                self.table.arm(place);
                (held.armed_ms, held.seen) = (now_ms, (0, now_ms));
                true
            }
            State::Withdrawn => false,
            State::Armed(frames) if goes_on => {
                !held.may_begin(frames, now_ms) || !self.table.make_live(place, frames)
            }
            State::Live if goes_on => false,
            State::Armed(_) | State::Live => {
                self.table.withdraw(place);
                held.tell(self.table.counts(place), now_ms);
                // Armed in the next step, if it was for the length alone.
                obstacle(from, to).is_none()
            }
        }
    }

    /// Ends a copy: nobody uses it when this returns, and its counts are told.
    fn release(&mut self, place: Place, now_ms: u64) {
        self.table.withdraw(place);
        if let Some(mut held) = self.held.remove(&place) {
            held.tell(self.table.counts(place), now_ms);
            self.places.remove(&held.key);
            self.forget(&held, place);
        }
    }
}

impl Copies {
    /// Has a copy that ends be counted nowhere.
    fn forget(&mut self, held: &Held, place: Place) {
        let decision = Arc::as_ptr(&held.decision).addr();
        if let Entry::Occupied(mut all) = self.of_decisions.entry(decision) {
            all.get_mut().retain(|other| *other != place);
            if all.get().is_empty() {
                all.remove();
            }
        }
        if let Entry::Occupied(mut own) = self.of_ports.entry(held.key.from) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

impl Held {
    /// Whether an armed copy may come in force, of which so many packets went through the data plane.
    fn may_begin(&mut self, frames: u64, now_ms: u64) -> bool {
        let (seen, at_ms) = self.seen;
        if frames != seen {
            self.seen = (frames, now_ms);
        }
        let gap_ms = if frames == seen { now_ms - at_ms } else { 0 };
        gap_ms >= GAP_MS || now_ms - self.armed_ms >= LONGEST_MS
    }

    /// Tells flow and ports of what the kernel has counted.
    fn tell(&mut self, counts: [u64; 2], now_ms: u64) {
        let [packets, bytes] = [0, 1].map(|at| counts[at].saturating_sub(self.told[at]));
        self.told = counts;
        if packets == 0 {
            return;
        }
        self.decision.record(packets, bytes, 0, now_ms);
        let [from, to] = &self.accounts;
        from.received.fetch_add(packets, Relaxed);
        from.received_bytes.fetch_add(bytes, Relaxed);
        from.delivered.fetch_add(packets, Relaxed);
        to.transmitted.fetch_add(packets, Relaxed);
        to.transmitted_bytes.fetch_add(bytes, Relaxed);
    }
}

/// Why packets from one port to another have to go through the data plane, if they have.
pub(crate) fn obstacle(from: &Port, to: &Port) -> Option<&'static str> {
    from.obstacle().or_else(|| to.obstacle())
}

impl Port {
    /// Why packets of the port have to go through the data plane, if they have.
    pub fn obstacle(&self) -> Option<&'static str> {
        if self.is_copied() {
            Some("a capture or mirror copies its packets")
        } else if self.vnic.is_diverted() {
            Some("it was taken down, or a P4 program has it")
        } else if self.is_held_back() {
            Some("its bandwidth is limited")
        } else {
            None
        }
    }
}
