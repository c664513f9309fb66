//! Mirrors of ports, and what contradicts itself in them.
//!
//! A port that gets copies has no mirror itself: whoever states that means copies of copies, which there are
//! none of.

use crate::names::at;
use configuration::{CheckError, Config, MirrorConfig, MirroredPackets, PathSegment};
use flow::{ListId, MAX_MIRRORS, Mirrored};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// A mirror of one port. Ports are named, as their numbers come and go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMirror {
    /// Name of the mirror.
    pub name: String,
    /// Name of the port that gets the copies, which need not exist.
    pub destination: String,
    /// The packets that are copied.
    pub packets: Mirrored,
    /// The list that allows them.
    pub list: Option<ListId>,
    /// Bytes of each frame that are copied.
    pub length: Option<u32>,
    /// VLAN of the copies' tag.
    pub vlan: Option<u16>,
}

impl fmt::Display for PortMirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mirrored { from, to, dropped } = self.packets;
        let packets = [(from, "from"), (to, "to"), (dropped, "dropped")];
        let packets: Vec<&str> = packets
            .iter()
            .filter_map(|(is, name)| is.then_some(*name))
            .collect();
        write!(
            f,
            "mirror {} to {}: {}",
            self.name,
            self.destination,
            packets.join(", ")
        )
    }
}

/// The mirrors of all ports, by name. `list` gives the number of an access control list's rules for mirrors.
///
/// # Errors
/// The first contradiction, with its place.
pub(crate) fn mirrors(
    config: &Config,
    mut list: impl FnMut(&MirrorConfig, &[PathSegment]) -> Result<Option<ListId>, CheckError>,
) -> Result<BTreeMap<String, Vec<PortMirror>>, CheckError> {
    let switches = switches(config);
    let mut all: BTreeMap<String, Vec<PortMirror>> = BTreeMap::new();
    let mut names = HashSet::new();
    for (index, stated) in config.mirrors.iter().enumerate() {
        let place = [PathSegment::Key("mirror"), PathSegment::Index(index)];
        let name = stated.name.as_str();
        if !names.insert(name) {
            let message = format!("there is already a mirror {name}; names are unique");
            return Err(at(&place, "name", message));
        }
        check(stated, &switches, &place)?;
        let mirror = PortMirror {
            name: name.into(),
            destination: stated.destination.to_string(),
            packets: Mirrored {
                from: stated.packets.contains(&MirroredPackets::From),
                to: stated.packets.contains(&MirroredPackets::To),
                dropped: stated.packets.contains(&MirroredPackets::Dropped),
            },
            list: list(stated, &place)?,
            length: stated.length.map(|length| length.get()),
            vlan: stated.vlan.map(|vlan| vlan.get()),
        };
        for source in &stated.sources {
            let of_port = all.entry(source.to_string()).or_default();
            if of_port.len() >= MAX_MIRRORS {
                let message =
                    format!("port {source} has {MAX_MIRRORS} mirrors already, the most there can be");
                return Err(at(&place, "sources", message));
            }
            of_port.push(mirror.clone());
        }
    }
    check_chains(config, &all)?;
    Ok(all)
}

/// Names of ports in mirrors that do not exist, each with its place.
pub(crate) fn findings(config: &Config) -> Vec<CheckError> {
    let switches = switches(config);
    let mut found = Vec::new();
    for (index, mirror) in config.mirrors.iter().enumerate() {
        let place = [PathSegment::Key("mirror"), PathSegment::Index(index)];
        let sources = mirror.sources.iter().map(|source| ("sources", source));
        for (key, port) in sources.chain([("destination", &mirror.destination)]) {
            if !switches.contains_key(port.as_str()) {
                found.push(at(&place, key, format!("there is no port {port} at the moment")));
            }
        }
    }
    found
}

/// The switch of each port.
fn switches(config: &Config) -> HashMap<String, &str> {
    let mut switches = HashMap::new();
    for switch in &config.switches {
        let name = switch.name.as_str();
        for port in &switch.ports {
            switches.insert(port.name.to_string(), name);
        }
        if switch.host_interface().is_some() {
            switches.insert(switch.host_port(), name);
        }
        if switch.uplink.is_some() {
            switches.insert(switch.uplink_port(), name);
        }
    }
    switches
}

/// What can be seen of one mirror.
fn check(
    mirror: &MirrorConfig,
    switches: &HashMap<String, &str>,
    place: &[PathSegment],
) -> Result<(), CheckError> {
    let (name, destination) = (&mirror.name, &mirror.destination);
    if mirror.sources.is_empty() || mirror.packets.is_empty() {
        let key = if mirror.sources.is_empty() {
            "sources"
        } else {
            "packets"
        };
        return Err(at(
            place,
            key,
            format!("mirror {name} copies nothing: `{key}` is empty"),
        ));
    }
    for (number, source) in mirror.sources.iter().enumerate() {
        if source == destination {
            let message = format!("mirror {name} would give port {source} copies of its own packets");
            return Err(at(place, "destination", message));
        }
        if mirror.sources[..number].contains(source) {
            return Err(at(place, "sources", format!("port {source} is there twice")));
        }
        if let (Some(one), Some(other)) = (switches.get(source.as_str()), switches.get(destination.as_str()))
            && one != other
        {
            let message = format!(
                "port {source} is on switch {one}, and port {destination} on switch {other}: no packet crosses from one to another"
            );
            return Err(at(place, "destination", message));
        }
    }
    Ok(())
}

/// No port that gets copies has mirrors.
fn check_chains(config: &Config, all: &BTreeMap<String, Vec<PortMirror>>) -> Result<(), CheckError> {
    for (index, mirror) in config.mirrors.iter().enumerate() {
        let Some(others) = all.get(mirror.destination.as_str()) else {
            continue;
        };
        let other = others.first().map_or("", |other| other.name.as_str());
        let message = format!(
            "port {} gets the copies of mirror {}, and is a source of mirror {other}: copies are not copied again",
            mirror.destination, mirror.name
        );
        let place = [PathSegment::Key("mirror"), PathSegment::Index(index)];
        return Err(at(&place, "destination", message));
    }
    Ok(())
}
