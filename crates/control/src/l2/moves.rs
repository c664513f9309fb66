//! Bounds for stations that move between ports.
//!
//! A move changes all flows from and to the station, in the data plane as well, so it costs all ports. Two guests, or one
//! with two ports, that send from the same address in turn could cause moves without end, and so can a loop in the
//! network. Two bounds limit that:
//!
//! * **Per station** (damping, as in RFC 7432 section 15.1): a station that has moved [`MAX_MOVES`] times within
//!   [`WINDOW_MS`] and would move again is *held* for a time, which doubles each time that happens. It is held at its
//!   home, the port on which it was before the window began, without moving. Frames that come from it elsewhere are
//!   forwarded but not learned from; a flow does that, so they cost the control process nothing either.
//! * **Per port**: re-examining a flow takes one token from the [bucket](Moves::set_limit) of the port to which the station
//!   would move. While the bucket is empty, frames that would move a station to the port are forwarded but not learned from.
//!
//! The safe direction of error is to keep the old place: a station that really moves is seen again.

use super::mac_table::Station;
use flow::PortId;
use std::collections::{BTreeSet, HashMap};

/// Moves of a station within a window after which the next one has it held.
pub const MAX_MOVES: u32 = 5;

/// Length of that window in milliseconds; it begins with a move.
pub const WINDOW_MS: u64 = 10_000;

/// Time for which a station is held at first, in milliseconds.
pub const HOLD_MS: u64 = 10_000;

/// Doublings of that time at most: 320 s.
const MAX_DOUBLINGS: u32 = 5;

/// After so much time without moves or a hold, in milliseconds, a station counts as if it had never moved.
pub const FORGET_MS: u64 = 600_000;

/// Seconds' worth of work that a port may save up for moves.
const SAVED_SECONDS: u64 = 4;

/// Counts since the switch was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveCounts {
    /// Moves made.
    pub made: u64,
    /// Times that a station was held instead of moving once more.
    pub held: u64,
    /// Packets that would have moved a station to a port whose token bucket was empty.
    pub deferred: u64,
}

/// A station that has moved lately.
#[derive(Clone, Copy, Debug)]
struct Mover {
    /// Where it was before the window.
    home: PortId,
    /// When the window began.
    since_ms: u64,
    moves: u32,
    /// How often it was held.
    holds: u32,
    held_until_ms: Option<u64>,
}

/// The token bucket of a port, for moves to it.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    /// In thousandths of a flow; below zero after an expensive move.
    tokens: i64,
    filled_ms: u64,
}

/// How often stations have moved.
#[derive(Clone, Debug, Default)]
pub struct Moves {
    /// The stations that have moved; no more than there are stations.
    movers: HashMap<Station, Mover>,
    /// Stations that are held, by the time at which that ends, in milliseconds.
    holds: BTreeSet<(u64, Station)>,
    /// The token buckets of ports to which stations have moved.
    buckets: HashMap<PortId, TokenBucket>,
    /// Flows per second and port; `None` for no limit.
    limit: Option<u64>,
    counts: MoveCounts,
}

impl Moves {
    pub fn counts(&self) -> MoveCounts {
        self.counts
    }

    /// Flows that may be re-examined for moves to any one port per second; four times as many at once.
    pub fn set_limit(&mut self, flows_per_second: u64) {
        self.limit = Some(flows_per_second.clamp(1, 1 << 20));
    }

    pub fn is_held(&self, station: Station) -> bool {
        self.movers
            .get(&station)
            .is_some_and(|mover| mover.held_until_ms.is_some())
    }

