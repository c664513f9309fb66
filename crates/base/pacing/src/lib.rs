//! Bounding and sharing work: a [`TokenBucket`] says how often something may happen, a [`ByteBucket`] how
//! many bytes may pass, and [`Turns`] whose turn it is.

#![forbid(unsafe_code)]

mod byte_bucket;
mod token_bucket;
mod turns;

pub use byte_bucket::ByteBucket;
pub use token_bucket::{TokenBucket, since_first};
pub use turns::Turns;
