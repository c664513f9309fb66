//! `hyperswitch p4 run`, run as users run it: packets, entries, traces, and files that are none of these.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../p4/p4-bmv2/programs/{name}/{name}.json"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A directory with files of a test.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Place(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, contents).unwrap();
        path
    }

    /// Runs a program; further arguments are split at blanks, `@NAME` is a file of this place.
    fn run(&self, name: &str, arguments: &str) -> Output {
        self.run_file(&program(name), arguments)
    }

    fn run_file(&self, program: &Path, arguments: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hyperswitch"));
        command
            .args(["p4", "run"])
            .arg(program)
            .arg("--out")
            .arg(self.path("out"));
        for argument in arguments.split_whitespace() {
            command.arg(argument.replace('@', &format!("{}/", self.0.path().display())));
        }
        command.output().unwrap()
    }

    fn left(&self, port: u32) -> Option<Vec<Vec<u8>>> {
        let file = std::fs::read(self.path("out").join(format!("{port}.pcap"))).ok()?;
        let mut rest = &file[24..];
        let mut packets = Vec::new();
        while !rest.is_empty() {
            let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
            packets.push(rest[16..16 + length].to_vec());
            rest = &rest[16 + length..];
        }
        Some(packets)
    }
}

/// A pcap file with packets one second apart.
fn pcap(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut words = |words: &[u32], bytes: &[u8]| {
        words.iter().for_each(|word| file.extend(word.to_le_bytes()));
        file.extend(bytes);
    };
    words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1], &[]);
    for (number, packet) in packets.iter().enumerate() {
        let length = packet.len() as u32;
        words(&[number as u32 + 1_700_000_000, 0, length, length], packet);
    }
    file
}

fn ethernet(to: u64, from: u64) -> Vec<u8> {
    let mut packet = vec![0xEE; 60];
    packet[..6].copy_from_slice(&to.to_be_bytes()[2..]);
    packet[6..12].copy_from_slice(&from.to_be_bytes()[2..]);
    packet[12..14].copy_from_slice(&[0x88, 0xB7]);
    packet
}

const STATIONS: &str = "add dmac hdr.ethernet.dst:0x020000000002 forward(port:2)\n\
                        add dmac hdr.ethernet.dst:0x020000000003 forward(port:3)\n";

const RUNTIME: &str = r#"{
  "target": "bmv2", "p4info": "build/l2.p4info.txtpb", "bmv2_json": "build/l2.json",
  "table_entries": [
    {"table": "dmac", "match": {"hdr.ethernet.dst": "02:00:00:00:00:02"},
     "action_name": "forward", "action_params": {"port": 2}},
    {"table": "dmac", "default_action": true, "action_name": "flood", "action_params": {}}
  ],
  "multicast_group_entries": [
    {"multicast_group_id": 2, "replicas": [{"egress_port": 4, "instance": 1}, {"egress_port": 5, "instance": 1}]}
  ]
}"#;

#[test]
fn packets_leave_as_capture_files() {
    let place = Place::new();
    let packets = [
        ethernet(0x0200_0000_0002, 1),
        ethernet(0x0200_0000_0003, 1),
        ethernet(0x0200_0000_0002, 2),
    ];
    place.file("in.pcap", pcap(&packets));
    place.file("entries.stf", STATIONS);
    let output = place.run("l2_switch", "--pcap 1=@in.pcap --entries @entries.stf");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(place.left(2).unwrap(), [packets[0].clone(), packets[2].clone()]);
    assert_eq!(place.left(3).unwrap(), [packets[1].clone()]);
    let summary = text(&output.stdout);
    for line in [
        "3 packets ran",
        "2  left by port 2",
        "1  left by port 3",
        "digests",
    ] {
        assert!(summary.contains(line), "{line}: {summary}");
    }
}

#[test]
fn entries_of_the_tutorials_and_json_for_programs() {
    let place = Place::new();
    place.file(
        "one.pcap",
        pcap(&[ethernet(0x0200_0000_0002, 1), ethernet(0x0200_0000_0009, 1)]),
    );
    place.file("runtime.json", RUNTIME);
    let output = place.run("l2_switch", "--json --pcap 1=@one.pcap --entries @runtime.json");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["packets"], 2);
    assert_eq!(summary["outputs"], serde_json::json!({"2": 1, "4": 1, "5": 1}));
    assert_eq!(place.left(5).unwrap().len(), 1);
}

