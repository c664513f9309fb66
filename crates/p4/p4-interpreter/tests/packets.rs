//! Promises of engines beyond a program's semantics: heads and tails, bounds, separate state, notes.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Bench, Key, programs, udp};
use p4_interpreter::{
    CloneSession, Collected, Context, Drop, Engine, Error, KeyMasks, MAX_COPIES, MAX_PASSES, NoObserver,
    Notes, Packet, Replica, State, StateLimits, Tail,
};
use std::cell::Cell;

fn malicious(name: &str) -> Vec<u8> {
    std::fs::read(programs().join(format!("malicious/{name}/{name}.json"))).unwrap()
}

fn router() -> Bench {
    let bench = Bench::new("router");
    bench.add("router_mac", &[Key::Is(1), Key::Is(2)], "take", &[]);
    bench.add("routes", &[Key::Prefix(0x0A00_0000, 8)], "via", &[1]);
    bench.add("next_hops", &[Key::Is(1)], "send", &[2, 3]);
    bench
}

/// A tail that counts how often each byte is read.
struct Watched<'a> {
    bytes: &'a [u8],
    reads: Vec<Cell<u32>>,
}

impl Tail for Watched<'_> {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn read(&self, offset: usize, to: &mut [u8]) {
        for (at, to) in to
            .iter_mut()
            .enumerate()
            .take(self.bytes.len().saturating_sub(offset))
        {
            *to = self.bytes[offset + at];
            self.reads[offset + at].set(self.reads[offset + at].get() + 1);
        }
    }
}

/// Every split of a packet into head and tail gives the same output; and bytes of the tail are read once at
/// most while the program runs.
#[test]
fn heads_of_any_length_give_the_same() {
    let bench = router();
    let mut context = Context::new(&bench.engine, 1);
    let bytes = udp(2, 1, 0x0A00_0001, 0x0A01_0203, (1, 2), 300);
    let mut expected = Collected::default();
    bench.engine.run(
        &bench.state.read(),
        &mut context,
        &Packet::whole(1, &bytes),
        0,
        &mut expected,
        &mut NoObserver,
    );
    assert_eq!(expected.outputs[0].1.len(), 300);
    for split in [0, 1, 13, 14, 33, 34, 64, 128, 299, 300] {
        let (head, rest) = bytes.split_at(split);
        let tail = Watched {
            bytes: rest,
            reads: vec![Cell::new(0); rest.len()],
        };
        let packet = Packet {
            port: 1,
            head,
            tail: &tail,
        };
        struct Silent(Option<u32>);
        impl p4_interpreter::Sink for Silent {
            fn output(&mut self, output: &p4_interpreter::Output<'_>) {
                self.0 = Some(output.port);
            }
        }
        let mut silent = Silent(None);
        bench.engine.run(
            &bench.state.read(),
            &mut context,
            &packet,
            0,
            &mut silent,
            &mut NoObserver,
        );
        assert_eq!(silent.0, Some(2), "split at {split}");
        assert!(
            tail.reads.iter().all(|reads| reads.get() <= 1),
            "split at {split}"
        );
        let mut sink = Collected::default();
        bench.engine.run(
            &bench.state.read(),
            &mut context,
            &packet,
            0,
            &mut sink,
            &mut NoObserver,
        );
        assert_eq!(sink.outputs, expected.outputs, "split at {split}");
    }
}

#[test]
fn packets_of_any_length_and_content_end() {
    for name in [
        "router",
        "kitchen_sink",
        "telemetry",
        "vxlan_gateway",
        "load_balancer",
    ] {
        let mut bench = Bench::new(name);
        let full = udp(2, 1, 0x0A00_0001, 0x0A01_0203, (4789, 4789), 200);
        for length in 0..full.len() {
            bench.send(1, &full[..length]);
        }
        for byte in 0..60 {
            for value in [0, 1, 0x7F, 0x80, 0xFF] {
                let mut packet = full.clone();
                packet[byte] = value;
                bench.send(511, &packet);
            }
        }
    }
}

