//! A guest that fetches files and pings. It is killed, switched off from inside, or loses its port.

use super::Visitor;
use crate::pair::{Pair, options, traffic, v4};
use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use std::thread;
use std::time::{Duration, Instant};
use testbed::ping::reachable;
use testbed::switch::TIMEOUT;
use testbed::{Endpoint, Guest, Switch, UmlGuest};

/// See the module's description.
pub struct VirtualMachine {
    port: &'static str,
    number: u8,
    by_command: bool,
    guest: Option<Guest>,
}

impl VirtualMachine {
    /// On a port of the configuration.
    pub fn configured(port: &'static str, number: u8) -> VirtualMachine {
        VirtualMachine {
            port,
            number,
            by_command: false,
            guest: None,
        }
    }

    /// On a port that is added for it, and deleted afterwards or under it.
    pub fn by_command(port: &'static str, number: u8) -> VirtualMachine {
        VirtualMachine {
            by_command: true,
            ..VirtualMachine::configured(port, number)
        }
    }
}

/// The kernel's last words, when it has let go of all devices.
const HALTED: &str = "reboot: System halted";

/// Switches a guest off from inside; one that has not booted yet is killed. So is, later, one whose kernel
/// has halted and whose process stays: User Mode Linux does that now and then on a busy machine.
fn switch_off(guest: &mut Guest) -> Result<()> {
    if guest.boots() == 0 {
        return Ok(());
    }
    drop(guest.start("poweroff -f")?);
    let deadline = Instant::now() + TIMEOUT;
    while !guest.reap() {
        if Instant::now() >= deadline && guest.console_tail().contains(HALTED) {
            println!("{} has halted and stays", guest.name());
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "{} does not end:\n{}",
            guest.name(),
            guest.console_tail()
        );
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

impl Visitor for VirtualMachine {
    fn name(&self) -> &'static str {
        self.port
    }

    fn is_here(&self) -> bool {
        self.guest.is_some()
    }

    fn arrive(&mut self, switch: &Switch, _: &mut Rng) -> Result<()> {
        if self.by_command {
            switch.verb(&["port", "add", "sw0", self.port])?;
        }
        self.guest = Some(UmlGuest::start(options(switch, self.port, self.number))?);
        Ok(())
    }

    fn work(&mut self, _: &Switch, pair: &Pair, random: &mut Rng) -> Result<()> {
        let guest = self.guest.as_mut().context("it is here")?;
        guest.wait_ready()?;
        reachable(guest, &v4(1), TIMEOUT)?;
        pair.fetch(guest)?;
        let interval = random.choice([0.002, 0.05, 1.0]).unwrap_or(1.0);
        for command in traffic(interval) {
            guest.start(&command)?;
        }
        Ok(())
    }

    fn leave(&mut self, switch: &Switch, random: &mut Rng) -> Result<()> {
        let mut guest = self.guest.take().context("it is here")?;
        if self.by_command && random.bool() {
            switch.verb(&["port", "del", self.port])?;
            return Ok(());
        }
        if random.bool() {
            switch_off(&mut guest)?;
        }
        guest.kill();
        if self.by_command {
            switch.verb(&["port", "del", self.port])?;
        } else {
            switch.wait_port(self.port, "disconnected")?;
        }
        Ok(())
    }

    fn endpoint(&self) -> Option<(&dyn Endpoint, u8)> {
        self.guest
            .as_ref()
            .map(|guest| (guest as &dyn Endpoint, self.number))
    }
}
