//! A learning switch with three ports, which run.

use control::l2::storm::StormLimits;
use control::l2::{LearningSwitch, PortRules, Readiness, SwitchRules};
use flow::PortId;
use management::{ContestedMacs, VlanConfig};

/// The switch, whose ports are 1 to 3.
pub fn learning_switch() -> LearningSwitch {
    let mut switch = LearningSwitch::new(SwitchRules {
        ageing_ms: 300_000,
        table_size: 1000,
        flood: true,
        contested: ContestedMacs::Deliver,
    });
    for port in 1..=3 {
        let rules = PortRules {
            vlan: VlanConfig::Untagged,
            isolated: false,
            flood: true,
            mac_limit: 10,
            storm: StormLimits::default(),
            vlan_priority: None,
            static_macs: Vec::new(),
            mac: None,
            readiness: Readiness::Running,
        };
        switch.set_port(PortId(port), rules);
    }
    switch
}
