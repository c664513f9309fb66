//! Checks that span several values of a configuration: names that clash, keys that contradict a type.
//!
//! Errors carry the path to the offending value, which makes sense for a file and for a request alike.

use crate::p4runtime::{P4DeviceConfig, P4RuntimeConfig};
use crate::private_vlan;
use crate::schema::{
    Config, HostConfig, PortConfig, PortKind, PortMode, SwitchConfig, SwitchKind, UplinkBackEnd,
};
use crate::value::{IpPrefix, MacAddr, MaxRate, Mtu, Weight};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

/// Largest MTU that the kernel takes for a TAP (`drivers/net/tun.c`).
const TAP_MTU: u16 = 65_521;
/// Least MTU with which the kernel has IPv6 on an interface (RFC 8200, section 5).
const IPV6_MTU: u16 = 1280;

/// Most devices of P4Runtime.
const MAX_DEVICES: usize = 64;

/// A step from the top of a configuration to a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathSegment {
    /// A key of a table.
    Key(&'static str),
    /// An index into an array.
    Index(usize),
}

/// Values that are each allowed, but not together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CheckError {
    /// Which part is wrong.
    pub path: Vec<PathSegment>,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl CheckError {
    /// An error in a key of the P4 program with this index.
    pub fn in_program(index: usize, key: &'static str, message: String) -> CheckError {
        CheckError {
            path: vec![
                PathSegment::Key("p4"),
                PathSegment::Index(index),
                PathSegment::Key(key),
            ],
            message,
        }
    }
}

impl Config {
    /// Makes the checks that span several values.
    ///
    /// # Errors
    /// The first contradiction, with its place.
    pub fn check(&self) -> Result<(), CheckError> {
        let mut seen = Seen::default();
        for (index, switch) in self.switches.iter().enumerate() {
            let place = [PathSegment::Key("switch"), PathSegment::Index(index)];
            check_switch(switch, &place, &mut seen)?;
            for (index, port) in switch.ports.iter().enumerate() {
                let place = [&place[..], &[PathSegment::Key("port"), PathSegment::Index(index)]].concat();
                check_port(port, switch, &place, &mut seen)?;
            }
            private_vlan::check(switch, &place)?;
        }
        for (index, policy) in self.port_policies.iter().enumerate() {
            let place = [PathSegment::Key("port-policy"), PathSegment::Index(index)];
            check_bandwidth(&policy.as_port(), &place)?;
        }
        check_p4(self)?;
        check_p4runtime(&self.p4runtime)
    }
}

/// Checks that names of programs are unique, and each port and each number is given once.
fn check_p4(config: &Config) -> Result<(), CheckError> {
    let (mut names, mut bound) = (BTreeSet::new(), BTreeMap::new());
    for (index, program) in config.p4.iter().enumerate() {
        let error = |key, message| CheckError::in_program(index, key, message);
        let name = program.name.as_str();
        if !names.insert(name) {
            let message = format!("there is already a P4 program {name}; names are unique");
            return Err(error("name", message));
        }
        if let Some(stage) = &program.stage {
            stage.check().map_err(|message| error("stage", message))?;
            if !program.ports.is_empty() {
                let message = format!("{name} is a stage, which forwards for no port");
                return Err(error("ports", message));
            }
        }
        let mut numbers = BTreeSet::new();
        for place in &program.ports {
            if !numbers.insert(place.number) {
                let message = format!("two ports of {name} have number {}", place.number);
                return Err(error("ports", message));
            }
            if let Some(other) = bound.insert(&place.port, name) {
                let message = format!("port {} is bound to P4 program {other} already", place.port);
                return Err(error("ports", message));
            }
        }
    }
    Ok(())
}

