//! iperf3 between two endpoints, with throughput per interval as the *receiver* saw it.
//!
//! The receiver's count is used: a sender fills its socket buffer even while nothing arrives.

use crate::endpoint::{Endpoint, Running};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::time::Duration;

/// How much longer than its time a stream may take to begin and to end: one of dozens between guests that
/// share a core sends what it has buffered for a minute.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How to measure.
#[derive(Clone, Debug)]
pub struct IperfOptions {
    /// Seconds to send.
    pub seconds: u32,
    /// The server's port; servers on one endpoint at the same time need different ones.
    pub port: u16,
    /// Further arguments of the client: `-u -b 10M`, `-P 4`, `-M 1000`.
    pub arguments: String,
    /// Seconds per interval.
    pub interval: f64,
}

impl Default for IperfOptions {
    fn default() -> IperfOptions {
        IperfOptions {
            seconds: 2,
            port: 5201,
            arguments: String::new(),
            interval: 1.0,
        }
    }
}

impl IperfOptions {
    /// Sends for this long, otherwise as by default.
    pub fn seconds(seconds: u32) -> IperfOptions {
        IperfOptions {
            seconds,
            ..IperfOptions::default()
        }
    }
}

/// The receiver's count.
#[derive(Clone, Debug)]
pub struct IperfResult {
    /// Mean throughput in bits per second of payload.
    pub bits_per_second: f64,
    /// Payload bytes received.
    pub bytes: f64,
    /// Throughput in bits per second of each interval.
    pub intervals: Vec<f64>,
    /// TCP segments the sender repeated; 0 for UDP.
    pub retransmits: u64,
    /// UDP datagrams lost, in percent; 0 for TCP.
    pub lost_percent: f64,
}

impl IperfResult {
    /// Mean throughput in Gb/s.
    pub fn gigabits(&self) -> f64 {
        self.bits_per_second / 1e9
    }

    /// The least throughput of any whole interval in bits per second; the last one may be cut short and does
    /// not count.
    pub fn worst_interval(&self) -> f64 {
        let whole = self.intervals.len().saturating_sub(1).max(1);
        self.intervals
            .iter()
            .take(whole)
            .copied()
            .fold(f64::INFINITY, f64::min)
    }
}

/// A server that serves one client and ends; dropping it on this machine kills it.
#[derive(Debug)]
pub struct IperfServer {
    _running: Running,
}

/// Starts a server and waits until it listens.
pub fn server(at: &dyn Endpoint, port: u16) -> Result<IperfServer> {
    let running = at.start(&format!("exec iperf3 -s -1 -J -p {port}"))?;
    let listening = format!(
        "for i in $(seq 50); do grep -q ':{port:04X} .* 0A ' /proc/net/tcp6 /proc/net/tcp && exit 0; sleep 0.1; done; exit 1"
    );
    let found = at.run(&listening);
    if !found.as_ref().is_ok_and(|output| output.success()) {
        bail!(
            "{}: the iperf3 server does not listen on port {port} ({found:?}): {:?}",
            at.name(),
            running.wait(Duration::from_secs(1))
        );
    }
    Ok(IperfServer { _running: running })
}

/// A measurement under way.
#[derive(Debug)]
pub struct IperfRunning {
    running: Running,
    limit: Duration,
    _server: IperfServer,
}

impl IperfRunning {
    /// Waits for the result.
    pub fn wait(self) -> Result<IperfResult> {
        let output = self.running.wait(self.limit)?;
        parse(&output.stdout).with_context(|| {
            format!(
                "iperf3 ended with {}: {}{}",
                output.status,
                failure(&output.stdout),
                output.stderr
            )
        })
    }
}

/// A measurement that can start at once.
pub struct Prepared<'a> {
    from: &'a dyn Endpoint,
    command: String,
    limit: Duration,
    server: IperfServer,
}

