//! Sets, lists and groups by name, and the sets that lists need.

use crate::lists::{Direction, Set, SetMembers, free_number};
use configuration::{
    AclConfig, CheckError, Config, GroupConfig, Name, PathSegment, PortConfig, PortPolicyConfig, SetConfig,
    SwitchConfig,
};
use rule_list::{IpPrefix, MacPrefix, SetId, SetKind};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// Names of a configuration.
#[derive(Debug)]
pub(crate) struct Names<'a> {
    sets: HashMap<&'a str, &'a SetConfig>,
    acls: HashMap<&'a str, (usize, &'a AclConfig)>,
    groups: HashMap<&'a str, (usize, &'a GroupConfig)>,
    ports: HashMap<&'a str, &'a PortConfig>,
    port_policies: HashMap<&'a str, &'a PortPolicyConfig>,
    /// Members of groups.
    members: HashMap<&'a str, Vec<Member>>,
    /// Sets that lists need, so far.
    needed: BTreeMap<SetId, Set>,
    /// Numbers of these, by name.
    numbers: HashMap<String, SetId>,
}

/// A member of a group.
#[derive(Debug)]
struct Member {
    /// Names of its ports. Those of other controllers have none here.
    ports: Vec<String>,
    addresses: BTreeSet<IpPrefix>,
    /// What to say of a member without addresses.
    lacks: String,
}

