//! Frees threads that a VMM holds up.
//!
//! Another process can make a forwarding thread wait in one place: where it calls a driver whose eventfd cannot be
//! signalled by asynchronous I/O (`notifier`), because the system has none to give, or because it is the driver domain's,
//! which is written to. The write is non-blocking, but that flag is shared with the other end, which can clear it and
//! fill the counter. A thread that makes no progress is therefore interrupted: its write fails, and that driver is
//! not called any more (`vnic::Call`).
//!
//! The watchdog looks only while some thread is awake, and sleeps without a timer otherwise. Direction of error: a
//! thread that is merely slow gets a signal for nothing, which costs it a microsecond.

use parking_lot::Mutex;
use process::Thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Time between looks; a thread that made no progress between two of them is interrupted.
const PERIOD: Duration = Duration::from_millis(250);
/// Number of looks without any thread awake before the watchdog sleeps: waking it costs the waker as much as 300 packets.
const PATIENCE: u32 = 40;

/// The state that a watched thread shows.
pub struct Pulse {
    thread: Thread,
    /// A counter that the thread increments with each piece of work.
    beats: AtomicU32,
    asleep: AtomicBool,
    watchdog: Arc<Watchdog>,
}

/// All watched threads.
#[derive(Default)]
pub(crate) struct Watchdog {
    pulses: Mutex<Vec<Arc<Pulse>>>,
    asleep: AtomicBool,
    thread: Mutex<Option<std::thread::Thread>>,
}

impl Pulse {
    /// Watches the calling thread from now on.
    pub(crate) fn new(watchdog: &Arc<Watchdog>) -> Arc<Pulse> {
        let pulse = Arc::new(Pulse {
            thread: Thread::current(),
            beats: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            watchdog: watchdog.clone(),
        });
        watchdog.pulses.lock().push(pulse.clone());
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
        self.pulses.lock().retain(|other| !Arc::ptr_eq(other, pulse));
    }

    /// Starts watching.
    pub fn start(self: &Arc<Self>, ending: &Arc<AtomicBool>) -> std::io::Result<()> {
        process::allow_interrupts()?;
        let (watchdog, ending) = (self.clone(), ending.clone());
        let thread = std::thread::Builder::new()
            .name("watchdog".into())
            .stack_size(64 * 1024)
            .spawn(move || {
                while !ending.load(Ordering::Relaxed) {
                    watchdog.watch();
                    watchdog.sleep();
                }
            })?;
        *self.thread.lock() = Some(thread.thread().clone());
        Ok(())
    }

    /// Looks until no thread has been awake for a while.
    fn watch(&self) {
        let mut seen: Vec<u32> = Vec::new();
        let mut quiet = 0;
        while quiet < PATIENCE {
            std::thread::sleep(PERIOD);
            let pulses = self.pulses.lock();
            quiet = if all_asleep(&pulses) { quiet + 1 } else { 0 };
            for (index, pulse) in pulses.iter().enumerate() {
                let beats = pulse.beats.load(Ordering::Relaxed);
                if !pulse.asleep.load(Ordering::Relaxed) && seen.get(index) == Some(&beats) {
                    pulse.thread.interrupt();
                }
            }
            seen = pulses
                .iter()
                .map(|pulse| pulse.beats.load(Ordering::Relaxed))
                .collect();
        }
    }

    fn sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        if all_asleep(&self.pulses.lock()) {
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

fn all_asleep(pulses: &[Arc<Pulse>]) -> bool {
    pulses.iter().all(|pulse| pulse.asleep.load(Ordering::SeqCst))
}
