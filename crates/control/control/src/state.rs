//! Desired state: the sum of configuration and requests, with every default filled in.
//!
//! [`desired`] is pure. An intent that contradicts itself is refused as a whole, so that nothing is half
//! applied.

use crate::Options;
use crate::intent::{Intent, P4Intent, merge};
use crate::l2::storm::StormLimits;
use crate::l2::{PortRules, Readiness, SwitchRules};
use crate::mac::initial_mac;
use crate::p4_map::check_links;
use crate::p4_stages::check_stages;
use crate::refusal::Refusal;
use control_protocol::driver::{BackEnd, InterfaceKind, InterfaceSpec, StackSettings};
use control_protocol::p4::P4_PORTS;
use flow::{PortRates, RateLimit, Share};
use management::{
    AccessConfig, AddressSource, AllowedPair, Config, Group, Guard, MaxRate, MissRate, Name, Origin,
    PortConfig, PortKind, PortMode, SocketMode, SwitchConfig, SwitchKind, UplinkBackEnd, UserId, VlanConfig,
};
use socket_path::SocketPath;
use std::collections::BTreeMap;
use std::path::Path;

/// Switches and ports as they should be, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Switches.
    pub switches: BTreeMap<String, DesiredSwitch>,
    /// Ports.
    pub ports: BTreeMap<String, DesiredPort>,
    /// Rule lists and sets, and which port has which lists.
    pub policies: policy::Policies,
    /// P4 switches.
    pub p4: BTreeMap<String, P4Intent>,
}

/// A switch as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredSwitch {
    /// Where it comes from.
    pub origin: Origin,
    /// As configured, without its ports.
    pub config: SwitchConfig,
}

/// A port as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredPort {
    /// Switch of the port.
    pub switch: String,
    /// Where it comes from.
    pub origin: Origin,
    /// As configured; `None` for the ports of host and uplink.
    pub config: Option<PortConfig>,
    /// What it is connected to. A change of this, or of the switch, makes it another port.
    pub link: Link,
    /// Who may connect to the socket that we make for it.
    pub access: PortAccess,
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// Packets per second that may need a decision.
    pub miss_rate: u32,
    /// Bandwidths.
    pub rates: PortRates,
    /// Whether packets to it leave by a queue of its device.
    pub fast_path: bool,
    /// MAC address offered to a vhost-user guest.
    pub mac: Option<[u8; 6]>,
    /// Rules of the learning switch; `readiness` is not part of the desired state.
    pub rules: PortRules,
}

/// Who may connect to a port's socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortAccess {
    /// Group of the socket; `None`: that of the process.
    pub group: Option<Group>,
    /// Permissions of the socket.
    pub mode: SocketMode,
}

/// What a port is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// A VMM connects to this socket.
    Listen(SocketPath),
    /// We connect to a VMM's socket, and the data plane gets the stream.
    Connect(SocketPath),
    /// A driver domain's interface.
    Interface(InterfaceSpec),
}

impl DesiredSwitch {
    /// Whether nothing but where it comes from differs.
    pub fn is_as(&self, other: &DesiredSwitch) -> bool {
        self.config == other.config
    }

    /// Rules of the learning switch.
    pub fn rules(&self) -> SwitchRules {
        SwitchRules {
            ageing_ms: u64::from(self.config.mac_ageing.get()) * 1000,
            table_size: usize::try_from(self.config.mac_table_size.get()).unwrap_or(usize::MAX),
            flood: self.config.flood,
            contested: self.config.contested_macs,
        }
    }
}

impl DesiredPort {
    /// Whether nothing but where it comes from differs.
    pub fn is_as(&self, other: &DesiredPort) -> bool {
        let origin = other.origin;
        DesiredPort {
            origin,
            ..self.clone()
        } == *other
    }

