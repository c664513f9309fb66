//! Requests that change users' intent, completely or not at all.
//!
//! Switches and ports from the configuration file can be deleted there only; a request can change such a port
//! until the next reload.

use crate::control::Control;
use crate::intent::Intent;
use crate::refusal::Refusal;
use management::{Origin, PortChanges, PortConfig, Reply, Request, SwitchConfig};
use std::collections::BTreeSet;

impl Control {
    /// Carries out one of these requests.
    pub fn edit(&mut self, request: Request) -> Result<Reply, Refusal> {
        match request {
            Request::SwitchAdd { switch } => self.switch_add(switch),
            Request::SwitchDel { switch } => self.switch_del(&switch),
            Request::PortAdd {
                switch,
                config,
                exists_ok,
            } => self.port_add(&switch, *config, exists_ok),
            Request::PortDel { port } => self.port_del(&port),
            Request::PortSet { port, changes } => self.port_set(&port, changes),
            Request::MacFlush { switch, port } => self.mac_flush(switch.as_deref(), port.as_deref()),
            Request::FlowFlush { switch } => self.flow_flush(switch.as_deref()),
            _ => Err(Refusal::WrongAnswer),
        }
    }

    /// Forgets learned stations. Flows go as well: one that stays would let its sender go on unknown.
    fn mac_flush(&mut self, switch: Option<&str>, port: Option<&str>) -> Result<Reply, Refusal> {
        let run = |name: &str| self.ports.get(name).ok_or_else(|| Refusal::NoPort(name.into()));
        let port = port.map(run).transpose()?;
        let id = port.and_then(|run| run.id);
        let home = port.map(|run| run.wanted.switch.clone());
        let now_ms = self.now_ms();
        for name in self.names_of(switch)? {
            if home.as_ref().is_some_and(|home| *home != name) {
                continue;
            }
            if let Some(run) = self.switches.runs.get_mut(&name) {
                run.l2_mut().forget_stations(id);
            }
            self.switches.flush(&name, &mut self.data_plane, now_ms);
        }
        Ok(Reply::Done)
    }

    fn flow_flush(&mut self, switch: Option<&str>) -> Result<Reply, Refusal> {
        let now_ms = self.now_ms();
        for name in self.names_of(switch)? {
            self.switches.flush(&name, &mut self.data_plane, now_ms);
        }
        Ok(Reply::Done)
    }

    fn names_of(&self, switch: Option<&str>) -> Result<Vec<String>, Refusal> {
        let runs = self.runs_of(switch)?.into_iter();
        Ok(runs.map(|(name, _)| name.clone()).collect())
    }

    fn switch_add(&mut self, switch: SwitchConfig) -> Result<Reply, Refusal> {
        let mut intent = self.intent.clone();
        let ports: Vec<String> = switch.ports.iter().map(|port| port.name.to_string()).collect();
        intent.switches.push(switch);
        self.adopt_or_revert(intent, &ports)
    }

    fn switch_del(&mut self, name: &str) -> Result<Reply, Refusal> {
        let switch = self
            .state
            .switches
            .get(name)
            .ok_or_else(|| Refusal::NoSwitch(name.into()))?;
        if switch.origin == Origin::Config {
            return Err(Refusal::SwitchOfFile(name.into()));
        }
        let mut intent = self.intent.clone();
        intent.switches.retain(|switch| switch.name.as_str() != name);
        self.adopt(intent).map(|_| Reply::Done)
    }

    /// Adds a port; with `exists_ok` one that is there already, just so, is left alone.
    fn port_add(&mut self, switch: &str, config: PortConfig, exists_ok: bool) -> Result<Reply, Refusal> {
        let present = self.state.ports.get(config.name.as_str());
        if let Some((port, present)) = present.and_then(|port| Some((port, port.config.as_ref()?)))
            && exists_ok
        {
            let mut keys = different_keys(present, &config);
            keys.extend((port.switch != switch).then(|| "switch".to_owned()));
            let port = config.name.to_string();
            return match keys.is_empty() {
                true => Ok(Reply::Done),
                false => Err(Refusal::OtherPort { port, keys }),
            };
        }
        if !self.state.switches.contains_key(switch) {
            return Err(Refusal::NoSwitch(switch.into()));
        }
        let mut intent = self.intent.clone();
        let ports = [config.name.to_string()];
        match intent.switches.iter_mut().find(|own| own.name.as_str() == switch) {
            Some(own) => own.ports.push(config),
            None => intent.ports.entry(switch.into()).or_default().push(config),
        }
        self.adopt_or_revert(intent, &ports)
    }

    /// Adopts an intent, unless the socket of a new port cannot be opened.
    fn adopt_or_revert(&mut self, intent: Intent, ports: &[String]) -> Result<Reply, Refusal> {
        let before = self.intent.clone();
        self.adopt(intent)?;
        let refusal = ports.iter().find_map(|name| {
            let run = self.ports.get(name).filter(|run| !run.added)?;
            let problem = run.problem.clone()?;
            let port = name.clone();
            Some(Refusal::Port { port, problem })
        });
        match refusal {
            None => Ok(Reply::Done),
            Some(refusal) => {
                self.adopt_unsaved(before)?;
                Err(refusal)
            }
        }
    }

    fn port_del(&mut self, name: &str) -> Result<Reply, Refusal> {
        let port = self
            .state
            .ports
            .get(name)
            .ok_or_else(|| Refusal::NoPort(name.into()))?;
        if port.config.is_none() {
            return Err(Refusal::PortOfSwitch {
                port: name.into(),
                switch: port.switch.clone(),
            });
        }
        if port.origin == Origin::Config {
            return Err(Refusal::PortOfFile(name.into()));
        }
        let mut intent = self.intent.clone();
        let own = intent.switches.iter_mut().map(|switch| &mut switch.ports);
        for ports in own.chain(intent.ports.values_mut()) {
            ports.retain(|port| port.name.as_str() != name);
        }
        intent.ports.retain(|_, ports| !ports.is_empty());
        self.adopt(intent).map(|_| Reply::Done)
    }

    fn port_set(&mut self, name: &str, changes: PortChanges) -> Result<Reply, Refusal> {
        let port = self
            .state
            .ports
            .get(name)
            .ok_or_else(|| Refusal::NoPort(name.into()))?;
        if port.config.is_none() {
            return Err(Refusal::ConfiguredBySwitch {
                port: name.into(),
                switch: port.switch.clone(),
            });
        }
        let mut intent = self.intent.clone();
        if port.origin == Origin::Config {
            let before = intent.overrides.remove(name).unwrap_or_default();
            intent.overrides.insert(name.into(), before.then(changes));
        } else {
            let own = intent.switches.iter_mut().map(|switch| &mut switch.ports);
            let all = own.chain(intent.ports.values_mut()).flatten();
            for port in all.filter(|port| port.name.as_str() == name) {
                changes.apply(port);
            }
        }
        self.adopt(intent).map(|_| Reply::Done)
    }
}

/// The keys in which two ports differ.
fn different_keys(port: &PortConfig, other: &PortConfig) -> Vec<String> {
    let table = |port| match serde_json::to_value(port) {
        Ok(serde_json::Value::Object(table)) => table,
        _ => serde_json::Map::new(),
    };
    let (port, other) = (table(port), table(other));
    let keys: BTreeSet<&String> = port.keys().chain(other.keys()).collect();
    let different = keys.into_iter().filter(|key| port.get(*key) != other.get(*key));
    different.cloned().collect()
}
