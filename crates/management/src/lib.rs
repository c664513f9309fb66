//! Contract between CLI and control process.

#![forbid(unsafe_code)]
