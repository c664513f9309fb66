//! Requests of `hyperswitch`'s verbs: packets that are traced, which is to say the actions that the data
//! plane's flows would take on them (`ovs_frame::TRACE`), and counters of ports (`ovs_frame::COUNTERS`). And
//! of the library in ovs-vswitchd: counts of queues (`ovs_frame::QUEUES`).

use super::{Outcome, Result, Step, Switch, Then, Vport};
use crate::datapath::{Datapath, DatapathId, FlowId, MeterSeen, PortNo, Question, TraceStep};
use crate::placeholder::Placeholders;
use ovs_netlink::Errno;
use ovs_netlink::attribute::Writer;
use ovs_netlink::flow::Ufid;
use ovs_netlink::message::{Flags, Header, Message};
use ovs_netlink::name::Name;
use std::fmt::Write;

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn trace(&mut self, message: &Message<'_>) -> Result<Step> {
        let mut parts = message.payload.splitn(2, |byte| *byte == 0);
        let (Some(name), Some(frame)) = (parts.next(), parts.next()) else {
            return Err(Errno::EINVAL.into());
        };
        let name = Name::new(name).ok_or(Errno::ENODEV)?;
        let (datapath, port) = *self.names.get(&name).ok_or(Errno::ENODEV)?;
        let frame = frame.to_vec();
        Ok(Step::Ask(
            datapath,
            Question::Trace { port, frame },
            Then::TellTrace(datapath),
        ))
    }

    pub(super) fn counters(&mut self, message: &Message<'_>) -> Result<Step> {
        let name = message
            .payload
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or_default();
        let name = Name::new(name).ok_or(Errno::ENODEV)?;
        let (datapath, port) = *self.names.get(&name).ok_or(Errno::ENODEV)?;
        let question = Question::PortStats(port);
        Ok(Step::Ask(datapath, question, Then::TellCounters(datapath, port)))
    }

    /// What a queue has counted. The device is one of the namespace where ovs-vswitchd is.
    pub(super) fn queue(&mut self, message: &Message<'_>) -> Result<Step> {
        let (index, rest) = message.payload.split_first_chunk().ok_or(Errno::EINVAL)?;
        let queue = rest.first_chunk().ok_or(Errno::EINVAL)?;
        let (index, queue) = (u32::from_ne_bytes(*index), u32::from_ne_bytes(*queue));
        let queue = u16::try_from(queue).map_err(|_| Errno::EINVAL)?;
        let mut ports = self.bridges.iter().flat_map(|(id, bridge)| {
            let ports = bridge.ports.iter();
            ports.map(move |(number, port)| (*id, *number, port))
        });
        let has_it = |port: &Vport| port.interface == Some(index) && port.namespace.is_none();
        let found = ports.find(|(.., port)| has_it(port));
        let (datapath, number, _) = found.ok_or(Errno::ENODEV)?;
        Ok(Step::Ask(
            datapath,
            Question::Queue(number, queue),
            Then::TellQueue,
        ))
    }

    pub(super) fn tell_counters(
        &self,
        header: Header,
        datapath: DatapathId,
        port: PortNo,
    ) -> Result<Outcome> {
        let counters = self.datapath.port_counters(datapath, port);
        let text = serde_json::to_vec(&counters).map_err(|_| Errno::EIO)?;
        payload(header, &text)
    }

    pub(super) fn tell_trace(
        &self,
        header: Header,
        datapath: DatapathId,
        steps: &[TraceStep],
    ) -> Result<Outcome> {
        let (_, bridge) = self.bridge(datapath.0)?;
        let name = |port: &PortNo| {
            let vport = bridge.ports.get(port);
            vport.map_or_else(
                || format!("port {}", port.0),
                |vport| String::from_utf8_lossy(vport.name.as_bytes()).into_owned(),
            )
        };
        let mut text = String::new();
        for step in steps {
            // Writing to a string does not fail.
            let _ = match step {
                TraceStep::Matched(Some(FlowId::Ufid(ufid))) => {
                    writeln!(text, "matched {}", identifier(ufid))
                }
                TraceStep::Matched(_) => writeln!(text, "matched"),
                TraceStep::Missed => writeln!(text, "missed"),
                TraceStep::Delivered(port) => writeln!(text, "delivered {}", name(port)),
                TraceStep::Dropped(None, reason) => writeln!(text, "dropped {}", reason.name()),
                TraceStep::Dropped(Some(port), reason) => {
                    writeln!(text, "dropped {} {}", reason.name(), name(port))
                }
            };
        }
        payload(header, text.as_bytes())
    }
}

/// Packets and bytes that passed, and packets that did not.
pub(super) fn tell_queue(header: Header, seen: Option<MeterSeen>) -> Result<Outcome> {
    let MeterSeen { seen, bands } = seen.ok_or(Errno::ENODEV)?;
    let dropped = bands.first().copied().unwrap_or_default();
    let counts = [
        seen.stats.packets.saturating_sub(dropped.packets),
        seen.stats.bytes.saturating_sub(dropped.bytes),
        dropped.packets,
    ];
    payload(header, &counts.map(u64::to_ne_bytes).concat())
}

/// An answer with that payload.
fn payload(header: Header, payload: &[u8]) -> Result<Outcome> {
    let mut writer = Writer::new();
    let flags = Flags::default();
    writer.message(Header { flags, ..header }, |writer| writer.raw(payload));
    Ok(Outcome {
        reply: Some(writer.finish()?),
        ..Outcome::default()
    })
}

/// As Open vSwitch writes it: 4 words in the machine's byte order, in the groups of a UUID (RFC 9562).
fn identifier(ufid: &Ufid) -> String {
    let digits: String = ufid
        .as_bytes()
        .chunks(4)
        .map(|word| {
            let mut whole = [0; 4];
            whole[..word.len()].copy_from_slice(word);
            format!("{:08x}", u32::from_ne_bytes(whole))
        })
        .collect();
    let at = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    format!(
        "{}-{}-{}-{}-{}",
        at(0, 8),
        at(8, 12),
        at(12, 16),
        at(16, 20),
        at(20, 32)
    )
}
