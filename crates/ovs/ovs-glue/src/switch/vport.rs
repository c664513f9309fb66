//! The family `ovs_vport` (`net/openvswitch/datapath.c`, `vport.c`).

use super::{Bridge, Result, Step, Switch, Then, To, Vport, refused, text};
use crate::datapath::{Datapath, DatapathId, LOCAL, PortNo, PortSpec, Question};
use crate::placeholder::Placeholders;
use ovs_netlink::Errno;
use ovs_netlink::datapath::features::VPORT_PIDS;
use ovs_netlink::key::NO_PORT;
use ovs_netlink::message::Header;
use ovs_netlink::name::Name;
use ovs_netlink::vport::{Command, Kind, Options, Request, Vport as Description, Which};

/// A port to be, as it was asked for.
struct Wanted {
    name: Name,
    kind: Kind,
    number: Option<u32>,
    sockets: Vec<u32>,
    options: Option<Options>,
}

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn vport(&mut self, header: Header, request: Request) -> Result<Step> {
        match request {
            Request::New {
                datapath,
                name,
                kind,
                port,
                upcall_pids,
                options,
                ifindex,
            } => {
                if ifindex.is_some() {
                    return refused(Errno::EOPNOTSUPP);
                }
                let wanted = Wanted {
                    name,
                    kind,
                    number: port.filter(|number| *number != 0),
                    sockets: upcall_pids,
                    options,
                };
                let (id, number) = self.new_vport(datapath, wanted)?;
                let then = Then::Port(id, number, Command::New, To::All);
                Ok(Step::Ask(id, Question::Connected(number), then))
            }
            Request::Get(which) => {
                let (id, number) = self.find_vport(&which)?;
                Ok(counted(id, number, Command::New, To::Asker))
            }
            Request::Set {
                which,
                kind,
                upcall_pids,
                options,
            } => {
                let (id, number) = self.find_vport(&which)?;
                if options.is_some() {
                    // No kind of port can change them while it is there.
                    return refused(Errno::EOPNOTSUPP);
                }
                self.set_vport(id, number, kind, upcall_pids)?;
                Ok(counted(id, number, Command::New, To::All))
            }
            Request::Delete(which) => {
                let (id, number) = self.find_vport(&which)?;
                if number == LOCAL {
                    return refused(Errno::EINVAL);
                }
                Ok(counted(id, number, Command::Delete, To::All))
            }
            Request::Dump { datapath } => Ok(super::Dump::ports(header, self.bridge(datapath)?.0).into()),
        }
    }

    fn new_vport(&mut self, datapath: u32, wanted: Wanted) -> Result<(DatapathId, PortNo)> {
        let (id, bridge) = self.bridge(datapath)?;
        let name = text(&wanted.name)?.to_owned();
        let known = self.datapath.number_of(&name);
        let known = known.filter(|number| *number != LOCAL && !bridge.ports.contains_key(number));
        let preferred = wanted.number.or(known.map(|number| number.0));
        let number = free_number(bridge, preferred, self.capabilities.ports)?;
        if let Err(errno) = self.capabilities.check_port(wanted.kind) {
            telemetry::limited!(
                log::Level::Warn,
                "port '{name}' is refused: it is a tunnel ({:?}), and tunnels are not supported",
                wanted.kind
            );
            return refused(errno);
        }
        let spec = PortSpec {
            number,
            name,
            kind: wanted.kind,
            options: wanted.options,
        };
        let interface = self.interface(&wanted.name, &spec)?;
        if let Err(errno) = self.datapath.add_port(id, &spec) {
            if spec.kind == Kind::Internal {
                self.placeholders.remove(&spec.name);
            }
            return refused(errno);
        }
        self.names.insert(wanted.name.clone(), (id, number));
        if let Some(bridge) = self.bridges.get_mut(&id) {
            let vport = Vport {
                spec,
                name: wanted.name,
                interface,
                namespace: None,
                sockets: wanted.sockets,
            };
            bridge.ports.insert(number, vport);
        }
        Ok((id, number))
    }

    /// The network device of a new port, which is made if it is an internal one.
    fn interface(&mut self, name: &Name, spec: &PortSpec) -> Result<Option<u32>> {
        let taken = self.names.contains_key(name);
        match spec.kind {
            // A device that is a port already is busy.
            Kind::Netdev if taken => refused(Errno::EBUSY),
            _ if taken => refused(Errno::EEXIST),
            Kind::Netdev => Ok(Some(self.placeholders.index(&spec.name).ok_or(Errno::ENODEV)?)),
            Kind::Internal => Ok(Some(self.placeholders.create(&spec.name)?)),
            Kind::Gre | Kind::Vxlan | Kind::Geneve => Ok(None),
        }
    }

    fn set_vport(
        &mut self,
        id: DatapathId,
        number: PortNo,
        kind: Option<Kind>,
        sockets: Option<Vec<u32>>,
    ) -> Result<()> {
        let bridge = self.bridges.get_mut(&id).ok_or(Errno::ENODEV)?;
        let port = bridge.ports.get_mut(&number).ok_or(Errno::ENODEV)?;
        if kind.is_some_and(|kind| kind != port.spec.kind) {
            return refused(Errno::EINVAL);
        }
        if let Some(sockets) = sockets {
            port.sockets = sockets;
        }
        Ok(())
    }

    /// Removes a port.
    pub(super) fn remove_vport(&mut self, id: DatapathId, number: PortNo) {
        let removed = self
            .bridges
            .get_mut(&id)
            .and_then(|bridge| bridge.ports.remove(&number));
        let Some(port) = removed else { return };
        self.datapath.remove_port(id, number);
        self.names.remove(&port.name);
        match port.spec.kind {
            Kind::Internal => self.placeholders.remove(&port.spec.name),
            Kind::Netdev => self.placeholders.forget(&port.spec.name),
            Kind::Gre | Kind::Vxlan | Kind::Geneve => {}
        }
    }

    /// The port that a request names: by its name, else by its number (`lookup_vport`).
    fn find_vport(&self, which: &Which) -> Result<(DatapathId, PortNo)> {
        if let Some(name) = &which.name {
            let (id, number) = *self.names.get(name).ok_or(Errno::ENODEV)?;
            let elsewhere = which.datapath != 0 && which.datapath != id.0;
            return if elsewhere {
                refused(Errno::ENODEV)
            } else {
                Ok((id, number))
            };
        }
        let number = PortNo(which.port.ok_or(Errno::EINVAL)?);
        let (id, bridge) = self.bridge(which.datapath)?;
        if bridge.ports.contains_key(&number) {
            Ok((id, number))
        } else {
            refused(Errno::ENODEV)
        }
    }

    /// `ovs_vport_cmd_fill_info`.
    pub(super) fn tell_vport(&self, id: DatapathId, number: PortNo, command: Command) -> Result<Description> {
        let bridge = self.bridges.get(&id).ok_or(Errno::ENODEV)?;
        let port = bridge.ports.get(&number).ok_or(Errno::ENODEV)?;
        let sockets = if bridge.features & VPORT_PIDS != 0 {
            port.sockets.len()
        } else {
            1
        };
        Ok(Description {
            command,
            datapath: id.0,
            port: number.0,
            kind: port.spec.kind,
            name: port.name.clone(),
            options: port.spec.options,
            upcall_pids: port.sockets.iter().take(sockets).copied().collect(),
            stats: Some(self.datapath.port_stats(id, number)),
            ifindex: port.interface,
            netns_id: port.namespace,
        })
    }
}

/// Describes a port with its counters.
fn counted(id: DatapathId, number: PortNo, command: Command, to: To) -> Step {
    Step::Ask(
        id,
        Question::PortStats(number),
        Then::Port(id, number, command, to),
    )
}

/// A number for a new port (`ovs_vport_cmd_new`).
fn free_number(bridge: &Bridge, wanted: Option<u32>, limit: usize) -> Result<PortNo> {
    if wanted.is_some_and(|wanted| bridge.ports.contains_key(&PortNo(wanted))) {
        return refused(Errno::EBUSY);
    }
    if bridge.ports.len() >= limit {
        return refused(Errno::EFBIG);
    }
    let free = || (1..NO_PORT).find(|number| !bridge.ports.contains_key(&PortNo(*number)));
    Ok(PortNo(wanted.or_else(free).ok_or(Errno::EFBIG)?))
}
