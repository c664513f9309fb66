//! What a version of a P4 program leaves to the next, and what a controller reads and sets meanwhile.

use crate::p4::{P4, bound, commands, script_of, version};
use crate::support::control::Controller;
use crate::support::frames::{Tcp, plain};
use control_protocol::data_plane::{Answer, Request};
use control_protocol::p4::{P4Answer, P4Array, P4Request};
use p4_stf::script::Command;
use rustix::io::Errno;

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

#[test]
fn registers_outlive_their_version_and_can_be_read_and_set() {
    let (packets, given): (Vec<_>, Vec<_>) = script_of("stateful_firewall")
        .into_iter()
        .filter(|command| !matches!(command, Command::Expect(..)))
        .partition(|command| matches!(command, Command::Packet(..)));
    let bytes = |at: usize| match &packets[at] {
        Command::Packet(_, bytes) => bytes.clone(),
        other => panic!("{other:?}"),
    };
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