#[test]
fn a_trace_tells_states_headers_tables_and_fate() {
    let place = Place::new();
    place.file("in.pcap", pcap(&[ethernet(0x0200_0000_0002, 1)]));
    place.file("entries.stf", STATIONS);
    let output = place.run("l2_switch", "--trace --pcap 1=@in.pcap --entries @entries.stf");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let trace = text(&output.stdout);
    let lines = [
        "packet 1 by port 1, 60 bytes",
        "parser",
        "ethernet  bytes 0-13",
        "02:00:00:00:00:02",
        "accept",
        "ingress",
        "dmac",
        "(exact) = 02:00:00:00:00:02",
        "hit: ",
        "forward(port = 2)",
        "egress_spec  0 -> 2",
        "to port 2",
        "leaves by port 2, 60 bytes: 020000000002",
    ];
    let mut rest = &trace[..];
    for line in lines {
        let at = rest
            .find(line)
            .unwrap_or_else(|| panic!("{line} is missing or too early in\n{trace}"));
        rest = &rest[at..];
    }
}

#[test]
fn scripts_send_their_own_packets() {
    let place = Place::new();
    let script = format!("{STATIONS}packet 1 020000000002 020000000001 88b7 00\nexpect 2\n");
    place.file("test.stf", script);
    let output = place.run("l2_switch", "--entries @test.stf");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(place.left(2).unwrap().len(), 1);
}

/// The packet tests of the project's programs hold under `p4 run` as well.
#[test]
fn expectations_of_scripts_are_compared() {
    let place = Place::new();
    for name in ["router", "firewall", "l2_switch", "kitchen_sink", "multicast_l2"] {
        let script = program(name).with_file_name("test.stf");
        let output = place.run(name, &format!("--entries {}", script.display()));
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
    }
    let packet = "packet 1 020000000002 020000000001 88b7 00";
    let cases = [
        ("expect 2 ff", "test.stf: line 4: port 2, packet 1: expected ff"),
        (
            "expect 2\nexpect 2",
            "test.stf: line 5: port 2, packet 2: expected any packet, nothing left",
        ),
        (
            "expect 3",
            "test.stf: line 4: port 3, packet 1: expected any packet, nothing left",
        ),
    ];
    for (expected, words) in cases {
        place.file("test.stf", format!("{STATIONS}{packet}\n{expected}\n"));
        let output = place.run("l2_switch", "--entries @test.stf");
        assert_eq!(output.status.code(), Some(1), "{expected}");
        let error = text(&output.stderr);
        assert!(error.contains(words), "{words}: {error}");
        // The run is shown all the same.
        assert!(text(&output.stdout).contains("1  left by port 2"));
    }
    // Packets of captures are compared as well; those of a later script with expectations are not.
    place.file(
        "in.pcap",
        pcap(&[ethernet(0x0200_0000_0002, 1), ethernet(0x0200_0000_0002, 1)]),
    );
    place.file("test.stf", format!("{STATIONS}{packet}\nexpect 2\n"));
    place.file("later.stf", "expect 2\nexpect 2\n");
    let output = place.run(
        "l2_switch",
        "--pcap 1=@in.pcap --entries @test.stf --entries @later.stf",
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = place.run("l2_switch", "--pcap 1=@in.pcap --entries @test.stf");
    let words = "port 2: 3 packets left, 1 were expected";
    assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
}

#[test]
fn counters_registers_and_digests_are_shown_at_the_end() {
    let place = Place::new();
    let packet = "packet 1 020000000002 0200000000aa 88b7 00\n";
    place.file("l2.stf", format!("{STATIONS}{packet}"));
    let shown = text(&place.run("l2_switch", "--entries @l2.stf").stdout);
    assert!(
        shown.contains("sighting_t  ") && shown.contains("02:00:00:00:00:aa"),
        "{shown}"
    );
    let script = program("firewall").with_file_name("test.stf");
    let shown = text(
        &place
            .run("firewall", &format!("--entries {}", script.display()))
            .stdout,
    );
    let counted = shown.lines().find(|line| line.contains("rules entry 0"));
    assert!(
        counted.is_some_and(|line| line.starts_with("FirewallIngress.rule_hits")),
        "{shown}"
    );
    place.file(
        "cells.stf",
        "register_write SinkIngress.cells 3 77\ncounter_write SinkIngress.numbered 2 5 600\n",
    );
    let output = place.run("kitchen_sink", "--json --entries @cells.stf");
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["state"]["registers"][0]["index"], 3, "{shown}");
    assert_eq!(shown["state"]["registers"][0]["value"], "0x0000004d");
    let counted = &shown["state"]["counters"];
    assert_eq!(counted.as_array().unwrap().len(), 1, "{shown}");
    assert_eq!(
        (&counted[0]["packets"], &counted[0]["bytes"]),
        (&5.into(), &600.into())
    );
    // Much of it is cut, with a note.
    let many: String = (0..1500)
        .map(|cell| format!("register_write marks_a {cell} 1\n"))
        .collect();
    place.file("many.stf", many);
    let shown = text(&place.run("stateful_firewall", "--entries @many.stf").stdout);
    assert!(shown.ends_with("... and 500 more\n"), "{}", shown.len());
}

