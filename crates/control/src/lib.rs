//! The control process.

#![forbid(unsafe_code)]

pub mod l2;
