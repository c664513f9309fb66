//! Seccomp, privileges and process plumbing.
