//! The ends of packets, where they are counted, captured and mirrored.

use crate::actions::Sink;
use crate::burst::PortSet;
use crate::copies::time_ns;
use crate::meter::KnownMeters;
use crate::mirror::Reach;
use crate::miss::Queued;
use crate::port::Port;
use crate::state::Ports;
use classifier::{FlowEntry, Train, Walked};
use control_protocol::data_plane::{CaptureDirection, UpcallCause};
use flow::{Context, DropReason, ExactKey, FlowKey, MirrorPoint, PortId, Stage, Userspace};
use lock_free::{Shared, Unique};
use rule_list::LoggedPacket;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use vnic::{Counters, Observer, Packet};

/// Statistics of consecutive packets of one decision, so that they are added to its flows once.
#[derive(Default)]
pub(crate) struct FlowRun<'a> {
    walked: Option<Walked<'a>>,
    train: Train,
}

impl<'a> FlowRun<'a> {
    /// Counts a packet for which the walk made a decision.
    pub(crate) fn count(&mut self, walked: Walked<'a>, frame_len: usize, tcp_flags: u16, now_ms: u64) {
        let last = self.walked.as_ref().and_then(Walked::decision);
        let is_same = last
            .zip(walked.decision())
            .is_some_and(|(last, new)| Arc::ptr_eq(last, new));
        if !is_same {
            self.flush(now_ms);
            self.walked = Some(walked);
        }
        self.train.add(frame_len, tcp_flags);
    }

    pub(crate) fn flush(&mut self, now_ms: u64) {
        let run = std::mem::take(self);
        if let Some(decision) = run.walked.as_ref().and_then(Walked::decision) {
            let Train {
                packets,
                bytes,
                tcp_flags,
            } = run.train;
            decision.record(packets.into(), bytes, tcp_flags, now_ms);
        }
    }
}

/// The real sink of actions.
pub(crate) struct Forward<'a, S> {
    pub ports: &'a Ports,
    pub port: &'a Port,
    pub now_ms: u64,
    pub receivers: &'a mut PortSet,
    pub meters: &'a mut KnownMeters,
    pub spare: S,
    /// The key of the present packet as it came.
    pub came: Option<&'a ExactKey>,
}

impl<S> Forward<'_, S> {
    /// Gives the mirrors of the sender's port a packet.
    #[cold]
    pub(crate) fn mirror(&mut self, packet: &Packet, point: MirrorPoint) {
        let mut reach = Reach {
            ports: self.ports,
            receivers: &mut *self.receivers,
            now_ms: self.now_ms,
        };
        self.port.mirror(packet, point, &mut reach);
    }

    /// Counts a packet of the sender that is dropped.
    fn drop_packet(&mut self, packet: &Packet, reason: DropReason) {
        packet.account.dropped(reason, 1);
        if self.port.is_copied() {
            self.mirror(packet, MirrorPoint::DroppedFrom);
        }
    }

    pub(crate) fn miss(
        &mut self,
        stage: Stage,
        packet: &Packet,
        now: (Option<&FlowKey>, &Context),
    ) -> Result<(), DropReason> {
        let result = upcall(self.port, packet, UpcallCause::Miss { stage }, now, self.now_ms);
        if let Err(reason) = result {
            self.drop_packet(packet, reason);
        }
        result
    }
}

/// Queues `packet` at `port`, counts, and notifies the channel thread. `Err` is the reason to drop it. The
/// key is found in the queued bytes if fields of it are unknown.
fn upcall(
    port: &Port,
    packet: &Packet,
    cause: UpcallCause,
    now: (Option<&FlowKey>, &Context),
    now_ms: u64,
) -> Result<(), DropReason> {
    let (queued, lost) = port.misses.push(packet, port.switch.id, cause, now, now_ms);
    if lost > 0 {
        port.vnic.account.discarded(DropReason::ControlLost, lost);
    }
    match queued {
        Queued::Refused(reason) => return Err(reason),
        Queued::First => port.notices.missing(port.id()),
        Queued::Behind => {}
    }
    port.vnic.account.upcalls.fetch_add(1, Relaxed);
    port.vnic
        .account
        .copied_up
        .fetch_add(packet.frame_len() as u64, Relaxed);
    Ok(())
}

/// Puts a packet into the internal receive queue of port `to`, if that is one of the sender's switch, and the
/// port into the set of receivers.
#[inline]
pub(crate) fn enqueue(packet: Shared<Packet>, sender: &Port, to: PortId, reach: &mut Reach<'_>) {
    let beside = |receiver: &&Arc<Port>| receiver.is_beside(sender);
    let Some(receiver) = reach.ports.get(to).filter(beside) else {
        packet.account.dropped(DropReason::NoSuchPort, 1);
        if sender.is_copied() {
            let point = MirrorPoint::DroppedFrom;
            sender.mirror(&packet, point, reach);
        }
        return;
    };
    match receiver.vnic.enqueue(packet) {
        Ok(()) => reach.receivers.add(to),
        Err((reason, packet)) => {
            receiver.vnic.account.egress_dropped(reason, 1);
            packet.account.dropped(reason, 1);
            if receiver.is_copied() {
                copy_dropped(receiver, &packet, reason, reach);
            }
        }
    }
}

