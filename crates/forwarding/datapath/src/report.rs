//! What ports have counted and forwarding threads did, for users.

use crate::requests::{Engine, PAGE_BYTES};
use control_protocol::port_counts::{PortCount, PortCounts};
use control_protocol::work::WorkReport;
use flow::{ControllerId, PortCounters};

/// What a controller's ports have counted, in one part or several, as a message takes them.
pub(crate) fn count_ports(engine: &mut Engine, controller: ControllerId) -> Vec<PortCounts> {
    let ports = engine.datapath.ports();
    let mut full = Vec::new();
    let mut part = PortCounts::default();
    let by_kernel = engine.datapath.kernel_path.get();
    let by_kernel = by_kernel.map(|path| path.all_counts()).unwrap_or_default();
    let all = engine.accounts.look(&engine.datapath);
    for (id, account) in all.filter(|(id, _)| controller.owns(*id)) {
        let port = account.is_marked().then(|| ports.get(id)).flatten();
        let (core, waits) = port.map_or((None, 0), |port| port.core_and_waits());
        let of_kernel = by_kernel.get(&id.0);
        if account.has_drops() || of_kernel.is_some() {
            let mut counters = PortCounters {
                bandwidth_waits: waits,
                ..account.read()
            };
            if let Some(counts) = of_kernel {
                counts.tell(&mut counters);
            }
            let port = id;
            part.push(&PortCount { port, core, counters });
        } else {
            part.push_numbers(id, core, &account.numbers(waits));
        }
        // One port is far below the other half.
        if part.bytes() >= PAGE_BYTES {
            full.push(std::mem::take(&mut part));
        }
    }
    full.push(part);
    full
}

/// All threads' accounts as they are, and what the ports say about calls.
pub(crate) fn work_report(engine: &mut Engine) -> WorkReport {
    let ledger = &engine.datapath.shared.ledger;
    let mut report = WorkReport {
        cycles_per_second: ledger.cycles_per_second(),
        workers: ledger.records(),
        misses: engine.misses.clone(),
        ..WorkReport::default()
    };
    for (_, account) in engine.accounts.look(&engine.datapath) {
        let (made, suppressed) = account.calls();
        report.calls += made;
        report.calls_suppressed += suppressed;
    }
    report
}
