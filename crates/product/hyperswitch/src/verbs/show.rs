//! Replies as text.

use super::{ClientError, Reply, Request, Session};
use crate::output::{self, Table, counted, counts, duration, or_dash};
use anyhow::Result;
use control_protocol::work::WorkReport;
use management::{
    DeviceInfo, FlowInfo, MacInfo, Origin, PortInfo, Process, ReloadSummary, Stats, Status, SwitchInfo,
    VersionInfo,
};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write;

/// Any reply.
pub fn text(reply: &Reply) -> String {
    match reply {
        Reply::Done => String::new(),
        Reply::Version(version) => format!("{}\n", version.version),
        Reply::Status(status) => self::status(status),
        Reply::Switches(switches) => self::switches(switches),
        Reply::Ports(ports) => self::ports(ports),
        Reply::Macs(macs) => self::macs(macs),
        Reply::Flows(flows) => self::flows(flows),
        Reply::Stats(stats) => self::stats(stats),
        Reply::Placement(report) => placement(report),
        Reply::Policies(lists) => super::policy::lists(lists),
        Reply::Policy(shown) => super::policy::rules(shown),
        Reply::PolicyJudged(judged) => super::policy_decisions::kinds(judged),
        Reply::PolicyLog(log) => super::policy_log::lines(&log.records),
        Reply::Trace(report) => super::trace::text(report),
        Reply::P4(switches) => super::p4::switches(switches),
        Reply::Reloaded(summary) => reloaded(summary),
        Reply::Unconfirmed(waiting) => or_dash(waiting.as_ref().map(|waiting| &waiting.file)) + "\n",
        Reply::Config(config) => super::config_file::text(config),
        Reply::Snapshot(snapshot) => format!("{}\n", counted(snapshot.ports.len(), "port")),
        Reply::Events(events) => super::events::text(&events.events),
        Reply::P4Program(piece) => format!("{}\n", piece.bytes),
        // No verb asks for devices.
        Reply::P4Devices(devices) => format!("{devices:?}\n"),
        Reply::P4Cells(cells) => format!("{:?}\n", cells.words),
    }
}

fn reloaded(summary: &ReloadSummary) -> String {
    let changes = match summary.changes.is_empty() {
        true => "nothing to change\n".to_owned(),
        false => summary
            .changes
            .iter()
            .map(|change| format!("{change}\n"))
            .collect(),
    };
    let in_use: String = (summary.in_use.iter())
        .map(|in_use| format!("{in_use}\n"))
        .collect();
    let warnings = summary
        .warnings
        .iter()
        .map(|warning| format!("warning: {warning}\n"));
    changes + &in_use + &warnings.collect::<String>()
}

/// Versions, as JSON.
#[derive(Serialize, JsonSchema)]
pub struct Versions {
    /// Of this command.
    version: &'static str,
    /// Of what it prints as JSON (`hyperswitch schema`).
    schema: u32,
    /// Of the running instance; none if there is none.
    running: Option<VersionInfo>,
}

/// `version`: of this command, and of the running instance if there is one.
pub fn versions(session: &mut Session<'_>) -> Result<()> {
    let own = env!("CARGO_PKG_VERSION");
    let running = match session.call(&Request::Version) {
        Ok(Reply::Version(version)) => Some(version),
        Err(ClientError::Unreachable { .. }) => None,
        Err(error) => return Err(error.into()),
        Ok(_) => None,
    };
    if session.json {
        return output::json(&Versions {
            version: own,
            schema: crate::schema::VERSION,
            running,
        });
    }
    let running = running.map_or("not running".into(), |version| {
        format!(
            "{} (data plane protocol {})",
            version.version, version.data_plane_protocol
        )
    });
    output::print(&format!("hyperswitch {own}\nrunning: {running}\n"))
}

/// Where an object comes from, in a word.
pub fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Config => "config",
        Origin::Runtime => "runtime",
    }
}

/// The rights that processes could not give up, in a line.
fn isolation(processes: &[Process]) -> String {
    let running = processes.iter().filter(|process| process.pid.is_some());
    let lacking: Vec<String> = running
        .flat_map(|process| match &process.missing {
            Some(missing) => missing
                .iter()
                .map(|what| format!("{}: {what}", process.role))
                .collect(),
            None => vec![format!("{}: not known yet", process.role)],
        })
        .collect();
    match lacking.is_empty() {
        true => "isolation:     complete\n".into(),
        false => format!("isolation:     {}\n", lacking.join("; ")),
    }
}

/// A reason, if there is one, to follow what it explains.
fn in_brackets(reason: Option<&String>) -> String {
    reason.map_or(String::new(), |reason| format!(" ({reason})"))
}

