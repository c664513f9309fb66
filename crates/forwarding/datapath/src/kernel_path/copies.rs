//! The copies of decisions, by place, key, decision and port. One thread at a time changes them.

use super::held::{Beginning, Held};
use super::way::obstacle;
use crate::port::Port;
use classifier::{Copied, Decision};
use flow::{PortCounters, PortId};
use kernel_path::{ENTRIES, Key, PORTS, Place, State, Table};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Most copies of decisions about packets from one port: others have room left, whatever one sends.
const MOST_OF_PORT: usize = ENTRIES / 8;

/// Length of an Ethernet header.
const HEADER: u32 = 14;

/// Finds a port by its number.
pub(super) type Find<'a> = &'a dyn Fn(PortId) -> Option<&'a Arc<Port>>;

/// A decision that the kernel could carry out.
pub(crate) struct Offer {
    pub key: Key,
    pub to: PortId,
    pub decision: Arc<Decision>,
}

/// State of the copies of a flow or of a port's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Number {
    pub in_force: u32,
    /// Armed, or pausing.
    pub waiting: u32,
}

/// What a port has counted of the kernel path; fields as in [`PortCounters`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathCounts {
    pub packets: u64,
    pub bytes: u64,
    pub withdrawn: u64,
    pub over_share: u64,
    pub no_room: u64,
    pub displaced: u64,
    pub without_gap: u64,
    /// The longest wait for programs of the kernel, when copies of decisions about the port's packets were
    /// withdrawn.
    pub longest_wait: Duration,
}

impl PathCounts {
    /// Adds them to a port's other counters.
    pub fn tell(&self, to: &mut PortCounters) {
        to.kernel_path = self.packets;
        to.kernel_path_bytes = self.bytes;
        to.kernel_path_withdrawn = self.withdrawn;
        to.kernel_path_over_share = self.over_share;
        to.kernel_path_no_room = self.no_room;
        to.kernel_path_displaced = self.displaced;
        to.kernel_path_without_gap = self.without_gap;
    }
}

pub(super) struct Copies {
    table: Table,
    held: HashMap<Place, Held>,
    places: HashMap<Key, Place>,
    /// Places by the address of the decision.
    of_decisions: HashMap<usize, Vec<Place>>,
    of_ports: HashMap<u32, OfPort>,
    /// Copies that are armed, or to be armed.
    armed: HashSet<Place>,
}

/// Copies of decisions about a port's packets.
#[derive(Default)]
struct OfPort {
    from: HashSet<Place>,
    to: HashSet<Place>,
    counts: PathCounts,
}

impl Copies {
    pub fn new(table: Table) -> Copies {
        Copies {
            table,
            held: HashMap::new(),
            places: HashMap::new(),
            of_decisions: HashMap::new(),
            of_ports: HashMap::new(),
            armed: HashSet::new(),
        }
    }

    pub fn are_armed(&self) -> bool {
        !self.armed.is_empty()
    }

    /// Copies a decision, unless the kernel cannot carry it out or there is no room.
    pub fn take(&mut self, offer: &Offer, find: Find<'_>, owner: &Arc<dyn Copied>, now_ms: u64) {
        let (from, to) = (find(PortId(offer.key.from)), find(offer.to));
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        let both = [from, to];
        if !from.is_beside(to) || both.iter().any(|port| !port.is_veth() || port.id().0 >= PORTS) {
            return;
        }
        if let Some(place) = self.places.get(&offer.key).copied() {
            let is_same = |held: &Held| Arc::ptr_eq(&held.decision, &offer.decision);
            if self.held.get(&place).is_some_and(is_same) {
                return;
            }
            self.release(&[place], now_ms);
        }
        let Some(place) = self.find_room(&offer.key, now_ms) else {
            return;
        };
        self.insert(place, offer, from, to);
        // One that ends the decision from now on finds the copy; one that was before is found here.
        if !offer.decision.note_copied(owner.clone()) {
            self.release(&[place], now_ms);
        }
    }

