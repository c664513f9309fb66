//! What engines of P4 programs are compared with: a naive [evaluator](evaluate) of the same programs, and
//! [random programs](generate) that ask for everything at once.
//!
//! Both are for tests. They share no code with any engine, so that a fault has to be made twice to go unnoticed.

#![forbid(unsafe_code)]

pub mod evaluate;
pub mod generate;

pub use evaluate::{Evaluator, Sent};
