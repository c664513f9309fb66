//! The megaflow table of one switch: tuple space search (Srinivasan et al., SIGCOMM 1999).
//!
//! There is one subtable per mask, and a look-up asks one after the other. So its cost is the number of masks,
//! and masks are what a guest can make the control plane produce by sending many kinds of packets. Two
//! things bound that: a port may have a limited number of masks, and the subtables of flows that name an
//! input port, which are nearly all flows, are kept in a list of that port's own. A guest that exhausts
//! its masks makes its own misses dearer by a bounded amount, and nobody else's.
//!
//! Subtables that are hit often move to the front of their list, at every so many changes of the table and
//! whenever the owner calls [`MegaflowTable::reorder`]. A flow that would exceed a limit is refused and the table
//! left as it was: its packets then keep missing, which is slow and right.

use crate::entry::FlowEntry;
use crate::subtable::Subtable;
use flow::{Flow, FlowId, FlowKey, FlowMask, PortId};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Flows per table unless told otherwise, as in Open vSwitch (`flow-limit`).
pub const DEFAULT_MAX_FLOWS: usize = 200_000;

/// Masks per input port unless told otherwise.
pub const DEFAULT_MAX_MASKS: usize = 64;

/// A list is put in order at every so many of its changes, and costs at most one sort of `max_masks` numbers.
const CHANGES_BETWEEN_ORDERING: u32 = 64;

/// A flow was refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFull {
    /// The table holds as many flows as it may.
    Flows {
        /// How many that is.
        limit: usize,
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
            TableFull::Masks {
                in_port: Some(port),
                limit,
            } => {
                write!(
                    f,
                    "port {port} has flows with {limit} different masks, and may not have more"
                )
            }
            TableFull::Masks { in_port: None, limit } => {
                write!(
                    f,
                    "flows for any port have {limit} different masks, and may not have more"
                )
            }
        }
    }
}

impl std::error::Error for TableFull {}

/// Subtables that are searched together.
#[derive(Debug, Default)]
struct SubtableList {
    subtables: Vec<Subtable>,
    changes: u32,
}

impl SubtableList {
    fn position(&self, mask: &FlowMask) -> Option<usize> {
        self.subtables.iter().position(|subtable| subtable.mask() == mask)
    }

    #[inline]
    fn lookup(&self, key: &FlowKey, observe: &mut impl FnMut(&FlowMask, bool)) -> Option<&Arc<FlowEntry>> {
        for subtable in &self.subtables {
            let found = subtable.get(key);
            if found.is_some() {
                subtable.hit(1);
            }
            observe(subtable.mask(), found.is_some());
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn insert(&mut self, entry: Arc<FlowEntry>) {
        let position = self.position(&entry.flow.mask).unwrap_or_else(|| {
            self.subtables.push(Subtable::new(entry.flow.mask));
            self.subtables.len() - 1
        });
        if self.subtables[position].is_full() {
            self.subtables[position] = self.subtables[position].grown();
        }
        self.subtables[position].insert(entry);
        self.changed();
    }

    fn remove(&mut self, flow: &Flow) -> Option<Arc<FlowEntry>> {
        let position = self.position(&flow.mask)?;
        let removed = self.subtables[position].remove(&flow.key);
        if self.subtables[position].len() == 0 {
            self.subtables.remove(position);
        }
        self.changed();
        removed
    }

    fn changed(&mut self) {
        self.changes += 1;
        if self.changes >= CHANGES_BETWEEN_ORDERING {
            self.reorder();
        }
    }

    fn reorder(&mut self) {
        self.changes = 0;
        self.subtables.sort_by_key(|subtable| Reverse(subtable.hits()));
        self.subtables.iter_mut().for_each(Subtable::age_hits);
    }
}

/// All flows of one switch.
#[derive(Debug)]
pub struct MegaflowTable {
    max_flows: usize,
    max_masks: usize,
    flows: HashMap<FlowId, Arc<FlowEntry>>,
    /// By input port; grown when the first flow of a port comes.
    ports: Vec<SubtableList>,
    /// Flows whose mask does not compare the whole input port.
    any_port: SubtableList,
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
            any_port: SubtableList::default(),
        }
    }

    /// A flow that matches `key`.
    #[inline]
    pub fn lookup(&self, key: &FlowKey) -> Option<&Arc<FlowEntry>> {
        self.search(key, &mut |_, _| ())
    }

    /// As [`lookup`](Self::lookup), telling `observe` each mask that was tried and whether it matched, in order.
    pub fn lookup_observed(
        &self,
        key: &FlowKey,
        observe: &mut dyn FnMut(&FlowMask, bool),
    ) -> Option<&Arc<FlowEntry>> {
        self.search(key, &mut |mask, matched| observe(mask, matched))
    }

