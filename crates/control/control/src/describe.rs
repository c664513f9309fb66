//! Names instead of numbers, and sentences instead of enums.

use crate::control::Control;
use crate::l2::storm::meter_text;
use crate::l2::{Decision, Destination, MASK, Source};
use crate::port::PortRun;
use crate::state::Link;
use crate::tell::state_name;
use control_protocol::data_plane::{self, Costly, FoundRule, GuestState, PortState};
use control_protocol::driver::InterfaceKind;
use flow::{Action, FIELDS, Flow, FlowKey, FlowMask, FlowStats, ListId, PortId, Stage, SwitchId};
use management::{
    ArrivalsInfo, DeviceInfo, DeviceQueueInfo, FlowInfo, KernelPathInfo, PortInUse, PortInfo, PortKind,
    TraceStep, Way,
};
use std::net::IpAddr;

impl Control {
    /// A port's name.
    pub fn port_name(&self, id: PortId) -> String {
        self.names.get(&id).cloned().unwrap_or_else(|| format!("#{id}"))
    }

    /// Names of several ports: `a, b and c`.
    pub fn port_names(&self, ids: &[PortId]) -> String {
        let names: Vec<String> = ids.iter().map(|id| self.port_name(*id)).collect();
        match names.split_last() {
            Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
            _ => names.concat(),
        }
    }

    /// A switch's name.
    pub fn switch_name(&self, id: SwitchId) -> String {
        let name = self.switches.name(id).cloned();
        name.unwrap_or_else(|| format!("#{id}"))
    }

    pub fn action_text(&self, action: &Action) -> String {
        match action {
            Action::Output(port) => format!("output({})", self.port_name(*port)),
            // The learning switch has no other meters.
            Action::Meter(meter) => meter_text(*meter),
            other => other.to_string(),
        }
    }

    fn action_texts(&self, actions: &[Action]) -> Vec<String> {
        actions.iter().map(|action| self.action_text(action)).collect()
    }

    fn match_text(&self, key: &FlowKey, mask: &FlowMask) -> String {
        if mask.0.in_port() == 0 {
            return key.display(mask).to_string();
        }
        let mut rest = *mask;
        rest.0.set_in_port(0);
        let name = self.port_name(PortId(key.in_port()));
        match rest == FlowMask::ANY {
            true => format!("in_port={name}"),
            false => format!("in_port={name},{}", key.display(&rest)),
        }
    }

    pub fn flow_info(&self, flow: &Flow, stats: &FlowStats, way: Option<Way>) -> FlowInfo {
        FlowInfo {
            id: format!("{:032x}", flow.id.0),
            switch: self.switch_name(flow.switch),
            matches: match flow.stage {
                Stage::Forward => self.match_text(&flow.key, &flow.mask),
                stage => format!("stage={stage},{}", self.match_text(&flow.key, &flow.mask)),
            },
            actions: self.action_texts(&flow.actions),
            packets: stats.packets,
            bytes: stats.bytes,
            idle_ms: stats.idle_ms,
            way,
        }
    }

    /// The virtual machine that is connected to a port.
    pub fn port_in_use(&self, name: &str) -> Option<PortInUse> {
        let run = self.ports.get(name).filter(|run| !run.is_interface())?;
        let state = match run.state {
            PortState::Connected | PortState::Broken(_) => "connected",
            PortState::Running => "running",
            PortState::Disconnected => return None,
        };
        let comm = run
            .peer
            .map(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")));
        Some(PortInUse {
            port: name.into(),
            state: state.into(),
            pid: run.peer,
            program: comm.and_then(Result::ok).map(|comm| comm.trim_end().to_owned()),
        })
    }

    /// The state of a port, for users.
    pub fn shown_state(&self, run: &PortRun) -> &'static str {
        match self.data_plane.client.is_connected() && run.added {
            true => state_name(&run.state),
            false => "unknown",
        }
    }

