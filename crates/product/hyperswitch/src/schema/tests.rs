use super::{FILE, VERSION};
use crate::{manual, output, ovs, p4, verbs};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

type Output = fn(&mut SchemaGenerator) -> schemars::Schema;

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> schemars::Schema {
    generator.subschema_for::<T>()
}

/// What each verb prints. Of verbs that go on until interrupted, each line is one.
const OUTPUTS: &[(&str, Output)] = &[
    ("apply", of::<management::ReloadSummary>),
    ("capture", of::<verbs::outputs::Captured>),
    ("check", of::<verbs::outputs::Checked>),
    ("config show", of::<management::Config>),
    ("confirm", of::<output::Done>),
    ("error", of::<management::ErrorReport>),
    ("events", of::<Vec<management::Event>>),
    ("events --follow", of::<management::Event>),
    ("flow flush", of::<output::Done>),
    ("flow list", of::<Vec<management::FlowInfo>>),
    ("mac flush", of::<output::Done>),
    ("mac list", of::<Vec<management::MacInfo>>),
    ("ovs plug", of::<ovs::outputs::Plugged>),
    ("ovs start", of::<ovs::outputs::Started>),
    ("ovs status", of::<ovs::outputs::Status>),
    ("ovs stop", of::<ovs::outputs::Stopped>),
    ("ovs trace", of::<ovs::outputs::Trace>),
    ("p4 check", of::<p4::outputs::Summary>),
    ("p4 counter list", of::<Vec<p4::outputs::CounterRow>>),
    ("p4 counter set", of::<output::Done>),
    ("p4 entry add", of::<output::Done>),
    ("p4 entry delete", of::<output::Done>),
    ("p4 entry list", of::<Vec<p4::outputs::EntryRow>>),
    ("p4 entry set", of::<output::Done>),
    ("p4 export", of::<output::Done>),
    ("p4 group add", of::<output::Done>),
    ("p4 group add-member", of::<output::Done>),
    ("p4 group list", of::<Vec<p4::outputs::ProfileRow>>),
    ("p4 group remove", of::<output::Done>),
    ("p4 group remove-member", of::<output::Done>),
    ("p4 group set", of::<output::Done>),
    ("p4 group set-member", of::<output::Done>),
    ("p4 import", of::<output::Done>),
    ("p4 stage add", of::<output::Done>),
    ("p4 stage move", of::<output::Done>),
    ("p4 stage remove", of::<output::Done>),
    ("p4 stage replace", of::<output::Done>),
    ("p4 stage show", of::<Vec<p4::outputs::StageRow>>),
    ("p4 link add", of::<output::Done>),
    ("p4 link remove", of::<output::Done>),
    ("p4 link show", of::<Vec<p4::outputs::LinkRow>>),
    ("p4 load", of::<output::Done>),
    ("p4 meter list", of::<Vec<p4::outputs::MeterRow>>),
    ("p4 meter set", of::<output::Done>),
    ("p4 port remove", of::<output::Done>),
    ("p4 port set", of::<output::Done>),
    ("p4 port show", of::<Vec<p4::outputs::PortRow>>),
    ("p4 register list", of::<Vec<p4::outputs::RegisterRow>>),
    ("p4 register set", of::<output::Done>),
    ("p4 rollback", of::<output::Done>),
    ("p4 run", of::<p4::outputs::Run>),
    ("p4 show", of::<Vec<management::P4Switch>>),
    ("p4 test", of::<Vec<p4::outputs::TestRow>>),
    ("p4 unload", of::<output::Done>),
    ("policy check", of::<verbs::outputs::PoliciesChecked>),
    ("policy diff", of::<Vec<verbs::outputs::PolicyDifference>>),
    ("policy explain", of::<verbs::outputs::Explained<'static>>),
    ("policy list", of::<Vec<management::PolicyInfo>>),
    ("policy log", of::<Vec<management::PolicyRecord>>),
    ("policy log --follow", of::<management::PolicyRecord>),
    ("policy show", of::<management::PolicyRules>),
    ("port add", of::<output::Done>),
    ("port del", of::<output::Done>),
    ("port list", of::<Vec<management::PortInfo>>),
    ("port set", of::<output::Done>),
    ("port show", of::<Vec<management::PortInfo>>),
    ("reload", of::<management::ReloadSummary>),
    ("stats", of::<management::Stats>),
    ("stats --watch", of::<verbs::outputs::Watched<'static>>),
    ("stats placement", of::<control_protocol::work::WorkReport>),
    ("status", of::<management::Status>),
    ("status --check", of::<verbs::outputs::Looked>),
    (
        "status without control process",
        of::<verbs::outputs::WithoutControl>,
    ),
    ("switch add", of::<output::Done>),
    ("switch del", of::<output::Done>),
    ("switch list", of::<Vec<management::SwitchInfo>>),
    ("trace", of::<management::TraceReport>),
    ("version", of::<verbs::outputs::Versions>),
];

/// Verbs that print no JSON of their own.
const WITHOUT: [&str; 5] = ["p4 graph", "report", "run", "schema", "top"];

fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let outputs: Map<String, Value> = OUTPUTS
        .iter()
        .map(|(verb, of)| ((*verb).to_owned(), of(&mut generator).to_value()))
        .collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What hyperswitch --json prints",
        "description": "A schema for each verb. Readers take keys that they do not know as if they were not there.",
        "version": VERSION,
        "outputs": outputs,
        "$defs": generator.take_definitions(true),
    })
}

