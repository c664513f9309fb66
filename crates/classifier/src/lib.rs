//! Microflow cache and megaflow table.

#![forbid(unsafe_code)]
