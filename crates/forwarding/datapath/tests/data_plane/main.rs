//! The data plane process as its peers see it: guests over vhost-user, the control process over its channel.
//!
//! * `forwarding`: packets, flows, misses, captures and traces;
//! * `offloads`: segmentation, checksums, merged buffers, MTU;
//! * `deep_headers`: headers behind the first 128 bytes;
//! * `layouts`: chains, ring sizes and notifications;
//! * `stages`: misses of filters, and packets that go on there;
//! * `meters`: meters, ports that were taken down, and what a packet bears on its way;
//! * `bandwidth`: ports with a bandwidth;
//! * `stall`: receivers that post no buffers; `slow`: receivers that post few;
//! * `control_lost`: forwarding outlives control; misses are bounded;
//! * `controllers`: several of them, each with ports and flows of its own;
//! * `ownership`: the same at random, beside sets;
//! * `bad_rings`, `bad_memory`, `bad_messages`, `bad_descriptors`: guests that break rules cost nobody but
//!   themselves; `bad_policies`: rules, sets, rates and senders that nobody should have;
//! * `events`: ports that connect, run and stop all the time;
//! * `known_failures`: what other switches got wrong, by CVE;
//! * `costly`: descriptors that cost those who use them more than they should;
//! * `fairness`: ports with little to send beside those whose rings are never empty;
//! * `work`: who did the work;
//! * `statistics`: what flows have counted;
//! * `vm_state`: what guests do;
//! * `shortfall`: what a VMM wants and its port does not have;
//! * `rules`: rule lists as filters; `rule_logs`: packets that rules note; `rejects`: what senders of
//!   rejected packets are told;
//! * `mirrors`: copies of a port's packets for another port;
//! * `p4`, `p4_scripts`: P4 programs as forwarders; `p4_versions`: what versions leave to each other;
//!   `p4_verdicts`: verdicts that are kept; `p4_clients`: packets to clients and from them;
//!   `p4_groups`: groups of action profiles; `p4_stages`: programs before forwarders;
//!   `p4_share`: time of the forwarding threads that their ports have;
//! * `restart`: rings that go on after the data plane was gone; `resets`: rings that begin anew with chains
//!   out;
//! * `random_guest`: anything in any order.

#![allow(clippy::unwrap_used, reason = "tests")]
#![forbid(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;

mod bad_descriptors;
mod bad_memory;
mod bad_messages;
mod bad_policies;
mod bad_rings;
mod bandwidth;
mod control_lost;
mod controllers;
mod costly;
mod deep_headers;
mod device_queues;
mod events;
mod fairness;
mod forwarding;
mod known_failures;
mod layouts;
mod marks;
mod meters;
mod mirrors;
mod offloads;
mod ownership;
mod p4;
mod p4_clients;
mod p4_groups;
mod p4_links;
mod p4_queues;
mod p4_scripts;
mod p4_share;
mod p4_stage_twin;
mod p4_stages;
mod p4_verdicts;
mod p4_versions;
mod random_guest;
mod rejects;
mod resets;
mod restart;
mod rule_logs;
mod rules;
mod shortfall;
mod slow;
mod stages;
mod stall;
mod statistics;
mod vm_state;
mod work;
