//! The class of one thread, as it sleeps and works.

use crate::anchor::Anchor;
use crate::bucket::Bucket;
use crate::kernel::{self, Level};
use placement_config::Priority;
use std::time::Instant;

/// How a thread wants to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It takes the core at once, if it has tokens.
    Ready,
    /// It waits until the running task blocks, or its time slice is over (`SCHED_BATCH`).
    Patient,
}

/// Keeps the calling thread's class: raised while it has tokens, and normal otherwise. Belongs to that thread; all calls
/// must come from it.
///
/// | the thread | calls |
/// |---|---|
/// | goes to sleep | [`rest`](Self::rest) |
/// | has woken | [`woken`](Self::woken) |
/// | has worked for a few microseconds | [`check`](Self::check) |
/// | waits for something while awake | [`lower`](Self::lower) |
#[derive(Debug)]
pub struct Booster {
    class: Priority,
    level: Level,
    bucket: Bucket,
    /// Since when the thread sleeps, or is awake, as far as that is not accounted for.
    since: Instant,
    /// Keeps the thread on a core while it is real-time.
    anchor: Option<Anchor>,
}

impl Booster {
    /// For the calling thread, which is normal and becomes raised when it first sleeps. `class` is what the supervisor
    /// [`grant`](crate::grant)ed.
    pub fn new(class: Priority) -> Booster {
        Booster {
            class,
            level: Level::NORMAL,
            bucket: Bucket::full(),
            since: Instant::now(),
            anchor: None,
        }
    }

    /// The same for a thread that may run on several cores, and is to stay on one while it is real-time.
    pub fn anchored(class: Priority) -> Booster {
        let anchor = (class == Priority::Realtime).then(Anchor::new).flatten();
        Booster {
            anchor,
            ..Booster::new(class)
        }
    }

    /// To be called before the thread sleeps.
    pub fn rest(&mut self, rest: Rest) {
        self.account();
        let raised = Level::raised(self.class);
        let level = match rest {
            // It would lose the short slice.
            Rest::Patient if self.class == Priority::Slice => Level::NORMAL,
            Rest::Patient => Level::PATIENT,
            Rest::Ready if self.level == raised && !self.bucket.is_empty() => raised,
            Rest::Ready if self.bucket.has_enough() => raised,
            Rest::Ready => Level::NORMAL,
        };
        self.enter(level);
        if self.is_raised()
            && let Some(anchor) = &mut self.anchor
        {
            anchor.hold(self.since);
        }
    }

    /// To be called when it has slept.
    pub fn woken(&mut self) {
        let now = Instant::now();
        let ns = nanoseconds(self.since, now);
        if self.is_raised() {
            self.bucket.slept(ns);
        } else {
            self.bucket.was_away(ns);
        }
        self.since = now;
    }

    /// Lowers a raised thread whose tokens are used up. The thread calls this now and then while it is awake.
    #[inline]
    pub fn check(&mut self) {
        if self.is_raised() {
            self.account();
            if self.bucket.is_empty() {
                self.enter(Level::NORMAL);
            }
        }
    }

    /// Puts the thread into the normal class until it sleeps next.
    pub fn lower(&mut self) {
        self.account();
        self.enter(Level::NORMAL);
    }

    /// Whether the thread takes cores from others.
    #[inline]
    pub fn is_raised(&self) -> bool {
        self.level == Level::raised(self.class) && self.level != Level::NORMAL
    }

    /// Takes tokens for the time since the last call, if it was raised.
    fn account(&mut self) {
        let now = Instant::now();
        if self.is_raised() {
            self.bucket.used(nanoseconds(self.since, now));
        }
        self.since = now;
    }

    fn enter(&mut self, level: Level) {
        if level == self.level {
            return;
        }
        match kernel::apply(self.level, level) {
            Ok(()) => self.level = level,
            // What was granted is refused: some administrator has changed limits. Normal from now on.
            Err(error) => {
                log::warn!("cannot be {:?}: {error}", self.class);
                self.class = Priority::Normal;
                if kernel::apply(self.level, Level::NORMAL).is_ok() {
                    self.level = Level::NORMAL;
                }
            }
        }
        if !self.is_raised()
            && let Some(anchor) = &mut self.anchor
        {
            anchor.release();
        }
    }
}

fn nanoseconds(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::anchor::HOLD;
    use rustix::thread::sched_getaffinity;
    use std::time::Duration;

    /// In a thread of its own, whose class dies with it. Left out where the kernel grants nothing.
    fn with_class(class: Priority, test: impl FnOnce(Booster) + Send) {
        if crate::grant(class).class == class {
            std::thread::scope(|scope| {
                scope.spawn(|| test(Booster::new(class)));
            });
        }
    }

    #[test]
    fn a_thread_is_raised_until_its_tokens_are_used_up() {
        with_class(Priority::Realtime, |mut booster| {
            booster.rest(Rest::Ready);
            assert_eq!(kernel::policy(), libc::SCHED_FIFO);
            booster.woken();
            let start = Instant::now();
            while booster.is_raised() {
                booster.check();
                assert!(start.elapsed() < Duration::from_secs(10), "never lowered");
            }
            assert!(start.elapsed() >= Duration::from_nanos(Bucket::BURST_NS / 2));
            assert_eq!(kernel::policy(), libc::SCHED_OTHER);
            // No tokens: it sleeps as everybody, until it has slept for long enough.
            booster.rest(Rest::Ready);
            assert_eq!(kernel::policy(), libc::SCHED_OTHER);
            std::thread::sleep(Duration::from_nanos(
                Bucket::ENOUGH_NS * (Bucket::AWAY_PER_TOKEN + 1),
            ));
            booster.woken();
            booster.rest(Rest::Ready);
            assert_eq!(kernel::policy(), libc::SCHED_FIFO);
            booster.lower();
            assert_eq!(kernel::policy(), libc::SCHED_OTHER);
        });
    }

    #[test]
    fn an_anchored_thread_stays_on_its_core_while_it_is_real_time() {
        let cores = || sched_getaffinity(None).unwrap();
        let all = cores();
        if all.count() < 2 || crate::grant(Priority::Realtime).class != Priority::Realtime {
            return;
        }
        std::thread::spawn(move || {
            let mut booster = Booster::anchored(Priority::Realtime);
            let sleep = |booster: &mut Booster, time| {
                booster.rest(Rest::Ready);
                let bound = cores();
                std::thread::sleep(time);
                booster.woken();
                bound
            };
            assert_eq!(sleep(&mut booster, Duration::from_millis(1)).count(), 1);
            assert!(cores().is_set(kernel::cpu()));
            assert_eq!(sleep(&mut booster, HOLD).count(), 1);
            // The kernel chooses again, for one sleep.
            assert_eq!(sleep(&mut booster, Duration::from_millis(1)), all);
            assert_eq!(sleep(&mut booster, Duration::from_millis(1)).count(), 1);
            // A thread that is flooded goes where there is room.
            booster.lower();
            assert_eq!(cores(), all);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_patient_thread_waits_for_others_in_every_class() {
        for class in [Priority::Realtime, Priority::Nice, Priority::Normal] {
            with_class(class, |mut booster| {
                booster.rest(Rest::Patient);
                assert_eq!(kernel::policy(), libc::SCHED_BATCH);
                assert!(!booster.is_raised());
                booster.woken();
                booster.rest(Rest::Ready);
                let raised = if class == Priority::Realtime {
                    libc::SCHED_FIFO
                } else {
                    libc::SCHED_OTHER
                };
                assert_eq!(kernel::policy(), raised);
            });
        }
    }
}
