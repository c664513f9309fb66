//! Links between P4 switches: a port of one is joined with a port of another one.
//!
//! A packet that a program sends by such a port comes by the other end's port, in the same turn, on the same
//! thread: programs run in sequence, in parallel (copies over several links), or by condition (the port that
//! the first one chooses), and a program that holds the ports stands around one that has links to it alone.
//! Each packet meets one version of each program, since all are of one table.
//!
//! | what could go on | bound |
//! |---|---|
//! | packets circle over links | [`MAX_CROSSINGS`] links for each; further ones are dropped, and counted |
//! | programs copy to links | [`Crossings`] of a turn: what its packets need in sequence, and a burst of copies |
//! | programs pass packets through themselves | spare operations of the turn, which all programs share |
//! | each program may take long | packets taken at a time, by the most operations of all that are joined |
//! | many programs are joined | [`MAX_P4_JOINED`]; a turn needs a lane of each |
//!
//! The lanes of all P4 switches that packets may reach are taken before packets are: no packet is lost since
//! another thread has a lane. They are taken in the order of their numbers, so of two threads that want the
//! same ones, one gets on.

use super::version::{BURST_OPERATIONS, Lane, P4Refused, Version, check_place};
use super::{Bound, P4Key, P4Switch, P4Table};
use control_protocol::p4::{MAX_P4_JOINED, MAX_P4_LINKS, P4Binding};
use flow::ControllerId;
use lock_free::{Guard, Unique};
use p4_interpreter::ReadGuard;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use vnic::{BURST, Packet};

/// Most links that a packet crosses.
pub(super) const MAX_CROSSINGS: u8 = 8;

/// A port of a P4 switch.
pub(super) type Place = (P4Key, u16);

/// Links of all controllers.
#[derive(Clone, Default)]
pub(super) struct Links {
    /// End by end, both ways.
    ends: BTreeMap<Place, Place>,
    /// P4 switches that links join with one, it among them, in order.
    joined: BTreeMap<P4Key, Arc<[P4Key]>>,
}

/// What a turn at a ring of a P4 switch may take, those thought of that packets may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Packets that are taken from a ring at a time.
    pub burst: usize,
    /// How many times as long as one of a usual program the turn may take.
    pub length: u64,
    /// Links that all packets of the turn cross at most.
    crossings: usize,
    /// Operations for further passes and copies.
    spare: u64,
}

/// What a thread holds to run packets at a P4 switch.
pub(super) struct Held<'a> {
    pub key: P4Key,
    pub switch: &'a P4Switch,
    pub lane: Guard<'a, Lane>,
    pub guard: ReadGuard<'a>,
}

/// Packets of a turn on their way over links.
#[derive(Default)]
pub(crate) struct Crossings {
    waiting: VecDeque<Crossing>,
    /// Room for packets that nothing is in.
    rooms: Vec<Vec<Unique<Packet>>>,
    /// Packets that have passed a stage.
    pub passed: Vec<Unique<Packet>>,
    /// Links that packets of the turn may still cross.
    left: usize,
    /// Operations for further passes and copies that are left to the turn.
    pub spare: u64,
}

/// Packets that come by the same port, a burst at most.
struct Crossing {
    to: Place,
    /// Links crossed, this one among them.
    crossed: u8,
    packets: Vec<Unique<Packet>>,
}

impl Links {
    /// Puts a controller's links in the place of those it had.
    fn set(&mut self, controller: ControllerId, links: &[[P4Binding; 2]]) -> Result<(), P4Refused> {
        if links.len() > MAX_P4_LINKS {
            return Err(P4Refused::Links(MAX_P4_LINKS));
        }
        let of_others = self
            .ends
            .iter()
            .filter(|(((owner, _), _), _)| *owner != controller);
        let mut ends: BTreeMap<Place, Place> = of_others.map(|(end, other)| (*end, *other)).collect();
        for link in links {
            link.iter().try_for_each(|end| check_place(*end))?;
            let [a, b] = link.map(|end| ((controller, end.switch), end.port));
            if a == b || ends.insert(a, b).is_some() || ends.insert(b, a).is_some() {
                return Err(P4Refused::LinkedTwice(link[0].switch, link[0].port));
            }
        }
        let joined = joined(&ends);
        if joined.values().any(|joined| joined.len() > MAX_P4_JOINED) {
            return Err(P4Refused::Joined(MAX_P4_JOINED));
        }
        *self = Links { ends, joined };
        Ok(())
    }
}

