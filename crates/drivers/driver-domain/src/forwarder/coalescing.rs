//! Coalescing of wake-ups: whether the worker sleeps until the next frame, or for a fixed time.
//!
//! A worker that is quicker than the sender of a flood finds one frame each time, and a wake-up costs more
//! than the frame. So while frames of one direction come faster than [`FLOOD`], a worker that has nothing to
//! do pauses, as network devices do that coalesce interrupts: what has come meanwhile is one batch. Neither
//! the kernel nor the data plane calls it during the pause, which saves time there, too.
//!
//! | flood | pause |
//! |---|---|
//! | both ways alike | the shortest one, [`PAUSES`]`.0` |
//! | one way mostly | until [`BATCH`] frames or [`BATCH_BYTES`] are to be expected, within [`PAUSES`] |
//! | in trains: more than the mean rate has come since the worker woke | none, as the mean says that nothing comes now |
//!
//! A pause delays frames by as much at most, and only where the last millisecond had so many: requests and
//! their answers, one at a time, never come that fast, and many of them are alike both ways. After a pause
//! in which nothing came the worker sleeps until the next frame, so an idle interface costs nothing.

use std::time::{Duration, Instant};

/// Frames per [`WINDOW`] in one direction from which on pauses are made.
const FLOOD: u64 = 64;

/// The time for which frames are counted.
const WINDOW: Duration = Duration::from_millis(1);

/// The lengths of the shortest and the longest pause.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_micros(200));

/// Frames, and bytes, for which a pause waits.
const BATCH: u64 = 32;
const BATCH_BYTES: u64 = 64 << 10;

/// One direction has so many times the frames of the other one where a flood is mostly one way.
const ONE_WAY: u64 = 4;

/// Frames in each direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frames {
    pub from_interface: u64,
    pub to_interface: u64,
    /// Of both directions.
    pub bytes: u64,
}

impl Frames {
    pub fn is_nothing(self) -> bool {
        self.from_interface + self.to_interface == 0
    }

    /// Of the direction that has more.
    fn most(self) -> u64 {
        self.from_interface.max(self.to_interface)
    }

    fn add(&mut self, more: Frames) {
        self.from_interface += more.from_interface;
        self.to_interface += more.to_interface;
        self.bytes += more.bytes;
    }
}

/// What a worker does that has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenIdle {
    /// Sleeps until the next frame.
    Sleep,
    /// Sleeps for this long.
    Pause(Duration),
}

/// Frames that came in a time.
#[derive(Clone, Copy, Debug)]
struct Count {
    since: Instant,
    frames: Frames,
}

impl Count {
    fn new(since: Instant) -> Count {
        Count {
            since,
            frames: Frames::default(),
        }
    }
}

/// A flood, as the last window had it.
#[derive(Clone, Copy, Debug)]
struct Flood {
    pause: Duration,
    /// Time from one frame to the next one in the direction that has more.
    gap: Duration,
}

impl Flood {
    /// What a window says; `None`: it had no flood.
    fn of(frames: Frames, elapsed: Duration) -> Option<Flood> {
        let windows = (elapsed.as_nanos() / WINDOW.as_nanos())
            .try_into()
            .unwrap_or(u64::MAX);
        let most = frames.most();
        if most / windows < FLOOD {
            return None;
        }
        let least = frames.from_interface.min(frames.to_interface);
        let time_for = |wanted: u64, had: u64| {
            let ns = elapsed.as_nanos() * u128::from(wanted) / u128::from(had.max(1));
            Duration::from_nanos(ns.try_into().unwrap_or(u64::MAX))
        };
        let (shortest, longest) = PAUSES;
        let pause = if least * ONE_WAY > most {
            shortest
        } else {
            time_for(BATCH, most)
                .min(time_for(BATCH_BYTES, frames.bytes))
                .clamp(shortest, longest)
        };
        let gap = time_for(1, most);
        Some(Flood { pause, gap })
    }

    /// Whether so much more has come since the worker woke than the mean rate has that nothing will come for
    /// a while.
    fn is_ahead(self, awake: Duration, frames: Frames) -> bool {
        let frames = u32::try_from(frames.most()).unwrap_or(u32::MAX);
        awake >= self.pause && self.gap.saturating_mul(frames) > awake * 3 / 2 + self.pause
    }
}

/// See the module's description.
#[derive(Debug)]
pub struct Coalescing {
    window: Count,
    /// Since the worker woke the last time, other than from a pause.
    awake: Count,
    flood: Option<Flood>,
    /// Whether the last batch had no frame.
    found_nothing: bool,
    is_ahead: bool,
}

impl Coalescing {
    pub fn new(now: Instant) -> Coalescing {
        Coalescing {
            window: Count::new(now),
            awake: Count::new(now),
            flood: None,
            found_nothing: false,
            is_ahead: false,
        }
    }

    /// What the worker does when it has nothing to do; `blocked`: it waits for the data plane.
    pub fn when_idle(&self, blocked: bool) -> WhenIdle {
        match self.flood {
            Some(flood) if !self.found_nothing && !self.is_ahead && !blocked => WhenIdle::Pause(flood.pause),
            _ => WhenIdle::Sleep,
        }
    }

    /// The worker was woken.
    pub fn on_wake(&mut self, now: Instant) {
        self.awake = Count::new(now);
        self.is_ahead = false;
    }

