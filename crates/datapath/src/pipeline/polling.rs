//! Rings whose guests need not kick, and what is to be looked at when its time has come.

use super::Pipeline;
use crate::placement::vnic;
use crate::port::Port;
use crate::state::{Side, port_of};
use flow::PortId;
use placement::{Kicks, VcpuState, View as _};
use std::time::Duration;
use vnic::TransmitSide;

/// Transmit rings that others serve looked at in one round of polling.
const PATROL: usize = 4;

/// Why a port's receive side is to be looked at when its time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Packets wait for buffers, and will then have waited too long.
    Stall,
    /// Packets wait for buffers, and will then have waited too long if their senders serve others.
    Slow,
    /// The driver is owed a call, at the latest then.
    Call,
}

/// A port to look at from some time of [`Placement::now_ns`](crate::placement::Placement::now_ns) on.
pub(super) struct Timer {
    at_ns: u64,
    port: PortId,
    due: Due,
}

impl Pipeline {
    /// Looks at the rings that are polled, but at no more than `most`, and at others each time; true if something came and is
    /// on the to-do list.
    pub fn poll(&mut self, most: usize) -> bool {
        let ports = self.ports();
        for _ in 0..most.min(self.polled.len()) {
            self.turn = if self.turn + 1 < self.polled.len() {
                self.turn + 1
            } else {
                0
            };
            if let Some(port) = port_of(&ports, self.polled[self.turn].0) {
                self.look_at(port);
            }
        }
        self.ports = Some(ports);
        !self.todo.is_empty()
    }

    fn look_at(&mut self, port: &Port) {
        // Who holds it sees what comes.
        if port.vnic.transmit.is_held() {
            return;
        }
        let Some(mut transmit) = port.vnic.transmit.try_claim() else {
            return;
        };
        let come = transmit.with(|side| side.as_mut().is_some_and(TransmitSide::has_work));
        if transmit.release() || come {
            self.later(port.id(), Side::Transmit);
        }
    }

    /// What a helper does besides (Hyper-Switch 3.4): looks at a few transmit rings that others serve, and at drivers that
    /// are owed a call and sleep meanwhile; true if something is on the to-do list.
    pub fn look_around(&mut self) -> bool {
        let Some(here) = self.here().filter(|_| self.datapath.placement.knows_vcpus()) else {
            return false;
        };
        let ports = self.ports();
        for _ in 0..PATROL.min(ports.len()) {
            self.patrol = (self.patrol + 1) % ports.len();
            let Some(port) = &ports[self.patrol] else {
                continue;
            };
            let placement = &self.datapath.placement;
            let eyes = placement.eyes(&ports);
            if !self.polled.iter().any(|(polled, _)| *polled == port.id())
                && placement.policy.polls(&eyes, here, vnic(port.id()))
            {
                self.look_at(port);
            }
        }
        for at in (0..self.timers.len()).rev() {
            let (port, due) = (self.timers[at].port, self.timers[at].due);
            let eyes = self.datapath.placement.eyes(&ports);
            if due == Due::Call
                && let VcpuState::Blocked(cpu) = eyes.vcpu(vnic(port))
                && self.datapath.placement.policy.on_block(&eyes, cpu).is_some()
            {
                self.timers.swap_remove(at);
                self.later(port, Side::Receive);
            }
        }
        self.ports = Some(ports);
        !self.todo.is_empty()
    }

    pub(super) fn poll_from_now(&mut self, port: PortId, fresh: bool) {
        match self.polled.iter_mut().find(|(polled, _)| *polled == port) {
            Some((_, was_fresh)) => *was_fresh |= fresh,
            None => self.polled.push((port, fresh)),
        }
    }

    /// Ends polling: asks for kicks again, or leaves rings to a helper, if somebody `waited` for this core when the work was
    /// done. True if something came meanwhile and is on the to-do list.
    pub fn stop_polling(&mut self, waited: bool) -> bool {
        let ports = self.ports();
        for (id, _) in std::mem::take(&mut self.polled) {
            let Some(port) = port_of(&ports, id) else {
                continue;
            };
            if !waited {
                port.has_core();
            } else if self.relieve(port, &ports) {
                continue;
            }
            // Whoever holds it now polls it from now on.
            let Some(mut transmit) = port.vnic.transmit.try_claim() else {
                continue;
            };
            let come = transmit.with(|side| {
                side.as_mut()
                    .is_some_and(|side| side.enable_kicks().unwrap_or(true))
            });
            if transmit.release() || come {
                self.later(id, Side::Transmit);
            }
        }
        self.ports = Some(ports);
        !self.todo.is_empty()
    }

    /// How long polling is worth while after the last packet, if longer than the policy's hysteresis: a sender that runs
    /// will go on sending. A ring is never left without kicks by a worker that sleeps, which could not see its guest
    /// fall asleep.
    pub fn patience_ns(&mut self) -> u64 {
        if !self.datapath.placement.knows_vcpus() {
            return 0;
        }
        let ports = self.ports();
        let placement = &self.datapath.placement;
        let now_ns = placement.now_ns();
        let eyes = placement.eyes(&ports);
        let until = |id| match placement.policy.leave(&eyes, vnic(id)) {
            Kicks::OffUntil(at_ns) => at_ns.saturating_sub(now_ns),
            Kicks::On => 0,
        };
        let fresh = self.polled.iter().filter(|(_, fresh)| *fresh);
        let patience_ns = fresh.map(|(id, _)| until(*id)).max().unwrap_or(0);
        self.ports = Some(ports);
        patience_ns
    }

    /// Whether rings are polled.
    pub fn is_polling(&self) -> bool {
        !self.polled.is_empty()
    }

    pub(super) fn set_timer(&mut self, at_ns: u64, port: PortId, due: Due) {
        let known = self
            .timers
            .iter_mut()
            .find(|timer| (timer.port, timer.due) == (port, due));
        match known {
            Some(timer) => timer.at_ns = timer.at_ns.min(at_ns),
            None => self.timers.push(Timer { at_ns, port, due }),
        }
    }

    /// Puts sides whose time has come on the to-do list, and says how long this thread may sleep: not at all while
    /// something is there; else until the next one's time comes, or for ever (`None`).
    pub fn next_deadline(&mut self) -> Option<Duration> {
        let mut next = None;
        if !self.timers.is_empty() {
            let now_ns = self.datapath.placement.now_ns();
            while let Some(due) = self.timers.iter().position(|timer| timer.at_ns <= now_ns) {
                let timer = self.timers.swap_remove(due);
                self.later(timer.port, Side::Receive);
            }
            next = self.timers.iter().map(|timer| timer.at_ns - now_ns).min();
        }
        if self.todo.is_empty() {
            next.map(Duration::from_nanos)
        } else {
            Some(Duration::ZERO)
        }
    }
}