/// Checks that clients from outside are asked for certificates, and devices and their ports are given once.
fn check_p4runtime(config: &P4RuntimeConfig) -> Result<(), CheckError> {
    let table = PathSegment::Key("p4runtime");
    let wrong = |key, message: &str| CheckError {
        path: vec![table, PathSegment::Key(key)],
        message: message.into(),
    };
    if config.certificate.is_some() != config.key.is_some() {
        return Err(wrong("certificate", "`certificate` and `key` belong together"));
    }
    if config.client_authorities.is_some() && config.certificate.is_none() {
        let message = "`client-authorities` needs `certificate` and `key`, with which clients are asked";
        return Err(wrong("client-authorities", message));
    }
    let is_open = config.listen.is_some_and(|listen| !listen.ip().is_loopback());
    if is_open && config.client_authorities.is_none() {
        let message = "beyond the host itself clients need certificates: `client-authorities`";
        return Err(wrong("listen", message));
    }
    if config.devices.len() > MAX_DEVICES {
        return Err(wrong("device", "there are 64 devices at most"));
    }
    let (mut ids, mut names) = (BTreeSet::new(), BTreeSet::new());
    for (index, device) in config.devices.iter().enumerate() {
        let within = |key, message: &str| {
            let place = [PathSegment::Key("device"), PathSegment::Index(index)];
            CheckError {
                path: vec![table, place[0], place[1], PathSegment::Key(key)],
                message: message.into(),
            }
        };
        if !ids.insert(device.id) {
            return Err(within("id", "devices have numbers of their own"));
        }
        if !names.insert(device.name.as_str()) {
            return Err(within("name", "two devices are the same P4 switch"));
        }
        check_ports(device).map_err(|(key, message)| within(key, message))?;
    }
    Ok(())
}

/// Checks that ports and numbers of a device are given once; what is wrong, with its key.
fn check_ports(device: &P4DeviceConfig) -> Result<(), (&'static str, &'static str)> {
    let ports: BTreeSet<_> = device.ports.iter().map(|place| &place.port).collect();
    let numbers: BTreeSet<_> = device.ports.iter().map(|place| place.number).collect();
    if ports.len().min(numbers.len()) < device.ports.len() {
        return Err(("ports", "a port has two numbers, or a number two ports"));
    }
    match device.cpu_port {
        Some(511..) => Err(("cpu-port", "ports of a P4 switch are 0 to 510")),
        Some(port) if numbers.contains(&port) => Err(("cpu-port", "one of `ports` has that number")),
        _ => Ok(()),
    }
}

/// Values that must be unique, with the user of each.
#[derive(Default)]
struct Seen {
    switches: HashMap<String, String>,
    ports: HashMap<String, String>,
    interfaces: HashMap<(Option<String>, String), String>,
    sockets: HashMap<PathBuf, String>,
    uplinks: HashMap<String, String>,
    static_macs: HashMap<(String, MacAddr), String>,
}

/// The present user of a name, a socket or an address.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Taken(String);

fn unique<K: std::hash::Hash + Eq>(map: &mut HashMap<K, String>, key: K, user: String) -> Result<(), Taken> {
    match map.insert(key, user) {
        None => Ok(()),
        Some(earlier) => Err(Taken(earlier)),
    }
}

fn error(place: &[PathSegment], key: &'static str, message: String) -> CheckError {
    CheckError {
        path: [place, &[PathSegment::Key(key)]].concat(),
        message,
    }
}

fn check_switch(switch: &SwitchConfig, place: &[PathSegment], seen: &mut Seen) -> Result<(), CheckError> {
    let name = &switch.name;
    unique(&mut seen.switches, name.to_string(), name.to_string()).map_err(|_| {
        error(
            place,
            "name",
            format!("there is already a switch {name}; names are unique"),
        )
    })?;
    check_uplink(switch, place, seen)?;
    check_host(switch, place, seen)
}

