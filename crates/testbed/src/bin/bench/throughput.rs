//! User Mode Linux guests, on the switch and on the kernel's bridge; and testpmd, on the switch alone.

use crate::{Effort, median};
use anyhow::Result;
use serde_json::{Value, json};
use std::time::Duration;
use testbed::ping::{PingOptions, ping};
use testbed::{
    Bridge, Guest, GuestOptions, IperfOptions, Switch, Testpmd, TestpmdOptions, UmlGuest, iperf, process,
};

fn address(number: u8) -> String {
    format!("10.98.0.{number}")
}

fn options(name: &str, number: u8) -> GuestOptions {
    GuestOptions::new(name).address(&format!("{}/24", address(number)))
}

/// One way to join two guests.
struct Contender<'a> {
    name: &'static str,
    guests: Vec<Guest>,
    switch: Option<&'a Switch>,
    gigabits: Vec<f64>,
    round_trip: Vec<f64>,
    cpu_per_gigabyte: Vec<f64>,
}

impl<'a> Contender<'a> {
    fn boot(
        name: &'static str,
        switch: Option<&'a Switch>,
        options: Vec<GuestOptions>,
    ) -> Result<Contender<'a>> {
        let guests = UmlGuest::boot_all(options)?;
        let (gigabits, round_trip, cpu_per_gigabyte) = Default::default();
        Ok(Contender {
            name,
            guests,
            switch,
            gigabits,
            round_trip,
            cpu_per_gigabyte,
        })
    }

    /// Processor seconds of everything that moves the packets, guests included; the bridge works in the guests' time.
    fn cpu_seconds(&self) -> f64 {
        let guests: f64 = self.guests.iter().map(Guest::cpu_seconds).sum();
        guests + self.switch.map_or(0.0, Switch::cpu_seconds)
    }

    fn round(&mut self, effort: &Effort) -> Result<()> {
        let (a, b) = (&self.guests[0], &self.guests[1]);
        let result = ping(
            a,
            &address(2),
            PingOptions {
                count: 50,
                interval: 0.01,
                ..PingOptions::default()
            },
        )?;
        let before = self.cpu_seconds();
        let stream = iperf::run(a, b, &address(2), &IperfOptions::seconds(effort.seconds))?;
        let used = self.cpu_seconds() - before;
        println!(
            "  {:<12} {:6.2} Gb/s  {:?} ms  {:.2} CPU s",
            self.name,
            stream.gigabits(),
            result.mean_ms,
            used
        );
        self.gigabits.push(stream.gigabits());
        self.round_trip.extend(result.mean_ms);
        self.cpu_per_gigabyte.push(used / (stream.bytes / 1e9));
        Ok(())
    }

    fn results(&self) -> Value {
        json!({
            "gigabits_per_second": median(&self.gigabits),
            "round_trip_ms": median(&self.round_trip),
            "cpu_seconds_per_gigabyte": median(&self.cpu_per_gigabyte),
            "rounds_gigabits_per_second": self.gigabits,
        })
    }
}

/// TCP between two guests.
pub fn guest_to_guest(effort: &Effort) -> Result<Value> {
    println!(
        "guest to guest, TCP, {} rounds of {} s",
        effort.rounds, effort.seconds
    );
    let switch = Switch::start(
        "[[switch]]\nname = \"sw0\"\n[[switch.port]]\nname = \"vm1\"\n[[switch.port]]\nname = \"vm2\"\n",
    )?;
    let bridge = Bridge::new("bridge", None)?;
    for number in 1..=2 {
        bridge.add_tap(&format!("tap{number}"), "")?;
    }
    let netns = Some(bridge.namespace().netns());
    let ours =
        [("vm1", 1), ("vm2", 2)].map(|(name, number)| options(name, number).vhost_user(switch.socket(name)));
    let theirs = [("tap1", 1), ("tap2", 2)].map(|(name, number)| options(name, number).tap(name, netns));
    let mut contenders = [
        Contender::boot("hyperswitch", Some(&switch), ours.into())?,
        Contender::boot("bridge", None, theirs.into())?,
    ];
    for _ in 0..effort.rounds {
        for contender in &mut contenders {
            contender.round(effort)?;
        }
    }
    let [ours, theirs] = &contenders;
    let results = json!({
        "hyperswitch": ours.results(),
        "bridge": theirs.results(),
        "ratio": {
            "gigabits_per_second": median(&ours.gigabits) / median(&theirs.gigabits),
            "round_trip_ms": median(&ours.round_trip) / median(&theirs.round_trip),
            "cpu_seconds_per_gigabyte": median(&ours.cpu_per_gigabyte) / median(&theirs.cpu_per_gigabyte),
        },
    });
    drop(contenders);
    switch.settle()?;
    switch.stop()?;
    Ok(results)
}

/// Packets that circle between two polling ports: the switch alone.
pub fn packet_loop(effort: &Effort) -> Result<Value> {
    let mut results = json!({});
    for size in [64, 512, 1500] {
        let switch = Switch::start(
            "[[switch]]\nname = \"sw0\"\n[[switch.port]]\nname = \"p1\"\n[[switch.port]]\nname = \"p2\"\n",
        )?;
        let mut options = TestpmdOptions::guest(&[switch.socket("p1"), switch.socket("p2")], "");
        options.packet_size = size;
        let mut testpmd = Testpmd::start(&options)?;
        testpmd.start_loop(4)?;
        let (mut rates, mut cores) = (Vec::new(), Vec::new());
        for _ in 0..effort.rounds {
            let pids = switch.pids();
            let used = || process::cpu_seconds(|stat| pids.contains(&stat.pid));
            let before = used();
            rates.push(testpmd.packets_per_second(Duration::from_secs(1))? / 1e6);
            cores.push(used() - before);
        }
        println!(
            "packet loop, {size} bytes: {:.2} million packets per second",
            median(&rates)
        );
        results[size.to_string()] = json!({
            "million_packets_per_second": median(&rates),
            "switch_cpu_seconds_per_second": median(&cores),
        });
        testpmd.kill();
        switch.settle()?;
        switch.stop()?;
    }
    Ok(results)
}
