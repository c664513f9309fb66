//! Flows of filters and of later passes, and the filters of each port.
//!
//! There is one list per stage, pass and input port, so that a look-up searches the masks of its own pass
//! only. Most switches have no such list, and then look-ups do not come here.

use crate::entry::FlowEntry;
use crate::port_flows::SharedList;
use crate::rules::Rules;
use flow::{Context, Filter, Filters, Flow, FlowKey, FlowMask, PortId, Stage};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The stage, pass and port of a list's flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListKey {
    pub stage: Stage,
    /// Recirculation id; 0 in filters.
    pub pass: u32,
    /// The input port; `None` for flows of any port, as in all egress filters.
    pub in_port: Option<u32>,
}

impl ListKey {
    pub fn of(flow: &Flow) -> ListKey {
        let port = flow.key.in_port();
        let own = flow.mask.0.in_port() == u32::MAX && port < PortId::LIMIT;
        ListKey {
            stage: flow.stage,
            pass: ListKey::pass(flow.stage, &flow.key),
            in_port: (own && !matches!(flow.stage, Stage::Egress(..))).then_some(port),
        }
    }

    /// The port whose lists these flows are in: the input port, or the one that they filter packets for.
    /// `None` for flows of any port.
    pub fn port(&self) -> Option<u32> {
        match self.stage {
            Stage::Egress(port, _) => Some(port.0),
            Stage::Ingress(_) | Stage::Forward => self.in_port,
        }
    }

    /// Whether this is the forward stage's first pass, where packets of ports without filters begin.
    pub fn is_first(&self) -> bool {
        self.stage == Stage::Forward && self.pass == 0
    }

    /// Whether packets are looked up in the list before anything is known of them, so that the mask union has
    /// its masks: in ingress filters, and in the forward stage's first pass.
    pub fn is_covered(&self) -> bool {
        !matches!(self.stage, Stage::Egress(..)) && self.pass == 0
    }

    fn pass(stage: Stage, key: &FlowKey) -> u32 {
        if stage == Stage::Forward {
            key.recirc_id()
        } else {
            0
        }
    }
}

/// Controllers choose list keys, and guests do not, so their hash needs no secret: it is computed once or
/// twice for each look-up.
#[derive(Clone, Copy, Debug, Default)]
struct ListKeyHasher(u64);

impl Hasher for ListKeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0 ^ number).wrapping_mul(FACTOR).rotate_left(31);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The lists of a switch, behind a lock that look-ups take if there is any list or filter.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    /// Whether there ever was a list or filter. It never becomes false again.
    used: AtomicBool,
    lists: RwLock<Lists>,
    /// Rule lists that filters name.
    pub rules: Arc<Rules>,
}

#[derive(Debug, Default)]
pub(crate) struct Lists {
    lists: HashMap<ListKey, Arc<SharedList>, BuildHasherDefault<ListKeyHasher>>,
    /// Filters of the ports that have some.
    filters: HashMap<PortId, Filters>,
    /// Ports with rule lists among their egress filters, and ports with any.
    ruled: Ruled,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ruled {
    egress: usize,
    any: usize,
}

impl Stages {
    /// No lists of flows, and these rule lists.
    pub fn new(rules: Arc<Rules>) -> Stages {
        Stages {
            rules,
            ..Stages::default()
        }
    }

    #[inline]
    pub fn read_if_used(&self) -> Option<RwLockReadGuard<'_, Lists>> {
        self.used.load(Ordering::Acquire).then(|| self.lists.read())
    }

    pub fn read(&self) -> RwLockReadGuard<'_, Lists> {
        self.lists.read()
    }

    pub fn change(&self) -> RwLockWriteGuard<'_, Lists> {
        let lists = self.lists.write();
        self.used.store(true, Ordering::Release);
        lists
    }
}

impl Lists {
    pub fn get(&self, list_key: &ListKey) -> Option<&Arc<SharedList>> {
        self.lists.get(list_key)
    }

    pub fn or_new(&mut self, list_key: ListKey) -> &Arc<SharedList> {
        self.lists.entry(list_key).or_default()
    }

