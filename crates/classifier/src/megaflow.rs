//! The megaflow table of one switch: tuple space search (Srinivasan et al., SIGCOMM 1999).
//!
//! There is one subtable per mask, and a look-up asks one after the other. So its cost is the number of masks,
//! and masks are what a guest can make the control plane produce by sending many kinds of packets. Two
//! things bound that: a port may have a limited number of masks, and the subtables of flows that name an
//! input port, which are nearly all flows, are kept in a list of that port's own. A guest that exhausts
//! its masks makes its own misses dearer by a bounded amount, and nobody else's.
//!
//! Neither can it use up the table: a port may have as many flows as there is still room for (the dynamic thresholds
//! that switches share packet buffers by; Choudhury and Hahne, 1998). One greedy port gets half of the table, two get a
//! third each, and so on: there is always room left, and nothing to configure.
//!
//! A flow that would exceed a limit is refused and the table left as it was: its packets then keep missing, which is slow
//! and right, and bounded by how many misses a port may have.
//!
//! One thread at a time changes the table; look-ups go on meanwhile, through [`PortFlows`].

use crate::entry::FlowEntry;
use crate::port_flows::{PortFlows, SharedList};
use flow::{Flow, FlowId, PortId};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Flows per table unless told otherwise, as in Open vSwitch (`flow-limit`).
pub const DEFAULT_MAX_FLOWS: usize = 200_000;

/// Masks per input port unless told otherwise. A look-up that tries them all takes less than a microsecond.
pub const DEFAULT_MAX_MASKS: usize = 64;

/// A flow was refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFull {
    /// The table holds as many flows as it may.
    Flows {
        /// How many that is.
        limit: usize,
    },
    /// The input port has as many flows as the table has room for.
    Share {
        /// The port.
        in_port: PortId,
        /// How many flows it has.
        flows: usize,
    },
    /// The input port has as many different masks as it may.
    Masks {
        /// The port, or `None` for flows that do not name one port.
        in_port: Option<PortId>,
        /// How many masks that is.
        limit: usize,
    },
}

impl fmt::Display for TableFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableFull::Flows { limit } => write!(f, "the flow table is full ({limit} flows)"),
            TableFull::Share { in_port, flows } => write!(
                f,
                "port {in_port} has {flows} flows, and the table has no room for as many others"
            ),
            TableFull::Masks {
                in_port: Some(port),
                limit,
            } => write!(
                f,
                "port {port} has flows with {limit} different masks, and may not have more"
            ),
            TableFull::Masks { in_port: None, limit } => write!(
                f,
                "flows for any port have {limit} different masks, and may not have more"
            ),
        }
    }
}

impl std::error::Error for TableFull {}

/// All flows of one switch.
#[derive(Debug)]
pub struct MegaflowTable {
    max_flows: usize,
    max_masks: usize,
    flows: HashMap<FlowId, Arc<FlowEntry>>,
    /// By input port; grown when a port is first named.
    ports: Vec<Arc<SharedList>>,
    /// Flows whose mask does not compare the whole input port.
    any_port: Arc<SharedList>,
}

impl Default for MegaflowTable {
    fn default() -> Self {
        MegaflowTable::new(DEFAULT_MAX_FLOWS, DEFAULT_MAX_MASKS)
    }
}

impl MegaflowTable {
    /// An empty table for up to `max_flows` flows, with up to `max_masks` different masks for each input port
    /// and as many for flows that do not name one.
    pub fn new(max_flows: usize, max_masks: usize) -> MegaflowTable {
        MegaflowTable {
            max_flows,
            max_masks,
            flows: HashMap::new(),
            ports: Vec::new(),
            any_port: Arc::default(),
        }
    }

    /// The flows for packets of a port, present and future. A port number that cannot be has those for any port only.
    pub fn port(&mut self, port: PortId) -> PortFlows {
        let place = usize::try_from(port.0).ok().filter(|_| port.0 < PortId::LIMIT);
        PortFlows {
            own: place.map(|port| Arc::clone(self.own(port))).unwrap_or_default(),
            any_port: Arc::clone(&self.any_port),
        }
    }

    /// Installs a flow. It takes the place of the flow with the same identifier and of one that matches the same
    /// packets (equal mask and masked key); these end, and one of them is returned - that with the same
    /// identifier, if there was one. Bits of the key outside the mask are ignored.
    ///
    /// # Errors
    ///
    /// A limit is reached; the table is as before.
    pub fn insert(&mut self, flow: Flow) -> Result<Option<Arc<FlowEntry>>, TableFull> {
        let entry = Arc::new(FlowEntry::new(flow));
        let flow = &entry.flow;
        let same_id = self.flows.get(&flow.id).map(Arc::clone);
        let list = Arc::clone(self.list(flow));
        let same_match = list
            .read()
            .same_match(flow)
            .filter(|other| other.flow.id != flow.id)
            .map(Arc::clone);
        let replaced: Vec<_> = same_id.into_iter().chain(same_match).collect();
        let (here, elsewhere): (Vec<_>, Vec<_>) = replaced
            .iter()
            .cloned()
            .partition(|old| Arc::ptr_eq(self.list(&old.flow), &list));
        self.check_limits(flow, &list, &here, replaced.len())?;

        self.concerned(&list)
            .for_each(|list| list.significant.widen(&flow.mask));
        for old in &replaced {
            self.flows.remove(&old.flow.id);
        }
        self.flows.insert(flow.id, Arc::clone(&entry));
        list.replace(&here, Some(entry));
        for old in &elsewhere {
            self.list(&old.flow).replace(std::slice::from_ref(old), None);
        }
        replaced.iter().for_each(|old| old.kill());
        Ok(replaced.into_iter().next())
    }

