//! Packets that rules note: which, how many, and what a rule on trial says.

use super::rules::{LIST, begin, commit, egress, ingress, pair, rule, to_port, udp};
use crate::support::control::Controller;
use crate::support::eventually;
use control_protocol::rules::{Base, RuleRequest};
use flow::{DropReason, Filters, PortId, Stage};
use rule_list::{LogRecord, Rule, Verdict};
use std::time::Duration;

/// Records of a rule at once, and that may wait.
const AT_ONCE: usize = 4;

fn logging(rule: Rule) -> Rule {
    Rule { log: true, ..rule }
}

impl Controller {
    /// Waits until a rule has noted so many packets.
    #[track_caller]
    fn until_noted(&mut self, rule: u32, count: usize) {
        eventually("rules note packets", || {
            self.settle();
            self.noted(rule).len() >= count
        });
    }

    fn noted(&self, rule: u32) -> Vec<&LogRecord> {
        self.records.iter().filter(|record| record.rule == rule).collect()
    }
}

#[test]
fn a_flood_against_one_rule_hides_no_packet_of_another() {
    let (mut switch, mut a, mut b) = pair(ingress(LIST), Filters::default());
    let trial = Rule {
        trial: true,
        ..rule(3, to_port(55, 55), Verdict::Drop)
    };
    let rules = [
        logging(rule(1, to_port(53, 53), Verdict::Drop)),
        logging(rule(2, to_port(54, 54), Verdict::Drop)),
        logging(trial),
        rule(4, to_port(56, 56), Verdict::Drop),
    ];
    switch.put_list(LIST, &rules, Verdict::Allow);
    for sent in 1..=40 {
        (0..25).for_each(|_| a.send(&udp(1, 53)));
        switch.until_dropped(1, DropReason::Policy, 25 * sent);
    }
    // Two packets that one decision is about: each is noted with its own addresses.
    (1..=2).for_each(|source| a.send(&udp(source, 54)));
    a.send(&udp(1, 55));
    b.expect_plain(&udp(1, 55));
    a.send(&udp(1, 56));
    switch.until_dropped(1, DropReason::Policy, 1003);
    switch.until_noted(2, 2);
    switch.until_noted(3, 1);
    let sources: Vec<u128> = switch
        .noted(2)
        .iter()
        .map(|record| record.packet.key.ip_src())
        .collect();
    assert_eq!(sources, [0x0a00_0001, 0x0a00_0002]);
    let tried = switch.noted(3)[0];
    assert_eq!(
        (tried.verdict, tried.trial, tried.skipped),
        (Verdict::Drop, true, 0)
    );
    assert_eq!((tried.list, tried.packet.stage), (LIST, Stage::Ingress(2)));
    assert_eq!((tried.packet.bytes, tried.packet.key.in_port()), (60, 1));
    assert!(tried.packet.time_ns > 0);
    assert!(switch.noted(4).is_empty());
    // One a second more.
    let flood = switch.noted(1);
    assert!((AT_ONCE..200).contains(&flood.len()), "{}", flood.len());
    switch.finish();
}

/// All packets count as noted or as skipped.
#[test]
fn packets_without_a_record_are_in_the_next_one() {
    let (mut switch, mut a, _b) = pair(Filters::default(), egress(LIST));
    switch.put_list(
        LIST,
        &[logging(rule(1, to_port(53, 53), Verdict::Drop))],
        Verdict::Allow,
    );
    let mut sent = 0;
    let mut send = |switch: &mut Controller, count: u64| {
        (0..count).for_each(|_| a.send(&udp(1, 53)));
        sent += count;
        switch.until_dropped(1, DropReason::Policy, sent);
        sent
    };
    send(&mut switch, 20);
    let told = |switch: &Controller| {
        let noted = switch.noted(1);
        noted.iter().map(|record| 1 + record.skipped).sum::<u64>()
    };
    eventually("a record says how many there were", || {
        std::thread::sleep(Duration::from_millis(200));
        let sent = send(&mut switch, 1);
        switch.settle();
        // All but those that came since the last record.
        told(&switch) > 20 && told(&switch) <= sent
    });
    let stages: Vec<Stage> = switch.noted(1).iter().map(|record| record.packet.stage).collect();
    assert!(stages.iter().all(|stage| *stage == Stage::Egress(PortId(2), 2)));
    switch.finish();
}

#[test]
fn a_rule_begins_and_ends_to_log_and_counts_on() {
    let (mut switch, mut a, _b) = pair(ingress(LIST), Filters::default());
    let plain = rule(1, to_port(53, 53), Verdict::Drop);
    for (round, log) in [false, true, false].into_iter().enumerate() {
        switch.rules(begin(LIST, Base::Empty, Verdict::Allow));
        let rules = vec![Rule { log, ..plain.clone() }];
        switch.rules(RuleRequest::Add { list: LIST, rules });
        switch.rules(commit(LIST));
        a.send(&udp(1, 53));
        let sent = round as u64 + 1;
        switch.until_dropped(1, DropReason::Policy, sent);
        let expected = (0, vec![(1, sent)]);
        eventually("the rule counts on", || switch.counted(LIST) == expected);
        if log {
            switch.until_noted(1, 1);
        }
    }
    assert_eq!(switch.noted(1).len(), 1);
    switch.finish();
}

/// Nobody reads: what waits is bounded, and packets are dropped as before.
#[test]
fn records_wait_for_the_next_control_process() {
    let (mut switch, mut a, _b) = pair(ingress(LIST), Filters::default());
    switch.put_list(
        LIST,
        &[logging(rule(1, to_port(53, 53), Verdict::Drop))],
        Verdict::Allow,
    );
    switch.disconnect();
    (0..100).for_each(|_| a.send(&udp(1, 53)));
    switch.connect();
    switch.until_dropped(1, DropReason::Policy, 100);
    // Records that were on their way when the last one left are lost with it; there is one per second then.
    eventually("records come", || {
        std::thread::sleep(Duration::from_millis(100));
        a.send(&udp(1, 53));
        switch.settle();
        !switch.noted(1).is_empty()
    });
    assert!(switch.noted(1).len() < 50);
    switch.finish();
}
