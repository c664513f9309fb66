//! `hyperswitch trace`: "why did this packet go there?"

use super::{Reply, Request, Session};
use crate::cli::TraceArgs;
use crate::{capture_file, frame};
use anyhow::{Context, Result, ensure};
use management::{Hex, TraceReport, TraceStep};
use std::fmt::Write;

/// Traces a packet: through flows, or through the P4 program that forwards the port's packets.
///
/// # Errors
/// As [`frame`], or when the instance refuses.
pub fn run(session: &mut Session<'_>, args: &TraceArgs) -> Result<()> {
    let frame = frame(args)?;
    if let Some(report) = crate::p4::trace(session, &args.in_port, &frame)? {
        return session.print(&Reply::Trace(report), super::show::text);
    }
    session.show(request(args, frame))
}

/// The request for a packet that meets flows.
pub fn request(args: &TraceArgs, frame: Vec<u8>) -> Request {
    Request::Trace {
        port: args.in_port.clone(),
        frame: Hex(frame),
    }
}

/// The packet, made up or taken from a file.
///
/// # Errors
/// When the file cannot be read or has no such packet.
pub fn frame(args: &TraceArgs) -> Result<Vec<u8>> {
    match &args.pcap {
        None => frame::build(args),
        Some(path) => {
            let file = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            let packet = capture_file::packet(&file, args.index);
            let frame = packet.with_context(|| format!("{}, packet {}", path.display(), args.index))?;
            ensure!(
                (14..=65_553).contains(&frame.len()),
                "a frame of {} bytes: allowed are 14 to 65553",
                frame.len()
            );
            Ok(frame)
        }
    }
}

/// One line per step.
pub fn text(report: &TraceReport) -> String {
    let mut text = format!("switch {}, from port {}\n", report.switch, report.port);
    report.steps.iter().for_each(|step| write_step(&mut text, step));
    text
}

/// The line of a step, or the lines.
pub fn step(step: &TraceStep) -> String {
    let mut text = String::new();
    write_step(&mut text, step);
    text.trim_end().into()
}

fn write_step(text: &mut String, step: &TraceStep) {
    // Writing to a string does not fail.
    let _ = match step {
        TraceStep::Parsed { key } => writeln!(text, "parsed      {key}"),
        TraceStep::Subtable { fields, hit } => {
            writeln!(text, "megaflow    {}: {}", hit_or_miss(*hit), fields.join(","))
        }
        TraceStep::Matched { flow } => {
            writeln!(text, "matched     flow {}: {}", flow.id, flow.matches)
        }
        TraceStep::Rule {
            stage,
            list,
            rule,
            verdict,
            trial,
        } => {
            let rule = rule.as_deref().unwrap_or("default");
            let on_trial = if *trial { " on trial" } else { "" };
            match verdict {
                Some(verdict) => {
                    writeln!(text, "policy      {stage}, {list}: {verdict}{on_trial} by {rule}")
                }
                None => writeln!(text, "policy      {stage}, {list}: there is no such list"),
            }
        }
        TraceStep::Program {
            program,
            number,
            lines,
        } => {
            let lines = lines.iter().map(|line| format!("{line}\n"));
            writeln!(
                text,
                "program     {program}, by its port {number}\n{}",
                lines.collect::<String>().trim_end()
            )
        }
        TraceStep::Miss => writeln!(text, "miss        no flow matches: the control process decides"),
        TraceStep::Decided {
            vlan,
            because,
            matches,
            actions,
        } => {
            // The control process uses 0 for frames in no VLAN.
            let vlan = vlan.filter(|vlan| *vlan != 0);
            let vlan = vlan.map_or(String::new(), |vlan| format!("VLAN {vlan}: "));
            let drop = || "drop".to_owned();
            let actions = Some(actions.join(","))
                .filter(|text| !text.is_empty())
                .unwrap_or_else(drop);
            let _ = writeln!(text, "decided     {vlan}{}", because.join("; "));
            writeln!(text, "new flow    {matches} -> {actions}")
        }
        TraceStep::Action { action } => writeln!(text, "action      {action}"),
        TraceStep::Delivered { port } => writeln!(text, "delivered   to port {port}"),
        TraceStep::Dropped {
            port,
            reason,
            description,
        } => {
            let place = port
                .as_ref()
                .map_or(String::new(), |port| format!("at port {port}: "));
            writeln!(text, "dropped     {place}{reason}: {description}")
        }
        TraceStep::Way { way } => writeln!(text, "way         {way}"),
    };
}

fn hit_or_miss(hit: bool) -> &'static str {
    if hit { "hit" } else { "miss" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_read_as_a_story() {
        let report = TraceReport {
            switch: "sw0".into(),
            port: "vm1".into(),
            steps: vec![
                TraceStep::Subtable {
                    fields: vec!["in_port".into(), "eth_dst".into()],
                    hit: false,
                },
                TraceStep::Miss,
                TraceStep::Decided {
                    vlan: Some(10),
                    because: vec!["52:54:00:00:00:02 is on port vm2".into()],
                    matches: "in_port=vm1".into(),
                    actions: vec!["output(vm2)".into()],
                },
                TraceStep::Action {
                    action: "output(vm2)".into(),
                },
                TraceStep::Dropped {
                    port: Some("vm2".into()),
                    reason: "port-down".into(),
                    description: "The receiver is not connected.".into(),
                },
            ],
        };
        let expected = "\
switch sw0, from port vm1
megaflow    miss: in_port,eth_dst
miss        no flow matches: the control process decides
decided     VLAN 10: 52:54:00:00:00:02 is on port vm2
new flow    in_port=vm1 -> output(vm2)
action      output(vm2)
dropped     at port vm2: port-down: The receiver is not connected.
";
        assert_eq!(text(&report), expected);
    }
}
