//! Two guests that stay, and whose traffic must never stop: a stream, round trips of single datagrams, and a
//! file whose contents are compared, since the checksums of TCP are not computed between guests of one host.

use crate::Stop;
use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;
use testbed::{Endpoint, Guest, GuestOptions, IperfOptions, Switch, UmlGuest, iperf, udp_rr};

/// Seconds in sequence in which something must have arrived.
const SILENT_SECONDS: usize = 5;

/// Seconds of one stream.
const STREAM: u32 = 10;

/// Streams differ, so that the switch is sometimes busy and sometimes about to sleep.
const STREAMS: &[&str] = &["", "-b 20M", "-b 300M", "-P 4", "-M 400"];

/// Seconds of a visitor's traffic.
const TRAFFIC: u32 = 20;

/// IPv4 address of endpoint `number`.
pub fn v4(number: u8) -> String {
    format!("10.9.0.{number}")
}

/// A guest on a port, named like it.
pub fn options(switch: &Switch, port: &str, number: u8) -> GuestOptions {
    GuestOptions::new(port)
        .vhost_user(switch.socket(port))
        .address(&format!("{}/24", v4(number)))
}

/// Shell words that fetch the first guest's file to standard output.
fn fetching() -> String {
    format!("busybox wget -q -O - http://{}/file", v4(1))
}

/// Commands that keep both guests busy for a while: files from the first, and pings of the second every
/// `interval` seconds.
pub fn traffic(interval: f64) -> [String; 2] {
    [
        format!(
            "timeout {TRAFFIC} sh -c 'while {} > /dev/null; do :; done'",
            fetching()
        ),
        format!("ping -q -s 1400 -i {interval} -w {TRAFFIC} {}", v4(2)),
    ]
}

/// What an endpoint says of its TCP connections, of the commands that it was told and has not reported, and
/// of its processes.
fn sockets(endpoint: &dyn Endpoint) -> String {
    let said = endpoint.must("cat /proc/net/tcp; grep ^Tcp /proc/net/snmp; ls /tmp; ps");
    let said = said.unwrap_or_else(|error| format!("{error:#}"));
    format!("TCP, open commands and processes of {}:\n{said}", endpoint.name())
}

/// See the module's description.
pub struct Pair {
    pub a: Guest,
    pub b: Guest,
    /// Of the file that `a` serves.
    sum: String,
}

impl Pair {
    /// Boots the two, as endpoints 1 and 2. The first one serves a file and answers datagrams.
    pub fn boot(switch: &Switch) -> Result<Pair> {
        let mut guests = UmlGuest::boot_all([options(switch, "a", 1), options(switch, "b", 2)])?.into_iter();
        let (a, b) = guests.next().zip(guests.next()).context("two guests")?;
        // Clients die in mid-transfer: TCP is to notice soon.
        a.must("echo 5 > /proc/sys/net/ipv4/tcp_retries2")?;
        a.must("mkdir /tmp/www; dd if=/dev/urandom of=/tmp/www/file bs=1M count=8 2>&1")?;
        a.must("busybox httpd -h /tmp/www")?;
        udp_rr::serve(&a)?;
        let sum = a.must("sha256sum < /tmp/www/file")?;
        Ok(Pair { a, b, sum })
    }

    /// Fetches the file and compares the bytes that arrive. An error contains how far TCP came.
    pub fn fetch(&self, from: &dyn Endpoint) -> Result<()> {
        let arrived = from
            .must(&format!("{} | sha256sum", fetching()))
            .with_context(|| format!("{}\n{}", sockets(&self.a), sockets(from)))?;
        ensure!(
            arrived == self.sum,
            "{}: fetched {arrived} instead of {}",
            from.name(),
            self.sum
        );
        Ok(())
    }

    /// Starts the traffic between the two.
    pub fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        seed: u64,
        stop: &'scope Stop,
    ) -> Vec<ScopedJoinHandle<'scope, Result<()>>> {
        let mut random = Rng::with_seed(seed);
        let streams = scope.spawn(move || stop.until(|| self.stream(&mut random)));
        let round_trips = scope.spawn(|| stop.until(|| self.round_trips()));
        let files = scope.spawn(|| {
            stop.until(|| {
                thread::sleep(Duration::from_millis(500));
                self.fetch(&self.b)
            })
        });
        vec![streams, round_trips, files]
    }

    fn stream(&self, random: &mut Rng) -> Result<()> {
        let options = IperfOptions {
            // The last server may not have ended yet.
            port: random.u16(5201..5301),
            arguments: (*random.choice(STREAMS).unwrap_or(&"")).into(),
            ..IperfOptions::seconds(STREAM)
        };
        let running = if random.bool() {
            iperf::start(&self.a, &self.b, &v4(2), &options)?
        } else {
            iperf::start(&self.b, &self.a, &v4(1), &options)?
        };
        let result = running
            .wait()
            .with_context(|| format!("{}\n{}", sockets(&self.a), sockets(&self.b)))?;
        let stopped = result
            .intervals
            .windows(SILENT_SECONDS)
            .any(|seconds| seconds.iter().all(|&rate| rate == 0.0));
        ensure!(!stopped, "nothing arrived for {SILENT_SECONDS} s: {result:?}");
        Ok(())
    }

    fn round_trips(&self) -> Result<()> {
        let time = Duration::from_secs(SILENT_SECONDS as u64);
        let result = udp_rr::wait(udp_rr::start(&self.b, &v4(1), 200, time)?, time)?;
        ensure!(
            result.transactions > 0,
            "no answer for {SILENT_SECONDS} s: {result:?}"
        );
        Ok(())
    }
}