    /// Drops a list without flows.
    pub fn remove(&mut self, list_key: &ListKey) {
        self.lists.remove(list_key);
    }

    pub fn clear(&mut self) -> Vec<Arc<SharedList>> {
        self.lists.drain().map(|(_, list)| list).collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ListKey, &Arc<SharedList>)> {
        self.lists.iter()
    }

    pub fn filters(&self, port: PortId) -> Filters {
        self.filters.get(&port).copied().unwrap_or_default()
    }

    pub fn set_filters(&mut self, port: PortId, filters: Filters) {
        let before = if filters == Filters::default() {
            self.filters.remove(&port)
        } else {
            self.filters.insert(port, filters)
        };
        let count = |filters: &Filters| {
            let (ingress, egress) = (filters.has_ingress_rules(), filters.has_egress_rules());
            (usize::from(egress), usize::from(ingress || egress))
        };
        let (left, come) = (count(&before.unwrap_or_default()), count(&filters));
        self.ruled.egress = self.ruled.egress + come.0 - left.0;
        self.ruled.any = self.ruled.any + come.1 - left.1;
    }

    /// Whether any filter is a rule list.
    pub fn has_rules(&self) -> bool {
        self.ruled.any > 0
    }

    /// Whether packets from a port, or from any if that is `None`, may come to rule lists: those of its own
    /// ingress filters, or of any port's egress filters.
    pub fn meets_rules(&self, in_port: Option<u32>) -> bool {
        let has_ingress = |port: u32| self.filters(PortId(port)).has_ingress_rules();
        self.ruled.egress > 0 || in_port.is_some_and(has_ingress)
    }

    /// The filter of a stage that a packet with this key comes to.
    pub fn filter(&self, stage: Stage, key: &FlowKey) -> Filter {
        let port = match stage {
            Stage::Egress(port, _) => port,
            Stage::Ingress(_) => PortId(key.in_port()),
            Stage::Forward => return Filter::Absent,
        };
        self.filters
            .get(&port)
            .map_or(Filter::Absent, |filters| filters.of_stage(stage))
    }

    pub fn has_filters(&self) -> bool {
        !self.filters.is_empty()
    }

    /// The flow for a packet. Calls `observe` with the union of the masks of each list that was tried.
    pub fn look_up(
        &self,
        stage: Stage,
        key: &FlowKey,
        context: &Context,
        mut observe: impl FnMut(&FlowMask),
    ) -> Option<Arc<FlowEntry>> {
        let pass = ListKey::pass(stage, key);
        let in_ports = match stage {
            Stage::Egress(..) => [None, None],
            Stage::Ingress(_) | Stage::Forward => [Some(key.in_port()), None],
        };
        let known = usize::from(in_ports[0].is_none());
        in_ports[known..].iter().find_map(|&in_port| {
            let list_key = ListKey { stage, pass, in_port };
            self.lists.get(&list_key)?.look_up(key, context, &mut observe)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::{BuildHasher, Hash};

    /// Both ends of the hash are used by tables: low bits choose a bucket, and high bits tell its entries
    /// apart.
    #[test]
    fn list_keys_are_spread() {
        fn spread(list_keys: impl Iterator<Item = impl Hash>, shift: u32) -> usize {
            let build = BuildHasherDefault::<ListKeyHasher>::default();
            let cut = |list_key| build.hash_one(list_key) >> shift & 0xff;
            list_keys.map(cut).collect::<HashSet<_>>().len()
        }
        for shift in [0, 56] {
            let list_key = |stage, pass, port| ListKey {
                stage,
                pass,
                in_port: Some(port),
            };
            let passes = (0..1024).map(|pass| list_key(Stage::Forward, pass, 1));
            let ports = (0..1024).map(|port| list_key(Stage::Forward, 1, port));
            let filters = (0..1024).map(|port| ListKey {
                in_port: None,
                ..list_key(Stage::Egress(PortId(port), 0), 0, 0)
            });
            // 1,024 random numbers leave 5 of 256 out.
            assert!(spread(passes, shift) > 200);
            assert!(spread(ports, shift) > 200);
            assert!(spread(filters, shift) > 200);
        }
    }
}
