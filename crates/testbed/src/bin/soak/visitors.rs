//! Visitors that come and go, each as one kind of user of a switch.

mod attacker;
mod container;
mod neighbour;
mod polling;
mod virtual_machine;

use crate::pair::Pair;
use anyhow::{Context, Result};
pub use attacker::Attacker;
pub use container::Container;
use fastrand::Rng;
pub use neighbour::Neighbour;
pub use polling::Polling;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use testbed::{Endpoint, Switch};
pub use virtual_machine::VirtualMachine;

/// A visitor that comes, works and goes, and may go before having worked.
pub trait Visitor {
    fn name(&self) -> &'static str;

    fn is_here(&self) -> bool;

    /// Comes, without waiting until everything is up.
    fn arrive(&mut self, switch: &Switch, random: &mut Rng) -> Result<()>;

    /// Waits until it can work, checks that, and leaves traffic running.
    fn work(&mut self, switch: &Switch, pair: &Pair, random: &mut Rng) -> Result<()>;

    /// Goes, in mid-traffic if there is some. Nothing of it is left.
    fn leave(&mut self, switch: &Switch, random: &mut Rng) -> Result<()>;

    /// Where to run commands, and the number of its address.
    fn endpoint(&self) -> Option<(&dyn Endpoint, u8)> {
        None
    }
}

/// A thread that misbehaves until it is stopped.
struct Mischief {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Mischief {
    /// Runs `misbehave` until it returns, soon after its flag is set.
    fn start(misbehave: impl FnOnce(&AtomicBool) -> Result<()> + Send + 'static) -> Mischief {
        let stop = Arc::new(AtomicBool::new(false));
        let ending = stop.clone();
        let thread = thread::spawn(move || misbehave(&ending));
        Mischief { stop, thread }
    }

    /// Ends it and waits until its port is free again. An error if it failed by itself.
    fn end(self, switch: &Switch, port: &str) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.join();
        let ended = ended.unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked")));
        ended.with_context(|| format!("the attacker on {port}"))?;
        switch.wait_port(port, "disconnected")
    }
}
