//! What forwarding threads did, for users.

use crate::requests::Engine;
use control_protocol::work::WorkReport;

/// All threads' accounts as they are, and what the ports say about calls.
pub(crate) fn work_report(engine: &Engine) -> WorkReport {
    let datapath = &engine.datapath;
    let ledger = &datapath.shared.ledger;
    let mut report = WorkReport {
        cycles_per_second: ledger.cycles_per_second(),
        workers: ledger.records(),
        misses: engine.misses.clone(),
        ..WorkReport::default()
    };
    for port in datapath.ports().iter() {
        let (made, suppressed) = port.vnic.account.calls();
        report.calls += made;
        report.calls_suppressed += suppressed;
    }
    report
}
