//! Requests and responses: one packet at a time, whose latency is mostly that of waking sleeping guests and
//! workers.

use placement::Config;
use placement_simulator::experiment::{self, Contender, REQUESTS};
use placement_simulator::machine::machines;

/// A guest that waits for an answer leaves its core to the worker, which keeps the core awake. That the guest
/// comes back when the answer has come must not hand its ring to a helper: then the core would sleep, and
/// have to be woken.
#[test]
fn helpers_do_not_get_rings_of_guests_that_wait_for_answers() {
    let machine = &machines()[1];
    let alone = Contender {
        name: "without helpers".into(),
        config: Config {
            offload: false,
            ..Config::default()
        },
    };
    let with = experiment::measure(machine, &Contender::default_policy(), &REQUESTS, 16).value;
    let without = experiment::measure(machine, &alone, &REQUESTS, 16).value;
    assert!(
        with > 0.85 * without,
        "{with:.0} thousand transactions/s, without helpers {without:.0}"
    );
}
