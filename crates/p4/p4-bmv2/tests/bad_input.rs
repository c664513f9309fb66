//! Input that is no program, or no sane one: each ends in an error that says where.

#![allow(clippy::unwrap_used)]

use p4_bmv2::{LoadError, load};
use std::path::Path;

fn file(name: &str, end: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name);
    std::fs::read_to_string(folder.join(format!("{name}.{end}"))).unwrap()
}

fn router() -> String {
    file("router", "json")
}

fn refused(json: &str) -> String {
    load(json.as_bytes(), None)
        .expect_err("it was accepted")
        .to_string()
}

/// The router with one thing changed; the error must have these words.
fn changed(from: &str, to: &str, words: &str) {
    let json = router();
    assert!(json.contains(from), "{from:?} is not in the program");
    let error = refused(&json.replacen(from, to, 1));
    assert!(error.contains(words), "{error}");
}

#[test]
fn truncated_text_is_refused_wherever_it_ends() {
    let json = router();
    let end = json.trim_end().len();
    for at in (0..end).step_by(97) {
        assert!(
            matches!(load(&json.as_bytes()[..at], None), Err(LoadError::Json(_))),
            "cut at {at}"
        );
    }
}

#[test]
fn what_is_no_json_says_line_and_column() {
    assert_eq!(
        refused("{\n  \"a\": 1,\n  nonsense }"),
        "no JSON: line 3, column 3: a member has no name"
    );
    assert!(refused("[1, 2").contains("the text ends too early"));
    assert!(refused("{} {}").contains("something follows the end"));
    assert!(refused("").contains("the text ends too early"));
    assert!(refused("[\"\\ud800x\"]").contains("half of a character"));
    assert!(refused("[01x]").contains("neither a comma nor the end"));
    assert!(refused("[]").contains("no JSON object"));
}

#[test]
fn a_member_that_is_there_twice_is_refused() {
    let error = refused(r#"{"pipelines": [], "pipelines": []}"#);
    assert!(error.contains("two members with one name"), "{error}");
}

/// What would take long if it were walked through once per element.
#[test]
fn numbers_that_could_take_long_are_refused() {
    let members = (0..5000)
        .map(|at| format!("\"m{at}\": 0"))
        .collect::<Vec<_>>()
        .join(",");
    assert!(refused(&format!("{{{members}}}")).contains("an object with too many members"));
    let actions = vec!["1"; 2000].join(",");
    changed(
        "\"action_ids\" : [",
        &format!("\"action_ids\" : [{actions}, "),
        "has too many actions",
    );
    let p4info = "actions { preamble { id: 1 name: \"a\" } }\n".repeat(9000);
    let error = load(router().as_bytes(), Some(p4info.as_bytes()))
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("too many objects"), "{error}");
    // Types times instances: more fields than memory should hold.
    let fields = vec!["[\"f\", 8, false]"; 30_000].join(",");
    let headers = (0..1000)
        .map(|at| {
            format!("{{\"name\": \"h{at}\", \"id\": {at}, \"header_type\": \"t\", \"metadata\": false}}")
        })
        .collect::<Vec<_>>()
        .join(",");
    let json = format!(
        "{{\"header_types\": [{{\"name\": \"t\", \"id\": 0, \"fields\": [{fields}]}}], \"headers\": [{headers}]}}"
    );
    assert!(refused(&json).contains("there are too many fields"));
}

#[test]
fn deep_nesting_is_refused_and_costs_no_stack() {
    let deep = "[".repeat(1_000_000);
    assert!(refused(&deep).contains("nested too deep"));
    let nested = |levels: usize| {
        let (open, close) = (
            r#"{"type": "expression", "value": {"op": "~", "left": null, "right": "#,
            "}}",
        );
        let leaf = r#"{"type": "hexstr", "value": "0x1"}"#;
        let expression = format!("{}{leaf}{}", open.repeat(levels), close.repeat(levels));
        let action = format!(
            r#"{{"name": "deep", "id": 999, "runtime_data": [], "primitives": [{{"op": "truncate", "parameters": [{expression}]}}]}}"#
        );
        router().replacen("\"actions\" : [", &format!("\"actions\" : [{action},"), 1)
    };
    assert!(load(nested(200).as_bytes(), None).is_ok());
    assert!(refused(&nested(260)).contains("nested too deep"));
}

