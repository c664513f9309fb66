//! For how long packets wait for a receiver that posts no buffers.
//!
//! | [`Wait`] | enters when | allowed |
//! |---|---|---|
//! | `No` | buffers were there, for a part of the packet at least | deliver |
//! | `First` | the oldest packet found too few buffers | try again on a kick; after [`LOOK_MS`] owe the driver a call, whether it asked for calls or not, and become `Renotified` |
//! | `Renotified` | the driver was owed a call | try again on a kick, and after [`LOOK_MS`] each time; after [`STALL_TIMEOUT_MS`] become `Stalled` |
//! | `Stalled` | the time was up | everything queued is dropped, new packets are dropped at once; a buffer ends it |
//!
//! The second notification is for guests that miss an interrupt now and then (User Mode Linux does, when it
//! comes just before an idle processor sleeps): they would sleep on a full ring until something else wakes
//! them.
//!
//! Time counts as far as this process looks ([`Waited`]): while it is stopped, or a hypervisor has the cores,
//! the receiver may get no processor either. The safe direction of error is to wait for longer.

/// How long packets wait for a receiver that posts no buffers, in milliseconds. Longer than a busy guest's
/// scheduling delays, and short, as senders wait meanwhile.
pub const STALL_TIMEOUT_MS: u64 = 100;

/// Time between two looks at such a receiver, in milliseconds.
const LOOK_MS: u64 = STALL_TIMEOUT_MS / 5;

/// Whether packets wait for buffers. See the module's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// No.
    No,
    /// For that time.
    First(Waited),
    /// For that time, and the driver is owed a call because of that, or was called.
    Renotified(Waited),
    /// Too long.
    Stalled,
}

/// For how long packets have waited, as far as it counts: two looks are at most twice as far apart as they
/// should be. Times are in milliseconds of the caller's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    looked_ms: u64,
    counts_ms: u64,
}

impl Waited {
    fn begin(now_ms: u64) -> Waited {
        Waited {
            looked_ms: now_ms,
            counts_ms: 0,
        }
    }

    fn look(self, now_ms: u64) -> Waited {
        let passed_ms = now_ms.saturating_sub(self.looked_ms);
        Waited {
            looked_ms: now_ms,
            counts_ms: self.counts_ms + passed_ms.min(2 * LOOK_MS),
        }
    }
}

impl Wait {
    /// When the receive side must run next even if no buffers come, if at all (the caller's clock,
    /// milliseconds).
    pub fn until(self) -> Option<u64> {
        match self {
            Wait::First(waited) | Wait::Renotified(waited) => Some(waited.looked_ms + LOOK_MS),
            Wait::No | Wait::Stalled => None,
        }
    }

    /// The receiver was looked at, and there are too few buffers still.
    pub(super) fn look(self, now_ms: u64) -> Wait {
        match self {
            Wait::No => Wait::First(Waited::begin(now_ms)),
            Wait::First(waited) => match waited.look(now_ms) {
                waited if waited.counts_ms >= LOOK_MS => Wait::Renotified(waited),
                waited => Wait::First(waited),
            },
            Wait::Renotified(waited) => match waited.look(now_ms) {
                waited if waited.counts_ms >= STALL_TIMEOUT_MS => Wait::Stalled,
                waited => Wait::Renotified(waited),
            },
            Wait::Stalled => Wait::Stalled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The states that looks find, each so many milliseconds after the one before.
    fn looks(pauses: &[u64]) -> Vec<Wait> {
        let (mut wait, mut now_ms) = (Wait::No.look(1000), 1000);
        let look = |pause| {
            now_ms += pause;
            wait = wait.look(now_ms);
            wait
        };
        pauses.iter().copied().map(look).collect()
    }

    #[test]
    fn a_receiver_is_called_at_the_first_look_and_stalls_when_its_time_is_up() {
        let found = looks(&[1, LOOK_MS - 2, 1, 0, LOOK_MS, LOOK_MS, LOOK_MS, LOOK_MS - 1, 1, 1]);
        assert!(matches!(found[1], Wait::First(_)));
        assert!(found[2..8].iter().all(|wait| matches!(wait, Wait::Renotified(_))));
        assert_eq!(found[8..], [Wait::Stalled; 2]);
        assert_eq!(found[2].until(), Some(1000 + 2 * LOOK_MS));
        assert_eq!(Wait::Stalled.until(), None);
    }

    /// A pause of this process alone has nobody stall, and whoever was called has time to answer.
    #[test]
    fn a_pause_of_this_process_counts_for_two_looks() {
        for late in 0..3 {
            let mut pauses = [LOOK_MS; 3];
            pauses[late] = 10_000;
            let found = looks(&pauses);
            assert!(matches!(found[2], Wait::Renotified(_)), "{late}: {found:?}");
        }
        assert_eq!(looks(&[10_000; 3])[2], Wait::Stalled, "there is an end");
    }
}