/// A place as controllers know it.
pub(super) fn binding(((_, switch), port): &Place) -> P4Binding {
    P4Binding {
        switch: *switch,
        port: *port,
    }
}

/// P4 switches with all that links join with each.
fn joined(ends: &BTreeMap<Place, Place>) -> BTreeMap<P4Key, Arc<[P4Key]>> {
    let mut joined = BTreeMap::new();
    for (first, _) in ends.keys() {
        if joined.contains_key(first) {
            continue;
        }
        let (mut found, mut next) = (BTreeSet::from([*first]), vec![*first]);
        while let Some(key) = next.pop() {
            for (other, _) in ends.range((key, 0)..=(key, u16::MAX)).map(|(_, end)| end) {
                if found.insert(*other) {
                    next.push(*other);
                }
            }
        }
        let all: Arc<[P4Key]> = found.iter().copied().collect();
        joined.extend(found.into_iter().map(|key| (key, all.clone())));
    }
    joined
}

impl P4Table {
    /// Puts a controller's links in the place of those it had.
    ///
    /// # Errors
    ///
    /// A port has two links, or there are too many links or P4 switches that are joined; nothing has changed.
    pub fn link(&mut self, controller: ControllerId, links: &[[P4Binding; 2]]) -> Result<(), P4Refused> {
        self.links.set(controller, links)
    }

    /// Where a port's link leads to.
    pub(super) fn link_of(&self, place: Place) -> Option<Place> {
        self.links.ends.get(&place).copied()
    }

    /// P4 switches that links join with one, it among them; none if there is no link.
    pub(super) fn joined_with(&self, key: P4Key) -> &[P4Key] {
        self.links.joined.get(&key).map_or(&[], |joined| joined)
    }

    /// What a turn at a ring of a P4 switch may take, with so many operations of stages before it.
    pub(super) fn bounds(&self, before: u64, key: P4Key, version: &Version) -> Bounds {
        let joined = self.joined_with(key);
        if joined.is_empty() {
            return Bounds::of(before, version.operations, 0);
        }
        let present = joined.iter().filter_map(|key| self.switches.get(key));
        let most = present.map(|switch| switch.version.operations).max();
        Bounds::of(before, most.unwrap_or(version.operations), MAX_CROSSINGS)
    }

    /// Takes what is needed to run packets at a P4 switch, and at those that they may reach.
    pub(super) fn try_hold<'a>(
        &'a self,
        key: P4Key,
        switch: &'a P4Switch,
    ) -> Option<(Held<'a>, Vec<Held<'a>>)> {
        let joined = self.joined_with(key);
        let present = |key: P4Key| Some((key, &**self.switches.get(&key)?));
        // Nothing is allocated where there are no links.
        let before = joined.iter().filter(|other| **other < key);
        let mut others = Vec::new();
        for (key, switch) in before.filter_map(|key| present(*key)) {
            others.push(Held::try_new(key, switch)?);
        }
        let own = Held::try_new(key, switch)?;
        let behind = joined.iter().filter(|other| **other > key);
        for (key, switch) in behind.filter_map(|key| present(*key)) {
            others.push(Held::try_new(key, switch)?);
        }
        Some((own, others))
    }

    /// A port of a P4 switch, as the one by which packets come.
    pub(super) fn at(&self, (key, port): Place) -> Bound<'_> {
        Bound {
            table: self,
            key,
            port,
            is_stage: false,
            switch: self.switches.get(&key).map(|switch| &**switch),
            clients: self.clients.get(&key).map(|clients| &**clients),
        }
    }
}