    /// Removes a flow and ends it.
    pub fn remove(&mut self, id: FlowId) -> Option<Arc<FlowEntry>> {
        let entry = self.flows.remove(&id)?;
        let list = Arc::clone(self.list(&entry.flow));
        let masks = list.masks();
        list.replace(std::slice::from_ref(&entry), None);
        entry.kill();
        if list.masks() < masks {
            self.narrow(&list);
        }
        Some(entry)
    }

    /// Removes and ends all flows; returns how many there were.
    pub fn flush(&mut self) -> usize {
        let count = self.flows.len();
        self.lists().for_each(SharedList::clear);
        for (_, entry) in self.flows.drain() {
            entry.kill();
        }
        self.narrow(&self.any_port);
        count
    }

    /// The flow with this identifier.
    pub fn get(&self, id: FlowId) -> Option<&Arc<FlowEntry>> {
        self.flows.get(&id)
    }

    /// All flows, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<FlowEntry>> {
        self.flows.values()
    }

    /// Flows in the table.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Masks that a look-up for `in_port` tries at most.
    pub fn masks(&self, in_port: PortId) -> usize {
        let own = usize::try_from(in_port.0)
            .ok()
            .and_then(|port| self.ports.get(port));
        own.map_or(0, |list| list.read().masks()) + self.any_port.read().masks()
    }

    /// Puts the masks that are hit most first. Happens by itself now and then while flows come and go; worth
    /// calling every few seconds when they do not.
    pub fn reorder(&self) {
        self.lists().for_each(SharedList::reorder);
    }

    /// The lists of ports to whose packets the flows of `list` may apply.
    fn concerned<'a>(&'a self, list: &'a Arc<SharedList>) -> impl Iterator<Item = &'a Arc<SharedList>> {
        let ports: &[_] = if Arc::ptr_eq(list, &self.any_port) {
            &self.ports
        } else {
            std::slice::from_ref(list)
        };
        ports.iter()
    }

    /// Has no more be significant than what is in masks, after some in `list` have gone.
    fn narrow(&self, list: &Arc<SharedList>) {
        let any_port = self.any_port.read().union();
        for list in self.concerned(list) {
            list.significant.set(&list.read().union().union(&any_port));
        }
    }

    fn lists(&self) -> impl Iterator<Item = &SharedList> {
        self.ports.iter().chain([&self.any_port]).map(|list| &**list)
    }

    /// The number of the port whose own a flow is.
    fn owner(flow: &Flow) -> Option<usize> {
        let port = flow.key.in_port();
        let own_list = flow.mask.0.in_port() == u32::MAX && port < PortId::LIMIT;
        own_list.then(|| usize::try_from(port).ok()).flatten()
    }

    /// The list for a flow: that of its port, or the one for any port.
    fn list(&mut self, flow: &Flow) -> &Arc<SharedList> {
        match MegaflowTable::owner(flow) {
            Some(port) => self.own(port),
            None => &self.any_port,
        }
    }

    fn own(&mut self, port: usize) -> &Arc<SharedList> {
        if port >= self.ports.len() {
            let known = self.ports.len();
            self.ports.resize_with(port + 1, Arc::default);
            let any_port = self.any_port.read().union();
            for list in &self.ports[known..] {
                list.significant.set(&any_port);
            }
        }
        &self.ports[port]
    }

    /// Whether `flow` may come to `list` when those `here` go from it, `replaced` in all.
    fn check_limits(
        &self,
        flow: &Flow,
        list: &SharedList,
        here: &[Arc<FlowEntry>],
        replaced: usize,
    ) -> Result<(), TableFull> {
        let list = list.read();
        let in_port = MegaflowTable::owner(flow).map(|_| PortId(flow.key.in_port()));
        let free = self.max_flows - (self.flows.len() - replaced);
        if free == 0 {
            return Err(TableFull::Flows {
                limit: self.max_flows,
            });
        }
        if let (Some(in_port), []) = (in_port, here)
            && list.flows() >= free
        {
            return Err(TableFull::Share {
                in_port,
                flows: list.flows(),
            });
        }
        // A mask that only a replaced flow has goes with it.
        let freed = here
            .iter()
            .filter(|old| old.flow.mask != flow.mask && list.flows_with(&old.flow.mask) == 1)
            .count();
        if list.flows_with(&flow.mask) > 0 || list.masks() - freed < self.max_masks {
            Ok(())
        } else {
            Err(TableFull::Masks {
                in_port,
                limit: self.max_masks,
            })
        }
    }
}

impl Drop for MegaflowTable {
    /// Caches outlive the table of a removed switch.
    fn drop(&mut self) {
        self.flush();
    }
}
