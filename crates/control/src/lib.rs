//! The control process.

#![forbid(unsafe_code)]

pub mod l2;
mod plan;
mod state;
mod store;
