//! Verdicts of P4 programs that are kept for packets of the same kind.

use crate::p4::{P4, ROUTES, bound, commands, routed, version};
use crate::support::Layout;
use crate::support::frames::{Tcp, plain};
use flow::DropReason;

/// Of each kind some frames run, and the others find their verdict: large ones, and with open checksums.
#[test]
fn packets_of_a_kind_pass_a_router_whole_without_a_run() {
    let (mut switch, mut guests) = bound(2, &version("router", &commands(ROUTES)));
    for round in 0..10 {
        for payload in [10, 1400, 9000, 65_535 - 72] {
            let tcp = Tcp::new(false, payload);
            let (frame, header) = (tcp.frame(1, 2, false), tcp.header(1400));
            guests.get_mut(&1).unwrap().send_as(&header, &frame, &Layout::One);
            let received = guests.get_mut(&2).unwrap().expect(&routed(&frame));
            let wanted = if payload > 1400 { header.gso_size } else { 0 };
            assert_eq!(
                (received.flags, received.gso_size, received.csum_start),
                (header.flags, wanted, header.csum_start),
                "{round}, {payload}"
            );
        }
    }
    switch.until_ended(1, 40);
    let counts = &switch.p4_switches()[0].counts;
    assert_eq!((counts.packets, counts.outputs), (40, 40));
    assert!(counts.repeated >= 30, "{}", counts.repeated);
    switch.finish();
}

/// Frames that ask for nothing are changed by the verdict alone, and their checksums are right.
#[test]
fn complete_frames_of_a_kind_are_changed_as_a_run_does() {
    let (mut switch, mut guests) = bound(2, &version("router", &commands(ROUTES)));
    for round in 0..20 {
        for payload in [0, 11, 700, 1400] {
            let frame = Tcp::new(false, payload).frame(1, 2, true);
            guests.get_mut(&1).unwrap().send(&frame);
            let received = guests.get_mut(&2).unwrap().expect(&routed(&frame));
            assert_eq!((received.flags, received.gso_size), (0, 0), "{round}, {payload}");
        }
    }
    switch.until_ended(1, 80);
    let counts = &switch.p4_switches()[0].counts;
    assert_eq!((counts.packets, counts.outputs), (80, 80));
    assert!(counts.repeated >= 60, "{}", counts.repeated);
    switch.finish();
}

/// Of 16 packets of a version, two kinds run once.
#[test]
fn another_version_ends_what_was_kept() {
    let forward = |port: u32| {
        let entry = format!(
            "add smac hdr.ethernet.src:0x020000000001 std.ingress_port:1 NoAction()\n\
             add dmac hdr.ethernet.dst:0x020000000002 forward(port:{port})\n\
             add dmac hdr.ethernet.dst:0x020000000004 discard()"
        );
        version("l2_switch", &commands(&entry))
    };
    let (mut switch, mut guests) = bound(3, &forward(2));
    for round in 0..4_u32 {
        let to = 2 + round % 2;
        switch.put_p4(P4, &forward(to), u64::from(round) + 1);
        for number in 0..8 {
            let frame = plain(1, 2, 60 + number, 7);
            guests.get_mut(&1).unwrap().send(&frame);
            guests.get_mut(&to).unwrap().expect_plain(&frame);
            guests.get_mut(&1).unwrap().send(&plain(1, 4, 60 + number, 7));
        }
    }
    switch.until(1, "drops of the program", |counters| {
        counters.dropped.get(DropReason::Policy) == 4 * 8
    });
    let counts = &switch.p4_switches()[0].counts;
    assert_eq!((counts.packets, counts.outputs), (64, 32));
    assert!((32..=56).contains(&counts.repeated), "{}", counts.repeated);
    switch.finish();
}
