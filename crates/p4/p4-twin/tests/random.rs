//! Random programs give the same packets in the interpreter and in the evaluator.

#![allow(clippy::unwrap_used, reason = "tests")]

use p4_interpreter::Verdicts;
use p4_twin::compare::{compare, compare_plain, compare_rich};
use p4_twin::generate::{self, LATER_SEEDS};
use p4_twin::verdicts::{Found, compare_verdicts};

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

#[test]
fn the_interpreter_takes_as_many_turns_of_loops_as_the_evaluator() {
    (LATER_SEEDS..LATER_SEEDS + 200).for_each(same);
    (LATER_SEEDS..LATER_SEEDS + 100).for_each(same_rich);
}

/// The interpreter did not evaluate the keys of a select without cases, so a look beyond the packet's end did
/// not end the parser.
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

fn same_rich(seed: u64) {
    compare_rich(seed, PACKETS).unwrap_or_else(|difference| panic!("{difference}"));
}

#[test]
fn the_interpreter_does_rich_programs_as_the_evaluator() {
    (0..200).for_each(same_rich);
}

/// The interpreter did not know how to compare variable fields, and gave what was in the register before.
#[test]
fn variable_fields_are_compared() {
    [350, 539, 863, 1252, 1291, 1525].into_iter().for_each(same_rich);
}

/// The interpreter made the other member of the union invalid, and so zero, before it copied it.
#[test]
fn a_member_of_a_union_is_copied_to_another() {
    same_rich(889);
}

/// The interpreter did not evaluate the keys of a select without cases, so a reference to an element that a
/// stack does not have did not end the parser.
#[test]
fn a_select_without_cases_looks_into_stacks() {
    [1505, 2526, 10_242, 12_242, 15_769, 17_636]
        .into_iter()
        .for_each(same_rich);
}

/// The interpreter looked for the place of an assignment before it evaluated the value: of two errors that
/// end the parser it told the wrong one.
#[test]
fn an_assignment_evaluates_before_it_looks_for_the_place() {
    same_rich(1_124_032);
}

fn with_verdicts(seeds: std::ops::Range<u64>, packets: u32, program: fn(u64) -> p4_ir::Program) -> Found {
    let (mut verdicts, mut all) = (Verdicts::default(), Found::default());
    for seed in seeds {
        let found = compare_verdicts(&mut verdicts, (program(seed), seed), packets);
        let found = found.unwrap_or_else(|difference| panic!("{difference}"));
        all.found += found.found;
        all.changed += found.changed;
        all.made += found.made;
    }
    all
}

#[test]
fn kept_verdicts_are_as_runs_and_as_the_evaluator() {
    let found = with_verdicts(0..100, 60, generate::plain_program);
    assert!(found.found > 300 && found.changed > 60, "{found:?}");
    with_verdicts(0..20, 20, generate::program);
    with_verdicts(0..20, 20, generate::rich_program);
}

#[test]
fn plain_programs_are_run_as_the_evaluator_does() {
    (0..100).for_each(|seed| {
        compare_plain(seed, PACKETS).unwrap_or_else(|difference| panic!("{difference}"));
    });
}