    /// The keys of the configuration for which `other` is not this port with changes, but another port. Empty
    /// if this one can change in place, without disconnecting a guest or making an interface again.
    pub fn fixed_keys(&self, other: &DesiredPort) -> Vec<&'static str> {
        let mut keys = match (&self.link, &other.link) {
            (Link::Listen(old), Link::Listen(new)) | (Link::Connect(old), Link::Connect(new)) => {
                vec![
                    ("socket", old.path != new.path),
                    ("owner", old.owner != new.owner),
                ]
            }
            (Link::Listen(old), Link::Connect(new)) | (Link::Connect(old), Link::Listen(new)) => {
                vec![("mode", true), ("socket", old.path != new.path)]
            }
            (Link::Interface(old), Link::Interface(new)) if old.is_same_device(new) => Vec::new(),
            (Link::Interface(old), Link::Interface(new)) => {
                let name = match old.kind {
                    InterfaceKind::Uplink { .. } => "uplink",
                    _ => "interface",
                };
                let is_other_kind = std::mem::discriminant(&old.kind) != std::mem::discriminant(&new.kind);
                vec![
                    ("type", is_other_kind),
                    (name, old.name != new.name),
                    ("netns", old.netns() != new.netns()),
                ]
            }
            _ => vec![("type", true)],
        };
        keys.push(("group", self.access.group != other.access.group));
        keys.push(("socket-mode", self.access.mode != other.access.mode));
        keys.push(("switch", self.switch != other.switch));
        keys.push(("mac", self.mac != other.mac));
        let changed = keys.into_iter().filter(|(_, changed)| *changed);
        changed.map(|(key, _)| key).collect()
    }
}

impl Link {
    /// What is lost with it, for users.
    pub fn loss(&self) -> String {
        match self {
            Link::Listen(_) | Link::Connect(_) => "its virtual machine is disconnected".into(),
            Link::Interface(spec) if matches!(spec.kind, InterfaceKind::Uplink { .. }) => {
                format!("{} is not used any more", spec.name)
            }
            Link::Interface(spec) => format!(
                "interface {} goes, with its routes and whatever else was set on it",
                spec.name
            ),
        }
    }
}

/// The desired state that an intent describes.
///
/// # Errors
/// A contradiction, for users.
pub fn desired(intent: &Intent, options: &Options) -> Result<State, Refusal> {
    let (merged, runtime) = merge(intent)?;
    merged.check()?;
    let mut state = State {
        policies: policy::compile(&with_learned(merged.clone(), intent))?,
        p4: intent.p4.clone(),
        ..State::default()
    };
    for switch in &merged.switches {
        let name = switch.name.to_string();
        let origin = origin_of(intent.switches.iter().any(|own| own.name == switch.name));
        if let Some(interface) = switch.host_interface() {
            let port_name = switch.host_port();
            let mac = initial_mac(options, &port_name);
            let policy = switch.host.as_ref().and_then(|host| host.policy.as_ref());
            let port = host_port(switch, interface.to_string(), mac, origin);
            state.add_own_port(port_name, port, policy, &merged);
        }
        if let (SwitchKind::External, Some(uplink)) = (switch.kind, &switch.uplink) {
            let policy = switch.uplink_policy.as_ref();
            let port = uplink_port(switch, uplink.to_string(), origin);
            state.add_own_port(switch.uplink_port(), port, policy, &merged);
        }
        for port in &switch.ports {
            let port_name = port.name.to_string();
            let origin = origin_of(runtime.contains(&port_name));
            let mut desired = desired_port(switch, port, origin, options);
            desired.access = port_access(port, &merged.access);
            state.ports.insert(port_name, desired);
        }
        let config = SwitchConfig {
            ports: Vec::new(),
            ..switch.clone()
        };
        state.switches.insert(name, DesiredSwitch { origin, config });
    }
    check_sockets(&state, &options.run_dir)?;
    check_p4(&state)?;
    Ok(state)
}

fn origin_of(is_by_command: bool) -> Origin {
    if is_by_command {
        Origin::Runtime
    } else {
        Origin::Config
    }
}

