//! A packet's way without the packet: the real look-up and the real actions, with a sink that only notes.

use crate::actions::{Means, Sink, apply};
use crate::port::Port;
use crate::refusal::Refusal;
use crate::state::{Datapath, Ports};
use classifier::{FlowEntry, Reading, RuleOrigin, Start, Tables};
use control_protocol::data_plane::{FoundRule, TraceStep};
use flow::{Action, Context, DropReason, Filter, FlowKey, PortId, Program, Stage, Userspace};
use lock_free::{PoolOwner, Shared, Unique};
use std::sync::Arc;
use vnic::{Counters, Packet};

/// What happens to `frame` from `port`: all of it, or, when actions of a stage are given, what they do and
/// what follows.
pub(crate) fn trace(
    datapath: &Datapath,
    port: &Arc<Port>,
    frame: Vec<u8>,
    actions: Option<(Stage, &[Action])>,
) -> Result<Vec<TraceStep>, Refusal> {
    // Counters of its own: a trace leaves no trace.
    let account = Arc::new(vnic::Counters::default());
    let memory = Arc::new(guest_memory::GuestMemory::new());
    let mut pool = PoolOwner::new(64, || Packet::new(port.id(), account.clone(), memory.clone()));
    let mut packet = pool.take().ok_or(Refusal::BadFrame)?;
    packet.fill(port.id(), account.clone(), frame);
    let key = packet.parse_flow_key().map_err(|_| Refusal::BadFrame)?;
    let mut steps = vec![TraceStep::Parsed(key)];
    let ports = datapath.ports();
    let flows = port.flows.read();
    let first = Stage::first(&flows.filters(port.id()));
    let compiled;
    let start = match actions {
        Some((stage, actions)) => {
            compiled = Program::compile(actions, stage)?;
            Start::InStage(&compiled, stage)
        }
        // Masks are shown where there is one list only.
        None if first == Stage::Forward => {
            let mut observe = |mask: &_, hit| steps.push(TraceStep::Subtable { mask: *mask, hit });
            let Some(entry) = flows.lookup_observed(&key, &mut observe) else {
                steps.push(TraceStep::Miss { stage: first, key });
                return Ok(steps);
            };
            steps.push(TraceStep::Matched(entry.flow.clone()));
            Start::Program(entry.program())
        }
        None => Start::LookUp(first),
    };
    let mut notes = Notes {
        came: key,
        flows: &flows,
        ports: &ports,
        port,
        account: &account,
        pool: &mut pool,
        steps: &mut steps,
    };
    let packet = (packet, Some(key));
    apply(start, &flows, packet, &mut Means::default(), &mut notes);
    Ok(steps)
}

/// What a list has found.
fn found_rule(rule: Option<&RuleOrigin>) -> FoundRule {
    let Some(&RuleOrigin {
        number,
        verdict,
        trial,
        log: _,
    }) = rule
    else {
        return FoundRule::NoList;
    };
    match number {
        Some(number) if trial => FoundRule::Trial { number, verdict },
        Some(number) => FoundRule::Rule { number, verdict },
        None => FoundRule::Default(verdict),
    }
}

struct Notes<'a> {
    /// The packet's key as it came.
    came: FlowKey,
    flows: &'a Reading<'a>,
    ports: &'a Ports,
    port: &'a Port,
    account: &'a Counters,
    pool: &'a mut PoolOwner<Packet>,
    steps: &'a mut Vec<TraceStep>,
}

impl Sink for Notes<'_> {
    fn output(&mut self, port: PortId, packet: Shared<Packet>) {
        let receiver = self
            .ports
            .get(port)
            .filter(|receiver| receiver.is_beside(self.port));
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

    fn userspace(&mut self, _: &Userspace, _: &Packet, _: (&FlowKey, &Context)) {}

    fn missed(&mut self, stage: Stage, _: &Packet, (key, _): (&FlowKey, &Context)) {
        self.steps.push(TraceStep::Miss { stage, key: *key });
    }

    /// A trace takes no tokens.
    fn pass_meter(&mut self, _: u32, _: &Packet) -> Result<(), DropReason> {
        Ok(())
    }

    /// Frames of a trace lie in our memory.
    fn admit_header_copy(&mut self) -> bool {
        true
    }

    fn account(&self) -> &Counters {
        self.account
    }

    fn found(&mut self, stage: Stage, entry: &Arc<FlowEntry>, _: &Packet, _: u16) {
        let port = match stage {
            Stage::Egress(port, _) => port,
            Stage::Ingress(_) | Stage::Forward => self.port.id(),
        };
        self.steps.push(match self.flows.filters(port).of_stage(stage) {
            Filter::Rules(list) => TraceStep::Rule {
                stage,
                list,
                found: found_rule(entry.rule()),
            },
            Filter::Absent | Filter::Flows => TraceStep::Matched(entry.flow.clone()),
        });
    }

    /// A trace is no packet.
    fn admit_record(&mut self, _: u32) -> bool {
        false
    }

    fn log(&mut self, _: u32, _: Stage, _: &Packet, _: FlowKey) {}

    /// Nobody is told.
    fn rejected(&mut self, packet: &Packet, is_alone: bool) -> DropReason {
        let answer = wire::rejection(packet.head.bytes(), packet.frame_len(), &self.came);
        if is_alone && answer.is_some() {
            DropReason::Rejected
        } else {
            DropReason::Policy
        }
    }

    fn dropped(&mut self, _packet: &Packet, reason: DropReason) {
        self.steps.push(TraceStep::Dropped { port: None, reason });
    }

    fn spare(&mut self) -> Option<Unique<Packet>> {
        self.pool.take()
    }

    fn applying(&mut self, action: impl FnOnce() -> Action) {
        self.steps.push(TraceStep::Action(action()));
    }
}