#[test]
fn passes_and_copies_are_bounded_and_counted() {
    let ports: Vec<Replica> = (1..=4).map(|port| Replica { port, rid: 1 }).collect();
    for name in [
        "resubmit_always",
        "recirculate_always",
        "clone_to_itself",
        "clone_doubling",
        "multicast_storm",
    ] {
        let mut bench = Bench::of(&malicious(name));
        bench
            .state
            .set_session(
                1,
                CloneSession {
                    replicas: ports[..1].into(),
                    ..CloneSession::default()
                },
            )
            .unwrap();
        bench.state.set_group(1, &ports).unwrap();
        let sent = bench.send(1, &[0xAB; 300]);
        assert!(sent.outputs.len() <= MAX_COPIES, "{name}: {}", sent.outputs.len());
        let bounded = sent
            .drops
            .iter()
            .filter(|drop| matches!(drop, Drop::Passes | Drop::Copies))
            .count();
        assert!(bounded > 0, "{name}: {:?}", sent.drops);
        let counts = bench.context.counts();
        assert_eq!(
            counts.dropped(Drop::Passes) + counts.dropped(Drop::Copies),
            bounded as u64,
            "{name}"
        );
    }
    let mut bench = Bench::of(&malicious("growing_packet"));
    let sent = bench.send(1, &[0xAB; 300]);
    let longest = sent
        .outputs
        .iter()
        .map(|(_, bytes)| bytes.len())
        .max()
        .unwrap_or(0);
    assert!(longest <= 300 + 64 * usize::from(MAX_PASSES), "{longest}");
    assert!(!sent.drops.is_empty());
}

#[test]
fn indices_beyond_arrays_touch_nothing() {
    let mut bench = Bench::of(&malicious("register_out_of_range"));
    for index in [0_u32, 3, 4, 5, 0xFFFF, u32::MAX] {
        let mut packet = vec![0; 64];
        packet[14..18].copy_from_slice(&index.to_be_bytes());
        packet[18..22].copy_from_slice(&index.to_be_bytes());
        packet[22..26].copy_from_slice(&7_u32.to_be_bytes());
        bench.send(1, &packet);
    }
}

#[test]
fn state_is_bounded_before_it_is_made() {
    let bench = Bench::new("stateful_firewall");
    let limits = StateLimits {
        bytes: 1024,
        ..StateLimits::default()
    };
    match State::new(&bench.engine, limits) {
        Err(Error::TooMuchState {
            bytes, limit: 1024, ..
        }) => assert!(bytes > 1024),
        other => panic!("{other:?}"),
    }
    let limits = StateLimits {
        groups: 1,
        replicas: 2,
        sessions: 1,
        ..StateLimits::default()
    };
    let state = State::new(&bench.engine, limits).unwrap();
    let replica = Replica { port: 1, rid: 0 };
    assert!(state.set_group(0, &[replica]).is_err());
    assert!(state.set_group(1, &[replica; 3]).is_err());
    state.set_group(1, &[replica; 2]).unwrap();
    assert!(state.set_group(2, &[replica]).is_err());
    state.set_group(1, &[replica]).unwrap();
    state.set_session(7, CloneSession::default()).unwrap();
    assert!(state.set_session(8, CloneSession::default()).is_err());
    assert!(state.register(p4_ir::RegisterId(0), u64::MAX).is_err());
    assert!(state.counter(p4_ir::CounterId(9), 0).is_err());
}

/// One engine with two states: a change of one does not appear in the other.
#[test]
fn states_are_apart() {
    let bench = router();
    let other = State::new(&bench.engine, StateLimits::default()).unwrap();
    let mut context = Context::new(&bench.engine, 1);
    let bytes = udp(2, 1, 0x0A00_0001, 0x0A01_0203, (1, 2), 64);
    let mut run = |state: &State| {
        let mut sink = Collected::default();
        bench.engine.run(
            &state.read(),
            &mut context,
            &Packet::whole(1, &bytes),
            0,
            &mut sink,
            &mut NoObserver,
        );
        sink.outputs.len()
    };
    assert_eq!((run(&bench.state), run(&other), run(&bench.state)), (1, 0, 1));
}

