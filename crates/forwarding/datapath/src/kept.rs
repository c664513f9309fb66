//! Claims that a thread keeps from look to look.
//!
//! A worker whose looks find something at once, each in one ring, claims the same few sides of ports again
//! and again: to claim and to release one takes two locked operations, each of which waits until other cores
//! can see all that was written before. So such a worker keeps its claims until it does anything else: serves
//! a ring of its queue, has a break, or looks for news, which it does every 20 us. All that it serves until
//! then is one turn, for which the clocks are read once. Another thread that wants
//! a side that is kept leaves its mark, as on any claim that is held. The worker gives up a claim with a mark
//! when it has used it again, and otherwise all claims together.

use crate::port::Port;
use crate::state::{Ports, port_of};
use cpu::Deadline;
use lock_free::{Claim, Guard, Keeper};
use scheduler::{RingId, Schedule};
use vnic::{ReceiveSide, TransmitSide};

/// Most claims that a thread keeps.
const MOST: usize = 8;

/// When a turn is.
#[derive(Clone, Copy)]
pub(crate) struct TurnTime {
    /// Time of the data plane when it began, as of the last tick.
    pub now_ms: u64,
    /// When the turn ends: no burst, and no packet of a receive queue, is begun later. What one of them can
    /// cost is bounded as well (`vnic::Turn`).
    pub ends: Deadline,
}

/// One thread's kept claims.
#[derive(Default)]
pub(crate) struct Kept {
    keeper: Keeper,
    /// The turn for which claims are kept when their use ends.
    time: Option<TurnTime>,
    /// Rings whose sides were kept, some of which may have been given up since.
    rings: Vec<RingId>,
}

impl Kept {
    /// Keeps claims from now on, until they are [given up](Self::give_up). All that is served meanwhile
    /// belongs to this turn, which has begun.
    #[inline]
    pub fn begin(&mut self, time: TurnTime) {
        self.time = Some(time);
    }

    /// The turn for which claims are kept.
    #[inline]
    pub fn time(&self) -> Option<TurnTime> {
        self.time
    }

    /// Whether claims may be kept at the moment, for which the ports that they are of must be known.
    #[inline]
    pub fn has_any(&self) -> bool {
        !self.rings.is_empty()
    }

    /// Claims a transmit side.
    #[inline]
    pub fn claim_transmit<'a>(&self, port: &'a Port) -> Option<Guard<'a, Option<TransmitSide>>> {
        self.claim(&port.vnic.transmit)
    }

    /// Claims a transmit side unless another thread holds it, on which no mark is left.
    #[inline]
    pub fn claim_free_transmit<'a>(&self, port: &'a Port) -> Option<Guard<'a, Option<TransmitSide>>> {
        let claim = &port.vnic.transmit;
        let free = || if claim.is_held() { None } else { claim.try_claim() };
        claim.resume(&self.keeper).or_else(free)
    }

    /// Claims a receive side.
    #[inline]
    pub fn claim_receive<'a>(&self, port: &'a Port) -> Option<Guard<'a, ReceiveSide>> {
        self.claim(&port.vnic.receive)
    }

    /// Whether the claim of a receive side is kept.
    #[inline]
    pub fn keeps_receive(&self, port: &Port) -> bool {
        port.vnic.receive.is_kept_with(&self.keeper)
    }

    #[inline]
    fn claim<'a, T>(&self, claim: &'a Claim<T>) -> Option<Guard<'a, T>> {
        claim.resume(&self.keeper).or_else(|| claim.try_claim())
    }

    /// Ends the use of a ring's side: keeps the claim, or releases it. True if another thread wanted it: the
    /// side is to be served again.
    #[inline]
    #[must_use = "somebody may have left work behind"]
    pub fn end<T>(&mut self, guard: Guard<'_, T>, ring: RingId) -> bool {
        if self.time.is_some() && self.remember(ring) {
            guard.keep(&self.keeper)
        } else {
            guard.release()
        }
    }

    /// Has a ring on the list; false if the list is full.
    #[inline]
    fn remember(&mut self, ring: RingId) -> bool {
        if self.rings.contains(&ring) {
            return true;
        }
        let has_room = self.rings.len() < MOST;
        if has_room {
            self.rings.push(ring);
        }
        has_room
    }

    /// Releases all claims on sides of these ports, and keeps no more. Sides that other threads wanted
    /// meanwhile are served soon.
    #[inline]
    pub fn give_up(&mut self, ports: &Ports, schedule: &mut Schedule) {
        if self.time.is_some() {
            self.release_all(ports, |ring| schedule.later(ring));
        }
    }

    /// Releases all claims, and calls `wanted` with the rings whose sides other threads wanted meanwhile.
    #[inline(never)]
    pub fn release_all(&mut self, ports: &Ports, mut wanted: impl FnMut(RingId)) {
        self.time = None;
        for ring in self.rings.drain(..) {
            let Some(port) = ports.get(port_of(ring)) else {
                continue;
            };
            let was_wanted = if ring.is_transmit() {
                release(&port.vnic.transmit, &self.keeper)
            } else {
                release(&port.vnic.receive, &self.keeper)
            };
            if was_wanted {
                wanted(ring);
            }
        }
    }
}