    pub fn port_info(&self, name: &str, run: &PortRun, listed: Option<&data_plane::PortInfo>) -> PortInfo {
        let port = &run.wanted;
        let (kind, socket, interface) = match &port.link {
            Link::Listen(socket) | Link::Connect(socket) => {
                (PortKind::VhostUser, Some(socket.path.clone()), None)
            }
            Link::Interface(spec) => {
                let kind = match spec.kind {
                    InterfaceKind::Veth(_) => PortKind::Veth,
                    _ => PortKind::Tap,
                };
                (kind, None, Some(spec.name.clone()))
            }
        };
        let netns = match &port.link {
            Link::Interface(spec) => spec.netns().map(str::to_owned),
            Link::Listen(_) | Link::Connect(_) => None,
        };
        let found = run.id.and_then(|id| self.driver.addresses(id));
        let uplink =
            matches!(&port.link, Link::Interface(spec) if matches!(spec.kind, InterfaceKind::Uplink { .. }));
        let switch = self.switches.runs.get(&port.switch);
        PortInfo {
            name: name.into(),
            switch: port.switch.clone(),
            number: run.id.map_or(0, |id| id.0),
            origin: port.origin,
            kind,
            config: port.config.clone(),
            socket,
            interface,
            netns,
            addresses: found.map_or_else(Vec::new, |found| {
                found.addresses.iter().map(with_prefix).collect()
            }),
            mac: found.map_or(port.mac, |found| found.mac).map(mac_text),
            mtu: port.mtu,
            vlan: port.rules.vlan.to_string() + if uplink { " (uplink)" } else { "" },
            state: self.shown_state(run).into(),
            problem: run.trouble(),
            features: listed.map_or(0, |info| info.features),
            vcpus: run
                .id
                .map_or_else(Vec::new, |id| self.vcpus.threads(id).collect()),
            guest: listed.and_then(|info| guest_text(info.guest)),
            costly: listed.map_or_else(Vec::new, |info| costly_texts(&info.costly)),
            policies: self.policies_of(name),
            macs: match (run.id, switch) {
                (Some(id), Some(switch)) => switch.l2().macs_on_port(id),
                _ => 0,
            },
            device: run.id.and_then(|id| self.driver.device(id)).map(DeviceInfo::from),
            device_queue: device_queue(run, listed),
            kernel_path: listed.and_then(|info| info.kernel_path.clone()).map(kernel_path),
            contested_macs: match (run.id, switch) {
                (Some(id), Some(switch)) => switch.l2().contested_on_port(id),
                _ => 0,
            },
        }
    }

    pub fn trace_step(&self, step: &data_plane::TraceStep) -> TraceStep {
        use data_plane::TraceStep as From;
        match step {
            From::Parsed(key) => {
                let mut named = *key;
                named.set_in_port(0);
                let port = self.port_name(PortId(key.in_port()));
                TraceStep::Parsed {
                    key: format!("in_port={port},{named}"),
                }
            }
            From::Subtable { mask, hit } => TraceStep::Subtable {
                fields: field_names(mask),
                hit: *hit,
            },
            From::Matched(flow) => TraceStep::Matched {
                flow: self.flow_info(flow, &FlowStats::default(), None),
            },
            From::Rule { stage, list, found } => self.rule_step(*stage, *list, found),
            From::Miss { .. } => TraceStep::Miss,
            From::Action(action) => TraceStep::Action {
                action: self.action_text(action),
            },
            From::Delivered(port) => TraceStep::Delivered {
                port: self.port_name(*port),
            },
            From::Dropped { port, reason } => TraceStep::Dropped {
                port: port.map(|port| self.port_name(port)),
                reason: reason.name().into(),
                description: reason.description().into(),
            },
            From::Way(way) => TraceStep::Way { way: self::way(way) },
        }
    }

    /// What a rule list of a filter says.
    fn rule_step(&self, stage: Stage, list: ListId, found: &FoundRule) -> TraceStep {
        let (rule, verdict) = match found {
            FoundRule::Rule { number, verdict } | FoundRule::Trial { number, verdict } => {
                (Some(self.rule_name(list, *number)), Some(verdict))
            }
            FoundRule::Default(verdict) => (None, Some(verdict)),
            FoundRule::NoList => (None, None),
        };
        TraceStep::Rule {
            stage: stage.to_string(),
            list: self.list_name(list),
            rule,
            verdict: verdict.map(ToString::to_string),
            trial: matches!(found, FoundRule::Trial { .. }),
        }
    }

    /// The verdict of the filter of a stage.
    pub fn filtered_step(&self, stage: Stage, actions: &[Action]) -> TraceStep {
        TraceStep::Decided {
            vlan: None,
            because: vec![format!("the packet meets the filter of stage {stage}")],
            matches: String::new(),
            actions: self.action_texts(actions),
        }
    }

    /// What is known of a packet's source, and learned from it.
    fn source_text(&self, source: &Source) -> Option<String> {
        let text = match source {
            Source::Refused => return None,
            Source::Static => "its source is a static address of the port",
            Source::Known => "its source is known to be on the port",
            Source::New => "its source would be learned on the port",
            Source::Contested => "its source is known elsewhere, and would be learned here too",
            Source::Device(owner) => {
                let owner = self.port_name(*owner);
                return Some(format!(
                    "its source is the `mac` of {owner}, and is not learned here"
                ));
            }
            Source::PortFull => "the port has learned as many addresses as it may",
            Source::TableFull => {
                "the MAC table is full and the port has its share, so its source is not learned"
            }
        };
        Some(text.into())
    }

    /// A decision, with its reasons.
    pub fn decided_step(&self, key: &FlowKey, decision: &Decision) -> TraceStep {
        let mut because = Vec::new();
        match decision.vlan {
            None => because.push("the port does not take frames of this VLAN".into()),
            Some(0) => because.push("the frame is untagged, and so is the port".into()),
            Some(vlan) => because.push(match decision.primary {
                Some(primary) => format!("the frame belongs to VLAN {vlan} of private VLAN {primary}"),
                None => format!("the frame belongs to VLAN {vlan}"),
            }),
        }
        because.extend(self.source_text(&decision.source));
        match &decision.destination {
            Destination::None => {}
            Destination::Reserved => {
                because.push("its destination is reserved for bridges themselves".into())
            }
            Destination::Group => because.push("its destination is a group: all ports of the VLAN".into()),
            Destination::Known(port) => {
                because.push(format!("its destination is on {}", self.port_name(*port)));
            }
            Destination::Contested(ports) => because.push(format!(
                "its destination is used on {}, and nobody owns it",
                self.port_names(ports)
            )),
            Destination::Unknown => because.push("its destination is not known: ports that flood".into()),
        }
        if let Err(reason) = decision.verdict {
            because.push(reason.description().into());
        }
        TraceStep::Decided {
            vlan: decision.vlan,
            because,
            matches: self.match_text(&key.masked(&MASK), &MASK),
            actions: self.action_texts(&decision.actions()),
        }
    }
}

