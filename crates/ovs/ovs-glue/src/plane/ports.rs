//! Ports of the data plane, and how guests reach them.

use super::devices::Attachment;
use super::{Pending, Plane, now_ms};
use crate::datapath::{Errno, PortNo, PortSpec};
use crate::socket;
use crate::translate::{port_id, port_number};
use control_protocol::data_plane::{Connection, PortInfo, PortSpec as Wanted, PortState, Request};
use controller::Retry;
use flow::{DropReason, Filters, PortCounters, PortId};
use ovs_netlink::vport::{Kind, Stats};
use rustix::fd::OwnedFd;
use rustix::fs::Mode;
use rustix::net::SocketType;
use socket_path::SocketPath;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

/// Largest IP packet of a port of which nothing else is known.
const MTU: u16 = 1500;
const LEAST_MTU: u16 = 68;

/// What is at the other end of a port: a virtual machine, by vhost-user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plug {
    /// The VMM connects to `<name>.sock`.
    Server,
    /// The VMM connects to `<name>`, as to a port of Open vSwitch with DPDK.
    DpdkServer,
    /// The VMM listens at this path, which fits a socket's address.
    Client(SocketPath),
}

/// The destination of a port.
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

#[derive(Debug)]
pub(super) struct Port {
    /// The data plane's number.
    pub id: PortId,
    pub spec: PortSpec,
    mtu: u16,
    /// As the port's device is.
    up: bool,
    pub plug: Option<Plug>,
    pub state: PortState,
    /// Attempts to connect to a VMM that listens, or to attach a device.
    pub retry: Retry,
    pub end: End,
    pub attachment: Option<Attachment>,
    pub counters: PortCounters,
    /// Counters of the port in data planes that have gone.
    before: Stats,
}

impl Port {
    /// As the kernel counts, since the port was made: what was received, and what was to be transmitted. What
    /// exceeded a rate is dropped where it came from.
    pub fn stats(&self) -> Stats {
        let (before, counters) = (&self.before, &self.counters);
        Stats {
            rx_packets: before.rx_packets + counters.received,
            tx_packets: before.tx_packets + counters.transmitted,
            rx_bytes: before.rx_bytes + counters.received_bytes,
            tx_bytes: before.tx_bytes + counters.transmitted_bytes,
            rx_dropped: before.rx_dropped + counters.dropped.get(DropReason::Metered),
            tx_dropped: before.tx_dropped + counters.egress_dropped.total(),
            ..*before
        }
    }
}

/// All ports.
#[derive(Debug, Default)]
pub(super) struct PlanePorts {
    pub all: BTreeMap<PortNo, Port>,
    /// The requests to make a port that are not answered. What is told before is about an earlier port of
    /// this number.
    making: HashMap<PortNo, usize>,
    /// Ports that an earlier process left in the data plane.
    pub told: HashMap<PortId, PortInfo>,
    /// Whether the data plane has told them.
    pub are_known: bool,
}

impl PlanePorts {
    pub fn has(&self, port: PortNo) -> bool {
        self.all.contains_key(&port)
    }

    pub fn numbers(&self) -> Vec<PortNo> {
        self.all.keys().copied().collect()
    }

    /// Packets received by all, and those lost on their way to ovs-vswitchd, as far as was told.
    pub fn sums(&self) -> (u64, u64) {
        use DropReason::{ControlLost, MissQueueFull, MissRate};
        let mut sums = (0, 0);
        for port in self.all.values() {
            let counters = &port.counters;
            sums.0 += port.before.rx_packets + counters.received;
            sums.1 += counters.dropped.get(MissQueueFull) + counters.dropped.get(MissRate);
            sums.1 += counters.discarded.get(ControlLost);
        }
        sums
    }

    /// The data plane has gone. Returns the ports whose guests have gone with it.
    pub fn lose(&mut self) -> Vec<PortNo> {
        self.are_known = false;
        self.told.clear();
        self.making.clear();
        let mut left = Vec::new();
        for (number, port) in &mut self.all {
            port.before = port.stats();
            port.counters = PortCounters::default();
            port.retry = Retry::default();
            let was_running =
                std::mem::replace(&mut port.state, PortState::Disconnected) == PortState::Running;
            if was_running && port.end == End::Guest {
                left.push(*number);
            }
        }
        left
    }
}

impl Plane {
    /// When the next attempt to connect a port is due, by the monotonic clock in milliseconds.
    pub fn next_attempt(&self) -> Option<u64> {
        let is_held = |port: &Port| port.attachment.as_ref().is_some_and(|one| one.held.is_some());
        let ports = self.ports.all.values().filter(|port| !is_held(port));
        ports.filter_map(|port| port.retry.due_ms()).min()
    }