/// Several workers share an engine and a state.
#[test]
fn workers_share_engine_and_state() {
    let bench = router();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut context = Context::new(&bench.engine, 1);
                let bytes = udp(2, 1, 0x0A00_0001, 0x0A01_0203, (1, 2), 64);
                for _ in 0..200 {
                    let mut sink = Collected::default();
                    let packet = Packet::whole(1, &bytes);
                    bench.engine.run(
                        &bench.state.read(),
                        &mut context,
                        &packet,
                        0,
                        &mut sink,
                        &mut NoObserver,
                    );
                    assert_eq!(sink.outputs.len(), 1);
                }
            });
        }
    });
}

fn notes<'a>(engine: &'a Engine, masks: &'a KeyMasks, state: &State, bytes: &[u8]) -> Notes<'a> {
    let mut notes = Notes::new(engine, masks);
    let mut context = Context::new(engine, 1);
    let mut sink = Collected::default();
    engine.run(
        &state.read(),
        &mut context,
        &Packet::whole(1, bytes),
        0,
        &mut sink,
        &mut notes,
    );
    notes
}

#[test]
fn a_switch_decides_by_addresses_and_moves_the_rest() {
    let bench = Bench::new("firewall");
    bench.add("l2_forward", &[Key::Is(2)], "forward", &[3]);
    let masks = KeyMasks::new(&bench.engine, &bench.state);
    let notes = notes(
        &bench.engine,
        &masks,
        &bench.state,
        &udp(2, 1, 0x0A00_0001, 0x0A01_0203, (1, 2), 64),
    );
    assert!(notes.is_exact());
    let (decided, moved) = (notes.decided(), notes.moved());
    assert_eq!(decided[..6], [0xFF; 6], "the receiver's address");
    assert_eq!(decided[6..12], [0; 6], "not the sender's");
    assert_eq!(moved[6..12], [0xFF; 6]);
    assert_eq!(decided[12..14], [0xFF; 2], "the parser's select");
    assert_eq!(decided[26..34], [0; 8], "no rule looks at addresses");
    assert!(!notes.asked_state() && !notes.looked_at_payload());
}

/// Notes are true: a packet that differs only in bits that did not decide leaves by the same port.
#[test]
fn bits_that_did_not_decide_do_not_matter() {
    let bench = router();
    let bytes = udp(2, 1, 0x0A00_0001, 0x0A01_0203, (1, 2), 64);
    let masks = KeyMasks::new(&bench.engine, &bench.state);
    let noted = notes(&bench.engine, &masks, &bench.state, &bytes);
    let (decided, computed) = (noted.decided(), noted.computed());
    assert!(computed.iter().any(|&byte| byte != 0), "the TTL is lowered");
    let mut context = Context::new(&bench.engine, 1);
    for bit in 0..decided.len() * 8 {
        if decided[bit / 8] & (0x80 >> (bit % 8)) != 0 {
            continue;
        }
        let mut other = bytes.clone();
        other[bit / 8] ^= 0x80 >> (bit % 8);
        if (24..26).contains(&(bit / 8)) {
            continue;
        }
        // That the checksum is right is a condition of its own.
        other[24..26].fill(0);
        let sum = p4_interpreter::hash::Algorithm::Csum16.hash(&other[14..34]) as u16;
        other[24..26].copy_from_slice(&sum.to_be_bytes());
        let mut sink = Collected::default();
        bench.engine.run(
            &bench.state.read(),
            &mut context,
            &Packet::whole(1, &other),
            0,
            &mut sink,
            &mut NoObserver,
        );
        assert_eq!(sink.outputs.len(), 1, "bit {bit}");
        assert_eq!(sink.outputs[0].0, 2, "bit {bit}");
    }
}
