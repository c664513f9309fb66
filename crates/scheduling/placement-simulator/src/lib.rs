//! The placement policy on modelled machines.
//!
//! A discrete-event model of a machine asks the very same [`placement::Policy`] as the data plane does, so
//! that the policy can be judged on machines that are not at hand. The experiment is the paper's Figure 7:
//! one to many pairs of guests, each pair with one stream, in all modes. [`machine`] holds the inputs, with
//! their sources. Two results of the paper are among them ([`experiment::PUT_IN`]): the throughput of one
//! pair and that of a full machine. The curve between them and all other results are predictions.
//!
//! # What is modelled
//!
//! * Cores that do one thing at a time, with the scheduler of Linux in essence, idle states that take time to
//!   leave, and modules whose cores slow each other down.
//! * Copies and reads that take longer the farther away their bytes were written, and wait for their node's
//!   memory when it is asked to move more than it can.
//! * Guests with one vCPU: senders with a window, which block when it is closed; receivers that acknowledge
//!   every packet, the acknowledgement being a packet too; interrupts, NAPI, kicks and their suppression.
//! * The switch: transmit rings, internal receive queues, claims, message buffers, batches, helpers that
//!   poll, give way and go to sleep.
//!
//! # What is not
//!
//! Caches have no contents: data written near are taken to be still in the cache, and every byte copied or
//! read by a guest moves through memory an average number of times. Interconnects between nodes are slow but
//! never full. Rings, queues and message buffers do not overflow, since windows are smaller. vCPUs are
//! pinned, and have no other work. Frequencies do not change. The states from the eBPF program are taken to
//! be exact and immediate, and the rings of a vCPU that blocks are served without delay, where a real switch
//! relies on a worker that waits for its core, or on its timer. Modes for comparison are this switch with
//! other answers of the policy, not the programs that they are named after: `thread-per-vnic` copies once,
//! vhost-net twice.
//!
//! Only ratios between modes are meaningful, and only large ones. Absolute figures are those of the model:
//! those of the paper's policy on the paper's machine are up to a twelfth below the paper's, and the modes
//! that stand for KVM and Xen are faster than these (`docs/performance/placement.md`).

#![forbid(unsafe_code)]

pub mod experiment;
pub mod machine;
pub mod plot;
pub mod report;
pub mod world;
