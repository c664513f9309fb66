//! Ports of the data plane, and how guests reach them.

use super::devices::Attachment;
use super::{Pending, Plane};
use crate::datapath::{Errno, PortNo, PortSpec};
use crate::socket;
use crate::translate::Ports as Numbers;
use control_protocol::data_plane::{Connection, PortInfo, PortSpec as Wanted, PortState as Life, Request};
use flow::{PortCounters, PortId};
use ovs_netlink::vport::{Kind, Stats};
use rustix::fd::OwnedFd;
use rustix::fs::Mode;
use rustix::net::SocketType;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

/// Largest IP packet of a port of which nothing else is known.
const MTU: u16 = 1500;
const LEAST_MTU: u16 = 68;

/// What is at the other end of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plug {
    /// A virtual machine, whose VMM connects to `<name>.sock`.
    Server,
}

/// What a port leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A virtual machine.
    Guest,
    /// The TAP that was made for it.
    Tap,
    /// A network device of that name.
    Device,
    /// Nothing.
    Nobody,
}

/// The sockets of virtual machines.
#[derive(Clone, Debug)]
pub struct Sockets {
    /// Where they are; nobody else may write there.
    pub directory: PathBuf,
    /// Their mode.
    pub mode: u32,
    /// Ports that have one. Others have nobody at their other end.
    pub plugged: BTreeSet<String>,
}

impl Sockets {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.sock"))
    }

    fn listen(&self, name: &str) -> Result<OwnedFd, Errno> {
        let path = self.path(name);
        socket::listen(&path, SocketType::STREAM, Mode::from_raw_mode(self.mode)).map_err(|error| {
            log::error!("{}: {error}", path.display());
            Errno(error.raw_os_error())
        })
    }
}

#[derive(Debug)]
struct Port {
    spec: PortSpec,
    mtu: u16,
    end: End,
    is_running: bool,
    attachment: Option<Attachment>,
    counters: PortCounters,
    /// What it had counted in data planes that have gone.
    before: Stats,
}

/// All ports.
#[derive(Debug, Default)]
pub(super) struct PlanePorts {
    ports: BTreeMap<PortNo, Port>,
    /// Those that an earlier process left in the data plane.
    pub told: HashMap<PortId, PortInfo>,
    /// The data plane has told them.
    pub are_known: bool,
}

impl PlanePorts {
    pub fn has(&self, port: PortNo) -> bool {
        self.ports.contains_key(&port)
    }

    pub fn numbers(&self) -> Vec<PortNo> {
        self.ports.keys().copied().collect()
    }

    /// Packets received by all, and those lost on their way to ovs-vswitchd, as far as was told.
    pub fn sums(&self) -> (u64, u64) {
        use flow::DropReason::{ControlLost, MissQueueFull, MissRate};
        let mut sums = (0, 0);
        for port in self.ports.values() {
            let counters = &port.counters;
            sums.0 += port.before.rx_packets + counters.received;
            sums.1 += counters.dropped.get(MissQueueFull) + counters.dropped.get(MissRate);
            sums.1 += counters.discarded.get(ControlLost);
        }
        sums
    }

    pub fn stats(&self, port: PortNo) -> Stats {
        self.ports
            .get(&port)
            .map_or_else(Stats::default, |port| add(&port.before, &port.counters))
    }

    /// The number of a port of that name that an earlier process left.
    pub fn number_told(&self, name: &str, numbers: Numbers) -> Option<PortNo> {
        let found = self.told.values().find(|told| told.spec.name == name);
        found.and_then(|told| numbers.number(told.spec.port))
    }

    /// What a port counts now.
    pub fn count(&mut self, port: PortNo, counters: PortCounters) {
        if let Some(port) = self.ports.get_mut(&port) {
            port.counters = counters;
        }
    }

