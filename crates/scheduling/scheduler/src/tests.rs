//! The scheduler with a forwarder that only counts.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::account::Progress;
use crate::executor::{Activity, Executor, Wakeup, ring_bell};
use crate::forwarding_threads::ForwardingThreads;
use crate::home::{Home, Homes as _};
use crate::placement::Placement;
use crate::ring_id::RingId;
use crate::schedule::Schedule;
use crate::testing::{Fake, Table};
use crate::timers::Due;
use crate::turns::{Rings, Scheduler};
use crate::worker::start_all;
use ::placement::{Config, Costs, Cpu, Policy, Shape, Topology, VnicId};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd as _, OwnedFd};
use std::collections::BTreeSet;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use vm_state::{TestArea, ThreadState, VmState};

/// Tests wait so long for other threads, on the busiest machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Task numbers: of the worker, and from there on of guests' threads.
const WORKER: u32 = 1;
const GUEST: u32 = 1000;

pub(crate) fn transmit(vnic: u32) -> RingId {
    RingId::transmit(VnicId(vnic))
}

fn receive(vnic: u32) -> RingId {
    RingId::receive(VnicId(vnic))
}

fn shared(facts: Option<VmState>) -> Arc<ForwardingThreads> {
    ForwardingThreads::new(placement(Config::default(), facts))
}

fn placement(config: Config, facts: Option<VmState>) -> Placement {
    let shape = Shape {
        nodes: 1,
        llcs: 1,
        modules: 4,
        cpus: 1,
    };
    let policy = Policy::new(config, Topology::regular(shape), Costs::default());
    Placement::new(policy, facts).unwrap()
}

/// A thread that is no worker: nothing is asked of the placement policy.
fn alone(vnics: u32) -> Scheduler<Fake> {
    Scheduler::new(shared(None), None, Fake::with(vnics))
}

/// The worker of core 0 of four, and what is known of cores and guests. Each vNIC's guest is blocked on the
/// core of its number.
fn on_core_0(vnics: u32) -> (Scheduler<Fake>, TestArea) {
    let area = TestArea::new().unwrap();
    (0..4).for_each(|cpu| area.runs(cpu, 0));
    area.runs(0, WORKER);
    let fake = Fake::with(vnics);
    for vnic in 0..vnics {
        let slot = area.thread(GUEST + vnic, ThreadState::Blocked(vnic)).unwrap();
        fake.table.0[vnic as usize].set_threads(Box::new([slot]));
    }
    let shared = shared(Some(VmState::map(area.descriptor()).unwrap()));
    let me = executor(&shared, 0);
    me.set_activity(Activity::Working);
    (Scheduler::new(shared, Some(me), fake), area)
}

fn executor(shared: &Arc<ForwardingThreads>, cpu: u16) -> Arc<Executor> {
    let core = ::placement::WorkerId::Core(Cpu(cpu));
    shared.placement.find(core, &Table::default()).unwrap()
}

/// What an executor was told.
fn messages(executor: &Executor) -> Vec<RingId> {
    let mut inbox = executor.take_inbox().unwrap();
    std::iter::from_fn(|| executor.receive(&mut inbox)).collect()
}

#[test]
fn rings_of_a_vnic_are_neighbours() {
    for vnic in [0, 1, 77, u32::MAX / 2] {
        let (receive, transmit) = (receive(vnic), transmit(vnic));
        assert_eq!((receive.vnic(), transmit.vnic()), (VnicId(vnic), VnicId(vnic)));
        assert!(transmit.is_transmit() && !receive.is_transmit());
        assert_eq!(transmit.0, receive.0 + 1);
    }
}

#[test]
fn busy_rings_take_turns() {
    let mut scheduler = alone(3);
    for (vnic, turns) in [(0, 4), (1, 2), (2, 1)] {
        scheduler.rings.work.insert(transmit(vnic), turns);
        scheduler.on_kick(transmit(vnic));
        // Said twice, done once.
        scheduler.on_kick(transmit(vnic));
    }
    while scheduler.step() {}
    let order = [0, 1, 2, 0, 1, 0, 0].map(transmit);
    assert_eq!(scheduler.rings.served, order);
    assert!(!scheduler.step(), "nothing is left");
}

