//! Who is measured: a switch and how it is configured. A new contender is one more constant, named in the
//! cases in which it competes.

use std::path::PathBuf;
use testbed::ovs::{Caches, Forwarding};

/// A switch, configured in a certain way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender {
    /// Name in results.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Whether guests leave it the last processor.
    pub dedicated: bool,
    /// What its ports are like.
    pub ports: Ports,
}

/// What ports are like; by default as they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// Lines of the switch about a way to the outside, if there is one.
    pub uplink: Option<&'static str>,
}

const USUAL: Ports = Ports {
    mtu: 1500,
    uplink: None,
};

impl Contender {
    /// Whether it is Hyper-Switch, in whatever mode.
    pub fn is_ours(&self) -> bool {
        matches!(
            self.kind,
            Kind::Hyperswitch { .. } | Kind::Before | Kind::ByPorts | Kind::Driven(_)
        )
    }
}

/// Contenders with Open vSwitch get other tables; the rest stays as it is.
pub fn with_tables(contenders: &[Contender], tables: Forwarding) -> Vec<Contender> {
    let other = |contender: &Contender| Contender {
        kind: match contender.kind {
            Kind::Driven(_) => Kind::Driven(tables),
            Kind::OvsDpdk(_, caches) => Kind::OvsDpdk(tables, caches),
            kind => kind,
        },
        ..*contender
    };
    contenders.iter().map(other).collect()
}

/// A contender of ours with other lines of its first port and its last one.
pub const fn with_lines(contender: Contender, name: &'static str, ports: [&'static str; 2]) -> Contender {
    Contender {
        name,
        kind: Kind::Hyperswitch { config: "", ports },
        ..contender
    }
}

/// Contenders with other ports.
pub fn with_ports(contenders: &[Contender], ports: Ports) -> Vec<Contender> {
    let other = |contender: &Contender| Contender { ports, ..*contender };
    contenders.iter().map(other).collect()
}

impl Default for Ports {
    fn default() -> Ports {
        USUAL
    }
}

/// What a contender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ours, with more in its configuration (TOML).
    Hyperswitch {
        /// Tables besides those of switches and ports.
        config: &'static str,
        /// Lines of each port, and of the last one.
        ports: [&'static str; 2],
    },
    /// An earlier build of ours, whose executable [`before`] names.
    Before,
    /// Our data plane with a flow for each pair of UDP ports, installed by a controller that is played here.
    ByPorts,
    /// Ours with an unmodified ovs-vswitchd that drives the data plane.
    Driven(Forwarding),
    /// Open vSwitch with DPDK, one poll thread.
    OvsDpdk(Forwarding, Caches),
    /// DPDK's testpmd with two vhost ports, which forwards between them without looking.
    Testpmd,
    /// The kernel's bridge with TAPs; for guests with a kernel only.
    Bridge,
    /// Nobody, where something else of the host is measured.
    None,
}

/// The executable of [`BEFORE`], from the environment: `HYPERSWITCH_BEFORE`.
pub fn before() -> Option<PathBuf> {
    std::env::var_os("HYPERSWITCH_BEFORE").map(PathBuf::from)
}

const fn ours(name: &'static str, config: &'static str) -> Contender {
    Contender {
        name,
        kind: Kind::Hyperswitch {
            config,
            ports: [""; 2],
        },
        dedicated: false,
        ports: USUAL,
    }
}

const fn ours_apart(name: &'static str, config: &'static str) -> Contender {
    Contender {
        dedicated: true,
        ..ours(name, config)
    }
}

const fn ovs(name: &'static str, forwarding: Forwarding) -> Contender {
    ovs_with(name, forwarding, Caches::AsTheyCome)
}

const fn ovs_with(name: &'static str, forwarding: Forwarding, caches: Caches) -> Contender {
    Contender {
        name,
        kind: Kind::OvsDpdk(forwarding, caches),
        dedicated: true,
        ports: USUAL,
    }
}

