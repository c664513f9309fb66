//! Which flows are worth a filter, learned from rates that the control process reads anyway.
//!
//! Filters are few, so they go to those flows that gain most by them: the gain is the frames per second that
//! need no forwarder. A flow comes, and goes, by different bounds, so that none flaps:
//!
//! | a filter is | when |
//! |---|---|
//! | programmed | The flow's rate has been above [`Limits::enter`] at [`STEADY`] looks, and there is room. |
//! | evicted | Another flow has twice the rate of the least useful one, which has had its filter for [`STAY_MS`]. |
//! | removed | The rate has been below [`Limits::leave`] at [`STEADY`] looks, or the flow has gone. |
//! | not programmed again | within [`PAUSE_MS`] after that, twice as long after each further time, up to [`LONGEST_PAUSE_MS`] |
//!
//! Guests choose how many flows they have. Those with a low rate are not remembered, and what is remembered
//! of others ends with them, so memory is bounded by what passes [`Limits::enter`] at a time, and by
//! [`MOST_PAUSES`].

use std::collections::BTreeMap;

/// Looks in a row that a bound needs.
const STEADY: u8 = 2;

/// Time in milliseconds for which a filter is not evicted.
const STAY_MS: u64 = 3_000;

/// Time in milliseconds without a filter after it was taken away, at first.
const PAUSE_MS: u64 = 2_000;

/// The longest such time.
const LONGEST_PAUSE_MS: u64 = 60_000;

/// Time in milliseconds after a pause in which the next one is longer.
const REMEMBERED_MS: u64 = 60_000;

/// Flows whose pauses are remembered.
const MOST_PAUSES: usize = 4_096;

/// Changes per look at most: each is a message, and a wait for the flow.
const MOST_CHANGES: usize = 16;

/// Bounds of a [`Learner`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Filters that there may be.
    pub filters: usize,
    /// Frames per second from which on a flow is worth a filter.
    pub enter: u64,
    /// Frames per second below which it is not any more; less than `enter`.
    pub leave: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            filters: 64,
            enter: 1_000,
            leave: 250,
        }
    }
}

/// What is to be done about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change<K> {
    /// Another flow gains more by a filter: this one's is to be removed.
    Evict(K),
    /// The flow's filter is to be removed.
    Remove(K),
    /// A filter is to be programmed.
    Program(K),
}

/// Learns flows that are worth filters.
#[derive(Debug)]
pub struct Learner<K> {
    limits: Limits,
    /// When it was told of rates last.
    told_ms: Option<u64>,
    /// Flows with a filter, or that may get one.
    known: BTreeMap<K, Known>,
    pauses: BTreeMap<K, Pause>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// Frames since the flow began, as told last.
    frames: u64,
    /// Frames per second, as of the last look; `None` for a flow that was met then.
    rate: Option<u64>,
    /// Looks in a row at which the rate was beyond the bound that matters.
    beyond: u8,
    /// When its filter was programmed.
    since_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until_ms: u64,
    length_ms: u64,
}

impl Known {
    /// A flow that has had so many frames before.
    fn met(frames: u64) -> Known {
        Known {
            frames,
            rate: None,
            beyond: 0,
            since_ms: None,
        }
    }
}

impl<K: Ord + Copy> Learner<K> {
    /// Without filters.
    pub fn new(limits: Limits) -> Learner<K> {
        Learner {
            limits,
            told_ms: None,
            known: BTreeMap::new(),
            pauses: BTreeMap::new(),
        }
    }