/// The configuration with addresses that ports got by DHCP or first use as allowed pairs.
fn with_learned(mut config: Config, intent: &Intent) -> Config {
    for port in config.switches.iter_mut().flat_map(|switch| &mut switch.ports) {
        let learned = intent.learned.get(port.name.as_str());
        let (Some(learned), Some(mac)) = (learned, port.mac) else {
            continue;
        };
        if port.address_source != AddressSource::Configuration && port.guards.contains(&Guard::Spoof) {
            let addresses = learned
                .iter()
                .filter_map(|it| it.address.to_string().parse().ok());
            port.allowed_pairs
                .extend(addresses.map(|address| AllowedPair { mac, address }));
        }
    }
    config
}

impl State {
    /// Adds the port of a switch's host or uplink, with the bandwidths and storm limits of its policy.
    fn add_own_port(&mut self, name: String, mut port: DesiredPort, policy: Option<&Name>, config: &Config) {
        let policy = policy.and_then(|policy| config.port_policies.iter().find(|own| own.name == *policy));
        if let Some(policy) = policy {
            let policy = policy.as_port();
            port.rates = rates(&policy);
            port.rules.storm = storm_limits(&policy);
        }
        self.ports.insert(name, port);
    }
}

/// Checks that P4 switches have ports of one switch each, each port once, and none with policies, which a
/// program would pass by.
fn check_p4(state: &State) -> Result<(), Refusal> {
    let mut taken = BTreeMap::new();
    for (name, own) in &state.p4 {
        for (place, port) in &own.ports {
            let error = |reason: String| Refusal::P4Port {
                name: name.clone(),
                port: port.clone(),
                reason,
            };
            if *place >= P4_PORTS {
                return Err(error(format!(
                    "{place} is no port of a program: 0 to {} are",
                    P4_PORTS - 1
                )));
            }
            if let Some(other) = taken.insert(port, name) {
                return Err(error(format!("it is bound to P4 switch {other} already")));
            }
            let lists = state.policies.ports.get(port).copied().unwrap_or_default();
            if lists.all().next().is_some() {
                return Err(error(
                    "it has policies or guards, which a program would pass by".into(),
                ));
            }
        }
    }
    check_stages(&state.p4, &state.ports, |switch| {
        state.switches.contains_key(switch)
    })?;
    check_links(&state.p4, |port| {
        state.ports.get(port).map(|found| found.switch.as_str())
    })
}

fn open_rules(vlan: VlanConfig, mac_limit: usize, mac: Option<[u8; 6]>) -> PortRules {
    PortRules {
        vlan,
        isolated: false,
        flood: true,
        mac_limit,
        storm: StormLimits::default(),
        vlan_priority: None,
        static_macs: Vec::new(),
        mac: mac.map(number),
        readiness: Readiness::Disconnected,
    }
}

fn host_port(
    switch: &SwitchConfig,
    interface: String,
    initial_mac: Option<[u8; 6]>,
    origin: Origin,
) -> DesiredPort {
    let host = switch.host.clone().unwrap_or_default();
    let mtu = host.mtu.unwrap_or(switch.mtu).get();
    let mac = host.mac.map(|mac| mac.bytes());
    let kind = InterfaceKind::Tap(StackSettings {
        netns: None,
        mac,
        initial_mac,
        addresses: host.addresses.iter().map(|address| address.parts()).collect(),
    });
    DesiredPort {
        switch: switch.name.to_string(),
        origin,
        config: None,
        link: Link::Interface(InterfaceSpec {
            kind,
            name: interface,
            mtu: Some(mtu),
        }),
        mtu,
        access: PortAccess::default(),
        miss_rate: MissRate::default().get(),
        rates: PortRates::default(),
        fast_path: false,
        mac: None,
        rules: open_rules(host.vlan, 1024, mac.or(initial_mac)),
    }
}

fn uplink_port(switch: &SwitchConfig, interface: String, origin: Origin) -> DesiredPort {
    DesiredPort {
        switch: switch.name.to_string(),
        origin,
        config: None,
        link: Link::Interface(InterfaceSpec {
            kind: InterfaceKind::Uplink {
                back_end: match switch.uplink_back_end {
                    UplinkBackEnd::Packet => BackEnd::Packet,
                    UplinkBackEnd::AfXdp => BackEnd::AfXdp,
                },
            },
            name: interface,
            mtu: None,
        }),
        mtu: switch.mtu.get(),
        access: PortAccess::default(),
        miss_rate: MissRate::default().get(),
        rates: PortRates::default(),
        fast_path: switch.uplink_fast_path,
        mac: None,
        rules: open_rules(
            VlanConfig::Trunk {
                vlans: management::Trunk::All,
                native: None,
            },
            usize::MAX,
            None,
        ),
    }
}

