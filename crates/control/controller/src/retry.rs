//! When a port is to be connected.
//!
//! An attempt is made when the port is there, and a while after its connection has ended, never in the event
//! that reported the end: at that moment the next event may be on its way already, and the port may be
//! connected again. A look some time after each attempt finds out whether it came to anything. Delays double
//! up to a bound, until the port works.

use control_protocol::data_plane::PortState;

/// First delay, in milliseconds.
const DELAY_MIN_MS: u64 = 100;

/// Longest delay between attempts, in milliseconds.
const DELAY_MAX_MS: u64 = 5_000;

/// Time that a port may take to become connected after an attempt, in milliseconds.
const CONNECT_MS: u64 = 1_000;

/// The attempts of one port. All times are in milliseconds of the caller's clock.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// `None`: it is connected, or something else has to happen first.
    due_ms: Option<u64>,
    delay_ms: u64,
}

impl Default for Retry {
    fn default() -> Self {
        Retry {
            due_ms: None,
            delay_ms: DELAY_MIN_MS,
        }
    }
}

impl Retry {
    /// The first attempt is made at once.
    pub fn at_once(now_ms: u64) -> Retry {
        Retry {
            due_ms: Some(now_ms),
            ..Retry::default()
        }
    }

    /// When the next attempt is due, or the look after the last one.
    pub fn due_ms(&self) -> Option<u64> {
        self.due_ms
    }

    /// Takes the attempt that is due; false if none is.
    pub fn take_due(&mut self, now_ms: u64) -> bool {
        let is_due = self.due_ms.is_some_and(|due_ms| due_ms <= now_ms);
        if is_due {
            self.due_ms = None;
        }
        is_due
    }

    /// Tries now, whatever was due.
    pub fn try_now(&mut self, now_ms: u64) {
        self.due_ms = Some(now_ms);
    }

    /// Tries now, unless something is due anyway.
    pub fn ensure_due(&mut self, now_ms: u64) {
        self.due_ms.get_or_insert(now_ms);
    }

    /// Tries again after the delay, unless something is due anyway.
    pub fn try_later(&mut self, now_ms: u64) {
        self.due_ms.get_or_insert(now_ms + self.delay_ms);
    }

    /// An attempt was made: looks later whether it came to anything.
    pub fn attempted(&mut self, now_ms: u64) {
        self.back_off(now_ms, CONNECT_MS);
    }

    /// An attempt could not be made.
    pub fn failed(&mut self, now_ms: u64) {
        self.back_off(now_ms, DELAY_MIN_MS);
    }

    fn back_off(&mut self, now_ms: u64, least_ms: u64) {
        self.due_ms = Some(now_ms + self.delay_ms.max(least_ms));
        self.delay_ms = (self.delay_ms * 2).min(DELAY_MAX_MS);
    }

    /// Whether no attempt was made since the port worked.
    pub fn is_first(&self) -> bool {
        self.delay_ms == DELAY_MIN_MS
    }

    /// The data plane has said how the port is.
    pub fn on_port_state(&mut self, state: &PortState, now_ms: u64) {
        match state {
            PortState::Disconnected => self.try_later(now_ms),
            PortState::Running => self.delay_ms = DELAY_MIN_MS,
            PortState::Connected | PortState::Broken(_) => {}
        }
    }
}
