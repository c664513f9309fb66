//! `hyperswitch port ...`: requests, and one port in full.

use super::{PortVerb, Reply, Request};
use crate::cli::{PortArgs, PortSetArgs, VlanArgs};
use crate::output::{counted, or_dash};
use management::{
    AclChange, AddressSource, ArrivalsInfo, DeviceQueueInfo, KernelPathInfo, Name, PortChanges, PortConfig,
    PortInfo, PrivateRole, StormBits, VlanConfig,
};
use std::fmt::Write;

/// The request of a verb.
pub fn request(verb: &PortVerb) -> Request {
    match verb {
        PortVerb::Add(args) => Request::PortAdd {
            switch: args.switch.clone(),
            config: Box::new(config(args)),
            exists_ok: args.exists_ok,
        },
        PortVerb::Del { name } => Request::PortDel { port: name.clone() },
        PortVerb::Set(args) => Request::PortSet {
            port: args.name.clone(),
            changes: changes(args),
        },
        PortVerb::Show { name } => Request::PortShow { port: name.clone() },
        PortVerb::List { switch } => Request::PortList {
            switch: switch.clone(),
        },
    }
}

fn vlan(args: &VlanArgs) -> Option<VlanConfig> {
    if let Some(primary) = args.primary {
        let isolated = args.isolated_vlan.map(PrivateRole::Isolated);
        let role = isolated
            .or(args.community.map(PrivateRole::Community))
            .unwrap_or_else(|| PrivateRole::Promiscuous(args.promiscuous.iter().copied().collect()));
        return Some(VlanConfig::Private { primary, role });
    }
    match (&args.access, &args.trunk) {
        (Some(access), _) => Some(VlanConfig::Access(*access)),
        (None, Some(vlans)) => Some(VlanConfig::Trunk {
            vlans: vlans.clone(),
            native: args.native,
        }),
        (None, None) => None,
    }
}

fn config(args: &PortArgs) -> PortConfig {
    let mut port = PortConfig::new(args.name.clone(), args.kind);
    // A relative path is relative to the user's working directory, not to that of the switch.
    port.socket = args
        .socket
        .as_ref()
        .map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    port.mode = args.mode;
    port.owner = args.owner;
    port.group.clone_from(&args.group);
    port.socket_mode = args.socket_mode;
    port.vlan = vlan(&args.vlan).unwrap_or_default();
    port.mtu = args.mtu;
    port.mac = args.mac;
    port.mac_limit = args.mac_limit.unwrap_or_default();
    port.miss_rate = args.miss_rate.unwrap_or_default();
    port.vlan_priority = args.marks.vlan_priority.unwrap_or_default();
    port.dscp = args.marks.dscp.unwrap_or_default();
    port.storm_control = args.storms.storm_control.unwrap_or_default();
    port.storm_control_bits = args.storms.storm_control_bits.unwrap_or_default();
    port.max_rate_from = args.bandwidth.max_rate_from.unwrap_or_default();
    port.max_rate_to = args.bandwidth.max_rate_to.unwrap_or_default();
    port.max_burst = args.bandwidth.max_burst.unwrap_or_default();
    port.weight = args.bandwidth.weight.unwrap_or_default();
    port.priority = args.bandwidth.priority.unwrap_or_default();
    port.min_rate = args.bandwidth.min_rate.unwrap_or_default();
    port.static_macs.clone_from(&args.static_macs);
    port.isolated = args.isolated;
    port.flood = !args.no_flood;
    port.interface.clone_from(&args.interface);
    port.netns.clone_from(&args.netns);
    port.addresses.clone_from(&args.addresses);
    port.guards = args.guards.iter().copied().collect();
    port.acl_from.clone_from(&args.acl_from);
    port.acl_to.clone_from(&args.acl_to);
    port.security_groups.clone_from(&args.security_groups);
    port.log_drops = args.log_drops;
    port.address_source = args.sources.address_source.unwrap_or_default();
    port.address_limit = args.sources.address_limit.unwrap_or_default();
    port.dhcp_server = args.sources.dhcp_server.unwrap_or_default();
    port
}

