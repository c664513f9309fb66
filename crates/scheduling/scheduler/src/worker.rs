//! Worker threads: asleep until a ring is kicked or posted or a message comes, and then forwarding until
//! there is nothing left to do. After its last packet a worker polls the rings it served for a short while
//! before it sleeps, giving way to any task that wants its core; their guests need not kick meanwhile.
//!
//! Workers that float all wait on the same executor, so that a wake-up finds an idle one by itself. Others
//! are bound to their core, or belong to a vNIC. Which worker serves which ring is decided by claims,
//! whichever was told to.

use crate::account::{Account, Progress};
use crate::executor::{Activity, Executor, FEW_WAKEUPS, Message, Wakeup};
use crate::forwarding_threads::ForwardingThreads;
use crate::home::{Home, Homes};
use crate::idle_core::IdleCore;
use crate::idle_gap::IdleGap;
use crate::turns::{Rings, Scheduler};
use crate::wake_cost::bind;
use crate::wakeup_preemption::{PAUSE_NS, WakeupPreemption};
use crate::watchdog::Pulse;
use cpu::Deadline;
use lock_free::Receiver;
use placement::VnicId;
use rustix::thread::sched_getaffinity;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use thread_priority::{Booster, WakeMode};

/// Number of rings that a worker which does not come to polling keeps without kicks, and looks at when it
/// looks at new wake-ups.
const POLLED: usize = 8;

/// Most steps of a worker after it was told to end.
const LAST_STEPS: usize = 256;

/// Time between two looks at new wake-ups in microseconds, besides what a single step takes, so that a busy
/// port does not hide others' kicks.
const NEWS_US: u64 = 20;

/// Number of looks at polled rings between two looks at the clock.
const LOOKS: usize = 8;

/// Time for which a worker that never sleeps polls between two looks at new wake-ups.
const NEWS: Duration = Duration::from_micros(100);

/// Starts a thread for each executor that has a core, or as many as there are processors for one that has
/// none; returns the number of threads. Each makes its own `rings`.
///
/// # Errors
/// A thread cannot be started.
pub fn start_all<R: Rings>(
    shared: &Arc<ForwardingThreads>,
    rings: impl Fn() -> R + Clone + Send + 'static,
) -> std::io::Result<usize> {
    let executors = shared.placement.workers();
    let floating = shared.placement.floats();
    // (The standard library's way to count reads files.)
    let processors = sched_getaffinity(None).map_or(1, |set| (set.count() as usize).max(1));
    let count = if floating { processors } else { executors.len() };
    for number in 0..count {
        let executor = &executors[if floating { 0 } else { number }];
        let inbox = if floating { None } else { executor.take_inbox() };
        let name = format!("worker-{number}");
        start(shared, &name, executor, inbox, &shared.ending, rings.clone())?;
    }
    Ok(count)
}

/// Starts a vNIC's own thread, if vNICs have threads. It ends after [`Home::end_own`].
///
/// # Errors
/// The thread cannot be started.
pub fn start_own<R: Rings>(
    shared: &Arc<ForwardingThreads>,
    home: &Home,
    rings: impl FnOnce() -> R + Send + 'static,
) -> std::io::Result<()> {
    let Some(executor) = home.own() else {
        return Ok(());
    };
    let name = format!("vnic-{}", home.vnic().0);
    start(
        shared,
        &name,
        executor,
        executor.take_inbox(),
        home.ending(),
        rings,
    )
}