#[test]
fn kicks_of_rings_that_do_not_exist_are_ignored() {
    let mut scheduler = alone(1);
    scheduler.on_kick(transmit(1));
    assert!(!scheduler.step());
    scheduler.on_kick(receive(0));
    assert!(scheduler.step());
    assert_eq!(scheduler.rings.served, [receive(0)]);
}

#[test]
fn polling_looks_at_a_bounded_number_of_rings_and_at_all_in_time() {
    let mut scheduler = alone(5);
    (0..5).for_each(|vnic| scheduler.on_kick(transmit(vnic)));
    while scheduler.step() {}
    assert!(scheduler.schedule.is_polling());
    for _ in 0..5 {
        assert!(!scheduler.poll(2), "nothing has come");
    }
    let mut looks = std::mem::take(&mut scheduler.rings.looks);
    looks.sort_unstable();
    let twice: Vec<RingId> = (0..5).flat_map(|vnic| [transmit(vnic); 2]).collect();
    assert_eq!(looks, twice);
    scheduler.rings.work.insert(transmit(3), 1);
    assert!(scheduler.poll(usize::MAX));
    assert_eq!(scheduler.rings.looks.len(), 5);
    scheduler.rings.served.clear();
    while scheduler.step() {}
    assert_eq!(scheduler.rings.served, [transmit(3)]);
}

#[test]
fn what_comes_while_polling_ends_is_not_lost() {
    let mut scheduler = alone(2);
    (0..2).for_each(|vnic| scheduler.on_kick(transmit(vnic)));
    while scheduler.step() {}
    assert!(scheduler.rings.kicks_on.is_empty());
    scheduler.rings.work.insert(transmit(1), 1);
    assert!(scheduler.stop_polling(None));
    assert!(!scheduler.schedule.is_polling());
    assert_eq!(scheduler.rings.kicks_on.len(), 2, "guests kick again");
    scheduler.rings.served.clear();
    while scheduler.step() {}
    assert_eq!(scheduler.rings.served, [transmit(1)]);
    // It is polled again; the other one is not.
    assert!(!scheduler.stop_polling(None));
    assert_eq!(scheduler.rings.kicks_on.len(), 2);
}

#[test]
fn a_thread_sleeps_until_its_next_timer() {
    let mut scheduler = alone(3);
    assert_eq!(scheduler.schedule.next_deadline(), None, "for ever");
    let hour_ns = 3_600_000_000_000;
    let now_ns = scheduler.schedule.now_ns();
    scheduler
        .schedule
        .set_timer(now_ns + hour_ns, receive(1), Due::Slow);
    let sleep = scheduler.schedule.next_deadline().unwrap();
    assert!(sleep > Duration::ZERO && sleep <= Duration::from_nanos(hour_ns));
    assert!(!scheduler.step(), "not yet");
    scheduler.schedule.set_timer(now_ns, receive(2), Due::Stall);
    assert_eq!(scheduler.schedule.next_deadline(), Some(Duration::ZERO));
    while scheduler.step() {}
    assert_eq!(scheduler.rings.served, [receive(2)]);
    assert!(scheduler.schedule.next_deadline() > Some(Duration::ZERO));
}

#[test]
fn a_thread_that_ends_leaves_its_rings_to_others() {
    let mut scheduler = alone(4);
    scheduler.on_kick(transmit(0));
    while scheduler.step() {}
    assert!(scheduler.schedule.is_polling());
    scheduler.schedule.later(transmit(1));
    scheduler.schedule.set_timer(u64::MAX, receive(2), Due::Stall);
    scheduler.resign();
    assert!(!scheduler.schedule.is_polling() && scheduler.schedule.next_deadline().is_none());
    let placement = &scheduler.schedule.shared.placement;
    let posted = placement.workers().iter().flat_map(|worker| worker.take_posted());
    let vnics: BTreeSet<_> = posted.map(RingId::vnic).collect();
    assert_eq!(vnics, BTreeSet::from([0, 1, 2].map(VnicId)));
}

