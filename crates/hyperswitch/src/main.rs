//! A virtual switch for hosts that run virtual machines.

#![forbid(unsafe_code)]

fn main() {}
