//! A key's second set.
//!
//! Hashes put several keys into one set and none into another one. If each key had one set of two ways, one
//! in thirty would find it taken in a cache that has just grown, and one in five in a cache that is three
//! quarters full; each packet of such a key would have to be walked. So a key has two sets, by two halves of
//! its hash (Y. Azar et al., *Balanced Allocations*, STOC 1994). If both are taken, a key that is there may
//! give way to its own other set, and so on for a few keys (R. Pagh and F. Rodler, *Cuckoo Hashing*, ESA
//! 2001).
//!
//! Four of five keys are in their first set even then. It alone is looked at for a packet that hits, and no
//! hit costs more than without second sets.

use super::{MicroflowCache, Set, way_of};
use flow::ExactKey;

/// Keys that give way, one after the other, for a new one.
const MOVES: u32 = 3;

/// The hash that a key is found by in its other set.
#[inline]
pub fn second(hash: u64) -> u64 {
    hash.rotate_left(32)
}

impl MicroflowCache {
    /// The way for a key in one of its sets, with the hash for that set: where the key is, or a free way, or,
    /// if one is to be replaced, that of a decision that has ended or was used less recently.
    pub(super) fn room_for(
        &mut self,
        hash: u64,
        key: &ExactKey,
        mask: impl Fn(usize) -> u64 + Copy,
        replace: bool,
        now_ms: u64,
    ) -> Option<(u64, usize)> {
        let hashes = [hash, second(hash)];
        let in_sets = |find: &dyn Fn(u64, &Set) -> Option<usize>| {
            hashes
                .iter()
                .find_map(|&hash| Some((hash, find(hash, &self.sets[self.set(hash)])?)))
        };
        let there =
            in_sets(&|hash, set| way_of(set, hash, key, mask)).or_else(|| in_sets(&|_, set| free(set)));
        if there.is_some() {
            return there;
        }
        if replace {
            return Some((hash, victim(&self.sets[self.set(hash)])));
        }
        // In a cache that is nearly full, hardly any key finds room.
        if self.held * 8 > self.sets.len() * super::WAYS * 7 {
            return None;
        }
        hashes
            .iter()
            .find_map(|&hash| Some((hash, self.make_room(self.set(hash), MOVES, now_ms)?)))
    }

    /// Moves one of a set's keys to its other set, in which another one may have to give way first. Returns
    /// the way that is free then.
    fn make_room(&mut self, set: usize, moves: u32, now_ms: u64) -> Option<usize> {
        if let Some(way) = free(&self.sets[set]) {
            return Some(way);
        }
        let moves = moves.checked_sub(1)?;
        (0..super::WAYS).find(|&way| {
            let hash = second(self.sets[set][way].hash);
            let to = self.set(hash);
            let Some(room) = self.make_room(to, moves, now_ms) else {
                return false;
            };
            // The key may have moved already, if its sets are the same.
            if self.sets[set][way].decision.is_some() {
                self.move_key((set, way), (to, room), hash, now_ms);
            }
            true
        })
    }

    /// Moves a key to a free way of the set that it has by this hash.
    fn move_key(&mut self, (set, way): (usize, usize), (to, room): (usize, usize), hash: u64, now_ms: u64) {
        let slot = &mut self.sets[set][way];
        let counted = slot.counted;
        slot.flush_stats(now_ms);
        let mut moved = std::mem::take(slot);
        // The place is still on the list.
        slot.counted = counted;
        let free = &mut self.sets[to][room];
        (moved.hash, moved.counted) = (hash, free.counted);
        *free = moved;
    }
}

fn free(set: &Set) -> Option<usize> {
    set.iter().position(|slot| slot.decision.is_none())
}

/// The way of a key that is replaced: of one whose decision has ended, or of the one used less recently.
fn victim(set: &Set) -> usize {
    let ended = set.iter().position(|slot| !slot.is_live());
    ended.unwrap_or(usize::from(set[0].recent))
}
