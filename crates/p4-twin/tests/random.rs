//! Random programs give the same packets in the interpreter and in the evaluator.

#![allow(clippy::unwrap_used, reason = "tests")]

use p4_twin::compare::compare;

/// Packets through each program that once showed a difference.
const PACKETS: u32 = 6;

fn same(seed: u64) {
    compare(seed, PACKETS).unwrap_or_else(|difference| panic!("{difference}"));
}

#[test]
fn the_interpreter_does_as_the_evaluator() {
    let sent: usize = (0..400)
        .map(|seed| compare(seed, 5).unwrap_or_else(|difference| panic!("{difference}")))
        .sum();
    // Some are dropped, but not all.
    assert!(sent > 160, "{sent}");
}

/// The interpreter did not evaluate the keys of a select without cases, so a look beyond the packet's end did not end the
/// parser.
#[test]
fn a_select_without_cases_looks_ahead() {
    [681, 720, 1044, 2066, 2147, 2198].into_iter().for_each(same);
}

/// The interpreter forgot at the beginning of egress that ingress had called `recirculate`.
#[test]
fn ingress_may_ask_for_recirculation() {
    [169, 280, 431, 1895].into_iter().for_each(same);
}

/// The evaluator told egress that a packet had been recirculated; BMv2 tells only ingress.
#[test]
fn egress_sees_no_instance_type_of_an_earlier_pass() {
    same(83_650);
}
