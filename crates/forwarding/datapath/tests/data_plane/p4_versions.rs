//! What a version of a P4 program leaves to the next, and what a controller reads and sets meanwhile.

use crate::p4::{P4, bound, commands, parts_of_script, version};
use crate::support::control::Controller;
use crate::support::frames::{Tcp, plain};
use control_protocol::data_plane::{Answer, Request};
use control_protocol::p4::{P4Answer, P4Array, P4CellWrite, P4Request};
use p4_ir::Entry;
use p4_ir::changes::{self, EntryChange, EntryKey};
use p4_stf::script::Command;
use rustix::io::Errno;
use std::time::Instant;

impl Controller {
    #[track_caller]
    fn cells(&mut self, tag: u64, array: P4Array) -> Vec<Vec<u64>> {
        let (mut cells, mut more) = (Vec::new(), true);
        while more {
            let read = P4Request::Read {
                switch: P4,
                tag,
                array,
                from: cells.len() as u32,
            };
            let Ok(Answer::P4(P4Answer::Cells {
                words,
                stride,
                more: left,
            })) = self.ask(Request::P4(read))
            else {
                panic!("no cells")
            };
            cells.extend(words.chunks(stride as usize).map(<[u64]>::to_vec));
            more = left;
        }
        cells
    }
}

fn write(tag: u64, array: P4Array, cell: u32, words: &[u64]) -> Request {
    Request::P4(P4Request::Write {
        switch: P4,
        tag,
        array,
        cell,
        words: words.to_vec(),
    })
}

/// Number of a table, register or counter in a program of the project.
fn number(program: &str, what: impl Fn(&p4_ir::Program) -> Vec<String>, name: &str) -> u16 {
    let names = what(&crate::p4::program(program));
    names.iter().position(|other| other.ends_with(name)).unwrap() as u16
}

#[test]
fn entries_change_while_packets_flow_and_none_of_their_counts_is_lost() {
    let entries = |others: u32| {
        let mut text = String::from(
            "add l2_forward hdr.ethernet.dst:0x020000000002 forward(port:2)\n\
             add rules 10 protocol:6 rule_permit()\n",
        );
        for other in 0..others {
            text += &format!("add rules 20 src:0x0b0000{other:02x} rule_deny()\n");
        }
        version("firewall", &commands(&text))
    };
    let tables = |program: &p4_ir::Program| {
        let names = program.tables.iter().map(|table| table.identity.name.clone());
        names.collect()
    };
    let rules = P4Array::Entries(number("firewall", tables, "rules"));
    let (mut switch, mut guests) = bound(2, &entries(0));
    let frame = Tcp::new(false, 100).frame(1, 2, true);
    for round in 1..=20 {
        switch.draft(P4, &entries(round));
        let tag = round.into();
        let commit = P4Request::Commit { switch: P4, tag };
        let serial = switch.tell(Request::P4(commit), &[]);
        for _ in 0..20 {
            guests.get_mut(&1).unwrap().send(&frame);
        }
        // Asked at once, and answered when the former version's counts are there.
        assert_eq!(switch.answer(serial), Ok(Answer::Done));
        for _ in 0..20 {
            guests.get_mut(&2).unwrap().expect_plain(&frame);
        }
    }
    switch.until_ended(1, 400);
    let counts = switch.cells(20, rules);
    assert_eq!(counts.len(), 20 + 2, "entries, and the default");
    assert_eq!(counts[0], [400, 400 * frame.len() as u64]);
    assert_eq!(counts[21], [0, 0]);
    switch.finish();
}

/// The firewall with a rule that lets TCP pass, and rules that deny as many others as there are numbers.
fn firewall(verdict: &str, others: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut text = format!(
        "add l2_forward hdr.ethernet.dst:0x020000000002 forward(port:2)\nadd rules 10 protocol:6 {verdict}()\n"
    );
    for other in others {
        text += &format!("add rules 20 src:0x0b00{other:04x} rule_deny()\n");
    }
    version("firewall", &commands(&text))
}

