//! Split virtqueues, device and driver side.

pub mod driver;