/// Copies a packet that was dropped at its receiver's side.
#[cold]
fn copy_dropped(receiver: &Port, packet: &Packet, reason: DropReason, reach: &mut Reach<'_>) {
    let direction = CaptureDirection::ToGuest;
    receiver.record(packet, direction, Some(reason));
    if !packet.is_mirrored {
        receiver.mirror(packet, MirrorPoint::DroppedTo, reach);
    }
}

impl<S: FnMut() -> Option<Unique<Packet>>> Sink for Forward<'_, S> {
    #[inline]
    fn output(&mut self, port: PortId, packet: Shared<Packet>) {
        let lender = &self.port.vnic.account.lender;
        if packet.is_for_group() {
            lender.floods_to(port, self.now_ms);
        } else {
            lender.sends_to(port, self.now_ms);
        }
        let mut reach = Reach {
            ports: self.ports,
            receivers: &mut *self.receivers,
            now_ms: self.now_ms,
        };
        enqueue(packet, self.port, port, &mut reach);
    }

    fn userspace(&mut self, to: &Userspace, packet: &Packet, (key, context): (&FlowKey, &Context)) {
        let cause = UpcallCause::Action(to.clone());
        if let Err(reason) = upcall(self.port, packet, cause, (Some(key), context), self.now_ms) {
            self.dropped(packet, reason);
        }
    }

    fn missed(&mut self, stage: Stage, packet: &Packet, (key, context): (&FlowKey, &Context)) {
        // The drop, if it is one, is counted there.
        let _ = self.miss(stage, packet, (Some(key), context));
    }

    fn admit_header_copy(&mut self) -> bool {
        self.port.admit_header_copy(self.now_ms)
    }

    fn pass_meter(&mut self, meter: u32, packet: &Packet) -> Result<(), DropReason> {
        self.meters
            .pass(self.port.id().controller(), meter, packet.frame_len())
    }

    fn account(&self) -> &Counters {
        &self.port.vnic.account
    }

    fn found(&mut self, _: Stage, entry: &Arc<FlowEntry>, packet: &Packet, tcp_flags: u16) {
        entry.record(1, packet.frame_len() as u64, tcp_flags, self.now_ms);
    }

    fn admit_record(&mut self, log: u32) -> bool {
        self.port.flows.logs().admit(log, self.now_ms)
    }

    fn log(&mut self, log: u32, stage: Stage, packet: &Packet, mut key: FlowKey) {
        key.set_in_port(self.port.id().0);
        let logged = LoggedPacket {
            time_ns: time_ns(),
            stage,
            key,
            bytes: u32::try_from(packet.frame_len()).unwrap_or(u32::MAX),
        };
        if self.port.flows.logs().note(log, logged) {
            self.port.notices.again();
        }
    }

    fn rejected(&mut self, packet: &Packet, is_alone: bool) -> DropReason {
        self.reject(packet, is_alone)
    }

    fn dropped(&mut self, packet: &Packet, reason: DropReason) {
        self.drop_packet(packet, reason);
    }

    fn spare(&mut self) -> Option<Unique<Packet>> {
        (self.spare)()
    }
}

/// Notes whose packets were delivered, and makes the port's copies.
pub(crate) struct Delivery<'a> {
    pub port: &'a Port,
    ports: &'a Ports,
    now_ms: u64,
    copying: bool,
    pub delivered: u64,
    pub origins: PortSet,
    /// Ports of mirrors that got copies.
    pub copied_to: PortSet,
}

impl<'a> Delivery<'a> {
    pub(crate) fn at(port: &'a Port, ports: &'a Ports, now_ms: u64) -> Delivery<'a> {
        Delivery {
            port,
            ports,
            now_ms,
            copying: port.is_copied(),
            delivered: 0,
            origins: PortSet::default(),
            copied_to: PortSet::default(),
        }
    }

    fn reach(&mut self) -> Reach<'_> {
        Reach {
            ports: self.ports,
            receivers: &mut self.copied_to,
            now_ms: self.now_ms,
        }
    }
}

impl Observer for Delivery<'_> {
    #[inline]
    fn delivered(&mut self, packet: &Packet) {
        self.delivered += 1;
        self.origins.add(packet.origin);
        if self.copying {
            let port = self.port;
            port.record(packet, CaptureDirection::ToGuest, None);
            if !packet.is_mirrored {
                port.mirror(packet, MirrorPoint::To, &mut self.reach());
            }
        }
    }

    fn dropped(&mut self, packet: &Packet, reason: DropReason) {
        self.origins.add(packet.origin);
        if self.copying {
            copy_dropped(self.port, packet, reason, &mut self.reach());
        }
    }
}
