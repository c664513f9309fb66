//! Meters of all controllers.
//!
//! A meter is a token bucket of atomic integers, which threads share without a lock. Tokens are added once in
//! a millisecond, as in the kernel, and taken packet by packet. Two threads that come at the same time may
//! see tokens a moment late: a packet is then dropped that might have passed, never the other way round.
//!
//! Each thread caches the meters of its packets ([`KnownMeters`]), until any meter is set or removed: only
//! then the table and its lock are used again. A flow names its meter by number, so a flow may outlive the
//! meter, or come before it.

use crate::refusal::Refusal;
use flow::{ControllerId, DropReason, MAX_METERS, MeterSpec, MeterStats, MeterUnit};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Tokens per unit: so many come per microsecond at a rate of one per second.
const TOKENS: u64 = 1_000_000;
/// Tokens per bit, where the unit is a thousand of them.
const TOKENS_PER_BIT: u64 = TOKENS / 1000;
/// Between additions of tokens.
const PERIOD_US: u64 = 1000;

/// A meter.
#[derive(Debug)]
struct Meter {
    spec: MeterSpec,
    tokens: AtomicU64,
    /// When tokens were added last, by [`cpu::now_us`].
    filled_us: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
    dropped_packets: AtomicU64,
    dropped_bytes: AtomicU64,
}

impl Meter {
    fn new(spec: MeterSpec, now_us: u64) -> Meter {
        Meter {
            spec,
            tokens: AtomicU64::new(spec.band.map_or(0, |band| u64::from(band.burst) * TOKENS)),
            filled_us: AtomicU64::new(now_us),
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            dropped_packets: AtomicU64::new(0),
            dropped_bytes: AtomicU64::new(0),
        }
    }

    /// Takes tokens for a packet of that many bytes, and counts it; false if it may not go on.
    fn admit(&self, bytes: u64, now_us: u64) -> bool {
        if self.all_pass(1, bytes, now_us) {
            return true;
        }
        self.packets.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.dropped_packets.fetch_add(1, Relaxed);
        self.dropped_bytes.fetch_add(bytes, Relaxed);
        false
    }

    /// Whether that many packets, which have so many bytes together, may all go on; they are counted if they
    /// may. Each of them would pass alone then, one after the other. Otherwise nothing is taken, and some of
    /// them may pass.
    fn all_pass(&self, packets: u64, bytes: u64, now_us: u64) -> bool {
        self.fill(now_us);
        let cost = match self.spec.unit {
            MeterUnit::Packets => packets * TOKENS,
            MeterUnit::Kilobits => bytes * 8 * TOKENS_PER_BIT,
        };
        let take = |tokens: u64| tokens.checked_sub(cost);
        if self.spec.band.is_some() && self.tokens.fetch_update(Relaxed, Relaxed, take).is_err() {
            return false;
        }
        self.packets.fetch_add(packets, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        true
    }

    /// Adds the tokens of the time that has passed. Cores' clocks may differ a little: what seems to be past
    /// adds nothing.
    fn fill(&self, now_us: u64) {
        let then = self.filled_us.load(Relaxed);
        let passed = now_us.saturating_sub(then);
        // Another thread may be faster.
        if passed < PERIOD_US
            || self
                .filled_us
                .compare_exchange(then, now_us, Relaxed, Relaxed)
                .is_err()
        {
            return;
        }
        if let Some(band) = self.spec.band {
            let earned = passed.saturating_mul(band.rate.into());
            let full = u64::from(band.burst) * TOKENS;
            let fill = |tokens: u64| Some(tokens.saturating_add(earned).min(full));
            let _ = self.tokens.fetch_update(Relaxed, Relaxed, fill);
        }
    }

    fn stats(&self, now_us: u64) -> MeterStats {
        MeterStats {
            packets: self.packets.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            dropped_packets: self.dropped_packets.load(Relaxed),
            dropped_bytes: self.dropped_bytes.load(Relaxed),
            idle_ms: now_us.saturating_sub(self.filled_us.load(Relaxed)) / 1000,
        }
    }
}

/// See the module's description. The channel thread alone changes it.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    tables: [RwLock<HashMap<u32, Arc<Meter>>>; ControllerId::LIMIT as usize],
    /// Counts changes of `tables`.
    version: AtomicU64,
}

