//! Frees threads that a VMM holds up, and reports threads that make no progress.
//!
//! Another process can make a forwarding thread wait in one place: where it calls a driver whose eventfd
//! cannot be signalled by asynchronous I/O (`eventfd`), because the system has none to give, or because it is
//! the driver domain's, which is written to. The write is non-blocking, but that flag is shared with the
//! other end, which can clear it and fill the counter. A thread that makes no progress is therefore
//! interrupted: its write fails, and that driver is not called any more (`vnic::Call`).
//!
//! A worker that goes on making no progress is reported at each look. Whether it hangs, or gets no processor,
//! cannot be seen from here; the supervisor finds out.
//!
//! The watchdog looks only while some thread is awake, and sleeps without a timer otherwise. Direction of
//! error: a thread that is merely slow gets a signal for nothing, which costs it a microsecond, and is
//! reported for nothing.

use parking_lot::Mutex;
use process::Thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Time between looks; a thread that made no progress between two of them is interrupted.
const PERIOD: Duration = Duration::from_millis(80);
/// Number of looks without any thread awake before the watchdog sleeps: waking it costs the waker as much as
/// 300 packets.
const QUIET_LOOKS: u32 = 125;
/// Looks at which a thread is interrupted, if it makes no progress: interrupting it for ever would keep it
/// from sleeping.
const INTERRUPTS: u32 = 2;
/// Reports made of one look.
const REPORTS: usize = 2;
/// Looks after which others are reported, if more threads than that make no progress.
const TURN: u32 = 4;

/// The state that a watched thread shows.
pub struct Pulse {
    thread: Thread,
    /// A counter that the thread increments with each piece of work.
    beats: AtomicU32,
    asleep: AtomicBool,
    is_worker: bool,
    watchdog: Arc<Watchdog>,
}

/// A worker that makes no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Number of the thread.
    pub tid: u32,
    /// Progress of the thread so far, as a counter.
    pub beats: u32,
}

/// A thread, and what the last look found.
struct Watched {
    pulse: Arc<Pulse>,
    beats: u32,
    /// Looks in a row at which it was awake and had made no progress.
    stuck: u32,
}

/// All watched threads.
#[derive(Default)]
pub(crate) struct Watchdog {
    threads: Mutex<Vec<Watched>>,
    asleep: AtomicBool,
    thread: Mutex<Option<std::thread::Thread>>,
}

impl Pulse {
    /// Watches the calling thread from now on.
    pub(crate) fn new(watchdog: &Arc<Watchdog>, is_worker: bool) -> Arc<Pulse> {
        let pulse = Arc::new(Pulse {
            thread: Thread::current(),
            beats: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            is_worker,
            watchdog: watchdog.clone(),
        });
        watchdog.threads.lock().push(Watched {
            pulse: pulse.clone(),
            beats: 0,
            stuck: 0,
        });
        pulse
    }

    /// Shows that the thread makes progress. To be called after each bounded piece of work.
    #[inline]
    pub fn beat(&self) {
        self.beats.store(
            self.beats.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }

    /// Marks the thread as asleep while `sleep` waits, which may last.
    pub fn asleep<R>(&self, sleep: impl FnOnce() -> R) -> R {
        self.asleep.store(true, Ordering::Relaxed);
        let result = sleep();
        // Ordered against the watchdog's going to sleep: one of the two sees the other.
        self.asleep.store(false, Ordering::SeqCst);
        if self.watchdog.asleep.load(Ordering::SeqCst) {
            self.watchdog.wake();
        }
        self.beat();
        result
    }
}

impl Watchdog {
    /// Stops watching a thread that ends.
    pub fn forget(&self, pulse: &Arc<Pulse>) {
        self.threads
            .lock()
            .retain(|other| !Arc::ptr_eq(&other.pulse, pulse));
    }

    /// Starts watching. `report` is called by the watchdog's thread, for workers that make no progress.
    pub fn start(
        self: &Arc<Self>,
        ending: &Arc<AtomicBool>,
        report: impl Fn(Stuck) + Send + 'static,
    ) -> std::io::Result<()> {
        process::allow_interrupts()?;
        let (watchdog, ending) = (self.clone(), ending.clone());
        let thread = std::thread::Builder::new()
            .name("watchdog".into())
            .stack_size(64 * 1024)
            .spawn(move || {
                while !ending.load(Ordering::Relaxed) {
                    watchdog.watch(&report);
                    watchdog.sleep();
                }
            })?;
        *self.thread.lock() = Some(thread.thread().clone());
        Ok(())
    }

