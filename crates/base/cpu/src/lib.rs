//! What a program asks of the processor itself: its cycle counter ([`cycles`], [`Deadline`]), cache lines
//! before they are needed ([`prefetch`](fn@prefetch)), and whether the thread has lost its core
//! ([`has_kept_core`]).
//!
//! - `clock`: the cycle counter, deadlines by it, and the kernel's cheap clocks.
//! - `core_loss`: whether the thread has lost its core.
//! - `prefetch`: asking for cache lines ahead.
//!
//! Allowed `unsafe`: reading the counter, the calls for the time, the thread's area of restartable sequences,
//! and the prefetch instruction, which changes no memory and never faults.

mod clock;
mod core_loss;
mod prefetch;

#[cfg(feature = "assume")]
pub use clock::assume_cycles_per_us;
pub use clock::{Deadline, Rate, cycles, cycles_per_us, now_ns, now_us, processor_ns, tick_ms};
pub use core_loss::{has_kept_core, watch_core};
pub use prefetch::{Access, prefetch};
