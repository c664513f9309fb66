//! The family `ovs_datapath` (`net/openvswitch/datapath.c`).

use super::{Bridge, MAX_DATAPATHS, Outcome, Result, Switch, Vport, notify, refused, reply, text};
use crate::datapath::{Datapath, DatapathId, LOCAL, PortSpec};
use crate::placeholder::Placeholders;
use ovs_netlink::datapath::features::{DISPATCH_UPCALL_PER_CPU, UNALIGNED, VPORT_PIDS};
use ovs_netlink::datapath::{Command, Datapath as Description, Request, Settings, Which};
use ovs_netlink::family::Family;
use ovs_netlink::message::Header;
use ovs_netlink::name::Name;
use ovs_netlink::vport::Kind;
use ovs_netlink::{Errno, Reply};
use std::collections::BTreeMap;

/// `MC_DEFAULT_HASH_ENTRIES` of `flow_table.c`. The number is kept and told, as ovs-vswitchd may set it; our
/// caches have sizes of their own.
const MASKS_CACHE: u32 = 256;
/// As many as an attribute of the kernel's cache would fit into its per-processor memory.
const MAX_MASKS_CACHE: u32 = 4096;

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn dp(&mut self, header: Header, request: Request) -> Result<Outcome> {
        let changed = |told: &Description| notify(header, Family::Datapath, &Reply::Datapath(told.clone()));
        match request {
            Request::New {
                name,
                upcall_pid,
                ifindex,
                settings,
            } => {
                if ifindex.is_some() {
                    return refused(Errno::EOPNOTSUPP);
                }
                let id = self.new_dp(name, upcall_pid, settings)?;
                changed(&self.tell_dp(id, Command::New)?)
            }
            Request::Delete(which) => {
                let id = self.find_dp(&which)?;
                let told = self.tell_dp(id, Command::Delete)?;
                self.remove_bridge(id);
                changed(&told)
            }
            Request::Get(which) => {
                let told = self.tell_dp(self.find_dp(&which)?, Command::New)?;
                reply(header, &Reply::Datapath(told))
            }
            Request::Set(which, settings) => {
                let id = self.find_dp(&which)?;
                self.check_settings(&settings)?;
                if let Some(bridge) = self.bridges.get_mut(&id) {
                    bridge.change(settings);
                }
                changed(&self.tell_dp(id, Command::New)?)
            }
            Request::Dump => Ok(super::Dump::datapaths(header)),
        }
    }

    fn new_dp(&mut self, name: Name, upcalls: u32, settings: Settings) -> Result<DatapathId> {
        let device = text(&name)?.to_owned();
        self.check_settings(&settings)?;
        if self.names.contains_key(&name) {
            return refused(Errno::EEXIST);
        }
        if self.bridges.len() >= MAX_DATAPATHS {
            return refused(Errno::ENOMEM);
        }
        let interface = self.placeholders.create(&device)?;
        let id = DatapathId(interface);
        let spec = PortSpec {
            number: LOCAL,
            name: device,
            kind: Kind::Internal,
            options: None,
        };
        let made = self.datapath.create(id).and_then(|()| {
            let added = self.datapath.add_port(id, &spec);
            added.inspect_err(|_| self.datapath.remove(id))
        });
        if let Err(errno) = made {
            self.placeholders.remove(&spec.name);
            return refused(errno);
        }
        let local = Vport {
            spec,
            name: name.clone(),
            interface: Some(interface),
            namespace: None,
            sockets: vec![upcalls],
        };
        let mut bridge = Bridge {
            name: name.clone(),
            features: 0,
            masks_cache: MASKS_CACHE,
            cpu_sockets: Vec::new(),
            ports: BTreeMap::from([(LOCAL, local)]),
            lost: 0,
        };
        bridge.change(settings);
        self.bridges.insert(id, bridge);
        self.names.insert(name, (id, LOCAL));
        Ok(id)
    }

    /// Refuses settings that are not supported (`ovs_dp_change`). Other features, such as sharing
    /// recirculation with tc, are no part of this data plane; and ovs-vswitchd asks for one that no kernel
    /// has, to see whether they are looked at.
    fn check_settings(&self, settings: &Settings) -> Result<()> {
        let per_cpu = if self.capabilities.upcalls_per_cpu {
            DISPATCH_UPCALL_PER_CPU
        } else {
            0
        };
        let unknown = !(UNALIGNED | VPORT_PIDS | per_cpu);
        if settings.features.is_some_and(|features| features & unknown != 0) {
            return refused(Errno::EOPNOTSUPP);
        }
        Ok(settings.masks_cache_size.map_or(Ok(()), check_cache)?)
    }

    /// The datapath that a request names: by its name, else by its number (`lookup_datapath`).
    fn find_dp(&self, which: &Which) -> Result<DatapathId> {
        match &which.name {
            None => Ok(self.bridge(which.datapath)?.0),
            Some(name) => match self.names.get(name) {
                Some((id, LOCAL)) => Ok(*id),
                _ => refused(Errno::ENODEV),
            },
        }
    }

    /// `ovs_dp_cmd_fill_info`.
    pub(super) fn tell_dp(&self, id: DatapathId, command: Command) -> Result<Description> {
        let bridge = self.bridges.get(&id).ok_or(Errno::ENODEV)?;
        let (mut stats, megaflow_stats) = self.datapath.stats(id);
        stats.lost += bridge.lost;
        let sockets = Some(&bridge.cpu_sockets).filter(|sockets| bridge.is_per_cpu() && !sockets.is_empty());
        Ok(Description {
            command,
            datapath: id.0,
            name: bridge.name.clone(),
            stats: Some(stats),
            megaflow_stats,
            settings: Settings {
                features: Some(bridge.features),
                masks_cache_size: Some(bridge.masks_cache),
                per_cpu_pids: sockets.cloned(),
            },
        })
    }

    fn remove_bridge(&mut self, id: DatapathId) {
        let Some(bridge) = self.bridges.remove(&id) else {
            return;
        };
        self.datapath.remove(id);
        for port in bridge.ports.into_values() {
            self.names.remove(&port.name);
            if port.spec.kind == Kind::Internal {
                self.placeholders.remove(&port.spec.name);
            }
        }
    }
}

impl Bridge {
    /// Whether sockets for upcalls are named per processor.
    pub(super) fn is_per_cpu(&self) -> bool {
        self.features & DISPATCH_UPCALL_PER_CPU != 0
    }

    fn change(&mut self, settings: Settings) {
        self.features = settings.features.unwrap_or(self.features);
        self.masks_cache = settings.masks_cache_size.unwrap_or(self.masks_cache);
        if let Some(sockets) = settings.per_cpu_pids.filter(|_| self.is_per_cpu()) {
            self.cpu_sockets = sockets;
        }
    }
}

/// As the kernel: its policy has a range (`ERANGE`), and it makes no cache of another size (`ENOMEM`).
fn check_cache(size: u32) -> std::result::Result<(), Errno> {
    match size {
        0 => Ok(()),
        size if size > MAX_MASKS_CACHE => Err(Errno::ERANGE),
        size if size.is_power_of_two() => Ok(()),
        _ => Err(Errno::ENOMEM),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_the_cache_are_refused_as_by_the_kernel() {
        for (size, wanted) in [
            (0, Ok(())),
            (256, Ok(())),
            (4096, Ok(())),
            (255, Err(Errno::ENOMEM)),
            (8192, Err(Errno::ERANGE)),
            (80_000, Err(Errno::ERANGE)),
        ] {
            assert_eq!(check_cache(size), wanted, "{size}");
        }
    }
}