/// The changes that make one version of another.
fn batch(before: &[u8], after: &[u8]) -> Vec<u8> {
    let [before, after] = [before, after].map(|bytes| p4_ir::setup::decode(bytes).unwrap().0);
    let mut all = Vec::new();
    for (number, (old, new)) in before.tables.iter().zip(&after.tables).enumerate() {
        let table = p4_ir::TableId(number as u16);
        let same = |of: &p4_ir::Table, entry: &Entry| {
            of.entries
                .iter()
                .find(|other| EntryKey::of(other) == EntryKey::of(entry))
                .cloned()
        };
        let gone = old.entries.iter().filter(|entry| same(new, entry).is_none());
        all.extend(gone.map(|entry| EntryChange::Remove(table, EntryKey::of(entry))));
        all.extend(new.entries.iter().filter_map(|entry| match same(old, entry) {
            None => Some(EntryChange::Insert(table, entry.clone())),
            Some(former) if former != *entry => Some(EntryChange::Modify(table, entry.clone())),
            Some(_) => None,
        }));
    }
    changes::encode(&all)
}

#[test]
fn batches_change_entries_while_packets_flow_and_none_of_their_counts_is_lost() {
    let tables = |program: &p4_ir::Program| {
        let names = program.tables.iter().map(|table| table.identity.name.clone());
        names.collect()
    };
    let rules = P4Array::Entries(number("firewall", tables, "rules"));
    let mut present = firewall("rule_permit", []);
    let (mut switch, mut guests) = bound(2, &present);
    switch.put_p4(P4, &present, 0);
    let frame = Tcp::new(false, 100).frame(1, 2, true);
    for round in 1..=20 {
        let next = firewall("rule_permit", 0..round as u32 * 50);
        switch.draft(P4, &batch(&present, &next));
        let (switch_id, from, tag) = (P4, round - 1, round);
        let commit = P4Request::CommitChanges {
            switch: switch_id,
            from,
            tag,
        };
        let serial = switch.tell(Request::P4(commit), &[]);
        for _ in 0..20 {
            guests.get_mut(&1).unwrap().send(&frame);
        }
        assert_eq!(switch.answer(serial), Ok(Answer::Done));
        for _ in 0..20 {
            guests.get_mut(&2).unwrap().expect_plain(&frame);
        }
        present = next;
    }
    switch.until_ended(1, 400);
    let counts = switch.cells(20, rules);
    assert_eq!(counts.len(), 1000 + 2, "entries, and the default");
    assert_eq!(counts[0], [400, 400 * frame.len() as u64]);
    // The last entry takes the place of one that is removed.
    let next = firewall("rule_permit", (0..1000).filter(|other| *other != 5));
    switch.draft(P4, &batch(&present, &next));
    let (from, tag) = (20, 21);
    switch.p4(P4Request::CommitChanges {
        switch: P4,
        from,
        tag,
    });
    switch.done(write(21, rules, 6, &[7, 8]));
    switch.put_p4(P4, &firewall("rule_permit", [999]), 22);
    assert_eq!(
        switch.cells(22, rules)[1],
        [7, 8],
        "of the entry that was the last one"
    );
    switch.finish();
}

#[test]
fn packets_that_were_of_a_kind_meet_the_entries_of_a_batch_and_a_wrong_batch_changes_nothing() {
    let (permit, deny) = (firewall("rule_permit", [1]), firewall("rule_deny", [1]));
    let (mut switch, mut guests) = bound(2, &permit);
    switch.put_p4(P4, &permit, 1);
    let frame = Tcp::new(false, 100).frame(1, 2, true);
    // The verdict about this kind of packet is kept by then.
    for _ in 0..300 {
        guests.get_mut(&1).unwrap().send(&frame);
        guests.get_mut(&2).unwrap().expect_plain(&frame);
    }
    let mut refused = |bytes: &[u8], from: u64| {
        switch.draft(P4, bytes);
        let commit = P4Request::CommitChanges {
            switch: P4,
            from,
            tag: 2,
        };
        switch.refused(Request::P4(commit))
    };
    let right = batch(&permit, &deny);
    let twice = batch(&firewall("rule_permit", []), &permit);
    let of_none = batch(&firewall("rule_permit", [2]), &permit);
    let of_another = batch(
        &version("firewall", &[]),
        &version(
            "firewall",
            &commands("add l2_forward hdr.ethernet.dst:0x020000000009 forward(port:2)\n"),
        ),
    );
    assert_eq!(refused(&right, 7), Errno::STALE);
    assert_eq!(refused(&twice, 1), Errno::INVAL);
    assert_eq!(refused(&of_none, 1), Errno::INVAL);
    assert_eq!(refused(&right[..right.len() - 1], 1), Errno::INVAL);
    assert_eq!(
        refused(&[&right[..], &of_another].concat(), 1),
        Errno::INVAL,
        "one at a time"
    );
    guests.get_mut(&1).unwrap().send(&frame);
    guests.get_mut(&2).unwrap().expect_plain(&frame);
    switch.draft(P4, &right);
    let (from, tag) = (1, 2);
    switch.p4(P4Request::CommitChanges {
        switch: P4,
        from,
        tag,
    });
    for _ in 0..10 {
        guests.get_mut(&1).unwrap().send(&frame);
    }
    switch.until_ended(1, 311);
    let counters = switch.counters(1);
    assert_eq!((counters.delivered, counters.dropped.total()), (301, 10));
    switch.finish();
}

