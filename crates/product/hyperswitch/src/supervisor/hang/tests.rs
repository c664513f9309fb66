//! Judgements about a child whose threads are made up.

use super::*;
use control_protocol::supervisor::ForwarderId;
use std::cell::RefCell;

const MAIN: u32 = 1;
const WORKER: u32 = 2;

/// A child of which everything can be set.
#[derive(Default)]
struct Child {
    stopped_by: Option<i32>,
    is_traced: bool,
    threads: RefCell<BTreeMap<u32, Thread>>,
}

impl Sight for Child {
    fn stopped_by(&self) -> Option<i32> {
        self.stopped_by
    }

    fn is_traced(&self) -> bool {
        self.is_traced
    }

    fn thread(&self, tid: Option<u32>) -> Option<Thread> {
        self.threads.borrow().get(&tid.unwrap_or(MAIN)).copied()
    }

    fn threads(&self) -> BTreeMap<u32, Thread> {
        self.threads.borrow().clone()
    }
}

/// A watched child that has answered before, in its own time.
struct Scene {
    child: Child,
    watch: Watch,
    now: Instant,
}

impl Scene {
    fn new() -> Scene {
        let mut scene = Scene {
            child: Child::default(),
            watch: Watch::default(),
            now: Instant::now(),
        };
        scene.is(MAIN, Condition::Asleep, 0);
        scene.is(WORKER, Condition::Asleep, 0);
        let ping = scene.ping().unwrap();
        scene.answer(ping);
        scene
    }

    /// A thread is seen in this condition, and has used so much time since it was seen last.
    fn is(&self, tid: u32, condition: Condition, used_ms: u64) {
        let mut threads = self.child.threads.borrow_mut();
        let thread = threads.entry(tid).or_insert(Thread {
            condition,
            cpu_ms: 0,
            switches: 0,
        });
        thread.switches += u64::from(thread.condition != condition || used_ms > 0);
        thread.condition = condition;
        thread.cpu_ms += used_ms;
    }

    fn ping(&mut self) -> Option<u32> {
        self.watch.ping(&self.child, self.now)
    }

    fn answer(&mut self, ping: u32) {
        self.watch.answered(ping, &self.child);
    }

    /// The next look, when it is due.
    fn look(&mut self) -> Option<String> {
        self.now = self.watch.due().unwrap_or(self.now).max(self.now);
        self.watch.look(&self.child, self.now)
    }

    /// Looks for so long, and returns after how long the child was to be replaced.
    fn look_for(&mut self, time: Duration, mut before_each: impl FnMut(&Scene)) -> Option<Duration> {
        let begin = self.now;
        while self.now - begin < time && self.watch.due().is_some() {
            before_each(self);
            if self.look().is_some() {
                return Some(self.now - begin);
            }
        }
        None
    }

    fn report(&mut self, beats: u32) -> Option<String> {
        let report = StuckThread {
            tid: WORKER,
            beats,
            at_ms: monotonic_ms(),
        };
        self.watch.on_stuck(report, &self.child, self.now)
    }
}

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn a_child_that_answers_is_not_looked_at() {
    let mut scene = Scene::new();
    assert_eq!((scene.watch.due(), scene.watch.is_unsure()), (None, false));
    assert_eq!(scene.look(), None);
    let ping = scene.ping().unwrap();
    assert!(scene.ping().is_none(), "one is under way");
    assert!(scene.watch.due().is_some() && scene.watch.is_unsure());
    scene.answer(ping.wrapping_sub(1));
    assert!(scene.watch.is_unsure(), "an answer to an earlier one");
    scene.answer(ping);
    assert_eq!((scene.watch.due(), scene.watch.is_unsure()), (None, false));
}

#[test]
fn a_stopped_child_is_replaced_within_100_ms() {
    let mut scene = Scene::new();
    scene.child.stopped_by = Some(19);
    // SIGCHLD comes at any time.
    assert_eq!(scene.watch.look(&scene.child, scene.now), None);
    let after = scene.look_for(LONG, |_| {}).unwrap();
    assert!(after <= Duration::from_millis(100), "{after:?}");
    assert_eq!(scene.watch.trouble().unwrap(), "was stopped by signal 19");
}

#[test]
fn stopping_for_a_moment_is_harmless_and_so_are_other_signals_meanwhile() {
    let mut scene = Scene::new();
    scene.child.stopped_by = Some(20);
    for _ in 0..1000 {
        assert_eq!(
            scene.watch.look(&scene.child, scene.now),
            None,
            "not a look: no time has passed"
        );
    }
    assert_eq!(scene.look(), None);
    scene.child.stopped_by = None;
    assert_eq!(scene.look(), None);
    assert_eq!(
        scene.watch.due(),
        None,
        "it goes on, and is not looked at any more"
    );
    scene.child.stopped_by = Some(20);
    assert_eq!(scene.look(), None, "looks are counted anew");
    assert_eq!(scene.look(), None);
}

