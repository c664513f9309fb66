//! Which ring a forwarding thread serves next, where that is done, and when the thread sleeps.
//!
//! The unit of work is a ring, by its number ([`RingId`]). This crate knows no packets: the forwarder
//! implements [`Rings`], and each forwarding thread has one [`Scheduler`] that calls it, one turn at a ring
//! after the other.
//!
//! | module | contents |
//! |---|---|
//! | `ring_id` | numbers of rings |
//! | `run_queue`, `fair_share` | the rings that a thread serves next |
//! | `timers`, `sole_sender` | rings that a thread serves when their time has come; whether it serves one guest only |
//! | `polled` | rings that a thread polls, since their guests need not kick |
//! | `executor` | how forwarding threads are woken, and the messages they send each other |
//! | `threads`, `majority` | the vCPU threads of a guest, and which of them kicks and takes interrupts |
//! | `home` | the scheduler's state of a vNIC: which executor receives its kicks, which one copies to it |
//! | `placement` | the placement policy with this machine's cores, threads and executors |
//! | `forwarding_threads` | state that all forwarding threads share |
//! | `schedule` | one thread's run queue, timers and polled rings |
//! | `policy_questions` | questions of a thread to the placement policy, and handing work to others |
//! | `turns` | the trait that the forwarder implements, and turns |
//! | `polling` | rounds of polling |
//! | `worker` | threads that sleep until there is something to do |
//! | `idle_gap`, `wakeup_preemption` | how long to poll, and how to be woken |
//! | `idle_poll`, `idle_core` | when the core of a worker that sleeps is kept from halting |
//! | `kick_target` | which executor receives kicks, and how often that changes |
//! | `kick_limit` | kicks that lead to nothing, and for how long no more of them are received |
//! | `guest_blocks`, `backoff` | which guests are worth waiting for, and when to try again |
//! | `watchdog` | interrupts threads that a VMM holds up, reports those that make no progress |
//! | `account` | the work of each thread, and the time that it took |
//! | `wake_cost` | the cost of waking a core on this machine |
//!
//! A [`Scheduler`] and its [`Schedule`] belong to one thread. [`ForwardingThreads`], [`Executor`]s and
//! [`Home`]s are shared by all. Which thread serves a ring is decided by claims in the forwarder: being
//! scheduled twice costs a look and does no harm, so the safe direction of error is to schedule a ring once
//! too often.

#![forbid(unsafe_code)]

mod account;
mod backoff;
#[cfg(test)]
mod decision_cost;
mod executor;
mod fair_share;
mod forwarding_threads;
mod guest_blocks;
mod home;
mod idle_core;
mod idle_gap;
mod idle_poll;
mod kick_limit;
mod kick_target;
mod majority;
mod placement;
mod policy_questions;
mod polled;
mod polling;
mod ring_id;
mod run_queue;
mod schedule;
#[cfg(test)]
mod small_bursts;
mod sole_sender;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod threads;
mod timers;
mod turns;
mod wake_cost;
mod wakeup_preemption;
mod watchdog;
mod worker;

pub use crate::account::{Account, Ledger, Progress};
pub use crate::executor::{Executor, ring_bell};
pub use crate::forwarding_threads::ForwardingThreads;
pub use crate::home::{Home, Homes};
pub use crate::placement::Placement;
pub use crate::policy_questions::{Copier, UNKNOWN_BACKLOG};
pub use crate::ring_id::RingId;
pub use crate::schedule::Schedule;
pub use crate::timers::Due;
pub use crate::turns::{Rings, Scheduler};
pub use crate::wake_cost::measure as measure_wake_cost;
pub use crate::watchdog::{Pulse, Stuck};
pub use crate::worker::{start_all, start_own};
