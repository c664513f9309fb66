//! Bounding and sharing work: a [`TokenBucket`] says how often something may happen, and [`Turns`] whose turn
//! it is.

#![forbid(unsafe_code)]

mod token_bucket;
mod turns;

pub use token_bucket::{TokenBucket, since_first};
pub use turns::Turns;
