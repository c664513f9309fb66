//! The project's own programs pass their scripts, and what a script gets wrong is told with its line.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use p4_stf::folder::{self, Outcome};
use p4_stf::{run, script};

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../p4-bmv2/programs")
}

#[test]
fn own_programs_pass() {
    let tests = folder::find(&programs()).unwrap();
    assert!(tests.len() >= 16, "{} scripts", tests.len());
    assert!(tests.iter().all(|test| test.p4info.is_some()));
    let outcomes: Vec<Outcome> = tests
        .into_iter()
        .map(|test| (test.clone(), folder::run(&test)))
        .collect();
    let report = folder::report("own programs", &outcomes);
    assert!(outcomes.iter().all(|(_, result)| result.is_ok()), "{report}");
    assert!(
        report.ends_with("16 tests, 16 passed (100.0 %), 0 failed\n"),
        "{report}"
    );
}

/// What a script does to one of the programs.
fn difference(program: &str, text: &str) -> Result<(), String> {
    let json = fs::read(programs().join(format!("{program}/{program}.json"))).unwrap();
    let lines = script::parse(text).map_err(|error| error.to_string())?;
    run(p4_bmv2::load(&json, None).unwrap(), &lines).map_err(|error| error.to_string())
}

/// An EtherType that no program looks into.
const FRAME: &str = "02000000000b 02000000000a 1234 0001";

