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
