//! What packets cost under policies: guards and 1,000 rules at both ports, and the same rules for Open
//! vSwitch with its caches as suits it best.

use super::text::{PORT, flows, policies};
use crate::Effort;
use crate::cases::packet_loop::{self, PORTS, many_flows, measure, measure_learnt};
use crate::cases::{Case, Rig};
use crate::contender::{
    Contender, HYPERSWITCH, Kind, OVS_TABLES_BATCHING, OVS_TABLES_EMC, OVS_TABLES_SMC, with_lines,
    with_tables,
};
use crate::record::Record;
use anyhow::Result;
use std::sync::LazyLock;
use testbed::PollingGuest;
use testbed::ovs::Forwarding;

pub const CASE: Case = Case {
    name: "policy-loop",
    about: "the loop with guards and 1,000 rules at both ports, and through the same rules of Open vSwitch",
    axis: "frame bytes, flows",
    contenders: &[
        POLICIES,
        HYPERSWITCH,
        OVS_TABLES_EMC,
        OVS_TABLES_SMC,
        OVS_TABLES_BATCHING,
    ],
    run,
    ..packet_loop::CASE
};

/// Ours with the rules.
pub const POLICIES: Contender = with_lines(HYPERSWITCH, super::POLICIES, [PORT; 2]);

static TEXT: LazyLock<String> = LazyLock::new(policies);
static FLOWS: LazyLock<Vec<String>> = LazyLock::new(flows);

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let with_rules = |contender: Contender| match contender.kind {
        Kind::Hyperswitch { ports, .. } if contender.name == POLICIES.name => Contender {
            kind: Kind::Hyperswitch { config: &TEXT, ports },
            ..contender
        },
        _ => contender,
    };
    let contenders = with_tables(contenders, Forwarding::Given(&FLOWS));
    let contenders: Vec<Contender> = contenders.into_iter().map(with_rules).collect();
    let points = [many_flows(64, 1_000), many_flows(64, 100_000)];
    let rigs = Rig::start_all(&contenders, record, &PORTS, |network, ports| {
        PollingGuest::connect(&network.sockets(ports)?, 1514)
    })?;
    Rig::sweep(rigs, record, &points, |network, guest, traffic| {
        if network.has_exact_match_cache() {
            measure_learnt(effort, network, guest, traffic)
        } else {
            // Ours decides by itself: all flows have been sent before anything is measured.
            measure(effort, network, guest, traffic).or_else(|_| measure(effort, network, guest, traffic))
        }
    })
}
