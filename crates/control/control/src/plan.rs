//! The difference between present and desired state, as a list of changes. Pure; the code that applies it
//! makes no decisions.

use crate::p4;
use crate::state::{DesiredPort, DesiredSwitch, State};
use management::{PortInUse, ReloadSummary, Replacement};
use std::fmt;

/// One change. Its text is for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A port is removed.
    DelPort(String),
    /// A port is removed, to be added again below.
    ReplacePort(Replacement),
    /// A switch is removed; it has no ports any more.
    DelSwitch(String),
    /// A switch is added.
    AddSwitch(String, DesiredSwitch),
    /// A switch's rules change.
    SetSwitch(String, DesiredSwitch),
    /// A port is added; its switch exists.
    AddPort(String, DesiredPort),
    /// A port changes without being disconnected.
    SetPort(String, DesiredPort),
    /// A rule list or set changes, in words.
    Policy(String),
    /// A P4 switch changes, in words.
    P4(String),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::DelPort(name) => write!(f, "port {name} removed"),
            Change::ReplacePort(replacement) => replacement.fmt(f),
            Change::DelSwitch(name) => write!(f, "switch {name} removed"),
            Change::AddSwitch(name, _) => write!(f, "switch {name} added"),
            Change::SetSwitch(name, _) => write!(f, "switch {name} changed"),
            Change::AddPort(name, _) => write!(f, "port {name} added"),
            Change::SetPort(name, _) => write!(f, "port {name} changed"),
            Change::Policy(text) | Change::P4(text) => f.write_str(text),
        }
    }
}

/// The changes that lead from `old` to `new`; that a thing comes from elsewhere is none. Removals come first,
/// so that names, sockets and interfaces are free for their next owners; a port that cannot change in place
/// is removed and added.
pub fn plan(old: &State, new: &State) -> Vec<Change> {
    let mut changes = Vec::new();
    for (name, port) in &old.ports {
        match new.ports.get(name).map(|now| port.fixed_keys(now)) {
            Some(keys) if keys.is_empty() => {}
            Some(keys) => changes.push(Change::ReplacePort(Replacement {
                port: name.clone(),
                keys: keys.into_iter().map(str::to_owned).collect(),
                loss: port.link.loss(),
            })),
            None => changes.push(Change::DelPort(name.clone())),
        }
    }
    for name in old
        .switches
        .keys()
        .filter(|name| !new.switches.contains_key(*name))
    {
        changes.push(Change::DelSwitch(name.clone()));
    }
    for (name, switch) in &new.switches {
        match old.switches.get(name) {
            None => changes.push(Change::AddSwitch(name.clone(), switch.clone())),
            Some(before) if !before.is_as(switch) => {
                changes.push(Change::SetSwitch(name.clone(), switch.clone()))
            }
            Some(_) => {}
        }
    }
    for (name, port) in &new.ports {
        let stays = |before: &&DesiredPort| before.fixed_keys(port).is_empty();
        match old.ports.get(name).filter(stays) {
            None => changes.push(Change::AddPort(name.clone(), port.clone())),
            Some(before) if !before.is_as(port) => changes.push(Change::SetPort(name.clone(), port.clone())),
            Some(_) => {}
        }
    }
    let policies = policy::differences(&old.policies, &new.policies);
    changes.extend(policies.into_iter().map(Change::Policy));
    changes.extend(p4::differences(&old.p4, &new.p4).into_iter().map(Change::P4));
    changes
}

