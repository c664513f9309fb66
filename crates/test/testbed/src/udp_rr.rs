//! Round trips of single datagrams between two endpoints, by the tool of the same name (`src/bin/udp-rr.rs`),
//! which guests have in their initrd.

use crate::endpoint::{Endpoint, Running};
use anyhow::{Context, Result, bail, ensure};
use std::time::Duration;

const PORT: u16 = 5301;
const SINK_PORT: u16 = 5302;

/// The counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundTrips {
    /// Requests that were answered.
    pub transactions: u64,
    /// Requests that were not, within 200 ms.
    pub lost: u64,
    /// How long it took.
    pub seconds: f64,
    /// Median of a round trip in seconds; 0 of datagrams that are not answered.
    pub p50: f64,
    /// 99th percentile of a round trip in seconds; 0 likewise.
    pub p99: f64,
}

impl RoundTrips {
    /// Transactions per second.
    pub fn rate(&self) -> f64 {
        u32::try_from(self.transactions).map_or(f64::INFINITY, f64::from) / self.seconds
    }
}

/// Starts a server, which runs for as long as its endpoint does, or on this machine as long as its handle.
pub fn serve(at: &dyn Endpoint) -> Result<Running> {
    let running = at.start(&format!("exec udp-rr serve {PORT}"))?;
    let listening = format!(
        "for i in $(seq 200); do grep -q ':{PORT:04X} ' /proc/net/udp && exit 0; sleep 0.05; done; exit 1"
    );
    ensure!(
        at.run(&listening)?.success(),
        "{}: udp-rr does not listen",
        at.name()
    );
    Ok(running)
}

/// Starts a sink for [`pace`], which runs as a server does.
pub fn sink(at: &dyn Endpoint) -> Result<Running> {
    at.start(&format!("exec udp-rr sink {SINK_PORT}"))
}

/// Starts to send datagrams of `bytes` bytes to the sink at `address`, so many per second at an even pace. To
/// be waited for as round trips, of which there are as many as datagrams sent.
pub fn pace(from: &dyn Endpoint, address: &str, bytes: usize, rate: u32, time: Duration) -> Result<Running> {
    trains(from, address, bytes, [rate, 1], time)
}

/// As [`pace`], with so many datagrams at once: `[rate, train]`.
pub fn trains(
    from: &dyn Endpoint,
    address: &str,
    bytes: usize,
    [rate, train]: [u32; 2],
    time: Duration,
) -> Result<Running> {
    from.start(&format!(
        "exec udp-rr pace {address} {SINK_PORT} {bytes} {rate} {} {train}",
        time.as_secs_f64()
    ))
}

/// Starts to exchange datagrams of `bytes` bytes (1 to 65,507) with the server at `address`.
pub fn start(from: &dyn Endpoint, address: &str, bytes: usize, time: Duration) -> Result<Running> {
    from.start(&format!(
        "exec udp-rr run {address} {PORT} {bytes} {}",
        time.as_secs_f64()
    ))
}

/// Waits for the result.
pub fn wait(running: Running, time: Duration) -> Result<RoundTrips> {
    let output = running.wait(time + Duration::from_secs(20))?;
    if !output.success() {
        bail!("udp-rr ended with {}: {}", output.status, output.stderr);
    }
    parse(&output.stdout).with_context(|| format!("cannot read what udp-rr says: {}", output.stdout))
}

fn parse(text: &str) -> Option<RoundTrips> {
    let mut words = text.split_whitespace();
    Some(RoundTrips {
        transactions: words.next()?.parse().ok()?,
        lost: words.next()?.parse().ok()?,
        seconds: words.next()?.parse().ok()?,
        p50: words.next().map_or(Some(0.0), |word| word.parse().ok())?,
        p99: words.next().map_or(Some(0.0), |word| word.parse().ok())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_read() {
        let result = parse("30 1 1.5 0.01 0.02\n").expect("readable");
        assert_eq!((result.transactions, result.lost), (30, 1));
        assert_eq!((result.p50, result.p99), (0.01, 0.02));
        assert_eq!(parse("30 1 1.5\n").expect("readable").p99, 0.0);
        assert!((result.rate() - 20.0).abs() < 1e-9);
        assert_eq!(parse("30 x"), None);
    }
}
