//! The family `ovs_datapath` (`net/openvswitch/datapath.c`).

use super::{
    Bridge, MAX_DATAPATHS, Outcome, Request, Result, Switch, Vport, name, refused, socket_ids, words,
    write_name,
};
use crate::datapath::{Datapath, DatapathId, LOCAL, PortKind, PortSpec};
use crate::placeholder::Placeholders;
use crate::uapi::dp::{
    ATTRIBUTES, DEL, F_DISPATCH_UPCALL_PER_CPU, F_UNALIGNED, F_VPORT_PIDS, GET, MASKS_CACHE_SIZE,
    MEGAFLOW_STATS, NAME, NEW, PER_CPU_PIDS, SET, STATS, UPCALL_PID, USER_FEATURES,
};
use ovs_netlink::Errno;
use ovs_netlink::attribute::{Table, Writer};
use std::collections::BTreeMap;

/// `MC_DEFAULT_HASH_ENTRIES` of `flow_table.c`. The number is kept and told, as ovs-vswitchd may set it; our caches
/// have sizes of their own.
const MASKS_CACHE: u32 = 256;
/// As many as an attribute of the kernel's cache would fit into its per-processor memory.
const MAX_MASKS_CACHE: u32 = 4096;

type Attributes<'a> = Table<'a, 10>;

/// What a request changes in a datapath, checked.
struct Change {
    features: Option<u32>,
    masks_cache: Option<u32>,
    cpu_sockets: Option<Vec<u32>>,
}

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn dp(&mut self, request: &Request<'_>) -> Result<Outcome> {
        let table = Table::read(&ATTRIBUTES, request.attributes)?;
        match request.command {
            NEW => self.new_dp(request, &table),
            DEL => {
                let id = self.find_dp(request, &table)?;
                let told = self.tell_dp(request, id, DEL)?;
                self.remove_bridge(id);
                Ok(request.notify(told))
            }
            GET => {
                let id = self.find_dp(request, &table)?;
                let reply = Some(self.tell_dp(request, id, NEW)?);
                Ok(Outcome {
                    reply,
                    ..Outcome::default()
                })
            }
            SET => {
                let id = self.find_dp(request, &table)?;
                let change = self.change(&table)?;
                if let Some(bridge) = self.bridges.get_mut(&id) {
                    bridge.change(change);
                }
                Ok(request.notify(self.tell_dp(request, id, NEW)?))
            }
            _ => refused(Errno::EOPNOTSUPP),
        }
    }

    fn new_dp(&mut self, request: &Request<'_>, table: &Attributes<'_>) -> Result<Outcome> {
        let name = name(table.required(NAME, table.bytes(NAME))?)?.to_owned();
        let upcalls = table.required(UPCALL_PID, table.u32(UPCALL_PID))?;
        let change = self.change(table)?;
        if self.names.contains_key(&name) {
            return refused(Errno::EEXIST);
        }
        if self.bridges.len() >= MAX_DATAPATHS {
            return refused(Errno::ENOMEM);
        }
        let interface = self.placeholders.create(&name)?;
        let id = DatapathId(interface);
        let spec = PortSpec {
            number: LOCAL,
            name: name.clone(),
            kind: PortKind::Internal,
            options: Vec::new(),
        };
        let made = self.datapath.create(id).and_then(|()| {
            let added = self.datapath.add_port(id, &spec);
            added.inspect_err(|_| self.datapath.remove(id))
        });
        if let Err(errno) = made {
            self.placeholders.remove(&name);
            return refused(errno);
        }
        let local = Vport {
            spec,
            interface,
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
        bridge.change(change);
        self.bridges.insert(id, bridge);
        self.names.insert(name, (id, LOCAL));
        Ok(request.notify(self.tell_dp(request, id, NEW)?))
    }

    /// Checks what a request wants (`ovs_dp_change`).
    fn change(&self, table: &Attributes<'_>) -> Result<Change> {
        let per_cpu = if self.capabilities.upcalls_per_cpu {
            F_DISPATCH_UPCALL_PER_CPU
        } else {
            0
        };
        // Others, such as sharing recirculation with tc, are no part of this data plane. ovs-vswitchd also asks for one that no
        // kernel has, to see whether features are checked.
        let features = table.u32(USER_FEATURES);
        if features.is_some_and(|features| features & !(F_UNALIGNED | F_VPORT_PIDS | per_cpu) != 0) {
            return refused(Errno::EOPNOTSUPP);
        }
        let masks_cache = table.u32(MASKS_CACHE_SIZE);
        if masks_cache.is_some_and(|size| size > MAX_MASKS_CACHE || size != 0 && !size.is_power_of_two()) {
            return refused(Errno::EINVAL);
        }
        let cpu_sockets = table.bytes(PER_CPU_PIDS).map(socket_ids).transpose()?;
        Ok(Change {
            features,
            masks_cache,
            cpu_sockets,
        })
    }

    /// The datapath that a request names: by its name, else by its number (`lookup_datapath`).
    fn find_dp(&self, request: &Request<'_>, table: &Attributes<'_>) -> Result<DatapathId> {
        match table.bytes(NAME) {
            None => Ok(self.bridge(request.datapath)?.0),
            Some(value) => match self.names.get(name(value)?) {
                Some((id, LOCAL)) => Ok(*id),
                _ => refused(Errno::ENODEV),
            },
        }
    }

    fn tell_dp(&self, request: &Request<'_>, id: DatapathId, command: u8) -> Result<Vec<u8>> {
        let bridge = self.bridges.get(&id).ok_or(Errno::ENODEV)?;
        request.message(command, id, |writer| self.write_bridge(writer, id, bridge))
    }

    /// `ovs_dp_cmd_fill_info`.
    pub(super) fn write_bridge(&self, writer: &mut Writer, id: DatapathId, bridge: &Bridge) {
        let stats = self.datapath.stats(id);
        write_name(writer, NAME, &bridge.name);
        let lost = stats.lost + bridge.lost;
        writer.attribute(STATS, &words(&[stats.hit, stats.missed, lost, stats.flows]));
        writer.nested(MEGAFLOW_STATS, |writer| {
            writer.raw(&words(&[stats.mask_hit]));
            writer.raw(&[stats.masks, 0].map(u32::to_ne_bytes).concat());
            writer.raw(&words(&[stats.cache_hit, 0]));
        });
        writer.u32(USER_FEATURES, bridge.features);
        writer.u32(MASKS_CACHE_SIZE, bridge.masks_cache);
        if bridge.features & F_DISPATCH_UPCALL_PER_CPU != 0 && !bridge.cpu_sockets.is_empty() {
            let sockets: Vec<u8> = bridge
                .cpu_sockets
                .iter()
                .flat_map(|id| id.to_ne_bytes())
                .collect();
            writer.attribute(PER_CPU_PIDS, &sockets);
        }
    }

    fn remove_bridge(&mut self, id: DatapathId) {
        let Some(bridge) = self.bridges.remove(&id) else {
            return;
        };
        self.datapath.remove(id);
        for port in bridge.ports.into_values() {
            self.names.remove(&port.spec.name);
            if port.spec.kind == PortKind::Internal {
                self.placeholders.remove(&port.spec.name);
            }
        }
    }
}

impl Bridge {
    fn change(&mut self, change: Change) {
        self.features = change.features.unwrap_or(self.features);
        self.masks_cache = change.masks_cache.unwrap_or(self.masks_cache);
        if self.features & F_DISPATCH_UPCALL_PER_CPU != 0 {
            self.cpu_sockets = change
                .cpu_sockets
                .unwrap_or_else(|| std::mem::take(&mut self.cpu_sockets));
        }
    }
}