#[test]
fn huge_text_is_refused_before_it_is_read() {
    let huge = vec![b' '; p4_bmv2::limits::TEXT + 1];
    assert!(matches!(load(&huge, None), Err(LoadError::TooLong(_))));
    assert!(matches!(
        load(router().as_bytes(), Some(&huge)),
        Err(LoadError::TooLong(_))
    ));
}

#[test]
fn other_versions_are_refused() {
    changed(
        "\"version\" : [2, 23]",
        "\"version\" : [3, 0]",
        "version 3.0 of BMv2's JSON is not supported",
    );
    changed(
        "\"version\" : [2, 23]",
        "\"version\" : \"2\"",
        "no pair of numbers",
    );
}

#[test]
fn duplicate_names_are_refused() {
    let json = router();
    let table = "\"name\" : \"RouterIngress.routes\"";
    assert!(json.contains(table));
    changed(table, "\"name\" : \"RouterIngress.router_mac\"", "two");
    changed(
        "\"name\" : \"ipv4\"",
        "\"name\" : \"ethernet\"",
        "there are two of kind header",
    );
}

#[test]
fn references_to_nothing_are_refused_with_their_path() {
    changed(
        "[\"ipv4\", \"ttl\"]",
        "[\"ipv4\", \"tll\"]",
        "has no field \"tll\"",
    );
    changed(
        "[\"ipv4\", \"ttl\"]",
        "[\"ipv9\", \"ttl\"]",
        "there is no header \"ipv9\"",
    );
    changed(
        "\"header_type\" : \"ipv4_t\"",
        "\"header_type\" : \"ipv5_t\"",
        "headers \"ipv4\"",
    );
    changed(
        "\"init_table\" : \"",
        "\"init_table\" : \"no_",
        "pipelines \"ingress\"",
    );
    changed(
        "\"init_state\" : \"start\"",
        "\"init_state\" : \"begin\"",
        "parsers, init_state",
    );
    changed(
        "\"calculation\" : \"calc\"",
        "\"calculation\" : \"calculus\"",
        "checksums",
    );
}

#[test]
fn unknown_words_are_refused() {
    changed(
        "\"op\" : \"assign\"",
        "\"op\" : \"assassinate\"",
        "this primitive is not supported",
    );
    changed(
        "\"op\" : \"extract\"",
        "\"op\" : \"distil\"",
        "this operation is not supported",
    );
    changed(
        "\"match_type\" : \"lpm\"",
        "\"match_type\" : \"luck\"",
        "to match by \"luck\"",
    );
    changed(
        "\"algo\" : \"csum16\"",
        "\"algo\" : \"guess\"",
        "the algorithm \"guess\"",
    );
    changed(
        "\"name\" : \"egress\"",
        "\"name\" : \"egreet\"",
        "an architecture other than v1model",
    );
}

#[test]
fn other_architectures_are_named() {
    for (from, to, words) in [
        (
            "\"name\" : \"parser\"",
            "\"name\" : \"ingress_parser\"",
            "architecture PSA",
        ),
        (
            "\"name\" : \"scalars\"",
            "\"name\" : \"psa_ingress_input_metadata\"",
            "architecture PSA",
        ),
        (
            "\"name\" : \"ingress\"",
            "\"name\" : \"main_control\"",
            "architecture PNA",
        ),
        (
            "\"name\" : \"scalars\"",
            "\"name\" : \"pna_main_input_metadata\"",
            "architecture PNA",
        ),
    ] {
        changed(from, to, &format!("program: {words} is not supported"));
    }
}

#[test]
fn a_pipeline_that_is_missing_is_named() {
    for (there, missing) in [("ingress", "egress"), ("egress", "ingress")] {
        let json = format!(r#"{{"pipelines": [{{"name": "{there}", "id": 0, "init_table": null}}]}}"#);
        assert_eq!(
            refused(&json),
            format!("pipelines: there is no pipeline {missing:?}")
        );
    }
}

/// A program's users print the chain of an error's sources.
#[test]
fn no_source_repeats_the_error() {
    for json in [
        "{",
        "{}",
        "[]",
        &router().replacen("\"assign\"", "\"assassinate\"", 1),
    ] {
        let error = load(json.as_bytes(), None).expect_err("it was accepted");
        assert!(std::error::Error::source(&error).is_none(), "{error}");
    }
}

/// A control that comes back to where it was.
#[test]
fn cyclic_control_is_refused() {
    let json = router();
    let first = json
        .split("\"init_table\" : \"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let cyclic = json.replacen(
        "\"base_default_next\" : null",
        &format!("\"base_default_next\" : \"{first}\""),
        1,
    );
    assert_ne!(json, cyclic);
    let error = refused(&cyclic);
    assert!(error.contains("the control has a cycle"), "{error}");
}

#[test]
fn jumps_to_nothing_are_refused() {
    let action = r#"{"name": "loop", "id": 999, "runtime_data": [], "primitives": [
        {"op": "exit", "parameters": []}, {"op": "_jump", "parameters": [{"type": "hexstr", "value": "0x9"}]}]}"#;
    let json = router().replacen("\"actions\" : [", &format!("\"actions\" : [{action},"), 1);
    assert!(refused(&json).contains("a jump to primitive 9, which does not exist"));
    let back = json.replacen("\"value\": \"0x9\"", "\"value\": \"0x0\"", 1);
    assert!(load(back.as_bytes(), None).unwrap().bounds().loop_turns > 0);
}

