//! Random programs are sound, and the evaluator runs them.

#![allow(clippy::unwrap_used, reason = "tests")]

use fastrand::Rng;
use p4_ir::Checked;
use p4_twin::{Evaluator, generate};

#[test]
fn random_programs_are_accepted_and_run() {
    let mut sent = 0;
    for seed in 0..300 {
        let program = generate::program(seed);
        let checked = Checked::new(program).unwrap_or_else(|error| panic!("program {seed}: {error}"));
        let mut evaluator = Evaluator::new(&checked);
        let mut random = Rng::with_seed(seed);
        for _ in 0..5 {
            sent += evaluator.run(1, &generate::packet(&mut random)).len();
        }
    }
    // Some are dropped, but not all.
    assert!(sent > 300, "{sent}");
}