fn release<T>(claim: &Claim<T>, keeper: &Keeper) -> bool {
    claim.resume(keeper).is_some_and(Guard::release)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use crate::cycles::{Guests, pair};
    use crate::pipeline::Pipeline;
    use crate::port::Port;
    use crate::state::Datapath;
    use ::placement::{Config, Costs, Policy, Shape, Topology};
    use scheduler::{Placement, Rings as _, Scheduler};
    use std::sync::Arc;
    use vm_state::{TestArea, ThreadState, VmState};

    const FRAME: usize = 64;

    /// A thread that polls the first of two ports, and has served a packet from it to the second one.
    fn polling() -> (Scheduler<Pipeline>, [Arc<Port>; 2], Guests) {
        let policy = Policy::new(Config::default(), Topology::of_machine(), Costs::default());
        let datapath = Datapath::new(Placement::new(policy, None).unwrap()).unwrap();
        let (ports, mut guests) = pair(&datapath);
        guests.prepare(FRAME);
        let pipeline = Pipeline::new(datapath.clone());
        let mut scheduler = Scheduler::new(datapath.shared.clone(), None, pipeline);
        serve(&mut scheduler, &ports, &mut guests);
        assert_eq!(held(&ports), [false; 2], "there may be a break now");
        serve(&mut scheduler, &ports, &mut guests);
        (scheduler, ports, guests)
    }

    /// A look that finds one packet and serves it.
    fn serve(scheduler: &mut Scheduler<Pipeline>, ports: &[Arc<Port>; 2], guests: &mut Guests) {
        guests.send(1, || None);
        scheduler.rings.refresh();
        let (rings, schedule) = (&mut scheduler.rings, &mut scheduler.schedule);
        assert!(rings.serve_found(ports[0].transmit_ring(), 1, schedule));
        guests.collect(FRAME, 1);
    }

    fn held([first, second]: &[Arc<Port>; 2]) -> [bool; 2] {
        [first.vnic.transmit.is_held(), second.vnic.receive.is_held()]
    }

    #[test]
    fn who_keeps_the_claim_of_a_receive_side_copies_there_without_asking() {
        let two_cores = Topology::regular(Shape {
            nodes: 1,
            llcs: 1,
            modules: 2,
            cpus: 1,
        });
        let config = Config {
            preemptive_copy: false,
            ..Config::default()
        };
        let area = TestArea::new().unwrap();
        let facts = VmState::map(area.descriptor()).unwrap();
        let placement =
            Placement::new(Policy::new(config, two_cores, Costs::default()), Some(facts)).unwrap();
        let datapath = Datapath::new(placement).unwrap();
        let (ports, mut guests) = pair(&datapath);
        guests.prepare(FRAME);
        let runs_on = |port: usize, cpu| {
            let thread = area.thread(1000 + port as u32, ThreadState::Running(cpu));
            ports[port].home.set_threads(Box::new([thread.unwrap()]));
        };
        (0..2).for_each(|port| runs_on(port, 0));
        let here = datapath.shared.placement.executor_of(&ports[0].home);
        let pipeline = Pipeline::new(datapath.clone());
        let mut scheduler = Scheduler::new(datapath.shared.clone(), Some(here), pipeline);
        (0..2).for_each(|_| serve(&mut scheduler, &ports, &mut guests));
        runs_on(1, 1);
        serve(&mut scheduler, &ports, &mut guests);
        assert_eq!(scheduler.schedule.progress.offloads, 0);
        scheduler.step();
        guests.send(1, || None);
        let (rings, schedule) = (&mut scheduler.rings, &mut scheduler.schedule);
        assert!(rings.serve_found(ports[0].transmit_ring(), 1, schedule));
        assert_eq!(
            schedule.progress.offloads, 1,
            "the worker of the other core copies"
        );
        assert!(guests.receiver.receive.take_used().is_none());
    }

    #[test]
    fn claims_are_kept_from_look_to_look_and_no_further() {
        let (mut scheduler, ports, mut guests) = polling();
        assert_eq!(held(&ports), [true; 2]);
        serve(&mut scheduler, &ports, &mut guests);
        assert_eq!(held(&ports), [true; 2]);
        scheduler.step();
        assert_eq!(held(&ports), [false; 2]);
        (0..2).for_each(|_| serve(&mut scheduler, &ports, &mut guests));
        assert_eq!(held(&ports), [true; 2]);
        drop(scheduler);
        assert_eq!(held(&ports), [false; 2]);
    }

    #[test]
    fn a_side_that_another_thread_wants_is_given_up_and_served() {
        let (mut scheduler, ports, mut guests) = polling();
        assert!(ports[1].vnic.receive.try_claim().is_none());
        serve(&mut scheduler, &ports, &mut guests);
        assert_eq!(held(&ports), [true, false], "its mark was seen at the next use");
        assert!(ports[0].vnic.transmit.try_claim().is_none());
        guests.send(1, || None);
        assert!(scheduler.step(), "the receive side is served");
        assert_eq!(held(&ports), [false; 2]);
        assert!(scheduler.step(), "and so is the transmit side");
        guests.collect(FRAME, 1);
    }
}