/// Starts the server at `to`, which has `address`, for a measurement from `from`.
pub fn prepare<'a>(
    from: &'a dyn Endpoint,
    to: &dyn Endpoint,
    address: &str,
    options: &IperfOptions,
) -> Result<Prepared<'a>> {
    let command = format!(
        "exec iperf3 -J --get-server-output --connect-timeout 5000 -c {address} -p {} -t {} -i {} {}",
        options.port, options.seconds, options.interval, options.arguments
    );
    Ok(Prepared {
        from,
        command,
        limit: Duration::from_secs(u64::from(options.seconds)) + TIMEOUT,
        server: server(to, options.port)?,
    })
}

impl Prepared<'_> {
    /// Starts to send.
    pub fn start(self) -> Result<IperfRunning> {
        Ok(IperfRunning {
            running: self.from.start(&self.command)?,
            limit: self.limit,
            _server: self.server,
        })
    }

    /// Starts to send once the clock of the guest shows this second, within 0.1 s: streams that are to run at
    /// the same time do so however long it takes to start them.
    pub fn start_at(mut self, second: u64) -> Result<IperfRunning> {
        self.command = format!(
            "while [ $(date +%s) -lt {second} ]; do sleep 0.1; done; {}",
            self.command
        );
        self.start()
    }
}

/// Starts a measurement from `from` to `to`, which has `address`.
pub fn start(
    from: &dyn Endpoint,
    to: &dyn Endpoint,
    address: &str,
    options: &IperfOptions,
) -> Result<IperfRunning> {
    prepare(from, to, address, options)?.start()
}

/// Measures from `from` to `to`, which has `address`.
pub fn run(
    from: &dyn Endpoint,
    to: &dyn Endpoint,
    address: &str,
    options: &IperfOptions,
) -> Result<IperfResult> {
    start(from, to, address, options)?
        .wait()
        .with_context(|| format!("iperf3 from {} to {} ({address})", from.name(), to.name()))
}

fn failure(text: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(text).ok();
    parsed
        .and_then(|json| json["error"].as_str().map(str::to_owned))
        .unwrap_or_else(|| text.to_owned())
}

fn parse(text: &str) -> Result<IperfResult> {
    let client: Value = serde_json::from_str(text).context("not JSON")?;
    if let Some(error) = client["error"].as_str() {
        bail!("{error}");
    }
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let udp = client["start"]["test_start"]["protocol"] == "UDP";
    // Sums differ between protocols and versions in whose view they are; the server's intervals are
    // unmistakable.
    let sums: Vec<&Value> = client["server_output_json"]["intervals"]
        .as_array()
        .context("the server sent no intervals")?
        .iter()
        .map(|interval| &interval["sum"])
        .collect();
    let total = |key: &str| sums.iter().map(|sum| number(&sum[key])).sum::<f64>();
    let (bytes, seconds) = (total("bytes"), total("seconds"));
    Ok(IperfResult {
        bits_per_second: if seconds > 0.0 { bytes * 8.0 / seconds } else { 0.0 },
        bytes,
        intervals: sums.iter().map(|sum| number(&sum["bits_per_second"])).collect(),
        retransmits: client["end"]["sum_sent"]["retransmits"].as_u64().unwrap_or(0),
        lost_percent: if udp {
            number(&client["end"]["sum"]["lost_percent"])
        } else {
            0.0
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_the_receivers() {
        let text = r#"{"start":{"test_start":{"protocol":"TCP"}},
            "end":{"sum_sent":{"bits_per_second":9e9,"retransmits":3}},
            "server_output_json":{"intervals":[
                {"sum":{"bits_per_second":3e9,"bytes":3.75e8,"seconds":1}},
                {"sum":{"bits_per_second":1e9,"bytes":1.25e8,"seconds":1}},
                {"sum":{"bits_per_second":0,"bytes":0,"seconds":0}}]}}"#;
        let result = parse(text).expect("readable");
        assert_eq!(
            (result.gigabits(), result.retransmits, result.bytes),
            (2.0, 3, 5e8)
        );
        assert_eq!(result.worst_interval(), 1e9);
        assert!(parse(r#"{"error":"unable to connect"}"#).is_err());
    }
}