/// The product as it comes.
pub const HYPERSWITCH: Contender = ours("hyperswitch", "");
/// The product with its guests where those of a switch with a core of its own are.
pub const TOGETHER: Contender = ours_apart("hyperswitch-guests-together", "");
/// The product as it was before a change, which takes part if its executable is named.
pub const BEFORE: Contender = Contender {
    name: "hyperswitch-before",
    kind: Kind::Before,
    ..HYPERSWITCH
};
/// The product with an uplink by AF_XDP.
pub const AF_XDP: Contender = Contender {
    name: "hyperswitch-af-xdp",
    ports: Ports {
        uplink: Some("uplink-back-end = \"af-xdp\""),
        ..USUAL
    },
    ..HYPERSWITCH
};
/// The product with an uplink by which frames leave straight from their senders' memory.
pub const FAST_PATH: Contender = Contender {
    name: "hyperswitch-fast-path",
    ports: Ports {
        uplink: Some("uplink-fast-path = true"),
        ..USUAL
    },
    ..HYPERSWITCH
};
/// Where [`WATCHED`] serves its metrics.
pub const VIEW: &str = "/run/hyperswitch-bench-view.sock";
/// The product with metrics.
pub const WATCHED: Contender = ours(
    "hyperswitch-watched",
    "[view]\nlisten = \"/run/hyperswitch-bench-view.sock\"\n",
);
/// Ours without the bound on the rate of new flows that protects other ports.
pub const UNBOUNDED: Contender = Contender {
    name: "hyperswitch-unbounded",
    kind: Kind::Hyperswitch {
        config: "",
        ports: ["miss-rate = 1000000\n"; 2],
    },
    dedicated: false,
    ports: USUAL,
};
/// Ours with access ports, and a trunk as the last one.
pub const TAGGING: Contender = Contender {
    name: "hyperswitch-access-to-trunk",
    kind: Kind::Hyperswitch {
        config: "",
        ports: ["vlan = { access = 10 }\n", "vlan = { trunk = [10] }\n"],
    },
    ..HYPERSWITCH
};
/// Our data plane with a flow for each pair of UDP ports, as [`OVS_PORTS`] has it.
pub const BY_PORTS: Contender = Contender {
    name: "hyperswitch-ports",
    kind: Kind::ByPorts,
    dedicated: false,
    ports: USUAL,
};
/// Open vSwitch doing least: ports joined in pairs.
pub const OVS_DPDK: Contender = ovs("ovs-dpdk", Forwarding::Pairs);
/// Open vSwitch doing what Hyper-Switch does: learning addresses.
pub const OVS_LEARNING: Contender = ovs("ovs-dpdk-learning", Forwarding::Learning);
/// Open vSwitch with security groups, for attacks on its classifier.
pub const OVS_FILTERED: Contender = ovs("ovs-dpdk-filtered", Forwarding::Filtered);
/// Open vSwitch with rules that copy transport ports, so that there is a megaflow for each pair of them.
pub const OVS_PORTS: Contender = ovs("ovs-dpdk-ports", Forwarding::PairsByPorts);
/// Open vSwitch as in [`OVS_PORTS`], with every flow in its exact match cache.
pub const OVS_PORTS_EMC: Contender = ovs_with(
    "ovs-dpdk-ports-emc",
    Forwarding::PairsByPorts,
    Caches::InsertAlways,
);
/// Open vSwitch as in [`OVS_PORTS_EMC`], with its signature match cache besides.
pub const OVS_PORTS_SMC: Contender =
    ovs_with("ovs-dpdk-ports-smc", Forwarding::PairsByPorts, Caches::Signatures);
