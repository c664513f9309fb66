//! Lengths of queues, of which egress is told by whoever takes the packets.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Bench, Key, programs, udp};
use p4_interpreter::{Collected, Context, KeyMasks, Notes, Output, Packet, Sink, Verdict};

/// Takes packets for a port whose queue has some.
struct Queue {
    depth: u32,
    left: Collected,
    asked: std::cell::Cell<Vec<u32>>,
}

impl Sink for Queue {
    fn output(&mut self, output: &Output<'_>) {
        self.left.output(output);
    }

    fn queue_depth(&self, port: u32) -> u32 {
        let mut asked = self.asked.take();
        asked.push(port);
        self.asked.set(asked);
        self.depth
    }
}

/// The project's router, which looks for the packet's new address by `field` instead of the port.
fn router(field: &str) -> Bench {
    let text = std::fs::read_to_string(programs().join("router/router.json")).unwrap();
    let key = r#""target" : ["standard_metadata", "egress_port"]"#;
    assert_eq!(text.matches(key).count(), 1);
    let text = text.replace(key, &key.replace("egress_port", field));
    let bench = Bench::of(text.as_bytes());
    bench.add("router_mac", &[Key::Is(1), Key::Is(2)], "take", &[]);
    bench.add("routes", &[Key::Prefix(0x0A01_0000, 16)], "via", &[7]);
    bench.add("next_hops", &[Key::Is(7)], "send", &[2, 0x0200_0000_0909]);
    let all = if field == "egress_port" { 1 } else { 3 };
    for depth in [2, 5, (1 << 19) - 1].into_iter().take(all) {
        bench.add("port_mac", &[Key::Is(depth)], "leave_as", &[depth]);
    }
    bench
}

/// The address that a packet leaves with, the ports whose queues were asked for, and its verdict.
fn send(bench: &Bench, depth: u32) -> (u64, Vec<u32>, Option<Verdict>) {
    let mut bytes = udp(2, 1, 0x0A00_0001, 0x0A01_0203, (1, 2), 64);
    bytes[24..26].fill(0);
    let sum = p4_interpreter::hash::Algorithm::Csum16.hash(&bytes[14..34]) as u16;
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    let mut sink = Queue {
        depth,
        left: Collected::default(),
        asked: Default::default(),
    };
    let masks = KeyMasks::new(&bench.engine, &bench.state);
    let mut notes = Notes::new(&bench.engine, &masks);
    let (engine, guard) = (&bench.engine, bench.state.read());
    let mut context = Context::new(engine, 1);
    let packet = Packet::whole(1, &bytes);
    engine.run(&guard, &mut context, &packet, 0, &mut sink, &mut notes);
    let [(2, left)] = &sink.left.outputs[..] else {
        panic!("{:?}", sink.left)
    };
    let address: [u8; 8] = [&[0, 0], &left[6..12]].concat().try_into().unwrap();
    (u64::from_be_bytes(address), sink.asked.take(), notes.verdict())
}

#[test]
fn a_program_that_reads_a_depth_is_told_of_it_and_has_no_verdict() {
    for field in ["enq_qdepth", "deq_qdepth"] {
        let bench = router(field);
        for (depth, told) in [
            (2, 2),
            (5, 5),
            (1 << 19, (1 << 19) - 1),
            (u32::MAX, (1 << 19) - 1),
        ] {
            let (address, asked, verdict) = send(&bench, depth);
            assert_eq!((address, asked), (told, vec![2]), "{field}");
            assert!(verdict.is_none(), "{field}: the next packet finds another depth");
        }
    }
}

#[test]
fn a_program_that_reads_none_is_not_told() {
    let (address, asked, verdict) = send(&router("egress_port"), 5);
    assert_eq!((address, asked), (2, vec![]));
    assert!(verdict.is_some());
}
