//! Policies of ports: rule lists of the built-in controller, which the database names.
//!
//! Numbers of lists follow from the name ([`NamedPolicy`]), so nobody is asked for them. A name that no
//! configuration has leads to lists that do not exist, and the data plane lets nothing pass. As long as the
//! database has told nothing, ports that an earlier process left keep the lists that they have. A port is
//! without its lists at no time: it has them when it is made, and until it is removed.

use super::Plane;
use crate::datapath::PortNo;
use control_protocol::data_plane::{PortInfo, Request};
use flow::{ACLS, Filters, GUARDS, MARKS, NamedPolicy};
use std::collections::BTreeMap;

/// The policies of all ports.
#[derive(Debug, Default)]
pub(super) struct PlanePolicies {
    /// Names of policies by names of ports, once the database has told them.
    wanted: Option<BTreeMap<String, String>>,
    /// Filters of ports that an earlier process left, by names of ports.
    left: BTreeMap<String, Filters>,
}

impl PlanePolicies {
    /// Puts the lists of a port's policy into its filters.
    pub fn fill(&self, port: &str, filters: &mut Filters) {
        match &self.wanted {
            Some(wanted) => {
                if let Some(policy) = wanted.get(port) {
                    NamedPolicy::of(policy).fill(filters);
                }
            }
            None => {
                if let Some(left) = self.left.get(port) {
                    copy(left, filters);
                }
            }
        }
    }

    /// Takes in a port that the data plane has.
    pub fn find(&mut self, info: &PortInfo) {
        self.left.insert(info.spec.name.clone(), info.spec.filters);
    }
}

/// Copies the filters that are a policy's.
pub(super) fn copy(from: &Filters, to: &mut Filters) {
    to.ingress[GUARDS] = from.ingress[GUARDS];
    to.ingress[ACLS] = from.ingress[ACLS];
    to.egress[ACLS] = from.egress[ACLS];
    to.ingress[MARKS] = from.ingress[MARKS];
}

impl Plane {
    /// From now on ports have the policies of these names, and others none, whether they are there already or
    /// not.
    pub fn set_policies(&mut self, wanted: BTreeMap<String, String>) {
        if self.policies.wanted.as_ref() == Some(&wanted) {
            return;
        }
        self.policies.wanted = Some(wanted);
        self.policies.left.clear();
        for number in self.ports.numbers() {
            self.limit(number);
        }
        // Ports of an earlier process, which ovs-vswitchd has not asked for yet.
        for (port, info) in &mut self.ports.told {
            let mut filters = Filters::default();
            self.policies.fill(&info.spec.name, &mut filters);
            let before = info.spec.filters;
            copy(&filters, &mut info.spec.filters);
            if info.spec.filters != before {
                let (port, filters) = (*port, info.spec.filters);
                self.client.tell(Request::PortFilters { port, filters });
            }
        }
    }

    /// The filters of a port's policy, and no others; of a port that is gone, those that it had.
    pub(super) fn policy_filters(&self, number: PortNo, had: &Filters) -> Filters {
        let mut filters = Filters::default();
        match self.ports.all.get(&number) {
            Some(port) => self.policies.fill(&port.spec.name, &mut filters),
            None => copy(had, &mut filters),
        }
        filters
    }
}
