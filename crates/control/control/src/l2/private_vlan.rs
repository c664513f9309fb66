//! Private VLANs (RFC 5517): several VLANs that share their stations, and differ in who hears whom.
//!
//! Ports say which secondary VLANs belong to which primary one. A frame belongs to the VLAN that its sender
//! stands for, and keeps it on the way:
//!
//! | from | VLAN of the frame | goes to |
//! |---|---|---|
//! | a promiscuous port | primary | all ports of the private VLAN |
//! | an isolated port | isolated | promiscuous ports that name the VLAN |
//! | a port of a community | that community | its members, and promiscuous ports that name the VLAN |
//! | a trunk | by its tag | as above, and not back |
//!
//! Trunks carry each of these VLANs with its own tag, so other switches keep ports apart as this one does.
//! Stations are learned in the primary VLAN whatever tag they came with: an answer comes in another VLAN than
//! the question. Whether a frame may leave a port is decided by its VLAN alone, wherever its destination was
//! learned.

use super::vlan;
use management::VlanConfig;
use std::collections::BTreeMap;

/// The primary VLAN of each secondary one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PrivateVlans(BTreeMap<u16, u16>);

impl PrivateVlans {
    /// What the ports of a switch say.
    pub fn of<'a>(ports: impl Iterator<Item = &'a VlanConfig>) -> Self {
        let private = ports.filter_map(|port| match port {
            VlanConfig::Private { primary, role } => Some((primary.get(), role.secondaries())),
            VlanConfig::Untagged | VlanConfig::Access(_) | VlanConfig::Trunk { .. } => None,
        });
        let pairs = private.flat_map(|(primary, secondaries)| {
            secondaries
                .into_iter()
                .map(move |secondary| (secondary.get(), primary))
        });
        PrivateVlans(pairs.collect())
    }

    /// The primary VLAN that a VLAN belongs to, if it is a secondary one.
    pub fn primary(&self, vlan: u16) -> Option<u16> {
        self.0.get(&vlan).copied()
    }

    /// Whether a port has a part in the private VLAN that a VLAN belongs to.
    pub fn is_part(&self, port: &VlanConfig, vlan: u16) -> bool {
        let own = self.primary(vlan).unwrap_or(vlan);
        matches!(port, VlanConfig::Private { primary, .. } if primary.get() == own)
    }

    /// Whether stations that were learned in a VLAN may be on a port.
    pub fn carries(&self, port: &VlanConfig, learning: u16) -> bool {
        let carries = |vlan: u16| vlan::egress(port, vlan).is_some();
        let mut parts = self.0.iter().filter(|(_, primary)| **primary == learning);
        self.primary(learning).is_none()
            && (carries(learning) || parts.any(|(secondary, _)| carries(*secondary)))
    }
}
