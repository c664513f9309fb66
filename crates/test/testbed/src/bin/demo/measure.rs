//! Ping and iperf3 between all pairs.

use crate::{Demo, Party, v4, v6};
use anyhow::Result;
use testbed::ping::{PingOptions, ping};
use testbed::{Endpoint, IperfOptions, iperf};

/// Measurements between two endpoints. Errors are part of the result: one broken pair must not hide the
/// others.
pub struct Row {
    pub from: &'static str,
    pub to: &'static str,
    /// Mean round trip time in ms over IPv4 and IPv6.
    pub ping: [Result<f64>; 2],
    /// Gb/s there and back.
    pub throughput: [Result<f64>; 2],
}

impl Row {
    pub fn passed(&self) -> bool {
        self.ping.iter().chain(&self.throughput).all(Result::is_ok)
    }
}

pub fn all_pairs(demo: &Demo, parties: &[Party], say: &impl Fn(&str)) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (index, from) in parties.iter().enumerate() {
        for to in &parties[index + 1..] {
            say(&format!("{} and {}", from.name, to.name));
            let (a, b) = (demo.endpoint(from.name)?, demo.endpoint(to.name)?);
            rows.push(Row {
                from: from.name,
                to: to.name,
                ping: [round_trip(a, &v4(to.number)), round_trip(a, &v6(to.number))],
                throughput: [gigabits(a, b, &v4(to.number)), gigabits(b, a, &v4(from.number))],
            });
        }
    }
    Ok(rows)
}

fn round_trip(from: &dyn Endpoint, address: &str) -> Result<f64> {
    let result = ping(
        from,
        address,
        PingOptions {
            count: 5,
            interval: 0.05,
            ..PingOptions::default()
        },
    )?;
    match result.mean_ms {
        Some(mean) if result.complete() => Ok(mean),
        _ => anyhow::bail!(
            "{} of {} answers, {} twice",
            result.received,
            result.sent,
            result.duplicates
        ),
    }
}

fn gigabits(from: &dyn Endpoint, to: &dyn Endpoint, address: &str) -> Result<f64> {
    let result = iperf::run(from, to, address, &IperfOptions::seconds(1))?;
    anyhow::ensure!(result.bytes > 0.0, "nothing arrived");
    Ok(result.gigabits())
}
