//! The service manager's watchdog (`WatchdogSec=` of systemd.service(5)): a sign of life at half of its time.
//!
//! The sign is the supervisor's own; children that hang are the supervisor's task. At the same moments it has
//! those children answer that have run since their last answer: a child that has slept all the time is as
//! healthy as it was, and is not woken.

use std::time::{Duration, Instant};

/// Environment variables of the service manager (sd_watchdog_enabled(3)). Not for the children.
pub const VARIABLES: [&str; 2] = ["WATCHDOG_USEC", "WATCHDOG_PID"];

/// When to give signs of life.
#[derive(Debug)]
pub struct Keepalive {
    period: Duration,
    due: Instant,
}

impl Keepalive {
    /// As the environment wants it; `None` if nobody waits for signs of life of this process.
    pub fn of_environment(now: Instant) -> Option<Keepalive> {
        let [time, pid] = VARIABLES.map(|name| std::env::var(name).ok());
        Self::new(time.as_deref(), pid.as_deref(), std::process::id(), now)
    }

    fn new(time: Option<&str>, pid: Option<&str>, own_pid: u32, now: Instant) -> Option<Keepalive> {
        let micros: u64 = time?.parse().ok().filter(|micros| *micros > 0)?;
        if pid.is_some_and(|pid| pid != own_pid.to_string()) {
            return None;
        }
        let period = Duration::from_micros(micros) / 2;
        Some(Keepalive {
            period,
            due: now + period,
        })
    }

    /// When the next sign is due.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Whether a sign is due; if so, the next one is later.
    pub fn take(&mut self, now: Instant) -> bool {
        let is_due = now >= self.due;
        if is_due {
            self.due = now + self.period;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_life_come_at_half_of_the_time() {
        let now = Instant::now();
        let mut keepalive = Keepalive::new(Some("3000000"), Some("7"), 7, now).unwrap();
        let half = Duration::from_millis(1500);
        assert_eq!(keepalive.due(), now + half);
        assert!(!keepalive.take(now));
        assert!(keepalive.take(now + half) && !keepalive.take(now + half));
        // After a pause one sign is enough.
        let late = now + Duration::from_secs(3600);
        assert!(keepalive.take(late) && !keepalive.take(late));
        assert_eq!(keepalive.due(), late + half);
    }

    #[test]
    fn nobody_is_told_who_does_not_ask_this_process() {
        let now = Instant::now();
        let wants = |time, pid| Keepalive::new(time, pid, 7, now).is_some();
        assert!(wants(Some("1"), None));
        assert!(!wants(Some("1"), Some("8")) && !wants(Some("0"), None) && !wants(Some("x"), None));
        assert!(!wants(None, Some("7")));
    }
}
