//! Whether workers go on: a thread that watches them, and sleeps while all of them do.
//!
//! A worker that is awake counts its turns. The watchdog looks every [`LOOK`]; a worker that was awake at two
//! looks and has done no turn in between does not go on, and the supervisor is told. That one looks at the
//! thread itself and decides (`StuckThread` in `control_protocol::supervisor`).
//!
//! | watchdog | looks | ends when |
//! |---|---|---|
//! | watches | every [`LOOK`] | a look finds all workers asleep, and none has been awake since the last |
//! | sleeps | never | a worker that wakes up wakes it |
//!
//! So an idle forwarder does not wake up for this, and a busy one spends 40 looks a second.

use control_protocol::Channel;
use control_protocol::supervisor::{FromChild, StuckThread};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(25);

/// Workers that are reported at a look, so that the supervisor reads all reports.
const REPORTS: usize = 2;

/// What one worker has done, which alone changes it.
#[derive(Debug)]
pub struct Beats {
    tid: u32,
    /// Odd while the worker is awake; another number after each turn.
    count: AtomicU32,
    watchdog: Arc<Watchdog>,
}

impl Beats {
    /// The worker, the calling thread, wakes up.
    pub fn wake(&self) {
        // Sequentially consistent, as in `Watchdog::fall_asleep`: one of both sees what the other has
        // written.
        self.count.swap(self.next(1), Ordering::SeqCst);
        if self.watchdog.is_asleep.load(Ordering::SeqCst) {
            self.watchdog.wake();
        }
    }

    /// The worker has done a turn.
    pub fn turn(&self) {
        self.count.store(self.next(2), Ordering::Relaxed);
    }

    /// The worker sleeps, or does something that takes as long as it takes.
    pub fn rest(&self) {
        self.count.store(self.next(1), Ordering::Relaxed);
    }

    fn next(&self, more: u32) -> u32 {
        self.count.load(Ordering::Relaxed).wrapping_add(more)
    }

    fn is_awake(beats: u32) -> bool {
        beats % 2 == 1
    }
}

/// Watches the workers of a process.
#[derive(Debug, Default)]
pub struct Watchdog {
    workers: Mutex<Vec<Arc<Beats>>>,
    is_asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Watchdog {
    /// Starts to watch. The supervisor is told over this channel, if it reads.
    pub fn start(supervisor: &Channel) -> io::Result<Arc<Watchdog>> {
        let supervisor = Channel::from(supervisor.as_fd().try_clone_to_owned()?);
        let watchdog = Arc::new(Watchdog::default());
        let own = watchdog.clone();
        let thread = std::thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || {
                let tell = |report| drop(supervisor.try_send(&FromChild::Stuck(report), &[]));
                own.watch(tell);
            })?;
        watchdog.thread.get_or_init(|| thread.thread().clone());
        Ok(watchdog)
    }

    /// The beats of the calling thread, which rests.
    pub fn admit(self: &Arc<Watchdog>) -> Arc<Beats> {
        let beats = Arc::new(Beats {
            tid: rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(),
            count: AtomicU32::new(0),
            watchdog: self.clone(),
        });
        self.workers().push(beats.clone());
        beats
    }

    /// The worker of these beats has ended.
    pub fn dismiss(&self, beats: &Arc<Beats>) {
        self.workers().retain(|other| !Arc::ptr_eq(other, beats));
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Arc<Beats>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if self.is_asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    fn watch(&self, tell: impl Fn(StuckThread)) -> ! {
        let mut seen = Seen::new();
        loop {
            if self.look(&mut seen, &tell) == Found::Sleepers {
                self.fall_asleep();
            } else {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// Looks at all workers.
    fn look(&self, seen: &mut Seen, tell: &impl Fn(StuckThread)) -> Found {
        let now = Seen(
            self.workers()
                .iter()
                .map(|worker| (worker.tid, worker.count.load(Ordering::Relaxed)))
                .collect(),
        );
        let mut found = if now.0 == seen.0 {
            Found::Sleepers
        } else {
            Found::Work
        };
        let awake = || now.0.iter().filter(|(_, beats)| Beats::is_awake(*beats));
        if awake().next().is_some() {
            found = Found::Work;
        }
        for (tid, beats) in awake().filter(|worker| seen.0.contains(worker)).take(REPORTS) {
            tell(StuckThread {
                tid: *tid,
                beats: *beats,
                at_ms: monotonic_ms(),
            });
        }
        *seen = now;
        found
    }

    /// Sleeps until a worker wakes up.
    fn fall_asleep(&self) {
        self.is_asleep.store(true, Ordering::SeqCst);
        let is_awake = |worker: &Arc<Beats>| Beats::is_awake(worker.count.load(Ordering::SeqCst));
        if self.workers().iter().any(is_awake) {
            self.is_asleep.store(false, Ordering::SeqCst);
        }
        while self.is_asleep.load(Ordering::SeqCst) {
            std::thread::park();
        }
    }
}

/// Workers and their beats at the last look.
struct Seen(Vec<(u32, u32)>);

impl Seen {
    fn new() -> Seen {
        Seen(Vec::new())
    }
}

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// All workers sleep, and have slept since the look before.
    Sleepers,
    /// Anything else.
    Work,
}

fn monotonic_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn a_worker_that_is_awake_and_does_no_turn_is_reported() {
        let watchdog = Arc::new(Watchdog::default());
        let beats = watchdog.admit();
        let told = RefCell::new(Vec::new());
        let mut seen = Seen::new();
        let mut look = || {
            let found = watchdog.look(&mut seen, &|report: StuckThread| told.borrow_mut().push(report));
            (
                found,
                told.borrow_mut()
                    .drain(..)
                    .map(|report| (report.tid, report.beats))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(look(), (Found::Work, vec![]), "one that is new");
        assert_eq!(look(), (Found::Sleepers, vec![]));
        beats.wake();
        assert_eq!(look(), (Found::Work, vec![]), "just awake");
        beats.turn();
        assert_eq!(look(), (Found::Work, vec![]), "it went on");
        for _ in 0..3 {
            assert_eq!(look(), (Found::Work, vec![(beats.tid, 3)]));
        }
        beats.turn();
        assert_eq!(look(), (Found::Work, vec![]));
        beats.rest();
        assert_eq!(look(), (Found::Work, vec![]), "it was awake since");
        assert_eq!(look(), (Found::Sleepers, vec![]));
        watchdog.dismiss(&beats);
        beats.wake();
        assert_eq!(look().1, []);
    }

    /// However wake-ups and sleeps meet: a watchdog that sleeps is woken by the next worker that wakes up.
    #[test]
    fn a_worker_that_wakes_up_wakes_the_watchdog() {
        let (ours, theirs) = Channel::pair().unwrap();
        let watchdog = Watchdog::start(&theirs).unwrap();
        let end = std::time::Instant::now() + Duration::from_secs(60);
        for _ in 0..3 {
            let beats = watchdog.admit();
            while !watchdog.is_asleep.load(Ordering::SeqCst) {
                assert!(std::time::Instant::now() < end, "it does not sleep");
                std::thread::sleep(Duration::from_millis(1));
            }
            beats.wake();
            let (message, _) = ours.recv::<FromChild>().unwrap();
            assert!(
                matches!(message, FromChild::Stuck(report) if report.tid == beats.tid),
                "{message:?}"
            );
            beats.rest();
            watchdog.dismiss(&beats);
        }
    }
}
