//! Round trips of guests that kick beside a port whose guest polls and sends one frame at a time: the worker
//! that serves the latter at each look has to notice kicks all the same.

use super::guests::{address, boot_echo, names};
use super::{Case, Rig, labelled};
use crate::contender::HYPERSWITCH;
use crate::machine::on_processor;
use crate::record::Better::{Higher, Lower};
use anyhow::ensure;
use testbed::polling::Traffic;
use testbed::{PollingGuest, udp_rr};

pub const CASE: Case = Case {
    name: "rr-beside",
    about: "UDP request and response of 64 bytes between two User Mode Linux guests beside a guest that polls",
    axis: "frames at a time of the guest that polls",
    measures: &[
        ("transactions", "1/s", Higher),
        ("p50", "us", Lower),
        ("p99", "us", Lower),
    ],
    contenders: &[HYPERSWITCH],
    run: |effort, contenders, record| {
        let rigs = Rig::start_all(contenders, record, names(4), |network, ports| {
            let polling = PollingGuest::connect(&network.sockets(&ports[2..])?, 1514)?;
            Ok((polling, boot_echo(network, &ports[..2])?))
        })?;
        Rig::sweep(
            rigs,
            record,
            &labelled(&[1, 32]),
            |_, (polling, guests), burst| {
                let traffic = Traffic {
                    under_way: *burst,
                    ..Traffic::new(64)
                };
                let running = udp_rr::start(&guests[0], &address(1), 64, effort.long)?;
                on_processor(0, || polling.circulate(&traffic, effort.long, || Ok(())))?;
                let result = udp_rr::wait(running, effort.long)?;
                ensure!(result.transactions > 0, "nothing came back");
                Ok([result.rate(), 1e6 * result.p50, 1e6 * result.p99])
            },
        )
    },
};
