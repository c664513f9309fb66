//! The page, and the figures that it shows: counters, from two readings of which it makes rates itself.

use management::{PortFigures, Process, Snapshot};
use serde_json::{Value, json};

/// The page: one file, without anything from elsewhere.
pub const HTML: &str = include_str!("page.html");

/// The figures of now.
pub fn figures(snapshot: &Snapshot) -> String {
    let work = snapshot.work.as_ref();
    let threads = work.map_or_else(Vec::new, |work| {
        let thread = |worker: &control_protocol::work::WorkerReport| {
            json!({ "name": worker.name, "busy": worker.busy_cycles, "awake": worker.awake_cycles })
        };
        work.workers.iter().map(thread).collect()
    });
    let figures = json!({
        "version": snapshot.version,
        "warnings": snapshot.warnings,
        "processes": snapshot.processes.iter().map(process).collect::<Vec<_>>(),
        "ports": snapshot.ports.iter().map(port).collect::<Vec<_>>(),
        "cycles-per-second": work.map(|work| work.cycles_per_second),
        "threads": threads,
    });
    figures.to_string()
}

fn process(process: &Process) -> Value {
    json!({
        "role": process.role,
        "complaint": process.complaint(),
        "restarts": process.restarts,
        "started-ms": process.started_ms,
    })
}

fn port(port: &PortFigures) -> Value {
    let counters = port.counters.as_ref().map(|counters| {
        json!({
            "received": counters.received,
            "received-bytes": counters.received_bytes,
            "transmitted": counters.transmitted,
            "transmitted-bytes": counters.transmitted_bytes,
            "dropped": counters.dropped,
        })
    });
    json!({
        "name": port.name,
        "switch": port.switch,
        "state": port.state,
        "problem": port.has_problem,
        "core": port.core,
        "counters": counters,
    })
}
