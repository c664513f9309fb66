//! Which station was last seen where.

use flow::PortId;
use std::collections::HashMap;

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
    /// When it was last heard.
    pub seen: u64,
}

/// Learned stations. The standard hasher is keyed, so a guest cannot choose addresses that collide.
#[derive(Clone, Debug, Default)]
pub struct MacTable {
    entries: HashMap<Station, Entry>,
    per_port: HashMap<PortId, usize>,
}

impl MacTable {
    /// Stations known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Stations known on a port.
    pub fn on_port(&self, port: PortId) -> usize {
        self.per_port.get(&port).copied().unwrap_or(0)
    }

    pub fn get(&self, station: Station) -> Option<Entry> {
        self.entries.get(&station).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Station, Entry)> + '_ {
        self.entries.iter().map(|(station, entry)| (*station, *entry))
    }

    /// Puts a station on a port, wherever it was.
    pub fn learn(&mut self, station: Station, port: PortId, seen: u64) {
        self.remove(station);
        self.entries.insert(station, Entry { port, seen });
        *self.per_port.entry(port).or_default() += 1;
    }

    /// Notes that a station was heard where it is known to be.
    pub fn refresh(&mut self, station: Station, port: PortId, seen: u64) {
        if let Some(entry) = self.entries.get_mut(&station).filter(|entry| entry.port == port) {
            entry.seen = entry.seen.max(seen);
        }
    }

    pub fn remove(&mut self, station: Station) -> Option<Entry> {
        let entry = self.entries.remove(&station)?;
        if let Some(count) = self.per_port.get_mut(&entry.port) {
            *count -= 1;
            if *count == 0 {
                self.per_port.remove(&entry.port);
            }
        }
        Some(entry)
    }

    /// Removes what `condemned` says, and returns it.
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

    /// When the station that was heard longest ago was heard.
    pub fn oldest(&self) -> Option<u64> {
        self.entries.values().map(|entry| entry.seen).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                seen: 30
            })
        );
        assert_eq!(table.oldest(), Some(20));
        assert_eq!(table.remove_where(|_, entry| entry.seen < 30).len(), 1);
        assert_eq!((table.len(), table.on_port(PortId(1))), (1, 0));
    }
}
