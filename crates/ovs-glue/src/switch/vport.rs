//! The family `ovs_vport` (`net/openvswitch/datapath.c`, `vport.c`).

use super::{Bridge, Outcome, Request, Result, Switch, Vport, name, refused, socket_ids, words, write_name};
use crate::datapath::{Datapath, DatapathId, LOCAL, PortKind, PortNo, PortSpec};
use crate::placeholder::Placeholders;
use crate::uapi::dp::F_VPORT_PIDS;
use crate::uapi::vport::{
    ATTRIBUTES, DEL, GET, IFINDEX, NAME, NEW, OPTIONS, PORT_NO, SET, STATS, TYPE, UPCALL_PID,
};
use ovs_netlink::Errno;
use ovs_netlink::attribute::{Table, Writer};

/// `DP_MAX_PORTS` of `datapath.h`.
const MAX_PORT_NO: u32 = 65_536;
/// Bytes of a tunnel's options: a port and an extension.
const MAX_OPTIONS: usize = 64;
/// `OVS_VPORT_TYPE_NETDEV` and `_INTERNAL`.
const NETDEV: u32 = 1;
const INTERNAL: u32 = 2;

type Attributes<'a> = Table<'a, 10>;

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn vport(&mut self, request: &Request<'_>) -> Result<Outcome> {
        let table = Table::read(&ATTRIBUTES, request.attributes)?;
        if request.command == NEW {
            return self.new_vport(request, &table);
        }
        let (id, number) = self.find_vport(request, &table)?;
        match request.command {
            GET => Ok(Outcome {
                reply: Some(self.tell_vport(request, id, number, NEW)?),
                ..Outcome::default()
            }),
            SET => {
                self.set_vport(id, number, &table)?;
                Ok(request.notify(self.tell_vport(request, id, number, NEW)?))
            }
            DEL if number == LOCAL => refused(Errno::EINVAL),
            DEL => {
                let told = self.tell_vport(request, id, number, DEL)?;
                self.remove_vport(id, number);
                Ok(request.notify(told))
            }
            _ => refused(Errno::EOPNOTSUPP),
        }
    }

    fn new_vport(&mut self, request: &Request<'_>, table: &Attributes<'_>) -> Result<Outcome> {
        let name = name(table.required(NAME, table.bytes(NAME))?)?.to_owned();
        let kind = table.required(TYPE, table.u32(TYPE))?;
        let sockets = socket_ids(table.required(UPCALL_PID, table.bytes(UPCALL_PID))?)?;
        if table.has(IFINDEX) {
            return refused(Errno::EOPNOTSUPP);
        }
        let wanted = table.u32(PORT_NO).filter(|number| *number != 0);
        let (id, bridge) = self.bridge(request.datapath)?;
        let number = free_number(bridge, wanted, self.capabilities.ports)?;
        let kind = match kind {
            NETDEV => PortKind::Netdev,
            INTERNAL => PortKind::Internal,
            tunnel if u16::try_from(tunnel).is_ok_and(|tunnel| self.capabilities.tunnels.has(tunnel)) => {
                PortKind::Tunnel(tunnel)
            }
            _ => return refused(Errno::EAFNOSUPPORT),
        };
        let options = table.bytes(OPTIONS).unwrap_or_default();
        if options.len() > MAX_OPTIONS {
            return refused(Errno::EINVAL);
        }
        let spec = PortSpec {
            number,
            name,
            kind,
            options: options.to_owned(),
        };
        self.add_vport(id, spec, sockets)?;
        Ok(request.notify(self.tell_vport(request, id, number, NEW)?))
    }

    fn add_vport(&mut self, id: DatapathId, spec: PortSpec, sockets: Vec<u32>) -> Result<()> {
        let taken = self.names.contains_key(&spec.name);
        let interface = match spec.kind {
            // A device that is a port already is busy; one that was made for a port is no other port's.
            PortKind::Netdev if taken => return refused(Errno::EBUSY),
            PortKind::Netdev => self.placeholders.index(&spec.name).ok_or(Errno::ENODEV)?,
            _ if taken => return refused(Errno::EEXIST),
            PortKind::Internal => self.placeholders.create(&spec.name)?,
            PortKind::Tunnel(_) => 0,
        };
        if let Err(errno) = self.datapath.add_port(id, &spec) {
            if spec.kind == PortKind::Internal {
                self.placeholders.remove(&spec.name);
            }
            return refused(errno);
        }
        self.names.insert(spec.name.clone(), (id, spec.number));
        if let Some(bridge) = self.bridges.get_mut(&id) {
            let number = spec.number;
            let vport = Vport {
                spec,
                interface,
                sockets,
            };
            bridge.ports.insert(number, vport);
        }
        Ok(())
    }

    fn set_vport(&mut self, id: DatapathId, number: PortNo, table: &Attributes<'_>) -> Result<()> {
        let bridge = self.bridges.get_mut(&id).ok_or(Errno::ENODEV)?;
        let port = bridge.ports.get_mut(&number).ok_or(Errno::ENODEV)?;
        if table
            .u32(TYPE)
            .is_some_and(|kind| kind != kind_number(port.spec.kind))
        {
            return refused(Errno::EINVAL);
        }
        if table.has(OPTIONS) {
            // No kind of port can change them while it is there.
            return refused(Errno::EOPNOTSUPP);
        }
        if let Some(sockets) = table.bytes(UPCALL_PID) {
            port.sockets = socket_ids(sockets)?;
        }
        Ok(())
    }

    fn remove_vport(&mut self, id: DatapathId, number: PortNo) {
        let removed = self
            .bridges
            .get_mut(&id)
            .and_then(|bridge| bridge.ports.remove(&number));
        let Some(port) = removed else { return };
        self.datapath.remove_port(id, number);
        self.names.remove(&port.spec.name);
        if port.spec.kind == PortKind::Internal {
            self.placeholders.remove(&port.spec.name);
        }
    }

    /// The port that a request names: by its name, else by its number (`lookup_vport`).
    fn find_vport(&self, request: &Request<'_>, table: &Attributes<'_>) -> Result<(DatapathId, PortNo)> {
        if table.has(IFINDEX) {
            return refused(Errno::EOPNOTSUPP);
        }
        if let Some(value) = table.bytes(NAME) {
            let (id, number) = *self.names.get(name(value)?).ok_or(Errno::ENODEV)?;
            let elsewhere = request.datapath != 0 && request.datapath != id.0;
            return if elsewhere {
                refused(Errno::ENODEV)
            } else {
                Ok((id, number))
            };
        }
        let number = table.required(PORT_NO, table.u32(PORT_NO))?;
        if number >= MAX_PORT_NO {
            return refused(Errno::EFBIG);
        }
        let (id, bridge) = self.bridge(request.datapath)?;
        if !bridge.ports.contains_key(&PortNo(number)) {
            return refused(Errno::ENODEV);
        }
        Ok((id, PortNo(number)))
    }

    fn tell_vport(
        &self,
        request: &Request<'_>,
        id: DatapathId,
        number: PortNo,
        command: u8,
    ) -> Result<Vec<u8>> {
        let bridge = self.bridges.get(&id).ok_or(Errno::ENODEV)?;
        let port = bridge.ports.get(&number).ok_or(Errno::ENODEV)?;
        request.message(command, id, |writer| self.write_vport(writer, id, port))
    }

    /// `ovs_vport_cmd_fill_info`. Without `NETNSID`: the device is in the namespace that it was made in.
    pub(super) fn write_vport(&self, writer: &mut Writer, id: DatapathId, port: &Vport) {
        let stats = self.datapath.port_stats(id, port.spec.number);
        writer.u32(PORT_NO, port.spec.number.0);
        writer.u32(TYPE, kind_number(port.spec.kind));
        write_name(writer, NAME, &port.spec.name);
        if port.interface != 0 {
            writer.u32(IFINDEX, port.interface);
        }
        writer.attribute(
            STATS,
            &words(&[
                stats.rx_packets,
                stats.tx_packets,
                stats.rx_bytes,
                stats.tx_bytes,
                stats.rx_errors,
                stats.tx_errors,
                stats.rx_dropped,
                stats.tx_dropped,
            ]),
        );
        // ovs-vswitchd takes a port for wrong that lacks it, whatever the mode.
        let several = self
            .bridges
            .get(&id)
            .is_some_and(|bridge| bridge.features & F_VPORT_PIDS != 0);
        let count = if several { port.sockets.len() } else { 1 };
        let sockets = port.sockets.iter().take(count).flat_map(|id| id.to_ne_bytes());
        writer.attribute(UPCALL_PID, &sockets.collect::<Vec<_>>());
        if !port.spec.options.is_empty() {
            writer.attribute(OPTIONS, &port.spec.options);
        }
    }
}

fn kind_number(kind: PortKind) -> u32 {
    match kind {
        PortKind::Netdev => NETDEV,
        PortKind::Internal => INTERNAL,
        PortKind::Tunnel(kind) => kind,
    }
}

/// A number for a new port (`ovs_vport_cmd_new`).
fn free_number(bridge: &Bridge, wanted: Option<u32>, limit: usize) -> Result<PortNo> {
    if wanted.is_some_and(|wanted| wanted >= MAX_PORT_NO) {
        return refused(Errno::EFBIG);
    }
    if wanted.is_some_and(|wanted| bridge.ports.contains_key(&PortNo(wanted))) {
        return refused(Errno::EBUSY);
    }
    if bridge.ports.len() >= limit {
        return refused(Errno::EFBIG);
    }
    let free = || (1..MAX_PORT_NO).find(|number| !bridge.ports.contains_key(&PortNo(*number)));
    Ok(PortNo(wanted.or_else(free).ok_or(Errno::EFBIG)?))
}
