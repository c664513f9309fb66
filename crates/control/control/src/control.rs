//! The parts of the control process, each in a module of its own, and what it knows of the processes beside
//! it.
//!
//! Modules with an `impl Control` join parts: they have the order of events, and no state.

use crate::Options;
use crate::data_plane::DataPlane;
use crate::events::EventLog;
use crate::intent::Intent;
use crate::learning::Learning;
use crate::p4::P4Run;
use crate::pending::{AllGathered, DeviceQueries, Pending};
use crate::policies::{PolicyRun, RuleLog};
use crate::port::PortRun;
use crate::state::State;
use crate::store::Store;
use crate::switches::Switches;
use crate::users::{Token, Users};
use crate::vcpus::Vcpus;
use crate::view::View;
use control_protocol::supervisor::{FromChild, IdlePollStatus, PriorityStatus, ProcessStatus};
use controller::{DriverClient, Link};
use flow::PortId;
use management::Reply;
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;
use telemetry::Problems;

/// The control process.
pub(crate) struct Control {
    pub options: Options,
    pub started: Instant,
    pub supervisor: Link<FromChild>,
    pub reported: Reported,
    pub store: Store,
    pub intent: Intent,
    /// Desired, and applied as far as peers are there.
    pub state: State,
    pub switches: Switches,
    pub ports: BTreeMap<String, PortRun>,
    pub names: HashMap<PortId, String>,
    pub data_plane: DataPlane,
    pub policies: PolicyRun,
    /// Packets that rules noted.
    pub rule_log: RuleLog,
    /// Addresses by DHCP or first use, on their way to policies.
    pub learning: Learning,
    pub p4: P4Run,
    /// Answers to users whose changes the data plane does not obey yet.
    pub unsettled: Vec<(Token, Reply)>,
    pub driver: DriverClient,
    pub device_queries: DeviceQueries,
    pub vcpus: Vcpus,
    pub users: Users,
    /// Flows on their way to users.
    pub gathered: AllGathered,
    /// Problems of ports, as far as the log has been told.
    pub told: Problems<String>,
    /// What happened lately.
    pub events: EventLog,
    /// The socket for queries.
    pub view: View,
    /// Why the state could not be saved the last time.
    pub unsaved: Option<String>,
}

/// What the supervisor has reported, for users.
#[derive(Default)]
pub(crate) struct Reported {
    pub processes: Vec<ProcessStatus>,
    /// How forwarding threads are scheduled.
    pub priority: Option<PriorityStatus>,
    pub idle_poll: Option<IdlePollStatus>,
}

impl Control {
    /// Milliseconds since this process started.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A user does not wait for an answer any longer.
    pub fn forget_user(&mut self, token: Token) {
        self.gathered.remove(&token);
        self.device_queries.forget(token);
        self.unsettled.retain(|(other, _)| *other != token);
        let is_theirs = |pending: &Pending| matches!(pending, Pending::User(of, _) if *of == token);
        self.data_plane.client.forget(is_theirs);
    }
}
