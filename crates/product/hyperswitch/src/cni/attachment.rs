//! An attachment as a port of the running switch: added, checked, removed.

use super::call::Call;
use super::ipam;
use super::network::{Network, VhostUser};
use super::result::{CniError, Code, Interface, added};
use management::{Client, ClientError, Name, PortConfig, PortInfo, Reply, Request};
use nic_packet::Route;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// What the names of all ports of attachments begin with.
const PREFIX: &str = "cni-";

/// Time between two looks at a port that is being connected.
const LOOK: Duration = Duration::from_millis(2);

/// The running instance.
pub struct Switch<'a> {
    run_dir: &'a Path,
    timeout: Duration,
}

impl<'a> Switch<'a> {
    /// The instance with this run directory. Each of its answers may take `timeout`, and so may a port until
    /// it is connected.
    pub fn new(run_dir: &'a Path, timeout: Duration) -> Switch<'a> {
        Switch { run_dir, timeout }
    }

    fn call(&self, request: &Request) -> Result<Reply, ClientError> {
        Client::connect(self.run_dir, self.timeout)?.call(request)
    }

    fn ports(&self) -> Result<Vec<PortInfo>, ClientError> {
        match self.call(&Request::PortList { switch: None })? {
            Reply::Ports(ports) => Ok(ports),
            other => Err(ClientError::Malformed(format!("{other:?}"))),
        }
    }

    fn port(&self, name: &Name) -> Result<Option<PortInfo>, ClientError> {
        let ports = self.ports()?;
        Ok(ports.into_iter().find(|port| port.name == name.as_str()))
    }

    /// Adds a port, and waits until it is connected if that is the switch's own work. When it is not in time,
    /// the port is removed.
    ///
    /// # Errors
    /// The switch refuses, or the port is not connected in time.
    pub fn add(&self, switch: &Name, config: PortConfig) -> Result<PortInfo, CniError> {
        let name = config.name.clone();
        let waits = config.kind.is_interface();
        self.call(&Request::PortAdd {
            switch: switch.to_string(),
            config: Box::new(config),
            exists_ok: false,
        })?;
        let added = self.connected(&name, waits);
        if added.is_err() {
            let _ = self.remove(&name);
        }
        added
    }

    fn connected(&self, name: &Name, waits: bool) -> Result<PortInfo, CniError> {
        let deadline = Instant::now() + self.timeout;
        loop {
            let Some(port) = self.port(name)? else {
                return Err(CniError::new(Code::Refused, format!("port {name} has gone")));
            };
            if !waits || port.state == "running" {
                return Ok(port);
            }
            if Instant::now() >= deadline {
                let why = port.problem.unwrap_or(port.state);
                return Err(CniError::new(
                    Code::TryAgain,
                    format!("port {name} is not connected: {why}"),
                ));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Removes a port; returns whether it had an interface. If there is none, or no instance that could have
    /// it, nothing is to be done.
    ///
    /// # Errors
    /// The instance does not answer, or refuses.
    pub fn remove(&self, name: &Name) -> Result<bool, CniError> {
        match self.port(name) {
            Err(ClientError::Unreachable { .. }) | Ok(None) => Ok(false),
            Err(error) => Err(error.into()),
            Ok(Some(port)) => {
                self.call(&Request::PortDel {
                    port: name.to_string(),
                })?;
                Ok(port.kind.is_interface())
            }
        }
    }

    /// Removes a container's port, and waits until its interface has gone too, so that another attachment may
    /// have the interface's name. While the driver domain is away, the interface stays until it is back.
    ///
    /// # Errors
    /// The instance does not answer, or refuses.
    pub fn detach(&self, name: &Name, netns: &Namespace, interface: &str) -> Result<(), CniError> {
        let deadline = Instant::now() + self.timeout;
        let had_interface = self.remove(name)?;
        let is_there = || nic_packet::routes(&netns.name, interface).is_ok();
        while had_interface && is_there() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        netns.close();
        Ok(())
    }
}

/// The beginning of the names of a network's ports.
fn of_network(network: &str) -> String {
    format!("{PREFIX}{}-", digest(&[network], 8))
}

/// Name of an attachment's port. No choice of names of networks and containers makes two attachments meet.
pub fn port_name(network: &str, container: &str, ifname: &str) -> Result<Name, CniError> {
    let text = of_network(network) + &digest(&[container, ifname], 12);
    text.parse()
        .map_err(|error| CniError::new(Code::Configuration, format!("{error}")))
}

/// The first bytes of a SHA-256 over texts, in hexadecimal digits.
fn digest(texts: &[&str], bytes: usize) -> String {
    // None of the texts has a zero byte: they come from the environment, or from JSON that passed for a name.
    let digest = ring::digest::digest(&ring::digest::SHA256, texts.join("\0").as_bytes());
    let digits = digest.as_ref().iter().take(bytes);
    digits.map(|byte| format!("{byte:02x}")).collect()
}

/// MAC address of an attachment for which nobody has chosen one: always the same one, since guards need to
/// know it.
pub fn mac_of(name: &Name) -> String {
    let digits = digest(&[name.as_str()], 5);
    let mut mac = String::from("02");
    for pair in digits.as_bytes().chunks(2) {
        mac.push(':');
        mac.extend(pair.iter().map(|&digit| char::from(digit)));
    }
    mac
}

/// Carries out ADD: assigns addresses, adds the port, and sets routes. An error undoes it.
pub fn add(switch: Switch<'_>, network: &Network, call: &Call, text: &[u8]) -> Result<Value, CniError> {
    network.switch()?;
    let assigned = ipam::delegate(network, call, "ADD", text)?;
    let done = add_assigned(&switch, network, call, &assigned);
    if done.is_err() {
        let _ = ipam::delegate(network, call, "DEL", text);
    }
    done
}

fn add_assigned(
    switch: &Switch<'_>,
    network: &Network,
    call: &Call,
    assigned: &Value,
) -> Result<Value, CniError> {
    let name = port_name(&network.name, &call.container, &call.ifname)?;
    let routes = ipam::routes(assigned)?;
    let config = port_config(network, call, &name, assigned)?;
    let netns = Namespace::of(&call.netns, &name);
    let port = netns
        .open()
        .and_then(|()| switch.add(network.switch()?, config))
        .inspect_err(|_| netns.close())?;
    if port.kind.is_interface() {
        set_routes(&netns.name, &call.ifname, &routes).inspect_err(|_| {
            let _ = switch.remove(&name);
            netns.close();
        })?;
    }
    let interface = Interface {
        name: call.ifname.clone(),
        mac: port.mac,
        mtu: port.mtu,
        sandbox: call.netns.clone(),
        socket: port.socket.map(|socket| socket.display().to_string()),
    };
    Ok(added(
        &network.cni_version,
        &interface,
        assigned,
        network.dns.as_ref(),
    ))
}

/// Adds routes through a container's interface.
pub fn set_routes(netns: &str, ifname: &str, routes: &[Route]) -> Result<(), CniError> {
    if routes.is_empty() {
        return Ok(());
    }
    Ok(nic_packet::add_routes(netns, ifname, routes)?)
}

/// The port that an attachment is.
fn port_config(
    network: &Network,
    call: &Call,
    name: &Name,
    assigned: &Value,
) -> Result<PortConfig, CniError> {
    let mut port: Map<String, Value> = network.port.clone();
    port.insert("name".into(), json!(name));
    if let Some(vlan) = network.vlan {
        port.insert("vlan".into(), json!({ "access": vlan }));
    }
    if let Some(mtu) = network.mtu {
        port.insert("mtu".into(), json!(mtu));
    }
    if network.isolated {
        port.insert("isolated".into(), json!(true));
    }
    port.entry("mac").or_insert_with(|| json!(mac_of(name)));
    if let Some(mac) = call.mac {
        port.insert("mac".into(), json!(mac));
    }
    port.insert("addresses".into(), json!(ipam::addresses(assigned)?));
    match &network.vhost_user {
        None => {
            port.insert("type".into(), json!(network.interface.unwrap_or_default()));
            port.insert("interface".into(), json!(call.ifname));
            port.insert("netns".into(), json!(Namespace::of(&call.netns, name).name));
        }
        Some(vhost_user) => add_socket(&mut port, vhost_user, call)?,
    }
    serde_json::from_value(Value::Object(port))
        .map_err(|error| CniError::new(Code::Configuration, format!("port: {error}")))
}

fn add_socket(port: &mut Map<String, Value>, vhost_user: &VhostUser, call: &Call) -> Result<(), CniError> {
    port.insert("type".into(), json!("vhost-user"));
    if let Some(mode) = vhost_user.mode {
        port.insert("mode".into(), json!(mode));
    }
    let Some(directory) = &vhost_user.directory else {
        return Ok(());
    };
    let mut directory = directory.replace("{container}", &call.container);
    if directory.contains("{pod-uid}") {
        let missing = || CniError::new(Code::Environment, "CNI_ARGS has no K8S_POD_UID");
        directory = directory.replace("{pod-uid}", call.pod_uid.as_ref().ok_or_else(missing)?);
    }
    let socket = format!("{directory}/{}.sock", call.ifname);
    port.insert("socket".into(), json!(socket));
    Ok(())
}

/// Carries out DEL. What is not there is no error.
pub fn delete(switch: Switch<'_>, network: &Network, call: &Call, text: &[u8]) -> Result<(), CniError> {
    let name = port_name(&network.name, &call.container, &call.ifname)?;
    // Addresses come back even where the switch does not answer.
    let released = ipam::delegate(network, call, "DEL", text);
    switch.detach(&name, &Namespace::of(&call.netns, &name), &call.ifname)?;
    released.map(drop)
}

/// Carries out CHECK: whether everything is as ADD left it.
pub fn check(switch: Switch<'_>, network: &Network, call: &Call, text: &[u8]) -> Result<(), CniError> {
    let missing = || CniError::new(Code::Configuration, "CHECK needs prevResult");
    let before = network.prev_result.as_ref().ok_or_else(missing)?;
    let name = port_name(&network.name, &call.container, &call.ifname)?;
    let changed = |text: String| Err(CniError::new(Code::Changed, text));
    let Some(port) = switch.port(&name)? else {
        return changed(format!("the switch has no port {name}"));
    };
    if port.kind.is_interface() {
        if port.state != "running" {
            let why = port.problem.unwrap_or(port.state);
            return changed(format!("port {name}: {why}"));
        }
        let netns = Namespace::of(&call.netns, &name);
        let routes = nic_packet::routes(&netns.name, &call.ifname)?;
        let lost = ipam::routes(before)?
            .into_iter()
            .find(|route| !routes.contains(&route.destination));
        if let Some(route) = lost {
            let (network, length) = route.destination;
            return changed(format!("the route to {network}/{length} is missing"));
        }
    }
    let mac = before["interfaces"][0]["mac"].as_str();
    if mac.is_some() && mac != port.mac.as_deref() {
        return changed(format!("port {name} has the MAC address {:?}", port.mac));
    }
    let addresses = port.config.map(|config| config.addresses).unwrap_or_default();
    let wanted = ipam::addresses(before)?;
    if let Some(address) = wanted.iter().find(|address| !addresses.contains(address)) {
        return changed(format!("port {name} has lost the address {address}"));
    }
    ipam::delegate(network, call, "CHECK", text).map(drop)
}

/// Carries out STATUS: whether containers can be attached.
pub fn status(switch: Switch<'_>, network: &Network, call: &Call, text: &[u8]) -> Result<(), CniError> {
    let not_available = |text: String| CniError::new(Code::NotAvailable, text);
    let reply = switch
        .call(&Request::SwitchList)
        .map_err(|error| not_available(error.to_string()))?;
    let Reply::Switches(switches) = reply else {
        return Err(not_available("the switch's answer makes no sense".into()));
    };
    let name = network.switch()?;
    if !switches.iter().any(|switch| switch.config.name == *name) {
        return Err(not_available(format!("there is no switch {name}")));
    }
    ipam::delegate(network, call, "STATUS", text).map(drop)
}

/// Carries out GC: removes the network's ports of attachments that are not valid any more.
pub fn collect(switch: Switch<'_>, network: &Network, call: &Call, text: &[u8]) -> Result<(), CniError> {
    let missing = || CniError::new(Code::Configuration, "GC needs cni.dev/valid-attachments");
    let valid = network.valid_attachments.as_ref().ok_or_else(missing)?;
    let valid = valid
        .iter()
        .map(|valid| port_name(&network.name, &valid.container, &valid.ifname))
        .collect::<Result<Vec<_>, _>>()?;
    let of_network = of_network(&network.name);
    let ports = match switch.ports() {
        Err(ClientError::Unreachable { .. }) => Vec::new(),
        result => result?,
    };
    for port in ports {
        let name: Option<Name> = port.name.parse().ok();
        let stale = name.filter(|name| name.as_str().starts_with(&of_network) && !valid.contains(name));
        if let Some(name) = stale {
            switch.remove(&name)?;
            Namespace::of("/proc/", &name).close();
        }
    }
    ipam::delegate(network, call, "GC", text).map(drop)
}

/// A container's network namespace, by a name that the driver domain may open.
///
/// The driver domain may not look at other processes, so a namespace that is known by its process gets a name
/// below `/run/netns`, which is that of the port.
pub struct Namespace {
    /// A name under `/run/netns`, or a path.
    pub name: String,
    /// The process whose namespace has to be named.
    process: Option<String>,
}

impl Namespace {
    /// The namespace at a path.
    pub fn of(path: &str, port: &Name) -> Namespace {
        match path.strip_prefix("/proc/") {
            None => Namespace {
                name: path.into(),
                process: None,
            },
            // Of /proc/7/task/8/ns/net, thread 8.
            Some(rest) => Namespace {
                name: port.to_string(),
                process: Some(
                    rest.trim_end_matches("/ns/net")
                        .rsplit('/')
                        .next()
                        .unwrap_or_default()
                        .into(),
                ),
            },
        }
    }

    /// Gives it its name, if it needs one.
    ///
    /// # Errors
    /// `ip` cannot, and what it says.
    pub fn open(&self) -> Result<(), CniError> {
        let Some(process) = &self.process else {
            return Ok(());
        };
        let said = std::process::Command::new("ip")
            .args(["netns", "attach", &self.name, process])
            .output()
            .map_err(|error| CniError::new(Code::Io, format!("cannot execute ip: {error}")))?;
        if said.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&said.stderr);
        Err(CniError::new(
            Code::Io,
            format!("ip netns attach: {}", text.trim()),
        ))
    }

    /// Takes the name away, if it was given one. A name that is not there is no error.
    pub fn close(&self) {
        if self.process.is_some() && Path::new("/run/netns").join(&self.name).exists() {
            let _ = std::process::Command::new("ip")
                .args(["netns", "delete", &self.name])
                .output();
        }
    }
}