    /// A port's guest came or went; whether that is news.
    pub fn note(&mut self, number: PortNo, state: &Life) -> Option<bool> {
        let port = self.ports.get_mut(&number)?;
        let is_running = *state == Life::Running;
        let changed = is_running != port.is_running;
        port.is_running = is_running;
        if let Some(attachment) = &mut port.attachment {
            attachment.port_state(state);
        }
        (changed && port.end == End::Guest).then_some(is_running)
    }

    pub fn name(&self, number: PortNo) -> Option<&str> {
        self.ports.get(&number).map(|port| port.spec.name.as_str())
    }

    pub fn end(&self, number: PortNo) -> Option<End> {
        self.ports.get(&number).map(|port| port.end)
    }

    pub fn is_running(&self, number: PortNo) -> bool {
        self.ports.get(&number).is_some_and(|port| port.is_running)
    }

    pub fn attachment(&mut self, number: PortNo) -> Option<&mut Attachment> {
        self.ports.get_mut(&number)?.attachment.as_mut()
    }

    pub fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.ports.values().filter_map(|port| port.attachment.as_ref())
    }

    pub fn attachments_mut(&mut self) -> impl Iterator<Item = &mut Attachment> {
        self.ports
            .values_mut()
            .filter_map(|port| port.attachment.as_mut())
    }

    /// The data plane has gone. Returns the ports whose guests have gone with it.
    pub fn lose(&mut self) -> Vec<PortNo> {
        self.are_known = false;
        self.told.clear();
        let mut left = Vec::new();
        for (number, port) in &mut self.ports {
            port.before = add(&port.before, &port.counters);
            port.counters = PortCounters::default();
            if std::mem::take(&mut port.is_running) && port.end == End::Guest {
                left.push(*number);
            }
        }
        left
    }
}

/// As the kernel counts: what was received, and what was to be transmitted.
fn add(before: &Stats, counters: &PortCounters) -> Stats {
    Stats {
        rx_packets: before.rx_packets + counters.received,
        tx_packets: before.tx_packets + counters.transmitted,
        rx_bytes: before.rx_bytes + counters.received_bytes,
        tx_bytes: before.tx_bytes + counters.transmitted_bytes,
        tx_dropped: before.tx_dropped + counters.egress_dropped.total(),
        ..*before
    }
}

impl Plane {
    /// Has the data plane make a port, unless it has it.
    pub(super) fn make_port(&mut self, spec: &PortSpec) -> Result<(), Errno> {
        let id = self.options.ports.id(spec.number).ok_or(Errno::EFBIG)?;
        let end = match spec.kind {
            Kind::Internal if self.options.sockets.plugged.contains(&spec.name) => End::Guest,
            Kind::Internal => End::Tap,
            Kind::Netdev => End::Device,
            _ => End::Nobody,
        };
        let is_attached = self.is_attached(id, &spec.name);
        let port = Port {
            spec: spec.clone(),
            mtu: MTU,
            end,
            is_running: false,
            attachment: matches!(end, End::Tap | End::Device).then(|| Attachment::new(is_attached)),
            counters: PortCounters::default(),
            before: Stats::default(),
        };
        self.ports.ports.insert(spec.number, port);
        if end == End::Guest {
            self.carriers.push_back((spec.number, false));
        }
        self.send_port(spec.number).inspect_err(|_| {
            self.ports.ports.remove(&spec.number);
        })
    }

    /// Tells the data plane of a port, unless it is there as wanted.
    fn send_port(&mut self, number: PortNo) -> Result<(), Errno> {
        let (Some(port), Some(id)) = (self.ports.ports.get(&number), self.options.ports.id(number)) else {
            return Ok(());
        };
        let wanted = Wanted {
            port: id,
            switch: self.options.switch,
            name: port.spec.name.clone(),
            connection: match port.end {
                End::Guest => Connection::Listener,
                End::Tap | End::Device => Connection::Driver,
                End::Nobody => Connection::Attached,
            },
            mtu: port.mtu,
            miss_rate: self.options.miss_rate,
            mac: None,
            masked_features: 0,
        };
        if let Some(told) = self.ports.told.remove(&id) {
            let state = told.state;
            let told = told.spec;
            if told.name == wanted.name && told.connection == wanted.connection {
                let (mtu, miss_rate) = (wanted.mtu, wanted.miss_rate);
                self.tell(Request::PortSet {
                    port: id,
                    mtu,
                    miss_rate,
                });
                if let Some(carrier) = self.ports.note(number, &state) {
                    self.carriers.push_back((number, carrier));
                }
                return Ok(());
            }
            self.tell(Request::PortDel { port: id });
        }
        let descriptors = match wanted.connection {
            Connection::Listener if self.link.is_connected() => {
                vec![self.options.sockets.listen(&wanted.name)?]
            }
            _ => Vec::new(),
        };
        let serial = self.link.push(Request::PortAdd(wanted), descriptors);
        self.pending.insert(serial, Pending::Port(number));
        Ok(())
    }

