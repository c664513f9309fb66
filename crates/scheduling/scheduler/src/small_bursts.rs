//! Rings through which little comes at a time: what a look finds is served at once, and nobody else waits for
//! that.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::executor::ring_bell;
use crate::forwarding_threads::ForwardingThreads;
use crate::home::Home;
use crate::placement::Placement;
use crate::ring_id::RingId;
use crate::schedule::Schedule;
use crate::testing::{Fake, Table};
use crate::tests::{TIMEOUT, end, transmit};
use crate::turns::{Rings, Scheduler};
use crate::worker::start_all;
use ::placement::{Config, Costs, Mode, Policy, Priority, Shape, Topology, VnicId};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use vm_state::{TestArea, VmState};

/// The state shared on a machine with one core.
fn shared(mode: Mode, facts: Option<VmState>) -> Arc<ForwardingThreads> {
    let shape = Shape {
        nodes: 1,
        llcs: 1,
        modules: 1,
        cpus: 1,
    };
    let config = Config {
        mode,
        priority: Priority::Normal,
        ..Config::default()
    };
    let policy = Policy::new(config, Topology::regular(shape), Costs::default());
    ForwardingThreads::new(Placement::new(policy, facts).unwrap())
}

/// A thread that polls so many rings, all of which are empty.
fn polling(rings: u32) -> Scheduler<Fake> {
    let mut scheduler = Scheduler::new(shared(Mode::Hyperswitch, None), None, Fake::with(rings));
    (0..rings).for_each(|vnic| scheduler.on_kick(transmit(vnic)));
    while scheduler.step() {}
    scheduler.rings.served.clear();
    assert!(!scheduler.poll_and_serve(), "nothing has come");
    scheduler.rings.looks.clear();
    scheduler
}

#[test]
fn what_one_ring_has_is_served_at_the_look() {
    let mut scheduler = polling(3);
    for vnic in [1, 0, 2, 2] {
        scheduler.rings.work.insert(transmit(vnic), 1);
        assert!(scheduler.poll_and_serve());
        assert_eq!(scheduler.rings.served, [transmit(vnic)]);
        assert!(!scheduler.step(), "nothing was queued");
        assert!(scheduler.rings.looks.len() <= 3, "no ring is looked at twice");
        scheduler.rings.served.clear();
        scheduler.rings.looks.clear();
    }
    // What is left waits for the next turn.
    scheduler.rings.work.insert(transmit(1), 2);
    assert!(scheduler.poll_and_serve() && scheduler.step() && !scheduler.step());
    assert_eq!(scheduler.rings.served, [transmit(1); 2]);
}

#[test]
fn claims_are_kept_by_looks_alone() {
    let others: [fn(&mut Scheduler<Fake>); 3] = [
        |scheduler| {
            scheduler.step();
        },
        |scheduler| {
            scheduler.on_kick(transmit(0));
            assert!(scheduler.poll_and_serve() && scheduler.step());
        },
        |scheduler| scheduler.poll_few(0),
    ];
    for other in others {
        let mut scheduler = polling(1);
        scheduler.rings.work.insert(transmit(0), 1);
        assert!(scheduler.poll_and_serve());
        assert!(scheduler.rings.keeps);
        other(&mut scheduler);
        assert!(!scheduler.rings.keeps);
    }
}

#[test]
fn what_several_rings_have_is_queued() {
    let mut scheduler = polling(4);
    for vnic in [3, 1] {
        scheduler.rings.work.insert(transmit(vnic), 1);
    }
    assert!(scheduler.poll_and_serve());
    assert!(scheduler.rings.served.is_empty());
    assert_eq!(scheduler.rings.looks.len(), 4);
    while scheduler.step() {}
    scheduler.rings.served.sort_unstable();
    assert_eq!(scheduler.rings.served, [transmit(1), transmit(3)]);
}

#[test]
fn what_was_queued_before_goes_first() {
    let mut scheduler = polling(2);
    scheduler.on_kick(transmit(0));
    scheduler.rings.work.insert(transmit(1), 1);
    assert!(scheduler.poll_and_serve());
    assert!(scheduler.rings.served.is_empty());
    while scheduler.step() {}
    assert_eq!(scheduler.rings.served, [transmit(0), transmit(1)]);
}

/// A ring with something at each look does not hide the others, whatever their places are.
#[test]
fn nobody_is_hidden_by_a_ring_that_always_has_something() {
    let mut scheduler = polling(4);
    for round in 0..40 {
        let other = 1 + round % 3;
        for vnic in [0, other] {
            scheduler.rings.work.insert(transmit(vnic), 1);
        }
        assert!(scheduler.poll_and_serve());
        while scheduler.step() {}
        let served = std::mem::take(&mut scheduler.rings.served);
        assert!(served.contains(&transmit(other)), "round {round}: {served:?}");
        assert!(served.len() <= 2, "round {round}: {served:?}");
    }
}

/// The worker's task number.
const WORKER: u32 = 1;

/// Turns of the ring that always has something, from one kick of the other ring to the next.
const BETWEEN: u32 = 1000;
/// Least time of a turn.
const TURN_US: u64 = 1;

