//! The megaflow table of one switch: tuple space search (Srinivasan et al., SIGCOMM 1999).
//!
//! Flows are kept in lists by stage, pass and input port; nearly all are in the lists of the forward stage's
//! first pass.
//!
//! There is one subtable per mask, and a look-up searches one after the other. So its cost is the number of
//! masks, and a guest can make the control plane produce masks by sending many kinds of packets. Two things
//! bound that: a port may have a limited number of masks, and flows that name an input port, which are nearly
//! all flows, have their subtables in a list of that port's own. A guest that exhausts its masks makes its
//! own misses dearer by a bounded amount, and no other port's.
//!
//! Nor can a guest use up the table: a port may have as many flows as there are free places (the dynamic
//! thresholds by which switches share packet buffers; Choudhury and Hahne, 1998). One greedy port gets half
//! of the table, two get a third each, and so on: there is always room left, and nothing to configure.
//!
//! A flow that would exceed a limit is refused, and the table stays as it was: the flow's packets then keep
//! missing, which is slow and correct, and bounded by the number of misses that a port may have.
//!
//! One thread at a time changes the table; look-ups go on meanwhile, through [`PortFlows`].

use crate::entry::FlowEntry;
use crate::mask_union::Masks;
use crate::port_flows::{PortFlows, SharedList};
use crate::refused::Refused;
use crate::rule_bits;
use crate::rules::Rules;
use crate::stages::{ListKey, Lists, Stages};
use flow::{Filters, Flow, FlowId, FlowMask, PortId, PutMode, Stage, Statistics};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Flows per table by default, as in Open vSwitch (`flow-limit`).
pub const DEFAULT_MAX_FLOWS: usize = 200_000;

/// Masks per list by default. A look-up that tries them all takes less than a microsecond.
pub const DEFAULT_MAX_MASKS: usize = 64;

/// A port may have this many times `max_masks` masks in the lists of all stages and passes together.
const MASKS_PER_PORT: usize = 8;