#[test]
fn only_turns_that_move_packets_count() {
    let mut scheduler = alone(1);
    let account = scheduler.schedule.shared.ledger.open("test");
    scheduler.rings.work.insert(transmit(0), 1);
    for _ in 0..2 {
        scheduler.on_kick(transmit(0));
        assert!(scheduler.accounted(&account, Scheduler::step));
    }
    assert_eq!(scheduler.schedule.progress, Progress::default());
    let records = scheduler.schedule.shared.ledger.records();
    assert_eq!((records.len(), records[0].packets), (1, 1));
    scheduler.schedule.shared.ledger.close(&account);
    assert!(scheduler.schedule.shared.ledger.records().is_empty());
}

#[test]
fn copying_comes_before_switching_unless_a_guest_waits() {
    let (mut scheduler, area) = on_core_0(3);
    area.thread(GUEST + 1, ThreadState::Running(1)).unwrap();
    for ring in [transmit(1), receive(1), transmit(2)] {
        scheduler.schedule.later(ring);
    }
    while scheduler.step() {}
    // The guest of vNIC 2 is blocked: nobody else comes along to serve what it left behind.
    assert_eq!(scheduler.rings.served, [transmit(2), receive(1), transmit(1)]);
}

#[test]
fn a_helper_gives_way_and_an_owner_does_not() {
    let (mut scheduler, area) = on_core_0(2);
    let (own, others) = (transmit(0), transmit(1));
    for ring in [own, others] {
        scheduler.schedule.later(ring);
    }
    area.wanted(0, 1);
    while scheduler.step() {}
    assert_eq!(scheduler.rings.served, [own]);
    assert_eq!(scheduler.schedule.progress.aborts, 1);
    assert_eq!(messages(&executor(&scheduler.schedule.shared, 1)), [others]);
    // Nobody wants the core any more.
    area.runs(0, WORKER);
    scheduler.schedule.later(others);
    while scheduler.step() {}
    assert_eq!(scheduler.rings.served, [own, others]);
    assert_eq!(scheduler.schedule.progress.aborts, 1);
}

#[test]
fn kicks_go_where_the_guest_is_and_so_does_its_home_in_the_end() {
    let (mut scheduler, _area) = on_core_0(2);
    let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let shared = scheduler.schedule.shared.clone();
    let (here, there) = (executor(&shared, 0), executor(&shared, 1));
    let home = scheduler.rings.table.home(VnicId(1)).unwrap();
    // It was decided when the guest was here.
    home.watch(1, kick.as_fd(), || here.clone()).unwrap();
    let heard = |executor: &Executor| {
        let mut rings = Vec::new();
        ring_bell(&kick);
        let wait = executor.wait(Some(Duration::ZERO), |wakeup| rings.push(format!("{wakeup:?}")));
        assert_eq!(wait.unwrap(), !rings.is_empty());
        rings.iter().any(|ring| ring.contains("Kick"))
    };
    assert!(heard(&here) && !heard(&there));
    for _ in 0..32 {
        scheduler.on_kick(transmit(1));
    }
    assert!(!heard(&here) && heard(&there));
    assert!(!scheduler.step(), "nothing was left here");
    assert!(messages(&there).iter().all(|ring| *ring == transmit(1)));
    scheduler.rings.table.0[1].unwatch(1);
    assert!(!heard(&there));
}

/// A guest that kicks, and whose ring is served each time.
fn kick_and_serve(scheduler: &mut Scheduler<Fake>, ring: RingId, times: usize) {
    for _ in 0..times {
        scheduler.on_kick(ring);
        while scheduler.step() {}
    }
}