/// Each is refused with its place and a reason, and nothing hangs or grows.
#[test]
fn files_that_are_no_entries() {
    let place = Place::new();
    let entry = |rest: &str| format!("{{\"table_entries\": [{{\"table\": \"dmac\", {rest}}}]}}");
    let deep = entry(&format!(
        "\"action_name\": \"forward\", \"match\": {{\"x\": {}",
        "[".repeat(100_000)
    ));
    let cases: Vec<(String, &str)> = vec![
        ("this is no script".into(), "line 1"),
        (
            "add dmac hdr.ethernet.dst:1 forward(port:2)\nadd nothing x:1 y()".into(),
            "line 2",
        ),
        (
            "add dmac hdr.ethernet.dst:0x1FFFFFFFFFFFF forward(port:2)".into(),
            "does not fit",
        ),
        (
            "add dmac hdr.ethernet.dst:1 forward(port:512)".into(),
            "does not fit in 9 bits",
        ),
        ("add dmac hdr.ethernet.dst:1 forward()".into(), "missing"),
        ("add dmac nokey:1 forward(port:2)".into(), "no key"),
        (STATIONS.repeat(2), "exists"),
        (
            STATIONS.repeat(2),
            "table `SwitchIngress.dmac`: an entry with this key exists",
        ),
        (
            "add dmac hdr.ethernet.dst:0x1FFFFFFFFFFFF forward(port:2)".into(),
            "table `SwitchIngress.dmac`: key `hdr.ethernet.dst`: the value does not fit in 48 bits",
        ),
        ("{\"table_entrees\": []}".into(), "unknown field `table_entrees`"),
        (
            entry("\"action_name\": \"forward\", \"matches\": {}"),
            "unknown field `matches`",
        ),
        ("mc_node_associate 1 7".into(), "no node 7"),
        ("packet 1 0Z".into(), "line 1"),
        ("\u{0}".into(), "line 1"),
        ("{".into(), "EOF"),
        ("{} {}".into(), "trailing"),
        (deep, "recursion limit"),
        ("{\"table_entries\": 5}".into(), "invalid type"),
        (
            entry("\"action_name\": \"forward\", \"match\": {\"hdr.ethernet.dst\": \"ten\"}"),
            "table_entries[0]",
        ),
        (
            entry("\"action_name\": \"forward\", \"match\": {\"hdr.ethernet.dst\": [1, 2, 3]}"),
            "list of one or two",
        ),
        (
            entry("\"action_name\": \"forward\", \"match\": {\"hdr.ethernet.dst\": {}}"),
            "no number",
        ),
        (entry("\"action_name\": \"nothing\""), "there is no action"),
        (entry("\"match\": {}"), "action_name"),
        (
            "{\"multicast_group_entries\": [{\"multicast_group_id\": 0, \"replicas\": []}]}".into(),
            "multicast group",
        ),
    ];
    for (contents, reason) in cases {
        place.file("entries", &contents);
        let output = place.run("l2_switch", "--entries @entries");
        assert_eq!(
            output.status.code(),
            Some(1),
            "{}: {}",
            &contents[..contents.len().min(80)],
            text(&output.stdout)
        );
        let error = text(&output.stderr);
        assert!(
            error.contains("entries") && error.contains(reason),
            "{reason}: {error}"
        );
        assert!(error.len() < 2000, "{error}");
    }
    let routes = |key: &str| {
        format!(
            r#"{{"table_entries": [{{"table": "routes", "match": {{"hdr.ipv4.dst": {key}}},
                "action_name": "via", "action_params": {{"next_hop_id": 1}}}}]}}"#
        )
    };
    let key = "table `RouterIngress.routes`: key `hdr.ipv4.dst`: ";
    for (contents, reason) in [
        (
            routes("[\"10.1.2.3\", 16]"),
            "the value has bits outside its mask",
        ),
        (routes("[\"10.1.0.0\", 33]"), "prefix length 33 exceeds 32 bits"),
        (
            "add routes hdr.ipv4.dst:0x0a**01** via(next_hop_id:1)".into(),
            "the value has bits outside its mask",
        ),
    ] {
        place.file("entries", contents);
        let output = place.run("router", "--entries @entries");
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(
            error.matches(&format!("{key}{reason}")).count(),
            1,
            "{reason}: {error}"
        );
    }
    place.file("entries", routes("[\"10.1.0.0\", 16]"));
    assert!(place.run("router", "--entries @entries").status.success());
    place.file("entries", [0xFF, 0xFE, 0]);
    let output = place.run("l2_switch", "--entries @entries");
    assert!(text(&output.stderr).contains("not text"));
    place.file("entries", vec![b'#'; (16 << 20) + 1]);
    let output = place.run("l2_switch", "--entries @entries");
    assert!(text(&output.stderr).contains("are the limit"));
}

