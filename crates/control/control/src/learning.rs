//! Addresses that ports get by DHCP or first use: what is asked of servers, which addresses a port has, and
//! when the next change is due.
//!
//! A lease counts for the port whose guest asked for it: with the port's MAC address and the number of the
//! conversation, which no other guest sees in time. Where it comes from, the rule has checked that copied it.
//! All is bounded: questions of a port, addresses of a port, and how often policies are made anew, which
//! takes at most a tenth of the time.

use crate::intent::LearnedAddress;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

/// Questions of a port that wait for a lease.
const MAX_QUESTIONS: usize = 4;

/// After this time a question is forgotten, in milliseconds.
const QUESTION_MS: u64 = 60_000;

/// Policies are made anew at most so often as to take one part of that many.
const SHARE: u32 = 10;

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Learning {
    questions: HashMap<String, VecDeque<(u32, u64)>>,
    /// Something was learned or forgotten that policies do not have yet.
    is_stale: bool,
    /// When policies may be made anew.
    free_ms: u64,
}

/// Why a port does not get an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotLearned {
    /// Another port has the address.
    Taken,
    /// The port has as many as it may.
    Limit,
}

impl Learning {
    /// The guest of a port has asked for a lease.
    pub fn ask(&mut self, port: &str, transaction: u32, now_ms: u64) {
        let questions = self.questions.entry(port.into()).or_default();
        questions.retain(|(_, asked_ms)| now_ms.saturating_sub(*asked_ms) < QUESTION_MS);
        if questions.len() == MAX_QUESTIONS {
            questions.pop_front();
        }
        questions.push_back((transaction, now_ms));
    }

    /// Whether the guest of a port has asked so; the question is answered then.
    pub fn take_question(&mut self, port: &str, transaction: u32, now_ms: u64) -> bool {
        let Some(questions) = self.questions.get_mut(port) else {
            return false;
        };
        let place = questions.iter().position(|(asked, asked_ms)| {
            *asked == transaction && now_ms - asked_ms.min(&now_ms) < QUESTION_MS
        });
        let found = place.and_then(|place| questions.remove(place)).is_some();
        if questions.is_empty() {
            self.questions.remove(port);
        }
        found
    }

    /// Policies are to be made anew.
    pub fn mark(&mut self) {
        self.is_stale = true;
    }

    /// When policies are to be made anew.
    pub fn due_ms(&self) -> Option<u64> {
        self.is_stale.then_some(self.free_ms)
    }

    /// Policies were made anew, which took so long.
    pub fn made(&mut self, now_ms: u64, took: Duration) {
        self.is_stale = false;
        let pause = u64::try_from((took * SHARE).as_millis()).unwrap_or(u64::MAX);
        self.free_ms = now_ms.saturating_add(pause);
    }
}

/// Gives a port an address, or another end to one that it has. True if addresses are others than before.
///
/// # Errors
/// The port has `limit` addresses.
pub(crate) fn add(
    learned: &mut BTreeMap<String, Vec<LearnedAddress>>,
    port: &str,
    new: LearnedAddress,
    limit: usize,
) -> Result<bool, NotLearned> {
    let own = learned.entry(port.into()).or_default();
    if let Some(known) = own.iter_mut().find(|known| known.address == new.address) {
        known.until = new.until;
        return Ok(false);
    }
    if own.len() >= limit {
        return Err(NotLearned::Limit);
    }
    own.push(new);
    Ok(true)
}

/// Takes an address from a port. True if the port had it.
pub(crate) fn remove(
    learned: &mut BTreeMap<String, Vec<LearnedAddress>>,
    port: &str,
    address: IpAddr,
) -> bool {
    let Some(own) = learned.get_mut(port) else {
        return false;
    };
    let before = own.len();
    own.retain(|known| known.address != address);
    own.len() < before
}

/// Takes an address from all ports but one.
pub(crate) fn take_from_others(
    learned: &mut BTreeMap<String, Vec<LearnedAddress>>,
    port: &str,
    address: IpAddr,
) {
    let others = learned.iter_mut().filter(|(other, _)| *other != port);
    others.for_each(|(_, own)| own.retain(|known| known.address != address));
}

