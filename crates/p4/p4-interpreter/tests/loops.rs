//! Loops in actions: `for` of P4_16, which the compiler writes as jumps back.

#![allow(clippy::unwrap_used)]

mod common;

use common::Bench;
use p4_interpreter::Drop;
use p4_ir::limits;

/// A program that adds the numbers below the packet's second byte to its third and fourth, in ingress or in
/// egress. `step` is what each turn adds to the counter; `extra` stands in the loop's body.
fn summing(egress: bool, step: &str, extra: &str) -> String {
    let field = |header: &str, name: &str| format!(r#"{{"type": "field", "value": ["{header}", "{name}"]}}"#);
    let number = |value: &str| format!(r#"{{"type": "hexstr", "value": "{value}"}}"#);
    let op = |op: &str, left: &str, right: &str| {
        format!(
            r#"{{"type": "expression", "value": {{"type": "expression",
                "value": {{"op": "{op}", "left": {left}, "right": {right}}}}}}}"#
        )
    };
    let primitive = |op: &str, parameters: &[&str]| {
        format!(r#"{{"op": "{op}", "parameters": [{}]}}"#, parameters.join(", "))
    };
    let (i, sum, len) = (field("meta", "i"), field("h", "sum"), field("h", "len"));
    let port = field("standard_metadata", "egress_spec");
    let added = op("&", &op("+", &sum, &i), &number("0xffff"));
    let next = op("&", &op("+", &i, &number(step)), &number("0xffff"));
    let end = 5 + extra.matches("\"op\": \"assign\"").count();
    let body = [
        primitive("assign", &[&i, &number("0x0")]),
        primitive(
            "_jump_if_zero",
            &[&op("<", &i, &len), &number(&format!("{end:#x}"))],
        ),
        primitive("assign", &[&sum, &added]),
        primitive("assign", &[&i, &next]),
    ];
    let back = primitive("_jump", &[&number("0x1")]);
    let send = primitive("assign", &[&port, &number("0x3")]);
    let (ingress, egress) = if egress { (1, 0) } else { (0, 1) };
    let control = |name: &str, action: u8| {
        format!(
            r#"{{"name": "{name}", "id": 0, "init_table": "call", "tables": [], "conditionals": [],
                "action_calls": [{{"name": "call", "id": 0, "action_id": {action}, "next_node": null}}]}}"#
        )
    };
    format!(
        r#"{{"header_types": [
            {{"name": "standard_metadata", "id": 0, "fields": [["egress_spec", 9, false], ["_padding", 7, false]]}},
            {{"name": "meta_t", "id": 1, "fields": [["i", 16, false]]}},
            {{"name": "h_t", "id": 2, "fields": [["kind", 8, false], ["len", 8, false], ["sum", 16, false]]}}],
        "headers": [
            {{"name": "standard_metadata", "id": 0, "header_type": "standard_metadata", "metadata": true}},
            {{"name": "meta", "id": 1, "header_type": "meta_t", "metadata": true}},
            {{"name": "h", "id": 2, "header_type": "h_t", "metadata": false}}],
        "parsers": [{{"name": "parser", "id": 0, "init_state": "start", "parse_states": [{{"name": "start", "id": 0,
            "parser_ops": [{{"op": "extract", "parameters": [{{"type": "regular", "value": "h"}}]}}],
            "transition_key": [], "transitions": [{{"type": "default", "value": null, "next_state": null}}]}}]}}],
        "actions": [
            {{"name": "sum_up", "id": 0, "runtime_data": [], "primitives": [{}{extra}, {back}, {send}]}},
            {{"name": "send", "id": 1, "runtime_data": [], "primitives": [{send}]}}],
        "pipelines": [{}, {}],
        "deparsers": [{{"name": "deparser", "id": 0, "order": ["h"]}}]}}"#,
        body.join(", "),
        control("ingress", ingress),
        control("egress", egress),
    )
}

#[test]
fn a_loop_takes_as_many_turns_as_the_packet_says() {
    for egress in [false, true] {
        let mut bench = Bench::of(summing(egress, "0x1", "").as_bytes());
        for len in [0u8, 1, 2, 10, 255] {
            let left = bench.send(1, &[7, len, 0, 0, 9]).outputs;
            let sum = u16::from(len) * u16::from(len.saturating_sub(1)) / 2;
            let [high, low] = sum.to_be_bytes();
            assert_eq!(
                left,
                [(3, vec![7, len, high, low, 9])],
                "{len} in egress: {egress}"
            );
        }
    }
}

/// A packet whose loop would never end is dropped and counted, and no other packet notices.
#[test]
fn a_loop_without_end_is_ended() {
    for egress in [false, true] {
        let mut bench = Bench::of(summing(egress, "0x0", "").as_bytes());
        for number in 1..4 {
            let ended = bench.send(1, &[7, 1, 0, 0]);
            assert_eq!(ended.drops, [Drop::LoopTurns]);
            assert!(ended.outputs.is_empty());
            assert_eq!(bench.context.counts().dropped(Drop::LoopTurns), number);
            assert_eq!(bench.send(1, &[7, 0, 0, 0]).outputs.len(), 1);
        }
    }
}

/// The bound is the exact number of turns, in ingress and in egress each.
#[test]
fn turns_up_to_the_bound_are_taken() {
    let program = p4_bmv2::load(summing(false, "0x1", "").as_bytes(), None).unwrap();
    assert_eq!(program.bounds().loop_turns, limits::LOOP_TURNS);
    assert!(program.bounds().operations <= limits::OPERATIONS);
    // A heavy body leaves room for fewer turns.
    let body = vec![
        r#", {"op": "assign", "parameters": [{"type": "field", "value": ["h", "kind"]},
            {"type": "field", "value": ["h", "len"]}]}"#;
        1000
    ];
    let heavy = p4_bmv2::load(summing(false, "0x1", &body.concat()).as_bytes(), None).unwrap();
    let turns = heavy.bounds().loop_turns;
    assert!((2..limits::LOOP_TURNS).contains(&turns), "{turns}");
    assert!(heavy.bounds().operations <= limits::OPERATIONS);
    let mut bench = Bench::of(summing(false, "0x1", &body.concat()).as_bytes());
    let fits = u8::try_from(turns).unwrap();
    assert_eq!(bench.send(1, &[7, fits, 0, 0]).outputs.len(), 1);
    assert_eq!(bench.send(1, &[7, fits + 1, 0, 0]).drops, [Drop::LoopTurns]);
}
