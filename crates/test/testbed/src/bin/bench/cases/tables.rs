//! `OpenFlow` tables: an unmodified ovs-vswitchd drives our data plane, and Open vSwitch with DPDK has the
//! same flows, groups and meters. Tables look at UDP ports, so that both have a megaflow for each pair of
//! them, and Open vSwitch's caches are used as suits it best, as in `flows-apart`.

use super::packet_loop::{self, PORTS, many_flows, measure_learnt};
use super::{Case, Rig};
use crate::Effort;
use crate::contender::{
    Contender, DRIVEN, HYPERSWITCH, OVS_TABLES_BATCHING, OVS_TABLES_EMC, OVS_TABLES_SMC, with_tables,
};
use crate::record::Record;
use anyhow::Result;
use testbed::PollingGuest;
use testbed::ovs::Forwarding;
use testbed::polling::Traffic;

pub const CASE: Case = Case {
    name: "ovs-tables",
    about: "the loop through OpenFlow tables, with a flow for each pair of UDP ports: ovs-vswitchd on our data plane and on DPDK",
    axis: "tables, flows",
    contenders: &[DRIVEN, OVS_TABLES_EMC, OVS_TABLES_SMC, OVS_TABLES_BATCHING],
    run,
    ..packet_loop::CASE
};

pub const NORMAL: Case = Case {
    name: "ovs-normal",
    about: "the loop through a learning switch: ovs-vswitchd's action NORMAL on our data plane, and our own",
    axis: "frame bytes, flows",
    contenders: &[DRIVEN, HYPERSWITCH],
    run: |effort, contenders, record| {
        let points = [("64 io".to_owned(), Traffic::new(64)), many_flows(64, 1_000)];
        packet_loop::sweep(effort, contenders, record, &points)
    },
    ..packet_loop::CASE
};

const TABLES: &[(&str, Forwarding)] = &[
    ("NORMAL", Forwarding::LearningByPorts),
    ("1000 rules", Forwarding::Filter),
    ("10 tables", Forwarding::TenTables),
    ("meter, group indirect", Forwarding::IndirectGroup),
    ("meter, group select", Forwarding::SelectGroup),
];

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    for &(tables, forwarding) in TABLES {
        let points: Vec<(String, Traffic)> = effort
            .choose(&[1_000, 20_000], &[1_000])
            .iter()
            .map(|&flows| (format!("{tables}, {flows} flows"), many_flows(64, flows).1))
            .collect();
        let contenders = with_tables(contenders, forwarding);
        let rigs = Rig::start_all(&contenders, record, &PORTS, |network, ports| {
            PollingGuest::connect(&network.sockets(ports)?, 1514)
        })?;
        Rig::sweep(rigs, record, &points, |network, guest, traffic| {
            measure_learnt(effort, network, guest, traffic)
        })?;
    }
    Ok(())
}