#[test]
fn differences_are_told() {
    let send = |rest: &str| {
        let text =
            format!("add dmac hdr.ethernet.dst:0x02000000000b forward(port:2)\npacket 1 {FRAME}\n{rest}");
        difference("l2_switch", &text)
    };
    assert_eq!(send(&format!("expect 2 {FRAME} $")), Ok(()));
    assert_eq!(send("expect 2"), Ok(()));
    assert_eq!(send("wait\n# nothing\n expect 2 02 ** 00 0000 0b"), Ok(()));
    let told = |rest: &str, expected: &str| {
        let error = send(rest).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    told(
        "expect 2 ff",
        "line 3: port 2, packet 1: expected ff\n      got 02000000000b",
    );
    told(
        "expect 2\nexpect 2",
        "line 4: port 2, packet 2: expected any packet, nothing left",
    );
    told("expect 2 02000000000b $", "packet 1");
    told("packet 2 00", "port 2: 1 packets left, 0 were expected");
    told(
        "expect 3 00\nexpect 2",
        "line 3: port 3, packet 1: expected 00, nothing left",
    );
}

#[test]
fn what_cannot_be_done_is_told_with_its_line() {
    let told = |program: &str, text: &str, expected: &str| {
        let error = difference(program, &format!("\n{text}")).unwrap_err();
        assert!(
            error.starts_with("line ") && error.contains(expected),
            "{text}: {error}"
        );
    };
    let switch = |text: &str, expected: &str| told("l2_switch", text, expected);
    switch("add nowhere a:1 b()", "line 2: there is no table `nowhere`");
    switch("add mac a:1 b()", "may be `");
    switch(
        "add dmac nothing:1 forward(port:2)",
        "has no key `nothing`, but hdr.ethernet.dst",
    );
    switch("add dmac hdr.ethernet.dst:1 fly()", "there is no action of table");
    switch(
        "add dmac hdr.ethernet.dst:1 forward()",
        "argument `port` is missing",
    );
    switch(
        "add dmac hdr.ethernet.dst:1 forward(port:512)",
        "argument `port` does not fit in 9 bits",
    );
    switch(
        "add dmac hdr.ethernet.dst:1 forward(port:1, port:1)",
        "given twice",
    );
    switch(
        "add dmac hdr.ethernet.dst:1 forward(port:1, gate:1)",
        "has no parameter `gate`",
    );
    switch(
        "add dmac hdr.ethernet.dst:1 dst:1 forward(port:1)",
        "key `dst` is given twice",
    );
    switch(
        "add dmac hdr.ethernet.dst:0x1000000000000 forward(port:1)",
        "does not fit in 48 bits",
    );
    switch(
        "add dmac hdr.ethernet.dst:0x02** forward(port:1)",
        "wants another kind of value",
    );
    switch(
        "add dmac dst:1 forward(port:1)\nadd dmac dst:1 forward(port:2)",
        "line 3: table `SwitchIngress.dmac`: an entry with this key exists",
    );
    switch("check_counter none(1)", "there is no counter `none`");
    switch("mc_node_associate 1 0", "there is no node 0");
    switch("mc_node_create 1 2\nmc_node_associate 1 0", "there is no group 1");
    switch("mc_node_update 3 1", "there is no node 3");
    switch("mc_mgrp_create 0", "1 or more");
    switch("register_write none 0 1", "there is no register `none`");
    let sink = |text: &str, expected: &str| told("kitchen_sink", text, expected);
    sink(
        "meter_set_rates numbered_meter 1000000 1:1 2:2",
        "there is no number 1000000",
    );
    sink("meter_set_rates numbered_meter 1 2:1 1:2", "committed rate");
    sink("check_counter numbered(1000000)", "there is no number 1000000");
    sink("check_counter numbered($x)", "no entry was named `x`");
    sink(
        "add forward dst:1 to_port(port:2) = b\ncheck_counter numbered($b)",
        "does not count the table of entry `b`",
    );
    sink(
        "counter_write numbered 1 2 3\ncheck_counter numbered(1)",
        "line 3: numbered: 2 packets, 3 bytes",
    );
}

#[test]
fn commands_change_what_they_say() {
    let state = "counter_write numbered 1 2 3\ncheck_counter numbered(1) packets == 2\n\
        check_counter numbered(1) bytes >= 3\ncheck_counter numbered(0)\ncounter_read numbered 1\n\
        meter_array_set_rates numbered_meter 0.5:1 1:2\nmeter_get_rates numbered_meter 3\nmirroring_add 5 6\n\
        mirroring_get 5\nmirroring_delete 5\nmirroring_add_mc 5 3\nmc_mgrp_create 3\nmc_node_create 1 2 3\n\
        mc_node_associate 3 0\nmc_node_update 0 4\nwait";
    assert_eq!(difference("kitchen_sink", state), Ok(()));
    let registers =
        "register_write totals 1 7\nregister_read totals 1\nregister_reset totals\nregister_read totals";
    assert_eq!(difference("stateful_firewall", registers), Ok(()));
    // Direct counters and meters, by the number of the entry.
    let direct = format!(
        "add forward dst:0x02000000000b to_port(port:2) = b\npacket 1 {FRAME}\npacket 1 {FRAME}\n\
         check_counter forward_hits(0) packets == 2\ncounter_write forward_hits 0 7 8\n\
         check_counter forward_hits($b) bytes == 8\ncounter_read forward_hits 0\n\
         expect 2\nexpect 2"
    );
    assert_eq!(difference("kitchen_sink", &direct), Ok(()));
    let missing = difference("kitchen_sink", "counter_read forward_hits 3").unwrap_err();
    assert!(missing.contains("has no entry number 3"), "{missing}");
    let limited = |rates: &str| {
        let text = format!(
            "add l2_forward dst:0x02000000000b forward(port:2)\nadd flows 10 src:0x02000000000a measure()\n\
             add verdict colour:2 drop_counted()\nmeter_{rates} 0:0 0:0\npacket 1 {FRAME}\nexpect 2"
        );
        difference("rate_limiter", &text)
    };
    for rates in [
        "set_rates flow_meter 0",
        "array_set_rates flow_meter",
        "array_set_rates port_meter",
    ] {
        assert!(limited(rates).unwrap_err().ends_with("nothing left"), "{rates}");
    }
    // What was added is gone after `remove all`: the frame is flooded to a group that does not exist.
    let removed = format!(
        "add dmac dst:0x02000000000b forward(port:2)\nremove all\nadd dmac dst:0x02000000000b forward(port:3)\n\
         packet 1 {FRAME}\nexpect 3\nexpect 2"
    );
    assert!(
        difference("l2_switch", &removed)
            .unwrap_err()
            .contains("line 6: port 2, packet 1")
    );
}

#[test]
fn folders_without_tests_and_broken_ones() {
    assert!(folder::find(Path::new("/nonexistent")).is_err());
    let no_tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert_eq!(folder::find(&no_tests).unwrap(), Vec::new());
    let one = folder::find(&programs().join("l2_switch")).unwrap();
    assert_eq!(
        one.iter().map(|test| test.name.as_str()).collect::<Vec<_>>(),
        ["l2_switch"]
    );
    let missing = folder::Test {
        program: PathBuf::from("/nonexistent"),
        ..one[0].clone()
    };
    assert!(
        folder::run(&missing)
            .unwrap_err()
            .to_string()
            .starts_with("/nonexistent: ")
    );
    let wrong = folder::Test {
        program: one[0].script.clone(),
        ..one[0].clone()
    };
    assert!(
        folder::run(&wrong)
            .unwrap_err()
            .to_string()
            .starts_with("program: ")
    );
    let wrong = folder::Test {
        script: one[0].program.clone(),
        ..one[0].clone()
    };
    assert!(
        folder::run(&wrong)
            .unwrap_err()
            .to_string()
            .starts_with("script: line 1: ")
    );
}

#[test]
fn members_of_a_value_set_lead_the_parser() {
    let json = fs::read(programs().join("kitchen_sink/kitchen_sink.json")).unwrap();
    let program = p4_bmv2::load(&json, None).unwrap().into_program();
    let sent = |member: Option<u128>| {
        let mut program = program.clone();
        let kind = |value| vec![p4_ir::KeyMatch::Exact(p4_ir::Bits::from_u128(16, value))];
        program.value_sets[0].members = member.into_iter().map(kind).collect();
        let mut session = p4_stf::Session::new(p4_ir::Checked::new(program).unwrap()).unwrap();
        let lines = script::parse("add forward hdr.ethernet.dst:0x02000000000b to_port(port:2)").unwrap();
        session.run(&lines[0].command).unwrap();
        let frame = [
            &[2, 0, 0, 0, 0, 0x0b, 2, 0, 0, 0, 0, 0x0a][..],
            &[0x99, 0x99, 1, 2, 3, 4, 5, 6],
        ];
        let sent = session.send(1, &frame.concat());
        sent.into_iter().map(|(_, frame)| frame.len()).collect::<Vec<_>>()
    };
    assert_eq!(sent(None), [20]);
    assert_eq!(sent(Some(0x9998)), [20]);
    assert_eq!(sent(Some(0x9999)), [16], "four bytes are left out");
    let mut wrong = program.clone();
    wrong.value_sets[0].members = vec![Vec::new()];
    assert!(
        p4_ir::Checked::new(wrong)
            .unwrap_err()
            .to_string()
            .contains("parts")
    );
    let mut twice = program.clone();
    let member = vec![p4_ir::KeyMatch::Exact(p4_ir::Bits::from_u128(16, 1))];
    twice.value_sets[0].members = vec![member; 2];
    assert!(
        p4_ir::Checked::new(twice)
            .unwrap_err()
            .to_string()
            .contains("twice")
    );
}
