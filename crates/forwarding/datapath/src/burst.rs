//! A burst under way: its packets, their keys, and the decision about each.

use crate::police::AtMeter;
use classifier::{Decision, Edited, Shape};
use flow::{DropReason, ExactKey, FlowKey, PortId};
use lock_free::Unique;
use std::sync::Arc;
use vnic::{BURST, Packet};

/// The packets that are switched together, and what was found about them. Its memory is reused.
pub(crate) struct Burst {
    pub packets: Vec<Unique<Packet>>,
    /// For each packet its key, and the decision about it.
    pub keys: Box<[ExactKey; BURST]>,
    /// Keys that look-ups in the megaflow table need.
    pub flow_keys: Box<[FlowKey; BURST]>,
    pub verdicts: [Verdict; BURST],
    /// Decisions of the burst that are not just to output to a port.
    pub decisions: Vec<Arc<Decision>>,
    /// Packets whose verdicts hold if a meter lets them pass, until it has been asked.
    pub at_meter: Vec<AtMeter>,
    pub outgoing: Outgoing,
    /// Captures and mirrors have the packets already, as they came.
    pub is_recorded: bool,
}

impl Burst {
    pub fn new() -> Burst {
        Burst {
            packets: Vec::with_capacity(BURST),
            keys: Box::new([ExactKey::default(); BURST]),
            flow_keys: Box::new([FlowKey::default(); BURST]),
            verdicts: [Verdict::Miss; BURST],
            decisions: Vec::with_capacity(BURST),
            at_meter: Vec::with_capacity(BURST),
            outgoing: Outgoing::default(),
            is_recorded: false,
        }
    }

    /// The port that all packets just go to.
    pub fn common_output(&self) -> Option<PortId> {
        let (first, others) = self.verdicts[..self.packets.len()].split_first()?;
        match first {
            Verdict::Output(to) if others.iter().all(|verdict| verdict == first) => Some(*to),
            _ => None,
        }
    }

    /// Changes packets of which all are to be changed alike and to go to one port then, and returns the port.
    /// Those that cannot be changed are dropped. `None` if nothing is left to be sent, or, with nothing done,
    /// if packets differ.
    #[inline(never)]
    pub fn edit_alike(&mut self) -> Option<PortId> {
        let (first, others) = self.verdicts[..self.packets.len()].split_first()?;
        let &Verdict::Actions(decision) = first else {
            return None;
        };
        let decision = self.decisions.get(decision as usize)?;
        let edited = decision.shape.edited()?;
        if others.iter().any(|verdict| verdict != first) {
            return None;
        }
        self.packets.retain_mut(|packet| change(packet, edited));
        let to = (!self.packets.is_empty()).then_some(edited.port);
        self.decisions.clear();
        to
    }
}

/// Changes a packet as said; one that cannot be changed is counted as dropped, and the answer is false.
pub(crate) fn change(packet: &mut Packet, edited: &Edited) -> bool {
    let changed = edited.edits.iter().try_for_each(|edit| packet.edit(edit));
    changed
        .map_err(|reason| packet.account.dropped(reason, 1))
        .is_ok()
}

/// The decision about a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The packet just goes to a port.
    Output(PortId),
    /// A decision, by its place in `decisions`.
    Actions(u32),
    /// The packet has to be walked from flow to flow.
    Walk,
    /// A meter has dropped it, for this reason.
    Metered(DropReason),
    /// No flow matches.
    Miss,
}

impl Verdict {
    /// The verdict about packets of a decision; if it begins with a meter, about those that pass.
    #[inline]
    pub fn of(decision: &Arc<Decision>, decisions: &mut Vec<Arc<Decision>>) -> Verdict {
        if let Shape::Plain(port) = decision.shape {
            return Verdict::Output(port);
        }
        if let Shape::Metered(metered) = &decision.shape
            && let Shape::Plain(port) = metered.then
        {
            return Verdict::Output(port);
        }
        // Neighbours are often of the same kind, and then share one reference to it.
        if !decisions.last().is_some_and(|last| Arc::ptr_eq(last, decision)) {
            decisions.push(Arc::clone(decision));
        }
        Verdict::Actions(decisions.len() as u32 - 1)
    }
}

/// Packets of a burst that just go to a port, by port.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub groups: Vec<(PortId, Vec<Unique<Packet>>)>,
    pub used: usize,
}

impl Outgoing {
    #[inline]
    pub fn add(&mut self, to: PortId, packet: Unique<Packet>) {
        let known = self.groups[..self.used].iter().rposition(|(port, _)| *port == to);
        let group = known.unwrap_or_else(|| self.open(to));
        self.groups[group].1.push(packet);
    }

    fn open(&mut self, to: PortId) -> usize {
        if self.used == self.groups.len() {
            self.groups.push((to, Vec::with_capacity(BURST)));
        }
        self.groups[self.used].0 = to;
        self.used += 1;
        self.used - 1
    }
}

/// A small set of ports in the order of their first addition.
#[derive(Debug, Default)]
pub(crate) struct PortSet(pub Vec<PortId>);

impl PortSet {
    #[inline]
    pub fn add(&mut self, port: PortId) {
        if !self.0.contains(&port) {
            self.0.push(port);
        }
    }
}
