//! ping, and its results.

use crate::endpoint::Endpoint;
use anyhow::{Context, Result, bail};
use std::time::Duration;

/// How to ping.
#[derive(Clone, Copy, Debug)]
pub struct PingOptions {
    /// Packets to send.
    pub count: u32,
    /// Seconds between them.
    pub interval: f64,
    /// Bytes of payload, without ICMP and IP headers.
    pub size: u32,
    /// Forbid fragmentation.
    pub whole: bool,
}

impl Default for PingOptions {
    fn default() -> PingOptions {
        PingOptions {
            count: 3,
            interval: 0.2,
            size: 56,
            whole: false,
        }
    }
}

/// The answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PingResult {
    /// Packets sent.
    pub sent: u32,
    /// Answers received, duplicates not counted.
    pub received: u32,
    /// Duplicate answers.
    pub duplicates: u32,
    /// Mean round trip time in milliseconds; `None` without an answer.
    pub mean_ms: Option<f64>,
}

impl PingResult {
    /// Whether everything came back once.
    pub fn complete(&self) -> bool {
        self.sent > 0 && self.received == self.sent && self.duplicates == 0
    }
}

/// Pings `address` from `from`. Losing packets is a result, not an error.
pub fn ping(from: &dyn Endpoint, address: &str, options: PingOptions) -> Result<PingResult> {
    let PingOptions {
        count,
        interval,
        size,
        whole,
    } = options;
    let whole = if whole { "-M do" } else { "" };
    let command = format!("ping -n -q -c {count} -i {interval} -W 2 -s {size} {whole} {address}");
    let limit = Duration::from_secs_f64(f64::from(count) * interval + 20.0);
    let output = from.start(&command)?.wait(limit)?;
    // Status 1 means that packets were lost; 2 is an error.
    if output.status > 1 {
        bail!(
            "{}: `{command}` ended with {}\n{}{}",
            from.name(),
            output.status,
            output.stdout,
            output.stderr
        );
    }
    parse(&output.stdout).with_context(|| {
        format!(
            "{}: cannot read what `{command}` says:\n{}{}",
            from.name(),
            output.stdout,
            output.stderr
        )
    })
}

/// Pings `address`, and returns each round trip time in milliseconds, in the order of the answers. Lost
/// packets are left out.
pub fn round_trips(from: &dyn Endpoint, address: &str, options: PingOptions) -> Result<Vec<f64>> {
    let PingOptions {
        count,
        interval,
        size,
        whole: _,
    } = options;
    let command = format!("ping -n -c {count} -i {interval} -W 2 -s {size} {address}");
    let limit = Duration::from_secs_f64(f64::from(count) * interval + 30.0);
    let output = from.start(&command)?.wait(limit)?;
    Ok(times(&output.stdout))
}

/// "64 bytes from 10.0.0.1: icmp_seq=1 ttl=64 time=0.123 ms"
fn times(text: &str) -> Vec<f64> {
    let time = |line: &str| line.split_once("time=")?.1.split_once(' ')?.0.parse().ok();
    text.lines().filter_map(time).collect()
}

/// Pings until an answer comes, at most `timeout`; for peers that have just been started.
pub fn reachable(from: &dyn Endpoint, address: &str, timeout: Duration) -> Result<()> {
    let deadline = std::time::Instant::now() + timeout;
    loop {
        let result = ping(
            from,
            address,
            PingOptions {
                count: 1,
                ..PingOptions::default()
            },
        );
        match result {
            Ok(result) if result.received > 0 => return Ok(()),
            _ if std::time::Instant::now() < deadline => std::thread::sleep(Duration::from_millis(100)),
            Ok(_) => bail!("{}: {address} does not answer within {timeout:?}", from.name()),
            Err(error) => return Err(error),
        }
    }
}

fn parse(text: &str) -> Option<PingResult> {
    let summary = text.lines().find(|line| line.contains("packets transmitted"))?;
    let number = |marker: &str| {
        let part = summary.split(',').find(|part| part.contains(marker))?;
        let digits: String = part.chars().filter(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    // "rtt min/avg/max/mdev = 0.1/0.2/0.3/0.0 ms"
    let mean_ms = text
        .lines()
        .find(|line| line.contains("min/avg/max"))
        .and_then(|line| line.split_once('=')?.1.trim().split('/').nth(1)?.parse().ok());
    Some(PingResult {
        sent: number("packets transmitted")?,
        received: number("received")?,
        duplicates: number("duplicates").unwrap_or(0),
        mean_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_read() {
        let text = "PING 10.0.0.1 (10.0.0.1) 56(84) bytes of data.\n\n--- 10.0.0.1 ping statistics ---\n\
                    3 packets transmitted, 2 received, +1 duplicates, 33.3333% packet loss, time 402ms\n\
                    rtt min/avg/max/mdev = 0.017/0.026/0.033/0.006 ms\n";
        let result = parse(text).expect("readable");
        assert_eq!(
            result,
            PingResult {
                sent: 3,
                received: 2,
                duplicates: 1,
                mean_ms: Some(0.026)
            }
        );
        assert!(!result.complete());
        let text = "1 packets transmitted, 0 received, +1 errors, 100% packet loss, time 0ms\n";
        assert_eq!(parse(text).expect("readable").mean_ms, None);
        assert_eq!(parse("ping: unknown host"), None);
        let text = "PING 10.0.0.1 (10.0.0.1) 56(84) bytes of data.\n64 bytes from 10.0.0.1: icmp_seq=1 ttl=64 time=0.123 ms\n\
                    64 bytes from 10.0.0.1: icmp_seq=2 ttl=64 time=12 ms\n\n--- 10.0.0.1 ping statistics ---\n";
        assert_eq!(times(text), [0.123, 12.0]);
    }
}
