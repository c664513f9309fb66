//! What a flow's actions do to a packet.
//!
//! Header changes are made in the packet's own slot as long as nobody else refers to it; after an output they are
//! made in a copy of the head that refers to the first slot for the payload. So payload is never copied here.

use flow::{Action, DropReason, PortId};
use ring::{Shared, Unique};
use std::sync::atomic::Ordering::Relaxed;
use vnic::Packet;

/// Where packets go; the pipeline enqueues and counts, a trace only notes.
pub(crate) trait Sink {
    /// To a port.
    fn output(&mut self, port: PortId, packet: Shared<Packet>);
    /// To the control process.
    fn upcall(&mut self, cookie: u64, packet: &Packet);
    /// Nowhere.
    fn dropped(&mut self, packet: &Packet, reason: DropReason);
    /// A slot for a copy of the head, if there is one.
    fn spare(&mut self) -> Option<Unique<Packet>>;
    /// Told of each action before it is applied.
    fn applying(&mut self, _action: &Action) {}
}

/// The packet between actions.
enum Current {
    Own(Unique<Packet>),
    Shared(Shared<Packet>),
}

impl Current {
    fn packet(&self) -> &Packet {
        match self {
            Current::Own(packet) => packet,
            Current::Shared(packet) => packet,
        }
    }
}

/// Applies `actions` in order. Every packet and copy ends in exactly one call of the sink; the packet's account
/// is told how many copies there were.
pub(crate) fn apply(actions: &[Action], packet: Unique<Packet>, sink: &mut impl Sink) {
    // The one case that matters for speed.
    if let [action @ Action::Output(port)] = actions {
        sink.applying(action);
        return sink.output(*port, packet.share());
    }
    let account = packet.account.clone();
    let mut outcomes = 0u64;
    let mut current = Current::Own(packet);
    for action in actions {
        sink.applying(action);
        match *action {
            Action::Output(port) => {
                outcomes += 1;
                let shared = match current {
                    Current::Own(packet) => packet.share(),
                    Current::Shared(packet) => packet,
                };
                sink.output(port, shared.clone());
                current = Current::Shared(shared);
            }
            Action::Upcall { cookie } => {
                outcomes += 1;
                sink.upcall(cookie, current.packet());
            }
            Action::Drop(reason) => {
                outcomes += 1;
                sink.dropped(current.packet(), reason);
                break;
            }
            Action::PushVlan { .. } | Action::PopVlan => match change(action, current, sink) {
                Ok(changed) => current = changed,
                Err((unchanged, reason)) => {
                    outcomes += 1;
                    sink.dropped(unchanged.packet(), reason);
                    current = unchanged;
                    break;
                }
            },
        }
    }
    if outcomes == 0 {
        sink.dropped(current.packet(), DropReason::NoAction);
    }
    if outcomes > 1 {
        account.copies.fetch_add(outcomes - 1, Relaxed);
    }
}

/// The packet with its head changed, in its own slot or in a spare one.
fn change(action: &Action, current: Current, sink: &mut impl Sink) -> Result<Current, (Current, DropReason)> {
    let mut own = match current {
        Current::Own(packet) => packet,
        Current::Shared(shared) => {
            let Some(mut spare) = sink.spare() else {
                return Err((Current::Shared(shared), DropReason::QueueFull));
            };
            spare.fill_from(&shared);
            spare
        }
    };
    let done = match *action {
        Action::PushVlan { tpid, tci } => own.push_vlan(tpid, tci),
        Action::PopVlan => own.pop_vlan(),
        _ => true,
    };
    let own = Current::Own(own);
    if done {
        Ok(own)
    } else {
        Err((own, DropReason::Policy))
    }
}