/// Forgets leases that have ended, and ports that are not `known`. True if there were any.
pub(crate) fn expire(
    learned: &mut BTreeMap<String, Vec<LearnedAddress>>,
    now_s: u64,
    is_known: impl Fn(&str) -> bool,
) -> bool {
    let count =
        |learned: &BTreeMap<String, Vec<LearnedAddress>>| learned.values().map(Vec::len).sum::<usize>();
    let before = count(learned);
    for own in learned.values_mut() {
        own.retain(|known| known.until.is_none_or(|until| until > now_s));
    }
    learned.retain(|port, own| !own.is_empty() && is_known(port));
    count(learned) != before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8, until: Option<u64>) -> LearnedAddress {
        LearnedAddress {
            address: IpAddr::from([10, 0, 0, last]),
            until,
        }
    }

    #[test]
    fn a_lease_counts_for_the_port_that_asked_and_once() {
        let mut learning = Learning::default();
        learning.ask("web", 7, 0);
        assert!(!learning.take_question("other", 7, 1), "another port's question");
        assert!(!learning.take_question("web", 8, 1), "another conversation");
        assert!(learning.take_question("web", 7, 1));
        assert!(!learning.take_question("web", 7, 1), "answered already");
        learning.ask("web", 7, 0);
        assert!(!learning.take_question("web", 7, QUESTION_MS), "long ago");
        // A guest that asks without end keeps its last questions.
        (0..100_000).for_each(|transaction| learning.ask("web", transaction, 0));
        assert_eq!(learning.questions["web"].len(), MAX_QUESTIONS);
        assert!(learning.take_question("web", 99_999, 0) && !learning.take_question("web", 5, 0));
    }

    #[test]
    fn addresses_are_few_and_end_with_their_leases() {
        let mut learned = BTreeMap::new();
        for last in 0..100 {
            let added = add(&mut learned, "web", address(last, Some(10)), 3);
            assert_eq!(
                added,
                if last < 3 {
                    Ok(true)
                } else {
                    Err(NotLearned::Limit)
                }
            );
        }
        assert_eq!(
            add(&mut learned, "web", address(1, Some(20)), 3),
            Ok(false),
            "another lease"
        );
        assert_eq!(add(&mut learned, "other", address(9, None), 3), Ok(true));
        assert!(!expire(&mut learned, 9, |_| true));
        assert!(expire(&mut learned, 10, |_| true));
        assert_eq!(learned["web"], [address(1, Some(20))]);
        assert!(
            !remove(&mut learned, "other", IpAddr::from([10, 0, 0, 1])),
            "another port's"
        );
        assert!(!remove(&mut learned, "nobody", IpAddr::from([10, 0, 0, 9])));
        assert!(remove(&mut learned, "other", IpAddr::from([10, 0, 0, 9])));
        assert_eq!(add(&mut learned, "other", address(9, None), 3), Ok(true));
        take_from_others(&mut learned, "other", IpAddr::from([10, 0, 0, 1]));
        assert!(learned["web"].is_empty());
        assert!(expire(&mut learned, 10, |_| false), "the port is gone");
        assert!(learned.is_empty());
    }

    /// Each address of a flood is looked at once and leaves nothing, and those that the port has stay.
    #[test]
    fn a_million_source_addresses_leave_as_many_as_the_port_may_have() {
        const LIMIT: usize = 64;
        let mut learned = BTreeMap::new();
        for number in 0..1_000_000u32 {
            let address = IpAddr::from((0x0a00_0000 + number).to_be_bytes());
            let new = LearnedAddress { address, until: None };
            let added = add(&mut learned, "web", new, LIMIT);
            assert_eq!(added.is_ok(), number < LIMIT as u32);
        }
        assert_eq!(learned["web"].len(), LIMIT);
        assert!(learned["web"].capacity() <= 2 * LIMIT);
        let first = learned["web"][0].address;
        assert_eq!(first, IpAddr::from([10, 0, 0, 0]));
    }

    #[test]
    fn policies_are_made_anew_for_a_tenth_of_the_time() {
        let mut learning = Learning::default();
        assert_eq!(learning.due_ms(), None);
        learning.mark();
        assert_eq!(learning.due_ms(), Some(0));
        learning.made(100, Duration::from_millis(50));
        learning.mark();
        assert_eq!(learning.due_ms(), Some(600));
    }
}