fn start<R: Rings>(
    shared: &Arc<ForwardingThreads>,
    name: &str,
    executor: &Arc<Executor>,
    inbox: Option<Receiver<Message>>,
    ending: &Arc<AtomicBool>,
    rings: impl FnOnce() -> R + Send + 'static,
) -> std::io::Result<()> {
    let (shared, executor, ending) = (shared.clone(), executor.clone(), ending.clone());
    let account_name = name.to_owned();
    std::thread::Builder::new().name(name.into()).spawn(move || {
        if let Some(cpu) = executor.cpu {
            bind(cpu);
        }
        let account = shared.ledger.open(&account_name);
        let mut scheduler = Scheduler::new(shared.clone(), Some(executor.clone()), rings());
        scheduler.schedule.account = Some(account.clone());
        let worker = Worker {
            account,
            pulse: shared.worker_pulse(),
            scheduler,
            gap: IdleGap::new(shared.placement.policy.linger_ns().unwrap_or(u64::MAX)),
            booster: Booster::new(shared.placement.policy.config().priority),
            preemption: (shared.placement.waits_for_vcpus()).map(|_| WakeupPreemption::default()),
            idle_core: (executor.cpu).and_then(|cpu| shared.placement.take_idle_core(cpu)),
            executor,
            inbox,
            wakers: Wakers::default(),
        };
        let (account, pulse) = (worker.account.clone(), worker.pulse.clone());
        worker.work(&ending);
        shared.watchdog.forget(&pulse);
        shared.ledger.close(&account);
    })?;
    Ok(())
}

struct Worker<R> {
    account: Arc<Account>,
    pulse: Arc<Pulse>,
    scheduler: Scheduler<R>,
    executor: Arc<Executor>,
    inbox: Option<Receiver<Message>>,
    /// The gaps between steps.
    gap: IdleGap,
    booster: Booster,
    /// Wakeup preemption of a worker that may wait for guests to block.
    preemption: Option<WakeupPreemption>,
    /// The core of a worker that may keep it from halting.
    idle_core: Option<IdleCore>,
    /// The vNICs whose kicks woke it last.
    wakers: Wakers,
}

/// vNICs whose kicks ended a sleep.
#[derive(Default)]
struct Wakers {
    vnics: [Option<VnicId>; FEW_WAKEUPS],
    count: usize,
}

impl Wakers {
    fn add(&mut self, vnic: VnicId) {
        if let Some(place) = self.vnics.get_mut(self.count) {
            *place = Some(vnic);
            self.count += 1;
        }
    }

    fn homes<'a, H: Homes>(&self, homes: &'a H) -> impl Iterator<Item = &'a Home> {
        self.vnics
            .into_iter()
            .flatten()
            .filter_map(|vnic| homes.home(vnic))
    }
}

impl<R: Rings> Worker<R> {
    fn work(mut self, ending: &AtomicBool) {
        while !ending.load(Ordering::Relaxed) {
            self.read_messages();
            let busy = self.do_some();
            if busy {
                // Rings without kicks are not to wait until others are empty.
                self.scheduler.poll_few(POLLED);
            }
            // Also while there is something to do: timers wait for nobody.
            let deadline = self.scheduler.schedule.next_deadline();
            let timeout = if busy { Some(Duration::ZERO) } else { deadline };
            if timeout == Some(Duration::ZERO) {
                self.scheduler.rings.flush_stats();
                self.account.awake();
                self.wait(timeout);
            } else {
                self.sleep(timeout);
            }
        }
        // Others may wait for what is queued: chains of their packets that went here.
        let _ = (0..LAST_STEPS).all(|_| self.scheduler.step());
        self.scheduler.resign();
    }

    /// Does some of the work that there is, or waits for more; false if there is none.
    fn do_some(&mut self) -> bool {
        let news = Deadline::after_us(NEWS_US);
        loop {
            self.pulse.beat();
            self.booster.check();
            let worked = !self.scheduler.schedule.queue.is_empty()
                && self.scheduler.accounted(&self.account, Scheduler::step);
            if !(worked || self.look_before_break() || self.linger()) {
                return false;
            }
            // What was done last has just been charged.
            if news.had_passed_at(self.account.charged_until()) {
                return true;
            }
        }
    }

    /// One look, after which there is no gap if something was found; true if so. While packets come fast
    /// there are no gaps, and no clock is read.
    fn look_before_break(&mut self) -> bool {
        let schedule = &self.scheduler.schedule;
        let expected_ns = self.gap.expected_ns();
        if !schedule.is_polling()
            || self.gap.since_ns().is_some()
            || schedule.shared.placement.policy.linger_for_ns(expected_ns) == Some(0)
        {
            return false;
        }
        match schedule.is_wanted_elsewhere() {
            Some(true) => return false,
            Some(false) => {}
            None if self.booster.is_raised() => self.booster.lower(),
            None => {}
        }
        let found = self.look().is_some();
        if found {
            self.gap.skip();
        }
        found
    }

