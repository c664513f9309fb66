//! DPDK's testpmd with virtio-user ports: a polling guest driver of another project, at native speed.
//!
//! Two ports forward to each other what they receive, so that packets injected once run in a loop through the
//! switch until one is lost. Its memory is one shared file, without huge pages unless asked for. testpmd is
//! driven over its interactive prompt; its processor use is one whole core while forwarding, as polling
//! drivers do.

use crate::huge_pages::HugePages;
use crate::process::{self, Group};
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PROMPT: &str = "testpmd> ";

/// How long any command may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The specification of a testpmd.
#[derive(Clone, Debug)]
pub struct TestpmdOptions {
    /// DPDK devices (`--vdev`), one port each.
    pub devices: Vec<String>,
    /// Entries of each ring, a power of two up to 1024.
    pub queue_size: u16,
    /// Bytes of each packet injected, 60 to 1514, without checksum.
    pub packet_size: u16,
    /// Use 2 MiB pages, which must have been reserved.
    pub huge_pages: bool,
    /// What is done with packets that arrive: `io` sends them out of the next port (or back, if there is only
    /// one), `rxonly` forgets them.
    pub forward_mode: &'static str,
    /// The processor on which it stays; any by default.
    pub processor: Option<usize>,
    /// Packet buffers.
    pub buffers: u32,
}

impl TestpmdOptions {
    /// Guest ports on vhost-user sockets on which the switch listens, with 64-byte packets and rings of 256.
    /// `properties` are further ones of every `net_virtio_user` device: `mrg_rxbuf=0,in_order=0`.
    pub fn guest(sockets: &[PathBuf], properties: &str) -> TestpmdOptions {
        let comma = if properties.is_empty() { "" } else { "," };
        let device = |(index, socket): (usize, &PathBuf)| {
            let path = socket.display();
            format!("net_virtio_user{index},path={path},queues=1,queue_size=256{comma}{properties}")
        };
        TestpmdOptions::new(sockets.iter().enumerate().map(device).collect())
    }

    /// Ports that listen on vhost-user sockets and play the switch: DPDK's own vhost library.
    pub fn switch(sockets: &[PathBuf]) -> TestpmdOptions {
        let device =
            |(index, socket): (usize, &PathBuf)| format!("net_vhost{index},iface={}", socket.display());
        TestpmdOptions::new(sockets.iter().enumerate().map(device).collect())
    }

    fn new(devices: Vec<String>) -> TestpmdOptions {
        TestpmdOptions {
            devices,
            queue_size: 256,
            packet_size: 64,
            huge_pages: false,
            forward_mode: "io",
            processor: None,
            buffers: 8192,
        }
    }

    /// A guest port that sends the frames of a capture file, of up to 30,000 frames, again and again as fast
    /// as it can. The file is read once, at the start.
    pub fn replay(capture: &Path, socket: &Path) -> TestpmdOptions {
        let source = format!("net_pcap0,rx_pcap={},infinite_rx=1", capture.display());
        let mut options = TestpmdOptions::guest(&[socket.to_path_buf()], "");
        options.devices.insert(0, source);
        options.buffers = 32_768;
        options
    }
}

/// Counters of one port since the last [`Testpmd::clear`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets received from the switch.
    pub received: u64,
    /// Packets given to the switch.
    pub sent: u64,
    /// Packets that did not fit into the transmit ring.
    pub refused: u64,
}

/// A running testpmd; killed on drop.
#[derive(Debug)]
pub struct Testpmd {
    group: Group,
    input: ChildStdin,
    output: Receiver<Vec<u8>>,
    ports: usize,
    directory: TempDir,
}