fn changes(args: &PortSetArgs) -> PortChanges {
    let policies = &args.policies;
    PortChanges {
        mtu: args.mtu,
        vlan: vlan(&args.vlan).or(args.untagged.then_some(VlanConfig::Untagged)),
        mac_limit: args.mac_limit,
        miss_rate: args.miss_rate,
        vlan_priority: args.marks.vlan_priority,
        dscp: args.marks.dscp,
        storm_control: args.storms.storm_control,
        storm_control_bits: args.storms.storm_control_bits,
        max_rate_from: args.bandwidth.max_rate_from,
        max_rate_to: args.bandwidth.max_rate_to,
        max_burst: args.bandwidth.max_burst,
        weight: args.bandwidth.weight,
        priority: args.bandwidth.priority,
        min_rate: args.bandwidth.min_rate,
        static_macs: given(args.no_static_macs, &args.static_macs),
        isolated: args.isolated,
        flood: args.flood,
        guards: given(policies.no_guards, &policies.guards).map(|guards| guards.into_iter().collect()),
        acl_from: acl(policies.no_acl_from, policies.acl_from.as_ref()),
        acl_to: acl(policies.no_acl_to, policies.acl_to.as_ref()),
        security_groups: given(policies.no_security_groups, &policies.security_groups),
        log_drops: policies.log_drops,
        address_source: policies.sources.address_source,
        address_limit: policies.sources.address_limit,
        dhcp_server: policies.sources.dhcp_server,
    }
}

/// A list that takes the place of another one, if any was given or `none` was said.
fn given<T: Clone>(none: bool, list: &[T]) -> Option<Vec<T>> {
    (none || !list.is_empty()).then(|| list.to_vec())
}

fn acl(none: bool, name: Option<&Name>) -> Option<AclChange> {
    let name = name.cloned().map(AclChange::Acl);
    name.or(none.then_some(AclChange::None))
}

/// Everything about the ports of a reply, one value per line.
pub fn details(reply: &Reply) -> String {
    match reply {
        Reply::Ports(ports) => ports.iter().map(detail).collect(),
        other => super::show::text(other),
    }
}

fn detail(port: &PortInfo) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{:<13} {value}", format!("{name}:"));
    };
    line("name", port.name.clone());
    line("switch", port.switch.clone());
    line("number", port.number.to_string());
    line("origin", super::show::origin(port.origin).into());
    line("type", port.kind.to_string());
    link(port, &mut line);
    line("mac", or_dash(port.mac.as_ref()));
    line("state", port.state.clone());
    if let Some(problem) = &port.problem {
        line("problem", problem.clone());
    }
    line("mtu", port.mtu.to_string());
    line("vlan", port.vlan.clone());
    line("features", features(port.features));
    let threads: Vec<String> = port.vcpus.iter().map(u32::to_string).collect();
    line(
        "threads",
        or_dash((!threads.is_empty()).then(|| threads.join(" "))),
    );
    line("guest", port.guest.clone().unwrap_or_else(|| "unknown".into()));
    if let Some(info) = &port.device {
        line("device", super::show::device(info));
    }
    for work in &port.costly {
        line("costly", work.clone());
    }
    for policy in &port.policies {
        line("policy", policy.clone());
    }
    line("macs", port.macs.to_string());
    if port.contested_macs > 0 {
        line(
            "contested",
            format!("{} of them, see `hyperswitch mac list`", port.contested_macs),
        );
    }
    rules(port, &mut line);
    text
}

/// What the kernel forwards of a port's packets.
fn kernel_path(path: &KernelPathInfo) -> String {
    match &path.obstacle {
        Some(obstacle) => format!("no: {obstacle}"),
        None => format!("{}, {} waiting", counted(path.flows, "flow"), path.waiting),
    }
}

/// What leaves by a queue of an uplink's device.
fn device_queue(queue: &DeviceQueueInfo) -> String {
    let sent = format!("{} packets in {} calls", queue.packets, queue.calls);
    let leaves = match &queue.obstacle {
        Some(obstacle) => format!("no: {obstacle}; {sent} so far"),
        None => sent,
    };
    format!("{leaves} left; {}", arrivals(&queue.arrivals))
}

