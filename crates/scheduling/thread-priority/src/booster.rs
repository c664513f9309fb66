//! The scheduling class of one thread, raised and lowered as the thread sleeps and works.

use crate::anchor::Anchor;
use crate::bucket::Bucket;
use crate::core_bucket::{CoreBucket, since_start_ns};
use crate::kernel::{self, Level};
use placement_config::Priority;
use std::time::Instant;

/// The way in which a thread wants to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeMode {
    /// The thread preempts the running task, if it has tokens.
    Preempting,
    /// The thread waits until the running task blocks, or its time slice is over (`SCHED_BATCH`).
    Patient,
}

/// Keeps the calling thread in the raised class while it has tokens, and in the normal class otherwise. It
/// belongs to that thread, which must make all calls.
///
/// | the thread | calls |
/// |---|---|
/// | goes to sleep | [`prepare_sleep`](Self::prepare_sleep) |
/// | has woken | [`woken`](Self::woken) |
/// | has worked for a few microseconds | [`check`](Self::check) |
/// | waits for something while awake | [`lower`](Self::lower) |
#[derive(Debug)]
pub struct Booster {
    class: Priority,
    level: Level,
    bucket: Bucket,
    /// The time up to which the bucket accounts for sleep and work.
    since: Instant,
    /// Keeps the thread on a core while it is real-time.
    anchor: Option<Anchor>,
}

impl Booster {
    /// A booster for the calling thread, which is in the normal class and is raised when it first sleeps.
    /// `class` is the one that the supervisor [`grant`](crate::grant)ed.
    pub fn new(class: Priority) -> Booster {
        Booster {
            class,
            level: Level::NORMAL,
            bucket: Bucket::full(),
            since: Instant::now(),
            anchor: None,
        }
    }

    /// As [`new`](Self::new), for a thread that may run on several cores and is to stay on one while it is
    /// real-time.
    pub fn anchored(class: Priority) -> Booster {
        let anchor = (class == Priority::Realtime).then(Anchor::new).flatten();
        Booster {
            anchor,
            ..Booster::new(class)
        }
    }

    /// To be called before the thread sleeps.
    pub fn prepare_sleep(&mut self, mode: WakeMode) {
        let core = self.account();
        let raised = Level::raised(self.class);
        let now_ns = since_start_ns(self.since);
        let level = match mode {
            // With `SCHED_BATCH` the thread would lose its short time slice.
            WakeMode::Patient if self.class == Priority::Slice => Level::NORMAL,
            WakeMode::Patient => Level::PATIENT,
            WakeMode::Preempting
                if self.level == raised && !self.bucket.is_empty() && !core.is_empty(now_ns) =>
            {
                raised
            }
            WakeMode::Preempting if self.bucket.has_enough() && core.has_enough(now_ns) => raised,
            WakeMode::Preempting => Level::NORMAL,
        };
        self.enter(level);
        if self.is_raised()
            && let Some(anchor) = &mut self.anchor
        {
            anchor.hold(self.since);
        }
    }

    /// To be called when the thread has slept.
    pub fn woken(&mut self) {
        let now = Instant::now();
        let ns = nanoseconds(self.since, now);
        if self.is_raised() {
            self.bucket.on_sleep(ns);
        } else {
            self.bucket.on_absence(ns);
        }
        self.since = now;
    }

    /// Lowers a raised thread whose tokens, or those of its core, are used up. The thread calls this now and
    /// then while it is awake.
    #[inline]
    pub fn check(&mut self) {
        if self.is_raised() {
            let core = self.account();
            if self.bucket.is_empty() || core.is_empty(since_start_ns(self.since)) {
                self.enter(Level::NORMAL);
            }
        }
    }

    /// Has an [anchored](Self::anchored) thread stay on this core from its next sleep on, while it is
    /// real-time.
    pub fn stay_on(&mut self, core: usize) {
        if let Some(anchor) = &mut self.anchor {
            anchor.stay_on(core);
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

    /// Takes tokens for the time since the last call, if the thread was raised; returns the bucket of its
    /// core.
    fn account(&mut self) -> &'static CoreBucket {
        let (now, core) = (Instant::now(), CoreBucket::of(kernel::cpu()));
        if self.is_raised() {
            let ns = nanoseconds(self.since, now);
            self.bucket.used(ns);
            core.used(ns, since_start_ns(now));
        }
        self.since = now;
        core
    }

    fn enter(&mut self, level: Level) {
        if level == self.level {
            return;
        }
        match kernel::apply(self.level, level) {
            Ok(()) => self.level = level,
            // The granted class is refused: an administrator has changed limits. The thread stays normal from
            // now on.
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
    use rustix::thread::{CpuSet, sched_getaffinity};
    use std::time::Duration;

    /// Runs a test in a thread of its own, so that the class ends with it. Skips the test where the kernel
    /// does not grant the class.
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
            booster.prepare_sleep(WakeMode::Preempting);
            assert_eq!(kernel::policy(), libc::SCHED_FIFO);
            booster.woken();
            let start = Instant::now();
            while booster.is_raised() {
                booster.check();
                assert!(start.elapsed() < Duration::from_secs(10), "never lowered");
            }
            assert!(start.elapsed() >= Duration::from_nanos(Bucket::BURST_NS / 2));
            assert_eq!(kernel::policy(), libc::SCHED_OTHER);
            // Without tokens the thread sleeps in the normal class, until it has slept for long enough.
            booster.prepare_sleep(WakeMode::Preempting);
            assert_eq!(kernel::policy(), libc::SCHED_OTHER);
            std::thread::sleep(Duration::from_nanos(
                Bucket::ENOUGH_NS * (Bucket::AWAY_PER_TOKEN + 1),
            ));
            booster.woken();
            booster.prepare_sleep(WakeMode::Preempting);
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
                booster.prepare_sleep(WakeMode::Preempting);
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
            // It has chosen a core, from which the kernel does not take it.
            let other = (0..CpuSet::MAX_CPU).find(|core| all.is_set(*core) && *core != kernel::cpu());
            booster.stay_on(other.unwrap());
            for _ in 0..2 {
                let bound = sleep(&mut booster, HOLD);
                assert!(bound.count() == 1 && bound.is_set(other.unwrap()));
            }
            booster.stay_on(CpuSet::MAX_CPU - 1);
            booster.stay_on(usize::MAX);
            assert!(sleep(&mut booster, Duration::from_millis(1)).is_set(other.unwrap()));
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
                booster.prepare_sleep(WakeMode::Patient);
                assert_eq!(kernel::policy(), libc::SCHED_BATCH);
                assert!(!booster.is_raised());
                booster.woken();
                booster.prepare_sleep(WakeMode::Preempting);
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
