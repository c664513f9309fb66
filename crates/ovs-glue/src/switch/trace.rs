//! Packets that are traced: the actions that the data plane's flows would take on them (`ovs_frame::TRACE`).

use super::{Outcome, Result, Step, Switch, Then};
use crate::datapath::{Datapath, DatapathId, FlowId, PortNo, Question, TraceStep};
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
        let mut writer = Writer::new();
        let flags = Flags::default();
        writer.message(Header { flags, ..header }, |writer| writer.raw(text.as_bytes()));
        Ok(Outcome {
            reply: Some(writer.finish()?),
            ..Outcome::default()
        })
    }
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
