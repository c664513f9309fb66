//! The core of a worker, whose idle loop polls instead of halting while an answer is expected soon
//! ([`IdlePoll`]).
//!
//! The worker sets the constraint before it sleeps, keeps it over any number of packets, and sleeps no longer
//! than the bound with it: it lifts it then, and sleeps on without a time-out.

use crate::account::Account;
use crate::idle_poll::IdlePoll;
use cpu::cycles;
use idle_states::Constraint;
use rustix::fd::OwnedFd;
use std::time::Duration;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct IdleCore {
    poll: IdlePoll,
    /// The constraint, until setting it fails.
    constraint: Option<Constraint>,
    /// The cycle up to which the constraint was accounted for.
    counted_until: u64,
}

impl IdleCore {
    /// An idle core with its constraint, which is set for at most so long after a packet.
    pub fn new(file: OwnedFd, bound: Duration) -> IdleCore {
        IdleCore {
            poll: IdlePoll::new(u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX)),
            constraint: Some(Constraint::new(file)),
            counted_until: 0,
        }
    }

    /// As [`IdlePoll::woken`].
    pub fn woken(&mut self, now_ns: u64, since_ns: u64, notified_ns: Option<u64>) {
        self.poll.woken(now_ns, since_ns, notified_ns);
    }

    /// The worker is about to sleep, in a break since `since_ns`: sets or lifts the constraint. The worker
    /// may sleep so long before it calls this again; `None`: as long as it likes.
    pub fn before_sleep(&mut self, now_ns: u64, since_ns: u64, account: &Account) -> Option<Duration> {
        let poll_for_ns = self.poll.poll_for_ns(now_ns, since_ns);
        let constraint = self.constraint.as_mut()?;
        let now = cycles();
        if constraint.is_set() {
            account.kept_from_halting(now.wrapping_sub(self.counted_until));
        }
        self.counted_until = now;
        if let Err(error) = constraint.set(poll_for_ns.is_some()) {
            log::warn!("the core is not kept from halting any more: {error}");
            self.constraint = None;
            return None;
        }
        poll_for_ns.map(Duration::from_nanos)
    }
}