    /// Flows that have filters, as far as it was told.
    pub fn filters(&self) -> impl Iterator<Item = K> + '_ {
        let filtered = |(key, known): (&K, &Known)| known.since_ms.map(|_| *key);
        self.known.iter().filter_map(filtered)
    }

    /// The filter of a flow has gone, or could not be programmed: its frames take the slow path.
    pub fn on_lost(&mut self, key: K, now_ms: u64) {
        if self
            .known
            .remove(&key)
            .is_some_and(|known| known.since_ms.is_some())
        {
            self.pause(key, now_ms);
        }
    }

    /// Takes the number of frames that each flow has had, by any way, since it began. Returns what is to be
    /// done, removals first.
    pub fn look(&mut self, flows: &BTreeMap<K, u64>, now_ms: u64) -> Vec<Change<K>> {
        let passed_ms = now_ms.saturating_sub(self.told_ms.unwrap_or(0));
        if self.told_ms.is_some() && passed_ms == 0 {
            return Vec::new();
        }
        self.told_ms = Some(now_ms);
        self.measure(flows, passed_ms);
        let mut changes = self.remove_useless(flows, now_ms);
        self.forget_slow(flows);
        self.admit(&mut changes, now_ms);
        changes
    }

    /// Notes rates, of flows that were known before.
    fn measure(&mut self, flows: &BTreeMap<K, u64>, passed_ms: u64) {
        for (key, &frames) in flows {
            let Some(known) = self.known.get_mut(key) else {
                self.known.insert(*key, Known::met(frames));
                continue;
            };
            // A flow that began anew counts from the beginning.
            let came = frames.checked_sub(known.frames).unwrap_or(frames);
            let rate = came.saturating_mul(1000) / passed_ms.max(1);
            (known.frames, known.rate) = (frames, Some(rate));
            let is_beyond = match known.since_ms {
                Some(_) => rate < self.limits.leave,
                None => rate >= self.limits.enter,
            };
            known.beyond = if is_beyond {
                known.beyond.saturating_add(1)
            } else {
                0
            };
        }
    }

    fn remove_useless(&mut self, flows: &BTreeMap<K, u64>, now_ms: u64) -> Vec<Change<K>> {
        let useless = |(key, known): (&K, &Known)| {
            let is_useless = !flows.contains_key(key) || known.beyond >= STEADY;
            (known.since_ms.is_some() && is_useless).then_some(*key)
        };
        let all: Vec<K> = self.known.iter().filter_map(useless).collect();
        all.into_iter()
            .map(|key| {
                self.known.remove(&key);
                self.pause(key, now_ms);
                Change::Remove(key)
            })
            .collect()
    }

    /// Flows without a filter are remembered while they are candidates, or were just met.
    fn forget_slow(&mut self, flows: &BTreeMap<K, u64>) {
        let enter = self.limits.enter;
        self.known.retain(|key, known| {
            let may_enter = known.rate.is_none_or(|rate| rate >= enter);
            known.since_ms.is_some() || may_enter && flows.contains_key(key)
        });
    }

    /// Gives filters to those flows that gain most.
    fn admit(&mut self, changes: &mut Vec<Change<K>>, now_ms: u64) {
        let mut candidates: Vec<(u64, K)> = self
            .known
            .iter()
            .filter(|(key, known)| {
                let pauses = self.pauses.get(key).is_some_and(|pause| now_ms < pause.until_ms);
                known.since_ms.is_none() && known.beyond >= STEADY && !pauses
            })
            .map(|(key, known)| (known.rate.unwrap_or(0), *key))
            .collect();
        candidates.sort_unstable_by(|one, other| other.cmp(one));
        for (rate, key) in candidates {
            if changes.len() + 2 > MOST_CHANGES {
                break;
            }
            if self.filters().count() >= self.limits.filters {
                let Some(loser) = self.least_useful(rate, now_ms) else {
                    break;
                };
                self.known.remove(&loser);
                self.pause(loser, now_ms);
                changes.push(Change::Evict(loser));
            }
            if let Some(known) = self.known.get_mut(&key) {
                (known.since_ms, known.beyond) = (Some(now_ms), 0);
                changes.push(Change::Program(key));
            }
        }
    }

    /// The flow that gives its filter up for one of this rate.
    fn least_useful(&self, rate: u64, now_ms: u64) -> Option<K> {
        let old = |(key, known): (&K, &Known)| {
            let since_ms = known.since_ms?;
            (now_ms.saturating_sub(since_ms) >= STAY_MS).then_some((known.rate.unwrap_or(0), *key))
        };
        let (least, key) = self.known.iter().filter_map(old).min()?;
        (rate >= least.saturating_mul(2)).then_some(key)
    }

    fn pause(&mut self, key: K, now_ms: u64) {
        let before = self
            .pauses
            .get(&key)
            .map_or(PAUSE_MS / 2, |pause| pause.length_ms);
        self.pauses
            .retain(|_, pause| now_ms < pause.until_ms.saturating_add(REMEMBERED_MS));
        let length_ms = if self.pauses.contains_key(&key) {
            before * 2
        } else {
            PAUSE_MS
        };
        let length_ms = length_ms.min(LONGEST_PAUSE_MS);
        if self.pauses.len() < MOST_PAUSES || self.pauses.contains_key(&key) {
            let until_ms = now_ms + length_ms;
            self.pauses.insert(key, Pause { until_ms, length_ms });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flows by number, each with a rate that a test changes, and a learner that is told once a second.
    struct Scene {
        learner: Learner<u32>,
        rates: BTreeMap<u32, u64>,
        frames: BTreeMap<u32, u64>,
        now_ms: u64,
        changes: usize,
    }

    impl Scene {
        fn new(filters: usize) -> Scene {
            let limits = Limits {
                filters,
                ..Limits::default()
            };
            Scene {
                learner: Learner::new(limits),
                rates: BTreeMap::new(),
                frames: BTreeMap::new(),
                now_ms: 5,
                changes: 0,
            }
        }

        fn second(&mut self) -> Vec<Change<u32>> {
            self.now_ms += 1000;
            for (key, rate) in &self.rates {
                *self.frames.entry(*key).or_default() += rate;
            }
            let changes = self.learner.look(&self.frames, self.now_ms);
            self.changes += changes.len();
            changes
        }

        fn seconds(&mut self, seconds: usize) -> Vec<u32> {
            (0..seconds).for_each(|_| drop(self.second()));
            self.learner.filters().collect()
        }
    }

    #[test]
    fn the_highest_gain_goes_first_and_slow_flows_get_nothing() {
        let mut scene = Scene::new(2);
        scene.rates = [(1, 900), (2, 5000), (3, 1500), (4, 9000)].into();
        assert_eq!(scene.second(), [], "no rate is known yet");
        assert_eq!(scene.second(), []);
        assert_eq!(scene.second(), [Change::Program(4), Change::Program(2)]);
        assert_eq!(scene.seconds(20), [2, 4]);
        assert_eq!(scene.changes, 2);
    }

    #[test]
    fn the_least_useful_is_evicted_for_twice_as_much() {
        let mut scene = Scene::new(2);
        scene.rates = [(1, 2000), (2, 5000)].into();
        assert_eq!(scene.seconds(4), [1, 2]);
        scene.rates.insert(3, 3900);
        assert_eq!(scene.seconds(10), [1, 2], "less than twice as much");
        scene.rates.insert(3, 4000);
        let mut all = Vec::new();
        (0..4).for_each(|_| all.extend(scene.second()));
        assert_eq!(all, [Change::Evict(1), Change::Program(3)]);
    }

    #[test]
    fn a_filter_is_not_evicted_at_once() {
        let mut scene = Scene::new(1);
        scene.rates = [(1, 1000)].into();
        assert_eq!(scene.seconds(3), [1]);
        scene.rates.insert(2, 100_000);
        assert_eq!(scene.seconds(2), [1]);
        assert_eq!(scene.seconds(2), [2]);
    }

    #[test]
    fn a_rate_between_the_bounds_keeps_a_filter_and_gets_none() {
        let mut scene = Scene::new(8);
        scene.rates = [(1, 2000), (2, 500)].into();
        assert_eq!(scene.seconds(4), [1]);
        scene.rates.insert(1, 500);
        assert_eq!(scene.seconds(10), [1]);
        scene.rates.insert(1, 100);
        assert_eq!(scene.seconds(3), []);
    }

    #[test]
    fn a_flow_that_comes_and_goes_does_so_ever_more_seldom() {
        let mut scene = Scene::new(8);
        for second in 0..600u64 {
            let rate = if second / 4 % 2 == 0 { 10_000 } else { 0 };
            scene.rates.insert(1, rate);
            scene.second();
        }
        assert!(scene.changes <= 40, "{} changes in 75 rounds", scene.changes);
        scene.rates.insert(1, 10_000);
        assert_eq!(scene.seconds(130), [1], "and stays when it stays");
    }

    #[test]
    fn memory_is_bounded_and_so_are_changes() {
        let mut scene = Scene::new(100);
        for round in 0..50 {
            scene.frames.clear();
            scene.rates = (0..5000).map(|flow| (round * 5000 + flow, 2000)).collect();
            for _ in 0..3 {
                assert!(scene.second().len() <= MOST_CHANGES + 100);
            }
            assert!(scene.learner.known.len() <= 5000 + 100);
        }
        assert!(scene.learner.pauses.len() <= MOST_PAUSES);
        scene.rates.clear();
        scene.frames.clear();
        scene.seconds(3);
        assert!(scene.learner.known.is_empty());
    }

    #[test]
    fn a_flow_that_began_anew_or_lost_its_filter_is_learned_again() {
        let mut scene = Scene::new(8);
        scene.rates = [(1, 2000)].into();
        assert_eq!(scene.seconds(4), [1]);
        scene.frames.insert(1, 0);
        assert_eq!(scene.seconds(3), [1]);
        let now_ms = scene.now_ms;
        scene.learner.on_lost(1, now_ms);
        assert_eq!(scene.seconds(1), []);
        assert_eq!(scene.seconds(4), [1]);
    }
}