impl Testpmd {
    /// Starts testpmd and waits for its prompt. Nothing is forwarded yet.
    pub fn start(options: &TestpmdOptions) -> Result<Testpmd> {
        let directory = tempfile::Builder::new().prefix("hs-testpmd-").tempdir()?;
        let mut command = command(options);
        // DPDK keeps its runtime files there.
        command
            .env("XDG_RUNTIME_DIR", directory.path())
            .env("RUNTIME_DIRECTORY", directory.path());
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(directory.path().join("stderr"))?);
        let mut group = Group::spawn(command)?;
        let input = group.child().stdin.take().context("standard input is a pipe")?;
        let stdout = group.child().stdout.take().context("standard output is a pipe")?;
        let mut testpmd = Testpmd {
            group,
            input,
            output: read_all(stdout),
            ports: options.devices.len(),
            directory,
        };
        testpmd.read_to_prompt().with_context(|| {
            let errors = std::fs::read_to_string(testpmd.directory.path().join("stderr")).unwrap_or_default();
            format!("testpmd does not start: {errors}")
        })?;
        Ok(testpmd)
    }

    /// Runs a command at the prompt and returns its output.
    pub fn command(&mut self, command: &str) -> Result<String> {
        writeln!(self.input, "{command}").context("testpmd has ended")?;
        self.input.flush()?;
        self.read_to_prompt()
            .with_context(|| format!("testpmd: {command}"))
    }

    /// Starts forwarding after sending `bursts` bursts of 32 packets from every port.
    pub fn start_loop(&mut self, bursts: u32) -> Result<()> {
        self.command(&format!("start tx_first {bursts}")).map(drop)
    }

    /// Stops forwarding.
    pub fn stop(&mut self) -> Result<()> {
        self.command("stop").map(drop)
    }

    /// Sets all counters to zero.
    pub fn clear(&mut self) -> Result<()> {
        self.command("clear port stats all").map(drop)
    }

    /// Counters of all ports.
    pub fn stats(&mut self) -> Result<Vec<PortStats>> {
        let text = self.command("show port stats all")?;
        let stats = parse_stats(&text);
        if stats.len() != self.ports {
            bail!(
                "testpmd shows {} ports instead of {}:\n{text}",
                stats.len(),
                self.ports
            );
        }
        Ok(stats)
    }

    /// Packets per second that arrive, over all ports, measured for `time`.
    pub fn packets_per_second(&mut self, time: Duration) -> Result<f64> {
        let (before, begin) = (self.stats()?, Instant::now());
        thread::sleep(time);
        let (after, elapsed) = (self.stats()?, begin.elapsed());
        let received = |stats: &[PortStats]| stats.iter().map(|port| port.received).sum::<u64>();
        let count = received(&after).saturating_sub(received(&before));
        Ok(u32::try_from(count).map_or(f64::INFINITY, f64::from) / elapsed.as_secs_f64())
    }

    /// Process identifier of the leader of its process group.
    pub fn pid(&self) -> u32 {
        self.group.pid()
    }

    /// Stops it where it is.
    pub fn pause(&mut self) {
        self.group.signal_all(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        self.group.signal_all(Signal::CONT);
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.group.kill();
    }

    fn read_to_prompt(&mut self) -> Result<String> {
        let deadline = Instant::now() + TIMEOUT;
        let mut bytes = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&bytes);
            if text.ends_with(PROMPT) {
                return Ok(text.into_owned());
            }
            match self
                .output
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(more) => bytes.extend_from_slice(&more),
                Err(RecvTimeoutError::Timeout) => bail!("no prompt within {TIMEOUT:?} after:\n{text}"),
                Err(RecvTimeoutError::Disconnected) => bail!("testpmd ended after:\n{text}"),
            }
        }
    }
}

/// Pages of 2 MiB for it.
const HUGE_PAGES: u64 = 160;

/// testpmd as a switch: pairs of vhost ports, each forwarding what it receives to the other one. It looks at
/// no packet, so it is the least that DPDK can do with vhost's two copies. Its thread stays on the last
/// processor.
#[derive(Debug)]
pub struct VhostSwitch {
    testpmd: Testpmd,
    directory: TempDir,
    begin: Instant,
    _pages: HugePages,
}

impl VhostSwitch {
    /// Starts it with these ports, which listen.
    pub fn start(ports: &[&str]) -> Result<VhostSwitch> {
        let directory = tempfile::Builder::new().prefix("hs-vhost-").tempdir()?;
        let pages = HugePages::reserve(HUGE_PAGES)?;
        let sockets: Vec<PathBuf> = ports
            .iter()
            .map(|port| directory.path().join(format!("{port}.sock")))
            .collect();
        let mut options = TestpmdOptions::switch(&sockets);
        options.processor = thread::available_parallelism().ok().map(|count| count.get() - 1);
        options.huge_pages = true;
        let mut testpmd = Testpmd::start(&options)?;
        testpmd.command("set record-core-cycles on")?;
        testpmd.command("start")?;
        Ok(VhostSwitch {
            testpmd,
            directory,
            begin: Instant::now(),
            _pages: pages,
        })
    }

    /// The socket of a port.
    pub fn socket(&self, port: &str) -> PathBuf {
        self.directory.path().join(format!("{port}.sock"))
    }

