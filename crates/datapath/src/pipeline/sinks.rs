//! Where packets end: what is counted and captured at their ends.

use super::PortSet;
use crate::actions::Sink;
use crate::miss::upcall;
use crate::port::Port;
use crate::state::{Datapath, PortTable, port_of};
use classifier::{FlowEntry, Train};
use control_protocol::data_plane::{CaptureDirection, UpcallCause};
use flow::{DropReason, FlowKey, PortId};
use ring::{Shared, Unique};
use std::sync::Arc;
use vnic::{Observer, Packet};

/// Statistics of consecutive packets of one flow, so that the flow is told once.
#[derive(Default)]
pub(super) struct FlowRun {
    entry: Option<Arc<FlowEntry>>,
    train: Train,
}

impl FlowRun {
    pub(super) fn count(&mut self, entry: &Arc<FlowEntry>, frame_len: usize, tcp_flags: u16, now_ms: u64) {
        if !self
            .entry
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, entry))
        {
            self.flush(now_ms);
            self.entry = Some(entry.clone());
        }
        self.train.add(frame_len, tcp_flags);
    }

    pub(super) fn flush(&mut self, now_ms: u64) {
        if let Some(entry) = self.entry.take() {
            let Train {
                packets,
                bytes,
                tcp_flags,
            } = self.train;
            entry.record(packets.into(), bytes, tcp_flags, now_ms);
        }
        *self = FlowRun::default();
    }
}

/// The real sink of actions.
pub(super) struct Forward<'a, S> {
    pub datapath: &'a Datapath,
    pub ports: &'a PortTable,
    pub port: &'a Port,
    pub key: &'a FlowKey,
    pub now_ms: u64,
    pub receivers: &'a mut PortSet,
    pub spare: S,
}

impl<S> Forward<'_, S> {
    pub(super) fn miss(&self, packet: &Packet) -> Result<(), DropReason> {
        let result = upcall(
            self.datapath,
            self.port,
            packet,
            UpcallCause::Miss,
            self.key,
            self.now_ms,
        );
        if let Err(reason) = result {
            packet.account.dropped(reason, 1);
        }
        result
    }
}

/// Puts a packet into the internal receive queue of port `to`, if that is one of the sender's switch, and the port into
/// the set of receivers.
#[inline]
pub(super) fn enqueue(
    packet: Shared<Packet>,
    sender: &Port,
    to: PortId,
    ports: &PortTable,
    receivers: &mut PortSet,
) {
    let Some(receiver) = port_of(ports, to).filter(|receiver| receiver.switch.id == sender.switch.id) else {
        return packet.account.dropped(DropReason::NoSuchPort, 1);
    };
    match receiver.vnic.enqueue(packet) {
        Ok(()) => receivers.add(to),
        Err((reason, packet)) => {
            receiver.vnic.account.egress_dropped(reason, 1);
            if receiver.captures.active() {
                receiver
                    .captures
                    .record(&packet, CaptureDirection::ToGuest, Some(reason));
            }
            packet.account.dropped(reason, 1);
        }
    }
}

impl<S: FnMut() -> Option<Unique<Packet>>> Sink for Forward<'_, S> {
    #[inline]
    fn output(&mut self, port: PortId, packet: Shared<Packet>) {
        self.port.vnic.account.lender.sends_to(port, self.now_ms);
        enqueue(packet, self.port, port, self.ports, self.receivers);
    }

    fn upcall(&mut self, cookie: u64, packet: &Packet) {
        let cause = UpcallCause::Action(cookie);
        if let Err(reason) = upcall(self.datapath, self.port, packet, cause, self.key, self.now_ms) {
            self.dropped(packet, reason);
        }
    }

    fn dropped(&mut self, packet: &Packet, reason: DropReason) {
        packet.account.dropped(reason, 1);
    }

    fn spare(&mut self) -> Option<Unique<Packet>> {
        (self.spare)()
    }
}

/// Notes whose packets were delivered, and captures.
pub(super) struct Delivery<'a> {
    pub port: &'a Port,
    pub capturing: bool,
    pub delivered: u64,
    pub origins: PortSet,
}

impl<'a> Delivery<'a> {
    pub(super) fn at(port: &'a Port) -> Delivery<'a> {
        Delivery {
            port,
            capturing: port.captures.active(),
            delivered: 0,
            origins: PortSet::default(),
        }
    }
}

impl Observer for Delivery<'_> {
    #[inline]
    fn delivered(&mut self, packet: &Packet) {
        self.delivered += 1;
        self.origins.add(packet.origin);
        if self.capturing {
            self.port.captures.record(packet, CaptureDirection::ToGuest, None);
        }
    }

    fn dropped(&mut self, packet: &Packet, reason: DropReason) {
        self.origins.add(packet.origin);
        if self.capturing {
            self.port
                .captures
                .record(packet, CaptureDirection::ToGuest, Some(reason));
        }
    }
}