    /// Polls for a while (Hyper-Switch 3.4, "Hysteresis": waking takes longer than it seems, and the waker's
    /// time); true if there is something to do again. Other threads that want this core get it.
    fn linger(&mut self) -> bool {
        self.scheduler.give_up_claims();
        self.gap.begin(self.now_ns());
        if self.executor.take_handed() {
            self.gap.forget();
        }
        let linger_ns = {
            let policy = &self.scheduler.schedule.shared.placement.policy;
            policy.linger_for_ns(self.gap.expected_ns())
        };
        if !self.scheduler.schedule.is_polling() || linger_ns == Some(0) {
            return self.scheduler.stop_polling(None);
        }
        if self.scheduler.schedule.is_wanted_elsewhere().is_none() {
            // Nobody could have the core from a raised thread that polls.
            self.booster.lower();
        }
        let (mut start, mut longest) = (None, None);
        let mut served_ns = 0;
        let (found, wanted) = loop {
            // Mostly by a receiver that was just called.
            let others_wait = self.scheduler.schedule.is_wanted_elsewhere();
            if linger_ns.is_some() && others_wait == Some(true) {
                break (false, true);
            }
            if let Some(cycles) = (0..LOOKS).find_map(|_| self.look()) {
                served_ns = cycles * 1000 / cpu::cycles_per_us();
                break (true, false);
            }
            // Often there was more at once.
            let start = start.get_or_insert_with(|| {
                self.executor.set_activity(Activity::Polling);
                Instant::now()
            });
            if self.scheduler.look_around() {
                break (true, false);
            }
            let Some(limit) = linger_ns else {
                // A dedicated core is not given up; but there may be news.
                if start.elapsed() > NEWS {
                    break (true, false);
                }
                std::hint::spin_loop();
                self.account.in_vain();
                continue;
            };
            let longest =
                *longest.get_or_insert_with(|| Duration::from_nanos(limit.max(self.scheduler.patience_ns())));
            if start.elapsed() >= longest {
                break (false, false);
            }
            self.booster.check();
            match others_wait {
                Some(_) => std::hint::spin_loop(),
                None => rustix::thread::sched_yield(),
            }
            self.account.in_vain();
        };
        self.executor.set_activity(Activity::Working);
        if found {
            self.gap.end(self.now_ns().saturating_sub(served_ns));
        }
        // A guest that comes back to its core later than that has lost nothing: it found it awake.
        let waited = wanted && start.is_none();
        found || (self.scheduler).stop_polling(waited.then_some(self.gap.long_until_ns()))
    }

    fn now_ns(&self) -> u64 {
        self.scheduler.schedule.shared.placement.now_ns()
    }

    /// One look at everything that is polled. If something was found, it was served or is queued, and the
    /// cycles are returned that serving it took.
    fn look(&mut self) -> Option<u64> {
        self.account.polled();
        let since = self.account.charged_until();
        let found = self.read_messages() | self.scheduler.poll_and_serve();
        let progress = std::mem::take(&mut self.scheduler.schedule.progress);
        if progress != Progress::default() {
            self.account.add(progress);
        } else if !found {
            self.account.in_vain();
        }
        found.then(|| self.account.charged_until().wrapping_sub(since))
    }

    /// Queues the rings that others ask for; true if there was something.
    fn read_messages(&mut self) -> bool {
        let Some(inbox) = &mut self.inbox else {
            return false;
        };
        let mut any = false;
        while let Some(ring) = self.executor.receive(inbox) {
            self.scheduler.schedule.later(ring);
            any = true;
        }
        any
    }

    fn sleep(&mut self, timeout: Option<Duration>) {
        let mode = self.choose_wake_mode();
        self.scheduler.rings.before_sleep();
        self.executor.set_activity(Activity::Asleep);
        if !self.read_messages() {
            let timeout = self.prepare_sleep(mode, timeout);
            let timeout = self.keep_core(timeout);
            let (account, pulse) = (self.account.clone(), self.pulse.clone());
            let mut woken = false;
            account.asleep(|| {
                woken = pulse.asleep(|| self.wait(timeout));
                woken
            });
            self.booster.woken();
            if woken {
                self.note_answer();
                self.gap.end(self.now_ns());
                self.note_wakeup();
            }
        }
        self.executor.set_activity(Activity::Working);
    }