#[test]
fn kicks_in_vain_are_not_received_for_a_while_if_there_are_too_many() {
    let mut scheduler = alone(2);
    let (kick, executor) = (bell(), Arc::new(Executor::new().unwrap()));
    for (home, kick) in scheduler.rings.table.0.iter().zip(&kick) {
        home.watch(1, kick.as_fd(), || executor.clone()).unwrap();
    }
    let heard = |vnic: usize| {
        let mut rings = Vec::new();
        ring_bell(&kick[vnic]);
        let wait = executor.wait(Some(Duration::ZERO), |wakeup| rings.push(wakeup));
        wait.unwrap() && rings == [Wakeup::Kick(transmit(vnic as u32))]
    };
    assert!(heard(0) && heard(1));
    kick_and_serve(&mut scheduler, transmit(0), 1000);
    assert!(scheduler.rings.paused.contains(&transmit(0)));
    assert!(!heard(0), "while the pause lasts");
    assert!(heard(1), "other guests' kicks are received");
    // The ring is served once when the pause is over, and kicks that came meanwhile are not lost.
    scheduler.rings.served.clear();
    scheduler.rings.work.insert(transmit(0), 1);
    std::thread::sleep(scheduler.schedule.next_deadline().unwrap() + Duration::from_micros(1));
    assert_eq!(scheduler.schedule.next_deadline(), Some(Duration::ZERO));
    while scheduler.step() {}
    assert_eq!(scheduler.rings.served, [transmit(0)]);
    assert_eq!(scheduler.schedule.next_deadline(), None);
    assert!(heard(0));
}

#[test]
fn kicks_that_lead_to_packets_have_no_limit() {
    let mut scheduler = alone(1);
    let (kick, executor) = (bell(), Arc::new(Executor::new().unwrap()));
    (scheduler.rings.table.0[0])
        .watch(1, kick[0].as_fd(), || executor)
        .unwrap();
    for _ in 0..1000 {
        scheduler.rings.work.insert(transmit(0), 1);
        kick_and_serve(&mut scheduler, transmit(0), 1);
        // Nobody kicked for this look.
        scheduler.schedule.later(transmit(0));
        while scheduler.step() {}
    }
    assert!(scheduler.rings.paused.is_empty());
}

#[test]
fn a_ring_that_is_set_up_anew_meanwhile_is_received_once() {
    let mut scheduler = alone(1);
    let (kick, executor) = (bell(), Arc::new(Executor::new().unwrap()));
    let watch = |scheduler: &Scheduler<Fake>, number: usize| {
        let home = &scheduler.rings.table.0[0];
        home.watch(1, kick[number].as_fd(), || executor.clone()).unwrap();
    };
    let told = || {
        let mut count = 0;
        executor.wait(Some(Duration::ZERO), |_| count += 1).unwrap();
        count
    };
    let heard = |number: usize| {
        ring_bell(&kick[number]);
        told()
    };
    watch(&scheduler, 0);
    kick_and_serve(&mut scheduler, transmit(0), 1000);
    scheduler.rings.table.0[0].unwatch(1);
    watch(&scheduler, 1);
    assert_eq!((heard(0), heard(1)), (0, 1));
    scheduler.rings.table.0[0].resume_kicks(transmit(0));
    assert_eq!(told(), 1, "at once, for whatever came meanwhile");
    assert_eq!((heard(0), heard(1)), (0, 1));
    // Or it ends.
    kick_and_serve(&mut scheduler, transmit(0), 1000);
    scheduler.rings.table.0[0].unwatch(1);
    scheduler.rings.table.0[0].resume_kicks(transmit(0));
    assert_eq!((heard(0), heard(1)), (0, 0));
}

/// Two that a guest could kick by.
fn bell() -> [OwnedFd; 2] {
    [0, 1].map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap())
}

