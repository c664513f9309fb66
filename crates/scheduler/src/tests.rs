//! The scheduler with a fake forwarder.