/// What comes by a queue of an uplink's device.
fn arrivals(arrivals: &ArrivalsInfo) -> String {
    let came = format!("{} packets came", arrivals.packets);
    match &arrivals.obstacle {
        Some(obstacle) => format!("{came}; none now: {obstacle}"),
        None => format!("{came}, for {}", counted(arrivals.filters, "station")),
    }
}

/// What the port leads to.
fn link(port: &PortInfo, line: &mut impl FnMut(&str, String)) {
    if let Some(path) = &port.kernel_path {
        line("kernel path", kernel_path(path));
    }
    if let Some(queue) = &port.device_queue {
        line("fast path", device_queue(queue));
    }
    if let Some(socket) = &port.socket {
        let mode = port
            .config
            .as_ref()
            .and_then(|config| config.mode)
            .unwrap_or_default();
        line("socket", format!("{} ({mode})", socket.display()));
    }
    if let Some(interface) = &port.interface {
        line("interface", interface.clone());
        line("netns", port.netns.clone().unwrap_or_else(|| "the host's".into()));
        line(
            "addresses",
            or_dash((!port.addresses.is_empty()).then(|| port.addresses.join(", "))),
        );
    }
}

/// What the configuration says about the port's packets.
fn rules(port: &PortInfo, line: &mut impl FnMut(&str, String)) {
    if let Some(config) = &port.config {
        line("mac limit", config.mac_limit.to_string());
        line("miss rate", config.miss_rate.to_string());
        line("storm control", config.storm_control.to_string());
        if config.storm_control_bits != StormBits::default() {
            line("storm bits", config.storm_control_bits.to_string());
        }
        if config.vlan_priority.get().is_some() {
            line("vlan priority", config.vlan_priority.to_string());
        }
        if config.dscp.get().is_some() {
            line("dscp", config.dscp.to_string());
        }
        line("max rate from", config.max_rate_from.to_string());
        line("max rate to", config.max_rate_to.to_string());
        if config.max_burst.get().is_some() {
            line("max burst", config.max_burst.to_string());
        }
        line("weight", config.weight.to_string());
        line("priority", config.priority.to_string());
        if config.min_rate.get().is_some() {
            line("min rate", config.min_rate.to_string());
        }
        let statics: Vec<String> = config.static_macs.iter().map(ToString::to_string).collect();
        line(
            "static macs",
            or_dash((!statics.is_empty()).then(|| statics.join(", "))),
        );
        sources(config, line);
        line("isolated", config.isolated.to_string());
        line("flood", config.flood.to_string());
    }
}

/// Where further addresses come from, if they do.
fn sources(config: &PortConfig, line: &mut impl FnMut(&str, String)) {
    if config.address_source != AddressSource::Configuration {
        line("address source", config.address_source.to_string());
        line("address limit", config.address_limit.to_string());
    }
    if config.dhcp_server {
        line("dhcp server", config.dhcp_server.to_string());
    }
}