/// All flows of one switch.
#[derive(Debug)]
pub struct MegaflowTable {
    max_flows: usize,
    max_masks: usize,
    max_bytes: usize,
    flows: BTreeMap<FlowId, Arc<FlowEntry>>,
    /// Bytes of their compiled actions.
    bytes: usize,
    /// The lists of the forward stage's first pass, by input port, of ports that were ever named.
    ports: BTreeMap<u32, Arc<SharedList>>,
    /// The list of the same pass for flows whose mask does not compare the whole input port.
    any_port: Arc<SharedList>,
    /// All other lists, and which filters ports have.
    stages: Arc<Stages>,
    /// Number of flows of each port that has any.
    port_flows: BTreeMap<u32, usize>,
    /// The fields that actions of any flow have read since the table was last empty.
    looks_at: FlowMask,
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
        MegaflowTable::with_rules(max_flows, max_masks, Arc::default())
    }

    /// As [`new`](Self::new); filters may name these rule lists.
    pub fn with_rules(max_flows: usize, max_masks: usize, rules: Arc<Rules>) -> MegaflowTable {
        MegaflowTable {
            max_flows,
            max_masks,
            max_bytes: usize::MAX,
            flows: BTreeMap::new(),
            bytes: 0,
            ports: BTreeMap::new(),
            any_port: Arc::default(),
            stages: Arc::new(Stages::new(rules)),
            port_flows: BTreeMap::new(),
            looks_at: FlowMask::ANY,
        }
    }

    /// Changes how many flows the table holds at most, and how many bytes their compiled actions may take.
    /// Flows that are there stay, and can be replaced by flows that take no more.
    pub fn set_limits(&mut self, max_flows: usize, max_bytes: usize) {
        (self.max_flows, self.max_bytes) = (max_flows, max_bytes);
    }

    /// The present and future flows for packets of a port. An impossible port number has only the flows for
    /// any port.
    pub fn port(&mut self, port: PortId) -> PortFlows {
        let own = Some(port.0).filter(|port| *port < PortId::LIMIT);
        PortFlows {
            own: own.map(|port| Arc::clone(self.own(port))).unwrap_or_default(),
            any_port: Arc::clone(&self.any_port),
            stages: Arc::clone(&self.stages),
        }
    }

    /// Installs a flow. It takes the place of the flow with the same identifier and of one that matches the
    /// same packets (equal mask and masked key); these end, and one of them is returned - that with the same
    /// identifier, if there was one. Bits of the key outside the mask are ignored.
    ///
    /// # Errors
    ///
    /// A limit is reached, or the flow is malformed; the table is as before.
    pub fn insert(&mut self, flow: Flow) -> Result<Option<Arc<FlowEntry>>, Refused> {
        let ended = self.put(flow, PutMode::CreateOrModify(Statistics::New))?;
        Ok(ended.into_iter().next())
    }

    /// As [`insert`](Self::insert), in one of several modes. Returns the flows that ended with their
    /// statistics: not the one on whose statistics the new flow goes on, which is that with the same
    /// identifier, or else that for the same packets.
    ///
    /// # Errors
    ///
    /// As there, and if the mode does not allow it.
    pub fn put(&mut self, mut flow: Flow, mode: PutMode) -> Result<Vec<Arc<FlowEntry>>, Refused> {
        if !flow.stage.is_valid() {
            return Err(Refused::NoSuchStage(flow.stage));
        }
        crate::entry::reduce(&mut flow);
        let mut replaced = self.replaced_by(&flow);
        let kept = match (mode, replaced.first()) {
            (PutMode::Create, Some(there)) => return Err(Refused::Exists(there.flow.id)),
            (PutMode::Modify(_), None) => return Err(Refused::Missing(flow.id)),
            (PutMode::Create, None) => false,
            (PutMode::Modify(statistics) | PutMode::CreateOrModify(statistics), _) => {
                statistics == Statistics::Kept
            }
        };
        let before = replaced.first().filter(|_| kept);
        let entry = Arc::new(FlowEntry::after(flow, before.map(|entry| &**entry))?);
        self.check_bytes(&entry, &replaced)?;
        self.check_limits(&entry.flow, &replaced)?;
        self.exchange(&replaced, Some(entry));
        if kept && !replaced.is_empty() {
            replaced.remove(0);
        }
        Ok(replaced)
    }

    /// Removes a flow and ends it.
    pub fn remove(&mut self, id: FlowId) -> Option<Arc<FlowEntry>> {
        let entry = Arc::clone(self.flows.get(&id)?);
        self.exchange(std::slice::from_ref(&entry), None);
        Some(entry)
    }

    /// Removes and ends all flows; returns how many there were.
    pub fn flush(&mut self) -> usize {
        let count = self.flows.len();
        self.ports
            .values()
            .chain([&self.any_port])
            .for_each(|list| list.clear());
        if self.has_stages() {
            let lists = self.stages.change().clear();
            lists.iter().for_each(|list| list.clear());
        }
        for entry in std::mem::take(&mut self.flows).into_values() {
            entry.kill();
        }
        self.port_flows.clear();
        self.bytes = 0;
        self.looks_at = FlowMask::ANY;
        self.narrow(None);
        count
    }

    /// Gives a port filters. Decisions that were made without them end; flows stay, with their statistics.
    pub fn set_filters(&mut self, port: PortId, filters: Filters) {
        let before = self.filters(port);
        if before == filters {
            return;
        }
        self.prepare_for_rules(port, &filters);
        self.exchange_filters(port, &before, filters);
        if before.ingress != filters.ingress {
            let lists = before.lists(port);
            let ingress = lists.filter(|(stage, _)| matches!(stage, Stage::Ingress(_)));
            ingress.for_each(|(_, list)| self.stages.rules.end_of_port(list, port));
        }
        let is_concerned = |entry: &&Arc<FlowEntry>| {
            let from = ListKey::of(&entry.flow)
                .in_port
                .is_none_or(|in_port| in_port == port.0);
            let to = entry.program().outputs().any(|output| output == port);
            let of = matches!(entry.flow.stage, Stage::Egress(of, _) if of == port);
            before.ingress != filters.ingress && from || before.egress != filters.egress && (to || of)
        };
        let concerned: Vec<_> = self.flows.values().filter(is_concerned).cloned().collect();
        for entry in concerned {
            if let Ok(again) = FlowEntry::after(entry.flow.clone(), Some(&entry)) {
                self.exchange(&[entry], Some(Arc::new(again)));
            }
        }
        // No decision relies on the former filters any more, nor on what was forgotten with them. An egress
        // list of any port concerns what comes from all.
        if before.has_egress_rules() && !self.stages.read().meets_rules(None) {
            self.narrow(None);
        } else if before.ingress != filters.ingress {
            self.narrow(Some(port.0));
        }
    }

    /// Has look-ups meet a port's new filters, and rely no longer on bits that are compared as the former
    /// ones noted them.
    fn exchange_filters(&self, port: PortId, before: &Filters, filters: Filters) {
        let mut lists = self.stages.change();
        lists.set_filters(port, filters);
        if before.ingress != filters.ingress
            && let Some(own) = self.ports.get(&port.0)
        {
            own.mask_union.forget_lists();
        }
        if before.has_egress_rules() && !lists.meets_rules(None) {
            let meets_none = |(port, _): &(&u32, &Arc<SharedList>)| !lists.meets_rules(Some(**port));
            let ports = self.ports.iter().filter(meets_none);
            ports.for_each(|(_, list)| list.mask_union.forget_lists());
        }
    }

    /// Has fields that rule lists ask for looked for, and those bits compared that tell their kinds of
    /// packets apart, before packets come to the lists among these filters.
    fn prepare_for_rules(&mut self, port: PortId, filters: &Filters) {
        let fields = rule_list::fields();
        let prepare = |list: &SharedList| {
            list.mask_union.forbid_unknown(&fields);
            list.mask_union.add_kinds();
        };
        // Packets from all ports may come to an egress list, and from the first such list on they may.
        if filters.has_egress_rules() && !self.stages.read().meets_rules(None) {
            self.ports.values().for_each(|list| prepare(list));
        }
        if filters.has_ingress_rules() && port.0 < PortId::LIMIT {
            prepare(self.own(port.0));
        }
    }

    /// A port's filters.
    pub fn filters(&self, port: PortId) -> Filters {
        self.stages.read().filters(port)
    }

    /// The flow with this identifier.
    pub fn get(&self, id: FlowId) -> Option<&Arc<FlowEntry>> {
        self.flows.get(&id)
    }

    /// Flows with identifiers above `after`, or all, in the order of identifiers.
    pub fn iter_after(&self, after: Option<FlowId>) -> impl Iterator<Item = &Arc<FlowEntry>> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.flows
            .range((begin, Bound::Unbounded))
            .map(|(_, entry)| entry)
    }

    /// All flows, in the order of identifiers.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<FlowEntry>> {
        self.flows.values()
    }

    /// Flows in the table.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Bytes of the flows' compiled actions.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Masks that a look-up of the forward stage's first pass for `in_port` tries at most.
    pub fn masks(&self, in_port: PortId) -> usize {
        let own = self.ports.get(&in_port.0);
        own.map_or(0, |list| list.read().masks()) + self.any_port.read().masks()
    }

    /// Sorts the masks that are hit most to the front. Lists do so by themselves now and then while flows
    /// come and go; otherwise the caller should do it every few seconds.
    pub fn reorder(&self) {
        self.ports
            .values()
            .chain([&self.any_port])
            .for_each(|list| list.reorder());
        self.stages.read().iter().for_each(|(_, list)| list.reorder());
    }

    /// Whether there ever were filters or flows of later passes.
    fn has_stages(&self) -> bool {
        self.stages.read_if_used().is_some()
    }

    /// The flow with the same identifier, and the one for the same packets.
    fn replaced_by(&self, flow: &Flow) -> Vec<Arc<FlowEntry>> {
        let same_id = self.flows.get(&flow.id).map(Arc::clone);
        let list = self.list(&ListKey::of(flow));
        let same_match = list.and_then(|list| {
            let list = list.read();
            let entry = list.same_match(flow).filter(|other| other.flow.id != flow.id);
            entry.map(Arc::clone)
        });
        same_id.into_iter().chain(same_match).collect()
    }

    /// Removes flows and adds one: the whole of a change. Look-ups in the new flow's list find either all old
    /// flows or the new one.
    fn exchange(&mut self, old: &[Arc<FlowEntry>], new: Option<Arc<FlowEntry>>) {
        for old in old {
            self.flows.remove(&old.flow.id);
            self.count(&ListKey::of(&old.flow), -1);
            self.bytes -= old.program().bytes();
        }
        let new_key = new.as_ref().map(|new| ListKey::of(&new.flow));
        let is_here = |old: &&Arc<FlowEntry>| Some(ListKey::of(&old.flow)) == new_key;
        if let (Some(new), Some(list_key)) = (new, new_key) {
            let list = self.list_or_new(&list_key);
            self.widen(&new, &list_key);
            self.flows.insert(new.flow.id, Arc::clone(&new));
            self.count(&list_key, 1);
            self.bytes += new.program().bytes();
            let here: Vec<_> = old.iter().filter(is_here).cloned().collect();
            list.replace(&here, Some(new));
        }
        let mut narrower = Vec::new();
        for old in old.iter().filter(|old| !is_here(old)) {
            let list_key = ListKey::of(&old.flow);
            let Some(list) = self.list(&list_key) else {
                continue;
            };
            let masks = list.masks();
            list.replace(std::slice::from_ref(old), None);
            if list.masks() < masks {
                narrower.push(list_key.in_port);
            }
            if list.masks() == 0 && !list_key.is_first() {
                self.stages.change().remove(&list_key);
            }
        }
        old.iter().for_each(|old| old.kill());
        narrower.into_iter().for_each(|in_port| self.narrow(in_port));
    }

    fn count(&mut self, list_key: &ListKey, change: isize) {
        let Some(port) = list_key.in_port else {
            return;
        };
        let flows = self.flows_of(port).saturating_add_signed(change);
        if flows == 0 {
            self.port_flows.remove(&port);
        } else {
            self.port_flows.insert(port, flows);
        }
    }

    fn flows_of(&self, port: u32) -> usize {
        self.port_flows.get(&port).copied().unwrap_or(0)
    }

    /// Adds a new flow's masks to the mask unions of its ports, before the flow can be found.
    fn widen(&mut self, entry: &FlowEntry, list_key: &ListKey) {
        let (mask, read) = (&entry.flow.mask, entry.program().looks_at());
        let reads_more = self.looks_at.union(&read) != self.looks_at;
        self.looks_at = self.looks_at.union(&read);
        let lists = self.stages.read();
        for (port, list) in self.concerned(list_key.in_port) {
            if list.mask_union.widen(mask, &read, list_key.is_covered()) {
                let mut masks = self.union_of(*port, &self.union_for_any(&lists), &lists);
                masks.first = masks.first.union(mask);
                masks.all = masks.all.union(mask);
                list.mask_union.set(&masks);
            }
        }
        if reads_more {
            for list in self.ports.values() {
                // No port tells connections apart by that.
                let _ = list.mask_union.widen(&FlowMask::ANY, &read, false);
            }
        }
    }

    /// Removes bits that no flow matches any more from the mask unions, after flows for that port, or for
    /// any, have gone.
    fn narrow(&self, in_port: Option<u32>) {
        let lists = self.stages.read();
        let any_port = self.union_for_any(&lists);
        for (port, list) in self.concerned(in_port) {
            list.mask_union.set(&self.union_of(*port, &any_port, &lists));
        }
    }

    /// The first list of each port whose packets may match flows for `in_port`; `None` stands for all ports.
    fn concerned(&self, in_port: Option<u32>) -> impl Iterator<Item = (&u32, &Arc<SharedList>)> {
        match in_port {
            None => self.ports.range(..),
            Some(port) => self.ports.range(port..=port),
        }
    }

    /// The union of the masks of flows for any port.
    fn union_for_any(&self, lists: &Lists) -> Masks {
        let masks = *self.any_port.read().union();
        let (first, all) = (
            masks.union(&self.looks_at.of_kinds()),
            masks.union(&self.looks_at),
        );
        let rules = FlowMask::ANY;
        union_of_lists(Masks { first, all, rules }, None, lists)
    }

    /// The union of the masks of flows for the packets of a port.
    fn union_of(&self, port: u32, any_port: &Masks, lists: &Lists) -> Masks {
        let mut masks = *any_port;
        if let Some(own) = self.ports.get(&port) {
            let own = own.read();
            masks.first = masks.first.union(own.union());
            masks.all = masks.all.union(own.union());
        }
        union_of_lists(masks, Some(port), lists)
    }

    /// The list with a key, if there is one.
    fn list(&self, list_key: &ListKey) -> Option<Arc<SharedList>> {
        match list_key.in_port {
            _ if !list_key.is_first() => self.stages.read().get(list_key).cloned(),
            Some(port) => self.ports.get(&port).cloned(),
            None => Some(Arc::clone(&self.any_port)),
        }
    }

    fn list_or_new(&mut self, list_key: &ListKey) -> Arc<SharedList> {
        // The mask union is in the port's first list, whatever other lists there are.
        let own = list_key.in_port.map(|port| Arc::clone(self.own(port)));
        if list_key.is_first() {
            return own.unwrap_or_else(|| Arc::clone(&self.any_port));
        }
        match self.list(list_key) {
            Some(list) => list,
            None => Arc::clone(self.stages.change().or_new(*list_key)),
        }
    }

    fn own(&mut self, port: u32) -> &Arc<SharedList> {
        if !self.ports.contains_key(&port) {
            let list = Arc::<SharedList>::default();
            list.mask_union.set(&self.union_for_any(&self.stages.read()));
            self.ports.insert(port, list);
        }
        &self.ports[&port]
    }

    /// Whether there is room for a flow's compiled actions once the flows that it replaces are gone.
    fn check_bytes(&self, entry: &FlowEntry, replaced: &[Arc<FlowEntry>]) -> Result<(), Refused> {
        let freed: usize = replaced.iter().map(|entry| entry.program().bytes()).sum();
        let (needed, limit) = (entry.program().bytes(), self.max_bytes);
        if needed > freed && self.bytes - freed + needed > limit {
            return Err(Refused::Bytes { limit });
        }
        Ok(())
    }

    /// Whether there is room for `flow` once the flows that it replaces are gone.
    fn check_limits(&self, flow: &Flow, replaced: &[Arc<FlowEntry>]) -> Result<(), Refused> {
        let list_key = ListKey::of(flow);
        let in_port = list_key.in_port.map(PortId);
        let free = self.max_flows.saturating_sub(self.flows.len() - replaced.len());
        if free == 0 {
            return Err(Refused::Flows {
                limit: self.max_flows,
            });
        }
        let is_of_port = |old: &Arc<FlowEntry>| ListKey::of(&old.flow).in_port == list_key.in_port;
        if let Some(in_port) = in_port
            && !replaced.iter().any(is_of_port)
            && self.flows_of(in_port.0) >= free
        {
            return Err(Refused::Share {
                in_port,
                flows: self.flows_of(in_port.0),
            });
        }
        let Some(list) = self.list(&list_key) else {
            return self.check_masks(&list_key);
        };
        let list = list.read();
        // A mask that only a replaced flow has goes with it.
        let goes =
            |old: &&Arc<FlowEntry>| ListKey::of(&old.flow) == list_key && list.flows_like(&old.flow) == 1;
        let freed = replaced.iter().filter(goes).count();
        if list.flows_like(flow) > 0 {
            return Ok(());
        }
        if list.masks() - freed >= self.max_masks {
            return Err(Refused::Masks {
                in_port: list_key.port().map(PortId),
                limit: self.max_masks,
            });
        }
        self.check_masks(&list_key)
    }

    /// Whether a port may have one mask more in any of its lists.
    fn check_masks(&self, list_key: &ListKey) -> Result<(), Refused> {
        let limit = MASKS_PER_PORT * self.max_masks;
        let lists = self.stages.read();
        let others = lists.iter().filter(|(other, _)| other.port() == list_key.port());
        let masks: usize = others.map(|(_, list)| list.masks()).sum();
        if masks < limit {
            Ok(())
        } else {
            Err(Refused::Masks {
                in_port: list_key.port().map(PortId),
                limit,
            })
        }
    }
}