fn desired_port(switch: &SwitchConfig, port: &PortConfig, origin: Origin, options: &Options) -> DesiredPort {
    let run_dir = &options.run_dir;
    let mtu = port.mtu.unwrap_or(switch.mtu).get();
    let mac = port.mac.map(|mac| mac.bytes());
    let initial_mac = initial_mac(options, port.name.as_str()).filter(|_| port.kind.is_interface());
    let socket = || SocketPath {
        path: port.socket_path(run_dir),
        owner: port.owner.map(UserId::get),
    };
    let stack = || StackSettings {
        netns: port.netns.as_ref().map(|netns| netns.to_string()),
        mac,
        initial_mac,
        addresses: port.addresses.iter().map(|address| address.parts()).collect(),
    };
    let interface = |kind| InterfaceSpec {
        kind,
        name: port.interface_name().to_string(),
        mtu: Some(mtu),
    };
    let link = match (port.kind, port.mode.unwrap_or_default()) {
        (PortKind::VhostUser, PortMode::Server) => Link::Listen(socket()),
        (PortKind::VhostUser, PortMode::Client) => Link::Connect(socket()),
        (PortKind::Tap, _) => Link::Interface(interface(InterfaceKind::Tap(stack()))),
        (PortKind::Veth, _) => Link::Interface(interface(InterfaceKind::Veth(stack()))),
    };
    DesiredPort {
        switch: switch.name.to_string(),
        origin,
        config: Some(port.clone()),
        mac: mac.filter(|_| port.kind == PortKind::VhostUser),
        link,
        access: PortAccess::default(),
        mtu,
        miss_rate: port.miss_rate.get(),
        rates: rates(port),
        fast_path: false,
        rules: PortRules {
            vlan: port.vlan.clone(),
            isolated: port.isolated,
            flood: port.flood,
            mac_limit: usize::try_from(port.mac_limit.get()).unwrap_or(usize::MAX),
            storm: storm_limits(port),
            vlan_priority: port.vlan_priority.get(),
            static_macs: port.static_macs.iter().map(|mac| number(mac.bytes())).collect(),
            mac: mac.or(initial_mac).map(number),
            readiness: Readiness::Disconnected,
        },
    }
}

fn port_access(port: &PortConfig, usual: &AccessConfig) -> PortAccess {
    if port.kind.is_interface() || port.mode == Some(PortMode::Client) {
        return PortAccess::default();
    }
    PortAccess {
        group: port.group.as_ref().or(usual.group.as_ref()).cloned(),
        mode: port.socket_mode.unwrap_or(usual.socket_mode),
    }
}

fn storm_limits(port: &PortConfig) -> StormLimits {
    let kilobits = |rate: &MaxRate| {
        rate.get()
            .map_or(0, |bits| u32::try_from(bits / 1000).unwrap_or(u32::MAX))
    };
    StormLimits {
        packets: port.storm_control.values().map(|rate| rate.get()),
        kilobits: port.storm_control_bits.values().map(kilobits),
    }
}

fn rates(port: &PortConfig) -> PortRates {
    let limit = |rate: MaxRate| {
        rate.get().map(|bits_per_second| RateLimit {
            bits_per_second,
            burst: (port.max_burst.get()).unwrap_or(RateLimit::usual_burst(bits_per_second)),
        })
    };
    PortRates {
        from: limit(port.max_rate_from),
        to: limit(port.max_rate_to),
        share: Share {
            priority: port.priority.get(),
            weight: port.weight.get(),
            least_rate: (port.min_rate.get())
                .and_then(|rate| u32::try_from(rate / Share::UNIT).ok())
                .unwrap_or(0),
        },
    }
}

