//! A library preloaded into User Mode Linux, which mends two faults of it: it does not run on processors with
//! large register sets (`xstate`), and it misses wake-ups (`idle`).

#![cfg(target_arch = "x86_64")]

mod idle;
mod xstate;
