//! Requests that change something: they change users' wishes, all or nothing.
//!
//! What comes from the configuration file is deleted there; changed it can be, until the next reload.

use crate::process::Control;
use crate::refusal::Refusal;
use crate::state::Wishes;
use management::{Origin, PortChanges, PortConfig, Reply, SwitchConfig};

impl Control {
    pub fn switch_add(&mut self, switch: SwitchConfig) -> Result<Reply, Refusal> {
        let mut wishes = self.wishes.clone();
        let ports: Vec<String> = switch.ports.iter().map(|port| port.name.to_string()).collect();
        wishes.switches.push(switch);
        self.wish_or_revert(wishes, &ports)
    }

    pub fn switch_del(&mut self, name: &str) -> Result<Reply, Refusal> {
        let switch = self
            .state
            .switches
            .get(name)
            .ok_or_else(|| Refusal::NoSwitch(name.into()))?;
        if switch.origin == Origin::Config {
            return Err(Refusal::SwitchOfFile(name.into()));
        }
        let mut wishes = self.wishes.clone();
        wishes.switches.retain(|switch| switch.name.as_str() != name);
        self.wish(wishes).map(|_| Reply::Done)
    }

    pub fn port_add(&mut self, switch: &str, config: PortConfig) -> Result<Reply, Refusal> {
        if !self.state.switches.contains_key(switch) {
            return Err(Refusal::NoSwitch(switch.into()));
        }
        let mut wishes = self.wishes.clone();
        let ports = [config.name.to_string()];
        match wishes.switches.iter_mut().find(|own| own.name.as_str() == switch) {
            Some(own) => own.ports.push(config),
            None => wishes.ports.entry(switch.into()).or_default().push(config),
        }
        self.wish_or_revert(wishes, &ports)
    }

    /// Adopts wishes, unless a new port cannot have its socket.
    fn wish_or_revert(&mut self, wishes: Wishes, ports: &[String]) -> Result<Reply, Refusal> {
        let before = self.wishes.clone();
        self.wish(wishes)?;
        let refusal = ports.iter().find_map(|name| {
            let run = self.ports.get(name).filter(|run| !run.added)?;
            let problem = run.problem.clone()?;
            let port = name.clone();
            Some(Refusal::Port { port, problem })
        });
        match refusal {
            None => Ok(Reply::Done),
            Some(refusal) => {
                self.wish(before)?;
                Err(refusal)
            }
        }
    }

    pub fn port_del(&mut self, name: &str) -> Result<Reply, Refusal> {
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
        let mut wishes = self.wishes.clone();
        let own = wishes.switches.iter_mut().map(|switch| &mut switch.ports);
        for ports in own.chain(wishes.ports.values_mut()) {
            ports.retain(|port| port.name.as_str() != name);
        }
        wishes.ports.retain(|_, ports| !ports.is_empty());
        self.wish(wishes).map(|_| Reply::Done)
    }

    pub fn port_set(&mut self, name: &str, changes: PortChanges) -> Result<Reply, Refusal> {
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
        let mut wishes = self.wishes.clone();
        if port.origin == Origin::Config {
            let before = wishes.overrides.remove(name).unwrap_or_default();
            wishes.overrides.insert(name.into(), before.then(changes));
        } else {
            let own = wishes.switches.iter_mut().map(|switch| &mut switch.ports);
            let all = own.chain(wishes.ports.values_mut()).flatten();
            for port in all.filter(|port| port.name.as_str() == name) {
                changes.apply(port);
            }
        }
        self.wish(wishes).map(|_| Reply::Done)
    }
}
