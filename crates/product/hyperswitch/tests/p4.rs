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
fn check_says_how_often_a_verdict_is_found_again() {
    let shown = text(&hyperswitch(&["p4", "check", &program("router", "json")]).stdout);
    for line in [
        "verified checksums are checked for each packet and need no bits of a key",
        "found again: for 99 % of 2048 packets of a model's 64 TCP flows",
    ] {
        assert!(shown.contains(line), "{line:?} is not in\n{shown}");
    }
    let field = |name: &str| {
        shown
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap()
            .to_owned()
    };
    assert!(field("ipv4.id ").ends_with("all, for a checksum"), "{shown}");
    assert!(field("ipv4.dst ").ends_with("  all"), "{shown}");
    // The same frame again and again, and frames that differ in what decides.
    let folder = tempfile::tempdir().unwrap();
    let frames = |of: &dyn Fn(u8) -> [u8; 14]| {
        let mut file = Vec::new();
        for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
            file.extend(word.to_le_bytes());
        }
        for number in 0..100u8 {
            for word in [1, 0, 14, 14u32] {
                file.extend(word.to_le_bytes());
            }
            file.extend(of(number));
        }
        let path = folder.path().join("in.pcap");
        std::fs::write(&path, file).unwrap();
        format!("1={}", path.display())
    };
    let percent = |pcap: &str| {
        let output = hyperswitch(&[
            "p4",
            "check",
            &program("router", "json"),
            "--pcap",
            pcap,
            "--json",
        ]);
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        shown["found_again"]["percent"].as_u64().unwrap()
    };
    assert_eq!(percent(&frames(&|_| [2; 14])), 99);
    assert_eq!(percent(&frames(&|number| [number; 14])), 0);
}

/// On a path without an action that says where, the packet leaves by port 0.
#[test]
fn check_warns_of_paths_that_never_say_where_to() {
    let router = program("router", "json");
    let warnings = |file: &str| {
        let output = hyperswitch(&["p4", "check", file, "--json"]);
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        shown["warnings"].as_array().unwrap().clone()
    };
    assert!(warnings(&router).is_empty(), "{:?}", warnings(&router));
    // Where the router drops, nothing happens.
    let folder = tempfile::tempdir().unwrap();
    let silent = folder.path().join("silent.json").to_str().unwrap().to_owned();
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&router).unwrap()).unwrap();
    for action in json["actions"].as_array_mut().unwrap() {
        let primitives = action["primitives"].as_array_mut().unwrap();
        primitives.retain(|primitive| primitive["op"] != "mark_to_drop");
    }
    std::fs::write(&silent, json.to_string()).unwrap();
    let found = warnings(&silent);
    let warning = found[0].as_str().unwrap();
    assert!(
        warning.contains("it leaves by port 0\n  RouterIngress.router_mac: discard\n  "),
        "{warning}"
    );
    assert!(warning.ends_with(": false"), "{warning}");
    let shown = text(&hyperswitch(&["p4", "check", &silent]).stdout);
    assert!(shown.contains("\nWARNINGS\n"), "{shown}");
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
        "verified checksums",
        "updated checksums",
        "deparser",
        "emit",
    ] {
        assert!(svg.contains(&title(name)), "{name} is not in the picture");
    }
    let (open, close) = (svg.matches("<g ").count(), svg.matches("</g>").count());
    assert_eq!((open, close), (6, 6));
    // An outline that covers its text: not every renderer knows `paint-order`.
    assert!(!svg.contains("paint-order"));
    let lines = svg.lines().collect::<Vec<_>>();
    let outlines = lines.iter().filter(|line| line.starts_with("<text class=\"o\""));
    let pairs = lines
        .windows(2)
        .filter(|pair| pair[0].replace("\"o\"", "\"l\"") == pair[1]);
    let (outlines, pairs) = (outlines.count(), pairs.count());
    assert!(
        outlines > 5 && outlines == pairs,
        "{outlines} outlines, {pairs} under their texts"
    );
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