    /// Stations that are held, and until when.
    pub fn held(&self) -> impl Iterator<Item = (Station, u64)> + '_ {
        self.holds.iter().map(|(until, station)| (*station, *until))
    }

    /// When the next hold ends.
    pub fn next_release_ms(&self) -> Option<u64> {
        self.holds.first().map(|(until, _)| *until)
    }

    /// Whether a station may move to `port` as far as that port's token bucket is concerned; if not, that is counted.
    pub fn is_affordable(&mut self, port: PortId, now_ms: u64) -> bool {
        let Some(limit) = self.limit else { return true };
        let most = (limit * SAVED_SECONDS * 1000).cast_signed();
        let full = TokenBucket {
            tokens: most,
            filled_ms: now_ms,
        };
        let bucket = self.buckets.entry(port).or_insert(full);
        let passed = now_ms.saturating_sub(bucket.filled_ms).min(1 << 32);
        bucket.tokens = (bucket.tokens.saturating_add_unsigned(passed * limit)).min(most);
        bucket.filled_ms = bucket.filled_ms.max(now_ms);
        let affordable = bucket.tokens > 0;
        self.counts.deferred += u64::from(!affordable);
        affordable
    }

    /// A station moves from `from` to `to`, which concerns so many flows. Returns its home if it is to be held from now on
    /// instead.
    pub fn moved(
        &mut self,
        station: Station,
        [from, to]: [PortId; 2],
        flows: usize,
        now_ms: u64,
    ) -> Option<PortId> {
        if let Some(bucket) = self.buckets.get_mut(&to) {
            let work = i64::try_from(flows).unwrap_or(i64::MAX).saturating_add(1);
            bucket.tokens = bucket.tokens.saturating_sub(work.saturating_mul(1000));
        }
        let mover = self.movers.entry(station).or_insert(Mover {
            home: from,
            since_ms: now_ms,
            moves: 0,
            holds: 0,
            held_until_ms: None,
        });
        if now_ms >= mover.since_ms + WINDOW_MS {
            (mover.home, mover.since_ms, mover.moves) = (from, now_ms, 0);
        }
        if mover.moves < MAX_MOVES {
            mover.moves += 1;
            self.counts.made += 1;
            return None;
        }
        let until = now_ms + (HOLD_MS << mover.holds.min(MAX_DOUBLINGS));
        mover.holds += 1;
        mover.held_until_ms = Some(until);
        self.holds.insert((until, station));
        self.counts.held += 1;
        Some(mover.home)
    }

    /// Lets go of stations that were held long enough, and returns them. Forgets those that have been quiet.
    pub fn release(&mut self, now_ms: u64) -> Vec<Station> {
        let mut released = Vec::new();
        while let Some((until, station)) = self.holds.first().copied().filter(|(until, _)| *until <= now_ms) {
            self.holds.remove(&(until, station));
            if let Some(mover) = self.movers.get_mut(&station) {
                // Its home stays for another window, so that a station that goes on moving at once has gained nothing.
                (mover.since_ms, mover.moves, mover.held_until_ms) = (now_ms, 0, None);
            }
            released.push(station);
        }
        self.movers
            .retain(|_, mover| mover.held_until_ms.is_some() || now_ms < mover.since_ms + FORGET_MS);
        released
    }

    /// The station is not known any more.
    pub fn forget(&mut self, station: Station) {
        if let Some(until) = self.movers.remove(&station).and_then(|mover| mover.held_until_ms) {
            self.holds.remove(&(until, station));
        }
    }

    /// Forgets all but those of which `keep` says that they may be at their home.
    pub fn retain(&mut self, keep: impl Fn(Station, PortId) -> bool) {
        let away = |(station, mover): (&Station, &Mover)| (!keep(*station, mover.home)).then_some(*station);
        let gone: Vec<Station> = self.movers.iter().filter_map(away).collect();
        gone.into_iter().for_each(|station| self.forget(station));
    }

    /// The port was removed.
    pub fn forget_port(&mut self, port: PortId) {
        self.buckets.remove(&port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATION: Station = Station { vlan: 0, mac: 2 };
    const PLACES: [PortId; 2] = [PortId(1), PortId(2)];

    /// Moves to and fro until it is held, a millisecond each; returns when that was.
    fn storm(moves: &mut Moves, mut now_ms: u64) -> u64 {
        let mut places = PLACES;
        for _ in 0..MAX_MOVES {
            assert_eq!(moves.moved(STATION, places, 0, now_ms), None);
            places.reverse();
            now_ms += 1;
        }
        assert_eq!(
            moves.moved(STATION, places, 0, now_ms),
            Some(PLACES[0]),
            "back to its home"
        );
        now_ms
    }

    #[test]
    fn who_moves_too_often_is_held_at_home_for_longer_and_longer() {
        let mut moves = Moves::default();
        let mut now_ms = 1000;
        for hold in [10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 320_000] {
            now_ms = storm(&mut moves, now_ms);
            assert!(moves.is_held(STATION));
            assert_eq!(moves.next_release_ms(), Some(now_ms + hold));
            assert_eq!(moves.release(now_ms + hold - 1), []);
            now_ms += hold;
            assert_eq!(moves.release(now_ms), [STATION]);
            assert!(!moves.is_held(STATION));
        }
        assert_eq!(moves.counts().held, 7);
        assert_eq!(moves.counts().made, 7 * u64::from(MAX_MOVES));
        // Long after, the earlier moves do not count any more.
        moves.release(now_ms + FORGET_MS);
        assert!(moves.movers.is_empty());
        now_ms = storm(&mut moves, now_ms + FORGET_MS);
        assert_eq!(moves.next_release_ms(), Some(now_ms + HOLD_MS));
        moves.forget(STATION);
        assert_eq!((moves.next_release_ms(), moves.held().count()), (None, 0));
    }

    #[test]
    fn who_moves_now_and_then_is_never_held() {
        let mut moves = Moves::default();
        for number in 0..1000 {
            assert_eq!(moves.moved(STATION, PLACES, 0, number * WINDOW_MS / 5), None);
        }
    }

    #[test]
    fn a_port_s_moves_cost_what_they_are_worth() {
        let mut moves = Moves::default();
        moves.set_limit(100);
        let mut now_ms = 0;
        let made = |moves: &mut Moves, flows: usize, now_ms: u64| {
            let mut count = 0;
            while moves.is_affordable(PortId(2), now_ms) {
                count += 1;
                let station = Station {
                    vlan: 0,
                    mac: now_ms << 16 | count,
                };
                moves.moved(station, PLACES, flows, now_ms);
            }
            count
        };
        assert_eq!(made(&mut moves, 0, now_ms), 400, "saved up");
        now_ms += 1000;
        assert_eq!(made(&mut moves, 0, now_ms), 100);
        // A move that costs more than the tokens left is made, and paid for later.
        now_ms += 1000;
        assert_eq!(made(&mut moves, 999, now_ms), 1);
        assert_eq!(made(&mut moves, 999, now_ms + 9000), 0);
        assert_eq!(made(&mut moves, 999, now_ms + 9001), 1);
        assert!(moves.is_affordable(PortId(1), now_ms), "others have their own");
        assert_eq!(moves.counts().deferred, 5);
        // A year without moves does not save up a year's tokens.
        assert_eq!(made(&mut moves, 0, now_ms + 31_557_600_000), 400);
    }
}
