//! The reference for engines of P4 programs: a naive [evaluator](evaluate) of the same programs, [random
//! programs](generate) that ask for everything at once, and the [comparison](compare) with the interpreter,
//! also where it [keeps verdicts](verdicts).
//!
//! All of it is for tests. The evaluator shares no code with any engine, so that a fault has to be made twice
//! to go unnoticed.
//!
//! `cargo run --release -p p4-twin -- --programs 100000` compares more than the tests do. `--rich` adds
//! unions, stacks of them, copies of stacks and variable fields, and references that are found at run time.
//! Seeds from 4294967296 on add loops in actions.

#![forbid(unsafe_code)]

pub mod compare;
pub mod evaluate;
pub mod generate;
pub mod verdicts;
