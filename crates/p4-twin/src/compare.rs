//! The interpreter beside the evaluator: the same packets, one after the other, since registers keep what they hold.

use crate::evaluate::{Evaluator, Sent};
use crate::generate;
use fastrand::Rng;
use p4_interpreter::{Collected, Context, Engine, Nobody, Packet, State, StateLimits};
use p4_ir::{Checked, Program};

/// Runs `packets` random packets through the random program of that seed in both; the first difference, in words.
///
/// # Errors
/// The difference, or why one of them does not take the program.
pub fn compare(seed: u64, packets: u32) -> Result<usize, String> {
    compare_program(generate::program(seed), seed, packets)
}

/// As [`compare`], with a [rich program](generate::rich_program).
///
/// # Errors
/// The same.
pub fn compare_rich(seed: u64, packets: u32) -> Result<usize, String> {
    compare_program(generate::rich_program(seed), seed, packets)
}

fn compare_program(program: Program, seed: u64, packets: u32) -> Result<usize, String> {
    let checked = Checked::new(program).map_err(|error| format!("program {seed} is refused: {error}"))?;
    let engine = Engine::new(checked.clone()).map_err(|error| format!("program {seed}: {error}"))?;
    let state =
        State::new(&engine, StateLimits::default()).map_err(|error| format!("program {seed}: {error}"))?;
    let mut context = Context::new(&engine, seed);
    let mut evaluator = Evaluator::new(&checked);
    let mut random = Rng::with_seed(seed ^ 0x7077_6974);
    let mut sent = 0;
    for number in 0..packets {
        let bytes = generate::packet(&mut random);
        let port = random.u32(..8);
        let mut collected = Collected::default();
        engine.run(
            &state.read(),
            &mut context,
            &Packet::whole(port, &bytes),
            u64::from(number),
            &mut collected,
            &mut Nobody,
        );
        let found: Vec<Sent> = collected
            .outputs
            .into_iter()
            .map(|(port, bytes)| Sent { port, bytes })
            .collect();
        let expected = evaluator.run(port, &bytes);
        if found != expected {
            return Err(format!(
                "program {seed}, packet {number} by port {port}: {bytes:02x?}\n  interpreter: {found:02x?} ({:?})\n  evaluator: \
                 {expected:02x?}",
                collected.drops
            ));
        }
        sent += found.len();
    }
    Ok(sent)
}
