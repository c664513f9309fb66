//! Stages: P4 programs that see a port's packets before the port's forwarder does, be that the flows of its
//! switch or a P4 switch.
//!
//! A stage decides about each packet: it passes, with the header changes of the program, or it is dropped. By
//! which port the program sends it makes no difference, as a stage has none. Clones and replicas reach the
//! clients of the P4 switch, and nobody else. All that stands behind the stages sees the packet as they left
//! it: flow filters and guards of the port as well, so no stage gets a packet past them.
//!
//! Stages run burst by burst, one after the other, in the turn and on the thread that took the packets from
//! their ring. Which stages a port has is in the table of P4 switches, so each packet meets those of one
//! table, and one version of each. A stage whose program is missing lets nothing pass.

use super::forward::Program;
use super::links::{Bounds, Held, Place};
use super::version::{P4Refused, check_place};
use super::{Bound, P4Key, P4Table};
use control_protocol::p4::{MAX_P4_STAGES, P4Attachment, P4Binding};
use flow::PortId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Stages of ports, in order.
pub(super) type Stages = BTreeMap<PortId, Arc<[Place]>>;

/// All that the packets of a port meet.
pub(super) struct Course<'a> {
    table: Option<&'a P4Table>,
    pub stages: &'a [Place],
    /// The P4 switch that the port is bound to.
    pub bound: Option<Bound<'a>>,
    /// Operations of one pass through all stages.
    before: u64,
}

/// What a thread holds to run packets of a port.
#[derive(Default)]
pub(super) struct Lanes<'a> {
    /// Of the port's forwarder, if that is a program.
    pub own: Option<Held<'a>>,
    /// Of stages, and of P4 switches that links may lead to.
    pub others: Vec<Held<'a>>,
}

/// Whether a port can have this.
pub(super) fn check(attachment: &P4Attachment) -> Result<(), P4Refused> {
    if attachment.stages.len() > MAX_P4_STAGES {
        return Err(P4Refused::Stages(MAX_P4_STAGES));
    }
    let mut taken: BTreeSet<_> = attachment.forwarder.iter().map(|own| own.switch).collect();
    for stage in &attachment.stages {
        check_place(*stage)?;
        if !taken.insert(stage.switch) {
            return Err(P4Refused::StagedTwice(stage.switch));
        }
    }
    Ok(())
}

impl P4Table {
    pub(super) fn stages_of(&self, port: PortId) -> &[Place] {
        self.stages.get(&port).map_or(&[], |stages| stages)
    }

    pub(super) fn set_stages(&mut self, port: PortId, stages: &[P4Binding]) {
        if stages.is_empty() {
            self.stages.remove(&port);
            return;
        }
        let place = |stage: &P4Binding| ((port.controller(), stage.switch), stage.port);
        self.stages.insert(port, stages.iter().map(place).collect());
    }
}

impl<'a> Course<'a> {
    pub fn of(table: Option<&'a P4Table>, port: PortId) -> Course<'a> {
        let stages = table.map_or(&[][..], |table| table.stages_of(port));
        let present = stages
            .iter()
            .filter_map(|(key, _)| table?.switches.get(key))
            .map(|switch| switch.version.operations);
        Course {
            table,
            stages,
            bound: table.and_then(|table| table.bound(port)),
            before: present.sum(),
        }
    }

    /// Whether no program is missing.
    pub fn is_whole(&self) -> bool {
        let is_there = |(key, _): &Place| self.table.is_some_and(|table| table.switches.contains_key(key));
        self.stages.iter().all(is_there) && self.bound.as_ref().is_none_or(|bound| bound.switch.is_some())
    }

    /// The port's forwarder, if that is a program.
    pub fn program(&self) -> Option<Program<'_>> {
        Program::of(self.bound.as_ref()?, self.before)
    }

    /// What a turn may take.
    pub fn bounds(&self, program: Option<&Program<'_>>) -> Bounds {
        program.map_or_else(|| Bounds::of(self.before, 0, 0), |program| program.bounds)
    }

    /// A stage, as packets come to it.
    pub fn stage(&self, place: Place) -> Option<Bound<'a>> {
        Some(Bound {
            is_stage: true,
            ..self.table?.at(place)
        })
    }

    /// Takes what is needed to run packets; all of it or nothing.
    pub fn try_hold(&self) -> Option<Lanes<'a>> {
        let own = self
            .bound
            .as_ref()
            .and_then(|bound| bound.switch.map(|own| (bound.key, own)));
        let Some(table) = self.table.filter(|_| !self.stages.is_empty()) else {
            let Some((table, (key, switch))) = self.table.zip(own) else {
                return Some(Lanes::default());
            };
            let (own, others) = table.try_hold(key, switch)?;
            return Some(Lanes {
                own: Some(own),
                others,
            });
        };
        let own = own.map(|(key, _)| key);
        let joined = own.map_or(&[][..], |key| table.joined_with(key));
        let all = self.stages.iter().map(|(key, _)| key).chain(&own).chain(joined);
        // In the order of their numbers, as all threads take them.
        let all: BTreeSet<&P4Key> = all.collect();
        let mut others = Vec::with_capacity(all.len());
        for key in all {
            if let Some(switch) = table.switches.get(key) {
                others.push(Held::try_new(*key, switch)?);
            }
        }
        let at = others.iter().position(|held| Some(held.key) == own);
        Some(Lanes {
            own: at.map(|at| others.remove(at)),
            others,
        })
    }
}
