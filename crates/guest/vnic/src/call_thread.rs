//! The thread that makes costly calls, in the normal class.
//!
//! Ports whose calls cost too much (`call_cost`) leave them to this thread, which holds no claim while it
//! calls. A call that waits here stands for all that its ring is owed meanwhile. There are pauses between
//! costly calls (`pause`).

use crate::call::Bell;
use crate::call_cost::CallCost;
use crate::pause::{LONG_CALLS, LongWork, pause_us};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

static QUEUE: Queue = Queue {
    ports: Mutex::new(Vec::new()),
    changed: Condvar::new(),
    long_work: &LONG_CALLS,
};

/// Whether the thread could be started.
static STARTED: OnceLock<bool> = OnceLock::new();

/// Ports that wait for the thread, the oldest first, each once.
struct Queue {
    ports: Mutex<Vec<Arc<CallCost>>>,
    changed: Condvar,
    long_work: &'static LongWork,
}

/// The calls of a port that wait for the thread.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    bells: Mutex<Bells>,
    /// The time before which no call is made, in microseconds of [`cpu::now_us`].
    paused_us: AtomicU64,
    /// How long the last call took, in microseconds.
    last_us: AtomicU64,
}

/// The descriptor of each ring for which a call waits.
#[derive(Debug, Default)]
struct Bells {
    rings: [Option<Arc<Bell>>; 2],
    is_queued: bool,
}

impl Waiting {
    fn bells(&self) -> MutexGuard<'_, Bells> {
        lock(&self.bells)
    }

    /// Forgets the call that waits for a ring: its driver is called by another descriptor from now on, or not
    /// at all.
    pub fn forget(&self, ring: usize) {
        let bell = self.bells().rings.get_mut(ring).and_then(Option::take);
        drop(bell);
    }

    /// Takes a call, and says whether there is no other.
    fn take(&self) -> (Option<Arc<Bell>>, bool) {
        let mut bells = self.bells();
        let bell = bells.rings.iter_mut().find_map(Option::take);
        bells.is_queued = bells.rings.iter().any(Option::is_some);
        (bell, !bells.is_queued)
    }

    /// When the next call may be made.
    fn due_us(&self, long_work: &LongWork) -> u64 {
        let free_us = long_work.free_us(self.last_us.load(Relaxed));
        self.paused_us.load(Relaxed).max(free_us)
    }
}

/// Starts the thread, which lives as long as the process.
///
/// # Errors
/// The thread cannot be started.
pub fn start() -> std::io::Result<()> {
    let mut result = Ok(());
    STARTED.get_or_init(|| {
        let thread = std::thread::Builder::new().name("calls".into());
        result = thread.stack_size(64 * 1024).spawn(|| QUEUE.run()).map(drop);
        result.is_ok()
    });
    result
}

/// Whether there is such a thread.
pub(crate) fn is_running() -> bool {
    STARTED.get() == Some(&true)
}

/// Has the thread make a call of a ring by `bell`.
pub(crate) fn leave(port: &Arc<CallCost>, ring: usize, bell: &Arc<Bell>) {
    let mut bells = port.waiting.bells();
    let replaced = bells.rings.get_mut(ring).map(|waits| waits.replace(bell.clone()));
    let was_queued = std::mem::replace(&mut bells.is_queued, true);
    drop(bells);
    drop(replaced);
    if !was_queued {
        QUEUE.add(port.clone());
    }
}

impl Queue {
    fn add(&self, port: Arc<CallCost>) {
        lock(&self.ports).push(port);
        self.changed.notify_one();
    }

    fn run(&self) -> ! {
        loop {
            let port = self.next();
            let (bell, is_last) = port.waiting.take();
            if let Some(bell) = bell {
                let took_us = port.measure_apart(|| {
                    // A call that fails is pending already.
                    let _ = bell.signal_apart();
                }) / 1000;
                let now_us = cpu::now_us();
                port.waiting.last_us.store(took_us, Relaxed);
                port.waiting.paused_us.store(now_us + pause_us(took_us), Relaxed);
                self.long_work.note(took_us, now_us);
            }
            if !is_last {
                self.add(port);
            }
        }
    }