fn check_uplink(switch: &SwitchConfig, place: &[PathSegment], seen: &mut Seen) -> Result<(), CheckError> {
    let name = &switch.name;
    if switch.uplink.is_none() && switch.uplink_policy.is_some() {
        let message = format!("`uplink-policy` is for switches with an `uplink`; {name} has none");
        return Err(error(place, "uplink-policy", message));
    }
    if switch.uplink.is_none() && switch.uplink_back_end != UplinkBackEnd::default() {
        let message = format!("`uplink-back-end` is for switches with an `uplink`; {name} has none");
        return Err(error(place, "uplink-back-end", message));
    }
    if switch.uplink.is_none() && switch.uplink_fast_path {
        let message = format!("`uplink-fast-path` is for switches with an `uplink`; {name} has none");
        return Err(error(place, "uplink-fast-path", message));
    }
    match (switch.kind, &switch.uplink) {
        (SwitchKind::External, None) => {
            let message = format!("external switch {name} needs `uplink`, the name of a network device");
            return Err(error(place, "type", message));
        }
        (SwitchKind::External, Some(uplink)) if uplink.as_str() == "lo" => {
            let message =
                "lo leads nowhere but to the host itself; name the network device that leads outside".into();
            return Err(error(place, "uplink", message));
        }
        (SwitchKind::External, Some(uplink)) => {
            unique(&mut seen.uplinks, uplink.to_string(), name.to_string()).map_err(|earlier| {
                error(
                    place,
                    "uplink",
                    format!("{uplink} is already the uplink of switch {earlier}"),
                )
            })?;
            unique(
                &mut seen.interfaces,
                (None, uplink.to_string()),
                format!("the uplink of {name}"),
            )
            .map_err(|user| error(place, "uplink", format!("interface {uplink} is already {user}")))?;
        }
        (kind, Some(_)) => {
            let message = format!("`uplink` is for external switches; {name} is {kind}");
            return Err(error(place, "uplink", message));
        }
        (_, None) => {}
    }
    Ok(())
}

/// Checks the switch's interface at the host.
fn check_host(switch: &SwitchConfig, place: &[PathSegment], seen: &mut Seen) -> Result<(), CheckError> {
    let name = &switch.name;
    if switch.kind == SwitchKind::Private && switch.host.is_some() {
        let message = format!("`host` is for internal and external switches; {name} is private");
        return Err(error(place, "host", message));
    }
    if let Some(interface) = switch.host_interface() {
        let HostConfig { mtu, addresses, .. } = switch.host.clone().unwrap_or_default();
        check_mtu(mtu, switch, &addresses).map_err(|(_, message)| {
            let key = if switch.host.is_some() { "host" } else { "mtu" };
            error(place, key, format!("host interface {interface}: {message}"))
        })?;
        let key = if switch.host.is_some() { "host" } else { "name" };
        unique(
            &mut seen.interfaces,
            (None, interface.to_string()),
            format!("the host interface of {name}"),
        )
        .map_err(|user| {
            error(
                place,
                key,
                format!("interface {interface} is already {user}; set `host.interface`"),
            )
        })?;
    }
    Ok(())
}

fn check_port(
    port: &PortConfig,
    switch: &SwitchConfig,
    place: &[PathSegment],
    seen: &mut Seen,
) -> Result<(), CheckError> {
    let name = &port.name;
    // Sockets in the run directory that are not ports'.
    let others = if port.kind == PortKind::VhostUser && port.socket.is_none() {
        &["control", "view", "supervisor", "ovs"][..]
    } else {
        &["control"]
    };
    if others.contains(&name.as_str()) {
        let message = format!("`{name}` is reserved: {name}.sock in the run directory is not a port's");
        return Err(error(place, "name", message));
    }
    unique(&mut seen.ports, name.to_string(), switch.name.to_string()).map_err(|earlier| {
        let message = format!("there is already a port {name} on switch {earlier}; names are unique");
        error(place, "name", message)
    })?;
    for mac in &port.static_macs {
        unique(
            &mut seen.static_macs,
            (switch.name.to_string(), *mac),
            name.to_string(),
        )
        .map_err(|earlier| {
            error(
                place,
                "static-macs",
                format!("{mac} is already a static address of port {earlier}"),
            )
        })?;
    }
    check_bandwidth(port, place)?;
    match port.kind {
        PortKind::VhostUser => check_vhost_user(port, place, seen),
        PortKind::Tap | PortKind::Veth => check_tap(port, switch, place, seen),
    }
}

