//! The flows that a switch has had installed, with indexes that find those that a change concerns.

use super::mac_table::Station;
use crate::provider;
use flow::{Action, FlowId, FlowKey, FlowMask, PortId, ProviderId, Stage, VLAN_PRESENT};
use std::collections::{HashMap, HashSet};

/// The fields that all flows match: ingress port, Ethernet source and destination, outer VLAN tag, and
/// whether there is an inner one.
pub const MASK: FlowMask = {
    let mut words = [0; flow::KEY_WORDS];
    words[0] = 0xffff_ffff;
    words[1] = 0xffff_ffff_ffff_0000;
    words[2] = u64::MAX;
    words[3] = 0xffff | (VLAN_PRESENT as u64) << 16;
    FlowMask(FlowKey { words })
};

/// The identifier of the flow for packets with this key.
pub fn flow_id(key: &FlowKey) -> FlowId {
    provider::flow_id(
        ProviderId::LEARNING_SWITCH,
        Stage::Forward,
        &key.masked(&MASK),
        &MASK,
    )
}

/// An installed flow.
#[derive(Clone, Debug)]
pub struct Record {
    pub key: FlowKey,
    pub actions: Vec<Action>,
    /// When it was last put into the table, in milliseconds.
    pub installed_ms: u64,
    /// Last known use, in milliseconds.
    pub used_ms: u64,
    /// Source and destination in the VLAN the frame belongs to, if it may enter.
    pub stations: Option<[Station; 2]>,
    /// Whether its source could not be learned for lack of room.
    pub blocked: bool,
    /// Whether its destination is a group or unknown, so that it depends on which ports are connected.
    pub floods: bool,
}

/// All flows of a switch, with indexes.
#[derive(Clone, Debug, Default)]
pub struct Flows {
    records: HashMap<FlowId, Record>,
    by_station: HashMap<Station, HashSet<FlowId>>,
    /// By ingress port.
    blocked: HashMap<u32, HashSet<FlowId>>,
    floods: HashSet<FlowId>,
    per_port: HashMap<u32, usize>,
}

impl Flows {
    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn count_from(&self, port: u32) -> usize {
        self.per_port.get(&port).copied().unwrap_or(0)
    }

    pub fn get(&self, id: FlowId) -> Option<&Record> {
        self.records.get(&id)
    }

    pub fn get_mut(&mut self, id: FlowId) -> Option<&mut Record> {
        self.records.get_mut(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (FlowId, &Record)> {
        self.records.iter().map(|(id, record)| (*id, record))
    }

    /// Flows from or to a station.
    pub fn of_station(&self, station: Station) -> Vec<FlowId> {
        self.by_station
            .get(&station)
            .map(|ids| ids.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Flows from or to an address, in any VLAN.
    pub fn of_mac(&self, mac: u64) -> Vec<FlowId> {
        let stations = self.by_station.iter().filter(|(station, _)| station.mac == mac);
        stations.flat_map(|(_, ids)| ids).copied().collect()
    }

    /// Flows whose source could not be learned.
    pub fn blocked(&self) -> Vec<FlowId> {
        self.blocked.values().flatten().copied().collect()
    }

    /// Flows that depend on which ports are connected, in the VLANs for which `carried` returns true.
    pub fn floods(&self, carried: impl Fn(u16) -> bool) -> Vec<FlowId> {
        let vlan = |id: &FlowId| Some(self.get(*id)?.stations?[0].vlan);
        let floods = self.floods.iter().copied();
        floods.filter(|id| vlan(id).is_some_and(&carried)).collect()
    }

    /// The blocked flows from a port.
    pub fn blocked_from(&self, port: PortId) -> Vec<FlowId> {
        self.blocked.get(&port.0).into_iter().flatten().copied().collect()
    }

    pub fn insert(&mut self, id: FlowId, record: Record) {
        self.remove(id);
        for station in record.stations.iter().flatten() {
            self.by_station.entry(*station).or_default().insert(id);
        }
        if record.blocked {
            self.blocked.entry(record.key.in_port()).or_default().insert(id);
        }
        if record.floods {
            self.floods.insert(id);
        }
        *self.per_port.entry(record.key.in_port()).or_default() += 1;
        self.records.insert(id, record);
    }

    pub fn remove(&mut self, id: FlowId) -> Option<Record> {
        let record = self.records.remove(&id)?;
        for station in record.stations.iter().flatten() {
            if let Some(ids) = self.by_station.get_mut(station) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_station.remove(station);
                }
            }
        }
        self.floods.remove(&id);
        if let Some(ids) = self.blocked.get_mut(&record.key.in_port()) {
            ids.remove(&id);
            if ids.is_empty() {
                self.blocked.remove(&record.key.in_port());
            }
        }
        if let Some(count) = self.per_port.get_mut(&record.key.in_port()) {
            *count -= 1;
            if *count == 0 {
                self.per_port.remove(&record.key.in_port());
            }
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_covers_the_fields_it_says() {
        let mut mask = FlowMask::ANY;
        mask.0.set_in_port(u32::MAX);
        mask.0.set_eth_src(u64::MAX);
        mask.0.set_eth_dst(u64::MAX);
        mask.0.set_vlan_tci(u16::MAX);
        mask.0.set_vlan_tpid(u16::MAX);
        mask.0.set_inner_tci(VLAN_PRESENT);
        assert_eq!(mask, MASK);
    }

    #[test]
    fn identifiers_differ_in_every_field() {
        let mut key = FlowKey::default();
        let mut ids = HashSet::from([flow_id(&key)]);
        key.set_in_port(4095);
        assert!(ids.insert(flow_id(&key)));
        key.set_eth_src(1);
        assert!(ids.insert(flow_id(&key)));
        key.set_eth_dst(1);
        assert!(ids.insert(flow_id(&key)));
        key.set_vlan_tci(1);
        assert!(ids.insert(flow_id(&key)));
        key.set_vlan_tpid(0x8100);
        assert!(ids.insert(flow_id(&key)));
        key.set_inner_tci(VLAN_PRESENT);
        assert!(ids.insert(flow_id(&key)));
        key.set_inner_tci(VLAN_PRESENT | 30);
        assert!(!ids.insert(flow_id(&key)), "which inner tag makes no difference");
        key.set_eth_type(7);
        assert!(!ids.insert(flow_id(&key)));
    }
}