    /// A place that is free. If there is none, the port with the most copies among those of the bucket gives
    /// one up, unless this port would have as many then.
    fn find_room(&mut self, key: &Key, now_ms: u64) -> Option<Place> {
        let own = self.of_ports.entry(key.from).or_default();
        let count = own.from.len();
        if count >= MOST_OF_PORT {
            own.counts.over_share += 1;
            return None;
        }
        let places = self.table.places(key);
        if let Some(free) = places.into_iter().find(|place| !self.held.contains_key(place)) {
            return Some(free);
        }
        let count_of = |place: &Place| {
            let held = self.held.get(place)?;
            Some((self.of_ports.get(&held.key.from)?.from.len(), *place))
        };
        let most = places.iter().filter_map(count_of).max_by_key(|(count, _)| *count);
        let Some((_, place)) = most.filter(|(most, _)| *most > count + 1) else {
            self.counts(key.from).no_room += 1;
            return None;
        };
        if let Some(loser) = self.held.get(&place).map(|held| held.key.from) {
            self.counts(loser).displaced += 1;
        }
        self.release(&[place], now_ms);
        Some(place)
    }

    fn counts(&mut self, port: u32) -> &mut PathCounts {
        &mut self.of_ports.entry(port).or_default().counts
    }

    /// Enters a copy, which is to be armed.
    fn insert(&mut self, place: Place, offer: &Offer, from: &Port, to: &Port) {
        let (key, decision) = (offer.key, offer.decision.clone());
        self.table.fill(place, &key, offer.to.0, longest(to));
        self.of_ports.entry(key.from).or_default().from.insert(place);
        self.of_ports.entry(offer.to.0).or_default().to.insert(place);
        let address = Arc::as_ptr(&decision).addr();
        self.of_decisions.entry(address).or_default().push(place);
        let accounts = [from, to].map(|port| port.vnic.account.clone());
        self.places.insert(key, place);
        self.held
            .insert(place, Held::new(key, offer.to, decision, accounts));
        self.armed.insert(place);
    }

    /// Goes on with copies that are armed, or to be armed.
    pub fn go_on(&mut self, find: Find<'_>, now_ms: u64) {
        let armed = std::mem::take(&mut self.armed);
        armed
            .into_iter()
            .for_each(|place| self.adjust(place, find, now_ms));
    }

    /// Has copies of decisions about packets from or to a port be as the port is now.
    pub fn look_at(&mut self, port: PortId, find: Find<'_>, now_ms: u64) {
        let all = self.of_port(port);
        if find(port).is_some() {
            all.into_iter().for_each(|place| self.adjust(place, find, now_ms));
        } else {
            self.release(&all, now_ms);
            self.of_ports.remove(&port.0);
        }
    }

    fn of_port(&self, port: PortId) -> Vec<Place> {
        let own = self.of_ports.get(&port.0).into_iter();
        own.flat_map(|own| own.from.union(&own.to).copied()).collect()
    }

    fn of_decision(&self, decision: &Decision) -> impl Iterator<Item = Place> {
        let all = self.of_decisions.get(&std::ptr::from_ref(decision).addr());
        all.into_iter().flatten().copied()
    }

    /// Has a copy be as its ports are now.
    fn adjust(&mut self, place: Place, find: Find<'_>, now_ms: u64) {
        let Some(held) = self.held.get_mut(&place) else {
            return;
        };
        let (from, to) = (find(PortId(held.key.from)), find(held.to));
        let (Some(from), Some(to)) = (from, to) else {
            return self.release(&[place], now_ms);
        };
        let (is_free, longest) = (obstacle(from, to).is_none(), longest(to));
        let goes_on = is_free && self.table.longest(place) == longest;
        let is_armed = match self.table.state(place) {
            State::Withdrawn if is_free => {
                self.table.set_longest(place, longest);
                self.table.arm(place);
                held.on_armed(now_ms);
                true
            }
            State::Withdrawn => false,
            State::Armed(frames) if goes_on => !self.begin(place, frames, now_ms),
            State::Live if goes_on => false,
            State::Armed(_) | State::Live => {
                self.pause(place, now_ms);
                // Armed in the next step, if it was for the length alone.
                is_free
            }
        };
        match is_armed {
            true => self.armed.insert(place),
            false => self.armed.remove(&place),
        };
    }

    /// Has an armed copy come in force, if it may. Whether it is.
    fn begin(&mut self, place: Place, frames: u64, now_ms: u64) -> bool {
        let Some(held) = self.held.get_mut(&place) else {
            return false;
        };
        let beginning = held.begin(frames, now_ms);
        if beginning == Beginning::NotYet || !self.table.make_live(place, frames) {
            return false;
        }
        if beginning == Beginning::WithoutGap {
            let from = held.key.from;
            self.counts(from).without_gap += 1;
        }
        true
    }

