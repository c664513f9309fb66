//! When a driver is called for frames that were sent.
//!
//! Linux frees sent frames when it receives as well (`virtnet_poll_cleantx` in its driver), so a guest that
//! is about to receive need not be interrupted for those that it sent. While a guest receives, the call is
//! put off, and is not made if the driver has looked at the used ring meanwhile. A guest that only sends is
//! called at once.

use std::num::NonZeroU64;

/// The call for sent frames of one ring. Times are in nanoseconds of any one clock.
#[derive(Debug, Default)]
pub(super) struct Completion {
    /// When the call that is put off is due.
    due_ns: Option<NonZeroU64>,
    /// When `received` had changed last.
    received_ns: u64,
    /// Packets that the guest had received when a call was owed last, modulo 2^32.
    received: u32,
    /// The driver's event index when a call was owed last.
    event: u16,
}

impl Completion {
    /// The driver wants no call, or not yet.
    #[inline]
    pub fn clear(&mut self) {
        self.due_ns = None;
    }

    /// A call is owed to a guest that has received so many packets in all, and whose driver has that event
    /// index. Returns until when it is put off, at most `interval_ns` from when it was owed first, or `None`
    /// if it is to be made now.
    pub fn put_off(&mut self, received: u64, event: u16, now_ns: u64, interval_ns: u64) -> Option<u64> {
        if std::mem::replace(&mut self.event, event) != event {
            // The driver has looked since, and the call is owed for frames that were sent later.
            self.clear();
        }
        let received = received as u32;
        if std::mem::replace(&mut self.received, received) != received {
            self.received_ns = now_ns;
        }
        let receives = now_ns.saturating_sub(self.received_ns) < interval_ns;
        let due_ns = self.due_ns.map(NonZeroU64::get);
        let due_ns = due_ns.or(receives.then_some(now_ns + interval_ns));
        let due_ns = due_ns.filter(|&due_ns| interval_ns > 0 && now_ns < due_ns);
        self.due_ns = due_ns.and_then(NonZeroU64::new);
        due_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: u64 = 500;

    #[test]
    fn a_guest_that_only_sends_is_called_at_once() {
        let mut completion = Completion::default();
        for now_ns in [10_000, 10_100, 20_000] {
            assert_eq!(completion.put_off(0, 0, now_ns, INTERVAL), None);
        }
    }

    #[test]
    fn one_that_receives_is_called_when_the_interval_is_over() {
        let mut completion = Completion::default();
        assert_eq!(completion.put_off(1, 0, 10_000, INTERVAL), Some(10_500));
        assert_eq!(completion.put_off(1, 0, 10_100, INTERVAL), Some(10_500));
        assert_eq!(completion.put_off(2, 0, 10_499, INTERVAL), Some(10_500));
        assert_eq!(completion.put_off(2, 0, 10_500, INTERVAL), None);
        completion.clear();
        assert_eq!(completion.put_off(2, 0, 10_600, INTERVAL), Some(11_100));
        completion.clear();
        assert_eq!(
            completion.put_off(2, 0, 10_999, INTERVAL),
            None,
            "it received long ago"
        );
    }

    #[test]
    fn the_interval_begins_anew_when_the_driver_has_looked() {
        let mut completion = Completion::default();
        completion.put_off(1, 0, 10_000, INTERVAL);
        assert_eq!(completion.put_off(1, 7, 10_400, INTERVAL), Some(10_900));
        completion.clear();
        assert_eq!(completion.put_off(2, 7, 10_450, INTERVAL), Some(10_950));
    }

    #[test]
    fn without_an_interval_calls_are_made_at_once() {
        let mut completion = Completion::default();
        assert_eq!(completion.put_off(1, 0, 10_000, 0), None);
        completion.put_off(2, 0, 10_000, INTERVAL);
        assert_eq!(completion.put_off(3, 0, 10_001, 0), None, "the guest sleeps now");
    }
}
