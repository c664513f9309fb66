//! The interpreter beside the evaluator: the same packets, one after the other, since registers keep their
//! values.

use crate::evaluate::{Evaluator, Sent};
use crate::generate;
use fastrand::Rng;
use p4_interpreter::{Collected, Context, Engine, NoObserver, Packet, State, StateLimits};
use p4_ir::{CheckError, Checked, Program};

/// Why interpreter and evaluator do not agree about a program.
#[derive(Debug, thiserror::Error)]
pub enum Difference {
    /// The checker does not take a program that should be correct.
    #[error("program {seed} is refused: {error}")]
    Refused {
        /// Seed of the program.
        seed: u64,
        /// Why.
        error: CheckError,
    },
    /// The interpreter does not take a program that the checker took.
    #[error("program {seed}: {error}")]
    NotLoaded {
        /// Seed of the program.
        seed: u64,
        /// Why.
        error: p4_interpreter::Error,
    },
    /// A packet left otherwise.
    #[error(
        "program {seed}, packet {number} by port {port}: {bytes:02x?}\n  interpreter: {found:02x?} ({drops})\n  evaluator: \
         {expected:02x?}"
    )]
    Packet {
        /// Seed of the program.
        seed: u64,
        /// Which packet, from 0.
        number: u32,
        /// Port at which the packet arrived.
        port: u32,
        /// Bytes of the packet.
        bytes: Vec<u8>,
        /// The packets that the interpreter sent.
        found: Vec<Sent>,
        /// The packets that the interpreter dropped, by reason.
        drops: String,
        /// The packets that the evaluator sent.
        expected: Vec<Sent>,
    },
    /// Packets were counted otherwise where their verdicts were kept.
    #[error("program {seed}: {kept} with verdicts, {plain} without")]
    Counts {
        /// Seed of the program.
        seed: u64,
        /// Counts with kept verdicts.
        kept: String,
        /// Counts without.
        plain: String,
    },
}

/// Runs `packets` random packets through the random program of that seed in both; returns how many left.
///
/// # Errors
/// The first difference, or why one of them does not take the program.
pub fn compare(seed: u64, packets: u32) -> Result<usize, Difference> {
    compare_program(generate::program(seed), seed, packets)
}

/// As [`compare`], with a [rich program](generate::rich_program).
///
/// # Errors
/// As of [`compare`].
pub fn compare_rich(seed: u64, packets: u32) -> Result<usize, Difference> {
    compare_program(generate::rich_program(seed), seed, packets)
}

/// As [`compare`], with a [plain program](generate::plain_program).
///
/// # Errors
/// As of [`compare`].
pub fn compare_plain(seed: u64, packets: u32) -> Result<usize, Difference> {
    compare_program(generate::plain_program(seed), seed, packets)
}

fn compare_program(program: Program, seed: u64, packets: u32) -> Result<usize, Difference> {
    let checked = Checked::new(program).map_err(|error| Difference::Refused { seed, error })?;
    let not_loaded = |error| Difference::NotLoaded { seed, error };
    let engine = Engine::new(checked.clone()).map_err(not_loaded)?;
    let state = State::new(&engine, StateLimits::default()).map_err(not_loaded)?;
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
            &mut NoObserver,
        );
        let found: Vec<Sent> = collected
            .outputs
            .into_iter()
            .map(|(port, bytes)| Sent { port, bytes })
            .collect();
        let expected = evaluator.run(port, &bytes);
        if found != expected {
            return Err(Difference::Packet {
                seed,
                number,
                port,
                bytes,
                found,
                drops: format!("{:?}", collected.drops),
                expected,
            });
        }
        sent += found.len();
    }
    Ok(sent)
}