    /// Has packets go through the data plane.
    fn pause(&mut self, place: Place, now_ms: u64) {
        let wait = self.table.withdraw(&[place]);
        self.on_withdrawn(place, wait, now_ms);
    }

    /// Counts what is final now.
    fn on_withdrawn(&mut self, place: Place, wait: Duration, now_ms: u64) {
        self.tell(place, now_ms);
        if let Some(from) = self.held.get(&place).map(|held| held.key.from) {
            let counts = self.counts(from);
            counts.withdrawn += 1;
            counts.longest_wait = counts.longest_wait.max(wait);
        }
    }

    /// Tells flow and ports of what a copy has counted.
    fn tell(&mut self, place: Place, now_ms: u64) {
        let Some(held) = self.held.get_mut(&place) else {
            return;
        };
        let [packets, bytes] = held.tell(self.table.counts(place), now_ms);
        if packets > 0 {
            let from = held.key.from;
            let counts = self.counts(from);
            counts.packets += packets;
            counts.bytes += bytes;
        }
    }

    /// Ends the copies of a decision: nobody uses them when this returns.
    pub fn withdraw(&mut self, decision: &Decision, now_ms: u64) {
        let all: Vec<Place> = self.of_decision(decision).collect();
        self.release(&all, now_ms);
    }

    /// Ends copies: nobody uses them when this returns, and their counts are told.
    fn release(&mut self, places: &[Place], now_ms: u64) {
        let wait = self.table.withdraw(places);
        for place in places {
            self.on_withdrawn(*place, wait, now_ms);
            if let Some(held) = self.held.remove(place) {
                self.forget(&held, *place);
            }
        }
    }

    /// Has a copy that ends be counted nowhere.
    fn forget(&mut self, held: &Held, place: Place) {
        self.places.remove(&held.key);
        self.armed.remove(&place);
        let decision = Arc::as_ptr(&held.decision).addr();
        if let Entry::Occupied(mut all) = self.of_decisions.entry(decision) {
            all.get_mut().retain(|other| *other != place);
            if all.get().is_empty() {
                all.remove();
            }
        }
        // Ports go with their counts, when they are deleted.
        if let Some(own) = self.of_ports.get_mut(&held.key.from) {
            own.from.remove(&place);
        }
        if let Some(own) = self.of_ports.get_mut(&held.to.0) {
            own.to.remove(&place);
        }
    }
}

/// What is asked.
impl Copies {
    pub fn flush_all(&mut self, now_ms: u64) {
        self.tell_all(self.held.keys().copied().collect(), now_ms);
    }

    pub fn flush_port(&mut self, port: PortId, now_ms: u64) {
        self.tell_all(self.of_port(port), now_ms);
    }

    pub fn flush_decision(&mut self, decision: &Decision, now_ms: u64) {
        self.tell_all(self.of_decision(decision).collect(), now_ms);
    }

    fn tell_all(&mut self, places: Vec<Place>, now_ms: u64) {
        places.into_iter().for_each(|place| self.tell(place, now_ms));
    }

    pub fn number_from(&self, port: PortId) -> Number {
        let own = self.of_ports.get(&port.0).into_iter();
        self.number(own.flat_map(|own| own.from.iter().copied()))
    }

    pub fn number_of(&self, decision: &Decision) -> Number {
        self.number(self.of_decision(decision))
    }

    fn number(&self, places: impl Iterator<Item = Place>) -> Number {
        places.fold(Number::default(), |number, place| match self.table.state(place) {
            State::Live => Number {
                in_force: number.in_force + 1,
                ..number
            },
            State::Withdrawn | State::Armed(_) => Number {
                waiting: number.waiting + 1,
                ..number
            },
        })
    }

    pub fn of_key(&self, key: &Key) -> Option<(bool, u32)> {
        let place = *self.places.get(key)?;
        Some((self.table.state(place) == State::Live, self.table.longest(place)))
    }

    pub fn all_counts(&self) -> HashMap<u32, PathCounts> {
        let all = self.of_ports.iter();
        all.map(|(port, own)| (*port, own.counts)).collect()
    }

    pub fn counts_of(&self, port: PortId) -> PathCounts {
        let own = self.of_ports.get(&port.0);
        own.map_or_else(PathCounts::default, |own| own.counts)
    }
}

/// Bytes of the longest frame that a port takes.
fn longest(to: &Port) -> u32 {
    u32::from(to.vnic.mtu()) + HEADER
}
