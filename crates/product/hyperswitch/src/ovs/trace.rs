//! `ovs trace`: the flows of the data plane, and where none matches, what ovs-vswitchd would decide.

use super::{check_instance, daemon, place, programs};
use crate::cli::TraceArgs;
use crate::{output, verbs};
use anyhow::Result;
use management::Hex;
use ovs_glue::ask;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

pub fn run(run_dir: &Path, args: &TraceArgs, json: bool) -> Result<()> {
    check_instance(run_dir)?;
    let place = place(run_dir)?;
    let frame = verbs::trace::frame(args)?;
    let port = args.in_port.as_str();
    let told = ask::trace(&run_dir.join("ovs.sock"), port, &frame, programs::timeout())?;
    let open_vswitch = OpenVswitch {
        place: daemon::running(&place, daemon::SWITCH).map(|_| place.as_path()),
        port,
        frame: &frame,
    };
    let steps: Vec<Step> = told.lines().map(|line| open_vswitch.explain(line)).collect();
    if json {
        let port = port.to_owned();
        return output::json(&Trace { port, steps });
    }
    output::print(&text(port, &steps))
}

/// The steps of a packet, as JSON.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OvsTrace")]
pub struct Trace {
    port: String,
    steps: Vec<Step>,
}

/// A step.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "OvsTraceStep")]
struct Step {
    /// `matched`, `missed`, `delivered` or `dropped`.
    step: String,
    /// Number of the flow that matched, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    ufid: Option<String>,
    /// The flow, as ovs-dpctl(8) writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    flow: Option<String>,
    /// What ovs-vswitchd would decide about a packet that matched no flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<String>,
    /// The port that gets the packet, or at which it is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<String>,
    /// Why it is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Explains flows and decisions by Open vSwitch's own programs.
struct OpenVswitch<'a> {
    /// Where an ovs-vswitchd runs, if one does.
    place: Option<&'a Path>,
    port: &'a str,
    frame: &'a [u8],
}

impl OpenVswitch<'_> {
    /// A step as it is shown.
    fn explain(&self, line: &str) -> Step {
        let mut words = line.splitn(3, ' ');
        let word = words.next().unwrap_or_default();
        let owned = |word: &str| Some(word.to_owned());
        let mut step = Step {
            step: word.to_owned(),
            ..Step::default()
        };
        match (word, words.next(), words.next()) {
            ("matched", ufid, None) => {
                step.ufid = ufid.map(str::to_owned);
                step.flow = ufid.and_then(|ufid| self.flow(ufid));
            }
            ("missed", None, None) => step.decision = self.decision(),
            ("delivered", Some(port), None) => step.port = owned(port),
            ("dropped", Some(reason), port) => {
                (step.reason, step.port) = (owned(reason), port.map(str::to_owned));
            }
            _ => step.step = line.to_owned(),
        }
        step
    }

    /// A flow, as ovs-dpctl(8) writes it. It may be gone by now.
    fn flow(&self, ufid: &str) -> Option<String> {
        let ufid = format!("ufid:{ufid}");
        programs::ask(
            self.place?,
            "ovs-appctl",
            &["dpctl/get-flow", "system@ovs-system", &ufid],
        )
        .ok()
    }

    /// The decision that ovs-vswitchd would make, and why.
    fn decision(&self) -> Option<String> {
        let place = self.place?;
        let bridge = programs::ask(place, "ovs-vsctl", &["iface-to-br", self.port]).ok()?;
        let from = format!("in_port={}", self.port);
        let packet = Hex(self.frame.to_vec()).to_string();
        programs::ask(place, "ovs-appctl", &["ofproto/trace", &bridge, &from, &packet]).ok()
    }
}

/// One line per step, and the explanation of ovs-vswitchd below a miss.
fn text(port: &str, steps: &[Step]) -> String {
    let mut text = format!("from port {port}\n");
    for step in steps {
        // Writing to a string does not fail.
        let _ = match (step.step.as_str(), &step.port) {
            ("matched", _) => match (&step.flow, &step.ufid) {
                (Some(flow), _) => writeln!(text, "matched     {flow}"),
                (None, Some(ufid)) => writeln!(text, "matched     flow {ufid}"),
                (None, None) => writeln!(text, "matched     a flow of an earlier process"),
            },
            ("missed", _) => {
                let _ = writeln!(text, "miss        no flow matches: ovs-vswitchd decides");
                for line in step.decision.as_deref().unwrap_or_default().lines() {
                    let _ = writeln!(text, "            {line}");
                }
                Ok(())
            }
            ("delivered", Some(port)) => writeln!(text, "delivered   to port {port}"),
            ("dropped", port) => {
                let place = port
                    .as_ref()
                    .map_or_else(String::new, |port| format!("at port {port}: "));
                let reason = step.reason.as_deref().unwrap_or_default();
                writeln!(text, "dropped     {place}{reason}")
            }
            (other, _) => writeln!(text, "{other}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_shown_also_without_open_vswitch() {
        let nobody = OpenVswitch {
            place: None,
            port: "vm1",
            frame: &[],
        };
        let told = "matched 01020304-0506-0708-090a-0b0c0d0e0f10\nmatched\ndelivered vm2\ndropped port-down vm3\ndropped by-flow\nmissed\nnew words";
        let steps: Vec<Step> = told.lines().map(|line| nobody.explain(line)).collect();
        let expected = "\
from port vm1
matched     flow 01020304-0506-0708-090a-0b0c0d0e0f10
matched     a flow of an earlier process
delivered   to port vm2
dropped     at port vm3: port-down
dropped     by-flow
miss        no flow matches: ovs-vswitchd decides
new words
";
        assert_eq!(text("vm1", &steps), expected);
    }
}
