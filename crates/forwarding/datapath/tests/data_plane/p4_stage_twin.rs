//! Random programs as stages of a port, whose order changes, beside the naive evaluator: each packet arrives
//! as the evaluator's programs leave it, one after the other, or does not.

use crate::p4_stages::{at, joined};
use control_protocol::p4::{P4Request, USUAL_OPERATIONS};
use fastrand::Rng;
use flow::P4Id;
use p4_ir::Checked;
use p4_ir::setup::{self, Setup};
use p4_twin::evaluate::Evaluator;
use p4_twin::generate;

/// Sets of stages, and packets through each of their orders.
const SETS: usize = 24;
const PACKETS: usize = 12;

/// Shortest frame.
const SHORTEST: usize = 14;

/// A program that the data plane takes, and its bytes.
fn program(random: &mut Rng) -> (Checked, Vec<u8>) {
    loop {
        let seed = random.u64(..generate::LATER_SEEDS);
        let program = match random.u32(..3) {
            0 => generate::program(seed),
            1 => generate::rich_program(seed),
            _ => generate::plain_program(seed),
        };
        let Ok(checked) = Checked::new(program) else {
            continue;
        };
        let bytes = setup::encode(&checked, &Setup::default());
        if datapath::check_p4(&bytes, USUAL_OPERATIONS, 2).is_ok() {
            return (checked, bytes);
        }
    }
}

/// A frame, at times one that was there before.
fn frame(random: &mut Rng, former: &mut Vec<Vec<u8>>) -> Vec<u8> {
    if let Some(frame) = random.choice(&*former).filter(|_| random.bool()) {
        return frame.clone();
    }
    let mut frame = generate::packet(random);
    frame.resize(frame.len().max(SHORTEST), 0);
    former.push(frame.clone());
    frame
}

#[test]
fn random_programs_as_stages_do_as_the_evaluator() {
    let (mut switch, [mut from, mut to]) = joined();
    let mut random = Rng::with_seed(39);
    let (mut sent, mut passed) = (0, 0);
    for set in 0..SETS {
        let count = 1 + set % 4;
        let programs: Vec<_> = std::iter::repeat_with(|| program(&mut random))
            .take(count)
            .collect();
        let mut stages = Vec::new();
        for ((checked, bytes), number) in programs.iter().zip(1_u16..) {
            let id = P4Id(number.into());
            switch.put_p4(id, bytes, 1);
            stages.push((at(id, number), Evaluator::new(checked)));
        }
        let mut former = Vec::new();
        for order in 0..2 {
            let places: Vec<_> = stages.iter().map(|(place, _)| *place).collect();
            switch.stage(1, &places);
            for _ in 0..PACKETS {
                let frame = frame(&mut random, &mut former);
                from.send(&frame);
                sent += 1;
                let left = stages.iter_mut().try_fold(frame, |frame, (place, evaluator)| {
                    let left = evaluator.run(place.port.into(), &frame).pop()?.bytes;
                    Some(left).filter(|left| left.len() >= SHORTEST)
                });
                if let Some(left) = left {
                    to.expect_plain(&left);
                    passed += 1;
                }
                switch.until_ended(1, sent);
            }
            assert_eq!(to.try_receive(), None, "set {set}, order {order}");
            stages.reverse();
        }
        switch.stage(1, &[]);
        for number in 1..=count as u32 {
            switch.p4(P4Request::Delete { switch: P4Id(number) });
        }
    }
    assert!((sent / 8..sent).contains(&passed), "{passed} of {sent} passed");
    switch.finish();
}
