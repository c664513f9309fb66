//! Flows for a data plane that takes the place of another.
//!
//! The new data plane is told to forget what it has, since it may have lived on with flows that were removed
//! meanwhile. Ports and meters come first, then flows in the order of their places, a bounded number at a
//! time. What ovs-vswitchd asks meanwhile about those that wait is answered here; new ones go to the data
//! plane at once.

use super::questions::{Asked, Pending};
use super::{Plane, SWITCH};
use crate::datapath::Errno;
use control_protocol::data_plane::{Answer as Told, Request};
use flow::PutMode;

/// Flows without answers. Questions are left room for as many.
const MAX_OPEN: usize = controller::ROOM / 2;

/// How far it has come.
#[derive(Debug, Default)]
pub(super) struct Restore {
    open: usize,
    restored: u64,
    refused: u64,
}

impl Plane {
    /// A new data plane is to have the datapath's flows and no others.
    pub(super) fn begin_restore(&mut self) {
        self.restore = Restore::default();
        // Without a datapath, flows of an earlier process forward until ovs-vswitchd has flushed them.
        if self.datapath.is_some() {
            self.client.tell(Request::FlowFlush { switch: SWITCH });
        }
    }

    /// Puts as many of the flows that wait as may be under way.
    pub(super) fn put_waiting(&mut self) {
        while self.restore.open < MAX_OPEN {
            let Some((place, stored)) = self.flows.next_waiting() else {
                return;
            };
            let rule = stored.rule();
            match rule.and_then(|rule| self.entry(place, &rule.matches, &rule.actions)) {
                Ok(flow) => {
                    let mode = PutMode::Create;
                    let request = Request::FlowPut { flow, mode };
                    self.request(request, Vec::new(), Pending::Restored(place));
                    self.restore.open += 1;
                }
                Err(errno) => self.refuse(place, errno),
            }
        }
    }

    /// The data plane has taken a flow that waited, or not.
    pub(super) fn restored(&mut self, place: u64, told: Result<Told, Errno>) {
        self.restore.open = self.restore.open.saturating_sub(1);
        match told {
            Ok(Told::Ended { .. }) => self.restore.restored += 1,
            told => {
                if let Err(errno) = self.refused(told) {
                    self.refuse(place, errno);
                }
            }
        }
        self.put_waiting();
        if self.restore.open == 0 {
            let Restore {
                restored, refused, ..
            } = self.restore;
            log::info!("the new data plane has {restored} flows of the one before, and refuses {refused}");
        }
    }

    fn refuse(&mut self, place: u64, errno: Errno) {
        if self.restore.refused == 0 {
            log::warn!("the new data plane refuses a flow of the one before: {errno}");
        }
        self.restore.refused += 1;
        self.counters.flows_refused += 1;
        self.flows.refuse(place);
    }

    /// Whether a question is about what the data plane does not have.
    pub(super) fn is_about_kept_back(&self, asked: &Asked) -> bool {
        match asked {
            Asked::Changed(place, _) | Asked::Flow(place, _) | Asked::Removed(place, ..) => {
                self.flows.is_kept_back(*place)
            }
            Asked::Page(pages, _) => self.flows.is_kept_back(pages.after.saturating_add(1)),
            _ => false,
        }
    }
}
