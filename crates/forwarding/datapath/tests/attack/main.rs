//! Attacks: what guests and VMMs do that break every rule, beside two guests that only want to talk.
//!
//! Each case measures the round trips of the two [bystanders](measure::Bystanders) without and under the
//! attack, prints a row, and fails if one packet of theirs was lost. By default a case takes a fraction of a
//! second and asserts no times, so that it holds on any machine. With `HYPERSWITCH_ATTACK=1` (`make
//! test-attack`) it takes seconds, and what it adds to the round trips is held to a [`measure::Bound`].
//!
//! * `rings`: descriptor chains, buffers, segments, indices;
//! * `messages`: what a VMM says, and how often;
//! * `calls`: descriptors that are signalled dearly;
//! * `bells`: such descriptors whose cost changes, or that many ports have;
//! * `connections`: those that are read and closed dearly;
//! * `memory`: regions that are huge, vanish or get holes;
//! * `floods`: senders that fill the bystanders themselves;
//! * `p4`: P4 programs that cost as much as they may;
//! * `receivers`: those that take packets slowly, behind a sender that others need.

#![allow(clippy::unwrap_used, reason = "tests")]
#![forbid(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;

mod bells;
mod calls;
mod connections;
mod floods;
mod measure;
mod memory;
mod messages;
mod p4;
mod receivers;
mod rings;