#[test]
fn registers_outlive_their_version_and_can_be_read_and_set() {
    let (packets, given) = parts_of_script("stateful_firewall");
    let bytes = |at: usize| packet(&packets[at]);
    let (asked, answered) = (bytes(1), bytes(2));
    let registers = |program: &p4_ir::Program| {
        let names = program.registers.iter().map(|array| array.identity.name.clone());
        names.collect()
    };
    let totals = P4Array::Register(number("stateful_firewall", registers, "totals"));
    let (mut switch, mut guests) = bound(2, &version("stateful_firewall", &given));
    guests.get_mut(&1).unwrap().send(&asked);
    guests.get_mut(&2).unwrap().expect_plain(&asked);
    switch.until_ended(1, 1);
    assert_eq!(switch.cells(1, totals), [[1], [0]]);
    // Another version with another entry: the connection is still known.
    let mut more = given.clone();
    more.extend(commands(
        "add l2_forward hdr.ethernet.dst:0x02000000000e forward(port:2)",
    ));
    switch.put_p4(P4, &version("stateful_firewall", &more), 2);
    guests.get_mut(&2).unwrap().send(&answered);
    guests.get_mut(&1).unwrap().expect_plain(&answered);
    assert_eq!(switch.cells(2, totals), [[1], [0]]);
    switch.done(write(2, totals, 1, &[77]));
    assert_eq!(switch.cells(2, totals), [[1], [77]]);
    for (request, errno) in [
        (write(1, totals, 1, &[5]), Errno::STALE),
        (write(2, totals, 2, &[5]), Errno::INVAL),
        (write(2, totals, 1, &[1 << 32]), Errno::INVAL),
        (write(2, P4Array::Counter(0), 0, &[1, 2]), Errno::INVAL),
        (write(2, P4Array::Entries(0), 0, &[1, 2]), Errno::INVAL),
    ] {
        assert_eq!(switch.refused(request), errno);
    }
    for array in [P4Array::Register(99), P4Array::Counter(99), P4Array::Entries(99)] {
        let read = P4Request::Read {
            switch: P4,
            tag: 2,
            array,
            from: 0,
        };
        assert_eq!(switch.refused(Request::P4(read)), Errno::INVAL);
    }
    // A register of another width begins with zeros.
    let mut other = crate::p4::program("stateful_firewall").into_program();
    other.registers.iter_mut().for_each(|array| array.size += 1);
    let losses = p4_interpreter::losses(&crate::p4::program("stateful_firewall"), &other);
    assert!(
        losses
            .iter()
            .any(|loss| loss.contains("totals: 2 cells of 32 bits, then 3 cells")),
        "{losses:?}"
    );
    let other = p4_ir::Checked::new(other).unwrap();
    switch.put_p4(P4, &p4_ir::setup::encode(&other, &Default::default()), 3);
    assert_eq!(switch.cells(3, totals), [[0], [0], [0]]);
    switch.finish();
}

fn set(array: P4Array, cell: u32, value: u64) -> P4CellWrite {
    P4CellWrite {
        array,
        cell,
        words: vec![value],
    }
}

fn at_once(tag: u64, writes: Vec<P4CellWrite>) -> Request {
    Request::P4(P4Request::WriteAll {
        switch: P4,
        tag,
        writes,
    })
}

/// The bytes of a script's packet.
fn packet(command: &Command) -> Vec<u8> {
    match command {
        Command::Packet(_, bytes) => bytes.clone(),
        other => panic!("{other:?}"),
    }
}

/// The registers in which the firewall marks connections.
fn marks() -> [P4Array; 2] {
    let registers = |program: &p4_ir::Program| {
        let names = program.registers.iter().map(|array| array.identity.name.clone());
        names.collect()
    };
    ["marks_a", "marks_b"].map(|name| P4Array::Register(number("stateful_firewall", registers, name)))
}

