//! What forwarding threads did, for users.

use crate::state::Datapath;
use control_protocol::work::{WorkReport, WorkerReport};
use scheduler::Record;

/// All threads' accounts as they are, and what the ports say about calls.
pub(crate) fn work_report(datapath: &Datapath) -> WorkReport {
    let ledger = &datapath.crew.ledger;
    let mut report = WorkReport {
        cycles_per_second: ledger.cycles_per_second(),
        workers: ledger.records().into_iter().map(worker_report).collect(),
        ..WorkReport::default()
    };
    for port in datapath.ports().iter() {
        let counters = port.vnic.account.read();
        report.calls += counters.calls;
        report.calls_suppressed += counters.calls_suppressed;
    }
    report
}

fn worker_report(record: Record) -> WorkerReport {
    WorkerReport {
        name: record.name,
        tid: record.tid,
        busy_cycles: record.busy_cycles,
        awake_cycles: record.awake_cycles,
        bursts: record.bursts,
        packets: record.packets,
        delivered: record.delivered,
        offloads: record.offloads,
        aborts: record.aborts,
        polls: record.polls,
        sleeps: record.sleeps,
        wakeups: record.wakeups,
        kicks: record.kicks,
        idle_poll_cycles: record.idle_poll_cycles,
    }
}