#[test]
fn a_helper_looks_at_rings_that_it_was_not_asked_about() {
    let (mut scheduler, _area) = on_core_0(4);
    scheduler.rings.work.insert(transmit(2), 1);
    let rounds = (0..4).take_while(|_| !scheduler.look_around()).count();
    assert!(rounds < 4, "never found");
    while scheduler.step() {}
    assert_eq!(scheduler.rings.served, [transmit(2)]);
    // A worker that knows nothing of cores does not.
    let mut scheduler = alone(4);
    scheduler.rings.work.insert(transmit(2), 1);
    assert!((0..4).all(|_| !scheduler.look_around()));
}

#[test]
fn a_notification_that_is_put_off_comes_when_the_guest_blocks() {
    let (mut scheduler, area) = on_core_0(1);
    area.thread(GUEST, ThreadState::Running(1)).unwrap();
    let at_ns = scheduler.schedule.now_ns() + 3_600_000_000_000;
    scheduler.schedule.set_timer(at_ns, receive(0), Due::Notify);
    assert!(!scheduler.look_around());
    area.thread(GUEST, ThreadState::Blocked(1)).unwrap();
    assert!(scheduler.look_around());
    while scheduler.step() {}
    assert_eq!(scheduler.rings.served, [receive(0)]);
    assert_eq!(scheduler.schedule.next_deadline(), None, "the timer is gone");
}

#[test]
fn a_guest_is_called_for_the_vcpu_that_takes_its_interrupts() {
    let (mut scheduler, area) = on_core_0(1);
    let vcpu = |number, state| area.thread(GUEST + number, state).unwrap();
    // One that computes, and one that receives.
    let threads = [vcpu(0, ThreadState::Running(1)), vcpu(1, ThreadState::Blocked(2))];
    scheduler.rings.table.0[0].set_threads(Box::new(threads));
    let is_put_off = |scheduler: &Scheduler<Fake>| {
        let home = &scheduler.rings.table.0[0];
        let put_off = |_| {
            scheduler
                .schedule
                .put_off_notification(home, &scheduler.rings.table)
        };
        // The first one notes when the guest is called.
        (0..2).map(put_off).last().unwrap().is_some()
    };
    let calls = |scheduler: &Scheduler<Fake>, woken: Option<u32>| {
        let home = &scheduler.rings.table.0[0];
        scheduler
            .schedule
            .interrupt(home, || woken.into_iter().for_each(|tid| area.wakes_from(0, tid)));
    };
    assert!(is_put_off(&scheduler), "the guest runs");
    // What was woken before, or is none of its threads, says nothing.
    area.wakes_from(0, GUEST + 1);
    calls(&scheduler, None);
    calls(&scheduler, Some(WORKER));
    assert!(is_put_off(&scheduler));
    calls(&scheduler, Some(GUEST + 1));
    assert!(!is_put_off(&scheduler), "the one that receives is blocked");
    vcpu(1, ThreadState::Running(2));
    assert!(is_put_off(&scheduler));
    // A notification that is owed meanwhile comes once it blocks.
    let at_ns = scheduler.schedule.now_ns() + 3_600_000_000_000;
    scheduler.schedule.set_timer(at_ns, receive(0), Due::Notify);
    assert!(!scheduler.look_around());
    vcpu(1, ThreadState::Blocked(2));
    assert!(scheduler.look_around());
}

#[test]
fn a_ring_is_handed_off_once_its_guest_waits_for_a_contended_core() {
    let (mut scheduler, area) = on_core_0(1);
    area.thread(GUEST, ThreadState::Runnable(0)).unwrap();
    let helper = executor(&scheduler.schedule.shared, 1);
    helper.set_activity(Activity::Polling);
    scheduler.schedule.later(transmit(0));
    while scheduler.step() {}
    // Nobody waited: kicks are asked for.
    assert!(!scheduler.stop_polling(None));
    assert!(scheduler.rings.kicks_on.contains(&transmit(0)));
    scheduler.schedule.later(transmit(0));
    while scheduler.step() {}
    executor(&scheduler.schedule.shared, 0).set_contended(true);
    assert!(!scheduler.stop_polling(Some(0)));
    assert!(scheduler.rings.kicks_on.is_empty(), "the helper polls it");
    assert_eq!(messages(&helper), [transmit(0)]);
}

