//! What ports cost when nothing happens: processor time and memory.

use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Write;
use std::thread;
use std::time::{Duration, Instant};
use testbed::{Switch, Testpmd, TestpmdOptions};

const PORTS: u32 = 100;
/// testpmd serves at most 32.
const PORTS_PER_TESTPMD: usize = 25;
const MEASURE: Duration = Duration::from_secs(10);

/// Percent of one core used while nobody asks for anything.
fn idle_percent(switch: &Switch) -> f64 {
    thread::sleep(Duration::from_secs(2));
    let (before, begin) = (switch.cpu_seconds(), Instant::now());
    thread::sleep(MEASURE);
    100.0 * (switch.cpu_seconds() - before) / begin.elapsed().as_secs_f64()
}

/// An instance with no ports, with 100 that nobody uses, and with 100 whose drivers run and have nothing to do.
pub fn measure() -> Result<Value> {
    let mut config = "[[switch]]\nname = \"sw0\"\n".to_owned();
    let empty = Switch::start(&config)?;
    thread::sleep(Duration::from_secs(1));
    let memory_empty = empty.memory();
    let percent_empty = idle_percent(&empty);
    empty.stop()?;

    for port in 0..PORTS {
        write!(config, "[[switch.port]]\nname = \"p{port}\"\n")?;
    }
    let switch = Switch::start(&config)?;
    thread::sleep(Duration::from_secs(1));
    let memory_unused = switch.memory();
    let percent_unused = idle_percent(&switch);

    let sockets: Vec<_> = (0..PORTS)
        .map(|port| switch.socket(&format!("p{port}")))
        .collect();
    let mut drivers = Vec::new();
    for group in sockets.chunks(PORTS_PER_TESTPMD) {
        drivers.push(Testpmd::start(&TestpmdOptions::guest(group, ""))?);
    }
    switch.wait(|| Ok(switch.status()?.ports_running == sockets.len()))?;
    let memory_connected = switch.memory();
    let percent_connected = idle_percent(&switch);
    drop(drivers);
    switch.stop()?;

    let per_port = |memory: u64| memory.saturating_sub(memory_empty) / u64::from(PORTS) / 1024;
    println!("idle: {percent_unused:.2} % and {percent_connected:.2} % of a core with {PORTS} ports");
    Ok(json!({
        "ports": PORTS,
        "cpu_percent_without_ports": percent_empty,
        "cpu_percent_unused_ports": percent_unused,
        "cpu_percent_connected_ports": percent_connected,
        "memory_kib_without_ports": memory_empty / 1024,
        "memory_kib_per_unused_port": per_port(memory_unused),
        "memory_kib_per_connected_port": per_port(memory_connected),
    }))
}
