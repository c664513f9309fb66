//! Attackers, of which nobody expects anything, and which nobody else may notice. Each is a thread that does
//! harm in one of two ways until the attacker leaves: by what it is as a device (`rings`), or by what it
//! sends (`frames`).

mod frames;
mod rings;

use super::Visitor;
use crate::pair::Pair;
use anyhow::{Context, Result, anyhow};
use fastrand::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use testbed::Switch;

/// What the thread does until its flag is set.
type Harm = Box<dyn FnOnce(&AtomicBool) -> Result<()> + Send>;

/// See the module's description.
pub struct Attacker {
    port: &'static str,
    /// Comes to the port.
    arrive: fn(&Switch, &'static str, Rng) -> Result<Harm>,
    /// While it is here: its flag and its thread.
    life: Option<(Arc<AtomicBool>, JoinHandle<Result<()>>)>,
}

impl Attacker {
    /// A VMM and a guest that break every rule they can think of, on a port of the configuration.
    pub fn by_rings(port: &'static str) -> Attacker {
        Attacker {
            port,
            arrive: rings::arrive,
            life: None,
        }
    }

    /// A guest that uses up what guests share.
    pub fn by_frames(port: &'static str) -> Attacker {
        Attacker {
            port,
            arrive: frames::arrive,
            life: None,
        }
    }
}

impl Visitor for Attacker {
    fn name(&self) -> &'static str {
        self.port
    }

    fn is_here(&self) -> bool {
        self.life.is_some()
    }

    fn arrive(&mut self, switch: &Switch, random: &mut Rng) -> Result<()> {
        let harm = (self.arrive)(switch, self.port, random.fork())?;
        let stop = Arc::new(AtomicBool::new(false));
        let ending = stop.clone();
        self.life = Some((stop, thread::spawn(move || harm(&ending))));
        Ok(())
    }

    fn work(&mut self, _: &Switch, _: &Pair, _: &mut Rng) -> Result<()> {
        Ok(())
    }

    fn leave(&mut self, switch: &Switch, _: &mut Rng) -> Result<()> {
        let (stop, thread) = self.life.take().context("it is here")?;
        stop.store(true, Ordering::Relaxed);
        let ended = thread.join().unwrap_or_else(|_| Err(anyhow!("it panicked")));
        ended.with_context(|| format!("the attacker on {}", self.port))?;
        switch.wait_port(self.port, "disconnected")
    }
}
