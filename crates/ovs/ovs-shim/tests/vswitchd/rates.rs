//! Rates at which packets arrive.

use crate::forwarding::{Guest, TIMEOUT};
use std::time::{Duration, Instant};

/// Frames that wait in a sender's ring of 256, and those that it lends.
const UNDER_WAY: f64 = 600.0;

/// Of the packets of [`flood`], how many may arrive.
#[derive(Clone, Copy)]
pub struct Rate {
    pub per_second: u32,
    /// At once, after a pause.
    pub burst: u32,
}

impl Rate {
    /// No more than that arrives, and not much less. ovs-vswitchd changes flows a moment after it was told.
    pub fn limits(self, a: &mut Guest, b: &mut Guest) -> String {
        // Clocks may differ a little. What is sent is far more than the rate, so that the rate is used.
        let least = 0.5 * f64::from(self.per_second);
        self.until(a, b, |sent, arrived, most| {
            arrived <= 1.05 * most && sent > 2.0 * arrived && arrived > least
        })
    }

    /// No more than that arrives, and not much less; the rest waits at its sender, and none is lost.
    pub fn holds(self, a: &mut Guest, b: &mut Guest) -> String {
        let least = 0.5 * f64::from(self.per_second);
        self.until(a, b, |sent, arrived, most| {
            arrived <= 1.05 * most && sent < arrived + UNDER_WAY && arrived > least
        })
    }

    /// More than the rate would let pass arrives.
    pub fn exceeded(self, a: &mut Guest, b: &mut Guest) {
        a.reach(b);
        self.until(a, b, |_, arrived, most| arrived > 1.3 * most);
    }

    /// Sends as fast as it can until what was sent, what arrived of it, and what the rate would let pass are
    /// so.
    fn until(self, a: &mut Guest, b: &mut Guest, wanted: impl Fn(f64, f64, f64) -> bool) -> String {
        let end = Instant::now() + TIMEOUT;
        loop {
            let begin = Instant::now();
            let (sent, arrived) = flood(a, b, Duration::from_secs(1));
            let seconds = begin.elapsed().as_secs_f64();
            let most = f64::from(self.burst) + f64::from(self.per_second) * seconds;
            let line = format!("{arrived} of {sent} in {seconds:.3} s, at most {most:.0}");
            if wanted(sent as f64, arrived as f64, most) {
                return line;
            }
            assert!(Instant::now() < end, "{line}");
        }
    }
}

/// Sends as fast as it can for some time. Returns how many frames were sent, and how many of them arrived.
pub fn flood(a: &mut Guest, b: &mut Guest, time: Duration) -> (u64, u64) {
    b.take();
    let end = Instant::now() + time;
    let (mut sent, mut arrived) = (0, 0);
    while Instant::now() < end {
        for _ in 0..16 {
            a.send(b);
        }
        sent += 16;
        arrived += b.take().len() as u64;
    }
    let settled = Instant::now() + Duration::from_millis(200);
    while Instant::now() < settled {
        arrived += b.take().len() as u64;
    }
    (sent, arrived)
}