/// Suspension, or a stop of the supervisor, is one long wait between two looks.
#[test]
fn a_jump_of_the_clock_kills_nobody() {
    let mut scene = Scene::new();
    scene.child.stopped_by = Some(19);
    assert_eq!(scene.watch.look(&scene.child, scene.now), None);
    scene.now += LONG;
    assert_eq!(scene.look(), None);
    scene.child.stopped_by = None;
    scene.look();
    let ping = scene.ping().unwrap();
    for _ in 1..SILENT_LOOKS {
        scene.now += LONG;
        assert_eq!(scene.look(), None);
    }
    scene.answer(ping);
    assert_eq!(scene.watch.trouble(), None);
}

#[test]
fn a_child_that_sleeps_through_its_work_is_replaced_within_300_ms() {
    let mut scene = Scene::new();
    scene.ping().unwrap();
    let after = scene.look_for(LONG, |_| {}).unwrap();
    assert!(after <= Duration::from_millis(300), "{after:?}");
    assert!(scene.watch.trouble().unwrap().contains("did not answer"));
}

/// Messages are read slowly if there are many.
#[test]
fn an_answer_that_was_not_read_is_no_silence() {
    let mut scene = Scene::new();
    scene.ping().unwrap();
    scene.watch.set_unread(true);
    assert_eq!(scene.look_for(LONG, |_| {}), None);
    scene.watch.set_unread(false);
    assert!(scene.look_for(LONG, |_| {}).is_some());
}

#[test]
fn one_whose_messages_wait_is_asked_once_they_are_read() {
    let mut scene = Scene::new();
    scene.watch.set_unread(true);
    assert!(!scene.watch.is_to_be_asked(), "nobody wanted to");
    assert_eq!(scene.ping(), None);
    assert!(!scene.watch.is_to_be_asked(), "messages wait");
    scene.watch.set_unread(false);
    assert!(scene.watch.is_to_be_asked());
    assert!(scene.ping().is_some());
    assert!(!scene.watch.is_to_be_asked(), "once only");
}

#[test]
fn one_that_computes_without_end_is_replaced_by_the_time_it_uses() {
    let mut scene = Scene::new();
    scene.ping().unwrap();
    let after = scene
        .look_for(LONG, |scene| scene.is(MAIN, Condition::Runnable, 25))
        .unwrap();
    assert!((2000..2500).contains(&after.as_millis()), "{after:?}");
    // On a busy machine that takes longer.
    let mut scene = Scene::new();
    scene.ping().unwrap();
    let hour = Duration::from_secs(3600);
    let after = scene.look_for(hour, |scene| scene.is(MAIN, Condition::Runnable, 1));
    assert!(after.unwrap() > Duration::from_secs(60), "{after:?}");
}

#[test]
fn waiting_for_a_processor_is_not_hanging() {
    let mut scene = Scene::new();
    scene.ping().unwrap();
    assert_eq!(
        scene.look_for(LONG, |scene| scene.is(MAIN, Condition::Runnable, 0)),
        None
    );
    assert!(scene.watch.trouble().unwrap().contains("waits for a processor"));
    // Nor is waiting for another thread that does: one that gets a little time now and then.
    let mut scene = Scene::new();
    let ping = scene.ping().unwrap();
    scene.is(WORKER, Condition::Runnable, 0);
    let mut looks = 0;
    let after = scene.look_for(LONG, |scene| {
        looks += 1;
        scene.is(WORKER, Condition::Runnable, if looks % 4 == 0 { 10 } else { 0 });
    });
    assert_eq!(after, None);
    scene.answer(ping);
    assert_eq!(scene.watch.trouble(), None);
    // One that has all the time it wants is no excuse.
    scene.ping().unwrap();
    let after = scene.look_for(LONG, |scene| scene.is(WORKER, Condition::Runnable, 25));
    assert!(after.unwrap() <= Duration::from_millis(300), "{after:?}");
}

#[test]
fn sleeps_that_end_are_not_hanging() {
    let mut scene = Scene::new();
    scene.ping().unwrap();
    let mut looks = 0;
    let after = scene.look_for(LONG, |scene| {
        looks += 1;
        // Wakes up every 150 ms, and is never seen awake.
        scene.child.threads.borrow_mut().get_mut(&MAIN).unwrap().switches += u64::from(looks % 6 == 0);
    });
    assert_eq!(after, None);
}

#[test]
fn who_is_held_by_the_kernel_or_a_debugger_stays() {
    let mut scene = Scene::new();
    scene.ping().unwrap();
    assert_eq!(
        scene.look_for(LONG, |scene| scene.is(MAIN, Condition::Held, 0)),
        None
    );
    assert!(scene.watch.trouble().unwrap().contains("the kernel holds it"));
    scene.is(MAIN, Condition::Asleep, 0);
    assert_eq!(
        scene.look_for(LONG, |scene| scene.is(WORKER, Condition::Held, 0)),
        None
    );
    scene.is(WORKER, Condition::Asleep, 0);
    scene.child.is_traced = true;
    assert_eq!(scene.look_for(LONG, |_| {}), None);
    assert!(scene.watch.trouble().unwrap().contains("under a debugger"));
    scene.child.stopped_by = Some(19);
    assert_eq!(scene.look_for(LONG, |_| {}), None);
    scene.child.is_traced = false;
    assert!(scene.look_for(LONG, |_| {}).is_some());
}