/// What readers of a schema may rely on, as lines: keys with their types, and keys that are always there.
fn promises(schema: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    walk(schema, "", &mut found);
    found
}

fn walk(value: &Value, place: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(keys) => {
            for (key, value) in keys {
                match (key.as_str(), value) {
                    (
                        "description" | "title" | "minimum" | "maximum",
                        Value::String(_) | Value::Number(_),
                    ) => {}
                    ("default", _) => {}
                    ("type", kinds) => drop(found.insert(format!("{place} is {kinds}"))),
                    // Readers bear more cases, and find keys that were there sometimes always.
                    ("required" | "enum" | "oneOf" | "anyOf", Value::Array(cases)) => {
                        cases
                            .iter()
                            .for_each(|case| walk(case, &format!("{place}/{key}"), found));
                    }
                    _ => walk(value, &format!("{place}/{key}"), found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| walk(value, place, found)),
        leaf => drop(found.insert(format!("{place} = {leaf}"))),
    }
}

#[test]
fn the_file_is_what_the_types_say_and_breaks_no_promise() {
    let made = schema();
    let text = serde_json::to_string_pretty(&made).unwrap() + "\n";
    if std::env::var_os("HYPERSWITCH_UPDATE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/schema.json");
        let before: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let is_same_version = before["version"] == made["version"];
        let (before, now) = (promises(&before), promises(&made));
        let broken: Vec<_> = before.difference(&now).collect();
        assert!(
            broken.is_empty() || !is_same_version,
            "VERSION in schema.rs must grow, since these go away or change: {broken:#?}"
        );
        std::fs::write(path, text).unwrap();
    } else {
        assert!(
            text == FILE,
            "docs/schema.json is not what the types say: HYPERSWITCH_UPDATE=1 writes it"
        );
    }
}

#[test]
fn what_readers_rely_on_is_seen_to_change() {
    let one = json!({ "a": { "type": "integer", "description": "x" }, "required": ["a", "b"] });
    let added = json!({ "a": { "type": "integer" }, "c": { "type": "null" }, "required": ["a", "b", "c"] });
    assert!(promises(&one).is_subset(&promises(&added)));
    for broken in [
        json!({ "a": { "type": "string" }, "required": ["a", "b"] }),
        json!({ "a": { "type": "integer" }, "required": ["a"] }),
        json!({ "required": ["a", "b"] }),
    ] {
        assert!(!promises(&one).is_subset(&promises(&broken)), "{broken}");
    }
}

#[test]
fn every_verb_has_a_schema() {
    fn leaves(command: &clap::Command, path: &str, found: &mut BTreeSet<String>) {
        for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
            let name = format!("{path} {}", verb.get_name()).trim().to_owned();
            let runs_alone = !verb.is_subcommand_required_set();
            if runs_alone && (verb.get_subcommands().next().is_none() || name == "stats") {
                found.insert(name.clone());
            }
            leaves(verb, &name, found);
        }
    }
    let mut verbs = BTreeSet::new();
    leaves(&manual::command(), "", &mut verbs);
    let known = OUTPUTS.iter().map(|(verb, _)| (*verb).to_owned());
    let known: BTreeSet<String> = known.chain(WITHOUT.map(str::to_owned)).collect();
    let missing: Vec<_> = verbs.difference(&known).collect();
    assert!(missing.is_empty(), "OUTPUTS lacks {missing:?}");
    let further: Vec<_> = known.difference(&verbs).collect();
    let modes = [
        "error",
        "events --follow",
        "policy log --follow",
        "stats --watch",
        "status --check",
        "status without control process",
    ];
    assert_eq!(further, modes.iter().collect::<Vec<_>>());
}
