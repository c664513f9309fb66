//! Accounts for ports to come: several are made at a time, so that those of all ports lie side by side.

use parking_lot::Mutex;
use std::sync::Arc;
use vnic::Counters;

/// Accounts that are made at a time: some two pages.
const BATCH: usize = 32;

/// Accounts for ports to come.
#[derive(Default)]
pub(crate) struct SpareAccounts(Mutex<Vec<Arc<Counters>>>);

impl SpareAccounts {
    /// An account for a port.
    pub fn take(&self) -> Arc<Counters> {
        let mut spare = self.0.lock();
        if spare.is_empty() {
            *spare = Counters::of_many(BATCH);
        }
        spare.pop().unwrap_or_default()
    }
}
