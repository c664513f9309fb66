//! `hyperswitch stats`, once or again and again.
//!
//! Ports of Open vSwitch are not the control process's: the process `ovs` is asked for the counters of one
//! that it does not know.

use super::{Reply, Request, Session, show};
use crate::output::{self, Table};
use anyhow::{Result, bail};
use management::{ClientError, Counters, PortStats, Stats};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The switch of Open vSwitch's ports, as it is shown.
const OPEN_VSWITCH: &str = "openvswitch";

/// Shows counters, or with `watch`, every so many seconds, their changes.
///
/// # Errors
/// When the instance refuses or goes away.
pub fn run(session: &mut Session<'_>, (port, watch): (Option<&str>, Option<u32>)) -> Result<()> {
    let mut before = ask(session, port)?;
    let Some(seconds) = watch else {
        return if session.json {
            output::json(&before)
        } else {
            output::print(&show::stats(&before))
        };
    };
    let mut since = Instant::now();
    loop {
        std::thread::sleep(Duration::from_secs(seconds.into()));
        let now = ask(session, port)?;
        let elapsed = since.elapsed();
        since = Instant::now();
        if session.json {
            output::json_line(&now)?;
        } else {
            output::print(&format!("{}\n", rates(&before, &now, elapsed)))?;
        }
        before = now;
    }
}

fn ask(session: &mut Session<'_>, port: Option<&str>) -> Result<Stats> {
    let request = Request::Stats {
        port: port.map(str::to_owned),
    };
    match (session.call(&request), port) {
        (Ok(Reply::Stats(stats)), _) => Ok(stats),
        (Ok(_), _) => {
            bail!("the running instance gave another answer than asked for: is it of another version?")
        }
        (Err(refused @ ClientError::Refused(_)), Some(port)) => {
            of_open_vswitch(session, port).ok_or_else(|| refused.into())
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// The counters of a port of Open vSwitch, if it is one.
fn of_open_vswitch(session: &Session<'_>, port: &str) -> Option<Stats> {
    let socket = session.instance.run_dir.join("ovs.sock");
    let counters = ovs_glue::ask::counters(&socket, port, session.instance.timeout).ok()?;
    let total = Counters::from(&counters);
    let port = PortStats {
        port: port.to_owned(),
        switch: OPEN_VSWITCH.to_owned(),
        counters: total.clone(),
    };
    Some(Stats {
        ports: vec![port],
        total: Box::new(total),
    })
}

/// Counters only grow, but a port that was added again, or a new data plane, begins at 0.
fn rates(before: &Stats, now: &Stats, elapsed: Duration) -> Table {
    let old: HashMap<&str, &Counters> = before
        .ports
        .iter()
        .map(|port| (port.port.as_str(), &port.counters))
        .collect();
    let mut table = Table::new(&[
        "PORT",
        ">RX/S",
        ">RX MBIT/S",
        ">TX/S",
        ">TX MBIT/S",
        ">DROPS/S",
        ">UPCALLS/S",
    ]);
    let none = Counters::default();
    for port in &now.ports {
        let old = *old.get(port.port.as_str()).unwrap_or(&&none);
        let rate = |value: fn(&Counters) -> u64, scale: f64| {
            value(&port.counters).saturating_sub(value(old)) as f64 / scale / elapsed.as_secs_f64()
        };
        let bits = 1e6 / 8.0;
        table.row([
            port.port.clone(),
            format!("{:.0}", rate(|counters| counters.received, 1.0)),
            format!("{:.1}", rate(|counters| counters.received_bytes, bits)),
            format!("{:.0}", rate(|counters| counters.transmitted, 1.0)),
            format!("{:.1}", rate(|counters| counters.transmitted_bytes, bits)),
            format!("{:.0}", rate(|counters| counters.dropped.values().sum(), 1.0)),
            format!("{:.0}", rate(|counters| counters.upcalls, 1.0)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_differences_over_time() {
        let stats = |received| {
            let counters = Counters {
                received,
                received_bytes: received * 1000,
                ..Counters::default()
            };
            let port = PortStats {
                port: "vm1".into(),
                switch: "sw0".into(),
                counters,
            };
            Stats {
                ports: vec![port],
                total: Box::default(),
            }
        };
        let text = rates(&stats(1000), &stats(3000), Duration::from_secs(2)).to_string();
        assert!(
            text.lines().nth(1).unwrap().starts_with("vm1   1000        8.0"),
            "{text}"
        );
        let text = rates(&stats(1000), &stats(10), Duration::from_secs(1)).to_string();
        assert!(
            text.lines().nth(1).unwrap().starts_with("vm1      0 "),
            "started again: {text}"
        );
    }
}
