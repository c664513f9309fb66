//! Real guests and namespaces for tests, demo and benchmarks.

#![forbid(unsafe_code)]
