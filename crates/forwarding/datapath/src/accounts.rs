//! The accounts of all ports, for the channel thread, which reads all of them.
//!
//! A scrape of many idle ports costs waits for memory, above all for the translation of addresses: an account
//! that is read by way of its port lies behind three pages that no cache has. So the thread keeps a list of
//! its own. Accounts lie side by side (`spare_accounts`).

use crate::state::Datapath;
use flow::PortId;
use std::sync::Arc;
use vnic::Counters;

/// So many accounts before it is read, an account's memory is asked for.
const PREFETCH_AHEAD: usize = 6;

/// The accounts of the ports that there were at the last look.
#[derive(Default)]
pub(crate) struct Accounts {
    /// Of the ports that are listed; `None` before the first look.
    version: Option<u64>,
    all: Vec<(PortId, Arc<Counters>)>,
}

impl Accounts {
    /// The ports with their accounts, in the order of their numbers. Each is soon to be read.
    pub fn look(&mut self, datapath: &Datapath) -> impl Iterator<Item = (PortId, &Counters)> {
        // Ports that change now are found at the next look.
        let version = Some(datapath.ports_version());
        if self.version != version {
            self.version = version;
            let ports = datapath.ports();
            let listed = ports.iter().map(|port| (port.id(), port.vnic.account.clone()));
            self.all = listed.collect();
        }
        let later = self.all.iter().skip(PREFETCH_AHEAD).map(Some);
        let later = later.chain(std::iter::repeat(None));
        self.all.iter().zip(later).map(|((port, account), later)| {
            if let Some((_, later)) = later {
                later.prefetch();
            }
            (*port, &**account)
        })
    }
}
