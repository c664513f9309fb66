//! Coalescing of wake-ups: whether the worker sleeps until the next frame, or for a fixed time.
//!
//! A worker that is quicker than the sender of a flood finds one frame each time, and a wake-up costs more
//! than the frame. So while frames of one direction come faster than [`FLOOD`], a worker that has nothing to
//! do sleeps for [`PAUSE`], as network devices do that coalesce interrupts: what has come meanwhile is one
//! batch. Neither the kernel nor the data plane calls it during the pause, which saves time there, too.
//!
//! A pause delays frames by as much at most, and only where the last millisecond had so many: requests and
//! their answers, one at a time, never come that fast. After a pause in which nothing came the worker sleeps
//! until the next frame, so an idle interface costs nothing.

use std::time::{Duration, Instant};

/// Frames per [`WINDOW`] in one direction from which on pauses are made.
const FLOOD: u64 = 64;

/// The time for which frames are counted.
const WINDOW: Duration = Duration::from_millis(1);

/// The length of a pause.
pub const PAUSE: Duration = Duration::from_micros(50);

/// Numbers of frames in each direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frames {
    pub from_interface: u64,
    pub to_interface: u64,
}

impl Frames {
    pub fn is_nothing(self) -> bool {
        self.from_interface + self.to_interface == 0
    }
}

/// What a worker does that has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenIdle {
    /// Sleeps until the next frame.
    Sleep,
    /// Sleeps for [`PAUSE`].
    Pause,
}

/// See the module's description.
#[derive(Debug)]
pub struct Coalescing {
    start: Instant,
    counts: Frames,
    is_flood: bool,
    /// Whether the last batch had no frame.
    found_nothing: bool,
}

impl Coalescing {
    pub fn new(now: Instant) -> Coalescing {
        Coalescing {
            start: now,
            counts: Frames::default(),
            is_flood: false,
            found_nothing: false,
        }
    }

    /// What the worker does when it has nothing to do; `blocked`: it waits for the data plane.
    pub fn when_idle(&self, blocked: bool) -> WhenIdle {
        if self.is_flood && !self.found_nothing && !blocked {
            WhenIdle::Pause
        } else {
            WhenIdle::Sleep
        }
    }

    /// Notes the frames of a batch.
    pub fn note(&mut self, now: Instant, frames: Frames) {
        self.found_nothing = frames.is_nothing();
        self.counts.from_interface += frames.from_interface;
        self.counts.to_interface += frames.to_interface;
        let elapsed = now.saturating_duration_since(self.start);
        if elapsed < WINDOW {
            return;
        }
        let windows = (elapsed.as_nanos() / WINDOW.as_nanos())
            .try_into()
            .unwrap_or(u64::MAX);
        let most = self.counts.from_interface.max(self.counts.to_interface);
        self.is_flood = most / windows >= FLOOD;
        (self.start, self.counts) = (now, Frames::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(coalescing: &mut Coalescing, now: &mut Instant, gap: Duration, frames: Frames, times: u32) {
        for _ in 0..times {
            *now += gap;
            coalescing.note(*now, frames);
        }
    }

    #[test]
    fn floods_are_coalesced_and_round_trips_are_not() {
        let mut now = Instant::now();
        let mut coalescing = Coalescing::new(now);
        let both = Frames {
            from_interface: 1,
            to_interface: 1,
        };
        // A round trip of 20 us is quicker than any that a guest makes.
        run(&mut coalescing, &mut now, Duration::from_micros(20), both, 1000);
        assert_eq!(coalescing.when_idle(false), WhenIdle::Sleep);
        let one = Frames {
            from_interface: 1,
            to_interface: 0,
        };
        run(&mut coalescing, &mut now, Duration::from_micros(10), one, 201);
        assert_eq!(coalescing.when_idle(false), WhenIdle::Pause);
        assert_eq!(coalescing.when_idle(true), WhenIdle::Sleep);
        coalescing.note(now, Frames::default());
        assert_eq!(coalescing.when_idle(false), WhenIdle::Sleep);
        // The next train of the same flood.
        coalescing.note(now, one);
        assert_eq!(coalescing.when_idle(false), WhenIdle::Pause);
    }

    #[test]
    fn a_train_after_a_long_time_is_no_flood() {
        let mut now = Instant::now();
        let mut coalescing = Coalescing::new(now);
        let train = Frames {
            from_interface: 0,
            to_interface: 64,
        };
        run(&mut coalescing, &mut now, Duration::from_millis(5), train, 20);
        assert_eq!(coalescing.when_idle(false), WhenIdle::Sleep);
        run(&mut coalescing, &mut now, Duration::from_micros(640), train, 20);
        assert_eq!(coalescing.when_idle(false), WhenIdle::Pause);
    }
}
