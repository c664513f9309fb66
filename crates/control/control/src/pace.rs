//! Work that guests can cause, bounded to a share of the time.
//!
//! A VMM that connects and disconnects, or a guest whose ports come and go, causes look-ups of threads and
//! re-examination of flows, as often as it likes. Such work is merged (an item that is due twice is done
//! once), cut into pieces, and each kind has a pace: the next piece begins ten times as long after the
//! beginning of this one as this one takes. So each kind takes a tenth of the time at most, on any machine
//! and however much there is to do, and the first piece after a pause is done at once. Decisions about
//! packets never wait for it.

use std::time::Duration;

/// From one piece of work to the next, as a multiple of the time that it took.
const SHARE: u32 = 10;

/// When a kind of work may go on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Milliseconds, as all our times.
    next_ms: u64,
    /// Remainder of less than a millisecond.
    owed: Duration,
}

impl Pace {
    /// Whether the next piece may begin now.
    pub fn is_due(&self, now_ms: u64) -> bool {
        self.next_ms <= now_ms
    }

    /// When the next piece may begin.
    pub fn due_ms(&self) -> u64 {
        self.next_ms
    }

    /// A piece of work that began at `start_ms` took so long.
    pub fn worked(&mut self, took: Duration, start_ms: u64) {
        let rest = self.owed + took * SHARE;
        let whole = u64::try_from(rest.as_millis()).unwrap_or(u64::MAX);
        self.owed = rest - Duration::from_millis(whole);
        self.next_ms = start_ms.saturating_add(whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_time() {
        let mut pace = Pace::default();
        let (mut now_us, mut worked_us) = (0u64, 0u64);
        while now_us < 1_000_000 {
            if pace.is_due(now_us / 1000) {
                pace.worked(Duration::from_micros(130), now_us / 1000);
                now_us += 130;
                worked_us += 130;
            } else {
                now_us += 100;
            }
        }
        assert!((80_000..=120_000).contains(&worked_us), "{worked_us}");
        // One long piece is followed by one long pause.
        pace.worked(Duration::from_millis(300), 2000);
        assert_eq!(pace.due_ms() / 10, 500);
    }
}
