//! How workers hand work over: they get messages, poll, leave their rings, sleep, and stop for other tasks of
//! their core.

use super::Work;
use crate::world::{Event, Index, Task, World};
use placement::{Cpu, Kicks, VnicId};

impl World<'_> {
    /// Gives a worker a piece of work, on behalf of a task on core `from`; returns the time that this takes
    /// the latter.
    pub(in crate::world) fn tell(&mut self, worker: usize, work: Work, from: Cpu) -> u64 {
        let target = &mut self.workers[worker];
        if !target.inbox.contains(&work) {
            target.inbox.push(work);
        }
        let message = if target.cpu == from {
            0
        } else {
            self.machine.costs.message
        };
        self.see(worker);
        message + self.wake(Task::Worker(worker), from)
    }

    /// Lets a worker, if it polls, find new work.
    fn see(&mut self, worker: usize) {
        if let Some(since) = self.workers[worker].polling_since_ns.take() {
            self.counters.polling_ns += self.now_ns - since;
            self.at(self.now_ns + self.machine.costs.poll, Event::Seen(worker));
        }
    }

    /// A packet was put in a ring that `watcher` watches. If that worker is busy, another one that polls may
    /// find the packet.
    pub(in crate::world) fn ring_filled(&mut self, vnic: usize, watcher: usize) {
        let finder = if self.workers[watcher].is_polling() {
            Some(watcher)
        } else if self.ports[vnic].switching.is_none() {
            let cpu = self.guests[vnic].scheduled.cpu;
            let polling = (0..self.workers.len()).filter(|worker| {
                let worker = &self.workers[*worker];
                worker.is_polling() && self.policy.polls(self, worker.cpu, VnicId(vnic as u32))
            });
            polling.min_by_key(|worker| self.machine.distance(self.workers[*worker].cpu, cpu) as usize)
        } else {
            None
        };
        if let Some(worker) = finder {
            self.workers[worker].inbox.push(Work::Switch(VnicId(vnic as u32)));
            self.see(worker);
        }
    }

    /// Polls for as long as the policy says.
    pub(super) fn poll(&mut self, number: usize) {
        match self.policy.linger_ns() {
            Some(0) => self.leave_rings_and_sleep(number, true),
            linger => {
                let worker = &mut self.workers[number];
                worker.polling_since_ns = Some(self.now_ns);
                worker.polls += 1;
                let poll = worker.polls;
                if let Some(linger) = linger {
                    self.at(self.now_ns + linger, Event::LingerEnd(number, poll));
                }
                let cpu = self.workers[number].cpu.index();
                if !self.cores[cpu].ready.is_empty() {
                    self.stop_polling(number);
                }
            }
        }
    }

    pub(in crate::world) fn linger_end(&mut self, number: usize, poll: u64) {
        if self.workers[number].polls == poll && self.workers[number].is_polling() {
            self.stop_polling(number);
        }
    }

    /// Sleeps instead of polling.
    pub(in crate::world) fn stop_polling(&mut self, number: usize) {
        if let Some(since) = self.workers[number].polling_since_ns.take() {
            self.counters.polling_ns += self.now_ns - since;
            self.leave_rings_and_sleep(number, self.now_ns == since);
        }
    }

    /// Leaves its rings, all of which are empty, and sleeps. `at_once`: the worker has not polled since its
    /// last work, so a guest that wants the core may have waited for it.
    fn leave_rings_and_sleep(&mut self, number: usize, at_once: bool) {
        self.leave_rings(number, at_once);
        self.sleep(Task::Worker(number));
    }

    fn leave_rings(&mut self, number: usize, at_once: bool) {
        for vnic in 0..self.ports.len() {
            if self.ports[vnic].watcher != Some(number) || self.ports[vnic].look_again_ns.is_some() {
                continue;
            }
            if self.hand_off(number, vnic, at_once) {
                continue;
            }
            match self.policy.leave(self, VnicId(vnic as u32)) {
                Kicks::On => self.ports[vnic].watcher = None,
                Kicks::OffUntil(at) => {
                    self.ports[vnic].look_again_ns = Some(at);
                    self.at(at, Event::LookAgain(vnic, at));
                }
            }
        }
    }

    /// Hands a ring over to a helper, if its guest has waited for this core often enough.
    fn hand_off(&mut self, number: usize, vnic: usize, at_once: bool) -> bool {
        let here = self.workers[number].cpu;
        let port = &mut self.ports[vnic];
        if self.cores[here.index()].ready.is_empty() || !at_once {
            port.waits = 0;
            return false;
        }
        let break_ns = self.now_ns - std::mem::replace(&mut port.waited_at_ns, self.now_ns);
        if self.policy.linger_ns().is_some_and(|linger| break_ns > linger) {
            port.waits = 0;
        }
        port.waits += 1;
        let times = port.waits;
        let port = VnicId(vnic as u32);
        self.workers[number].scheduled.carry_ns += self.machine.costs.decide;
        let Some(id) = self.policy.hand_off(self, here, port, times) else {
            return false;
        };
        let helper = self.worker(id);
        self.ports[vnic].waits = 0;
        self.ports[vnic].watcher = Some(helper);
        self.workers[number].scheduled.carry_ns += self.tell(helper, Work::Switch(port), here);
        true
    }

    pub(in crate::world) fn look_again(&mut self, vnic: usize, at: u64) {
        let port = &mut self.ports[vnic];
        if port.look_again_ns != Some(at) {
            return;
        }
        port.look_again_ns = None;
        if port.transmit.is_empty() {
            port.watcher = None;
        } else {
            let id = self.policy.switcher(self, VnicId(vnic as u32));
            let worker = self.worker(id);
            let cpu = self.workers[worker].cpu;
            self.ports[vnic].watcher = Some(worker);
            self.workers[worker].scheduled.carry_ns += self.machine.costs.decide;
            self.tell(worker, Work::Switch(VnicId(vnic as u32)), cpu);
        }
    }

    /// Stops a helper for another task of its core, and hands its work over to other workers.
    pub(in crate::world) fn abort(&mut self, number: usize) {
        self.counters.aborts += 1;
        let here = self.workers[number].cpu;
        self.workers[number].at_once = None;
        let mut left = std::mem::take(&mut self.workers[number].todo);
        left.append(&mut self.workers[number].inbox);
        let watched = (0..self.ports.len()).filter(|vnic| self.ports[*vnic].watcher == Some(number));
        let unserved = watched.filter(|vnic| {
            let port = &self.ports[*vnic];
            !port.transmit.is_empty() && port.look_again_ns.is_none()
        });
        left.extend(unserved.map(|vnic| Work::Switch(VnicId(vnic as u32))));
        for port in &mut self.ports {
            let unserved = !port.transmit.is_empty();
            port.watcher
                .take_if(|watcher| *watcher == number && unserved && port.look_again_ns.is_none());
            port.copying.take_if(|copying| *copying == number);
        }
        self.leave_rings(number, true);
        for work in left {
            self.hand_over(number, work, here);
        }
        self.sleep(Task::Worker(number));
    }

    fn hand_over(&mut self, number: usize, work: Work, here: Cpu) {
        let (Work::Copy(vnic) | Work::Switch(vnic)) = work;
        let index = vnic.0 as usize;
        let id = match work {
            Work::Copy(_) if self.ports[index].queue.is_empty() || self.ports[index].copying.is_some() => {
                return;
            }
            Work::Switch(_)
                if self.ports[index].transmit.is_empty() || self.ports[index].watcher.is_some() =>
            {
                return;
            }
            Work::Copy(_) => self.policy.successor(self, here, vnic, self.backlog(index)),
            Work::Switch(_) => self.policy.switcher(self, vnic),
        };
        self.workers[number].scheduled.carry_ns += self.machine.costs.decide;
        let worker = self.worker(id);
        match work {
            Work::Copy(_) => self.ports[index].copying = Some(worker),
            Work::Switch(_) => self.ports[index].watcher = Some(worker),
        }
        if worker == number {
            self.workers[number].inbox.push(work);
        } else {
            self.workers[number].scheduled.carry_ns += self.tell(worker, work, here);
        }
    }
}