    /// Notes the frames of a batch.
    pub fn note(&mut self, now: Instant, frames: Frames) {
        self.found_nothing = frames.is_nothing();
        self.window.frames.add(frames);
        self.awake.frames.add(frames);
        let elapsed = now.saturating_duration_since(self.window.since);
        if elapsed >= WINDOW {
            self.flood = Flood::of(self.window.frames, elapsed);
            self.window = Count::new(now);
        }
        let awake = now.saturating_duration_since(self.awake.since);
        let frames = self.awake.frames;
        self.is_ahead = self.flood.is_some_and(|flood| flood.is_ahead(awake, frames));
        if awake >= WINDOW {
            self.awake = Count::new(now);
        }
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

    fn frames(from_interface: u64, to_interface: u64, each: u64) -> Frames {
        Frames {
            from_interface,
            to_interface,
            bytes: (from_interface + to_interface) * each,
        }
    }

    /// What a flood of single frames leads to, one each way or one way, of so many bytes.
    fn pause(gap: Duration, frames: Frames) -> WhenIdle {
        let mut now = Instant::now();
        let mut coalescing = Coalescing::new(now);
        run(&mut coalescing, &mut now, gap, frames, 1000);
        coalescing.when_idle(false)
    }

    #[test]
    fn floods_are_coalesced_and_round_trips_are_not() {
        // A round trip of 20 us is quicker than any that a guest makes.
        assert_eq!(
            pause(Duration::from_micros(20), frames(1, 1, 60)),
            WhenIdle::Sleep
        );
        let mut now = Instant::now();
        let mut coalescing = Coalescing::new(now);
        let one = frames(1, 0, 60);
        run(&mut coalescing, &mut now, Duration::from_micros(10), one, 201);
        assert!(matches!(coalescing.when_idle(false), WhenIdle::Pause(_)));
        assert_eq!(coalescing.when_idle(true), WhenIdle::Sleep);
        coalescing.note(now, Frames::default());
        assert_eq!(coalescing.when_idle(false), WhenIdle::Sleep);
        // The next frames of the same flood.
        coalescing.note(now, one);
        assert!(matches!(coalescing.when_idle(false), WhenIdle::Pause(_)));
    }

    #[test]
    fn pauses_last_until_a_batch_is_there() {
        let us = Duration::from_micros;
        let paused = |length| WhenIdle::Pause(us(length));
        // Ten a millisecond below and above what a batch takes.
        assert_eq!(pause(us(10), frames(1, 0, 60)), paused(200));
        assert_eq!(pause(us(4), frames(1, 0, 60)), paused(128));
        assert_eq!(pause(us(1), frames(0, 1, 60)), paused(50));
        // Large frames are many bytes.
        assert_eq!(pause(us(10), frames(1, 0, 8192)), paused(80));
        assert_eq!(pause(us(10), frames(1, 0, 65_536)), paused(50));
        // Many clients and their answers.
        assert_eq!(pause(us(10), frames(1, 1, 60)), paused(50));
        assert_eq!(pause(us(40), frames(4, 2, 60)), paused(50));
        assert_eq!(pause(us(40), frames(4, 1, 60)), paused(200));
    }

    /// Wake-ups from sleep and pauses that a worker has in trains of 64 frames, a train each 640 us.
    #[test]
    fn a_train_is_one_batch() {
        let mut now = Instant::now();
        let mut coalescing = Coalescing::new(now);
        let (mut woken, mut paused) = (0, 0);
        for train in 0..100 {
            if train == 20 {
                (woken, paused) = (0, 0);
            }
            let begin = now;
            coalescing.on_wake(now);
            woken += 1;
            let mut left = 64;
            let mut batch = 1;
            loop {
                coalescing.note(now, frames(batch, 0, 60));
                left -= batch;
                let WhenIdle::Pause(pause) = coalescing.when_idle(false) else {
                    if left == 0 {
                        break;
                    }
                    now += Duration::from_micros(1);
                    coalescing.on_wake(now);
                    (woken, batch) = (woken + 1, 1);
                    continue;
                };
                paused += 1;
                now += pause;
                // One frame a microsecond.
                let come = u64::try_from((now - begin).as_micros()).expect("short") + 1;
                batch = come.min(64) - (64 - left);
            }
            now = begin + Duration::from_micros(640);
        }
        assert_eq!((woken, paused), (80, 80), "one each in a train");
    }

    /// A flood whose frames come evenly is never taken for a train.
    #[test]
    fn an_even_flood_goes_on_with_pauses() {
        for per_pause in [18_u64, 20, 22] {
            let mut now = Instant::now();
            let mut coalescing = Coalescing::new(now);
            coalescing.on_wake(now);
            run(
                &mut coalescing,
                &mut now,
                Duration::from_micros(10),
                frames(1, 0, 60),
                201,
            );
            for batch in 0..100 {
                now += Duration::from_micros(200);
                coalescing.note(now, frames(per_pause + batch % 3, 0, 60));
                let idle = coalescing.when_idle(false);
                assert!(matches!(idle, WhenIdle::Pause(_)), "{per_pause}, {batch}");
            }
        }
    }

    #[test]
    fn a_train_after_a_long_time_is_no_flood() {
        let mut now = Instant::now();
        let mut coalescing = Coalescing::new(now);
        let train = frames(0, 64, 60);
        run(&mut coalescing, &mut now, Duration::from_millis(5), train, 20);
        assert_eq!(coalescing.when_idle(false), WhenIdle::Sleep);
    }
}