    /// Packets received so far, cycles of the time stamp counter in rounds that found packets, and cycles
    /// that passed.
    pub fn work(&mut self) -> Result<[f64; 3]> {
        let text = self.testpmd.command("show fwd stats all")?;
        let elapsed = self.begin.elapsed().as_secs_f64();
        let [packets, busy, hertz] = parse_cycles(&text)
            .with_context(|| format!("testpmd does not say what packets cost:\n{text}"))?;
        Ok([packets, busy, elapsed * hertz])
    }

    /// Process identifier of the leader of its process group.
    pub fn pid(&self) -> u32 {
        self.testpmd.pid()
    }

    /// Stops it where it is.
    pub fn pause(&mut self) {
        self.testpmd.pause();
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        self.testpmd.resume();
    }
}

/// Reads `CPU cycles/packet=61.25 (total cycles=24500 / total io packets=400) at 2445 MHz Clock`: packets,
/// cycles, Hz.
fn parse_cycles(text: &str) -> Option<[f64; 3]> {
    let line = text.lines().find(|line| line.contains("CPU cycles/packet="))?;
    let number = |key: &str| -> Option<f64> {
        let (_, rest) = line.split_once(key)?;
        let end = rest
            .find(|character: char| !character.is_ascii_digit())
            .unwrap_or(rest.len());
        rest[..end].parse().ok()
    };
    Some([
        number("packets=")?,
        number("total cycles=")?,
        1e6 * number(") at ")?,
    ])
}

fn read_all(stdout: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = reader.read(&mut buffer) {
            if sender.send(buffer[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Reads blocks of `RX-packets: 1 ...`, `TX-packets: 2 TX-errors: 3 ...`.
fn parse_stats(text: &str) -> Vec<PortStats> {
    let mut ports: Vec<PortStats> = Vec::new();
    for line in text.lines() {
        let value =
            |key: &str| -> Option<u64> { line.split_once(key)?.1.split_whitespace().next()?.parse().ok() };
        if line.contains("NIC statistics for port") {
            ports.push(PortStats::default());
        } else if let Some(port) = ports.last_mut() {
            port.received = value("RX-packets:").unwrap_or(port.received);
            port.sent = value("TX-packets:").unwrap_or(port.sent);
            port.refused = value("TX-errors:").unwrap_or(port.refused);
        }
    }
    ports
}

/// The command line of testpmd.
fn command(options: &TestpmdOptions) -> Command {
    let processors = match options.processor {
        Some(number) => number.to_string(),
        None => format!(
            "(0-{})",
            thread::available_parallelism().map_or(0, |count| count.get() - 1)
        ),
    };
    // Its prompt bypasses the C library's buffer, the rest does not: line by line they stay in order.
    let mut command = process::command("stdbuf");
    command.args(["-oL", "dpdk-testpmd"]);
    // Two threads (prompt and forwarding) that the kernel may place: pinned ones would share cores with
    // the next testpmd's.
    command.arg(format!("--lcores=0@{processors},1@{processors}"));
    command.args(["--no-pci", "--no-telemetry", "--no-shconf", "-m", "256"]);
    if options.huge_pages {
        command.args(["--in-memory", "--single-file-segments"]);
    } else {
        command.arg("--no-huge");
    }
    for device in &options.devices {
        command.arg(format!("--vdev={device}"));
    }
    let ring = options.queue_size.to_string();
    command.args(["--", "-i", "--nb-cores=1", "--no-mlockall"]);
    command.arg(format!("--total-num-mbufs={}", options.buffers));
    command.arg(format!("--forward-mode={}", options.forward_mode));
    command.args(["--rxd", &ring, "--txd", &ring]);
    command.arg(format!("--txpkts={}", options.packet_size));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_read() {
        let text = "
  ######################## NIC statistics for port 0  ########################
  RX-packets: 100        RX-missed: 0          RX-bytes:  6400
  RX-errors: 0
  RX-nombuf:  0
  TX-packets: 228        TX-errors: 7          TX-bytes:  14592

  ######################## NIC statistics for port 1  ########################
  RX-packets: 5          RX-missed: 0          RX-bytes:  320
  TX-packets: 6          TX-errors: 0          TX-bytes:  384
testpmd> ";
        let stats = parse_stats(text);
        assert_eq!(stats.len(), 2);
        assert_eq!(
            stats[0],
            PortStats {
                received: 100,
                sent: 228,
                refused: 7
            }
        );
        assert_eq!((stats[1].received, stats[1].sent), (5, 6));
        let cycles =
            "\n  CPU cycles/packet=61.25 (total cycles=24500 / total io packets=400) at 2445 MHz Clock\n";
        assert_eq!(parse_cycles(cycles), Some([400.0, 24_500.0, 2.445e9]));
        assert_eq!(parse_cycles(text), None);
    }
}
