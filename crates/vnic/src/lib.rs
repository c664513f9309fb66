//! A guest interface.

#![forbid(unsafe_code)]