impl Meters {
    /// Makes or replaces a meter; returns the statistics of the one before.
    pub fn set(
        &self,
        controller: ControllerId,
        id: u32,
        spec: MeterSpec,
    ) -> Result<Option<MeterStats>, Refusal> {
        if spec.band.is_some_and(|band| band.rate == 0) {
            return Err(Refusal::MeterRate);
        }
        let now_us = cpu::now_us();
        let before = self.change(controller, |table| {
            if table.len() >= MAX_METERS as usize && !table.contains_key(&id) {
                return Err(Refusal::Meters);
            }
            Ok(table.insert(id, Arc::new(Meter::new(spec, now_us))))
        })?;
        Ok(before.map(|meter| meter.stats(now_us)))
    }

    /// Removes a meter; returns its statistics. Packets go on where their flows name it.
    pub fn remove(&self, controller: ControllerId, id: u32) -> Option<MeterStats> {
        let removed = self.change(controller, |table| table.remove(&id));
        removed.map(|meter| meter.stats(cpu::now_us()))
    }

    /// Removes all of a controller's.
    pub fn clear(&self, controller: ControllerId) {
        self.change(controller, HashMap::clear);
    }

    /// A meter's statistics.
    pub fn stats(&self, controller: ControllerId, id: u32) -> Option<MeterStats> {
        Some(self.get(controller, id)?.stats(cpu::now_us()))
    }

    fn get(&self, controller: ControllerId, id: u32) -> Option<Arc<Meter>> {
        let table = self.tables.get(usize::from(controller.0))?;
        table.read().get(&id).cloned()
    }

    fn change<R>(
        &self,
        controller: ControllerId,
        change: impl FnOnce(&mut HashMap<u32, Arc<Meter>>) -> R,
    ) -> R {
        let result = change(&mut self.tables[usize::from(controller.0)].write());
        self.version.fetch_add(1, Release);
        result
    }
}

/// A thread's cache of meters.
#[derive(Debug)]
pub(crate) struct KnownMeters {
    all: Arc<Meters>,
    version: u64,
    known: HashMap<(ControllerId, u32), Arc<Meter>>,
}

impl KnownMeters {
    pub fn new(all: Arc<Meters>) -> KnownMeters {
        KnownMeters {
            all,
            version: 0,
            known: HashMap::new(),
        }
    }

    /// Asks a meter whether a packet of that many bytes may go on. Where the meter does not exist, it may, as
    /// in the kernel. `Err` is the reason to drop the packet.
    pub fn pass(&mut self, controller: ControllerId, id: u32, bytes: usize) -> Result<(), DropReason> {
        match self.get(controller, id) {
            Some(meter) if !meter.admit(bytes as u64, cpu::now_us()) => Err(meter.spec.reason),
            _ => Ok(()),
        }
    }

    /// Whether a meter lets all of these packets go on. If not, it has not seen them, and is to be asked
    /// about each.
    pub fn all_pass(&mut self, controller: ControllerId, id: u32, packets: u64, bytes: u64) -> bool {
        let meter = self.get(controller, id);
        meter.is_none_or(|meter| meter.all_pass(packets, bytes, cpu::now_us()))
    }

