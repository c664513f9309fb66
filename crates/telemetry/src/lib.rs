//! Logging and rate limits.

#![forbid(unsafe_code)]