#[test]
fn a_child_that_starts_has_longer() {
    let mut scene = Scene::new();
    scene.watch = Watch::default();
    scene.ping().unwrap();
    let after = scene.look_for(LONG, |_| {}).unwrap();
    assert!((9..12).contains(&after.as_secs()), "{after:?}");
}

#[test]
fn a_long_silence_costs_few_looks() {
    let mut scene = Scene::new();
    scene.ping().unwrap();
    let mut looks = 0;
    scene.look_for(Duration::from_secs(60), |scene| {
        looks += 1;
        scene.is(MAIN, Condition::Held, 0);
    });
    assert!(looks < 400, "{looks}");
}

#[test]
fn a_child_that_has_slept_since_it_answered_need_not_be_woken() {
    let mut scene = Scene::new();
    assert!(!scene.watch.has_run(&scene.child));
    scene.is(MAIN, Condition::Runnable, 0);
    assert!(scene.watch.has_run(&scene.child));
    scene.is(MAIN, Condition::Asleep, 0);
    assert!(scene.watch.has_run(&scene.child), "it was awake in between");
    let ping = scene.ping().unwrap();
    scene.answer(ping);
    assert!(!scene.watch.has_run(&scene.child));
    // One that was not yet asleep again when its answer was read is asked once more.
    let ping = scene.ping().unwrap();
    scene.is(MAIN, Condition::Runnable, 0);
    scene.answer(ping);
    scene.is(MAIN, Condition::Asleep, 0);
    assert!(scene.watch.has_run(&scene.child));
}

#[test]
fn a_thread_that_sleeps_with_work_has_its_process_replaced() {
    let mut scene = Scene::new();
    assert_eq!(scene.report(7), None);
    assert!(scene.report(7).unwrap().contains("does not go on"));
    let mut scene = Scene::new();
    for beats in 0..1000 {
        assert_eq!(scene.report(beats), None, "it has gone on in between");
    }
}

#[test]
fn a_thread_that_has_no_processor_or_is_held_does_not() {
    let mut scene = Scene::new();
    for condition in [Condition::Runnable, Condition::Held] {
        scene.is(WORKER, condition, 0);
        for _ in 0..1000 {
            scene.now += Duration::from_millis(80);
            assert_eq!(scene.report(7), None);
        }
    }
    scene.is(WORKER, Condition::Asleep, 0);
    scene.is(MAIN, Condition::Runnable, 0);
    for _ in 0..1000 {
        scene.now += Duration::from_millis(80);
        assert_eq!(scene.report(7), None, "the other thread has what it waits for");
    }
    scene.child.is_traced = true;
    scene.is(MAIN, Condition::Asleep, 0);
    for _ in 0..10 {
        assert_eq!(scene.report(7), None);
    }
}

#[test]
fn a_thread_that_computes_without_end_has_its_process_replaced() {
    let mut scene = Scene::new();
    let mut reports = 0;
    let reason = loop {
        scene.is(WORKER, Condition::Runnable, 80);
        if let Some(reason) = scene.report(7) {
            break reason;
        }
        reports += 1;
        assert!(reports < 100);
    };
    assert!(
        reason.contains("processor time") && reports > 20,
        "{reason}, {reports}"
    );
}

/// Reports come every 25 ms: a forwarder on a processor of its own is replaced after 150 ms at most.
#[test]
fn a_forwarder_that_computes_without_end_is_replaced_soon() {
    let mut scene = Scene::new();
    scene.watch = Watch::new(Role::Forwarder(ForwarderId::TAPS));
    for report in 0..5 {
        scene.is(WORKER, Condition::Runnable, 25);
        let reason = scene.report(7);
        assert_eq!(reason.is_some(), report == 4, "{report}: {reason:?}");
    }
}

/// The supervisor may have been stopped when they came.
#[test]
fn reports_of_the_past_do_not_count() {
    let mut scene = Scene::new();
    for _ in 0..10 {
        let report = StuckThread {
            tid: WORKER,
            beats: 7,
            at_ms: monotonic_ms() - 2 * STALE_MS,
        };
        assert_eq!(scene.watch.on_stuck(report, &scene.child, scene.now), None);
    }
    assert_eq!(scene.report(7), None, "this one is the first");
}

#[test]
fn what_is_known_of_threads_is_bounded() {
    let mut scene = Scene::new();
    for tid in 0..10_000 {
        scene.is(tid, Condition::Asleep, 0);
        let (beats, at_ms) = (0, monotonic_ms());
        let report = StuckThread { tid, beats, at_ms };
        scene
            .child
            .threads
            .borrow_mut()
            .retain(|known, _| *known == tid || *known <= WORKER);
        scene.watch.on_stuck(report, &scene.child, scene.now);
    }
    assert!(scene.watch.stuck.len() <= MAX_STUCK);
}
