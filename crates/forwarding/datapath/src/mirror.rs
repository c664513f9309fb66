//! Mirrors of ports: copies that never hold up the mirrored port.
//!
//! The thread that has the packet writes the copy straight into buffers that the mirror's port has posted. So
//! a copy holds no slot of the packet's sender, and mostly takes no place in a queue. No copy waits for
//! buffers if that is known before:
//!
//! | the mirror's port | the copy |
//! |---|---|
//! | has buffers, and nothing is queued for it | is written |
//! | is served by another thread for longer than [`LOOKS`], or has a queue that moves | is queued, in memory of its own; lost if many are |
//! | is slow or stopped, so that its packets wait for buffers | is lost |
//! | takes no frames of that length, or would need it segmented again beside a tag | is lost |
//! | does not exist, or is at another switch | is lost |
//!
//! Copies count for the sender of the packet as `copies`, and as delivered or as `mirror-lost`. They go past
//! filters, and meet no mirrors themselves, so that mirrors of mirrors, and circles of them, end.
//!
//! Safe direction of error: a copy that is lost.

use crate::burst::PortSet;
use crate::copies::Mirrors;
use crate::port::Port;
use crate::state::Ports;
use flow::{DropReason, Mirror, MirrorPoint};
use std::sync::atomic::Ordering::Relaxed;
use vnic::{Copied, CopyForm, Packet};

/// How often a thread looks whether another one is done with the mirror's port: for a microsecond or two.
const LOOKS: usize = 32;

/// What it takes to reach other ports.
pub(crate) struct Reach<'a> {
    pub ports: &'a Ports,
    /// Gets the ports that have to be served because they got something.
    pub receivers: &'a mut PortSet,
    pub now_ms: u64,
}

impl Port {
    /// Gives the port's mirrors a packet.
    #[cold]
    pub fn mirror(&self, packet: &Packet, point: MirrorPoint, reach: &mut Reach<'_>) {
        let mirrors = self.copies().mirrors.read();
        for mirror in &mirrors.all {
            if mirror.packets.copies_at(point) && mirrors.allow(mirror, packet, reach.now_ms) {
                self.copy(packet, mirror, reach);
            }
        }
    }

    /// Makes a copy for a mirror, or loses it, and counts it.
    fn copy(&self, packet: &Packet, mirror: &Mirror, reach: &mut Reach<'_>) {
        let account = &packet.account;
        account.copies.fetch_add(1, Relaxed);
        let receiver = reach.ports.get(mirror.to);
        let receiver = receiver.filter(|receiver| receiver.is_beside(self) && receiver.id() != self.id());
        let copied = receiver.map_or(Copied::Lost, |receiver| {
            write_or_queue(receiver, mirror, packet, reach.receivers)
        });
        match copied {
            Copied::Written => {
                account.delivered.fetch_add(1, Relaxed);
            }
            // Counted when it is delivered.
            Copied::Behind => {}
            Copied::Lost => {
                account.dropped(DropReason::MirrorLost, 1);
                if let Some(receiver) = receiver {
                    receiver.vnic.account.egress_dropped(DropReason::MirrorLost, 1);
                }
            }
        }
    }
}

impl Mirrors {
    /// Whether the mirror's list, if it has one, allows the packet. A packet with headers that are not known
    /// is allowed by no list.
    fn allow(&self, mirror: &Mirror, packet: &Packet, now_ms: u64) -> bool {
        let (Some(list), Some(rules)) = (mirror.list, &self.rules) else {
            return true;
        };
        let key = packet.key();
        key.is_some_and(|key| rules.allows(list, &key, packet.frame_len() as u64, now_ms))
    }
}

/// Writes a copy into a port's buffers, or queues one that can be delivered soon.
fn write_or_queue(receiver: &Port, mirror: &Mirror, packet: &Packet, receivers: &mut PortSet) -> Copied {
    if !receiver.vnic.is_open() {
        return Copied::Lost;
    }
    let form = CopyForm {
        length: mirror.length,
        vlan: mirror.vlan,
    };
    let claim = &receiver.vnic.receive;
    let is_free = (0..LOOKS).any(|_| {
        std::hint::spin_loop();
        !claim.is_held()
    });
    let written = match is_free.then(|| claim.try_claim()).flatten() {
        Some(mut receive) => {
            let copied = receive.with(|side| side.write_copy(packet, &form));
            // Another thread may have come for it meanwhile.
            if receive.release() || copied == Copied::Written {
                receivers.add(receiver.id());
            }
            copied
        }
        None => Copied::Behind,
    };
    if written != Copied::Behind {
        return written;
    }
    let copy = packet.mirrored(&form);
    if copy.is_some_and(|copy| receiver.vnic.enqueue_copy(copy)) {
        receivers.add(receiver.id());
        Copied::Behind
    } else {
        Copied::Lost
    }
}
