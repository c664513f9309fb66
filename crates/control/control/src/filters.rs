//! The filters of one uplink's queue, as far as the driver domain was asked for them.

use accelerator::{Learner, Limits};
use std::collections::BTreeSet;

/// An address, first byte in the highest bits of 48.
pub(crate) type Mac = u64;

/// The filters of an uplink's queue.
#[derive(Debug)]
pub(crate) struct Filters {
    pub learner: Learner<Mac>,
    /// Number of the last mark; never 0.
    mark: u16,
    /// Stations whose filter the driver domain was asked for.
    pub asked: BTreeSet<Mac>,
    /// Stations with a filter.
    pub programmed: BTreeSet<Mac>,
    pub counts: FilterCounts,
    /// Why the last filter that was refused was refused, for users.
    pub refusal: Option<String>,
}

/// What has become of filters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilterCounts {
    pub programmed: u64,
    /// For another station that gains more.
    pub evicted: u64,
    /// Since few frames came, or the flows ended.
    pub removed: u64,
    pub refused: u64,
}

impl Default for Filters {
    fn default() -> Filters {
        Filters {
            learner: Learner::new(Limits::default()),
            mark: 0,
            asked: BTreeSet::new(),
            programmed: BTreeSet::new(),
            counts: FilterCounts::default(),
            refusal: None,
        }
    }
}

impl Filters {
    /// The number of the next mark.
    pub fn next_mark(&mut self) -> u16 {
        self.mark = self.mark.checked_add(1).unwrap_or(1);
        self.mark
    }

    /// What the driver domain says of a filter for a station, programmed or removed.
    pub fn on_steered(&mut self, mac: Mac, is_on: bool, result: Result<(), String>, now_ms: u64) {
        match result {
            Ok(()) if is_on && self.asked.contains(&mac) => {
                self.programmed.insert(mac);
                self.counts.programmed += 1;
            }
            Ok(()) => {}
            Err(reason) if is_on => {
                self.asked.remove(&mac);
                self.learner.on_lost(mac, now_ms);
                self.counts.refused += 1;
                self.refusal = Some(reason);
            }
            Err(reason) => log::debug!("a filter was not removed: {reason}"),
        }
    }
}

pub(crate) fn bytes_of(mac: Mac) -> [u8; 6] {
    let [_, _, bytes @ ..] = mac.to_be_bytes();
    bytes
}

pub(crate) fn number_of(mac: [u8; 6]) -> Mac {
    let [a, b, c, d, e, f] = mac;
    Mac::from_be_bytes([0, 0, a, b, c, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_refused_is_forgotten_and_its_reason_is_shown() {
        let (mut filters, mac) = (Filters::default(), 0x0200_0000_0007);
        assert_eq!(number_of(bytes_of(mac)), mac);
        filters.asked.insert(mac);
        filters.on_steered(mac, true, Err("full".into()), 5);
        assert_eq!(
            (filters.counts.refused, filters.refusal.as_deref()),
            (1, Some("full"))
        );
        assert!(filters.asked.is_empty() && filters.programmed.is_empty());
        filters.on_steered(mac, true, Ok(()), 6);
        assert!(filters.programmed.is_empty(), "nobody wants it any more");
        filters.asked.insert(mac);
        filters.on_steered(mac, true, Ok(()), 7);
        assert_eq!((filters.programmed.len(), filters.counts.programmed), (1, 1));
    }

    #[test]
    fn marks_are_never_0() {
        let mut filters = Filters {
            mark: u16::MAX - 1,
            ..Filters::default()
        };
        assert_eq!([0; 3].map(|_| filters.next_mark()), [u16::MAX, 1, 2]);
    }
}