#[test]
fn wrong_captures_and_wrong_usage() {
    let place = Place::new();
    let whole = pcap(&[ethernet(1, 2)]);
    for length in [0, 3, 10, 24 + 8, whole.len() - 1] {
        place.file("in.pcap", &whole[..length]);
        let output = place.run("l2_switch", "--pcap 1=@in.pcap");
        assert_eq!(output.status.code(), Some(1), "{length} bytes");
        assert!(text(&output.stderr).contains("in.pcap"));
    }
    for (port, reason) in [
        ("in.pcap", "PORT=FILE"),
        ("511=in.pcap", "no port"),
        ("x=in.pcap", "no port"),
        ("1=", "missing"),
    ] {
        let output = place.run("l2_switch", &format!("--pcap {port}"));
        assert_eq!(output.status.code(), Some(2), "{port}");
        assert!(
            text(&output.stderr).contains(reason),
            "{port}: {}",
            text(&output.stderr)
        );
    }
    let output = place.run("no_such_program", "");
    assert_eq!(output.status.code(), Some(1));
}

/// As with other tools: the packets that are whole run, and then the cut is an error.
#[test]
fn what_is_whole_of_a_cut_capture_runs() {
    let place = Place::new();
    place.file("entries.stf", STATIONS);
    let whole = pcap(&[ethernet(0x0200_0000_0002, 1), ethernet(0x0200_0000_0003, 1)]);
    for cut in [1, 59, 61, 75] {
        place.file("in.pcap", &whole[..whole.len() - cut]);
        let output = place.run("l2_switch", "--pcap 1=@in.pcap --entries @entries.stf");
        assert_eq!(output.status.code(), Some(1), "{cut} bytes");
        assert!(text(&output.stdout).contains("1 packet ran"));
        let error = text(&output.stderr);
        assert!(
            error.contains("in.pcap: the file is cut off behind 1 packet"),
            "{error}"
        );
        assert_eq!(place.left(2).unwrap(), [ethernet(0x0200_0000_0002, 1)]);
    }
}

/// Programs that want to run for ever end, and say why.
#[test]
fn programs_that_never_end_are_ended() {
    let place = Place::new();
    place.file("in.pcap", pcap(&[ethernet(1, 2), ethernet(3, 4)]));
    place.file(
        "entries",
        "mirroring_add 1 2\nmc_mgrp_create 1\nmc_node_create 1 1 2 3\nmc_node_associate 1 0\n",
    );
    for name in [
        "resubmit_always",
        "recirculate_always",
        "clone_to_itself",
        "clone_doubling",
        "multicast_storm",
    ] {
        let output = place.run_file(
            &program("l2_switch").with_file_name(format!("../malicious/{name}/{name}.json")),
            "--json --pcap 1=@in.pcap --entries @entries",
        );
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(summary["packets"], 2, "{name}");
        let drops = summary["drops"].as_object().unwrap();
        assert!(
            drops.contains_key("passes") || drops.contains_key("copies"),
            "{name}: {summary}"
        );
    }
}
