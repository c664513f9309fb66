//! Private VLANs of a switch: which secondary VLANs belong to which primary one, from what its ports state.

use crate::check::{CheckError, PathSegment};
use crate::schema::{PrivateRole, SwitchConfig, VlanConfig};
use crate::value::VlanId;
use std::collections::{BTreeMap, BTreeSet};

/// A VLAN of a private VLAN, and the port that says so.
struct Part<'a> {
    primary: VlanId,
    /// What the VLAN is; promiscuous ports do not say of their secondary VLANs.
    kind: Option<Kind>,
    port: &'a str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Primary,
    Isolated,
    Community,
}

impl Kind {
    fn text(kind: Option<Kind>) -> &'static str {
        match kind {
            Some(Kind::Primary) => "the primary VLAN",
            Some(Kind::Isolated) => "the isolated VLAN",
            Some(Kind::Community) => "a community",
            None => "a secondary VLAN",
        }
    }
}

/// Checks that the ports of a switch agree about its private VLANs.
pub(crate) fn check(switch: &SwitchConfig, place: &[PathSegment]) -> Result<(), CheckError> {
    let mut parts: BTreeMap<VlanId, Part<'_>> = BTreeMap::new();
    let host_port = switch.host_port();
    let host = switch.host.iter().map(|host| {
        let path = [place, &[PathSegment::Key("host"), PathSegment::Key("vlan")]].concat();
        (host_port.as_str(), &host.vlan, path)
    });
    let ports = switch.ports.iter().enumerate().map(|(index, port)| {
        let own = [
            PathSegment::Key("port"),
            PathSegment::Index(index),
            PathSegment::Key("vlan"),
        ];
        (port.name.as_str(), &port.vlan, [place, &own].concat())
    });
    let all: Vec<_> = host.chain(ports).collect();
    for (name, vlan, path) in &all {
        if let VlanConfig::Private { primary, role } = vlan {
            for (id, kind) in stated(*primary, role) {
                add(&mut parts, id, kind, (*primary, name)).map_err(|message| CheckError {
                    path: path.clone(),
                    message,
                })?;
            }
        }
    }
    for (name, vlan, path) in all {
        let VlanConfig::Access(id) = vlan else { continue };
        if let Some(part) = parts.get(id) {
            let message = format!(
                "VLAN {id} is {} of private VLAN {}, as port {} says; {name} needs a part in it, \
                 such as {{ primary = {}, promiscuous = [...] }}",
                Kind::text(part.kind),
                part.primary,
                part.port,
                part.primary
            );
            return Err(CheckError { path, message });
        }
    }
    Ok(())
}

/// What a port says of VLANs.
fn stated(primary: VlanId, role: &PrivateRole) -> Vec<(VlanId, Option<Kind>)> {
    let mut all = vec![(primary, Some(Kind::Primary))];
    match role {
        PrivateRole::Isolated(id) => all.push((*id, Some(Kind::Isolated))),
        PrivateRole::Community(id) => all.push((*id, Some(Kind::Community))),
        PrivateRole::Promiscuous(ids) => all.extend(ids.iter().map(|id| (*id, None))),
    }
    all
}

/// Notes what a port says of a VLAN, or why that contradicts what another one says.
fn add<'a>(
    parts: &mut BTreeMap<VlanId, Part<'a>>,
    id: VlanId,
    kind: Option<Kind>,
    (primary, port): (VlanId, &'a str),
) -> Result<(), String> {
    let Some(part) = parts.get_mut(&id) else {
        parts.insert(id, Part { primary, kind, port });
        return Ok(());
    };
    let differs = match (part.kind, kind) {
        (Some(before), Some(now)) => before != now,
        // The one that does not say what it is, is no primary.
        (Some(Kind::Primary), None) | (None, Some(Kind::Primary)) => true,
        _ => false,
    };
    if differs || part.primary != primary {
        return Err(format!(
            "VLAN {id} is {} of private VLAN {primary} here, and {} of private VLAN {} as port {} says",
            Kind::text(kind),
            Kind::text(part.kind),
            part.primary,
            part.port
        ));
    }
    part.kind = part.kind.or(kind);
    Ok(())
}

impl PrivateRole {
    /// The secondary VLANs that a port names.
    pub fn secondaries(&self) -> BTreeSet<VlanId> {
        match self {
            PrivateRole::Isolated(id) | PrivateRole::Community(id) => BTreeSet::from([*id]),
            PrivateRole::Promiscuous(ids) => ids.clone(),
        }
    }
}