    /// Has the data plane make a port, unless it has it.
    pub(super) fn make_port(&mut self, spec: &PortSpec) -> Result<(), Errno> {
        let id = port_id(spec.number).ok_or(Errno::EFBIG)?;
        let plug = self.options.plugs.get(&spec.name).cloned();
        let plug = plug.filter(|_| spec.kind == Kind::Internal);
        let end = match spec.kind {
            Kind::Internal if plug.is_some() => End::Guest,
            Kind::Internal => End::Tap,
            Kind::Netdev => End::Device,
            _ => End::Nobody,
        };
        let has_device = matches!(end, End::Tap | End::Device);
        let attachment = has_device.then(|| Attachment {
            is_up: self.is_attached(id, &spec.name),
            problem: None,
            held: Some(self.devices.next_hold()),
        });
        let port = Port {
            id,
            spec: spec.clone(),
            mtu: MTU,
            up: true,
            plug,
            state: PortState::Disconnected,
            retry: if has_device {
                Retry::at_once(now_ms())
            } else {
                Retry::default()
            },
            end,
            attachment,
            counters: PortCounters::default(),
            before: Stats::default(),
        };
        self.ports.all.insert(spec.number, port);
        if end == End::Guest {
            self.carriers.push_back((spec.number, false));
        }
        self.send_port(spec.number).inspect_err(|_| {
            self.ports.all.remove(&spec.number);
        })
    }

    fn socket(&self, port: &Port) -> Option<PathBuf> {
        let name = &port.spec.name;
        let file = match port.plug.as_ref()? {
            Plug::Server => format!("{name}.sock"),
            Plug::DpdkServer => name.clone(),
            Plug::Client(_) => return None,
        };
        Some(self.options.directory.join(file))
    }

    fn listen(&self, number: PortNo) -> Result<OwnedFd, Errno> {
        let port = self.ports.all.get(&number);
        let path = port.and_then(|port| self.socket(port)).ok_or(Errno::ENODEV)?;
        socket::listen(&path, SocketType::STREAM, Mode::RUSR | Mode::WUSR).map_err(|error| {
            log::error!("{}: {error}", path.display());
            Errno(error.raw_os_error())
        })
    }

    /// Tells the data plane of a port, unless it is there as wanted.
    fn send_port(&mut self, number: PortNo) -> Result<(), Errno> {
        let Some(port) = self.ports.all.get(&number) else {
            return Ok(());
        };
        let id = port.id;
        let up = port.up || port.attachment.is_some();
        let wanted = Wanted {
            port: id,
            switch: super::SWITCH,
            name: port.spec.name.clone(),
            connection: match (port.end, &port.plug) {
                (End::Guest, Some(Plug::Server | Plug::DpdkServer)) => Connection::Listener,
                (End::Tap | End::Device, _) => Connection::Driver,
                (End::Guest | End::Nobody, _) => Connection::Attached,
            },
            mtu: port.mtu,
            miss_rate: self.options.miss_rate,
            mac: None,
            masked_features: 0,
            filters: self.policy_filters(number, &Filters::default()),
            mirrors: Vec::new(),
            p4: control_protocol::p4::P4Attachment::default(),
        };
        if let Some(told) = self.ports.told.remove(&id) {
            let is_same = told.spec.name == wanted.name && told.spec.connection == wanted.connection;
            // A guest that was there, where nobody shall be.
            let is_left = port.end == End::Nobody && told.state != PortState::Disconnected;
            if is_same && !is_left {
                let (mtu, miss_rate) = (wanted.mtu, wanted.miss_rate);
                self.client.tell(Request::PortSet {
                    port: id,
                    mtu,
                    miss_rate,
                });
                self.client.tell(Request::PortEnable { port: id, up });
                self.limit_anew(number);
                self.made(number);
                self.port_state(id, told.state);
                return Ok(());
            }
            self.client.tell(Request::PortDel { port: id });
        }
        let descriptors = match wanted.connection {
            Connection::Listener if self.client.is_connected() => {
                vec![self.listen(number)?]
            }
            _ => Vec::new(),
        };
        if self.client.is_connected() {
            *self.ports.making.entry(number).or_default() += 1;
            self.request(Request::PortAdd(wanted), descriptors, Pending::Port(number));
        }
        if !up {
            self.client.tell(Request::PortEnable { port: id, up });
        }
        self.limit(number);
        Ok(())
    }

    /// The data plane has made a port, or refused to.
    pub(super) fn port_added(&mut self, number: PortNo, is_made: bool) {
        if !is_made {
            self.counters.ports_refused += 1;
            log::error!("the data plane refuses port {}", number.0);
        }
        let left = self.ports.making.get(&number).copied().unwrap_or(0);
        if left > 1 {
            // The port was made anew since.
            self.ports.making.insert(number, left - 1);
        } else if is_made {
            self.ports.making.remove(&number);
            self.made(number);
        }
    }

    /// The data plane has a port as it shall be.
    fn made(&mut self, number: PortNo) {
        if let Some(port) = self.ports.all.get_mut(&number)
            && matches!(port.plug, Some(Plug::Client(_)))
        {
            port.retry = Retry::at_once(now_ms());
        }
    }