pub fn status(status: &Status) -> String {
    let mut text = format!(
        "hyperswitch {}, control process up {}\nrun directory: {}\nconfiguration: {}\n",
        status.version,
        duration(status.uptime_seconds),
        status.run_dir.display(),
        status
            .config
            .as_ref()
            .map_or("none".into(), |path| path.display().to_string()),
    );
    // Writing to a string does not fail, here and below.
    let _ = match &status.data_plane {
        Some(data_plane) => writeln!(text, "data plane:    {} workers", data_plane.workers),
        None => writeln!(text, "data plane:    not connected"),
    };
    let driver = if status.driver_connected {
        "connected"
    } else {
        "not connected"
    };
    let _ = writeln!(text, "driver domain: {driver}");
    let _ = match &status.vm_state.reason {
        None => writeln!(text, "vm-state:      published by eBPF programs"),
        Some(reason) => writeln!(text, "vm-state:      ring hints only ({reason})"),
    };
    if let Some(priority) = &status.priority {
        let refused = in_brackets(priority.refused.as_ref());
        let _ = writeln!(text, "priority:      {}{refused}", priority.class.name());
    }
    if let Some(idle_poll) = &status.idle_poll {
        let refused = in_brackets(idle_poll.refused.as_ref());
        let cores = counted(idle_poll.cores, "core");
        let _ = writeln!(text, "idle-poll:     {cores}{refused}");
    }
    text += &isolation(&status.processes);
    let _ = writeln!(
        text,
        "{}, {} ({} running), {}, {}\n",
        counted(status.switches, "switch"),
        counted(status.ports, "port"),
        status.ports_running,
        counted(status.macs, "MAC address"),
        counted(status.flows, "flow")
    );
    text += &processes(&status.processes);
    text + &warnings(&status.warnings)
}

/// A table of processes.
pub fn processes(processes: &[Process]) -> String {
    let mut table = Table::new(&["PROCESS", ">PID", ">RESTARTS", "LAST EXIT", "SERVES"]);
    for process in processes {
        table.row([
            process.role.clone(),
            or_dash(process.pid),
            process.restarts.to_string(),
            or_dash(process.last_exit.as_ref()),
            process.serves.clone().unwrap_or_default(),
        ]);
    }
    table.to_string()
}

/// A line for each warning, below an empty one.
pub fn warnings(warnings: &[String]) -> String {
    let line = |warning| format!("\nwarning: {warning}");
    let lines: String = warnings.iter().map(line).collect();
    lines + if warnings.is_empty() { "" } else { "\n" }
}

fn switches(switches: &[SwitchInfo]) -> String {
    let mut table = Table::new(&[
        "SWITCH",
        "TYPE",
        "ORIGIN",
        "UPLINK",
        "HOST",
        ">PORTS",
        ">MACS",
        ">FLOWS",
        ">MOVES",
        ">CONTESTED",
    ]);
    for switch in switches {
        table.row([
            switch.config.name.to_string(),
            switch.config.kind.to_string(),
            origin(switch.origin).into(),
            or_dash(switch.config.uplink.as_ref()),
            or_dash(switch.config.host_interface()),
            switch.ports.to_string(),
            switch.macs.to_string(),
            switch.flows.to_string(),
            switch.mac_moves.to_string(),
            switch.contested_macs.to_string(),
        ]);
    }
    table.to_string()
}

/// An interface and where it is.
pub fn interface(port: &PortInfo) -> Option<String> {
    let name = port.interface.as_ref()?;
    Some(match &port.netns {
        None => name.clone(),
        Some(netns) => format!("{name} in {netns}"),
    })
}

/// A device of the host, with those of its counters that are not 0.
pub fn device(info: &DeviceInfo) -> String {
    let carrier = if info.carrier { "link up" } else { "no carrier" };
    let speed = info
        .speed
        .map_or(String::new(), |speed| format!(", {speed} Mb/s"));
    let numbers = info.counters.numbers().filter(|(_, count)| *count > 0);
    let counters: Vec<String> = numbers
        .map(|(name, count)| format!("{} {count}", name.replace('_', "-")))
        .collect();
    format!(
        "{carrier}{speed}, MTU {}; {}",
        info.mtu,
        or_dash((!counters.is_empty()).then(|| counters.join(", ")))
    )
}

fn ports(ports: &[PortInfo]) -> String {
    let mut table = Table::new(&[
        "PORT",
        "SWITCH",
        "TYPE",
        "STATE",
        "VLAN",
        ">MTU",
        ">MACS",
        "ORIGIN",
        "MAC",
        "WHERE",
        "ADDRESSES",
    ]);
    for port in ports {
        let socket = port.socket.as_ref().map(|path| path.display().to_string());
        table.row([
            port.name.clone(),
            port.switch.clone(),
            port.kind.to_string(),
            port.state.clone(),
            port.vlan.clone(),
            port.mtu.to_string(),
            port.macs.to_string(),
            origin(port.origin).into(),
            or_dash(port.mac.as_ref()),
            or_dash(socket.or_else(|| interface(port))),
            or_dash((!port.addresses.is_empty()).then(|| port.addresses.join(" "))),
        ]);
    }
    let mut text = table.to_string();
    for port in ports {
        if let Some(info) = &port.device {
            let _ = writeln!(text, "\n{}: {}", port.name, device(info));
        }
        if let Some(problem) = &port.problem {
            let _ = writeln!(text, "\n{}: {problem}", port.name);
        }
    }
    text
}

