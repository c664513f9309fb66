//! Meters as they were set, and their counts in data planes that have gone.
//!
//! Each data plane is told of all meters before flows come that name them. It keeps them when this process
//! dies, and is told to forget them when a datapath is made, which has none.

use super::questions::Asked;
use super::{Plane, now_ms};
use crate::datapath::{Answer, Errno, MeterSeen, MeterSpec, Seen};
use crate::translate::OWN_METERS;
use control_protocol::data_plane::Request;
use flow::{MeterBand, MeterSpec as Wanted, MeterStats, MeterUnit};
use ovs_netlink::flow::Stats;
use std::collections::BTreeMap;

/// Most meters of ovs-vswitchd's. The data plane has more, for limits of ports.
pub const MAX_METERS: u32 = 4096;

/// A meter.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    spec: Wanted,
    /// What it had seen in data planes that have gone.
    before: MeterStats,
    /// What the present one told last.
    told: MeterStats,
    /// When it was used last.
    used: u64,
}

impl Meter {
    fn new(spec: Wanted) -> Meter {
        Meter {
            spec,
            before: MeterStats::default(),
            told: MeterStats::default(),
            used: now_ms(),
        }
    }

    /// What it has seen, of which the data plane tells its part. A data plane that does not know it has
    /// nothing to add.
    pub fn seen(&mut self, told: Option<MeterStats>) -> MeterSeen {
        if let Some(told) = told {
            self.told = told;
            self.used = now_ms().saturating_sub(told.idle_ms);
        }
        let mut sum = seen(sum(&self.before, &self.told));
        sum.seen.used = Some(self.used);
        if self.spec.band.is_none() {
            sum.bands.clear();
        }
        sum
    }
}

/// A data plane may tell any numbers.
fn sum(a: &MeterStats, b: &MeterStats) -> MeterStats {
    MeterStats {
        packets: a.packets.saturating_add(b.packets),
        bytes: a.bytes.saturating_add(b.bytes),
        dropped_packets: a.dropped_packets.saturating_add(b.dropped_packets),
        dropped_bytes: a.dropped_bytes.saturating_add(b.dropped_bytes),
        idle_ms: b.idle_ms,
    }
}

/// All meters.
#[derive(Debug, Default)]
pub(super) struct PlaneMeters(BTreeMap<u32, Meter>);

impl PlaneMeters {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn get(&mut self, id: u32) -> Option<&mut Meter> {
        self.0.get_mut(&id)
    }

    /// Undoes what was refused.
    pub fn put_back(&mut self, id: u32, before: Option<Meter>) {
        match before {
            Some(before) => drop(self.0.insert(id, before)),
            None => drop(self.0.remove(&id)),
        }
    }

    /// The data plane has gone.
    pub fn lose(&mut self) {
        for meter in self.0.values_mut() {
            meter.before = sum(&meter.before, &meter.told);
            meter.told = MeterStats::default();
        }
    }
}

impl Plane {
    /// The data plane is to have the datapath's meters and no others.
    pub(super) fn tell_meters(&mut self) {
        if !self.client.is_connected() || self.datapath.is_none() {
            return;
        }
        self.client.tell(Request::MeterFlush);
        let wanted = self.meters.0.iter().map(|(id, meter)| (*id, meter.spec));
        for (meter, spec) in wanted.collect::<Vec<_>>() {
            self.client.tell(Request::MeterSet { meter, spec });
        }
        self.tell_limits_meters();
    }

    pub(super) fn set_meter(&mut self, id: u32, spec: &MeterSpec) -> Result<(Request, Asked), Errno> {
        let spec = translated(spec)?;
        if id >= OWN_METERS {
            return Err(Errno::EINVAL);
        }
        let meters = &mut self.meters.0;
        if meters.len() >= MAX_METERS as usize && !meters.contains_key(&id) {
            return Err(Errno::EFBIG);
        }
        let before = meters.insert(id, Meter::new(spec));
        let request = Request::MeterSet { meter: id, spec };
        Ok((request, Asked::MeterSet(id, before)))
    }

    pub(super) fn remove_meter(&mut self, id: u32) -> (Request, Asked) {
        let removed = self.meters.0.remove(&id);
        let request = Request::MeterDel { meter: id };
        (request, Asked::MeterRemoved(removed))
    }
}

/// The answer about a meter, with the statistics that the data plane has sent.
pub(super) fn answer(meter: Option<&mut Meter>, told: Option<MeterStats>) -> Answer {
    Answer::Meter(meter.map(|meter| meter.seen(told)))
}

/// What the data plane tells of a meter that nobody has set here.
pub(super) fn seen(told: MeterStats) -> MeterSeen {
    MeterSeen {
        seen: Seen {
            stats: Stats {
                packets: told.packets,
                bytes: told.bytes,
            },
            ..Seen::default()
        },
        bands: vec![Stats {
            packets: told.dropped_packets,
            bytes: told.dropped_bytes,
        }],
    }
}

fn translated(spec: &MeterSpec) -> Result<Wanted, Errno> {
    let band = match *spec.bands {
        [] => None,
        [band] if band.rate > 0 => Some(MeterBand {
            rate: band.rate,
            burst: band.burst,
        }),
        _ => return Err(Errno::EINVAL),
    };
    let unit = if spec.kilobits {
        MeterUnit::Kilobits
    } else {
        MeterUnit::Packets
    };
    Ok(Wanted::new(unit, band))
}
