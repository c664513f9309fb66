//! Two polling drivers of one testpmd, which is killed or loses its ports in mid-traffic. It works for
//! moments: a driver that polls takes a whole processor.

use super::Visitor;
use crate::pair::Pair;
use anyhow::{Context, Result};
use fastrand::Rng;
use std::thread;
use std::time::Duration;
use testbed::{Switch, Testpmd, TestpmdOptions};

/// Longest time for which its drivers take nothing.
const STALL_MS: u64 = 500;

/// How long packets circulate after that, if they are not lost.
const WORK: Duration = Duration::from_millis(200);

/// See the module's description.
pub struct Polling {
    /// Of its own, added for it with its ports, or else it is a guest of everybody's.
    switch: Option<&'static str>,
    ports: [&'static str; 2],
    testpmd: Option<Testpmd>,
}

impl Polling {
    /// On ports of everybody's switch. It sends to stations that nobody is, hence to all, and what arrives it
    /// forgets: sent back, it would circulate for ever, and stations would seem to have moved.
    pub fn quiet(ports: [&'static str; 2]) -> Polling {
        Polling {
            switch: None,
            ports,
            testpmd: None,
        }
    }

    /// On a switch of its own, where packets circulate between its two ports.
    pub fn in_a_loop(switch: &'static str, ports: [&'static str; 2]) -> Polling {
        Polling {
            switch: Some(switch),
            ports,
            testpmd: None,
        }
    }

    fn delete_ports(&self, switch: &Switch) -> Result<()> {
        match self.switch {
            Some(own) => switch.verb(&["switch", "del", own]).map(drop),
            None => self
                .ports
                .iter()
                .try_for_each(|port| switch.wait_port(port, "disconnected")),
        }
    }
}

impl Visitor for Polling {
    fn name(&self) -> &'static str {
        self.ports[0]
    }

    fn is_here(&self) -> bool {
        self.testpmd.is_some()
    }

    fn arrive(&mut self, switch: &Switch, random: &mut Rng) -> Result<()> {
        if let Some(own) = self.switch {
            switch.verb(&["switch", "add", own])?;
            for port in self.ports {
                switch.verb(&["port", "add", own, port])?;
            }
        }
        // Packed rings are asked for, whether the switch offers them or not.
        let properties = *random
            .choice(&["", "packed_vq=1", "mrg_rxbuf=0", "in_order=0"])
            .unwrap_or(&"");
        let options = TestpmdOptions {
            packet_size: random.u16(60..=1514),
            forward_mode: if self.switch.is_some() { "io" } else { "rxonly" },
            ..TestpmdOptions::guest(&self.ports.map(|port| switch.socket(port)), properties)
        };
        let mut testpmd = Testpmd::start(&options)?;
        testpmd.command(&format!("set burst {}", random.u8(1..=32)))?;
        self.testpmd = Some(testpmd);
        Ok(())
    }

    fn work(&mut self, switch: &Switch, _: &Pair, random: &mut Rng) -> Result<()> {
        let testpmd = self.testpmd.as_mut().context("it is here")?;
        let before = testpmd.stats()?;
        testpmd.start_loop(random.u32(1..=8))?;
        switch.wait(|| {
            let now = testpmd.stats()?;
            Ok(now
                .iter()
                .zip(&before)
                .all(|(now, before)| now.received > before.received))
        })?;
        testpmd.pause();
        thread::sleep(Duration::from_millis(random.u64(..STALL_MS)));
        testpmd.resume();
        thread::sleep(WORK);
        testpmd.stop()
    }

    fn leave(&mut self, switch: &Switch, random: &mut Rng) -> Result<()> {
        let mut testpmd = self.testpmd.take().context("it is here")?;
        testpmd.start_loop(random.u32(1..=8))?;
        if self.switch.is_some() && random.bool() {
            return self.delete_ports(switch);
        }
        testpmd.kill();
        self.delete_ports(switch)
    }
}
