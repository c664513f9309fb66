//! The ports at which each station was seen.
//!
//! A station is usually at one port. One that was seen at a second port is *contested*: nothing in a frame
//! says which of the two senders is right, so each port that it was seen at is a *place* of the station, and
//! no place replaces another. A place goes in these ways only:
//!
//! * **It was overtaken**: a rival place was seen twice, [`QUIET_MS`] or more apart, and this one not since
//!   before the first time. So a station that has moved leaves its old place after a while, and a sender that
//!   sends as often as each of its rivals keeps its place whatever they do. Two attackers together achieve no
//!   more than one of them.
//! * **The station is forgotten**, with all places at once: it was seen at none of them for the ageing time.
//! * **Room is made**, or the port does not carry the station's VLAN any more.
//!
//! When the table is full, each port still has its fair share of it: room for a place on a port below its
//! share is made by forgetting a place on the port that has most (the one seen longest ago). So ports whose
//! limits together exceed the table do not keep out stations of other ports.

use super::notes::{Note, Notes};
use flow::PortId;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// How far apart a rival must have been seen twice, in milliseconds, for a place that was silent meanwhile to
/// be given up.
pub const QUIET_MS: u64 = 10_000;

/// A MAC address in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Station {
    /// VLAN, 0 for untagged frames of ports without VLAN.
    pub vlan: u16,
    /// Address, first byte in the highest bits of 48.
    pub mac: u64,
}

/// When a station was seen at a port, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The last time.
    pub seen_ms: u64,
    /// One of the times; each later mark is [`QUIET_MS`] or more after the one before.
    mark_ms: u64,
    /// The mark before that one.
    earlier_ms: Option<u64>,
}

impl Place {
    fn new(seen_ms: u64) -> Self {
        Place {
            seen_ms,
            mark_ms: seen_ms,
            earlier_ms: None,
        }
    }

    fn see(&mut self, now_ms: u64) {
        self.seen_ms = self.seen_ms.max(now_ms);
        if now_ms >= self.mark_ms + QUIET_MS {
            (self.mark_ms, self.earlier_ms) = (now_ms, Some(self.mark_ms));
        }
    }

    /// Whether it was seen twice, far enough apart, since `other` was seen.
    fn has_overtaken(&self, other: &Place) -> bool {
        self.earlier_ms
            .is_some_and(|earlier_ms| earlier_ms > other.seen_ms)
    }
}

/// Learned stations. Trees, so that a guest cannot choose addresses that collide.
#[derive(Clone, Debug, Default)]
pub struct MacTable {
    places: BTreeMap<(Station, PortId), Place>,
    per_port: HashMap<PortId, HashSet<Station>>,
    /// Stations with several places.
    contested: BTreeSet<Station>,
    notes: Notes,
}

impl MacTable {
    /// Places known: one per station, and a further one for each rival of a contested one.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Places known on a port.
    pub fn on_port(&self, port: PortId) -> usize {
        self.per_port.get(&port).map_or(0, HashSet::len)
    }