/// A packet of port 2 passes if it has a mark in two registers. One has it at each time, and the marks change
/// places: a packet that saw one of the changes alone would pass.
#[test]
fn cells_that_are_set_at_once_are_seen_at_once() {
    let (packets, given) = parts_of_script("stateful_firewall");
    let bytes = |at: usize| packet(&packets[at]);
    let (asked, answered, [a, b]) = (bytes(1), bytes(2), marks());
    let (mut switch, mut guests) = bound(2, &version("stateful_firewall", &given));
    guests.get_mut(&1).unwrap().send(&asked);
    guests.get_mut(&2).unwrap().expect_plain(&asked);
    switch.until_ended(1, 1);
    let marked = |cells: Vec<Vec<u64>>| cells.iter().position(|words| words[0] == 1).unwrap() as u32;
    let [at_a, at_b] = [a, b].map(|array| marked(switch.cells(1, array)));
    switch.done(at_once(1, vec![set(b, at_b, 0)]));
    let mut sent = 0;
    for round in 0..200 {
        // In this order both marks are there in between.
        let [there, gone] = [[(b, at_b), (a, at_a)], [(a, at_a), (b, at_b)]][round % 2];
        let mut writes = vec![set(there.0, there.1, 1)];
        // Packets have time to come in between.
        writes.extend(
            (0..=1_000)
                .filter(|cell| *cell != at_a)
                .map(|cell| set(a, cell, 0)),
        );
        writes.push(set(gone.0, gone.1, 0));
        let guest = guests.get_mut(&2).unwrap();
        (0..4).for_each(|_| guest.send(&answered));
        let serial = switch.tell(at_once(1, writes), &[]);
        (0..4).for_each(|_| guest.send(&answered));
        sent += 8;
        assert_eq!(switch.answer(serial), Ok(Answer::Done));
    }
    switch.until_ended(2, sent);
    let counters = switch.counters(2);
    assert_eq!((counters.delivered, counters.dropped.total()), (0, sent));
    // A controller that goes away in between leaves no version closed.
    switch.tell(at_once(1, vec![set(b, at_b, 1)]), &[]);
    switch.control = None;
    switch.connect();
    guests.get_mut(&2).unwrap().send(&answered);
    switch.until_ended(2, sent + 1);
    switch.finish();
}

/// A packet of port 2 passes if it has its marks and an entry. One of the two is missing at each time, and
/// they change places with the version: a packet that saw one of the changes alone would pass.
#[test]
fn entries_and_cells_of_a_commit_are_seen_at_once() {
    let (packets, given) = parts_of_script("stateful_firewall");
    let bytes = |at: usize| packet(&packets[at]);
    let (asked, answered, [a, _]) = (bytes(1), bytes(2), marks());
    let with = version("stateful_firewall", &given);
    let (mut switch, mut guests) = bound(2, &with);
    guests.get_mut(&1).unwrap().send(&asked);
    guests.get_mut(&2).unwrap().expect_plain(&asked);
    switch.until_ended(1, 1);
    let at_a = switch.cells(1, a).iter().position(|words| words[0] == 1).unwrap() as u32;
    // Both marks are there, the entry is not.
    let without = version("stateful_firewall", &[&given[..2], &given[3..]].concat());
    switch.put_p4(P4, &without, 2);
    let set_a = |value| P4Request::Set {
        switch: P4,
        writes: vec![set(a, at_a, value)],
    };
    let (mut sent, mut tag) = (0, 2);
    for round in 0..100 {
        let (present, next, mark) = match round % 2 {
            0 => (&without, &with, 0),
            _ => (&with, &without, 1),
        };
        let from = tag;
        tag += 1;
        let guest = guests.get_mut(&2).unwrap();
        (0..4).for_each(|_| guest.send(&answered));
        let commit = match round / 2 % 2 {
            0 => {
                switch.draft(P4, next);
                P4Request::Commit { switch: P4, tag }
            }
            _ => {
                switch.draft(P4, &batch(present, next));
                P4Request::CommitChanges {
                    switch: P4,
                    from,
                    tag,
                }
            }
        };
        switch.p4(set_a(mark));
        let serial = switch.tell(Request::P4(commit), &[]);
        (0..4).for_each(|_| guest.send(&answered));
        sent += 8;
        assert_eq!(switch.answer(serial), Ok(Answer::Done));
    }
    switch.until_ended(2, sent);
    let counters = switch.counters(2);
    assert_eq!((counters.delivered, counters.dropped.total()), (0, sent));
    // A cell that cannot be set: the version before goes on, with cells as they were.
    switch.draft(P4, &with);
    let writes = vec![set(a, at_a, 0), set(a, u32::MAX, 0)];
    switch.p4(P4Request::Set { switch: P4, writes });
    let commit = P4Request::Commit {
        switch: P4,
        tag: tag + 1,
    };
    assert_eq!(switch.refused(Request::P4(commit)), Errno::INVAL);
    assert_eq!(switch.cells(tag, a)[at_a as usize], [1]);
    switch.draft(P4, &with);
    switch.p4(P4Request::Commit {
        switch: P4,
        tag: tag + 1,
    });
    guests.get_mut(&2).unwrap().send(&answered);
    guests.get_mut(&1).unwrap().expect_plain(&answered);
    switch.finish();
}