impl<'a> Names<'a> {
    /// Collects all names.
    ///
    /// # Errors
    /// A name is there twice, or a set is none.
    pub fn of(config: &'a Config) -> Result<Names<'a>, CheckError> {
        let mut names = Names {
            sets: HashMap::new(),
            acls: HashMap::new(),
            groups: HashMap::new(),
            ports: HashMap::new(),
            port_policies: HashMap::new(),
            members: HashMap::new(),
            needed: BTreeMap::new(),
            numbers: HashMap::new(),
        };
        for (index, set) in config.sets.iter().enumerate() {
            let place = [PathSegment::Key("set"), PathSegment::Index(index)];
            check_set(set, &place)?;
            if names.sets.insert(set.name.as_str(), set).is_some() {
                return Err(taken(&place, "set", &set.name));
            }
        }
        for (index, acl) in config.acls.iter().enumerate() {
            if names.acls.insert(acl.name.as_str(), (index, acl)).is_some() {
                return Err(taken(
                    &[PathSegment::Key("acl"), PathSegment::Index(index)],
                    "acl",
                    &acl.name,
                ));
            }
        }
        for (index, group) in config.groups.iter().enumerate() {
            if names.groups.insert(group.name.as_str(), (index, group)).is_some() {
                let place = [PathSegment::Key("security-group"), PathSegment::Index(index)];
                return Err(taken(&place, "security group", &group.name));
            }
        }
        for (index, policy) in config.port_policies.iter().enumerate() {
            if names.port_policies.insert(policy.name.as_str(), policy).is_some() {
                let place = [PathSegment::Key("port-policy"), PathSegment::Index(index)];
                return Err(taken(&place, "port policy", &policy.name));
            }
        }
        names.add_members(config);
        Ok(names)
    }

    fn add_members(&mut self, config: &'a Config) {
        for port in config.switches.iter().flat_map(|switch| &switch.ports) {
            self.ports.insert(port.name.as_str(), port);
            for group in &port.security_groups {
                self.members.entry(group.as_str()).or_default().push(Member {
                    ports: vec![port.name.to_string()],
                    addresses: addresses_of(port),
                    lacks: format!("port {} has no `addresses`", port.name),
                });
            }
        }
        for policy in &config.port_policies {
            for group in &policy.security_groups {
                self.members.entry(group.as_str()).or_default().push(Member {
                    ports: ports_with(policy, config),
                    addresses: policy
                        .allowed_pairs
                        .iter()
                        .map(|pair| network(*pair.address.get()))
                        .collect(),
                    lacks: format!("port policy {} has no `allowed-pairs`", policy.name),
                });
            }
        }
    }

    pub fn has_port_policy(&self, name: &Name) -> bool {
        self.port_policies.contains_key(name.as_str())
    }

    pub fn acl(&self, name: &Name) -> Option<(usize, &'a AclConfig)> {
        self.acls.get(name.as_str()).copied()
    }

    pub fn group(&self, name: &Name) -> Option<(usize, &'a GroupConfig)> {
        self.groups.get(name.as_str()).copied()
    }

    pub fn has_port(&self, name: &Name) -> bool {
        self.ports.contains_key(name.as_str())
    }

    pub fn is_port_or_set(&self, name: &Name) -> bool {
        self.has_port(name) || self.sets.contains_key(name.as_str())
    }

    /// The set with that name.
    ///
    /// # Errors
    /// There is none, or its members are of another kind: a sentence for users.
    pub fn set(&mut self, name: &Name, kind: SetKind) -> Result<SetId, String> {
        let Some(set) = self.sets.get(name.as_str()) else {
            return Err(format!("there is no set {name}"));
        };
        let (found, members) = members_of(set);
        if found != kind {
            return Err(format!(
                "set {name} has {found} as members, and {kind} are needed"
            ));
        }
        // Kinds have numbers of their own, since no set changes its kind.
        Ok(self.need(format!("{} {name}", key(found)), members))
    }

    /// A set of ports with that name, or the set of that port alone.
    pub fn senders(&mut self, name: &Name) -> Result<SetId, String> {
        if self.sets.contains_key(name.as_str()) {
            return self.set(name, SetKind::Ports);
        }
        let members = SetMembers::Ports(BTreeSet::from([name.to_string()]));
        Ok(self.need(format!("port {name}"), members))
    }

    /// Members of a group as the other side of packets that go in this direction: ports that packets came
    /// from, or addresses that they go to.
    ///
    /// # Errors
    /// There is no such group, or a member's addresses are needed and not known: a sentence for users.
    pub fn others(&mut self, group: &Name, direction: Direction) -> Result<SetId, String> {
        if self.group(group).is_none() {
            return Err(format!("there is no security group {group}"));
        }
        let members = self.members.get(group.as_str()).map_or(&[][..], Vec::as_slice);
        if direction == Direction::To {
            let ports = members.iter().flat_map(|member| member.ports.clone()).collect();
            return Ok(self.need(format!("ports of group {group}"), SetMembers::Ports(ports)));
        }
        let mut addresses = BTreeSet::new();
        for Member {
            addresses: own,
            lacks,
            ..
        } in members
        {
            if own.is_empty() {
                return Err(format!(
                    "packets from a port are told by the addresses of members of {group}, and {lacks}"
                ));
            }
            addresses.extend(own);
        }
        Ok(self.need(
            format!("addresses of group {group}"),
            SetMembers::Addresses(addresses),
        ))
    }

    /// Notes that a list needs a set with these members.
    pub fn need(&mut self, name: String, members: SetMembers) -> SetId {
        if let Some(set) = self.numbers.get(&name) {
            return *set;
        }
        let set = SetId(free_number(&name, 32, |number| {
            self.needed.contains_key(&SetId(number))
        }));
        self.numbers.insert(name.clone(), set);
        self.needed.insert(set, Set { name, members });
        set
    }

    pub fn into_sets(self) -> BTreeMap<SetId, Set> {
        self.needed
    }

    /// Members of a set that is needed.
    pub fn needed(&self, set: SetId) -> Option<&Set> {
        self.needed.get(&set)
    }
}

/// Addresses that a port's guest may use.
pub(crate) fn addresses_of(port: &PortConfig) -> BTreeSet<IpPrefix> {
    let own = port.addresses.iter().map(|address| host(address.parts().0));
    let further = port.allowed_pairs.iter().map(|pair| network(*pair.address.get()));
    own.chain(further).collect()
}

/// Ports of hosts and uplinks that have this policy.
fn ports_with(policy: &PortPolicyConfig, config: &Config) -> Vec<String> {
    let is_this = |name: Option<&Name>| name == Some(&policy.name);
    let of_switch = |switch: &SwitchConfig| {
        let host = switch.host.as_ref().and_then(|host| host.policy.as_ref());
        let host = is_this(host).then(|| switch.host_port());
        host.into_iter()
            .chain(is_this(switch.uplink_policy.as_ref()).then(|| switch.uplink_port()))
    };
    config.switches.iter().flat_map(of_switch).collect()
}

/// One address.
pub(crate) fn host(address: IpAddr) -> IpPrefix {
    let len = if address.is_ipv4() { 32 } else { 128 };
    IpPrefix { address, len }
}

pub(crate) fn network((address, len): (IpAddr, u8)) -> IpPrefix {
    IpPrefix { address, len }
}

pub(crate) fn mac_block((address, len): (u64, u8)) -> MacPrefix {
    MacPrefix { address, len }
}

fn members_of(set: &SetConfig) -> (SetKind, SetMembers) {
    if let Some(macs) = &set.macs {
        let macs = macs.iter().map(|block| mac_block(*block.get()));
        return (SetKind::Macs, SetMembers::Macs(macs.collect()));
    }
    if let Some(ports) = &set.ports {
        return (
            SetKind::Ports,
            SetMembers::Ports(ports.iter().map(ToString::to_string).collect()),
        );
    }
    let addresses = set
        .addresses
        .iter()
        .flatten()
        .map(|address| network(*address.get()));
    (SetKind::Addresses, SetMembers::Addresses(addresses.collect()))
}

/// The key of a set's members in the configuration.
fn key(kind: SetKind) -> &'static str {
    match kind {
        SetKind::Addresses => "addresses",
        SetKind::Macs => "macs",
        SetKind::Ports => "ports",
    }
}

fn check_set(set: &SetConfig, place: &[PathSegment]) -> Result<(), CheckError> {
    let name = &set.name;
    if name.as_str().parse::<IpAddr>().is_ok() {
        let message = format!("a set named {name} could not be told from the address; give it another name");
        return Err(at(place, "name", message));
    }
    let given = [set.addresses.is_some(), set.macs.is_some(), set.ports.is_some()];
    match given.iter().filter(|given| **given).count() {
        1 => Ok(()),
        0 => Err(at(
            place,
            "name",
            format!("set {name} needs `addresses`, `macs` or `ports`"),
        )),
        _ => Err(at(
            place,
            "name",
            format!("set {name} has members of one kind: `addresses`, `macs` or `ports`"),
        )),
    }
}

fn taken(place: &[PathSegment], what: &str, name: &Name) -> CheckError {
    at(
        place,
        "name",
        format!("there is already a {what} {name}; names are unique"),
    )
}

/// An error about a key.
pub(crate) fn at(place: &[PathSegment], key: &'static str, message: String) -> CheckError {
    CheckError {
        path: [place, &[PathSegment::Key(key)]].concat(),
        message,
    }
}
