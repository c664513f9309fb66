//! Parts that tests share: vNICs in a list, and a forwarder that only counts.

use crate::home::{Home, Homes};
use crate::ring_id::RingId;
use crate::schedule::Schedule;
use crate::turns::Rings;
use placement::VnicId;
use std::collections::{HashMap, HashSet};

/// vNICs from 0 on.
#[derive(Default)]
pub(crate) struct Table(pub Vec<Home>);

impl Table {
    pub fn of(count: u32) -> Table {
        Table((0..count).map(|vnic| Home::new(VnicId(vnic), None)).collect())
    }
}

impl Homes for Table {
    fn home(&self, vnic: VnicId) -> Option<&Home> {
        self.0.get(vnic.0 as usize)
    }

    fn count(&self) -> u32 {
        self.0.len() as u32
    }

    fn nth(&self, place: u32) -> Option<&Home> {
        self.0.get(place as usize)
    }
}

/// A forwarder whose rings hold a number of turns of work.
#[derive(Default)]
pub(crate) struct Fake {
    pub table: Table,
    /// Turns of work per ring.
    pub work: HashMap<RingId, u32>,
    /// Packets that have gone through each ring.
    pub moved: HashMap<RingId, u64>,
    /// The rings that were served, in order.
    pub served: Vec<RingId>,
    /// The polled rings that were looked at, in order.
    pub looks: Vec<RingId>,
    /// Claims of rings that were looked at may be kept.
    pub keeps: bool,
    /// Rings whose guests have to kick.
    pub kicks_on: HashSet<RingId>,
    /// Rings whose kicks were paused, in order.
    pub paused: Vec<RingId>,
    /// vNICs of whose guests threads are missed.
    pub missed_threads: Vec<VnicId>,
}

impl Fake {
    pub fn with(vnics: u32) -> Fake {
        Fake {
            table: Table::of(vnics),
            ..Fake::default()
        }
    }

    fn left(&self, ring: RingId) -> u32 {
        self.work.get(&ring).copied().unwrap_or(0)
    }
}

impl Rings for Fake {
    type Homes = Table;

    fn refresh(&mut self) {}

    fn homes(&self) -> &Table {
        &self.table
    }

    fn serve(&mut self, ring: RingId, schedule: &mut Schedule) {
        self.served.push(ring);
        let left = self.left(ring);
        schedule.progress.packets += u64::from(left > 0);
        *self.moved.entry(ring).or_default() += u64::from(left > 0);
        self.work.insert(ring, left.saturating_sub(1));
        if left > 1 {
            schedule.later(ring);
        } else if ring.is_transmit() {
            self.kicks_on.remove(&ring);
            schedule.poll_from_now(ring, left > 0);
        }
    }

    fn on_kick(&mut self, ring: RingId) -> Option<u64> {
        let moved = self.moved.get(&ring).copied();
        self.table.home(ring.vnic()).map(|_| moved.unwrap_or(0))
    }

    fn has_work(&mut self, ring: RingId) -> bool {
        self.looks.push(ring);
        self.keeps = true;
        self.left(ring) > 0
    }

    fn give_up_claims(&mut self, _schedule: &mut Schedule) {
        self.keeps = false;
    }

    fn enable_kicks(&mut self, ring: RingId) -> bool {
        self.kicks_on.insert(ring);
        self.left(ring) > 0
    }

    fn kicks_paused(&mut self, ring: RingId) {
        self.paused.push(ring);
    }

    fn missed_threads(&mut self, vnic: VnicId) {
        self.missed_threads.push(vnic);
    }

    fn flush_stats(&mut self) {}

    fn before_sleep(&mut self) {}
}