fn macs(macs: &[MacInfo]) -> String {
    let mut table = Table::new(&["SWITCH", ">VLAN", "MAC", "PORT", ">AGE"]);
    for mac in macs {
        let age = mac.age_seconds.map(duration);
        table.row([
            mac.switch.clone(),
            mac.vlan.map_or("all".into(), |vlan| vlan.to_string()),
            mac.mac.clone(),
            mac.port.clone(),
            match (mac.is_static, mac.contested) {
                (true, _) => "static".into(),
                (false, true) => format!("{}, contested", or_dash(age)),
                (false, false) => or_dash(age),
            },
        ]);
    }
    table.to_string()
}

fn flows(flows: &[FlowInfo]) -> String {
    let mut titles = vec!["SWITCH", ">PACKETS", ">BYTES", ">IDLE", "MATCH", "ACTIONS"];
    let has_ways = flows.iter().any(|flow| flow.way.is_some());
    titles.extend(has_ways.then_some("WAY"));
    let mut table = Table::new(&titles);
    for flow in flows {
        let way = flow.way.as_ref().map(ToString::to_string);
        let row = [
            flow.switch.clone(),
            flow.packets.to_string(),
            flow.bytes.to_string(),
            or_dash(
                flow.idle_ms
                    .map(|ms| format!("{}.{}s", ms / 1000, ms % 1000 / 100)),
            ),
            flow.matches.clone(),
            if flow.actions.is_empty() {
                "drop".into()
            } else {
                flow.actions.join(",")
            },
        ];
        table.row(row.into_iter().chain(has_ways.then(|| or_dash(way))));
    }
    table.to_string()
}

/// Counters of ports, one line each, then drops by reason.
pub fn stats(stats: &Stats) -> String {
    let mut table = Table::new(&[
        "PORT",
        ">RECEIVED",
        ">BYTES",
        ">TRANSMITTED",
        ">BYTES",
        ">DELIVERED",
        ">DROPPED",
        ">UPCALLS",
        ">IN FLIGHT",
    ]);
    let total = (stats.ports.len() > 1).then_some(("total", &*stats.total));
    for (name, counters) in stats
        .ports
        .iter()
        .map(|port| (port.port.as_str(), &port.counters))
        .chain(total)
    {
        table.row([
            name.into(),
            counters.received.to_string(),
            counters.received_bytes.to_string(),
            counters.transmitted.to_string(),
            counters.transmitted_bytes.to_string(),
            counters.delivered.to_string(),
            counters.dropped.values().sum::<u64>().to_string(),
            counters.upcalls.to_string(),
            counters.in_flight.to_string(),
        ]);
    }
    let mut text = table.to_string();
    for port in &stats.ports {
        let kinds = [
            ("dropped", &port.counters.dropped),
            ("dropped on the way to it", &port.counters.egress_dropped),
            ("discarded by control", &port.counters.discarded),
        ];
        for (what, reasons) in kinds.iter().filter(|(_, reasons)| !reasons.is_empty()) {
            let _ = writeln!(text, "{}: {what}: {}", port.port, counts(*reasons));
        }
    }
    text
}

/// Threads of the data plane, one line each.
fn placement(report: &WorkReport) -> String {
    let mut table = Table::new(&[
        "THREAD",
        ">PACKETS",
        ">BURSTS",
        ">DELIVERED",
        ">CYCLES/PACKET",
        ">AWAKE/PACKET",
        ">BUSY",
        ">AWAKE",
        ">WAKE-UPS",
        ">SLEEPS",
        ">POLLS",
        ">KICKS",
        ">IDLE-POLL",
    ]);
    let seconds = |cycles: u64| format!("{:.3}s", cycles as f64 / report.cycles_per_second.max(1) as f64);
    for worker in &report.workers {
        // A thread that only delivers, as the channel thread does, is measured by its deliveries.
        let packets = worker.packets.max(worker.delivered);
        table.row([
            worker.name.clone(),
            worker.packets.to_string(),
            worker.bursts.to_string(),
            worker.delivered.to_string(),
            or_dash(worker.busy_cycles.checked_div(packets)),
            or_dash(worker.awake_cycles.checked_div(packets)),
            seconds(worker.busy_cycles),
            seconds(worker.awake_cycles),
            worker.wakeups.to_string(),
            worker.sleeps.to_string(),
            worker.polls.to_string(),
            worker.kicks.to_string(),
            seconds(worker.idle_poll_cycles),
        ]);
    }
    format!(
        "{table}notifications: {} sent, {} not wanted\n",
        report.calls, report.calls_suppressed
    )
}
