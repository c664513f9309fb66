//! The switches of one controller: flow tables by number, bounded in all.
//!
//! A switch is made when a port or a flow first names it, and forgotten when room is needed and it has
//! neither. One controller's flows take no room from another's: each may have [`MAX_FLOWS`], of which a table
//! holds [`DEFAULT_MAX_FLOWS`] at most, and [`MAX_BYTES`] of actions. The channel thread alone changes any of
//! this.

use crate::port::Switch;
use crate::refusal::Refusal;
use classifier::{DEFAULT_MAX_FLOWS, DEFAULT_MAX_MASKS, FlowEntry, MegaflowTable, Rules};
use flow::{ControllerId, Flow, FlowId, PutMode, SwitchId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Most flows of a controller, in all of its switches.
pub(crate) const MAX_FLOWS: usize = 1_000_000;

/// Most bytes of its flows' compiled actions. Broadcasts take most of it: a broadcast's flow has an action
/// for each port.
pub(crate) const MAX_BYTES: usize = 2 << 30;

/// Most switches of a controller: one for each port, of those that there may be.
pub(crate) const MAX_SWITCHES: usize = ControllerId::PORTS as usize;

/// See the module's description.
#[derive(Default)]
pub(crate) struct Switches {
    /// Rule lists that filters may name.
    rules: Arc<Rules>,
    switches: HashMap<SwitchId, Arc<Switch>>,
    /// In all tables.
    flows: usize,
    /// Of their compiled actions.
    bytes: usize,
}

impl Switches {
    /// None, whose filters may name these rule lists.
    pub fn new(rules: Arc<Rules>) -> Switches {
        Switches {
            rules,
            ..Switches::default()
        }
    }

    /// A switch, if there is any.
    pub fn get(&self, id: SwitchId) -> Option<&Arc<Switch>> {
        self.switches.get(&id)
    }

    /// The switch, made if it is new. Fails if there are too many.
    pub fn get_or_new(&mut self, id: SwitchId) -> Result<&Arc<Switch>, Refusal> {
        if self.switches.len() >= MAX_SWITCHES && !self.switches.contains_key(&id) {
            self.switches.retain(|_, switch| !is_unused(switch));
            if self.switches.len() >= MAX_SWITCHES {
                return Err(Refusal::Switches(MAX_SWITCHES));
            }
        }
        let make = || {
            let rules = Arc::clone(&self.rules);
            let flows = MegaflowTable::with_rules(DEFAULT_MAX_FLOWS, DEFAULT_MAX_MASKS, rules);
            Arc::new(Switch {
                id,
                flows: Mutex::new(flows),
            })
        };
        Ok(self.switches.entry(id).or_insert_with(make))
    }

    /// Installs a flow; returns those that ended with their statistics.
    pub fn put(&mut self, flow: Flow, mode: PutMode) -> Result<Vec<Arc<FlowEntry>>, Refusal> {
        let (flows, bytes) = (
            MAX_FLOWS.saturating_sub(self.flows),
            MAX_BYTES.saturating_sub(self.bytes),
        );
        let switch = self.get_or_new(flow.switch)?.clone();
        let mut table = switch.flows.lock();
        let max_flows = DEFAULT_MAX_FLOWS.min(table.len() + flows);
        let max_bytes = table.bytes() + bytes;
        table.set_limits(max_flows, max_bytes);
        Ok(self.change(&mut table, |table| table.put(flow, mode))?)
    }

    /// Changes a table, and counts what is in it.
    fn change<R>(&mut self, table: &mut MegaflowTable, change: impl FnOnce(&mut MegaflowTable) -> R) -> R {
        let (flows, bytes) = (table.len(), table.bytes());
        let result = change(table);
        self.flows = self.flows + table.len() - flows;
        self.bytes = self.bytes + table.bytes() - bytes;
        result
    }

    /// Removes a flow, if it is there.
    pub fn remove(&mut self, switch: SwitchId, id: FlowId) -> Option<Arc<FlowEntry>> {
        let switch = self.switches.get(&switch)?.clone();
        let mut table = switch.flows.lock();
        self.change(&mut table, |table| table.remove(id))
    }

    /// Removes all flows of a switch.
    pub fn flush(&mut self, switch: SwitchId) {
        if let Some(switch) = self.switches.get(&switch).cloned() {
            self.change(&mut switch.flows.lock(), |table| table.flush());
        }
    }
}

/// Whether it has neither ports nor flows.
fn is_unused(switch: &Arc<Switch>) -> bool {
    Arc::strong_count(switch) == 1 && switch.flows.lock().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{FlowKey, FlowMask, Statistics};

    const ANY: PutMode = PutMode::CreateOrModify(Statistics::New);

    fn flow(switch: u32, id: u128) -> Flow {
        let mut key = FlowKey::default();
        key.set_eth_dst(id as u64);
        let mut mask = FlowMask::default();
        mask.0.set_eth_dst(u64::MAX >> 16);
        Flow::new(FlowId(id), SwitchId(switch), key, mask, Vec::new())
    }

    #[test]
    fn flows_are_counted_over_all_switches() {
        let mut switches = Switches::default();
        for (switch, id) in [(1, 1), (1, 2), (2, 1), (2, 1), (3, 9)] {
            switches.put(flow(switch, id), ANY).unwrap();
        }
        assert_eq!(switches.flows, 4);
        // The same packets under another number.
        let mut renamed = flow(1, 2);
        renamed.id = FlowId(77);
        assert_eq!(switches.put(renamed, ANY).unwrap().len(), 1);
        assert!(switches.put(flow(1, 77), PutMode::Create).is_err());
        assert_eq!(switches.flows, 4);
        assert!(switches.remove(SwitchId(1), FlowId(2)).is_none());
        assert!(switches.remove(SwitchId(1), FlowId(77)).is_some());
        switches.flush(SwitchId(2));
        switches.flush(SwitchId(5));
        assert_eq!(switches.flows, 2);
        // Asking makes none.
        assert!(switches.get(SwitchId(5)).is_none());
        assert_eq!(switches.switches.len(), 3);
    }

    #[test]
    fn a_controller_that_has_as_many_flows_as_it_may_can_only_replace() {
        let mut switches = Switches::default();
        switches.put(flow(1, 1), ANY).unwrap();
        switches.flows = MAX_FLOWS;
        for switch in [1, 2] {
            let refused = switches.put(flow(switch, 2), ANY);
            assert!(matches!(refused, Err(Refusal::Flow(_))), "{refused:?}");
        }
        switches.put(flow(1, 1), ANY).unwrap();
        assert_eq!(switches.flows, MAX_FLOWS);
        switches.remove(SwitchId(1), FlowId(1)).unwrap();
        switches.put(flow(2, 2), ANY).unwrap();
        assert_eq!(switches.flows, MAX_FLOWS);
    }

    #[test]
    fn so_for_what_its_flows_do() {
        let mut switches = Switches::default();
        switches.put(flow(1, 1), ANY).unwrap();
        let one = switches.bytes;
        switches.bytes = MAX_BYTES;
        let refused = switches.put(flow(2, 2), ANY);
        assert!(matches!(refused, Err(Refusal::Flow(_))), "{refused:?}");
        switches.put(flow(1, 1), ANY).unwrap();
        switches.remove(SwitchId(1), FlowId(1)).unwrap();
        assert_eq!(switches.bytes, MAX_BYTES - one);
        switches.put(flow(2, 2), ANY).unwrap();
        switches.flush(SwitchId(2));
        assert_eq!((switches.flows, switches.bytes), (0, MAX_BYTES - one));
    }

    #[test]
    fn switches_are_bounded_and_those_without_use_make_room() {
        let mut switches = Switches::default();
        for id in 0..MAX_SWITCHES as u32 {
            switches.put(flow(id, 1), ANY).unwrap();
        }
        let refused = switches.put(flow(u32::MAX, 1), ANY);
        assert!(matches!(refused, Err(Refusal::Switches(_))), "{refused:?}");
        let held = switches.get(SwitchId(3)).unwrap().clone();
        switches.flush(SwitchId(3));
        assert!(
            switches.get_or_new(SwitchId(u32::MAX)).is_err(),
            "a port holds it"
        );
        drop(held);
        assert!(switches.get_or_new(SwitchId(u32::MAX)).is_ok());
        assert!(switches.get(SwitchId(3)).is_none());
    }
}