fn check_bandwidth(port: &PortConfig, place: &[PathSegment]) -> Result<(), CheckError> {
    let name = &port.name;
    let rates = [port.max_rate_from, port.max_rate_to];
    if port.max_burst.get().is_some() && rates == [MaxRate::NONE; 2] {
        let message = format!("`max-burst` needs `max-rate-from` or `max-rate-to`; {name} has neither");
        return Err(error(place, "max-burst", message));
    }
    if port.min_rate != MaxRate::NONE && port.weight != Weight::default() {
        let message = format!("{name} has `weight` and `min-rate`; one of them says what it gets");
        return Err(error(place, "weight", message));
    }
    Ok(())
}

fn check_vhost_user(port: &PortConfig, place: &[PathSegment], seen: &mut Seen) -> Result<(), CheckError> {
    for (key, given) in [
        ("interface", port.interface.is_some()),
        ("netns", port.netns.is_some()),
    ] {
        if given {
            let message = format!(
                "`{key}` is for ports of type tap or veth; {} is vhost-user",
                port.name
            );
            return Err(error(place, key, message));
        }
    }
    for (key, given) in [
        ("group", port.group.is_some()),
        ("socket-mode", port.socket_mode.is_some()),
    ] {
        if given && port.mode == Some(PortMode::Client) {
            let message = format!(
                "`{key}` is for sockets that the switch makes; that of {} (mode client) is its VMM's",
                port.name
            );
            return Err(error(place, key, message));
        }
    }
    if let Some(socket) = &port.socket {
        let length = socket.as_os_str().len();
        if !socket.is_absolute() || length > 107 {
            let message = format!(
                "{} is not an absolute path of at most 107 bytes",
                socket.display()
            );
            return Err(error(place, "socket", message));
        }
    }
    // Default paths differ because names do; one that collides with a given path is found when it is bound.
    if let Some(socket) = &port.socket {
        unique(&mut seen.sockets, socket.clone(), port.name.to_string()).map_err(|earlier| {
            error(
                place,
                "socket",
                format!("{} is already the socket of port {earlier}", socket.display()),
            )
        })?;
    }
    Ok(())
}

/// Whether the kernel can give a TAP this MTU, or else the switch's, with these addresses; or the key that is
/// wrong, and why.
fn check_mtu(
    own: Option<Mtu>,
    switch: &SwitchConfig,
    addresses: &[IpPrefix],
) -> Result<(), (&'static str, String)> {
    let mtu = own.unwrap_or(switch.mtu).get();
    if mtu > TAP_MTU {
        return Err((
            "mtu",
            format!("an MTU of {mtu} is too large for a TAP; at most {TAP_MTU} is allowed"),
        ));
    }
    let ipv6 = addresses.iter().find(|address| address.parts().0.is_ipv6());
    match ipv6.filter(|_| mtu < IPV6_MTU) {
        Some(address) => {
            let message =
                format!("{address} needs an MTU of at least {IPV6_MTU}, as all IPv6 does; it is {mtu}");
            Err(("addresses", message))
        }
        None => Ok(()),
    }
}

fn check_tap(
    port: &PortConfig,
    switch: &SwitchConfig,
    place: &[PathSegment],
    seen: &mut Seen,
) -> Result<(), CheckError> {
    for (key, given) in [
        ("socket", port.socket.is_some()),
        ("mode", port.mode.is_some()),
        ("owner", port.owner.is_some()),
        ("group", port.group.is_some()),
        ("socket-mode", port.socket_mode.is_some()),
    ] {
        if given {
            let message = format!(
                "`{key}` is for ports of type vhost-user; {} is a {}",
                port.name, port.kind
            );
            return Err(error(place, key, message));
        }
    }
    check_mtu(port.mtu, switch, &port.addresses).map_err(|(key, message)| {
        let key = if port.mtu.is_none() && key == "mtu" {
            "name"
        } else {
            key
        };
        error(place, key, format!("port {}: {message}", port.name))
    })?;
    let interface = port.interface_name();
    let key = if port.interface.is_some() {
        "interface"
    } else {
        "name"
    };
    let netns = port.netns.as_ref().map(|netns| netns.to_string());
    unique(
        &mut seen.interfaces,
        (netns, interface.to_string()),
        format!("that of port {}", port.name),
    )
    .map_err(|user| {
        error(
            place,
            key,
            format!("interface {interface} is already {user}; set `interface` to another name"),
        )
    })
}
