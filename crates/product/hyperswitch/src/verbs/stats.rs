//! `hyperswitch stats`, once or again and again.
//!
//! Ports of Open vSwitch are not the control process's: the process `ovs` is asked for the counters of one
//! that it does not know.

use super::rate::Rate;
use super::{Reply, Request, Session, show};
use crate::cli::{SortBy, StatsArgs};
use crate::output::{self, Table};
use anyhow::{Result, bail};
use management::{ClientError, Counters, PortStats, Stats};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The switch of Open vSwitch's ports, as it is shown.
const OPEN_VSWITCH: &str = "openvswitch";

/// Shows counters, or with an interval, time and again, their changes.
///
/// # Errors
/// When the instance refuses or goes away.
pub fn run(session: &mut Session<'_>, args: &StatsArgs) -> Result<()> {
    let (port, interval) = args.selected();
    let mut before = ask(session, port)?;
    let Some(interval) = interval else {
        return if session.json {
            output::json(&before)
        } else {
            output::print(&show::stats(&before))
        };
    };
    let mut since = Instant::now();
    loop {
        std::thread::sleep(interval);
        let now = ask(session, port)?;
        let elapsed = since.elapsed();
        since = Instant::now();
        let rates = Rates::between(&before, &now, elapsed);
        if session.json {
            output::json_line(&rates.with(&now))?;
        } else {
            output::print(&rates.text(args.sort, args.top))?;
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

/// Counters with time and rates, as JSON.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Watched<'a> {
    /// When the counters were read, in milliseconds since 1970-01-01 UTC.
    time_ms: u64,
    /// Since they were read before.
    seconds: f64,
    ports: Vec<WatchedPort<'a>>,
    /// Counters of all ports.
    total: &'a Counters,
    /// What happened per second, over all ports.
    rates: &'a Rate,
}

/// A port with rates.
#[derive(Serialize, JsonSchema)]
struct WatchedPort<'a> {
    #[serde(flatten)]
    port: &'a PortStats,
    /// What happened per second.
    rates: &'a Rate,
}

/// What happened per second, of each port and of all together.
struct Rates {
    time: SystemTime,
    elapsed: Duration,
    ports: Vec<(String, Rate)>,
    total: Rate,
}

impl Rates {
    fn between(before: &Stats, now: &Stats, elapsed: Duration) -> Rates {
        let old = before.ports.iter();
        let old: HashMap<&str, &Counters> = old.map(|port| (port.port.as_str(), &port.counters)).collect();
        let none = Counters::default();
        let rate = |port: &PortStats| {
            let old = old.get(port.port.as_str()).copied().unwrap_or(&none);
            (port.port.clone(), Rate::between(old, &port.counters, elapsed))
        };
        let ports: Vec<_> = now.ports.iter().map(rate).collect();
        let mut total = Rate::default();
        ports.iter().for_each(|(_, rate)| total.add(rate));
        Rates {
            time: SystemTime::now(),
            elapsed,
            ports,
            total,
        }
    }

    /// A table, with the sum below it and drops by reason.
    fn text(&self, sort: SortBy, top: Option<usize>) -> String {
        let mut table = Table::new(&[
            "PORT",
            ">RX/S",
            ">RX MBIT/S",
            ">TX/S",
            ">TX MBIT/S",
            ">DROPS/S",
            ">UPCALLS/S",
        ]);
        let mut ports: Vec<_> = self.ports.iter().collect();
        // Equal ones stay in the order of their names.
        ports.sort_by(|(_, a), (_, b)| sort.key(b).total_cmp(&sort.key(a)));
        for (name, rate) in ports.into_iter().take(top.unwrap_or(usize::MAX)) {
            table.row(cells(name, rate));
        }
        table.row(cells("(all)", &self.total));
        let mut text = String::new();
        telemetry::push_time(&mut text, self.time);
        let drops = self.total.dropped.iter();
        let drops: Vec<String> = drops
            .map(|(reason, rate)| format!("{reason} {rate:.0}/s"))
            .collect();
        let drops = match drops.is_empty() {
            true => String::new(),
            false => format!("drops: {}\n", drops.join(", ")),
        };
        format!("{text}\n{table}{drops}\n")
    }

    /// The counters, with time and rates.
    fn with<'a>(&'a self, now: &'a Stats) -> Watched<'a> {
        let time = self.time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ports = now.ports.iter().zip(&self.ports);
        Watched {
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            seconds: self.elapsed.as_secs_f64(),
            ports: ports
                .map(|(port, (_, rates))| WatchedPort { port, rates })
                .collect(),
            total: &now.total,
            rates: &self.total,
        }
    }
}

/// A row of the table.
fn cells(name: &str, rate: &Rate) -> [String; 7] {
    let megabits = |bytes: f64| format!("{:.1}", bytes * 8.0 / 1e6);
    [
        name.to_owned(),
        format!("{:.0}", rate.received),
        megabits(rate.received_bytes),
        format!("{:.0}", rate.transmitted),
        megabits(rate.transmitted_bytes),
        format!("{:.0}", rate.drops()),
        format!("{:.0}", rate.upcalls),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters of two ports.
    fn stats(first: u64, second: u64) -> Stats {
        let port = |name: &str, received: u64| PortStats {
            port: name.into(),
            switch: "sw0".into(),
            counters: Counters {
                received,
                received_bytes: received * 1000,
                dropped: [("policy".to_owned(), received / 2)].into(),
                ..Counters::default()
            },
        };
        Stats {
            ports: vec![port("vm1", first), port("vm2", second)],
            total: Box::default(),
        }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let rates = Rates::between(&stats(1000, 0), &stats(3000, 4000), Duration::from_secs(2));
        let text = rates.text(SortBy::Name, None);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with('Z') && lines[1].starts_with("PORT"), "{text}");
        assert!(lines[2].starts_with("vm1    1000        8.0"), "{text}");
        assert!(lines[4].starts_with("(all)  3000       24.0"), "{text}");
        assert_eq!(lines[5], "drops: policy 1500/s");
        let text = rates.text(SortBy::Rx, Some(1));
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[2].starts_with("vm2 ") && lines[3].starts_with("(all)"),
            "{text}"
        );
        let json = serde_json::to_value(rates.with(&stats(3000, 4000))).unwrap();
        assert_eq!(json["ports"][0]["rates"]["received"], 1000.0);
        assert_eq!(json["ports"][1]["rates"]["dropped"]["policy"], 1000.0);
        assert_eq!(json["ports"][1]["counters"]["received"], 4000);
        assert_eq!(json["rates"]["received-bytes"], 3e6);
        assert_eq!(json["seconds"], 2.0);
        assert!(json["time-ms"].is_u64());
    }

    #[test]
    fn counters_that_began_anew_have_no_rate() {
        let rates = Rates::between(&stats(1000, 0), &stats(10, 0), Duration::from_secs(1));
        assert_eq!(rates.ports[0].1, Rate::default());
    }
}
