//! Users' intent: what the file says, and what requests have changed since.

use crate::refusal::Refusal;
use management::{Config, PortChanges, PortConfig, SwitchConfig};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Users' intent: the file as last read, and the changes that requests made to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The configuration file.
    pub config: Config,
    /// Switches added by request, with their ports.
    pub switches: Vec<SwitchConfig>,
    /// Ports added by request to the file's switches, by switch.
    pub ports: BTreeMap<String, Vec<PortConfig>>,
    /// Changes made by request to the file's ports; a reload drops them.
    pub overrides: BTreeMap<String, PortChanges>,
    /// P4 switches that requests have loaded, by name.
    #[serde(default)]
    pub p4: BTreeMap<String, P4Intent>,
    /// `config` waits to be confirmed.
    #[serde(default)]
    pub unconfirmed: Option<Box<Unconfirmed>>,
}

/// A P4 switch. Its program is in a file of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct P4Intent {
    /// Number in the data plane.
    pub number: u32,
    /// Names of ports by the program's numbers. Those that do not exist may come later.
    pub ports: BTreeMap<u16, String>,
}

/// What is needed to confirm a configuration, and to take it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unconfirmed {
    /// Name of its file.
    pub file: String,
    /// What was in the file.
    pub text: String,
    /// When to take it back: milliseconds of the machine's clock. Differs from that of every other one.
    pub until_ms: u64,
    /// What was in force before.
    pub before: Box<Intent>,
}

impl Intent {
    /// Another file with what requests have added. Switches and ports of the file take over those of their
    /// names; a switch keeps the other ports that were added to it.
    pub fn with_file(&self, config: Config) -> Intent {
        let mut intent = Intent {
            config,
            overrides: BTreeMap::new(),
            ..self.clone()
        };
        let config = &intent.config;
        let of_file = |name: &management::Name| config.switches.iter().any(|switch| switch.name == *name);
        let (taken, own): (Vec<_>, _) =
            (intent.switches.into_iter()).partition(|switch: &SwitchConfig| of_file(&switch.name));
        intent.switches = own;
        for switch in taken {
            let ports = intent.ports.entry(switch.name.to_string()).or_default();
            ports.extend(switch.ports);
        }
        let own = intent.switches.iter_mut().map(|switch| &mut switch.ports);
        for ports in own.chain(intent.ports.values_mut()) {
            ports.retain(|port| !has_port(config, port.name.as_str()));
        }
        intent.ports.retain(|_, ports| !ports.is_empty());
        intent
    }

    /// What is in force, as one configuration.
    ///
    /// # Errors
    /// The intent contradicts itself, as none does that was adopted.
    pub fn as_config(&self) -> Result<Config, Refusal> {
        merge(self).map(|(config, _)| config)
    }

    /// The ports that requests have added, by switch.
    pub fn added_ports(&self) -> impl Iterator<Item = (&str, &PortConfig)> {
        let own = self.switches.iter();
        let own = own.flat_map(|switch| switch.ports.iter().map(|port| (switch.name.as_str(), port)));
        let others = self.ports.iter();
        own.chain(others.flat_map(|(switch, ports)| ports.iter().map(|port| (switch.as_str(), port))))
    }
}

/// Whether a file has a port.
pub fn has_port(config: &Config, name: &str) -> bool {
    let mut ports = config.switches.iter().flat_map(|switch| &switch.ports);
    ports.any(|port| port.name.as_str() == name)
}

/// One configuration of everything, and the names of the ports that requests added.
pub fn merge(intent: &Intent) -> Result<(Config, BTreeSet<String>), Refusal> {
    let mut merged = intent.config.clone();
    for port in merged.switches.iter_mut().flat_map(|switch| &mut switch.ports) {
        if let Some(changes) = intent.overrides.get(port.name.as_str()) {
            changes.apply(port);
        }
    }
    let mut runtime = BTreeSet::new();
    for (switch, ports) in &intent.ports {
        let Some(home) = merged.switches.iter_mut().find(|own| own.name.as_str() == switch) else {
            return Err(Refusal::RuntimePorts {
                switch: switch.clone(),
                ports: ports.iter().map(|port| port.name.to_string()).collect(),
            });
        };
        home.ports.extend(ports.iter().cloned());
        runtime.extend(ports.iter().map(|port| port.name.to_string()));
    }
    for switch in &intent.switches {
        runtime.extend(switch.ports.iter().map(|port| port.name.to_string()));
        merged.switches.push(switch.clone());
    }
    Ok((merged, runtime))
}
