//! Time of a turn in which the thread did not have its core.
//!
//! The clock goes on while another task has the core, the thread's processor time does not. To ask for that
//! is a system call, which most turns need not pay: turns are asked about that begin within [`WATCHED_NS`]
//! after one that took longer than usual. The first such turn is not measured, so nothing beyond usual is
//! charged for it: a program that takes long now and then gains a turn in [`WATCHED_NS`].

/// For how long turns are measured after one that took longer than usual, in nanoseconds.
const WATCHED_NS: u64 = 10_000_000;

/// See the module's description.
#[derive(Default)]
pub(super) struct LostTime {
    watched_until_ns: u64,
    turn: Turn,
    /// Time that was lost in this turn, and subtracted.
    subtracted_ns: u64,
}

/// How a turn's time is measured.
#[derive(Clone, Copy, Default)]
enum Turn {
    /// By the clock: its beginning is not known.
    #[default]
    Unknown,
    /// Not beyond what is usual.
    Unmeasured,
    /// By what the thread has had of the clock since its beginning.
    Measured { began_ns: u64, processor_ns: u64 },
}

impl LostTime {
    /// A turn begins.
    pub fn begin(&mut self, now_ns: u64, processor_ns: impl FnOnce() -> u64) {
        self.turn = if now_ns < self.watched_until_ns {
            Turn::Measured {
                began_ns: now_ns,
                processor_ns: processor_ns(),
            }
        } else {
            Turn::Unmeasured
        };
        self.subtracted_ns = 0;
    }

    /// What a part of the turn took on the core, which ends now and took longer than usual by the clock.
    /// `most_ns` at most, if the turn is not measured. Parts of one turn are told of in sequence.
    pub fn subtract(
        &mut self,
        (took_ns, most_ns): (u64, u64),
        now_ns: u64,
        processor_ns: impl FnOnce() -> u64,
    ) -> u64 {
        self.watched_until_ns = now_ns + WATCHED_NS;
        let (began_ns, had_ns) = match self.turn {
            Turn::Unknown => return took_ns,
            Turn::Unmeasured => return took_ns.min(most_ns),
            Turn::Measured {
                began_ns,
                processor_ns: before_ns,
            } => (began_ns, processor_ns().saturating_sub(before_ns)),
        };
        let lost_ns = now_ns.saturating_sub(began_ns).saturating_sub(had_ns);
        let left_ns = lost_ns.saturating_sub(self.subtracted_ns).min(took_ns);
        self.subtracted_ns += left_ns;
        took_ns - left_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL_NS: u64 = 10_000;

    #[test]
    fn time_without_the_core_is_not_charged() {
        let mut lost = LostTime::default();
        lost.begin(1_000_000, || unreachable!("nothing took long"));
        let unmeasured = lost.subtract((500_000, USUAL_NS), 1_500_000, || unreachable!());
        assert_eq!(unmeasured, USUAL_NS, "the first one");
        lost.begin(2_000_000, || 7_000);
        // 60 us on the core, and 340 us without.
        assert_eq!(lost.subtract((400_000, USUAL_NS), 2_400_000, || 67_000), 60_000);
        // Further parts of the turn, of which the second one loses the core again.
        assert_eq!(lost.subtract((50_000, USUAL_NS), 2_450_000, || 117_000), 50_000);
        assert_eq!(lost.subtract((50_000, USUAL_NS), 2_500_000, || 127_000), 10_000);
        lost.begin(3_000_000, || 200_000);
        assert_eq!(lost.subtract((90_000, USUAL_NS), 3_090_000, || 290_000), 90_000);
    }

    #[test]
    fn turns_are_measured_for_a_while_only() {
        let mut lost = LostTime::default();
        let (mut now_ns, mut charged_ns) = (1_000_000, 0);
        for _ in 0..1_000 {
            lost.begin(now_ns, || now_ns);
            now_ns += 100_000;
            charged_ns += lost.subtract((100_000, USUAL_NS), now_ns, || now_ns);
        }
        assert_eq!(
            charged_ns,
            999 * 100_000 + USUAL_NS,
            "a program that always takes long"
        );
        lost.begin(now_ns + WATCHED_NS, || unreachable!("no system call"));
    }
}