impl<'a> Held<'a> {
    pub(super) fn try_new(key: P4Key, switch: &'a P4Switch) -> Option<Held<'a>> {
        let (lane, guard) = switch.version.try_lane().zip(switch.version.state.try_read())?;
        Some(Held {
            key,
            switch,
            lane,
            guard,
        })
    }
}

impl Bounds {
    /// For packets that pass stages of so many operations together, and run through programs of so many
    /// each, once and behind each link.
    pub(super) fn of(before: u64, operations: u64, crossings: u8) -> Bounds {
        let each = operations.saturating_mul(u64::from(crossings) + 1);
        let each = each.saturating_add(before).max(1);
        // Most programs need no division, which takes tens of cycles.
        let burst = match BURST_OPERATIONS / BURST as u64 {
            most if each <= most => BURST,
            _ => usize::try_from(BURST_OPERATIONS / each).unwrap_or(BURST).max(1),
        };
        let copies = || usize::try_from(BURST_OPERATIONS / operations.max(1)).unwrap_or(usize::MAX);
        Bounds {
            burst,
            length: (each / BURST_OPERATIONS).max(1),
            spare: BURST_OPERATIONS.max(operations).max(before),
            crossings: match crossings {
                0 => 0,
                crossings => (burst * usize::from(crossings)).saturating_add(copies()),
            },
        }
    }
}

impl Crossing {
    fn is_of(&self, to: Place, crossed: u8) -> bool {
        (self.to, self.crossed) == (to, crossed)
    }
}

impl Crossings {
    /// Begins a turn.
    pub fn begin(&mut self, bounds: &Bounds) {
        self.waiting.clear();
        (self.left, self.spare) = (bounds.crossings, bounds.spare);
    }

    /// Whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Has a packet cross a link behind others that it has crossed.
    ///
    /// # Errors
    ///
    /// The packet, if it may not.
    pub fn add(&mut self, to: Place, crossed: u8, packet: Unique<Packet>) -> Result<(), Unique<Packet>> {
        if crossed >= MAX_CROSSINGS || self.left == 0 {
            return Err(packet);
        }
        self.left -= 1;
        let crossed = crossed + 1;
        // Packets of a kind mostly follow each other. They stay in order: only the last ones' room counts.
        let is_latest = self.waiting.back().is_some_and(|one| one.is_of(to, crossed));
        let latest = if is_latest {
            self.waiting.back_mut()
        } else {
            self.waiting.iter_mut().rfind(|one| one.is_of(to, crossed))
        };
        match latest {
            Some(one) if one.packets.len() < BURST => one.packets.push(packet),
            _ => {
                let mut packets = self.rooms.pop().unwrap_or_default();
                packets.push(packet);
                self.waiting.push_back(Crossing { to, crossed, packets });
            }
        }
        Ok(())
    }

    /// Whether so many packets, which have crossed so many links, may cross a further one.
    pub fn admits(&self, packets: usize, crossed: u8) -> bool {
        crossed < MAX_CROSSINGS && packets <= self.left
    }

    /// Has all packets of a burst, which [may](Self::admits), cross a link behind others.
    pub fn add_all(&mut self, to: Place, crossed: u8, packets: &mut Vec<Unique<Packet>>) {
        self.left = self.left.saturating_sub(packets.len());
        let room = self.rooms.pop().unwrap_or_default();
        self.waiting.push_back(Crossing {
            to,
            crossed: crossed + 1,
            packets: std::mem::replace(packets, room),
        });
    }

