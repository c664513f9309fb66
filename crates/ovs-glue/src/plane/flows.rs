//! Flows as they were installed.
//!
//! ovs-vswitchd is told exactly what it gave, so keys, masks and actions are kept as they came, in the bytes of their messages,
//! which are fewer than those of what is read from them. The data plane names a flow by its *place*, a number that counts up; so its
//! pages come in the order in which flows were made.

use crate::datapath::{Errno, FlowId, FlowSpec, Rule};
use ovs_netlink::action::{self, Action};
use ovs_netlink::attribute::{Writer, attributes};
use ovs_netlink::key::Match;
use std::collections::{BTreeMap, HashMap};

const KEY: u16 = 1;
const MASK: u16 = 2;
const ACTIONS: u16 = 3;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Flows {
    places: HashMap<FlowId, u64>,
    flows: BTreeMap<u64, Stored>,
    last_place: u64,
}

/// A flow in the bytes of its attributes.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub id: FlowId,
    rule: Box<[u8]>,
}

impl Stored {
    pub fn new(id: FlowId, matches: &Match, actions: &[Action]) -> Result<Stored, Errno> {
        let mut writer = Writer::new();
        matches.write(&mut writer, KEY, MASK);
        writer.nested(ACTIONS, |writer| action::write(actions, writer));
        let rule = writer.finish().map_err(|error| error.errno())?;
        Ok(Stored {
            id,
            rule: rule.into(),
        })
    }

    /// What it was made of. An error is one of ours: it was written here.
    pub fn rule(&self) -> Result<Rule, Errno> {
        let mut parts: [&[u8]; 4] = [&[]; 4];
        for attribute in attributes(&self.rule) {
            let attribute = attribute.map_err(|_| Errno::EIO)?;
            let part = parts.get_mut(usize::from(attribute.kind));
            *part.ok_or(Errno::EIO)? = attribute.value;
        }
        let [_, key, mask, actions] = parts;
        Ok(Rule {
            matches: Box::new(Match::read(key, Some(mask)).map_err(|_| Errno::EIO)?),
            actions: action::read(actions).map_err(|_| Errno::EIO)?,
        })
    }
}

impl Flows {
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    pub fn place(&self, id: &FlowId) -> Option<u64> {
        self.places.get(id).copied()
    }

    pub fn at(&self, place: u64) -> Option<&Stored> {
        self.flows.get(&place)
    }

    /// Adds a flow and returns its place.
    pub fn add(&mut self, flow: &FlowSpec) -> Result<u64, Errno> {
        let stored = Stored::new(flow.id.clone(), &flow.matches, &flow.actions)?;
        self.last_place += 1;
        self.places.insert(flow.id.clone(), self.last_place);
        self.flows.insert(self.last_place, stored);
        Ok(self.last_place)
    }

    /// Puts a flow in the place of another and returns that; nothing if there is none.
    pub fn replace(&mut self, place: u64, flow: Stored) -> Option<Stored> {
        let there = self.flows.get_mut(&place)?;
        Some(std::mem::replace(there, flow))
    }

    pub fn remove(&mut self, place: u64) -> Option<Stored> {
        let stored = self.flows.remove(&place)?;
        // Its name may be another's by now.
        if self.places.get(&stored.id) == Some(&place) {
            self.places.remove(&stored.id);
        }
        Some(stored)
    }

    pub fn clear(&mut self) {
        self.places.clear();
        self.flows.clear();
    }
}
