//! Variable fields: lengths that no header can have, and fields of metadata.

#![allow(clippy::unwrap_used)]

mod common;

use common::Bench;

/// A program whose parser extracts a header of 2 to 10 bytes with the length in its second byte, in bits,
/// and whose ingress sends the packet to the port with the number of the parser's error.
fn by_error() -> Bench {
    let json = r#"{"header_types": [
        {"name": "standard_metadata", "id": 0, "fields":
            [["ingress_port", 9, false], ["egress_spec", 9, false], ["parser_error", 32, false], ["_padding", 6, false]]},
        {"name": "h_t", "id": 1, "fields": [["kind", 8, false], ["len", 8, false], ["options", "*"]], "max_length": 10}],
    "headers": [{"name": "standard_metadata", "id": 0, "header_type": "standard_metadata", "metadata": true},
        {"name": "h", "id": 1, "header_type": "h_t", "metadata": false}],
    "parsers": [{"name": "parser", "id": 0, "init_state": "start", "parse_states": [{"name": "start", "id": 0,
        "parser_ops": [{"op": "extract_VL", "parameters": [{"type": "regular", "value": "h"},
            {"type": "expression", "value": {"type": "expression", "value": {"op": "&",
                "left": {"type": "lookahead", "value": [8, 8]}, "right": {"type": "hexstr", "value": "0xff"}}}}]}],
        "transition_key": [], "transitions": [{"type": "default", "value": null, "next_state": null}]}]}],
    "actions": [{"name": "by_error", "id": 0, "runtime_data": [], "primitives": [{"op": "assign", "parameters":
        [{"type": "field", "value": ["standard_metadata", "egress_spec"]},
         {"type": "field", "value": ["standard_metadata", "parser_error"]}]}]}],
    "pipelines": [{"name": "ingress", "id": 0, "init_table": "call", "tables": [], "conditionals": [],
            "action_calls": [{"name": "call", "id": 0, "action_id": 0, "next_node": null}]},
        {"name": "egress", "id": 1, "init_table": null, "tables": [], "conditionals": []}],
    "deparsers": [{"name": "deparser", "id": 0, "order": ["h"]}]}"#;
    Bench::of(json.as_bytes())
}

#[test]
fn lengths_that_no_header_has_are_the_errors_of_bmv2() {
    let (packet_too_short, header_too_short, invalid_argument) = (1, 4, 6);
    let mut bench = by_error();
    for (bits, bytes, error) in [
        (0, 2, 0),
        (64, 10, 0),
        (64, 9, packet_too_short),
        (72, 11, header_too_short),
        (72, 10, packet_too_short),
        (248, 2000, header_too_short),
        (3, 60, invalid_argument),
        (65, 60, invalid_argument),
        (65, 3, invalid_argument),
    ] {
        let mut packet = vec![0; bytes];
        packet[1] = bits;
        let left = bench.send(1, &packet).outputs;
        assert_eq!(left[0].0, error, "{bits} bits of {bytes} bytes");
        assert_eq!(left[0].1, packet);
    }
}

/// A program whose ingress moves the options of one header into metadata, and into a header that goes out
/// instead. Packets with a first byte of 1 leave the metadata as it is.
fn by_metadata() -> Bench {
    let field = |header: &str, name: &str| format!(r#"{{"type": "field", "value": ["{header}", "{name}"]}}"#);
    let header = |name: &str| format!(r#"{{"type": "header", "value": "{name}"}}"#);
    let primitive = |op: &str, parameters: &[String]| {
        format!(r#"{{"op": "{op}", "parameters": [{}]}}"#, parameters.join(", "))
    };
    let keep = [primitive(
        "assign_VL",
        &[field("kept", "field"), field("h", "options")],
    )];
    let swap = [
        primitive("remove_header", &[header("h")]),
        primitive("add_header", &[header("g")]),
        primitive("assign_VL", &[field("g", "options"), field("kept", "field")]),
    ];
    let json = format!(
        r#"{{"header_types": [
        {{"name": "standard_metadata", "id": 0, "fields": [["ingress_port", 9, false], ["_padding", 7, false]]}},
        {{"name": "$varbit64", "id": 1, "fields": [["field", "*"]], "max_length": 8}},
        {{"name": "h_t", "id": 2, "fields": [["kind", 8, false], ["options", "*"]], "max_length": 9}}],
    "headers": [{{"name": "standard_metadata", "id": 0, "header_type": "standard_metadata", "metadata": true}},
        {{"name": "kept", "id": 1, "header_type": "$varbit64", "metadata": true}},
        {{"name": "h", "id": 2, "header_type": "h_t", "metadata": false}},
        {{"name": "g", "id": 3, "header_type": "h_t", "metadata": false}}],
    "parsers": [{{"name": "parser", "id": 0, "init_state": "start", "parse_states": [{{"name": "start", "id": 0,
        "parser_ops": [{{"op": "extract_VL", "parameters": [{{"type": "regular", "value": "h"}},
            {{"type": "expression", "value": {{"type": "expression", "value": {{"op": "&",
                "left": {{"type": "lookahead", "value": [0, 8]}}, "right": {{"type": "hexstr", "value": "0xf8"}}}}}}}}]}}],
        "transition_key": [], "transitions": [{{"type": "default", "value": null, "next_state": null}}]}}]}}],
    "actions": [{{"name": "keep", "id": 0, "runtime_data": [], "primitives": [{}]}},
        {{"name": "swap", "id": 1, "runtime_data": [], "primitives": [{}]}}],
    "pipelines": [{{"name": "ingress", "id": 0, "init_table": "if", "tables": [],
            "conditionals": [{{"name": "if", "id": 0, "expression": {{"type": "expression", "value": {{"op": "!=",
                "left": {}, "right": {{"type": "hexstr", "value": "0x01"}}}}}},
                "true_next": "keep", "false_next": "swap"}}],
            "action_calls": [{{"name": "keep", "id": 0, "action_id": 0, "next_node": "swap"}},
                {{"name": "swap", "id": 1, "action_id": 1, "next_node": null}}]}},
        {{"name": "egress", "id": 1, "init_table": null, "tables": [], "conditionals": []}}],
    "deparsers": [{{"name": "deparser", "id": 0, "order": ["h", "g"]}}]}}"#,
        keep.join(", "),
        swap.join(", "),
        field("h", "kind"),
    );
    Bench::of(json.as_bytes())
}

/// The compiler keeps variables of a type with variable length in metadata of their own.
#[test]
fn metadata_keeps_a_variable_field_for_one_packet() {
    let mut bench = by_metadata();
    for (bits, packet, left) in [
        (16, &[16, 0xAA, 0xBB, 0xCC][..], &[0, 0xAA, 0xBB, 0xCC][..]),
        (64, &[64, 1, 2, 3, 4, 5, 6, 7, 8], &[0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (0, &[0, 9], &[0, 9]),
        // Nothing of an earlier packet is there.
        (0, &[1, 9], &[0, 9]),
        (8, &[8, 0xEE, 0xDD], &[0, 0xEE, 0xDD]),
    ] {
        assert_eq!(bench.send(1, packet).outputs, [(0, left.to_vec())], "{bits} bits");
    }
}