/// A MAC address as flow keys have it.
fn number(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn check_sockets(state: &State, run_dir: &Path) -> Result<(), Refusal> {
    let mut users: BTreeMap<&Path, &str> = BTreeMap::new();
    let control = management::control_socket(run_dir);
    users.insert(&control, "the control process");
    let view = management::view_socket(run_dir);
    users.insert(&view, "the control process");
    let supervisor = management::supervisor_socket(run_dir);
    users.insert(&supervisor, "the supervisor");
    for (name, port) in &state.ports {
        let (Link::Listen(SocketPath { path, .. }) | Link::Connect(SocketPath { path, .. })) = &port.link
        else {
            continue;
        };
        if path.as_os_str().len() > 107 {
            return Err(Refusal::LongSocketPath {
                port: name.clone(),
                path: path.clone(),
            });
        }
        if let Some(user) = users.insert(path, name) {
            return Err(Refusal::SocketTaken {
                port: name.clone(),
                path: path.clone(),
                user: user.into(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use management::{MaxBurst, Priority, Weight};
    use std::collections::BTreeSet;

    /// What the configuration allows, the data plane does not refuse.
    #[test]
    fn bandwidths_have_one_range() {
        assert_eq!(MaxRate::RANGE, RateLimit::RATES);
        assert_eq!(*MaxBurst::RANGE.start(), RateLimit::LEAST_BURST);
        let name = "web".parse().expect("a name");
        let mut port = PortConfig::new(name, PortKind::Tap);
        assert_eq!(rates(&port), PortRates::default());
        port.max_rate_to = "1G".parse().expect("a rate");
        let to = rates(&port).to.expect("a limit");
        assert_eq!((rates(&port).from, to.burst), (None, 1_250_000));
        port.max_burst = "64k".parse().expect("a burst");
        assert_eq!(rates(&port).to.map(|to| to.burst), Some(64_000));
        assert!(rates(&port).are_valid());
        assert_eq!(
            (*MaxRate::RANGE.start(), Weight::MAX),
            (Share::UNIT, Share::MOST_WEIGHT)
        );
        port.priority = Priority::new(Share::HIGHEST).expect("a priority");
        port.min_rate = "100G".parse().expect("a rate");
        assert!(rates(&port).are_valid());
        assert_eq!(rates(&port).share.least_rate, 1_000_000);
    }

    /// The ports of host and uplink have the bandwidths and storm limits of their policies.
    #[test]
    fn hosts_and_uplinks_have_bandwidths() {
        let config = r#"
            [[switch]]
            name = "lan"
            type = "external"
            uplink = "eth9"
            uplink-policy = "line"
            host = { policy = "mine" }
            [[port-policy]]
            name = "line"
            max-rate-to = "1G"
            storm-control = { broadcast = 500 }
            [[port-policy]]
            name = "mine"
            max-rate-from = "10M"
            priority = 3
            weight = 7
            storm-control-bits = { multicast = "5M" }
        "#;
        let intent = Intent {
            config: management::parse(config, "test").expect("a configuration"),
            ..Intent::default()
        };
        let options = Options {
            run_dir: "/run/x".into(),
            config: None,
            machine: None,
            cores: BTreeSet::new(),
            groups: crate::Groups::default(),
            p4: crate::P4Files::NONE,
        };
        let state = desired(&intent, &options).expect("no contradiction");
        let found = |rates: &PortRates| {
            let rate = |limit: Option<RateLimit>| limit.map(|limit| limit.bits_per_second);
            let Share { priority, weight, .. } = rates.share;
            (rate(rates.from), rate(rates.to), priority, weight)
        };
        let mut rates: Vec<_> = state.ports.values().map(|port| found(&port.rates)).collect();
        rates.sort_unstable();
        let line = (None, Some(1_000_000_000), 0, 1);
        assert_eq!(rates, [line, (Some(10_000_000), None, 3, 7)]);
        let storm = |name: &str| state.ports[name].rules.storm;
        assert_eq!(storm("lan:uplink").packets, [500, 10_000, 10_000]);
        assert_eq!(storm("lan:host").kilobits, [0, 5000, 0]);
    }
}
