//! Scripts: every command is read as it is meant, and what is none is refused with its line.

#![allow(clippy::unwrap_used)]

use p4_stf::script::{Cell, Command, Comparison, KeyValue, MAX_SCRIPT, Unit, parse};
use proptest::prelude::*;

fn one(text: &str) -> Command {
    let mut lines = parse(text).unwrap();
    assert_eq!(lines.len(), 1);
    lines.remove(0).command
}

#[test]
fn packets_and_expectations() {
    assert_eq!(one("PACKET 0x1 0a B  c#d"), Command::Packet(1, vec![0x0a, 0xbc]));
    let Command::Expect(7, expectation) = one(" expect 7 0A ** $ # all") else {
        panic!()
    };
    assert_eq!(
        (expectation.digits.as_deref(), expectation.complete),
        (Some("0a**"), true)
    );
    let Command::Expect(7, expectation) = one("Expect 7 0a$") else {
        panic!()
    };
    assert_eq!(
        (expectation.digits.as_deref(), expectation.complete),
        (Some("0a"), true)
    );
    let Command::Expect(8, expectation) = one("expect 8") else {
        panic!()
    };
    assert_eq!((expectation.digits, expectation.complete), (None, false));
}

#[test]
fn entries() {
    let Command::Add(add) =
        one("add ingress.t 10 a.b:0x0* c : 7 d:1->3 e:0x0a000000/8 go( x:1 , y:0b11 ) = first")
    else {
        panic!()
    };
    assert_eq!(
        (add.table.as_str(), add.priority, add.action.as_str()),
        ("ingress.t", 10, "go")
    );
    let keys: Vec<&str> = add.keys.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(keys, ["a.b", "c", "d", "e"]);
    assert!(matches!(&add.keys[0].1, KeyValue::Digits(digits) if digits.known == 1 && digits.written == 2));
    assert!(
        matches!(&add.keys[2].1, KeyValue::Range(low, high) if low.value[..] == [1] && high.value[..] == [3])
    );
    assert!(matches!(&add.keys[3].1, KeyValue::Prefix(_, 8)));
    assert_eq!(add.arguments[1].1.value[..], [3]);
    assert_eq!(add.id.as_deref(), Some("first"));
    let Command::Add(add) = one("add t go ()") else {
        panic!()
    };
    assert!(add.keys.is_empty() && add.arguments.is_empty() && add.id.is_none() && add.priority == 0);
    assert!(matches!(one("setdefault t go(x:1)"), Command::SetDefault(_)));
    assert_eq!(one("Remove ALL"), Command::RemoveAll);
}

#[test]
fn counters_and_state() {
    assert_eq!(
        one("check_counter c(3)"),
        Command::CheckCounter("c".into(), Cell::Index(3), None)
    );
    let condition = Some((Unit::Bytes, Comparison::AtMost, 9));
    assert_eq!(
        one("check_counter c ( $a ) Bytes <= 9"),
        Command::CheckCounter("c".into(), Cell::Entry("a".into()), condition)
    );
    let Command::MeterRates(name, Some(4), [committed, peak]) = one("meter_set_rates m 4 0.5:10 2:20") else {
        panic!()
    };
    assert_eq!(
        (
            name.as_str(),
            committed.per_second,
            committed.burst,
            peak.per_second
        ),
        ("m", 500_000, 10, 2_000_000)
    );
    assert_eq!(
        one("mc_node_create 5 1 2 3"),
        Command::NodeCreate(5, vec![1, 2, 3])
    );
    assert_eq!(one("mirroring_add_mc 5 1"), Command::MirroringAddGroup(5, 1));
}

#[test]
fn what_is_no_command_is_refused_with_its_line() {
    let wrong = [
        "fly 1",
        "packet",
        "packet 1",
        "packet 512 00",
        "packet 1 0",
        "packet 1 0g",
        "packet 1 00 $",
        "packet -1 00",
        "expect",
        "expect x",
        "expect 1 0x00",
        "add",
        "add t",
        "add t a:1",
        "add t a:1 go",
        "add t a:1 go(",
        "add t a:1 go) (",
        "add go()",
        "add t 10 20 go()",
        "add t a: go()",
        "add t a:z go()",
        "add t a:1->x go()",
        "add t a:1/x go()",
        "add t a:1 go(x)",
        "add t a:1 go(x:1*)",
        "add t a:1 go() b",
        "add t a:1 go() =",
        "setdefault t a:1 go()",
        "setdefault t go() = x",
        "remove",
        "remove some",
        "wait 1",
        "check_counter c",
        "check_counter c(x)",
        "check_counter c(1) packets",
        "check_counter c(1) packets = 1",
        "check_counter c(1) frames == 1",
        "check_counter c(1) packets == many",
        "mirroring_add 1",
        "mirroring_add 1 2 3",
        "mirroring_add 1 512",
        "mc_node_create 65536 1",
        "mc_mgrp_create x",
        "meter_set_rates m 1 1:1",
        "meter_set_rates m 1 -1:1 1:1",
        "meter_set_rates m 1 nan:1 1:1",
        "meter_set_rates m 1 1:1 1",
        "counter_write c 1 2",
        "register_write r 1",
        "register_write r 1 99999999999999999999999x",
    ];
    for text in wrong {
        let error = parse(&format!("# first\nwait\n{text}\n")).unwrap_err();
        assert_eq!(error.line, 3, "{text}: {error}");
        assert!(error.to_string().len() < 200, "{error}");
    }
    let long = "x".repeat(1000);
    assert!(parse(&long).unwrap_err().to_string().len() < 200);
    assert!(parse(&" ".repeat(MAX_SCRIPT + 1)).is_err());
    assert!(parse(&format!("packet 1 {}", "00".repeat(65_537))).is_err());
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        let _ = parse(&text);
    }

    /// Lines that are nearly right.
    #[test]
    fn near_misses_are_read_or_refused(
        line in prop::sample::select(vec![
            "add t 10 a.b:0x0* c:7 d:1->3 e:0x0a000000/8 go(x:1, y:0b11) = first",
            "check_counter c($a) packets <= 9",
            "meter_set_rates m 4 0.5:10 2:20",
            "expect 7 0A ** $ # all",
            "packet 1 0abc",
        ]),
        at in 0usize..80,
        with in "[ -~é]{0,3}",
        cut in 0usize..3,
    ) {
        let at = at.min(line.len());
        let text = format!("{}{with}{}", &line[..at], &line[(at + cut).min(line.len())..]);
        let _ = parse(&text);
    }
}