/// With every flow in the exact match cache, and packets that wait for others on their way out.
pub const OVS_PORTS_BATCHING: Contender = ovs_with(
    "ovs-dpdk-ports-batching",
    Forwarding::PairsByPorts,
    Caches::Batching,
);
/// Our data plane driven by ovs-vswitchd: a learning switch, unless a case has other tables.
pub const DRIVEN: Contender = Contender {
    name: "hyperswitch-ovs",
    kind: Kind::Driven(Forwarding::Learning),
    dedicated: false,
    ports: USUAL,
};
/// Our data plane driven by ovs-vswitchd, with rules as [`OVS_FILTERED`] has them.
pub const DRIVEN_FILTERED: Contender = Contender {
    name: "hyperswitch-ovs-filtered",
    kind: Kind::Driven(Forwarding::Filtered),
    ..DRIVEN
};
/// Open vSwitch with tables that a case gives to it and to [`DRIVEN`], and every flow in its exact match
/// cache.
pub const OVS_TABLES_EMC: Contender = ovs_with(
    "ovs-dpdk-tables-emc",
    Forwarding::LearningByPorts,
    Caches::InsertAlways,
);
/// Open vSwitch with the tables above, with its signature match cache besides.
pub const OVS_TABLES_SMC: Contender = ovs_with(
    "ovs-dpdk-tables-smc",
    Forwarding::LearningByPorts,
    Caches::Signatures,
);
/// With every flow in the exact match cache, and packets that wait for others on their way out.
pub const OVS_TABLES_BATCHING: Contender = ovs_with(
    "ovs-dpdk-tables-batching",
    Forwarding::LearningByPorts,
    Caches::Batching,
);
/// DPDK's own example of a switch: two vhost ports, no table at all, one copy into its buffers and one out of
/// them.
pub const TESTPMD: Contender = Contender {
    name: "testpmd-vhost",
    kind: Kind::Testpmd,
    dedicated: true,
    ports: USUAL,
};
/// The product with threads that are scheduled as all others.
pub const NORMAL: Contender = ours(
    "hyperswitch-normal-priority",
    "[placement]\npriority = \"normal\"\n",
);
/// The product with threads of nice -20, for a bounded share of the time.
pub const NICE: Contender = ours("hyperswitch-nice", "[placement]\npriority = \"nice\"\n");
/// The product with threads of the shortest time slice.
pub const SLICE: Contender = ours("hyperswitch-slice", "[placement]\npriority = \"slice\"\n");
/// The kernel's own path.
pub const BRIDGE: Contender = Contender {
    name: "bridge",
    kind: Kind::Bridge,
    dedicated: false,
    ports: USUAL,
};

/// The product without knowledge of what cores and guests do.
pub const WITHOUT_VM_STATE: Contender =
    ours("hyperswitch-without-vm-state", "[placement]\nvm-state = false\n");
/// Ours on cores that always halt when they are idle.
pub const HALTING: Contender = ours("hyperswitch-without-idle-poll", "[placement]\nidle-poll-us = 0\n");
/// No switch at all.
pub const NONE: Contender = Contender {
    name: "none",
    kind: Kind::None,
    ..BRIDGE
};

/// Ours with dedicated cores that poll, as DPDK switches have them.
pub const POLL: Contender = ours_apart("hyperswitch-poll", "[placement]\nmode = \"poll\"\n");
/// Ours with a thread per vNIC, as vhost-net has it.
pub const THREAD_PER_VNIC: Contender = ours(
    "hyperswitch-thread-per-vnic",
    "[placement]\nmode = \"thread-per-vnic\"\n",
);
/// Ours with all switching in a fixed set of workers and a second copy, as Xen's netback has it.
pub const DRIVER_DOMAIN: Contender = ours_apart(
    "hyperswitch-driver-domain",
    "[placement]\nmode = \"driver-domain\"\n",
);

/// The product, its peers, and its other modes.
pub const PEERS_AND_MODES: &[Contender] = &[
    HYPERSWITCH,
    TOGETHER,
    BRIDGE,
    OVS_DPDK,
    POLL,
    THREAD_PER_VNIC,
    DRIVER_DOMAIN,
];

/// Ours without one of the mechanisms of placement, each in turn.
pub const ABLATIONS: &[Contender] = &[
    HYPERSWITCH,
    ours("without priority", "[placement]\npriority = \"normal\"\n"),
    ours("without vm-state", "[placement]\nvm-state = false\n"),
    ours(
        "without state-aware-batching",
        "[placement]\nstate-aware-batching = false\n",
    ),
    ours(
        "without preemptive-copy",
        "[placement]\npreemptive-copy = false\n",
    ),
    ours("without offload", "[placement]\noffload = false\n"),
    ours("without poll-transmit", "[placement]\npoll-transmit = false\n"),
    ours("without hysteresis", "[placement]\nhysteresis-us = 0\n"),
    ours("without idle-poll", "[placement]\nidle-poll-us = 0\n"),
    ours("without give-way", "[placement]\ngive-way = false\n"),
    ours("without serve-on-block", "[placement]\nserve-on-block = false\n"),
];
