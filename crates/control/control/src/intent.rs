//! Users' intent: what the file says, and what requests have changed since.

use crate::refusal::Refusal;
use management::{Config, P4StageConfig, PortChanges, PortConfig, SwitchConfig};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

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
    /// P4 switches of the file, and those that requests have loaded, by name.
    #[serde(default)]
    pub p4: BTreeMap<String, P4Intent>,
    /// Addresses that ports got by DHCP or first use.
    #[serde(default)]
    pub learned: BTreeMap<String, Vec<LearnedAddress>>,
    /// `config` waits to be confirmed.
    #[serde(default)]
    pub unconfirmed: Option<Box<Unconfirmed>>,
}

/// An address that a port got by DHCP or first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedAddress {
    /// Address of one host.
    pub address: IpAddr,
    /// End of the lease in seconds since 1970; `None`: it does not end.
    pub until: Option<u64>,
}

/// A P4 switch. Its programs are in files of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct P4Intent {
    /// Number in the data plane.
    pub number: u32,
    /// Tag of the program with its entries.
    #[serde(default)]
    pub program: u64,
    /// Most operations of a pass that it is allowed, if more than usual.
    #[serde(default)]
    pub operations: Option<u32>,
    /// Names of ports by the program's numbers. Those that do not exist may come later.
    pub ports: BTreeMap<u16, String>,
    /// Where it is a stage, if it is one; it has no ports then.
    #[serde(default)]
    pub stage: Option<P4StageConfig>,
    /// Tag of the program as the configuration file last had it; `None`: the file does not have it.
    #[serde(default)]
    pub file: Option<u64>,
    /// What was in force before the program was loaded.
    #[serde(default)]
    pub former: Option<P4Former>,
}

/// A P4 switch as it was before another program was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct P4Former {
    /// Tag of the program.
    pub program: u64,
    /// Most operations of a pass that it was allowed.
    #[serde(default)]
    pub operations: Option<u32>,
    /// Names of ports by the program's numbers.
    pub ports: BTreeMap<u16, String>,
}

impl P4Intent {
    /// What is in force, to return to.
    pub fn as_former(&self) -> P4Former {
        P4Former {
            program: self.program,
            operations: self.operations,
            ports: self.ports.clone(),
        }
    }

    /// Comes in another one's place, and can return to it if they differ.
    pub fn succeeding(mut self, present: Option<&P4Intent>) -> P4Intent {
        self.former = match present {
            Some(present) if self.as_former() == present.as_former() => present.former.clone(),
            present => present.map(P4Intent::as_former),
        };
        self
    }

    /// Tags of programs that are needed.
    fn programs(&self) -> impl Iterator<Item = u64> {
        let former = self.former.iter().map(|former| former.program);
        [self.program].into_iter().chain(self.file).chain(former)
    }
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

    /// Tags of P4 programs that are needed, now or to return to.
    pub fn programs(&self) -> BTreeSet<u64> {
        let mut programs: BTreeSet<u64> = self.p4.values().flat_map(P4Intent::programs).collect();
        if let Some(unconfirmed) = &self.unconfirmed {
            programs.extend(unconfirmed.before.programs());
        }
        programs
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