/// A forwarder with a ring that has a burst of one at each look, which takes a microsecond, and another one
/// that is kicked by the worker itself.
struct Endless {
    table: Arc<Table>,
    kick: Arc<OwnedFd>,
    turns: u32,
    /// The turn after which nothing comes any more.
    last_turn: u32,
    /// Looks that found nothing since.
    vain: u32,
    /// Claims are kept.
    keeps: bool,
    /// The turns when the other ring was kicked last.
    kicked_at: Option<u32>,
    says: Sender<Said>,
}

/// What a forwarder says to the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// A kick is served, so many turns of the first ring after it.
    Waited(u32),
    /// The guest is asked for kicks.
    AskedForKicks,
    /// Nothing was found again, with claims kept or not.
    FoundNothing { keeps: bool },
}

impl Rings for Endless {
    type Homes = Table;

    fn refresh(&mut self) {}

    fn homes(&self) -> &Table {
        &self.table
    }

    fn serve(&mut self, ring: RingId, schedule: &mut Schedule) {
        if ring == transmit(1) {
            if let Some(at) = self.kicked_at.take() {
                let _ = self.says.send(Said::Waited(self.turns - at));
            }
            return;
        }
        if ring != transmit(0) {
            return;
        }
        let end = cpu::Deadline::after_us(TURN_US);
        while !end.has_passed() {}
        self.turns += 1;
        self.keeps = true;
        schedule.progress.packets += 1;
        schedule.poll_from_now(ring, true);
        if self.turns.is_multiple_of(BETWEEN) && self.kicked_at.is_none() {
            self.kicked_at = Some(self.turns);
            ring_bell(&self.kick);
        }
    }

    fn on_kick(&mut self, ring: RingId) -> Option<u64> {
        Some(u64::from(self.turns) + u64::from(ring.0))
    }

    fn has_work(&mut self, ring: RingId) -> bool {
        if ring == transmit(0) && self.turns >= self.last_turn {
            self.vain += 1;
            if self.vain == 2 {
                let _ = self.says.send(Said::FoundNothing { keeps: self.keeps });
            }
        }
        ring == transmit(0) && self.turns < self.last_turn
    }

    fn give_up_claims(&mut self, _schedule: &mut Schedule) {
        self.keeps = false;
    }

    fn enable_kicks(&mut self, ring: RingId) -> bool {
        let _ = self.says.send(Said::AskedForKicks);
        self.has_work(ring)
    }

    fn kicks_paused(&mut self, _ring: RingId) {}

    fn missed_threads(&mut self, _vnic: VnicId) {}

    fn flush_stats(&mut self) {}

    fn before_sleep(&mut self) {}
}

/// Has a worker on the core of `area` forward for as long as `test` lasts, which reads what is said.
fn with_endless(
    mode: Mode,
    area: &TestArea,
    last_turn: u32,
    test: impl FnOnce(&Receiver<Said>, &ForwardingThreads),
) {
    area.runs(0, WORKER);
    let shared = shared(mode, Some(VmState::map(area.descriptor()).unwrap()));
    let table = Arc::new(Table::of(2));
    let kick = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
    let (says, said) = channel();
    let (tables, bell) = (table.clone(), kick.clone());
    start_all(&shared, move || Endless {
        table: tables.clone(),
        kick: bell.clone(),
        turns: 0,
        last_turn,
        vain: 0,
        keeps: false,
        kicked_at: None,
        says: says.clone(),
    })
    .unwrap();
    let executor = |home: &Home| shared.placement.executor_of(home);
    table.0[1]
        .watch(1, kick.as_fd(), || executor(&table.0[1]))
        .unwrap();
    table.0[0].post(|| executor(&table.0[0]));
    test(&said, &shared);
    end(&shared);
}

/// Counted in turns, each of which takes a microsecond at least: a thread without a core looks no later.
#[test]
fn a_kick_is_seen_beside_a_ring_that_always_has_something() {
    for mode in [Mode::Hyperswitch, Mode::Poll] {
        with_endless(mode, &TestArea::new().unwrap(), u32::MAX, |said, shared| {
            for _ in 0..40 {
                match said.recv_timeout(TIMEOUT).unwrap() {
                    Said::Waited(turns) => assert!(turns <= 40, "{turns}"),
                    said => panic!("the worker has no break: {said:?}"),
                }
            }
            let records = shared.ledger.records();
            assert!(records[0].packets >= 39 * u64::from(BETWEEN), "{records:?}");
        });
    }
}

#[test]
fn a_worker_whose_core_is_wanted_does_not_go_on_polling() {
    let area = TestArea::new().unwrap();
    with_endless(Mode::Hyperswitch, &area, u32::MAX, |said, _| {
        area.wanted(0, 1);
        let says = |_| said.recv_timeout(TIMEOUT).unwrap();
        assert!((0..1000).map(says).any(|said| said == Said::AskedForKicks));
    });
}

/// After one look that finds nothing, a worker looks on for long, and others may want what it has claimed.
#[test]
fn no_claims_are_kept_in_a_break() {
    for mode in [Mode::Hyperswitch, Mode::Poll] {
        with_endless(mode, &TestArea::new().unwrap(), 3 * BETWEEN, |said, _| {
            let says = std::iter::repeat_with(|| said.recv_timeout(TIMEOUT).unwrap());
            let mut says = says.skip_while(|said| matches!(said, Said::Waited(_)));
            assert_eq!(says.next(), Some(Said::FoundNothing { keeps: false }));
        });
    }
}