#[test]
fn cells_of_which_one_cannot_be_set_stay_as_they_are() {
    let (mut switch, _guests) = bound(2, &version("stateful_firewall", &commands("")));
    let [a, b] = marks();
    let good = set(b, 3, 1);
    let of_counter = P4CellWrite {
        words: vec![1, 2],
        ..set(P4Array::Counter(0), 0, 0)
    };
    let empty = P4CellWrite {
        words: Vec::new(),
        ..good.clone()
    };
    for (bad, errno) in [
        (set(a, u32::MAX, 1), Errno::INVAL),
        (set(a, 3, 2), Errno::INVAL),
        (of_counter, Errno::INVAL),
        (empty, Errno::INVAL),
        (set(P4Array::Idle(0), 0, 1), Errno::INVAL),
    ] {
        assert_eq!(switch.refused(at_once(1, vec![good.clone(), bad])), errno);
    }
    let many = vec![good.clone(); 1025];
    assert_eq!(switch.refused(at_once(1, many)), Errno::NOSPC);
    assert_eq!(switch.refused(at_once(2, vec![good.clone()])), Errno::STALE);
    assert_eq!(switch.cells(1, b)[3], [0]);
    switch.done(at_once(1, vec![good]));
    assert_eq!(switch.cells(1, b)[3], [1]);
    switch.finish();
}

#[test]
fn a_meter_goes_on_over_versions_until_its_rates_change() {
    let entries = |others: u32, rates: &str| {
        let mut text = format!(
            "add l2_forward hdr.ethernet.dst:0x020000000002 forward(port:2)\n\
             add verdict colour:2 drop_counted()\n\
             meter_set_rates LimiterIngress.port_meter 2 {rates}\n"
        );
        for other in 0..others {
            text += &format!("add l2_forward hdr.ethernet.dst:0x0200000001{other:02x} forward(port:2)\n");
        }
        version("rate_limiter", &commands(&text))
    };
    // Two packets pass, and nothing is ever added.
    let few = "0:1 0:2";
    let (mut switch, mut guests) = bound(2, &entries(0, few));
    let frame = plain(1, 2, 100, 7);
    let mut sent = 0;
    let mut passes = |switch: &mut crate::support::Switch, wanted: u64| {
        let before = switch.counters(1).delivered;
        (0..4).for_each(|_| guests.get_mut(&1).unwrap().send(&frame));
        sent += 4;
        switch.until_ended(1, sent);
        (0..wanted).for_each(|_| guests.get_mut(&2).unwrap().expect_plain(&frame));
        assert_eq!(switch.counters(1).delivered - before, wanted);
    };
    passes(&mut switch, 2);
    switch.put_p4(P4, &entries(1, few), 2);
    passes(&mut switch, 0);
    switch.put_p4(P4, &entries(1, "0:1 0:3"), 3);
    passes(&mut switch, 3);
    switch.finish();
}

/// Of an entry of the rate limiter's flows. Nothing is ever added.
fn with_rates(burst: u64, others: u32) -> Vec<u8> {
    let mut text = String::from(
        "add l2_forward hdr.ethernet.dst:0x020000000002 forward(port:2)\n\
         add flows 10 src:0x020000000001 measure()\n\
         add verdict colour:2 drop_counted()\n",
    );
    for other in 0..others {
        text += &format!("add flows 20 src:0x0200000001{other:02x} measure()\n");
    }
    let (program, setup) = p4_ir::setup::decode(&version("rate_limiter", &commands(&text))).unwrap();
    let mut program = program.into_program();
    let rate = p4_ir::Rate { per_second: 0, burst };
    let mut tables = program.tables.iter_mut();
    let flows = tables.find(|table| table.meter.is_some()).unwrap();
    // The entry that is there from the start, wherever it stands.
    flows.entries.rotate_left(1.min(others as usize));
    let entry = flows
        .entries
        .iter_mut()
        .find(|entry| entry.priority == 10)
        .unwrap();
    entry.rates = Some(p4_ir::Rates {
        committed: rate,
        peak: rate,
    });
    p4_ir::setup::encode(&p4_ir::Checked::new(program).unwrap(), &setup)
}

