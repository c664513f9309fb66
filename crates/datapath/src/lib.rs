//! The data plane process.

#![forbid(unsafe_code)]