    /// Chooses how this thread is to be woken, by its work since it was woken last.
    fn choose_wake_mode(&mut self) -> WakeMode {
        let (now_ns, packets) = (self.now_ns(), self.account.packets());
        let Some(preemption) = &mut self.preemption else {
            return WakeMode::Preempting;
        };
        let homes = self.scheduler.rings.homes();
        if let Some(per_packet_ns) = preemption.waited_per_packet_ns(packets) {
            let wakers = self.wakers.homes(homes);
            wakers.for_each(|home| home.waited_for(now_ns, per_packet_ns));
        }
        let mut wakers = self.wakers.homes(homes);
        preemption.choose_wake_mode(now_ns, wakers.all(|home| home.may_be_waited_for(now_ns)))
    }

    /// Enters the class in which this thread is to be woken, and returns the time for which it may sleep in
    /// it.
    fn prepare_sleep(&mut self, mode: WakeMode, timeout: Option<Duration>) -> Option<Duration> {
        self.booster.prepare_sleep(mode);
        if mode == WakeMode::Preempting {
            return timeout;
        }
        let pause = Duration::from_nanos(PAUSE_NS);
        Some(timeout.map_or(pause, |timeout| timeout.min(pause)))
    }

    /// Keeps the core from halting if an answer is expected soon, and returns the time for which this thread
    /// may sleep meanwhile.
    fn keep_core(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        let now_ns = self.now_ns();
        let since_ns = self.gap.since_ns().unwrap_or(now_ns);
        let idle_core = self.idle_core.as_mut();
        let poll_for = idle_core.and_then(|core| core.before_sleep(now_ns, since_ns, &self.account));
        timeout.into_iter().chain(poll_for).min()
    }

    /// Learns from a wake-up whether guests wait for answers.
    fn note_answer(&mut self) {
        let now_ns = self.now_ns();
        if let (Some(core), Some(since_ns)) = (&mut self.idle_core, self.gap.since_ns()) {
            let wakers = self.wakers.homes(self.scheduler.rings.homes());
            core.woken(now_ns, since_ns, wakers.map(Home::notified_ns).max());
        }
    }

    /// Learns from a wake-up whether waiting is worth while.
    fn note_wakeup(&mut self) {
        let placement = &self.scheduler.schedule.shared.placement;
        if let (Some(preemption), Some(facts), Some(cpu)) = (
            &mut self.preemption,
            placement.waits_for_vcpus(),
            self.executor.cpu,
        ) {
            let (now_ns, packets, cpu) = (placement.now_ns(), self.account.packets(), cpu.0.into());
            preemption.woken(now_ns, packets, facts.waited_ns(cpu), facts.preempted(cpu));
            self.executor.set_contended(preemption.is_contended(now_ns));
        }
    }

    /// Waits for wake-ups and queues their rings; true if there were any.
    fn wait(&mut self, timeout: Option<Duration>) -> bool {
        let (executor, account, scheduler) = (&self.executor, &self.account, &mut self.scheduler);
        let (wakers, mut slept) = (&mut self.wakers, false);
        let result = executor.wait(timeout, |wakeup| {
            // Before anything is decided: the core of a worker that sleeps is somebody else's.
            if executor.activity() == Activity::Asleep {
                executor.set_awake();
                account.woken();
                *wakers = Wakers::default();
                slept = true;
            }
            match wakeup {
                Wakeup::Kick(ring) => {
                    account.count_kick();
                    if slept {
                        wakers.add(ring.vnic());
                        scheduler.note_kicker(ring.vnic());
                    }
                    scheduler.on_kick(ring);
                }
                Wakeup::Doorbell => {
                    for ring in executor.take_posted() {
                        scheduler.schedule.later(ring);
                    }
                }
            }
        });
        result.unwrap_or_else(|error| {
            // Cannot happen with a valid descriptor; not to spin if it does.
            log::error!("waiting for work: {error}");
            std::thread::sleep(Duration::from_millis(100));
            false
        })
    }
}
