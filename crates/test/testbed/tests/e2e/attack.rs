//! One guest floods the switch with packets of new flows; two others go on.

use crate::rig::{finish, private};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use testbed::{Lab, Switch, Testpmd, TestpmdOptions};

/// Frames of a flood; more than the switch may learn stations or install flows of.
const FRAMES: u64 = 20_000;

/// Interleaved windows of each kind, and how long each is.
const ROUNDS: usize = 7;
const WINDOW: Duration = Duration::from_millis(1000);

/// testpmd addresses what its first port sends to the first of these, and what its second port sends to the
/// other.
const BYSTANDERS: &str = r#"
[[switch.port]]
name = "p1"
static-macs = ["02:00:00:00:00:01"]
[[switch.port]]
name = "p2"
static-macs = ["02:00:00:00:00:00"]
"#;

/// Pseudo-random numbers (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A unicast address that no station has.
    fn station(&mut self) -> [u8; 6] {
        let [_, _, rest @ ..] = self.next().to_be_bytes();
        let mut address = rest;
        address[0] = 0x0e;
        address
    }
}

/// Writes a capture file (the classic format of libpcap) of short UDP frames, each between two other
/// stations.
fn capture(path: &Path, mut random: Random) -> Result<()> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for _ in 0..FRAMES {
        for word in [0u32, 0, 60, 60] {
            file.extend(word.to_le_bytes());
        }
        file.extend(random.station());
        file.extend(random.station());
        // IPv4 without options, UDP to port 9 of 10.0.0.2.
        file.extend([
            0x08, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        file.extend([0, 9, 0, 9, 0, 26, 0, 0]);
        file.extend([0; 18]);
    }
    fs::write(path, file).context("writing the capture file")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The bystanders' packet rate while the attacker sends a burst of about a millisecond ten times a second.
fn rate_beside_bursts(flood: &mut Testpmd, bystanders: &mut Testpmd) -> Result<f64> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let bursts = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                flood.start_loop(0)?;
                flood.stop()?;
                thread::sleep(Duration::from_millis(100));
            }
            Ok(())
        });
        let rate = bystanders.packets_per_second(WINDOW);
        stop.store(true, Ordering::Relaxed);
        match bursts.join() {
            Ok(result) => result.and(rate),
            Err(_) => bail!("the attacker panicked"),
        }
    })
}

/// Crafted packets at a low rate, which is what such attacks are about, cost others next to nothing; at full
/// speed they cost the processor time that any packets do, of which the attacker itself takes a core.
#[test]
fn a_flood_of_new_flows_leaves_others_their_throughput() -> Result<()> {
    let Some(lab) = Lab::enter("a_flood_of_new_flows_leaves_others_their_throughput") else {
        return Ok(());
    };
    // Nothing of the flood is to go to the bystanders: what they send is for these addresses.
    let switch = Switch::start(&(private(&["attacker"], "flood = false") + BYSTANDERS))?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("attack.pcap");
    capture(&file, Random(0x9e37_79b9_7f4a_7c15))?;
    let mut flood = Testpmd::start(&TestpmdOptions::replay(&file, &switch.socket("attacker")))?;
    let mut bystanders = Testpmd::start(&TestpmdOptions::guest(
        &[switch.socket("p1"), switch.socket("p2")],
        "",
    ))?;
    bystanders.start_loop(4)?;

    let (mut alone, mut beside_bursts, mut beside_flood) = (Vec::new(), Vec::new(), Vec::new());
    let mut sent = 0;
    for _ in 0..ROUNDS {
        alone.push(bystanders.packets_per_second(WINDOW)?);
        let before = switch.counters("attacker")?.received;
        beside_bursts.push(rate_beside_bursts(&mut flood, &mut bystanders)?);
        sent += switch.counters("attacker")?.received - before;
        flood.start_loop(0)?;
        beside_flood.push(bystanders.packets_per_second(WINDOW)?);
        flood.stop()?;
    }
    let [alone, beside_bursts, beside_flood] = [alone, beside_bursts, beside_flood].map(median);
    let ratio = beside_bursts / alone;
    lab.note(format!(
        "million packets per second of the bystanders: alone {:.2}, beside {:.0} crafted packets per second {:.2} ({:.0} %), beside as many as possible {:.2}",
        alone / 1e6,
        sent as f64 / (WINDOW.as_secs_f64() * ROUNDS as f64),
        beside_bursts / 1e6,
        ratio * 100.0,
        beside_flood / 1e6,
    ));
    flood.kill();
    bystanders.kill();
    let stats = finish(switch, [])?;
    let attacker = stats
        .ports
        .iter()
        .find(|port| port.port == "attacker")
        .context("the port")?;
    lab.note(format!("{:?}", attacker.counters));
    // On two cores, the attacker's own thread and prompt take more from the bystanders than the switch does;
    // the benchmark's case `attack`, whose attacker is frugal, says what the switch does.
    ensure!(ratio > 0.3, "bystanders keep {ratio:.2} of their throughput");
    let refused = attacker.counters.dropped.get("miss-rate");
    ensure!(
        refused.is_some_and(|&count| count > 1000),
        "this was no flood: {:?}",
        attacker.counters
    );
    Ok(())
}
