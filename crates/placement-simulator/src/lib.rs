//! The placement policy on modelled machines.
//!
//! The very same [`placement::Policy`] that the data plane asks is asked here by a discrete-event model of a machine,
//! so that it can be judged on machines nobody has at hand. The experiment is the paper's Figure 7: one to many pairs
//! of guests, each pair with one stream, in all modes. No figure of the results is put in; what is put in is in
//! [`machine`], with its sources.
//!
//! # What is modelled
//!
//! * Cores that do one thing at a time, with the scheduler of Linux in essence, idle states that take time to leave, and
//!   modules whose cores slow each other down.
//! * Copies and reads that take longer the farther away their bytes were written, and wait for their node's memory
//!   when it is asked to move more than it can.
//! * Guests with one vCPU: senders with a window, which block when it is closed; receivers that acknowledge every packet, the
//!   acknowledgement being a packet too; interrupts, NAPI, kicks and their suppression.
//! * The switch: transmit rings, internal receive queues, who has claimed what, message buffers, batches, helpers
//!   that poll, give way and go to sleep.
//!
//! # What is not
//!
//! Caches have no contents: what was written near is taken to be still in the cache, and every byte copied or read by
//! a guest moves through memory as often as on average. Interconnects between nodes are slow but never full. Rings,
//! queues and message buffers do not overflow, since windows are smaller. vCPUs are pinned, and have no other work. Frequencies
//! do not change. The eBPF program's view is taken to be exact and at once, and a vCPU that blocks gets its rings
//! served without delay, where a real switch relies on a worker that waits for its core, or its timer. Modes for comparison
//! are this switch with other answers of the policy, not the programs they are named after: `thread-per-vnic`
//! copies once, vhost-net twice.
//!
//! The safe direction of error: ratios between modes count, and only where they are large. Absolute figures are those of
//! the model.

#![forbid(unsafe_code)]

pub mod experiment;
pub mod machine;
pub mod plot;
pub mod report;
pub mod world;