    /// The data plane says how a port is.
    pub(super) fn port_state(&mut self, id: PortId, state: PortState) {
        let Some(number) = port_number(id) else {
            return;
        };
        let Some(port) = self.ports.all.get_mut(&number) else {
            if let Some(told) = self.ports.told.get_mut(&id) {
                told.state = state;
            }
            return;
        };
        if self.ports.making.contains_key(&number) {
            return;
        }
        if port.attachment.is_some() || matches!(port.plug, Some(Plug::Client(_))) {
            port.retry.on_port_state(&state, now_ms());
        }
        let is_running = state == PortState::Running;
        let was_running = std::mem::replace(&mut port.state, state) == PortState::Running;
        if port.end == End::Guest && is_running != was_running {
            self.carriers.retain(|(of, _)| *of != number);
            self.carriers.push_back((number, is_running));
        }
    }

    pub(super) fn drop_port(&mut self, number: PortNo) {
        let Some(port) = self.ports.all.remove(&number) else {
            return;
        };
        self.limit(number);
        self.client.tell(Request::PortDel { port: port.id });
        if port.attachment.is_some() {
            self.driver.detach(port.id);
        }
        if let Some(path) = self.socket(&port) {
            socket::remove(&path);
        }
        self.carriers.retain(|(of, _)| *of != number);
        self.upcalls.remove(number);
        self.originals.remove(number);
    }

    pub(super) fn set_mtu(&mut self, number: PortNo, mtu: u32) {
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX).max(LEAST_MTU);
        let port = self.ports.all.get_mut(&number).filter(|port| port.mtu != mtu);
        if let Some(port) = port {
            port.mtu = mtu;
            self.client.tell(Request::PortSet {
                port: port.id,
                mtu,
                miss_rate: self.options.miss_rate,
            });
        }
    }

    /// Whether the port's device is up. A device through which packets go stops them by itself while it is
    /// down, and is not followed where it is moved to.
    pub(super) fn set_up(&mut self, number: PortNo, up: bool) {
        let port = self.ports.all.get_mut(&number).filter(|port| port.up != up);
        if let Some(port) = port {
            port.up = up;
            if port.attachment.is_none() {
                self.client.tell(Request::PortEnable { port: port.id, up });
            }
        }
    }

    /// Makes a port anew, with something else at its other end.
    fn remake_port(&mut self, spec: &PortSpec) -> Result<(), Errno> {
        let there = self.ports.all.get(&spec.number);
        let state = there.map(|port| (port.mtu, port.up));
        self.drop_port(spec.number);
        self.make_port(spec)?;
        if let Some((mtu, up)) = state {
            self.set_mtu(spec.number, mtu.into());
            self.set_up(spec.number, up);
        }
        Ok(())
    }

    /// From now on a port has that at its other end, whether it is there already or not.
    pub fn plug(&mut self, name: &str, plug: Plug) {
        let mut plugs = self.options.plugs.clone();
        plugs.insert(name.to_owned(), plug);
        self.plug_all(&plugs);
    }

    /// From now on these ports have that at their other ends, and no others.
    pub fn plug_all(&mut self, plugs: &BTreeMap<String, Plug>) {
        if self.options.plugs == *plugs {
            return;
        }
        let is_changed = |port: &&Port| {
            port.spec.kind == Kind::Internal && port.plug.as_ref() != plugs.get(&port.spec.name)
        };
        let changed = self.ports.all.values().filter(is_changed);
        let changed: Vec<_> = changed.map(|port| port.spec.clone()).collect();
        self.options.plugs = plugs.clone();
        for spec in changed {
            if let Err(errno) = self.remake_port(&spec) {
                log::error!("port '{}': {errno}", spec.name);
            }
        }
    }

    /// Takes in the ports that the data plane has.
    pub(super) fn take_ports(&mut self, infos: Vec<PortInfo>) {
        for info in infos {
            if port_number(info.spec.port).is_some() {
                self.policies.find(&info);
                self.ports.told.insert(info.spec.port, info);
            }
        }
        self.ports.are_known = true;
        self.client.compare(0);
        for number in self.ports.numbers() {
            if let Err(errno) = self.send_port(number) {
                log::error!("port {} is not in the new data plane: {errno}", number.0);
            }
        }
        // The data plane may be a new one, to which nothing is attached.
        let ports = self.ports.all.values_mut();
        for port in ports.filter(|port| port.attachment.is_some()) {
            port.retry = Retry::at_once(now_ms());
        }
        self.put_waiting();
    }

    /// Removes ports of an earlier process that ovs-vswitchd did not want again.
    pub fn remove_abandoned(&mut self) {
        self.detach_abandoned();
        for port in std::mem::take(&mut self.ports.told).into_keys() {
            self.client.tell(Request::PortDel { port });
        }
    }
}