#[test]
fn p4info_that_says_something_else_is_refused() {
    let (json, p4info) = (router(), file("router", "p4info.txtpb"));
    let wrong = |from: &str, to: &str, words: &str| {
        assert!(p4info.contains(from), "{from:?}");
        let changed = p4info.replacen(from, to, 1);
        let error = load(json.as_bytes(), Some(changed.as_bytes()))
            .expect_err(words)
            .to_string();
        assert!(error.starts_with("P4Info") && error.contains(words), "{error}");
    };
    wrong("bitwidth: 48", "bitwidth: 47", "47 bits, the program has 48");
    wrong(
        "match_type: LPM",
        "match_type: EXACT",
        "Exact, the program has Lpm",
    );
    wrong("match_type: LPM", "match_type: MAYBE", "kind of match \"MAYBE\"");
    wrong("tables {", "tables { { }", "neither a name nor a number");
    wrong("tables {", "tables {} tables {", "an object without a preamble");
    let other = file("l2_switch", "p4info.txtpb");
    let error = load(json.as_bytes(), Some(other.as_bytes()))
        .expect_err("of another program")
        .to_string();
    assert!(
        error.contains("none of the program's tables and actions"),
        "{error}"
    );
    for at in (0..p4info.trim_end().len()).step_by(61) {
        // Cut where an object ends, it is shorter P4Info; elsewhere it is none. Neither may do harm.
        let _ = load(json.as_bytes(), Some(&p4info.as_bytes()[..at]));
    }
}

/// P4_14: the length of a variable field is an expression of the type. `local` is a field of it by position.
#[test]
fn lengths_of_header_types_look_ahead() {
    let program = |length: &str| {
        format!(
            r#"{{"header_types": [{{"name": "h_t", "id": 0, "fields": [["kind", 8], ["len", 8], ["options", "*"]],
                "max_length": 42, "length_exp": {length}}}],
            "headers": [{{"name": "h", "id": 0, "header_type": "h_t", "metadata": false}}],
            "parsers": [{{"name": "parser", "id": 0, "init_state": "start", "parse_states": [{{"name": "start", "id": 0,
                "parser_ops": [{{"op": "extract", "parameters": [{{"type": "regular", "value": "h"}}]}}],
                "transition_key": [], "transitions": [{{"type": "default", "value": null, "next_state": null}}]}}]}}],
            "pipelines": [{{"name": "ingress", "id": 0, "init_table": null, "tables": [], "conditionals": []}},
                {{"name": "egress", "id": 1, "init_table": null, "tables": [], "conditionals": []}}]}}"#
        )
    };
    let product = |field: u8| {
        format!(
            r#"{{"type": "expression", "value": {{"op": "*", "left": {{"type": "local", "value": {field}}},
                "right": {{"type": "hexstr", "value": "0x8"}}}}}}"#
        )
    };
    let loaded = load(program(&product(1)).as_bytes(), None).unwrap();
    assert!(
        loaded
            .exprs
            .iter()
            .any(|expr| expr.kind == p4_ir::ExprKind::Lookahead { offset: 8 })
    );
    assert_eq!(loaded.bounds().header_bytes_read, 42);
    assert!(refused(&program(&product(2))).contains("depends on what follows it"));
    assert!(refused(&program(&product(3))).contains("there is no such field"));
    assert!(refused(&program("null")).contains("length nothing says"));
    assert!(refused(&program("null").replace("42", "1")).contains("\"max_length\" of 1 bytes"));
}
