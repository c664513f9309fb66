//! The driver domain process.

#![forbid(unsafe_code)]