    fn get(&mut self, controller: ControllerId, id: u32) -> Option<&Meter> {
        let version = self.all.version.load(Acquire);
        if version != self.version {
            self.known.clear();
            self.version = version;
        }
        match self.known.entry((controller, id)) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(place) => Some(place.insert(self.all.get(controller, id)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::MeterBand;
    use proptest::prelude::*;

    fn spec(unit: MeterUnit, rate: u32, burst: u32) -> MeterSpec {
        let band = Some(MeterBand { rate, burst });
        MeterSpec::new(unit, band)
    }

    /// A meter in one thread, with numbers that do not overflow.
    struct Twin {
        rate: u128,
        full: u128,
        tokens: u128,
        filled_us: u64,
    }

    impl Twin {
        fn admit(&mut self, cost: u128, now_us: u64) -> bool {
            if now_us >= self.filled_us + PERIOD_US {
                let earned = u128::from(now_us - self.filled_us) * self.rate;
                self.tokens = (self.tokens + earned).min(self.full);
                self.filled_us = now_us;
            }
            let passes = self.tokens >= cost;
            if passes {
                self.tokens -= cost;
            }
            passes
        }
    }

    fn number() -> impl Strategy<Value = u32> {
        prop_oneof![
            1..2000u32,
            any::<u32>().prop_map(|rate| rate.max(1)),
            Just(u32::MAX)
        ]
    }

    proptest! {
        #[test]
        fn a_meter_is_a_plain_token_bucket(
            kilobits in any::<bool>(),
            rate in number(),
            burst in prop_oneof![Just(0), number()],
            packets in prop::collection::vec((prop_oneof![0..3000u64, any::<u64>()], 14..65_553u64, 1..5u64), 1..200),
        ) {
            let unit = if kilobits { MeterUnit::Kilobits } else { MeterUnit::Packets };
            let meter = Meter::new(spec(unit, rate, burst), 5);
            let full = u128::from(burst) * 1_000_000;
            let mut twin = Twin { rate: rate.into(), full, tokens: full, filled_us: 5 };
            let (mut now_us, mut seen) = (5u64, MeterStats::default());
            for (pause, bytes, count) in packets {
                now_us = now_us.saturating_add(pause).min(u64::MAX / 2);
                let cost = if kilobits { u128::from(bytes) * 8000 } else { 1_000_000 };
                // Together first, as bursts are, and one by one if that fails.
                let together = meter.all_pass(count, count * bytes, now_us);
                let passes: Vec<_> = (0..count).map(|_| twin.admit(cost, now_us)).collect();
                prop_assert_eq!(together, passes.iter().all(|&passes| passes));
                for &passes in &passes {
                    prop_assert!(together || meter.admit(bytes, now_us) == passes);
                    seen.dropped_packets += u64::from(!passes);
                    seen.dropped_bytes += if passes { 0 } else { bytes };
                }
                seen.packets += count;
                seen.bytes += count * bytes;
            }
            seen.idle_ms = (now_us - twin.filled_us) / 1000;
            prop_assert_eq!(meter.stats(now_us), seen);
        }
    }

    #[test]
    fn threads_together_get_the_rate_and_not_more() {
        let meter = Meter::new(spec(MeterUnit::Packets, 1000, 100), 0);
        let step = AtomicU64::new(0);
        let passed: u64 = std::thread::scope(|scope| {
            let thread = || {
                let mut passed = 0;
                loop {
                    // Two seconds, in steps of 10 us.
                    let now_us = step.fetch_add(10, Relaxed);
                    if now_us >= 2_000_000 {
                        return passed;
                    }
                    passed += u64::from(meter.admit(60, now_us));
                }
            };
            let threads = [(); 4].map(|()| scope.spawn(thread));
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!((2090..=2100).contains(&passed), "{passed}");
        let stats = meter.stats(2_000_000);
        assert_eq!(
            (stats.packets, stats.dropped_packets),
            (200_000, 200_000 - passed)
        );
    }

    #[test]
    fn meters_are_found_under_their_numbers_until_they_change() {
        let meters = Arc::new(Meters::default());
        let (one, other) = (ControllerId(0), ControllerId(1));
        let mut known = KnownMeters::new(meters.clone());
        let mut passes = |controller, id| known.pass(controller, id, 60).is_ok();
        assert!(passes(one, 7), "there is none");
        let closed = spec(MeterUnit::Packets, 1, 0);
        assert!(matches!(meters.set(one, 7, closed), Ok(None)));
        assert!(!passes(one, 7) && passes(other, 7) && passes(one, 8));
        let counted = meters.stats(one, 7).unwrap();
        assert_eq!((counted.packets, counted.dropped_bytes), (1, 60));
        let open = MeterSpec { band: None, ..closed };
        let before = meters.set(one, 7, open).unwrap().unwrap();
        assert_eq!(before.packets, 1);
        assert!(passes(one, 7));
        let removed = meters.remove(one, 7).unwrap();
        assert_eq!((removed.packets, removed.dropped_packets), (1, 0));
        assert!(meters.remove(one, 7).is_none() && meters.stats(one, 7).is_none());
        assert!(passes(one, 7));
        assert!(matches!(meters.set(one, 7, closed), Ok(None)));
        meters.clear(other);
        assert!(!passes(one, 7));
        meters.clear(one);
        assert!(passes(one, 7));
    }

    #[test]
    fn meters_are_bounded_and_rates_are_checked() {
        let meters = Meters::default();
        let (controller, good) = (ControllerId(1), spec(MeterUnit::Kilobits, u32::MAX, u32::MAX));
        let bad = spec(MeterUnit::Kilobits, 0, 1);
        assert!(matches!(meters.set(controller, 1, bad), Err(Refusal::MeterRate)));
        for id in 0..MAX_METERS {
            // Numbers may be any.
            meters
                .set(controller, id.wrapping_mul(0x9e37_79b1), good)
                .unwrap();
        }
        assert!(matches!(meters.set(controller, 1, good), Err(Refusal::Meters)));
        assert!(
            meters.set(controller, 0, good).unwrap().is_some(),
            "replacing takes no room"
        );
        meters.set(ControllerId(0), 1, good).unwrap();
        meters.remove(controller, 0).unwrap();
        meters.set(controller, 1, good).unwrap();
    }
}
