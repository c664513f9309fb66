//! Variable fields: lengths that no header can have.

#![allow(clippy::unwrap_used)]

mod common;

use common::Bench;

/// A program whose parser extracts a header of 2 to 10 bytes with the length in its second byte, in bits, and whose
/// ingress sends the packet to the port with the number of the parser's error.
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
