//! Guests that write what they like into rings, event queues and registers of a network card, and a control
//! driver that takes buffers, filters and VIs away meanwhile: 0 frames to the wrong guest, 0 bytes outside
//! registered buffers, 0 forged sources, and innocents that lose nothing.

#![allow(clippy::unwrap_used)]

mod attacks;
mod meddler;
mod twin;
mod world;

use accelerator::Match;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use smart_nic::{Descriptor, Fault, PAGE, Page};
use world::{GUESTS, INNOCENT, OUTSIDE, World, address, frame};

#[derive(Clone, Debug)]
enum Op {
    /// Frames come for a guest, or for others than guests.
    Arrive(usize, usize),
    Start(usize),
    Finish(usize),
    /// An innocent sends, or takes what has come.
    Send(usize, usize),
    Collect(usize),
    /// A hostile guest sends a frame that it has written to a page: source, destination, whose page by which
    /// number, and where the descriptor says that it lies.
    Forge(usize, [usize; 3], (u32, u32, bool)),
    /// A hostile guest gives room.
    Room(usize, usize, (u32, u32)),
    Scribble(usize, u64, u64),
    Ring(usize, u64, u32),
    ReadEvents(usize, u32),
    /// What the control driver does to a hostile guest's VI.
    Register(usize, u32),
    Unregister(usize, usize),
    Reopen(usize),
    Filter(usize, bool),
}

/// Whom frames are for, or from: guests, and then a station outside, a group, and tags of others.
fn station(which: usize) -> Match {
    let Match::Mac(first) = address(0) else {
        panic!("guest 0 has no VLAN")
    };
    match which {
        guest if guest < GUESTS => address(guest),
        4 => Match::Mac(OUTSIDE),
        5 => Match::Mac([0xff; 6]),
        6 => Match::Vlan(first, 6),
        _ => Match::Mac([1, 0, 0x5e, 0, 0, 1]),
    }
}

fn run_op(world: &mut World, op: &Op) -> Result<(), String> {
    match *op {
        Op::Arrive(which, count) => return world.arrive(station(which), count),
        Op::Start(most) => return world.start(most),
        Op::Finish(most) => return world.finish(most),
        Op::Collect(guest) => return world.collect(guest),
        Op::Reopen(guest) => return world.reopen(guest),
        Op::Send(guest, count) => world.send(guest, count),
        Op::Forge(guest, [source, destination, which], (offset, len, is_continued)) => {
            let bytes = frame(station(destination), station(source), guest as u8, 0);
            let page = Page::Buffers as usize + which % 8;
            world.scribble(guest, (page * PAGE as usize) as u64, &bytes);
            let buffer = world.number(guest, if which < 8 { page } else { which - 8 });
            let descriptor = Descriptor {
                buffer,
                offset,
                len,
                is_continued,
            };
            world.post(guest, Page::Transmit, &[descriptor]);
        }
        Op::Room(guest, which, (offset, len)) => {
            let descriptor = Descriptor {
                buffer: world.number(guest, which),
                offset,
                len,
                is_continued: false,
            };
            world.post(guest, Page::Receive, &[descriptor; 3]);
        }
        Op::Scribble(guest, at, bytes) => world.scribble(guest, at, &bytes.to_le_bytes()),
        Op::Ring(guest, at, word) => world.ring(guest, at, word),
        Op::ReadEvents(guest, more) => world.read_events(guest, more),
        Op::Register(guest, page) => world.register(guest, page),
        Op::Unregister(guest, which) => world.unregister(guest, which),
        Op::Filter(guest, is_wanted) => world.set_filter(guest, is_wanted),
    }
    Ok(())
}

/// Offsets and lengths: often a frame's, sometimes beyond the page.
fn extent() -> impl Strategy<Value = (u32, u32)> {
    let odd = || {
        prop_oneof![
            0..80u32,
            4000..4200u32,
            Just(u32::MAX),
            Just(u32::MAX - 4095),
            any::<u32>()
        ]
    };
    prop_oneof![
        6 => Just((0, 60)),
        4 => Just((0, 2048)),
        3 => (4000..4096u32).prop_map(|offset| (offset, 60)),
        2 => (odd(), odd()),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let hostile = || INNOCENT..GUESTS;
    let innocent = || 0..INNOCENT;
    let forge = (hostile(), [0..8usize, 0..8, 0..70], extent(), any::<u8>());
    let word = prop_oneof![0..600u32, any::<u32>()];
    prop_oneof![
        8 => (0..8usize, 1..6usize).prop_map(|(which, count)| Op::Arrive(which, count)),
        8 => (1..8usize).prop_map(Op::Start),
        8 => (1..12usize).prop_map(Op::Finish),
        6 => (innocent(), 1..6usize).prop_map(|(guest, count)| Op::Send(guest, count)),
        6 => innocent().prop_map(Op::Collect),
        12 => forge.prop_map(|(guest, who, (offset, len), continued)| {
            // An own source and a station outside more often than not.
            let [source, destination, which] = who;
            let source = if source > 4 { guest } else { source };
            let destination = if destination > 5 { 4 } else { destination };
            Op::Forge(guest, [source, destination, which], (offset, len, continued < 40))
        }),
        8 => (hostile(), 0..60usize, extent()).prop_map(|(guest, which, at)| Op::Room(guest, which, at)),
        3 => (hostile(), 0..13 * 4096u64, any::<u64>())
            .prop_map(|(guest, at, bytes)| Op::Scribble(guest, at, bytes)),
        1 => (hostile(), 0..64u64, word).prop_map(|(guest, at, word)| Op::Ring(guest, at, word)),
        3 => (hostile(), 0..4u32).prop_map(|(guest, more)| Op::ReadEvents(guest, more)),
        3 => (hostile(), 0..14u32).prop_map(|(guest, page)| Op::Register(guest, page)),
        3 => (hostile(), 0..30usize).prop_map(|(guest, which)| Op::Unregister(guest, which)),
        2 => hostile().prop_map(Op::Reopen),
        3 => (hostile(), any::<bool>()).prop_map(|(guest, is_wanted)| Op::Filter(guest, is_wanted)),
    ]
}

fn run(ops: &[Op], fault: Option<Fault>) -> Result<World, String> {
    let mut world = World::new(fault);
    for (at, op) in ops.iter().enumerate() {
        run_op(&mut world, op).map_err(|what| format!("{at}: {op:?}: {what}"))?;
    }
    world.settle()?;
    Ok(world)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn hostile_guests_reach_nothing_of_others(ops in prop::collection::vec(op(), 1..200)) {
        if let Err(what) = run(&ops, None) {
            prop_assert!(false, "{}", what);
        }
    }
}

/// Every fault that the card can have is seen by an attack or by guests that do what they like.
#[test]
fn the_suite_sees_each_fault() {
    let ops = prop::collection::vec(op(), 100..200);
    for fault in Fault::ALL {
        let is_seen = attacks::ALL.iter().any(|(_, attack)| {
            let mut world = World::new(Some(fault));
            attack(&mut world).and_then(|()| world.settle()).is_err()
        });
        let mut runner = TestRunner::deterministic();
        let mut fails = || run(&ops.new_tree(&mut runner).unwrap().current(), Some(fault)).is_err();
        assert!(is_seen, "{fault:?}: no attack");
        if fault != Fault::EventOverflow {
            assert!((0..200).any(|_| fails()), "{fault:?}: no random guests");
        }
    }
}
