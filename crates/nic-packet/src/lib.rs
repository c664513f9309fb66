//! TAP and packet socket descriptors.
