//! Policies of ports: what they cost new connections, what their changes cost, and what a guest that
//! scans ports under them costs others.
//!
//! ```text
//!   changes      one rule, one member, with 100,000 connections cached; first packets
//!   connections  TCP connections per second
//!   ports        a policy for 1,000 ports at once
//!   scan         a guest that scans ports beside others
//!   packets      what packets cost, beside Open vSwitch
//!   lists, text  the rules, as the data plane gets them, and as users write them
//! ```

mod changes;
mod connections;
mod lists;
pub mod packets;
mod ports;
pub mod scan;
mod text;

use super::Case;
use crate::Effort;
use crate::contender::{Contender, HYPERSWITCH};
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::Result;

pub const CASE: Case = Case {
    name: "policy-changes",
    about: "policies of ports: what first packets and changes cost, what is lost by a change, and what is left beside a guest that scans ports",
    axis: "what happens",
    measures: &[
        (FIRST, "us", Lower),
        (ANSWERED, "ms", Lower),
        (LOST, "% of cached connections", Lower),
        (LONGEST, "us", Lower),
        (LONGEST_WITHOUT, "us", Lower),
        (CONNECTIONS, "1/s", Higher),
        (KEPT, "% of the rate with equal load", Higher),
    ],
    contenders: &[HYPERSWITCH],
    run,
};

const FIRST: &str = "more for a first packet";
const ANSWERED: &str = "answered after";
const LOST: &str = "entries lost";
const LONGEST: &str = "longest delay of others";
const LONGEST_WITHOUT: &str = "longest delay without";
const CONNECTIONS: &str = "connections";
const KEPT: &str = "bystanders keep";

const NAME: &str = HYPERSWITCH.name;
const POLICIES: &str = "hyperswitch-policies";
const STOPPED: &str = "hyperswitch-policies-alone";

fn run(effort: &Effort, _: &[Contender], record: &mut Record) -> Result<()> {
    changes::run(effort, record)?;
    connections::run(effort, record)?;
    ports::run(effort, record)?;
    scan::run(effort, record)
}

/// Whether a point is to be measured.
fn is_wanted(record: &Record, label: &str) -> bool {
    label.contains(&record.part)
}
