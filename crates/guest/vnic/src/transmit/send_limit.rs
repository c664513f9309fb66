//! The bandwidth of what a guest sends, if it is bounded. What exceeds it is not fetched: it stays in the
//! guest's ring, and nothing is lost.
//!
//! | [`Fetching`] | enters when | allowed |
//! |---|---|---|
//! | `Free` | the ring starts, and the port has no limit | fetch, have kicks |
//! | `Limited` | the ring starts with a limit; a receiver with a bandwidth says how much it has room for; or `Waiting` is over | fetch as much as may pass, have kicks |
//! | `Waiting` | all that may pass has passed | nothing until a time, or until the receiver has room: no look at the ring, no kicks; a timer of the caller ends it, or who delivers |
//! | `Draining` | the ring is about to stop | nothing |
//!
//! The last frame of a burst may exceed what may pass, by its whole length: the debt is paid by waiting. The
//! ring waits for somewhat more than the debt, so that it is woken a thousand times a second at most.
//!
//! The limit belongs to the port: a ring that stops and starts gains nothing.

use flow::RateLimit;
use pacing::ByteBucket;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Longest time for which a ring waits after its debt is paid, in nanoseconds.
const GATHER_NS: u64 = 1_000_000;

/// A segment counts as this many bytes at least. A guest that has its frames cut into very short segments
/// would otherwise send headers for nothing.
const LEAST_SEGMENT: u64 = 512;

/// Whether packets are fetched from a ring. See the module's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fetching {
    Free,
    Limited,
    Waiting,
    Draining,
}

impl Fetching {
    pub fn start(limit: Option<&Arc<SendLimit>>) -> Fetching {
        match limit {
            Some(_) => Fetching::Limited,
            None => Fetching::Free,
        }
    }
}

/// A port's bandwidth. The holder of the transmit side uses it, and the channel thread changes it.
#[derive(Debug)]
pub(crate) struct SendLimit {
    state: Mutex<State>,
    waits: AtomicU64,
}

#[derive(Debug)]
struct State {
    limit: RateLimit,
    bucket: ByteBucket,
    /// Nothing is fetched before this time.
    until_ns: u64,
}

impl SendLimit {
    /// Times are of [`cpu::now_ns`].
    pub fn new(limit: RateLimit, now_ns: u64) -> SendLimit {
        SendLimit {
            state: Mutex::new(State {
                limit,
                bucket: ByteBucket::new(limit.bits_per_second, limit.burst, now_ns),
                until_ns: 0,
            }),
            waits: AtomicU64::new(0),
        }
    }

    pub fn set(&self, limit: RateLimit) {
        let mut state = self.state();
        if state.limit != limit {
            state.limit = limit;
            state.bucket.set(limit.bits_per_second, limit.burst);
            state.until_ns = 0;
        }
    }

    /// How often the ring has begun to wait.
    pub fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    /// Bytes that may be fetched; none while the ring waits.
    pub(super) fn available(&self, now_ns: u64) -> Option<u64> {
        let mut state = self.state();
        if now_ns < state.until_ns {
            return None;
        }
        let available = state.bucket.available(now_ns);
        if available > 0 {
            return Some(available);
        }
        let gather_ns = GATHER_NS.min(state.bucket.burst_ns() / 2);
        state.until_ns = state.bucket.paid_ns().saturating_add(gather_ns);
        self.waits.fetch_add(1, Relaxed);
        None
    }

    pub(super) fn charge(&self, bytes: u64, now_ns: u64) {
        self.state().bucket.charge(bytes, now_ns);
    }

    /// How long the ring still waits.
    pub(super) fn left_ns(&self, now_ns: u64) -> u64 {
        self.state().until_ns.saturating_sub(now_ns)
    }

    /// Nobody waits for the lock: the channel thread holds it while it changes the limit.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a frame counts as, which is to be cut into segments with `segment` bytes of payload; 0: not at all.
pub(super) fn counted_bytes(frame_len: usize, segment: u16) -> u64 {
    let frame_len = frame_len as u64;
    match u64::from(segment) {
        0 => frame_len,
        segment => frame_len.max(frame_len.div_ceil(segment) * LEAST_SEGMENT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_segments_count_as_what_they_become() {
        assert_eq!(counted_bytes(1514, 0), 1514);
        assert_eq!(counted_bytes(65_226, 1448), 65_226, "as usual");
        assert_eq!(counted_bytes(60_000, 8), 7500 * LEAST_SEGMENT);
    }

    #[test]
    fn a_ring_waits_for_its_debt_and_a_little_more() {
        const START: u64 = 1_000_000_000;
        let limit = RateLimit {
            bits_per_second: 8_000_000,
            burst: 10_000,
        };
        let limited = SendLimit::new(limit, START);
        assert_eq!(limited.available(START), Some(10_000));
        limited.charge(15_000, START);
        assert_eq!((limited.available(START), limited.waits()), (None, 1));
        assert_eq!(limited.left_ns(START), 5_000_000 + GATHER_NS);
        let soon_ns = START + 5_500_000;
        assert_eq!((limited.available(soon_ns), limited.waits()), (None, 1));
        let then_ns = START + 6_000_000;
        assert_eq!(limited.available(then_ns), Some(1000));
        // A higher rate holds at once.
        limited.charge(2000, then_ns);
        assert_eq!(limited.available(then_ns), None);
        limited.set(RateLimit {
            bits_per_second: 80_000_000,
            ..limit
        });
        assert_eq!(
            limited.available(then_ns + 1_000_000),
            Some(1),
            "the debt was of one millisecond"
        );
    }
}
