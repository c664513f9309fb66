//! The state of a version that differs from the former one in some entries alone.
//!
//! All but those entries is shared with the former state, counts and times of last packets included: nothing
//! is carried over when the former version ends. So the next change must wait until no packet runs through
//! the version before the last one any more ([`p4_tables::Tables::changed`]).

use super::State;
use crate::engine::Engine;
use crate::error::Error;
use p4_ir::changes::EntryChange;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

impl State {
    /// The state with changes of entries. `now` is in nanoseconds, for idle times.
    ///
    /// # Errors
    ///
    /// The first change that cannot be made, and why.
    pub fn changed(&self, engine: &Engine, changes: &[EntryChange], now: u64) -> Result<State, Error> {
        let custom = self.custom.iter().map(|own| RwLock::new(own.read().clone()));
        let turns = self.turns.iter().map(|turn| AtomicU64::new(turn.load(Relaxed)));
        Ok(State {
            tables: self.tables.changed(engine, changes, now)?,
            counters: self.counters.clone(),
            meters: self.meters.clone(),
            registers: self.registers.clone(),
            groups: RwLock::new(self.groups.read().clone()),
            sessions: RwLock::new(self.sessions.read().clone()),
            turns: turns.collect(),
            custom: custom.collect(),
            limits: self.limits,
            exclusive: self.exclusive.clone(),
            runs_alone: self.runs_alone,
        })
    }
}
