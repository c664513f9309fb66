//! The control process.

#![forbid(unsafe_code)]