#[test]
fn waits_count_together_until_a_helper_would_have_gone_to_sleep() {
    let (mut scheduler, area) = on_core_0(1);
    area.thread(GUEST, ThreadState::Runnable(0)).unwrap();
    let helper = executor(&scheduler.schedule.shared, 1);
    helper.set_activity(Activity::Asleep);
    let mut handed_off = |since_ns| {
        scheduler.schedule.poll_from_now(transmit(0), true);
        assert!(!scheduler.stop_polling(Some(since_ns)));
        helper.take_handed()
    };
    assert!(!handed_off(0), "waking a helper costs more");
    assert!(!handed_off(u64::MAX), "there was a long break");
    // However long the guest takes with a worker on its core.
    std::thread::sleep(Duration::from_millis(1));
    assert!(handed_off(0));
    assert!(!helper.take_handed());
    assert_eq!(messages(&helper), [transmit(0)]);
}

#[test]
fn a_guest_that_waits_while_its_threads_sleep_has_others() {
    let (mut scheduler, _area) = on_core_0(2);
    let waits = |scheduler: &mut Scheduler<Fake>, vnic, times| {
        for _ in 0..times {
            scheduler.schedule.poll_from_now(transmit(vnic), true);
            assert!(!scheduler.stop_polling(Some(0)));
        }
    };
    waits(&mut scheduler, 0, 15);
    waits(&mut scheduler, 1, 15);
    assert!(scheduler.rings.missed_threads.is_empty());
    waits(&mut scheduler, 0, 50);
    assert_eq!(
        scheduler.rings.missed_threads,
        [VnicId(0)],
        "once a second at most"
    );
    let home = &scheduler.rings.table.0[0];
    assert!(home.take_missed_threads() && !home.take_missed_threads());
    // Whose thread waits has none that is missed.
    let (mut scheduler, area) = on_core_0(1);
    area.thread(GUEST, ThreadState::Runnable(0)).unwrap();
    waits(&mut scheduler, 0, 50);
    assert!(scheduler.rings.missed_threads.is_empty());
}

/// A forwarder that says what it serves to the test.
struct Telling(Arc<Table>, Sender<RingId>);

impl Rings for Telling {
    type Homes = Table;

    fn refresh(&mut self) {}

    fn homes(&self) -> &Table {
        &self.0
    }

    fn serve(&mut self, ring: RingId, _schedule: &mut Schedule) {
        let _ = self.1.send(ring);
    }

    fn on_kick(&mut self, ring: RingId) -> Option<u64> {
        Some(ring.0.into())
    }

    fn has_work(&mut self, _ring: RingId) -> bool {
        false
    }

    fn enable_kicks(&mut self, _ring: RingId) -> bool {
        false
    }

    fn kicks_paused(&mut self, _ring: RingId) {}

    fn missed_threads(&mut self, _vnic: VnicId) {}

    fn flush_stats(&mut self) {}

    fn before_sleep(&mut self) {}
}

#[test]
fn workers_serve_what_is_kicked_and_what_is_posted_and_end() {
    let shared = shared(None);
    let table = Arc::new(Table(vec![Home::new(VnicId(0), None)]));
    let (sender, served) = channel();
    let tables = table.clone();
    let count = start_all(&shared, move || Telling(tables.clone(), sender.clone())).unwrap();
    assert!(count >= 1);
    let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let home = &table.0[0];
    home.watch(1, kick.as_fd(), || shared.placement.executor_of(home))
        .unwrap();
    for _ in 0..3 {
        ring_bell(&kick);
        assert_eq!(served.recv_timeout(TIMEOUT).unwrap(), transmit(0));
    }
    home.post(|| shared.placement.executor_of(home));
    let mut posted = [(); 2].map(|()| served.recv_timeout(TIMEOUT).unwrap());
    posted.sort_unstable();
    assert_eq!(posted, [receive(0), transmit(0)]);
    end(&shared);
    assert_eq!(served.recv_timeout(TIMEOUT), Err(RecvTimeoutError::Disconnected));
}