    pub(super) fn drop_port(&mut self, number: PortNo) {
        let Some(port) = self.ports.ports.remove(&number) else {
            return;
        };
        if let Some(id) = self.options.ports.id(number) {
            self.tell(Request::PortDel { port: id });
            if port.attachment.is_some() {
                self.detach(id);
            }
        }
        if port.end == End::Guest {
            socket::remove(&self.options.sockets.path(&port.spec.name));
        }
        self.carriers.retain(|(of, _)| *of != number);
    }

    pub(super) fn set_mtu(&mut self, number: PortNo, mtu: u32) {
        let (Some(port), Some(id)) = (self.ports.ports.get_mut(&number), self.options.ports.id(number))
        else {
            return;
        };
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX).max(LEAST_MTU);
        if port.mtu != mtu {
            port.mtu = mtu;
            let miss_rate = self.options.miss_rate;
            self.tell(Request::PortSet {
                port: id,
                mtu,
                miss_rate,
            });
        }
    }

    /// From now on a port has that at its other end, whether it is there already or not.
    pub fn plug(&mut self, name: &str, Plug::Server: Plug) -> Result<(), Errno> {
        if !self.options.sockets.plugged.insert(name.to_owned()) {
            return Ok(());
        }
        let found = self.ports.ports.values().find(|port| port.spec.name == name);
        let Some(spec) = found.map(|port| port.spec.clone()) else {
            return Ok(());
        };
        self.drop_port(spec.number);
        self.make_port(&spec)
    }

    /// From now on these ports have that at their other ends, and no others.
    pub fn plug_all(&mut self, plugs: &BTreeMap<String, Plug>) {
        if self.options.sockets.plugged.iter().eq(plugs.keys()) {
            return;
        }
        let is_plugged = |port: &&Port| (port.end == End::Guest) != plugs.contains_key(&port.spec.name);
        let changed = self.ports.ports.values().filter(is_plugged);
        let changed: Vec<_> = changed.map(|port| port.spec.clone()).collect();
        self.options.sockets.plugged = plugs.keys().cloned().collect();
        for spec in changed {
            self.drop_port(spec.number);
            if let Err(errno) = self.make_port(&spec) {
                log::error!("port '{}': {errno}", spec.name);
            }
        }
    }

    /// Takes in some of the ports that the data plane has.
    pub(super) fn take_ports(&mut self, infos: Vec<PortInfo>, more: bool) {
        for info in infos {
            if self.options.ports.number(info.spec.port).is_some() {
                self.ports.told.insert(info.spec.port, info);
            }
        }
        if more {
            return;
        }
        self.ports.are_known = true;
        for number in self.ports.numbers() {
            if let Err(errno) = self.send_port(number) {
                log::error!("port {} is not in the new data plane: {errno}", number.0);
            }
        }
        // The data plane may be a new one, to which nothing is attached.
        for attachment in self.ports.attachments_mut() {
            attachment.try_now();
        }
    }

    /// Removes ports of an earlier process that ovs-vswitchd did not want again.
    pub fn remove_abandoned(&mut self) {
        self.detach_abandoned();
        for port in std::mem::take(&mut self.ports.told).into_keys() {
            self.tell(Request::PortDel { port });
        }
    }
}