/// Changes as users are told of them; `in_use` says who is connected to a port.
pub fn summary(
    changes: &[Change],
    in_use: impl Fn(&str) -> Option<PortInUse>,
    warnings: Vec<String>,
) -> ReloadSummary {
    let gone = changes.iter().filter_map(|change| match change {
        Change::DelPort(name) => Some(name),
        Change::ReplacePort(replaced) => Some(&replaced.port),
        _ => None,
    });
    let replaced = changes.iter().filter_map(|change| match change {
        Change::ReplacePort(replacement) => Some(replacement.clone()),
        _ => None,
    });
    ReloadSummary {
        replaced: replaced.collect(),
        in_use: gone.filter_map(|name| in_use(name)).collect(),
        changes: changes.iter().map(ToString::to_string).collect(),
        warnings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::intent::Intent;
    use crate::state::{Link, desired};
    use management::{Config, Name, PortConfig, PortKind, PortMode, SwitchConfig, SwitchKind};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn apply(state: &mut State, change: &Change) {
        match change.clone() {
            Change::DelPort(name) => assert!(state.ports.remove(&name).is_some()),
            Change::ReplacePort(replaced) => assert!(state.ports.remove(&replaced.port).is_some()),
            Change::DelSwitch(name) => {
                assert!(
                    state.ports.values().all(|port| port.switch != name),
                    "ports of {name} left"
                );
                assert!(state.switches.remove(&name).is_some());
            }
            Change::AddSwitch(name, switch) => assert!(state.switches.insert(name, switch).is_none()),
            Change::SetSwitch(name, switch) => assert!(state.switches.insert(name, switch).is_some()),
            Change::AddPort(name, port) => {
                assert!(state.switches.contains_key(&port.switch));
                let taken = |other: &DesiredPort| matches!((&other.link, &port.link), (Link::Listen(a), Link::Listen(b)) if a.path == b.path);
                assert!(
                    !state.ports.values().any(taken),
                    "socket of {name} is not free yet"
                );
                assert!(state.ports.insert(name, port).is_none());
            }
            Change::SetPort(name, port) => assert!(state.ports.insert(name, port).is_some()),
            Change::Policy(_) | Change::P4(_) => {}
        }
    }

    fn port() -> impl Strategy<Value = PortConfig> {
        (
            0..6u8,
            0..3u8,
            proptest::option::of(1400u16..1403),
            any::<bool>(),
            proptest::option::of(0..4u8),
        )
            .prop_map(|(name, kind, mtu, isolated, socket)| {
                let kinds = [PortKind::VhostUser, PortKind::VhostUser, PortKind::Tap];
                let mut port = PortConfig::new(format!("p{name}").parse().unwrap(), kinds[usize::from(kind)]);
                port.mtu = mtu.and_then(management::Mtu::new);
                port.isolated = isolated;
                if port.kind == PortKind::VhostUser {
                    port.mode = (kind == 1).then_some(PortMode::Client);
                    port.socket = socket.map(|socket| format!("/s/{socket}").into());
                }
                port
            })
    }

    fn state() -> impl Strategy<Value = State> {
        let switch = (
            0..3u8,
            any::<bool>(),
            any::<bool>(),
            proptest::collection::vec(port(), 0..4),
        );
        let switches = proptest::collection::vec(switch, 0..3);
        switches.prop_filter_map("contradiction", |switches| {
            let mut config = Config::default();
            for (name, internal, flood, ports) in switches {
                let name: Name = format!("s{name}").parse().unwrap();
                let kind = if internal {
                    SwitchKind::Internal
                } else {
                    SwitchKind::Private
                };
                config.switches.push(SwitchConfig {
                    flood,
                    ports,
                    ..SwitchConfig::new(name, kind)
                });
            }
            desired(
                &Intent {
                    config,
                    ..Intent::default()
                },
                &Options {
                    run_dir: "/run/x".into(),
                    config: None,
                    machine: None,
                    cores: BTreeSet::new(),
                    groups: crate::Groups::default(),
                    p4: crate::P4Files::NONE,
                },
            )
            .ok()
        })
    }

    proptest! {
        #[test]
        fn applying_the_plan_leads_to_the_goal(old in state(), new in state()) {
            let changes = plan(&old, &new);
            let mut reached = old.clone();
            for change in &changes {
                apply(&mut reached, change);
            }
            prop_assert_eq!(&reached, &new);
            prop_assert_eq!(plan(&new, &new), vec![]);
            let touched: BTreeSet<_> = changes.iter().filter_map(|change| match change {
                Change::DelPort(name) | Change::AddPort(name, _) | Change::SetPort(name, _) => Some(name.clone()),
                Change::ReplacePort(replaced) => Some(replaced.port.clone()),
                _ => None,
            }).collect();
            for (name, port) in &old.ports {
                prop_assert_eq!(touched.contains(name), new.ports.get(name) != Some(port), "{}", name);
            }
        }
    }
}
