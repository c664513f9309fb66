//! Visitors that come and go, each as one kind of user of a switch.

mod attacker;
mod container;
mod polling;
mod virtual_machine;

use crate::pair::Pair;
use anyhow::Result;
pub use attacker::Attacker;
pub use container::Container;
use fastrand::Rng;
pub use polling::Polling;
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