/// Ends all workers, each of which notices when it is woken; then nobody is left who could say something.
pub(crate) fn end(shared: &ForwardingThreads) {
    shared.end();
    let start = Instant::now();
    while !shared.ledger.records().is_empty() {
        shared.placement.workers().iter().for_each(|worker| worker.wake());
        assert!(start.elapsed() < TIMEOUT, "workers do not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_core_is_kept_from_halting_while_its_guest_converses() {
    // Longer than the busiest machine takes for a kick.
    let bound = Duration::from_secs(2);
    let config = Config {
        idle_poll_us: 2_000_000,
        ..Config::default()
    };
    let area = TestArea::new().unwrap();
    let slot = area.thread(GUEST, ThreadState::Blocked(0)).unwrap();
    let facts = VmState::map(area.descriptor()).unwrap();
    let (mut file, constraint) = std::io::pipe().unwrap();
    let placement = placement(config, Some(facts)).with_constraints([(Cpu(0), constraint.into())]);
    let shared = ForwardingThreads::new(placement);
    let table = Arc::new(Table::of(1));
    let home = &table.0[0];
    home.set_threads(Box::new([slot]));
    let (sender, served) = channel();
    let tables = table.clone();
    start_all(&shared, move || Telling(tables.clone(), sender.clone())).unwrap();
    let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    home.watch(1, kick.as_fd(), || shared.placement.executor_of(home))
        .unwrap();
    let (written, changes) = channel();
    let reader = std::thread::spawn(move || {
        let mut byte = [0];
        while file.read(&mut byte).unwrap() > 0 {
            written.send(char::from(byte[0])).unwrap();
        }
    });
    let kicks = |answered: bool| {
        for _ in 0..20 {
            if answered {
                home.set_notified_ns(shared.placement.now_ns());
            }
            ring_bell(&kick);
            assert_eq!(served.recv_timeout(TIMEOUT).unwrap(), transmit(0));
        }
        Instant::now()
    };
    let says = |value: &str| {
        let said: String = (0..value.len())
            .map(|_| changes.recv_timeout(TIMEOUT).unwrap())
            .collect();
        assert_eq!(said, value);
    };
    kicks(false);
    assert!(changes.try_recv().is_err(), "a stream");
    let last = kicks(true);
    says("n/a");
    says("0");
    assert!(last.elapsed() > bound / 2, "it was kept for as long as it may be");
    kicks(true);
    says("n/a");
    end(&shared);
    says("0");
    reader.join().unwrap();
    assert!(changes.recv().is_err(), "nothing else was written");
}

#[test]
fn a_ring_is_served_where_the_thread_runs_that_kicks() {
    let (mut scheduler, area) = on_core_0(1);
    let vcpu = |number, core| {
        area.runs(core, GUEST + number);
        area.thread(GUEST + number, ThreadState::Running(core)).unwrap()
    };
    // One that computes, and one that sends.
    let threads = [vcpu(0, 1), vcpu(1, 2)];
    scheduler.rings.table.0[0].set_threads(Box::new(threads));
    let served_on = |scheduler: &Scheduler<Fake>| {
        let placement = &scheduler.schedule.shared.placement;
        placement.executor_of(&scheduler.rings.table.0[0]).cpu
    };
    assert_eq!(served_on(&scheduler), Some(Cpu(1)), "the first that runs");
    // Others wake the worker as well.
    area.wakes(0, WORKER);
    scheduler.note_kicker(VnicId(0));
    assert_eq!(served_on(&scheduler), Some(Cpu(1)));
    area.wakes(0, GUEST + 1);
    scheduler.note_kicker(VnicId(0));
    assert_eq!(served_on(&scheduler), Some(Cpu(2)));
    // It is no more.
    area.thread(GUEST + 1, ThreadState::Dead).unwrap();
    assert_eq!(served_on(&scheduler), Some(Cpu(1)));
}
