//! How many messages a VMM may send, by what they cost.
//!
//! A VMM that starts says many things once, and repeats many of them; a VMM that does harm changes something
//! again and again: rings stop and start, memory is mapped and unmapped. So two things have a rate:
//! *changes*, and messages of any kind. Saying something for the first time in a connection, or once more
//! what was said before, is no change. A VMM may start with any number of messages that it has a reason to
//! send, and none of its changes are delayed before [`CHANGES`] are used up.
//!
//! A port has a burst of its own, which comes back slowly. Messages beyond it also take a token that the
//! gates of all ports share, and get it in the order in which they ask: each gate asks for one token at a
//! time, so gates are served in turn.

use super::HEADER;
use crate::pause::{Forgiven, LONG_WORK, Pace};
use pacing::{TokenBucket, since_first};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Messages of a port at once.
const MESSAGES: u32 = 4096;
/// Changes of a port at once.
const CHANGES: u32 = 128;
/// Messages, and changes, of a port per second afterwards.
const PER_SECOND: u32 = 100;
/// Half of a burst takes no token of all ports; how many of these messages, and changes, come back per
/// second.
const OWN_PER_SECOND: u32 = 5;
/// Messages per second of all ports together beyond these.
const ALL_PER_SECOND: u32 = 1000;

/// Processor time is measured; it includes what the machine's host takes from a core.
const FORGIVEN: Forgiven = Forgiven {
    pauses_us: 500_000,
    work_us: 1000,
};

/// Different things of which it is known that they were said: more than two rings have.
const MOST_KNOWN: usize = 64;

static ALL: LazyLock<Mutex<TokenBucket>> =
    LazyLock::new(|| Mutex::new(TokenBucket::new(ALL_PER_SECOND, ALL_PER_SECOND)));

// Requests that change something, numbered as in the vhost-user specification, "Front-end message types".
const SET_FEATURES: u32 = 2;
const RESET_OWNER: u32 = 4;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_ADDR: u32 = 9;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const SET_VRING_ENABLE: u32 = 18;
const RESET_DEVICE: u32 = 34;
const ADD_MEM_REG: u32 = 37;
const REM_MEM_REG: u32 = 38;

/// What a connection has said so far.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Request and ring, and a hash of the payload.
    known: Vec<(u32, u8, u64)>,
    regions: usize,
}

impl Said {
    /// Notes a message; returns whether it changes what was said before.
    pub fn changes(&mut self, message: &[u8], has_files: bool) -> bool {
        let (header, payload) = message.split_at(HEADER.min(message.len()));
        let request = header.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        // Where it matters, the number of the ring comes first.
        let ring = payload.first().copied().unwrap_or(0);
        match request {
            SET_MEM_TABLE | SET_VRING_KICK | SET_VRING_CALL => {
                self.remember(request, ring, payload) != New::First
            }
            SET_FEATURES => self.remember(request, 0, payload) == New::Changed,
            SET_VRING_ADDR | SET_VRING_ENABLE => self.remember(request, ring, payload) == New::Changed,
            RESET_OWNER | GET_VRING_BASE | RESET_DEVICE | REM_MEM_REG => true,
            ADD_MEM_REG => {
                self.regions += 1;
                self.regions > guest_memory::MAX_REGIONS
            }
            _ => has_files,
        }
    }

    fn remember(&mut self, request: u32, ring: u8, payload: &[u8]) -> New {
        let mut hasher = DefaultHasher::new();
        payload.hash(&mut hasher);
        let hash = hasher.finish();
        let has_room = self.known.len() < MOST_KNOWN;
        let known = self
            .known
            .iter_mut()
            .find(|known| (known.0, known.1) == (request, ring));
        match known {
            Some((.., before)) if *before == hash => New::Same,
            Some((.., before)) => {
                *before = hash;
                New::Changed
            }
            None if has_room => {
                self.known.push((request, ring, hash));
                New::First
            }
            None => New::Changed,
        }
    }
}

/// Something that is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum New {
    First,
    Same,
    Changed,
}

/// A bound on one kind of messages.
#[derive(Debug)]
struct Bound {
    /// Messages that take no token of all ports.
    own: TokenBucket,
    most: TokenBucket,
}

impl Bound {
    fn new(burst: u32) -> Bound {
        Bound {
            own: TokenBucket::new(burst / 2, OWN_PER_SECOND),
            most: TokenBucket::new(burst, PER_SECOND),
        }
    }
}

/// What a port's VMM may send, in this connection and the next ones.
#[derive(Debug)]
pub struct Allowance {
    messages: Bound,
    changes: Bound,
    /// Of work whose cost the VMM may determine.
    pub(super) pace: Pace,
}

impl Default for Allowance {
    fn default() -> Self {
        Allowance {
            messages: Bound::new(MESSAGES),
            changes: Bound::new(CHANGES),
            pace: Pace::new(&LONG_WORK, FORGIVEN),
        }
    }
}

impl Allowance {
    /// Counts a message; returns how long the VMM's next one has to wait.
    pub fn charge(&mut self, is_change: bool, now: Instant) -> Duration {
        self.charge_with(&ALL, is_change, now)
    }

