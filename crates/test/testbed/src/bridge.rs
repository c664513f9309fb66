//! The kernel's own path between guests: a Linux bridge with TAPs, in a namespace. What the switch is
//! measured against, and a network on which guests can be tried without it.

use crate::endpoint::Endpoint;
use crate::namespace::Namespace;
use anyhow::Result;

/// A bridge `br0` in a namespace of its own.
#[derive(Debug)]
pub struct Bridge {
    namespace: Namespace,
}

impl Bridge {
    /// Makes the bridge, with an address (and prefix length) for the namespace's own stack.
    pub fn new(label: &str, address: Option<&str>) -> Result<Bridge> {
        let namespace = Namespace::new(label)?;
        namespace.must("ip link add br0 type bridge && ip link set br0 up")?;
        if let Some(address) = address {
            namespace.must(&format!("ip addr add {address} dev br0"))?;
        }
        Ok(Bridge { namespace })
    }

    /// Adds a TAP for a guest; `options` are those of `ip tuntap add`, `vnet_hdr` for instance.
    pub fn add_tap(&self, interface: &str, options: &str) -> Result<()> {
        self.namespace
            .must(&format!(
                "ip tuntap add dev {interface} mode tap {options} && ip link set {interface} master br0 up"
            ))
            .map(drop)
    }

    /// The namespace, in which commands can be run.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }
}
