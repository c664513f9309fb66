//! What a program asks of the processor itself: its cycle counter ([`cycles`], [`Deadline`]), and cache lines
//! before they are needed ([`prefetch`](fn@prefetch)).
//!
//! - `clock`: the cycle counter, deadlines by it, and the kernel's cheap clocks.
//! - `prefetch`: asking for cache lines ahead.
//!
//! Allowed `unsafe`: reading the counter, the calls for the time, and the prefetch instruction, which changes
//! no memory and never faults.

mod clock;
mod prefetch;

#[cfg(feature = "assume")]
pub use clock::assume_cycles_per_us;
pub use clock::{Deadline, Rate, cycles, cycles_per_us, now_ns, now_us, processor_ns, tick_ms};
pub use prefetch::{Access, prefetch};