/// Virtio feature bits by name (VIRTIO 1.2, 5.1.3 and 6).
fn features(bits: u64) -> String {
    const NAMES: &[(u32, &str)] = &[
        (0, "CSUM"),
        (1, "GUEST_CSUM"),
        (3, "MTU"),
        (5, "MAC"),
        (7, "GUEST_TSO4"),
        (8, "GUEST_TSO6"),
        (9, "GUEST_ECN"),
        (10, "GUEST_UFO"),
        (11, "HOST_TSO4"),
        (12, "HOST_TSO6"),
        (13, "HOST_ECN"),
        (14, "HOST_UFO"),
        (15, "MRG_RXBUF"),
        (16, "STATUS"),
        (17, "CTRL_VQ"),
        (22, "MQ"),
        (27, "ANY_LAYOUT"),
        (28, "INDIRECT_DESC"),
        (29, "EVENT_IDX"),
        (30, "PROTOCOL_FEATURES"),
        (32, "VERSION_1"),
        (33, "ACCESS_PLATFORM"),
        (34, "RING_PACKED"),
        (35, "IN_ORDER"),
        (54, "GUEST_USO4"),
        (55, "GUEST_USO6"),
        (56, "HOST_USO"),
    ];
    let set = (0..64u32).filter(|bit| bits >> bit & 1 == 1);
    let name = |bit: u32| {
        NAMES
            .iter()
            .find(|(known, _)| *known == bit)
            .map_or(bit.to_string(), |(_, name)| (*name).into())
    };
    let names: Vec<String> = set.map(name).collect();
    or_dash((!names.is_empty()).then(|| names.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, UserVerb, Verb};
    use clap::Parser;
    use management::Guard;

    fn ask(args: &str) -> Request {
        let Verb::User(UserVerb::Port(verb)) = Cli::try_parse_from(args.split(' ')).unwrap().verb else {
            panic!("not about ports")
        };
        request(&verb)
    }

    #[test]
    fn a_port_is_configured_as_in_a_file() {
        let Request::PortAdd { switch, config, .. } = ask(
            "hyperswitch port add sw0 vm1 --mode client --socket /tmp/s --trunk 10,20 --native 10 --mtu 9000 \
             --static-mac 52:54:00:00:00:01 --static-mac 52:54:00:00:00:02 --no-flood",
        ) else {
            panic!("not an addition")
        };
        let file = r#"
            name = "vm1"
            mode = "client"
            socket = "/tmp/s"
            vlan = { trunk = [10, 20], native = 10 }
            mtu = 9000
            static-macs = ["52:54:00:00:00:01", "52:54:00:00:00:02"]
            flood = false
        "#;
        assert_eq!(
            (switch.as_str(), config),
            ("sw0", Box::new(toml::from_str(file).unwrap()))
        );
    }

    #[test]
    fn parts_in_private_vlans_are_configured_as_in_a_file() {
        for (args, file) in [
            ("--primary 10 --isolated-vlan 200", "isolated = 200"),
            ("--primary 10 --community 201", "community = 201"),
            ("--primary 10 --promiscuous 200,201", "promiscuous = [200, 201]"),
        ] {
            let Request::PortAdd { config, .. } = ask(&format!("hyperswitch port add sw0 vm1 {args}")) else {
                panic!("not an addition")
            };
            let text = format!("name = \"vm1\"\nvlan = {{ primary = 10, {file} }}");
            assert_eq!(config, Box::new(toml::from_str(&text).unwrap()));
            let set = ask(&format!("hyperswitch port set vm1 {args}"));
            let Request::PortSet { changes, .. } = set else {
                panic!("not a change")
            };
            assert_eq!(changes.vlan, Some(config.vlan));
        }
        for wrong in [
            "--primary 10",
            "--community 201",
            "--primary 10 --community 201 --isolated-vlan 200",
            "--primary 10 --community 201 --access 5",
        ] {
            let words = format!("hyperswitch port add sw0 vm1 {wrong}");
            assert!(Cli::try_parse_from(words.split(' ')).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_what_is_given_changes() {
        let set = |args: &str| match ask(&format!("hyperswitch port set vm1{args}")) {
            Request::PortSet { changes, .. } => changes,
            other => panic!("{other:?}"),
        };
        assert_eq!(set(""), PortChanges::default());
        let untagged = PortChanges {
            vlan: Some(VlanConfig::Untagged),
            ..PortChanges::default()
        };
        assert_eq!(set(" --untagged"), untagged);
        let none = PortChanges {
            static_macs: Some(vec![]),
            isolated: Some(true),
            ..PortChanges::default()
        };
        assert_eq!(set(" --no-static-macs --isolated true"), none);
        let guarded = PortChanges {
            guards: Some([Guard::Dhcp, Guard::Router].into()),
            acl_from: Some(AclChange::Acl("office".parse().unwrap())),
            acl_to: Some(AclChange::None),
            security_groups: Some(vec!["web".parse().unwrap(), "db".parse().unwrap()]),
            log_drops: Some(true),
            ..PortChanges::default()
        };
        assert_eq!(
            set(
                " --guards router,dhcp --acl-from office --no-acl-to --security-group web --security-group db \
                 --log-drops true"
            ),
            guarded
        );
        let open = PortChanges {
            guards: Some([].into()),
            security_groups: Some(vec![]),
            ..PortChanges::default()
        };
        assert_eq!(set(" --no-guards --no-security-groups"), open);
    }

    #[test]
    fn features_have_names() {
        assert_eq!(features(0), "-");
        assert_eq!(features(1 << 32 | 1 << 15 | 1 << 60), "MRG_RXBUF VERSION_1 60");
    }
}
