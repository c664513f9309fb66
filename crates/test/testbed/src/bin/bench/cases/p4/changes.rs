//! Programs and entries that are exchanged while packets flow: when the first packet meets a new program,
//! packets that replacements lose, and what a large batch of entries costs others.

use super::{FIRST, LONGEST, LONGEST_WITHOUT, LOST, NAME, REPLACED, entries, is_wanted, load, program};
use crate::Effort;
use crate::cases::delay::during;
use crate::machine::on_processor;
use crate::record::Record;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testbed::polling::{Frame, HEADER_LEN};
use testbed::{PollingGuest, Switch};

const FROM_FILE: &str = "a router of 2 prefixes, from the file";
const CARRIED: &str = "a router in the place of one, 10,000 prefixes";
const REPLACEMENTS: &str = "100 replacements of a router, full load";
const BATCH: &str = "65,530 entries in one batch";

const PORTS: [&str; 2] = ["p1", "p2"];
const OTHERS: [&str; 2] = ["other1", "other2"];
/// The sender, whom its frames are sent to, and next hops, by which versions are told apart.
const FROM: u32 = 1;
const TO: u32 = 2;
const HOPS: [u32; 2] = [3, 4];
const CARRIED_PREFIXES: u32 = 10_000;
/// A program has 65,536 at most.
const ENTRIES: u32 = 65_530;
const TIMES: usize = 100;
const BURST: usize = 32;
/// What has not arrived by then is lost.
const LATE: Duration = Duration::from_millis(200);
const TIMEOUT: Duration = Duration::from_secs(20);

struct Rig {
    switch: Switch,
    guest: PollingGuest,
    bystander: PollingGuest,
    router: PathBuf,
}

pub fn run(_: &Effort, record: &mut Record) -> Result<()> {
    let labels = [FROM_FILE, CARRIED, REPLACEMENTS, BATCH];
    if !labels.iter().any(|label| is_wanted(record, label)) {
        return Ok(());
    }
    let mut rig = Rig::start()?;
    for round in 0..record.rounds {
        println!("  round {} of {}", round + 1, record.rounds);
        rig.round(record)?;
    }
    let Rig {
        switch,
        guest,
        bystander,
        ..
    } = rig;
    drop((guest, bystander));
    switch.stop()
}

impl Rig {
    fn start() -> Result<Rig> {
        let mut text = "[[switch]]\nname = \"sw0\"\n".to_owned();
        for port in PORTS.iter().chain(&OTHERS) {
            text += &format!("[[switch.port]]\nname = \"{port}\"\n");
        }
        let switch = Switch::start(&text)?;
        let guest = PollingGuest::connect(&PORTS.map(|port| switch.socket(port)), 1514)?;
        let bystander = PollingGuest::connect(&OTHERS.map(|port| switch.socket(port)), 1514)?;
        for port in PORTS.iter().chain(&OTHERS) {
            switch.wait_port(port, "running")?;
        }
        // A table of routes that has room for a batch.
        let text = std::fs::read_to_string(program("router")?)?;
        let (before, after) = ("\"max_size\" : 16384", "\"max_size\" : 131072");
        ensure!(text.matches(before).count() == 1, "the router has another size");
        let router = switch.run_dir().join("router.json");
        std::fs::write(&router, text.replace(before, after))?;
        Ok(Rig {
            switch,
            guest,
            bystander,
            router,
        })
    }

    fn round(&mut self, record: &mut Record) -> Result<()> {
        let small = HOPS.map(|hop| entries::router(TO, hop, 2));
        let first = self.until(HOPS[0], &small[0])?;
        record.add(FROM_FILE, NAME, FIRST, first.as_secs_f64() * 1e3)?;
        let (lost, each) = self.replacements(&small)?;
        record.add(REPLACEMENTS, NAME, LOST, lost)?;
        record.add(REPLACEMENTS, NAME, REPLACED, each.as_secs_f64() * 1e3)?;
        self.batch(record)?;
        let large = HOPS.map(|hop| entries::router(TO, hop, CARRIED_PREFIXES));
        self.until(HOPS[0], &large[0])?;
        let first = self.until(HOPS[1], &large[1])?;
        record.add(CARRIED, NAME, FIRST, first.as_secs_f64() * 1e3)?;
        self.switch.verb(&["p4", "unload", "tenant"]).map(drop)
    }

