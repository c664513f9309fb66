//! Meters that are asked before anything else is done to packets: about the packets of a burst together,
//! where they can be.
//!
//! If the tokens suffice for all packets in sequence that ask the same meter, all of them pass, as they would
//! one by one, and the meter is written once. Otherwise each one is asked for. Packets with a cache entry
//! come first, then the others of the burst.
//!
//! Flows that are found behind the meter do not count what it drops: the packets of decisions with such flows
//! are counted here and not when they are looked up.

use crate::burst::{Burst, Verdict};
use crate::meter::KnownMeters;
use classifier::{Decision, MicroflowCache, Place, Train};
use flow::{ControllerId, DropReason};
use std::sync::Arc;

/// The place of the first operation of a program, which is the meter here.
const FIRST: usize = 0;

/// Packets in sequence with one decision that begins with a meter.
pub(crate) struct AtMeter {
    meter: u32,
    /// Place of the first one in the burst.
    first: usize,
    train: Train,
    counts: Counts,
}

/// Where the packets are to be counted.
enum Counts {
    /// Packets are counted already.
    Done,
    /// With those of the cache entry.
    Cached(Place),
    /// In the flows.
    Walked(Arc<Decision>),
}

impl AtMeter {
    /// Packets whose decision, which is at this place of the cache, counts apart if there is a place.
    pub fn cached(meter: u32, first: usize, train: Train, place: Option<Place>) -> AtMeter {
        AtMeter {
            meter,
            first,
            train,
            counts: place.map_or(Counts::Done, Counts::Cached),
        }
    }

    /// A packet whose decision was made by a walk.
    pub fn walked(meter: u32, first: usize, train: Train, decision: &Arc<Decision>) -> AtMeter {
        let apart = decision.counts_apart().then(|| Arc::clone(decision));
        AtMeter {
            meter,
            first,
            train,
            counts: apart.map_or(Counts::Done, Counts::Walked),
        }
    }

    /// Counts packets that have passed.
    #[inline]
    fn passed(&self, train: &Train, microflows: &mut MicroflowCache, now_ms: u64) {
        match &self.counts {
            Counts::Done => {}
            Counts::Cached(place) => microflows.count(*place, train),
            Counts::Walked(decision) => decision.record_metered(&[], train, now_ms),
        }
    }

    /// Counts packets that were dropped.
    fn dropped(&self, train: &Train, microflows: &MicroflowCache, now_ms: u64) {
        let decision = match &self.counts {
            Counts::Done => None,
            Counts::Cached(place) => microflows.at(*place),
            Counts::Walked(decision) => Some(decision),
        };
        if let Some(decision) = decision {
            decision.record_metered(&[FIRST], train, now_ms);
        }
    }
}

/// Asks the meters about the packets of the burst that are noted for that, and changes the verdicts about
/// those that do not pass.
#[inline(never)]
pub(crate) fn police(
    burst: &mut Burst,
    controller: ControllerId,
    meters: &mut KnownMeters,
    microflows: &mut MicroflowCache,
    now_ms: u64,
) {
    let noted = std::mem::take(&mut burst.at_meter);
    for run in noted.chunk_by(|one, next| one.meter == next.meter) {
        let packets = run.iter().map(|at| u64::from(at.train.packets)).sum();
        let bytes = run.iter().map(|at| at.train.bytes).sum();
        if meters.all_pass(controller, run[0].meter, packets, bytes) {
            run.iter().for_each(|at| at.passed(&at.train, microflows, now_ms));
            continue;
        }
        for at in run {
            let [passed, dropped] = one_by_one(at, burst, |len| meters.pass(controller, at.meter, len));
            if passed.packets > 0 {
                at.passed(&passed, microflows, now_ms);
            }
            if dropped.packets > 0 {
                at.dropped(&dropped, microflows, now_ms);
            }
        }
    }
    burst.at_meter = noted;
    burst.at_meter.clear();
}

/// The packets that pass, and those that do not.
fn one_by_one(
    at: &AtMeter,
    burst: &mut Burst,
    mut pass: impl FnMut(usize) -> Result<(), DropReason>,
) -> [Train; 2] {
    let [mut passed, mut dropped] = [Train::default(); 2];
    for place in at.first..at.first + at.train.packets as usize {
        let (len, tcp_flags) = (burst.packets[place].frame_len(), burst.keys[place].tcp_flags());
        match pass(len) {
            Ok(()) => passed.add(len, tcp_flags),
            Err(reason) => {
                dropped.add(len, tcp_flags);
                burst.verdicts[place] = Verdict::Metered(reason);
            }
        }
    }
    [passed, dropped]
}