/// An address as users write it.
pub fn with_prefix((address, prefix): &(IpAddr, u8)) -> String {
    format!("{address}/{prefix}")
}

/// A hardware address as users write it.
fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The state of a guest as text; `None` when it is not known.
fn guest_text(state: GuestState) -> Option<String> {
    Some(match state {
        GuestState::Running(core) => format!("running on core {core}"),
        GuestState::Runnable(core) => format!("runnable on core {core}"),
        GuestState::Blocked(core) => format!("blocked on core {core}"),
        GuestState::Unknown => return None,
    })
}

/// Work for a port that other threads do than those that forward packets, or that is done seldom.
fn costly_texts(costly: &Costly) -> Vec<String> {
    let call = |us| format!("calls, by a thread of their own; the last one took {us} us");
    let kick = |us| format!("new kick descriptors, refused for a while; the last one took {us} us");
    let calls = costly.call_us.map(call);
    calls.into_iter().chain(costly.kick_us.map(kick)).collect()
}

/// The fields in a mask. A mask alone does not show which other fields share the place of IP addresses.
fn field_names(mask: &FlowMask) -> Vec<String> {
    FIELDS
        .iter()
        .filter(|field| !field.is_in_context() && field.applies_to(IPV4) && field.get(&mask.0.words) != 0)
        .map(|field| field.name.to_owned())
        .collect()
}

const IPV4: u16 = 0x0800;

/// What the kernel forwards of a port's packets, for users.
fn kernel_path(state: data_plane::KernelPathState) -> KernelPathInfo {
    KernelPathInfo {
        flows: state.flows,
        waiting: state.waiting,
        obstacle: state.obstacle.map(|text| clean(&text)),
        longest_wait_ns: state.longest_wait_ns,
    }
}

/// What leaves by a queue of a port's device, for users.
fn device_queue(run: &PortRun, listed: Option<&data_plane::PortInfo>) -> Option<DeviceQueueInfo> {
    let (is_wanted, no_queue) = (run.wanted.fast_path, run.no_queue.as_ref());
    let state = listed.and_then(|info| info.device_queue.clone());
    if !is_wanted && state.is_none() {
        return None;
    }
    let has_none = state.is_none();
    let state = state.unwrap_or_default();
    let missing = no_queue
        .cloned()
        .or_else(|| has_none.then(|| "there is no queue yet".into()));
    let obstacle = missing.or(state.obstacle).map(|text| clean(&text));
    Some(DeviceQueueInfo {
        obstacle,
        packets: state.packets,
        bytes: state.bytes,
        calls: state.calls,
        armed: state.armed,
        full: state.full,
        left: state.left,
        overdue: state.overdue,
        longest_wait_us: state.longest_wait_us,
        arrivals: arrivals(run, state.arrivals),
    })
}

/// What comes by a queue of a port's device, for users.
fn arrivals(run: &PortRun, state: Option<data_plane::ArrivalsState>) -> ArrivalsInfo {
    let has_none = state.is_none();
    let state = state.unwrap_or_default();
    let filters = run.steering.as_ref();
    let counts = filters.map(|filters| filters.counts).unwrap_or_default();
    let missing = run.no_arrivals.clone();
    let missing = missing.or_else(|| has_none.then(|| "there is no queue for them yet".into()));
    let programmed = filters.map_or(0, |filters| filters.programmed.len());
    let refusal = filters.and_then(|filters| filters.refusal.clone());
    let unused = || refusal.unwrap_or_else(|| "no station has enough packets".into());
    let obstacle = missing.or_else(|| (programmed == 0).then(unused));
    ArrivalsInfo {
        obstacle: obstacle.map(|text| clean(&text)),
        filters: u32::try_from(programmed).unwrap_or(u32::MAX),
        packets: state.packets,
        bytes: state.bytes,
        unusable: state.unusable,
        programmed: counts.programmed,
        evicted: counts.evicted,
        removed: counts.removed,
        refused: counts.refused,
        waits: state.armed,
        overdue: state.overdue,
        longest_wait_us: state.longest_wait_us,
    }
}

/// By which way packets go, for users.
pub(crate) fn way(way: &data_plane::Way) -> Way {
    match way {
        data_plane::Way::Kernel => Way::KernelPath,
        data_plane::Way::DataPlane(reason) => Way::DataPlane(clean(reason)),
    }
}

/// What a data plane says, fit for a terminal.
fn clean(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(200).collect()
}