    /// Looks until no thread has been awake for a while.
    fn watch(&self, report: &impl Fn(Stuck)) {
        let (mut quiet, mut looks) = (0, 0u32);
        while quiet < QUIET_LOOKS {
            std::thread::sleep(PERIOD);
            looks = looks.wrapping_add(1);
            quiet = if self.look(looks, report) { 0 } else { quiet + 1 };
        }
    }

    /// Looks at all threads once. True if one is awake.
    fn look(&self, number: u32, report: &impl Fn(Stuck)) -> bool {
        let mut threads = self.threads.lock();
        for watched in threads.iter_mut() {
            let beats = watched.pulse.beats.load(Ordering::Relaxed);
            let is_stuck = !watched.pulse.asleep.load(Ordering::Relaxed) && watched.beats == beats;
            watched.stuck = if is_stuck { watched.stuck + 1 } else { 0 };
            watched.beats = beats;
            if (1..=INTERRUPTS).contains(&watched.stuck) {
                watched.pulse.thread.interrupt();
            }
        }
        let stuck: Vec<Stuck> = threads.iter().filter_map(Watched::report).collect();
        let first = number as usize / TURN as usize % stuck.len().max(1);
        stuck
            .iter()
            .cycle()
            .skip(first)
            .take(REPORTS.min(stuck.len()))
            .for_each(|stuck| report(*stuck));
        !all_asleep(&threads)
    }

    fn sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        if all_asleep(&self.threads.lock()) {
            while self.asleep.load(Ordering::SeqCst) {
                std::thread::park();
            }
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    #[cold]
    fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = &*self.thread.lock()
        {
            thread.unpark();
        }
    }
}

impl Watched {
    fn report(&self) -> Option<Stuck> {
        (self.stuck > 0 && self.pulse.is_worker).then(|| Stuck {
            tid: self.pulse.thread.number(),
            beats: self.beats,
        })
    }
}

fn all_asleep(threads: &[Watched]) -> bool {
    threads
        .iter()
        .all(|watched| watched.pulse.asleep.load(Ordering::SeqCst))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn looks(watchdog: &Watchdog, numbers: std::ops::Range<u32>) -> Vec<Stuck> {
        let said = RefCell::<Vec<Stuck>>::default();
        for number in numbers {
            watchdog.look(number, &|stuck| said.borrow_mut().push(stuck));
        }
        said.into_inner()
    }

    #[test]
    fn workers_without_progress_are_reported_and_others_are_not() {
        process::allow_interrupts().unwrap();
        let watchdog = Arc::<Watchdog>::default();
        let (worker, other) = (Pulse::new(&watchdog, true), Pulse::new(&watchdog, false));
        let beat = || [&worker, &other].iter().for_each(|pulse| pulse.beat());
        for number in 0..10 {
            beat();
            assert!(looks(&watchdog, number..number + 1).is_empty(), "they go on");
        }
        let said = looks(&watchdog, 10..12);
        let tid = Thread::current().number();
        assert_eq!(said, [Stuck { tid, beats: 10 }; 2], "only the worker");
        beat();
        assert!(looks(&watchdog, 12..13).is_empty());
        // Who sleeps has nothing to do.
        let said = worker.asleep(|| looks(&watchdog, 13..20));
        assert!(said.is_empty(), "{said:?}");
        watchdog.forget(&worker);
        assert!(looks(&watchdog, 20..30).is_empty());
    }

    #[test]
    fn many_without_progress_are_reported_in_turns() {
        process::allow_interrupts().unwrap();
        let watchdog = Arc::<Watchdog>::default();
        let mut pulses = Vec::new();
        std::thread::scope(|scope| {
            for _ in 0..10 {
                let pulse = scope.spawn(|| Pulse::new(&watchdog, true)).join().unwrap();
                pulse.beat();
                pulses.push(pulse);
            }
        });
        looks(&watchdog, 0..1);
        let said = looks(&watchdog, 0..10 * TURN);
        assert_eq!(said.len(), 10 * TURN as usize * REPORTS, "bounded for each look");
        for pulse in pulses {
            let tid = pulse.thread.number();
            let count = said.iter().filter(|stuck| stuck.tid == tid).count();
            assert!(count >= TURN as usize, "one of them {count} times");
        }
    }
}
