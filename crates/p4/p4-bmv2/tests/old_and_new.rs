//! Forms that only some compilers write, or that P4Info has and the JSON has not.

#![allow(clippy::unwrap_used)]

use p4_bmv2::load;
use p4_ir::{Checked, Op, ParserOp};
use std::path::Path;

fn file(end: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/router");
    std::fs::read_to_string(folder.join(format!("router.{end}"))).unwrap()
}

fn with(from: &str, to: &str) -> String {
    let json = file("json");
    assert!(json.contains(from), "{from:?} is not in the program");
    json.replacen(from, to, 1)
}

fn loaded(json: &str) -> Checked {
    load(json.as_bytes(), None).unwrap_or_else(|error| panic!("{error}"))
}

fn with_primitives(primitives: &str) -> String {
    let action = format!(
        r#""actions" : [{{"name": "more", "id": 999, "runtime_data": [], "primitives": [{primitives}]}},"#
    );
    with("\"actions\" : [", &action)
}

/// For a direct call with constant arguments, the compiler adds an action of the same name that has no
/// parameters.
#[test]
fn of_two_actions_with_one_name_p4info_means_the_one_with_its_parameters() {
    let second =
        r#""actions" : [{"name": "RouterIngress.via", "id": 999, "runtime_data": [], "primitives": []},"#;
    let json = with("\"actions\" : [", second);
    let program = load(json.as_bytes(), Some(file("p4info.txtpb").as_bytes())).unwrap();
    let named = |action: &&p4_ir::Action| action.identity.name == "RouterIngress.via";
    for action in program.actions.iter().filter(named) {
        let known = action.identity.id.is_some();
        assert_eq!(known, action.parameters.len() == 1, "{action:?}");
    }
    assert_eq!(program.actions.iter().filter(named).count(), 2);
    let other = with("\"bitwidth\" : 16", "\"bitwidth\" : 17");
    assert!(load(other.as_bytes(), Some(file("p4info.txtpb").as_bytes())).is_err());
}

/// The compiler leaves objects that nothing uses out of the JSON; P4Info has them.
#[test]
fn unused_objects_of_p4info_are_ignored() {
    let with = |kind: &str| {
        let more = format!("{kind} {{ preamble {{ id: 7 name: \"unused\" alias: \"unused\" }} }}\n");
        load(
            file("json").as_bytes(),
            Some((more + &file("p4info.txtpb")).as_bytes()),
        )
    };
    for kind in ["action_profiles", "digests", "direct_counters", "direct_meters"] {
        assert!(with(kind).is_ok(), "{kind}");
    }
    for kind in ["counters", "registers", "value_sets"] {
        let error = with(kind).expect_err(kind).to_string();
        assert!(error.contains("the program has none of this name"), "{error}");
    }
}

/// Compilers of 2017 made headers valid in the parser by writing the hidden field.
#[test]
fn the_hidden_field_of_validity_can_be_written() {
    let set = |value: &str| {
        let op = format!(
            r#""parser_ops" : [{{"op": "set", "parameters": [{{"type": "field", "value": ["ipv4", "$valid$"]}}, {value}]}},"#
        );
        with("\"parser_ops\" : [", &op)
    };
    let first = |json: &str| loaded(json).parser.states[0].ops[0].clone();
    let constant = |value: u8| set(&format!(r#"{{"type": "hexstr", "value": "0x{value}"}}"#));
    assert!(matches!(first(&constant(1)), ParserOp::Do(Op::SetValid(_))));
    assert!(matches!(first(&constant(0)), ParserOp::Do(Op::SetInvalid(_))));
    let field = set(r#"{"type": "field", "value": ["ethernet", "kind"]}"#);
    let error = load(field.as_bytes(), None).expect_err("a field").to_string();
    assert!(
        error.contains("a validity that is no constant is not supported"),
        "{error}"
    );
    // Metadata is always valid.
    let metadata = constant(0).replacen("[\"ipv4\", \"$valid$\"]", "[\"scalars\", \"$valid$\"]", 1);
    assert!(matches!(first(&metadata), ParserOp::Extract(_)));
}

#[test]
fn log_msg_needs_no_arguments() {
    let text = r#"{"type": "string", "value": "here"}"#;
    for more in [
        "",
        r#", {"type": "parameters_vector", "value": []}"#,
        r#", {"type": "parameters_vector", "value": null}"#,
        r#", {"type": "parameters_vector"}"#,
    ] {
        let json = with_primitives(&format!(r#"{{"op": "log_msg", "parameters": [{text}{more}]}}"#));
        let action = loaded(&json).actions[0].clone();
        assert_eq!(action.ops, [Op::Log("here".to_owned(), Vec::new())]);
    }
}
