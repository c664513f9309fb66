//! The verbs for P4 programs, run as users run them.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn hyperswitch(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hyperswitch"))
        .args(arguments)
        .output()
        .unwrap()
}

fn program(name: &str, end: &str) -> String {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/p4-bmv2/programs");
    let path: PathBuf = programs.join(name).join(format!("{name}.{end}"));
    path.to_str().unwrap().to_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn check_shows_what_there_is_to_know() {
    let output = hyperswitch(&["p4", "check", &program("router", "json")]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for line in [
        "router.p4: a sound program for v1model",
        "bytes of the packet read            34     2048",
        "RouterIngress.routes      hdr.ipv4.dst 32 lpm",
        "checksum  ipv4.csum  csum16, updated",
        "ethernet.dst                        48  all",
        "fields: ethernet.dst, ethernet.src, ipv4.ttl, ipv4.csum",
        "yes: they follow from the bits above",
    ] {
        assert!(shown.contains(line), "{line:?} is not in\n{shown}");
    }
}

#[test]
fn check_names_why_verdicts_cannot_be_cached() {
    let (json, p4info) = (
        program("stateful_firewall", "json"),
        program("stateful_firewall", "p4info.txtpb"),
    );
    let shown = text(&hyperswitch(&["p4", "check", &json, "--p4info", &p4info]).stdout);
    assert!(
        shown.contains("no, the program\n  reads or writes registers (action"),
        "{shown}"
    );
}

#[test]
fn check_as_json_has_the_same() {
    let (json, p4info) = (program("router", "json"), program("router", "p4info.txtpb"));
    let output = hyperswitch(&["p4", "check", &json, "--p4info", &p4info, "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["bounds"]["header_bytes_read"], 34);
    assert_eq!(shown["cacheable"], true);
    assert_eq!(shown["tables"].as_array().unwrap().len(), 4);
    assert_eq!(shown["tables"][1]["keys"][0]["kind"], "lpm");
    assert!(shown["tables"][0]["id"].as_u64().is_some());
}

#[test]
fn refused_programs_are_named_with_the_place_and_exit_1() {
    let malicious = program("malicious", "").replace("malicious.", "parser_spin/parser_spin.json");
    let folder = tempfile::tempdir().unwrap();
    let none = folder.path().join("none.json").to_str().unwrap().to_owned();
    let broken = folder.path().join("broken.json").to_str().unwrap().to_owned();
    std::fs::write(&broken, "{\"pipelines\": [").unwrap();
    let other = program("l2_switch", "p4info.txtpb");
    let router = program("router", "json");
    for (arguments, words) in [
        (
            vec![malicious.as_str()],
            "parser state \"spin\": the parser loops for ever",
        ),
        (vec![none.as_str()], "cannot read"),
        (
            vec![broken.as_str()],
            "no JSON: line 1, column 16: the text ends too early",
        ),
        (
            vec![router.as_str(), "--p4info", other.as_str()],
            "none of the program's tables and actions",
        ),
        (vec!["/dev/zero"], "bytes are more than"),
    ] {
        let output = hyperswitch(&[&["p4", "check"], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let error = text(&output.stderr);
        assert!(error.contains(words) && output.stdout.is_empty(), "{error}");
        assert!(error.contains(arguments[0]), "{error} does not name the file");
    }
}

#[test]
fn graph_is_a_picture_of_all_parts() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("graph.svg");
    let json = program("kitchen_sink", "json");
    let output = hyperswitch(&["p4", "graph", &json, "--out", out.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let svg = std::fs::read_to_string(&out).unwrap();
    let title = |name: &str| format!(">{name}</text>");
    for name in [
        "parser",
        "ingress",
        "egress",
        "after_options",
        "extract vlans.next",
        "prefixes",
        "operations",
    ] {
        assert!(svg.contains(&title(name)), "{name} is not in the picture");
    }
    let (open, close) = (svg.matches("<g ").count(), svg.matches("</g>").count());
    assert_eq!((open, close), (3, 3));
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    // Names come from programs: none may end a text or begin an element.
    let hostile = std::fs::read_to_string(&json)
        .unwrap()
        .replace("\"after_options\"", "\"<b>&amp\"");
    let file = folder.path().join("hostile.json");
    std::fs::write(&file, hostile).unwrap();
    let svg = text(&hyperswitch(&["p4", "graph", file.to_str().unwrap()]).stdout);
    assert!(
        svg.contains("&lt;b&gt;&amp;amp</text>") && !svg.contains("<b>"),
        "{svg}"
    );
}

/// The largest programs that there are, if they lie beside the repository.
#[test]
fn large_programs_can_be_checked_and_drawn() {
    let large = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/p4/large");
    for entry in std::fs::read_dir(large).into_iter().flatten() {
        let file = entry.unwrap().path().join("program.json");
        if file.exists() {
            for verb in ["check", "graph"] {
                let output = hyperswitch(&["p4", verb, file.to_str().unwrap()]);
                assert!(
                    output.status.success(),
                    "{}: {}",
                    file.display(),
                    text(&output.stderr)
                );
            }
        }
    }
}