#[test]
fn the_meter_of_an_entry_marks_its_packets_and_goes_on_until_its_rates_change() {
    let (mut switch, mut guests) = bound(3, &with_rates(250, 0));
    let frames = [1, 3].map(|from| plain(from, 2, 100, 7));
    let mut sent = 0;
    let mut passes = |switch: &mut crate::support::Switch, wanted: u64| {
        let before = switch.counters(1).delivered;
        for _ in 0..4 {
            guests.get_mut(&1).unwrap().send(&frames[0]);
        }
        sent += 4;
        switch.until_ended(1, sent);
        (0..wanted).for_each(|_| guests.get_mut(&2).unwrap().expect_plain(&frames[0]));
        assert_eq!(switch.counters(1).delivered - before, wanted);
        // A packet that no entry matches is not measured.
        guests.get_mut(&3).unwrap().send(&frames[1]);
        guests.get_mut(&2).unwrap().expect_plain(&frames[1]);
    };
    passes(&mut switch, 2);
    switch.put_p4(P4, &with_rates(250, 3), 2);
    passes(&mut switch, 0);
    switch.put_p4(P4, &with_rates(350, 3), 3);
    passes(&mut switch, 3);
    switch.put_p4(P4, &with_rates(350, 0), 4);
    passes(&mut switch, 0);
    switch.finish();
}

/// The switch with a station whose entry has an idle time, and so many others.
fn timed(others: u8) -> Vec<u8> {
    let mut text = String::from("add dmac hdr.ethernet.dst:0x020000000002 forward(port:2)\n");
    for station in (1..=1).chain(0x80..0x80 + others) {
        text +=
            &format!("add smac hdr.ethernet.src:0x0200000000{station:02x} std.ingress_port:1 NoAction()\n");
    }
    let (program, setup) = p4_ir::setup::decode(&version("l2_switch", &commands(&text))).unwrap();
    let mut program = program.into_program();
    let mut tables = program.tables.iter_mut();
    let smac = tables
        .find(|table| table.idle_timeout && !table.entries.is_empty())
        .unwrap();
    smac.entries[0].idle_timeout_ns = 1;
    p4_ir::setup::encode(&p4_ir::Checked::new(program).unwrap(), &setup)
}

#[test]
fn times_since_the_last_packet_of_an_entry_go_on_over_versions() {
    let tables = |program: &p4_ir::Program| {
        let names = program.tables.iter().map(|table| table.identity.name.clone());
        names.collect()
    };
    let smac = P4Array::Idle(number("l2_switch", tables, "smac"));
    let (mut switch, mut guests) = bound(2, &timed(0));
    let since = |switch: &mut crate::support::Switch, tag: u64| {
        let cells = switch.cells(tag, smac);
        std::time::Duration::from_nanos(cells[0][0])
    };
    let first = since(&mut switch, 1);
    assert!(since(&mut switch, 1) > first, "no packet has come");
    let (frame, mut sent) = (plain(1, 2, 100, 7), 0);
    for round in 1..=10_u8 {
        // Most of them do not run, since their verdict is kept.
        for _ in 0..4 {
            let before = Instant::now();
            guests.get_mut(&1).unwrap().send(&frame);
            guests.get_mut(&2).unwrap().expect_plain(&frame);
            sent += 1;
            switch.until_ended(1, sent);
            let passed = since(&mut switch, round.into());
            assert!(passed <= before.elapsed(), "{passed:?}");
        }
        let after = Instant::now();
        switch.put_p4(P4, &timed(round), u64::from(round) + 1);
        let at_least = after.elapsed();
        assert!(since(&mut switch, u64::from(round) + 1) >= at_least);
    }
    assert!(switch.p4_switches()[0].counts.repeated > 0);
    let dmac = P4Array::Idle(number("l2_switch", tables, "dmac"));
    let read = P4Request::Read {
        switch: P4,
        tag: 11,
        array: dmac,
        from: 0,
    };
    for wrong in [Request::P4(read), write(11, smac, 0, &[0])] {
        switch.ask(wrong).unwrap_err();
    }
    switch.finish();
}