    /// Loads the router; returns the time from the command to the first packet that goes to that next hop.
    fn until(&mut self, hop: u32, entries: &str) -> Result<Duration> {
        let Rig {
            switch,
            guest,
            router,
            ..
        } = self;
        let frame = Frame::udp(64, FROM, TO);
        let expected = Frame::udp(64, FROM, hop);
        let expected = &expected.bytes()[HEADER_LEN..][..6];
        thread::scope(|scope| {
            let begin = Instant::now();
            let loading = scope.spawn(|| load(switch, "tenant", router, entries, PORTS));
            let mut arrived = false;
            while !arrived {
                ensure!(begin.elapsed() < TIMEOUT, "no packet meets the program");
                guest.send(0, &frame)?;
                guest.flush(0);
                guest.receive(1, usize::MAX, |bytes| arrived |= bytes.starts_with(expected))?;
                // Who loads has a processor, too.
                thread::yield_now();
            }
            let first = begin.elapsed();
            loading.join().expect("loading does not panic")?;
            Ok(first)
        })
    }

    /// Replaces the program many times while packets flow; returns how many packets were lost, and how long
    /// a replacement took.
    fn replacements(&mut self, versions: &[String; 2]) -> Result<(f64, Duration)> {
        let Rig {
            switch,
            guest,
            router,
            ..
        } = self;
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let replacing = scope.spawn(|| {
                let begin = Instant::now();
                let mut versions = versions.iter().cycle().take(TIMES);
                let result = versions.try_for_each(|entries| load(switch, "tenant", router, entries, PORTS));
                ended.store(true, Ordering::Relaxed);
                result.map(|()| begin.elapsed())
            });
            let lost = on_processor(0, || lost_until(&ended, guest));
            let elapsed = replacing.join().expect("loading does not panic")?;
            let times = u32::try_from(TIMES)?;
            Ok((f64::from(lost?), elapsed / times))
        })
    }

    /// Adds the entries, and takes them away.
    fn batch(&mut self, record: &mut Record) -> Result<()> {
        let run_dir = self.switch.run_dir();
        let [add, delete] = ["add", "delete"].map(|verb| run_dir.join(verb));
        std::fs::write(&add, entries::hosts(ENTRIES))?;
        std::fs::write(&delete, entries::keys_of_hosts(ENTRIES))?;
        let switch = &self.switch;
        let change = |verb: &str, file: &PathBuf| {
            let (begin, file) = (Instant::now(), file.to_str().context("a path in UTF-8")?);
            switch.verb(&["p4", "entry", verb, "tenant", "--file", file])?;
            Ok(begin.elapsed())
        };
        let (delay, elapsed) = during(&mut self.bystander, || change("add", &add))?;
        let (usual, ()) = during(&mut self.bystander, || {
            thread::sleep(elapsed);
            Ok(())
        })?;
        change("delete", &delete)?;
        record.add(BATCH, NAME, LONGEST, delay.as_secs_f64() * 1e6)?;
        record.add(BATCH, NAME, LONGEST_WITHOUT, usual.as_secs_f64() * 1e6)?;
        record.add(BATCH, NAME, REPLACED, elapsed.as_secs_f64() * 1e3)
    }
}

/// Sends bursts until the end, and returns how many of the packets have not arrived.
fn lost_until(ended: &AtomicBool, guest: &mut PollingGuest) -> Result<u32> {
    let frame = Frame::udp(64, FROM, TO);
    let mut lost = 0;
    while !ended.load(Ordering::Relaxed) {
        let mut left = 0;
        while left < BURST && guest.send(0, &frame)? {
            left += 1;
        }
        guest.flush(0);
        let sent = Instant::now();
        while left > 0 && sent.elapsed() < LATE {
            left -= guest.receive(1, left, |_| ())?;
        }
        lost += u32::try_from(left)?;
    }
    Ok(lost)
}