    /// Stations that have a place on a port.
    pub fn stations_on(&self, port: PortId) -> impl Iterator<Item = Station> + '_ {
        self.per_port.get(&port).into_iter().flatten().copied()
    }

    /// The ports at which a station is, in the order of their numbers.
    pub fn ports_of(&self, station: Station) -> impl Iterator<Item = PortId> + '_ {
        self.places_of(station).map(|(port, _)| port)
    }

    fn places_of(&self, station: Station) -> impl Iterator<Item = (PortId, Place)> + '_ {
        let all = (station, PortId(0))..=(station, PortId(u32::MAX));
        self.places.range(all).map(|((_, port), place)| (*port, *place))
    }

    /// Whether a station is at a port.
    pub fn is_at(&self, station: Station, port: PortId) -> bool {
        self.places.contains_key(&(station, port))
    }

    pub fn is_contested(&self, station: Station) -> bool {
        self.contested.contains(&station)
    }

    /// Stations with several places.
    pub fn contested(&self) -> impl Iterator<Item = Station> + '_ {
        self.contested.iter().copied()
    }

    /// By station, then by port.
    pub fn iter(&self) -> impl Iterator<Item = (Station, PortId, Place)> + '_ {
        let places = self.places.iter();
        places.map(|((station, port), place)| (*station, *port, *place))
    }

    /// Adds a place.
    pub fn learn(&mut self, station: Station, port: PortId, seen_ms: u64) {
        self.places.insert((station, port), Place::new(seen_ms));
        self.per_port.entry(port).or_default().insert(station);
        self.note_contest(station);
        self.note(station, port, false);
    }

    /// Notes that a station was seen where it is known to be.
    pub fn refresh(&mut self, station: Station, port: PortId, seen_ms: u64) {
        if let Some(place) = self.places.get_mut(&(station, port)) {
            place.see(seen_ms);
        }
    }

    pub fn remove(&mut self, station: Station, port: PortId) {
        if self.places.remove(&(station, port)).is_none() {
            return;
        }
        if let Some(stations) = self.per_port.get_mut(&port) {
            stations.remove(&station);
            if stations.is_empty() {
                self.per_port.remove(&port);
            }
        }
        self.note_contest(station);
        self.note(station, port, true);
    }

    fn note(&mut self, station: Station, port: PortId, has_left: bool) {
        self.notes.add(Note {
            station,
            port,
            has_left,
            is_contested: self.is_contested(station),
        });
    }

    /// What became of stations since this was asked last, if anything did.
    pub fn take_notes(&mut self) -> Option<Notes> {
        self.notes.take()
    }

    fn note_contest(&mut self, station: Station) {
        let rival = self.ports_of(station).nth(1);
        match rival {
            Some(_) => self.contested.insert(station),
            None => self.contested.remove(&station),
        };
    }

    /// Forgets a place on the port that has most, the one that was seen longest ago. The cost grows with the
    /// ports that have stations, and with the stations of one port.
    pub fn make_room(&mut self) -> Option<(Station, PortId)> {
        let most = self
            .per_port
            .iter()
            .max_by_key(|(port, stations)| (stations.len(), **port))?;
        let port = *most.0;
        let age = |station: &Station| {
            (
                self.places.get(&(*station, port)).map(|place| place.seen_ms),
                *station,
            )
        };
        let station = most.1.iter().copied().min_by_key(age)?;
        self.remove(station, port);
        Some((station, port))
    }

    /// Removes the places for which `condemned` returns true, and returns them.
    pub fn remove_where(&mut self, condemned: impl Fn(Station, PortId) -> bool) -> Vec<(Station, PortId)> {
        let all = self.places.keys().copied();
        let gone: Vec<_> = all.filter(|(station, port)| condemned(*station, *port)).collect();
        self.remove_all(gone)
    }

    fn remove_all(&mut self, gone: Vec<(Station, PortId)>) -> Vec<(Station, PortId)> {
        for (station, port) in &gone {
            self.remove(*station, *port);
        }
        gone
    }

    /// Removes the places that were overtaken, and returns them.
    pub fn remove_overtaken(&mut self) -> Vec<(Station, PortId)> {
        let mut gone = Vec::new();
        for station in &self.contested {
            let places: Vec<_> = self.places_of(*station).collect();
            let is_overtaken = |place: &Place| places.iter().any(|(_, rival)| rival.has_overtaken(place));
            let overtaken = places.iter().filter(|(_, place)| is_overtaken(place));
            gone.extend(overtaken.map(|(port, _)| (*station, *port)));
        }
        self.remove_all(gone)
    }

    /// Uses of flows were lost, and with them sightings: contested stations may have been seen at all of
    /// their places.
    pub fn excuse_silence(&mut self, now_ms: u64) {
        for station in &self.contested {
            let all = (*station, PortId(0))..=(*station, PortId(u32::MAX));
            for (_, place) in self.places.range_mut(all) {
                place.seen_ms = place.seen_ms.max(now_ms);
            }
        }
    }

    /// Removes the stations that were seen nowhere since `since_ms`, and returns their places.
    pub fn remove_unseen(&mut self, since_ms: u64) -> Vec<(Station, PortId)> {
        let is_unseen = |(station, _): &(Station, PortId)| self.last_seen(*station) <= Some(since_ms);
        let old = self.places.iter().filter(|(_, place)| place.seen_ms <= since_ms);
        let gone: Vec<_> = old.map(|(at, _)| *at).filter(is_unseen).collect();
        self.remove_all(gone)
    }

    fn last_seen(&self, station: Station) -> Option<u64> {
        self.places_of(station).map(|(_, place)| place.seen_ms).max()
    }

    /// When the station that was seen longest ago was seen last.
    pub fn oldest(&self) -> Option<u64> {
        let single =
            |(at, place): (&(Station, PortId), &Place)| (!self.is_contested(at.0)).then_some(place.seen_ms);
        let contested = self
            .contested
            .iter()
            .filter_map(|station| self.last_seen(*station));
        self.places.iter().filter_map(single).chain(contested).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Station = Station { vlan: 0, mac: 1 };
    const B: Station = Station { vlan: 0, mac: 2 };

    fn ports(table: &MacTable, station: Station) -> Vec<u32> {
        table.ports_of(station).map(|port| port.0).collect()
    }

    #[test]
    fn room_is_made_by_who_has_most() {
        let mut table = MacTable::default();
        let station = |mac| Station { vlan: 0, mac };
        assert_eq!(table.make_room(), None);
        for (mac, port, seen_ms) in [(1, 1, 10), (2, 1, 40), (3, 1, 30), (4, 2, 5), (5, 2, 6)] {
            table.learn(station(mac), PortId(port), seen_ms);
        }
        let room = |table: &mut MacTable| table.make_room().map(|(station, port)| (station.mac, port));
        table.refresh(station(1), PortId(1), 50);
        assert_eq!(room(&mut table), Some((3, PortId(1))));
        assert_eq!(
            room(&mut table),
            Some((4, PortId(2))),
            "one of those who have as many"
        );
        assert_eq!(room(&mut table), Some((2, PortId(1))));
        assert_eq!(
            (table.len(), table.on_port(PortId(1)), table.on_port(PortId(2))),
            (2, 1, 1)
        );
    }

    #[test]
    fn counts_follow_places() {
        let mut table = MacTable::default();
        table.learn(A, PortId(1), 10);
        table.learn(B, PortId(1), 20);
        table.learn(A, PortId(2), 30);
        assert_eq!(
            (table.len(), table.on_port(PortId(1)), table.on_port(PortId(2))),
            (3, 2, 1)
        );
        assert_eq!(table.contested().collect::<Vec<_>>(), [A]);
        assert_eq!(table.oldest(), Some(20), "A was seen later, at its other place");
        assert_eq!(table.remove_unseen(20), [(B, PortId(1))]);
        assert_eq!(table.remove_unseen(29), []);
        table.remove(A, PortId(1));
        assert_eq!((ports(&table, A), table.contested().count()), (vec![2], 0));
        assert_eq!(
            (table.len(), table.on_port(PortId(1)), table.oldest()),
            (1, 0, Some(30))
        );
        table.learn(A, PortId(1), 31);
        assert_eq!(
            table.remove_unseen(31),
            [(A, PortId(1)), (A, PortId(2))],
            "both together"
        );
    }

    /// Who sends as often as each rival stays, however many they are and however rarely all of them send.
    #[test]
    fn a_place_is_left_when_one_rival_was_seen_twice_meanwhile() {
        for period in [1, 4_000, QUIET_MS, 100_000] {
            let mut table = MacTable::default();
            (1..4).for_each(|port| table.learn(A, PortId(port), 0));
            for round in 1..50 {
                for port in 1..4 {
                    table.refresh(A, PortId(port), round * period + u64::from(port));
                    assert_eq!(table.remove_overtaken(), [], "{round}");
                }
            }
        }
        let mut table = MacTable::default();
        (1..4).for_each(|port| table.learn(A, PortId(port), u64::from(port)));
        // Two rivals, one frame each: neither alone was seen twice.
        table.refresh(A, PortId(2), 2 + QUIET_MS);
        table.refresh(A, PortId(3), 2 + QUIET_MS);
        assert_eq!(table.remove_overtaken(), [(A, PortId(1))]);
        table.learn(A, PortId(1), 3 + QUIET_MS);
        table.refresh(A, PortId(2), 1 + 2 * QUIET_MS);
        table.refresh(A, PortId(3), 2 + 2 * QUIET_MS);
        assert_eq!(table.remove_overtaken(), []);
        // As often as it likes within the time, the first one counts.
        for now_ms in 0..QUIET_MS {
            table.refresh(A, PortId(2), 2 + 2 * QUIET_MS + now_ms);
            assert_eq!(table.remove_overtaken(), []);
        }
        table.refresh(A, PortId(2), 2 + 3 * QUIET_MS);
        table.refresh(A, PortId(2), 2 + 4 * QUIET_MS);
        assert_eq!(table.remove_overtaken(), [(A, PortId(1)), (A, PortId(3))]);
        assert_eq!(ports(&table, A), [2]);
    }
}
