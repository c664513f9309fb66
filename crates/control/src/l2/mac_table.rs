//! The port at which each station was last seen.
//!
//! When the table is full, each port still has its fair share of it: room for a station of a port below its share is made by
//! forgetting a station of the port that has most (the one seen longest ago). So ports whose limits together exceed the table
//! do not keep out stations of other ports.

use flow::PortId;
use std::collections::{HashMap, HashSet};

/// A MAC address in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Station {
    /// VLAN, 0 for untagged frames of ports without VLAN.
    pub vlan: u16,
    /// Address, first byte in the highest bits of 48.
    pub mac: u64,
}

/// What is known about a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it is.
    pub port: PortId,
    /// When it was last seen, in milliseconds.
    pub seen_ms: u64,
}

/// Learned stations. The standard hasher is keyed, so a guest cannot choose addresses that collide.
#[derive(Clone, Debug, Default)]
pub struct MacTable {
    entries: HashMap<Station, Entry>,
    per_port: HashMap<PortId, HashSet<Station>>,
}

impl MacTable {
    /// Stations known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Stations known on a port.
    pub fn on_port(&self, port: PortId) -> usize {
        self.per_port.get(&port).map_or(0, HashSet::len)
    }

    pub fn get(&self, station: Station) -> Option<Entry> {
        self.entries.get(&station).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Station, Entry)> + '_ {
        self.entries.iter().map(|(station, entry)| (*station, *entry))
    }

    /// Puts a station on a port, wherever it was.
    pub fn learn(&mut self, station: Station, port: PortId, seen_ms: u64) {
        self.remove(station);
        self.entries.insert(station, Entry { port, seen_ms });
        self.per_port.entry(port).or_default().insert(station);
    }

    /// Notes that a station was seen where it is known to be.
    pub fn refresh(&mut self, station: Station, port: PortId, seen_ms: u64) {
        if let Some(entry) = self.entries.get_mut(&station).filter(|entry| entry.port == port) {
            entry.seen_ms = entry.seen_ms.max(seen_ms);
        }
    }

    pub fn remove(&mut self, station: Station) -> Option<Entry> {
        let entry = self.entries.remove(&station)?;
        if let Some(stations) = self.per_port.get_mut(&entry.port) {
            stations.remove(&station);
            if stations.is_empty() {
                self.per_port.remove(&entry.port);
            }
        }
        Some(entry)
    }

    /// Forgets a station of the port that has most, the one that was seen longest ago. The cost is a walk over the ports that
    /// have stations, and over the stations of one port.
    pub fn make_room(&mut self) -> Option<(Station, Entry)> {
        let most = self
            .per_port
            .iter()
            .max_by_key(|(port, stations)| (stations.len(), **port))?;
        let age = |station: &Station| (self.entries.get(station).map(|entry| entry.seen_ms), *station);
        let station = most.1.iter().copied().min_by_key(age)?;
        Some((station, self.remove(station)?))
    }

    /// Removes the stations for which `condemned` returns true, and returns them.
    pub fn remove_where(&mut self, condemned: impl Fn(Station, Entry) -> bool) -> Vec<(Station, Entry)> {
        let gone: Vec<_> = self
            .iter()
            .filter(|(station, entry)| condemned(*station, *entry))
            .collect();
        for (station, _) in &gone {
            self.remove(*station);
        }
        gone
    }

    /// When the station that was seen longest ago was seen.
    pub fn oldest(&self) -> Option<u64> {
        self.entries.values().map(|entry| entry.seen_ms).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_by_who_has_most() {
        let mut table = MacTable::default();
        let station = |mac| Station { vlan: 0, mac };
        assert_eq!(table.make_room(), None);
        for (mac, port, seen_ms) in [(1, 1, 10), (2, 1, 40), (3, 1, 30), (4, 2, 5), (5, 2, 6)] {
            table.learn(station(mac), PortId(port), seen_ms);
        }
        let room = |table: &mut MacTable| {
            table
                .make_room()
                .map(|(station, entry)| (station.mac, entry.port))
        };
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
    fn counts_follow_moves_and_removals() {
        let mut table = MacTable::default();
        let station = |mac| Station { vlan: 0, mac };
        table.learn(station(1), PortId(1), 10);
        table.learn(station(2), PortId(1), 20);
        table.learn(station(1), PortId(2), 30);
        assert_eq!(
            (table.len(), table.on_port(PortId(1)), table.on_port(PortId(2))),
            (2, 1, 1)
        );
        table.refresh(station(1), PortId(1), 99);
        table.refresh(station(2), PortId(1), 5);
        assert_eq!(
            table.get(station(1)),
            Some(Entry {
                port: PortId(2),
                seen_ms: 30
            })
        );
        assert_eq!(table.oldest(), Some(20));
        assert_eq!(table.remove_where(|_, entry| entry.seen_ms < 30).len(), 1);
        assert_eq!((table.len(), table.on_port(PortId(1))), (1, 0));
    }
}
