//! What a configuration asks for that cannot be as it seems to be meant, for `status`, `reload` and the log.

use crate::Options;
use crate::control::Control;
use crate::describe::with_prefix;
use crate::state::Link;
use control_protocol::driver::InterfaceKind;
use flow::PortId;
use management::Config;
use std::collections::BTreeSet;

impl Control {
    /// Warnings about the configuration in use.
    pub fn configuration_warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = core_warning(&self.options, &self.intent.config)
            .into_iter()
            .collect();
        warnings.extend(self.view.problem().map(str::to_owned));
        let ports = self.ports.values().filter_map(|run| run.id);
        warnings.extend(ports.flat_map(|port| self.uplink_warnings(port)));
        warnings
    }

    /// An uplink with addresses of its own, on which the host's stack hears nothing, or that another device
    /// has.
    pub fn uplink_warnings(&self, port: PortId) -> Vec<String> {
        let uplink = || {
            let name = self.names.get(&port)?;
            match &self.ports.get(name)?.wanted.link {
                Link::Interface(spec) if matches!(spec.kind, InterfaceKind::Uplink { .. }) => {
                    Some((name, &spec.name))
                }
                _ => None,
            }
        };
        let (Some((name, uplink)), Some(found)) = (uplink(), self.driver.addresses(port)) else {
            return Vec::new();
        };
        let addresses: Vec<String> = found.addresses.iter().map(with_prefix).collect();
        let carries = (!addresses.is_empty()).then(|| {
            format!(
                "the uplink {uplink} carries addresses ({}), which the host does not hear, as the uplink is the switch's; \
                 move them to the host's interface of the switch",
                addresses.join(", ")
            )
        });
        let warnings = [carries, users_warning(uplink, &found.users)].into_iter();
        warnings
            .flatten()
            .map(|warning| format!("port {name}: {warning}"))
            .collect()
    }
}

/// An uplink that other devices have, as `bridge br0`.
pub fn users_warning(uplink: &str, users: &[String]) -> Option<String> {
    (!users.is_empty()).then(|| {
        format!(
            "the uplink {uplink} also belongs to {}, which gets no frames from it, or the same as the switch; \
             take it away there, or give the switch a device of its own",
            users.join(" and ")
        )
    })
}

/// Groups of sockets that do not exist.
pub fn group_warnings(options: &Options, config: &Config) -> Vec<String> {
    let ports = config.switches.iter().flat_map(|switch| &switch.ports);
    let groups = [&config.access.group, &config.access.view_group].into_iter();
    let groups: BTreeSet<_> = groups.chain(ports.map(|port| &port.group)).flatten().collect();
    let missing = groups
        .into_iter()
        .filter_map(|group| options.groups.number(group).err());
    missing.map(|problem| problem.to_string()).collect()
}

/// Cores that are to be dedicated and do not exist, or that the switch may not use.
pub fn core_warning(options: &Options, config: &Config) -> Option<String> {
    let wanted = config.placement.dedicated_cores.iter();
    let missing: Vec<String> = wanted
        .filter(|core| !options.cores.contains(core))
        .map(u16::to_string)
        .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "dedicated-cores names {}: there is no such core here, or the switch may not use it",
            missing.join(", ")
        )
    })
}
