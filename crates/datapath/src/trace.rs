//! A packet's way without the packet: the real look-up and the real actions, with a sink that only notes.

use crate::actions::{Sink, apply};
use crate::port::Port;
use crate::state::{Datapath, Ports};
use control_protocol::data_plane::TraceStep;
use flow::{Action, DropReason, PortId};
use ring::{PoolOwner, Shared, Unique};
use std::sync::Arc;
use vnic::Packet;

/// What happens to `frame` from `port`: all of it, or, when `actions` are given, only what they do.
pub(crate) fn trace(
    datapath: &Datapath,
    port: &Arc<Port>,
    frame: Vec<u8>,
    actions: Option<&[Action]>,
) -> Result<Vec<TraceStep>, String> {
    // Counters of its own: a trace leaves no trace.
    let account = Arc::new(vnic::Counters::default());
    let memory = Arc::new(guest_memory::GuestMemory::new());
    let mut pool = PoolOwner::new(64, || Packet::new(port.id(), account.clone(), memory.clone()));
    let mut packet = pool.take().ok_or("no slot")?;
    packet.fill(port.id(), account.clone(), frame);
    let key = packet
        .parse_flow_key()
        .map_err(|_| "the frame cannot be parsed".to_owned())?;
    let mut steps = vec![TraceStep::Parsed(key)];
    let ports = datapath.ports();
    let found = match actions {
        Some(actions) => actions.to_vec(),
        None => {
            let flows = port.flows.read();
            let entry = flows.lookup_observed(&key, &mut |mask, hit| {
                steps.push(TraceStep::Subtable { mask: *mask, hit })
            });
            let Some(entry) = entry else {
                steps.push(TraceStep::Miss);
                return Ok(steps);
            };
            steps.push(TraceStep::Matched(entry.flow.clone()));
            entry.flow.actions.clone()
        }
    };
    apply(
        &found,
        packet,
        &mut Notes {
            ports: &ports,
            port,
            pool: &mut pool,
            steps: &mut steps,
        },
    );
    Ok(steps)
}

struct Notes<'a> {
    ports: &'a Ports,
    port: &'a Port,
    pool: &'a mut PoolOwner<Packet>,
    steps: &'a mut Vec<TraceStep>,
}

impl Sink for Notes<'_> {
    fn output(&mut self, port: PortId, packet: Shared<Packet>) {
        let receiver = self
            .ports
            .get(port)
            .filter(|receiver| receiver.switch.id == self.port.switch.id);
        let reason = match receiver {
            None => Some(DropReason::NoSuchPort),
            Some(receiver) => receiver.vnic.would_refuse(&packet),
        };
        self.steps.push(match reason {
            None => TraceStep::Delivered(port),
            Some(reason) => TraceStep::Dropped {
                port: Some(port),
                reason,
            },
        });
    }

    fn upcall(&mut self, _cookie: u64, _packet: &Packet) {}

    fn dropped(&mut self, _packet: &Packet, reason: DropReason) {
        self.steps.push(TraceStep::Dropped { port: None, reason });
    }

    fn spare(&mut self) -> Option<Unique<Packet>> {
        self.pool.take()
    }

    fn applying(&mut self, action: &Action) {
        self.steps.push(TraceStep::Action(*action));
    }
}