    #[inline]
    fn search(&self, key: &FlowKey, observe: &mut impl FnMut(&FlowMask, bool)) -> Option<&Arc<FlowEntry>> {
        let port = usize::try_from(key.in_port())
            .ok()
            .and_then(|port| self.ports.get(port));
        port.and_then(|list| list.lookup(key, observe))
            .or_else(|| self.any_port.lookup(key, observe))
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
        let same_match = self
            .same_match(flow)
            .filter(|other| other.flow.id != flow.id)
            .map(Arc::clone);
        self.check_limits(flow, same_id.as_deref(), same_match.as_deref())?;

        let other = same_match.and_then(|other| self.remove(other.flow.id));
        let replaced = same_id.and_then(|old| self.remove(old.flow.id));
        let list = self.place(flow);
        self.flows.insert(flow.id, Arc::clone(&entry));
        self.list_mut(list).insert(entry);
        Ok(replaced.or(other))
    }

    /// Removes a flow and ends it.
    pub fn remove(&mut self, id: FlowId) -> Option<Arc<FlowEntry>> {
        let entry = self.flows.remove(&id)?;
        let list = self.place(&entry.flow);
        let removed = self.list_mut(list).remove(&entry.flow);
        debug_assert!(removed.is_some_and(|removed| Arc::ptr_eq(&removed, &entry)));
        entry.kill();
        Some(entry)
    }

    /// Removes and ends all flows; returns how many there were.
    pub fn flush(&mut self) -> usize {
        let count = self.flows.len();
        for (_, entry) in self.flows.drain() {
            entry.kill();
        }
        self.ports = Vec::new();
        self.any_port = SubtableList::default();
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

    /// Flows installed.
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
        own.map_or(0, |list| list.subtables.len()) + self.any_port.subtables.len()
    }

    /// Puts the masks that are hit most first. Happens by itself now and then while flows come and go; worth
    /// calling every few seconds when they do not.
    pub fn reorder(&mut self) {
        self.ports.iter_mut().for_each(SubtableList::reorder);
        self.any_port.reorder();
    }

    /// The list for a flow: that of its port, by number, or the one for any port.
    fn place(&self, flow: &Flow) -> Option<usize> {
        let port = flow.key.in_port();
        let own_list = flow.mask.0.in_port() == u32::MAX && port < PortId::LIMIT;
        own_list.then(|| usize::try_from(port).ok()).flatten()
    }

    fn list(&self, place: Option<usize>) -> Option<&SubtableList> {
        match place {
            Some(port) => self.ports.get(port),
            None => Some(&self.any_port),
        }
    }

    fn list_mut(&mut self, place: Option<usize>) -> &mut SubtableList {
        let Some(port) = place else {
            return &mut self.any_port;
        };
        if port >= self.ports.len() {
            self.ports.resize_with(port + 1, SubtableList::default);
        }
        &mut self.ports[port]
    }

    fn same_match(&self, flow: &Flow) -> Option<&Arc<FlowEntry>> {
        let list = self.list(self.place(flow))?;
        list.subtables[list.position(&flow.mask)?].get(&flow.key)
    }

    /// Whether `flow` may come when the other two go.
    fn check_limits(
        &self,
        flow: &Flow,
        same_id: Option<&FlowEntry>,
        same_match: Option<&FlowEntry>,
    ) -> Result<(), TableFull> {
        let replaced = usize::from(same_id.is_some()) + usize::from(same_match.is_some());
        if self.flows.len() - replaced >= self.max_flows {
            return Err(TableFull::Flows {
                limit: self.max_flows,
            });
        }
        let place = self.place(flow);
        let Some(list) = self.list(place) else {
            // The port's first flow.
            return if self.max_masks > 0 {
                Ok(())
            } else {
                Err(self.too_many_masks(flow, place))
            };
        };
        // A mask that only the replaced flow has goes with it.
        let freed = same_id
            .filter(|old| self.place(&old.flow) == place)
            .is_some_and(|old| {
                list.position(&old.flow.mask)
                    .is_some_and(|position| list.subtables[position].len() == 1)
            });
        let fits =
            list.position(&flow.mask).is_some() || list.subtables.len() - usize::from(freed) < self.max_masks;
        if fits {
            Ok(())
        } else {
            Err(self.too_many_masks(flow, place))
        }
    }

    fn too_many_masks(&self, flow: &Flow, place: Option<usize>) -> TableFull {
        TableFull::Masks {
            in_port: place.map(|_| PortId(flow.key.in_port())),
            limit: self.max_masks,
        }
    }
}

impl Drop for MegaflowTable {
    /// Caches outlive the table of a removed switch.
    fn drop(&mut self) {
        self.flush();
    }
}
