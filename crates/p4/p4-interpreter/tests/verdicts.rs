//! Verdicts of programs that are kept: the project's own programs give the same packets with and without.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Bench, Key, udp};
use p4_interpreter::{Collected, Context, End, KeyMasks, Mask, NoObserver, Notes, Packet, Verdict, Verdicts};

/// A program whose verdicts are kept.
struct Kept {
    bench: Bench,
    masks: KeyMasks,
    mask: Mask,
    verdicts: Verdicts,
}

impl Kept {
    fn new(bench: Bench) -> Kept {
        Kept {
            masks: KeyMasks::new(&bench.engine, &bench.state),
            bench,
            mask: Mask::default(),
            verdicts: Verdicts::default(),
        }
    }

    fn run(&self, bytes: &[u8]) -> (Vec<(u32, Vec<u8>)>, Option<Verdict>) {
        let mut notes = Notes::new(&self.bench.engine, &self.masks);
        let (mut context, mut sink) = (Context::new(&self.bench.engine, 1), Collected::default());
        let (guard, packet) = (self.bench.state.read(), Packet::whole(1, bytes));
        let engine = &self.bench.engine;
        engine.run(&guard, &mut context, &packet, 0, &mut sink, &mut notes);
        (sink.outputs, notes.verdict())
    }

    /// Runs a packet and keeps its verdict. Says whether there was one.
    fn keep(&mut self, bytes: &[u8]) -> bool {
        let Some(verdict) = self.run(bytes).1 else {
            return false;
        };
        self.verdicts.keep(&mut self.mask, 1, bytes, verdict);
        true
    }

    /// What leaves for a packet whose verdict is found, after a comparison with a run.
    fn again(&self, bytes: &[u8]) -> Option<Option<(u32, Vec<u8>)>> {
        let verdict = self.verdicts.get(self.verdicts.find(&self.mask, 1, bytes, 0)?)?;
        let mut sink = Collected::default();
        let mut context = Context::new(&self.bench.engine, 1);
        let guard = self.bench.state.read();
        let packet = Packet::whole(1, bytes);
        let engine = &self.bench.engine;
        engine.run(&guard, &mut context, &packet, 0, &mut sink, &mut NoObserver);
        let sent = match verdict.end() {
            End::Leaves(port) => {
                let mut bytes = bytes.to_vec();
                verdict.edit(&mut bytes);
                Some((port, bytes))
            }
            End::Dropped(_) => None,
        };
        assert_eq!(sent.iter().cloned().collect::<Vec<_>>(), sink.outputs);
        Some(sent)
    }
}

fn router() -> Kept {
    let bench = Bench::new("router");
    bench.add("router_mac", &[Key::Is(1), Key::Is(2)], "take", &[]);
    bench.add("routes", &[Key::Prefix(0x0A01_0000, 16)], "via", &[7]);
    bench.add("next_hops", &[Key::Is(7)], "send", &[2, 0x0200_0000_0909]);
    bench.add("port_mac", &[Key::Is(2)], "leave_as", &[0x0200_0000_0808]);
    Kept::new(bench)
}

fn with_sum(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[24..26].fill(0);
    let sum = p4_interpreter::hash::Algorithm::Csum16.hash(&bytes[14..34]) as u16;
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn packet(id: u16, to: u32, len: usize) -> Vec<u8> {
    let mut bytes = udp(2, 1, 0x0A00_0001, to, (1, 2), len);
    bytes[18..20].copy_from_slice(&id.to_be_bytes());
    with_sum(bytes)
}

/// Identification, length and checksum differ from packet to packet of one flow.
#[test]
fn packets_of_a_flow_through_a_router_have_one_verdict() {
    let mut kept = router();
    assert!(kept.keep(&packet(1, 0x0A01_0203, 64)));
    for (id, len) in [(2, 64), (0xFFFF, 64), (77, 300)] {
        let (port, bytes) = kept.again(&packet(id, 0x0A01_0203, len)).unwrap().unwrap();
        assert_eq!((port, bytes[22]), (2, packet(id, 0x0A01_0203, len)[22] - 1));
        assert_eq!(bytes[..12], [2, 0, 0, 0, 9, 9, 2, 0, 0, 0, 8, 8]);
    }
    assert!(
        kept.again(&packet(1, 0x0A01_F203, 64)).is_some(),
        "the prefix decides"
    );
    assert!(
        kept.again(&packet(1, 0x0A02_0203, 64)).is_none(),
        "another network"
    );
}

#[test]
fn wrong_checksums_have_no_verdict_and_find_none() {
    let mut kept = router();
    assert!(kept.keep(&packet(1, 0x0A01_0203, 64)));
    let mut wrong = packet(1, 0x0A01_0203, 64);
    wrong[25] ^= 1;
    assert!(kept.again(&wrong).is_none());
    assert!(!kept.keep(&wrong));
    assert!(kept.again(&packet(2, 0x0A01_0203, 64)).is_some());
}

/// A frame that ends within a header agrees with a whole one in all bits that it has.
#[test]
fn short_packets_find_no_verdict() {
    for length in 14..34 {
        let mut kept = router();
        let whole = packet(1, 0x0A01_0203, 64);
        assert!(kept.keep(&whole));
        assert!(kept.again(&whole[..length]).is_none(), "{length}");
        assert!(!kept.keep(&whole[..length]), "{length}");
    }
}

/// Every change of one bit finds the right verdict or none.
#[test]
fn each_bit_that_decides_is_in_the_key() {
    let mut kept = router();
    assert!(kept.keep(&packet(1, 0x0A01_0203, 64)));
    let mut found = 0;
    for bit in 0..42 * 8 {
        let mut bytes = packet(1, 0x0A01_0203, 64);
        bytes[bit / 8] ^= 0x80 >> (bit % 8);
        found += usize::from(kept.again(&bytes).is_some());
        if !(24..26).contains(&(bit / 8)) {
            found += usize::from(kept.again(&with_sum(bytes)).is_some());
        }
    }
    assert!(found > 100, "{found}");
}

#[test]
fn a_switch_keeps_what_it_forwards_and_not_what_it_learns_or_floods() {
    let bench = Bench::new("l2_switch");
    bench.add("smac", &[Key::Is(1), Key::Is(1)], "NoAction", &[]);
    bench.add("dmac", &[Key::Is(2)], "forward", &[3]);
    let mut kept = Kept::new(bench);
    let frame = |to, from| udp(to, from, 1, 2, (1, 2), 64);
    assert!(kept.keep(&frame(2, 1)));
    let (port, bytes) = kept.again(&frame(2, 1)).unwrap().unwrap();
    assert_eq!((port, bytes), (3, frame(2, 1)));
    assert!(!kept.keep(&frame(2, 9)), "a digest");
    assert!(!kept.keep(&frame(9, 1)), "to several ports");
}

#[test]
fn the_last_of_more_kinds_than_there_is_room_for_is_kept() {
    let mut kept = router();
    for host in 0..10_000_u32 {
        assert!(kept.keep(&packet(1, 0x0A01_0000 + (host << 16), 64)));
    }
    assert!(kept.again(&packet(1, 0x0A01_0000 + (9_999 << 16), 64)).is_some());
}