/// Adds the masks of the lists for packets of a port, or for those of any.
fn union_of_lists(mut masks: Masks, in_port: Option<u32>, lists: &Lists) -> Masks {
    for (list_key, list) in lists.iter().filter(|(list_key, _)| list_key.in_port == in_port) {
        let list = list.read();
        masks.all = masks.all.union(list.union());
        if list_key.is_covered() {
            masks.first = masks.first.union(list.union());
        }
    }
    if lists.meets_rules(in_port) {
        masks.rules = rule_list::fields();
        masks.first = masks.first.union(&rule_bits::of_kinds());
        masks.all = masks.all.union(&rule_bits::of_kinds());
    }
    masks
}

impl Drop for MegaflowTable {
    /// Caches outlive the table of a removed switch.
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{FlowKey, SwitchId};

    /// A later pass per connection, as load balancers make them, must not leave its list behind.
    #[test]
    fn lists_of_later_passes_go_with_their_last_flow() {
        let mut table = MegaflowTable::default();
        let mut mask = FlowMask::ANY;
        mask.0.set_recirc_id(u32::MAX);
        let flow = |id, pass| {
            let mut key = FlowKey::default();
            key.set_recirc_id(pass);
            Flow::new(FlowId(id), SwitchId(1), key, mask, Vec::new())
        };
        table.insert(flow(1, 0)).unwrap();
        table.remove(FlowId(1)).unwrap();
        assert!(!table.has_stages(), "flows of the first pass are not there");
        table.insert(flow(1, 0)).unwrap();
        table.insert(flow(2, 7)).unwrap();
        table.insert(flow(3, 8)).unwrap();
        let lists = |table: &MegaflowTable| table.stages.read().iter().count();
        assert_eq!(lists(&table), 2);
        table.remove(FlowId(2)).unwrap();
        table.remove(FlowId(1)).unwrap();
        assert_eq!(lists(&table), 1);
        // Moved to another pass.
        table.insert(flow(3, 9)).unwrap();
        assert_eq!(lists(&table), 1);
    }
}