    /// Waits until a port's call may be made, and takes the port.
    fn next(&self) -> Arc<CallCost> {
        let mut ports = lock(&self.ports);
        loop {
            let now_us = cpu::now_us();
            let due_us = |port: &Arc<CallCost>| port.waiting.due_us(self.long_work).saturating_sub(now_us);
            if let Some(first) = ports.iter().position(|port| due_us(port) == 0) {
                return ports.remove(first);
            }
            ports = match ports.iter().map(due_us).min() {
                Some(us) => {
                    let waited = self.changed.wait_timeout(ports, Duration::from_micros(us));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(ports).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::call::Callee;
    use crate::counters::Calls;
    use crate::{Call, RECEIVE_QUEUE, TRANSMIT_QUEUE};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fd::OwnedFd;

    fn bell() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
    }

    fn port() -> Arc<CallCost> {
        Arc::default()
    }

    #[test]
    fn long_calls_wait_for_each_other_and_short_ones_for_nobody() {
        let long_work = LongWork::for_tests();
        let queue = Queue {
            ports: Mutex::default(),
            changed: Condvar::new(),
            long_work,
        };
        let ports = [port(), port(), port()];
        ports[0].waiting.last_us.store(1000, Relaxed);
        ports[1]
            .waiting
            .paused_us
            .store(cpu::now_us() + 3_000_000, Relaxed);
        ports.iter().for_each(|port| queue.add(port.clone()));
        long_work.note(1000, cpu::now_us());
        let long_us = long_work.free_us(1000);
        assert!(Arc::ptr_eq(&queue.next(), &ports[2]));
        assert!(cpu::now_us() < long_us);
        assert!(Arc::ptr_eq(&queue.next(), &ports[0]));
        assert!(cpu::now_us() >= long_us, "not before the pause of the last one");
    }

    #[test]
    fn calls_do_not_wait_for_gates_which_may_be_paused_for_minutes() {
        crate::pause::LONG_WORK.note(1_000_000, cpu::now_us());
        assert!(QUEUE.long_work.free_us(1_000_000) <= cpu::now_us());
    }

    /// A call of a ring, and the descriptor that it signals.
    fn call(cost: &Arc<CallCost>, ring: usize, trusted: bool) -> (Call, OwnedFd) {
        let kept = bell();
        let callee = Callee {
            ring,
            cost: cost.clone(),
            trusted,
            line: None,
        };
        let call = Call::new(Some(kept.try_clone().unwrap()), callee).unwrap();
        (call, kept)
    }

    fn has_called(fd: &OwnedFd) -> bool {
        rustix::io::read(fd, &mut [0; 8]).is_ok()
    }

    #[test]
    fn a_trusted_peer_is_called_at_once_whatever_that_costs() {
        let cost = port();
        cost.be_apart();
        let (mut call, kept) = call(&cost, RECEIVE_QUEUE, true);
        call.notify(true, &Calls::default());
        assert!(has_called(&kept));
        assert!(cost.waiting.take().0.is_none());
    }

    /// However often they are owed, one call of each ring waits, and not at all once the ring has another
    /// descriptor.
    #[test]
    fn one_call_of_each_ring_waits() {
        let cost = port();
        let (mut rings, account) = (
            [RECEIVE_QUEUE, TRANSMIT_QUEUE].map(|ring| call(&cost, ring, false)),
            Calls::default(),
        );
        cost.be_apart();
        for (call, _) in &mut rings {
            (0..100).for_each(|_| call.notify(true, &account));
        }
        cost.waiting.forget(TRANSMIT_QUEUE);
        let (first, is_last) = cost.waiting.take();
        assert!(first.is_some() && is_last);
        assert!(
            rings.iter().all(|(_, kept)| !has_called(kept)),
            "nothing has called"
        );
        first.unwrap().signal_apart().unwrap();
        assert_eq!(rings.each_ref().map(|(_, kept)| has_called(kept)), [true, false]);
    }
}
