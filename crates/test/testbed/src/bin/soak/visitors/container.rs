//! A namespace with a TAP port. The port is deleted in mid-traffic, or the namespace goes with the port's
//! interface.

use super::Visitor;
use crate::pair::{Pair, traffic, v4};
use anyhow::{Context, Result};
use fastrand::Rng;
use testbed::ping::reachable;
use testbed::switch::TIMEOUT;
use testbed::{Endpoint, Namespace, Running, Switch};

/// See the module's description.
pub struct Container {
    port: &'static str,
    number: u8,
    traffic: Vec<Running>,
    namespace: Option<Namespace>,
}

impl Container {
    pub fn new(port: &'static str, number: u8) -> Container {
        Container {
            port,
            number,
            traffic: Vec::new(),
            namespace: None,
        }
    }
}

impl Visitor for Container {
    fn name(&self) -> &'static str {
        self.port
    }

    fn is_here(&self) -> bool {
        self.namespace.is_some()
    }

    fn arrive(&mut self, switch: &Switch, _: &mut Rng) -> Result<()> {
        let namespace = Namespace::new(self.port)?;
        let address = format!("{}/24", v4(self.number));
        switch.verb(&[
            "port",
            "add",
            "sw0",
            self.port,
            "--type",
            "tap",
            "--netns",
            namespace.netns(),
            "--interface",
            "eth0",
            "--address",
            &address,
        ])?;
        self.namespace = Some(namespace);
        Ok(())
    }

    fn work(&mut self, switch: &Switch, pair: &Pair, _: &mut Rng) -> Result<()> {
        let namespace = self.namespace.as_ref().context("it is here")?;
        self.traffic.clear();
        switch.wait_port(self.port, "running")?;
        reachable(namespace, &v4(1), TIMEOUT)?;
        pair.fetch(namespace)?;
        let running = traffic(0.005).map(|command| namespace.start(&command));
        self.traffic = running.into_iter().collect::<Result<_>>()?;
        Ok(())
    }

    fn leave(&mut self, switch: &Switch, random: &mut Rng) -> Result<()> {
        if random.bool() {
            self.traffic.clear();
            self.namespace = None;
        }
        switch.verb(&["port", "del", self.port])?;
        self.traffic.clear();
        self.namespace = None;
        Ok(())
    }

    fn endpoint(&self) -> Option<(&dyn Endpoint, u8)> {
        self.namespace
            .as_ref()
            .map(|namespace| (namespace as &dyn Endpoint, self.number))
    }
}
