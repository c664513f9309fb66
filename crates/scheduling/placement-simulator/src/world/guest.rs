//! Guests with one vCPU. A sender sends while its window is open, and otherwise halts; a receiver takes
//! packets, acknowledges them, and halts when there are no more. Both look at their receive ring only when
//! they were notified, and then until it is empty, as Linux's NAPI does.

use super::cores::{Scheduled, State};
use super::{Event, Packet, Task, World};
use placement::{Cpu, Notify, VnicId};

/// Length of an acknowledgement in bytes.
const ACKNOWLEDGEMENT: u64 = 66;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Sender,
    Receiver,
}

/// The work of the step under way.
#[derive(Clone, Copy, Debug)]
enum Step {
    Nothing,
    Sending,
    Receiving(Packet),
    Halting,
}

#[derive(Debug)]
pub(super) struct Guest {
    pub scheduled: Scheduled,
    role: Role,
    step: Step,
    /// Packets under way.
    in_flight: u32,
}

impl Guest {
    pub fn new(role: Role, cpu: Cpu) -> Self {
        Guest {
            scheduled: Scheduled::new(cpu),
            role,
            step: Step::Nothing,
            in_flight: 0,
        }
    }
}

impl World<'_> {
    pub(super) fn guest_step(&mut self, number: usize) -> Option<u64> {
        let port = &mut self.ports[number];
        let cpu = self.guests[number].scheduled.cpu;
        let role = self.guests[number].role;
        let costs = self.machine.costs;
        if !port.wants_calls && port.receive.is_empty() {
            port.wants_calls = true;
        }
        let received = if port.wants_calls {
            None
        } else {
            port.receive.pop_front()
        };
        let open = self.guests[number].in_flight < self.traffic.window;
        let (step, time) = match (received, role) {
            (Some(packet), Role::Sender) => (Step::Receiving(packet), costs.guest_acknowledge),
            (Some(packet), Role::Receiver) => {
                let bytes = self.byte_ns(cpu, packet.written_by, packet.bytes, costs.guest_byte_factor);
                (
                    Step::Receiving(packet),
                    costs.guest_receive + costs.guest_acknowledge + bytes,
                )
            }
            (None, Role::Sender) if open => (Step::Sending, costs.guest_transmit),
            (None, _) => (Step::Halting, costs.halt / 2),
        };
        self.guests[number].step = step;
        Some(self.jittered(time))
    }

    pub(super) fn guest_step_done(&mut self, number: usize) {
        let guest = &mut self.guests[number];
        let cpu = guest.scheduled.cpu;
        match (std::mem::replace(&mut guest.step, Step::Nothing), guest.role) {
            (Step::Nothing, _) => {}
            (Step::Sending, _) => {
                guest.in_flight += 1;
                self.transmit(
                    number,
                    Packet {
                        bytes: self.traffic.bytes,
                        written_by: cpu,
                    },
                );
            }
            (Step::Receiving(_), Role::Sender) => guest.in_flight -= 1,
            (Step::Receiving(packet), Role::Receiver) => {
                self.counters.packets += 1;
                self.counters.bytes += packet.bytes;
                self.transmit(
                    number,
                    Packet {
                        bytes: ACKNOWLEDGEMENT,
                        written_by: cpu,
                    },
                );
            }
            (Step::Halting, _) => self.halt(number),
        }
    }

    /// Puts a packet in the transmit ring and kicks, unless a worker watches the ring.
    fn transmit(&mut self, number: usize, packet: Packet) {
        self.ports[number].transmit.push_back(packet);
        if let Some(watcher) = self.ports[number].watcher {
            return self.ring_filled(number, watcher);
        }
        self.counters.kicks += 1;
        let id = self.policy.switcher(self, VnicId(number as u32));
        let worker = self.worker(id);
        self.ports[number].watcher = Some(worker);
        let cpu = self.guests[number].scheduled.cpu;
        let cost = self.machine.costs.kick
            + self.machine.costs.decide
            + self.tell(worker, placement::Work::Switch(VnicId(number as u32)), cpu);
        self.guests[number].scheduled.carry_ns += cost;
    }

    /// Halts, unless an interrupt came meanwhile. If a worker serves the rings of vCPUs that block, it is
    /// woken now.
    fn halt(&mut self, number: usize) {
        if !self.ports[number].wants_calls {
            return;
        }
        let cpu = self.guests[number].scheduled.cpu;
        self.guests[number].scheduled.carry_ns = self.machine.costs.halt / 2;
        self.sleep(Task::Guest(number));
        let Some(id) = self.policy.on_block(self, cpu) else {
            return;
        };
        if self.ports[number].due_ns.is_some() {
            self.ports[number].due_ns = None;
            self.call(number, cpu);
        }
        if !self.ports[number].transmit.is_empty() && self.ports[number].switching.is_none() {
            let worker = self.worker(id);
            self.tell(worker, placement::Work::Switch(VnicId(number as u32)), cpu);
        }
    }

    /// Notifies the guest of packets in its receive ring, now or later, if it wants calls; returns the time
    /// that this takes a task on `from`.
    pub(super) fn notify(&mut self, number: usize, from: Cpu) -> u64 {
        let port = &self.ports[number];
        if !port.wants_calls || port.receive.is_empty() {
            return 0;
        }
        match self
            .policy
            .notify(self, VnicId(number as u32), port.last_notified_ns)
        {
            Notify::Now => self.call(number, from),
            Notify::At(due) => {
                if self.ports[number].due_ns.is_none() {
                    self.ports[number].due_ns = Some(due);
                    self.at(due, Event::NotifyDue(number, due));
                }
                0
            }
        }
    }

    pub(super) fn notify_due(&mut self, number: usize, at: u64) {
        if self.ports[number].due_ns == Some(at) {
            self.ports[number].due_ns = None;
            if self.ports[number].wants_calls && !self.ports[number].receive.is_empty() {
                let from = self.guests[number].scheduled.cpu;
                self.call(number, from);
            }
        }
    }

    fn call(&mut self, number: usize, from: Cpu) -> u64 {
        self.counters.notifications += 1;
        let port = &mut self.ports[number];
        port.wants_calls = false;
        port.due_ns = None;
        port.last_notified_ns = self.now_ns;
        let guest = &mut self.guests[number].scheduled;
        guest.carry_ns += self.machine.costs.interrupt;
        let wake = if guest.state == State::Asleep {
            self.wake(Task::Guest(number), from)
        } else {
            0
        };
        self.machine.costs.call + wake
    }
}