    /// Takes packets that come by the same port, a burst at most, in the place of none. Returns that port,
    /// and how many links they have crossed.
    pub fn take(&mut self, packets: &mut Vec<Unique<Packet>>) -> Option<(Place, u8)> {
        let next = self.waiting.pop_front()?;
        let room = std::mem::replace(packets, next.packets);
        if self.rooms.len() < BURST {
            self.rooms.push(room);
        }
        Some((next.to, next.crossed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::P4Id;

    const OWNER: ControllerId = ControllerId::BUILT_IN;

    fn end(switch: u32, port: u16) -> P4Binding {
        P4Binding {
            switch: P4Id(switch),
            port,
        }
    }

    #[test]
    fn links_join_both_ways_and_replace_those_before() {
        let mut table = P4Table::default();
        let links = [
            [end(1, 3), end(2, 1)],
            [end(2, 2), end(3, 1)],
            [end(7, 1), end(7, 2)],
        ];
        table.link(OWNER, &links).unwrap();
        let place = |switch, port| ((OWNER, P4Id(switch)), port);
        assert_eq!(table.link_of(place(1, 3)), Some(place(2, 1)));
        assert_eq!(table.link_of(place(2, 1)), Some(place(1, 3)));
        assert_eq!(table.link_of(place(7, 2)), Some(place(7, 1)), "one with itself");
        let joined = |table: &P4Table, switch| table.joined_with((OWNER, P4Id(switch))).len();
        assert_eq!(
            [1, 2, 3, 4, 7].map(|switch| joined(&table, switch)),
            [3, 3, 3, 0, 1]
        );
        table.link(ControllerId(1), &[[end(1, 1), end(2, 1)]]).unwrap();
        table.link(OWNER, &links[1..2]).unwrap();
        assert_eq!([1, 2, 3].map(|switch| joined(&table, switch)), [0, 2, 2]);
        assert!(
            table.link_of(((ControllerId(1), P4Id(1)), 1)).is_some(),
            "of another controller"
        );
    }

    #[test]
    fn links_that_cannot_be_are_refused_and_change_nothing() {
        let mut table = P4Table::default();
        table.link(OWNER, &[[end(1, 3), end(2, 1)]]).unwrap();
        for (links, wanted) in [
            (vec![[end(1, 1), end(1, 1)]], "two links"),
            (vec![[end(1, 1), end(2, 1)], [end(3, 1), end(2, 1)]], "two links"),
            (vec![[end(1, 1), end(2, 511)]], "no port of a P4 switch"),
            (
                (0..16).map(|one| [end(one, 1), end(one + 1, 2)]).collect(),
                "16 P4 switches",
            ),
            (vec![[end(1, 1), end(2, 1)]; MAX_P4_LINKS + 1], "256 links"),
        ] {
            let refused = table.link(OWNER, &links).unwrap_err().to_string();
            assert!(refused.contains(wanted), "{refused}");
            assert!(table.link_of(((OWNER, P4Id(1)), 3)).is_some());
        }
        let most: Vec<_> = (0..15).map(|one| [end(one, 1), end(one + 1, 2)]).collect();
        table.link(OWNER, &most).unwrap();
    }

    #[test]
    fn all_runs_of_a_turn_take_the_operations_of_a_burst() {
        for operations in [0, 100, 300, 2_000, 7_000, 32_768, 1_000_000] {
            let alone = Bounds::of(0, operations, 0);
            let linked = Bounds::of(0, operations, MAX_CROSSINGS);
            let runs = linked.burst as u64 * (u64::from(MAX_CROSSINGS) + 1);
            assert!(
                runs * operations <= BURST_OPERATIONS * (linked.length + 1),
                "{operations}"
            );
            assert!(linked.burst <= alone.burst && linked.length >= alone.length);
            assert!(linked.crossings >= linked.burst * usize::from(MAX_CROSSINGS));
            let copies = linked.crossings - linked.burst * usize::from(MAX_CROSSINGS);
            assert!(copies as u64 * operations <= BURST_OPERATIONS, "{operations}");
            assert_eq!(alone.crossings, 0);
            let staged = Bounds::of(operations, 0, 0);
            assert_eq!((staged.burst, staged.length), (alone.burst, alone.length));
        }
    }
}
