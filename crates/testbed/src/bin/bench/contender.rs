//! Who is measured: a switch and how it is configured. A new contender is one more constant, named in the cases in which
//! it competes.

use testbed::ovs::Forwarding;

/// A switch, configured in a certain way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender {
    /// Its name in results.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
}

/// What a contender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ours, with this before the switch and its ports in the configuration (TOML).
    Hyperswitch {
        /// Tables besides those of switches and ports.
        config: &'static str,
    },
    /// Open vSwitch with DPDK, one poll thread.
    OvsDpdk(Forwarding),
    /// The kernel's bridge with TAPs; for guests with a kernel only.
    Bridge,
}

const fn ours(name: &'static str, config: &'static str) -> Contender {
    let kind = Kind::Hyperswitch { config };
    Contender { name, kind }
}

const fn ovs(name: &'static str, forwarding: Forwarding) -> Contender {
    let kind = Kind::OvsDpdk(forwarding);
    Contender { name, kind }
}

/// The product as it comes.
pub const HYPERSWITCH: Contender = ours("hyperswitch", "");
/// Open vSwitch doing least: ports joined in pairs.
pub const OVS_DPDK: Contender = ovs("ovs-dpdk", Forwarding::Pairs);
/// Open vSwitch doing what Hyper-Switch does: learning addresses.
pub const OVS_LEARNING: Contender = ovs("ovs-dpdk-learning", Forwarding::Learning);
/// Open vSwitch with security groups, for attacks on its classifier.
pub const OVS_FILTERED: Contender = ovs("ovs-dpdk-filtered", Forwarding::Filtered);
/// The kernel's own path.
pub const BRIDGE: Contender = Contender {
    name: "bridge",
    kind: Kind::Bridge,
};
