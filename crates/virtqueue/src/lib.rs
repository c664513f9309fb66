//! Split virtqueues, device and driver side.