    fn charge_with(&mut self, all: &Mutex<TokenBucket>, is_change: bool, now: Instant) -> Duration {
        let bounds = [
            Some(&mut self.messages),
            Some(&mut self.changes).filter(|_| is_change),
        ];
        let now = since_first(now);
        let (mut wait, mut is_own) = (Duration::ZERO, true);
        for bound in bounds.into_iter().flatten() {
            wait = wait.max(bound.most.reserve(now));
            is_own &= bound.own.take(now);
        }
        if is_own {
            return wait;
        }
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        wait.max(all.reserve(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(request: u32, payload: &[u32]) -> Vec<u8> {
        let words = [request, 1, 4 * payload.len() as u32];
        words
            .iter()
            .chain(payload)
            .flat_map(|word| word.to_ne_bytes())
            .collect()
    }

    fn changes(said: &mut Said, request: u32, payload: &[u32]) -> bool {
        said.changes(&message(request, payload), false)
    }

    #[test]
    fn what_is_said_first_or_again_is_no_change() {
        let mut said = Said::default();
        for request in (0..50).filter(|&request| request != SET_FEATURES) {
            let dear = [RESET_OWNER, GET_VRING_BASE, RESET_DEVICE, REM_MEM_REG];
            for ring in [0, 1] {
                let first = changes(&mut said, request, &[ring, 1]);
                assert_eq!(first, dear.contains(&request), "{request}");
            }
        }
        assert!(!changes(&mut said, SET_VRING_ENABLE, &[1, 1]));
        assert!(changes(&mut said, SET_VRING_ENABLE, &[1, 0]));
        assert!(!changes(&mut said, SET_VRING_ENABLE, &[0, 1]), "the other ring");
        assert!(changes(&mut said, SET_VRING_ENABLE, &[1, 1]));
        assert!(!changes(&mut said, SET_FEATURES, &[0, 1]));
        assert!(!changes(&mut said, SET_FEATURES, &[0, 1]));
        assert!(changes(&mut said, SET_FEATURES, &[1, 1]));
        // New descriptors come with these.
        assert!(changes(&mut said, SET_VRING_KICK, &[0, 1]));
        assert!(changes(&mut said, SET_MEM_TABLE, &[0, 1]));
        assert!(said.changes(&message(99, &[]), true));
        assert!(!said.changes(&[], false));
    }

    #[test]
    fn memory_slots_are_free_once() {
        let mut said = Said::default();
        for slot in 0..2 * guest_memory::MAX_REGIONS {
            let is_change = changes(&mut said, ADD_MEM_REG, &[slot as u32]);
            assert_eq!(is_change, slot >= guest_memory::MAX_REGIONS);
        }
    }

    #[test]
    fn rings_without_number_are_not_remembered_without_end() {
        let mut said = Said::default();
        let first = (0..256)
            .filter(|&ring| !changes(&mut said, SET_VRING_KICK, &[ring, 0]))
            .count();
        assert_eq!((first, said.known.len()), (MOST_KNOWN, MOST_KNOWN));
    }

    /// How long `count` messages of a VMM take that sends each as soon as it may.
    fn time(allowance: &mut Allowance, all: &Mutex<TokenBucket>, count: usize, is_change: bool) -> Duration {
        let (start, mut wait) = (Instant::now(), Duration::ZERO);
        for _ in 0..count {
            wait += allowance.charge_with(all, is_change, start + wait);
        }
        wait
    }

    #[test]
    fn a_start_is_not_delayed_and_changes_without_end_are() {
        let all = || Mutex::new(TokenBucket::new(ALL_PER_SECOND, ALL_PER_SECOND));
        let mut allowance = Allowance::default();
        assert_eq!(time(&mut allowance, &all(), 2048, false), Duration::ZERO);
        assert!(time(&mut allowance, &all(), 4096, false) > Duration::from_secs(20));
        let mut allowance = Allowance::default();
        assert_eq!(time(&mut allowance, &all(), 128, true), Duration::ZERO);
        assert!(time(&mut allowance, &all(), 500, true) > Duration::from_secs(4));
        assert_eq!(
            time(&mut Allowance::default(), &all(), 1500, false),
            Duration::ZERO
        );
    }

    /// Ports that change something all the time, and one that begins to later: each gets its share of what
    /// all have together, and waits for no longer than one message of each of the others takes.
    #[test]
    fn gates_are_served_in_turn() {
        const PORTS: usize = 200;
        let start = Instant::now();
        let all = Mutex::new(TokenBucket::new(ALL_PER_SECOND, ALL_PER_SECOND));
        let mut ports: Vec<_> = (0..PORTS)
            .map(|_| (Allowance::default(), Duration::ZERO, 0u32))
            .collect();
        ports[PORTS - 1].1 = Duration::from_secs(5);
        let mut longest = Duration::ZERO;
        loop {
            let next = (0..PORTS).min_by_key(|&port| ports[port].1).unwrap();
            let (allowance, at, count) = &mut ports[next];
            if *at > Duration::from_secs(25) {
                break;
            }
            let wait = allowance.charge_with(&all, true, start + *at);
            *at += wait;
            // Once all have used up their bursts.
            *count += u32::from(*at > Duration::from_secs(10));
            if next == PORTS - 1 {
                longest = longest.max(wait);
            }
        }
        let most = Duration::from_secs(1) * (PORTS as u32 + 1) / ALL_PER_SECOND;
        assert!(longest <= most, "{longest:?}");
        let counts: Vec<_> = ports[..PORTS - 1].iter().map(|port| port.2).collect();
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        let fair = 15 * (ALL_PER_SECOND / PORTS as u32 + OWN_PER_SECOND);
        assert!(
            most - least <= 2 && *most <= fair + 2,
            "{least} to {most}, {fair}"
        );
        assert!(ports[PORTS - 1].2 >= *least, "{}", ports[PORTS - 1].2);
    }
}
