//! All policies of a configuration.

use crate::groups;
use crate::guards;
use crate::lists::{Direction, List, Origin, Policies, PortLists, Rules, free_number};
use crate::marks;
use crate::mirrors::mirrors;
use crate::names::{Names, at};
use crate::rules::{matches, verdict};
use configuration::{
    AclConfig, CheckError, Config, Guard, Name, PathSegment, PortConfig, PortPolicyConfig, SwitchConfig,
};
use flow::NamedPolicy;
use rule_list::{ListId, MAX_LOGGING_RULES, MAX_RULES, Match, Verdict};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Priority of the first rules of an access control list.
const FIRST: u32 = u32::MAX;

/// Lists and sets of a configuration's policies.
///
/// # Errors
/// The first thing that contradicts itself, with its place.
pub fn compile(config: &Config) -> Result<Policies, CheckError> {
    let mut compiler = Compiler {
        names: Names::of(config)?,
        lists: BTreeMap::new(),
        numbers: HashMap::new(),
    };
    compiler.check_unused(config)?;
    for (index, stated) in config.port_policies.iter().enumerate() {
        let place = [PathSegment::Key("port-policy"), PathSegment::Index(index)];
        compiler.port_policy(stated, &place)?;
    }
    let mut ports = BTreeMap::new();
    for (number, switch) in config.switches.iter().enumerate() {
        let place = [PathSegment::Key("switch"), PathSegment::Index(number)];
        ports.extend(compiler.own_ports(switch, &place)?);
        for (index, port) in switch.ports.iter().enumerate() {
            let place = [
                PathSegment::Key("switch"),
                PathSegment::Index(number),
                PathSegment::Key("port"),
                PathSegment::Index(index),
            ];
            let lists = compiler.port(port, &place)?;
            if lists != PortLists::default() {
                ports.insert(port.name.to_string(), lists);
            }
        }
    }
    let mirrors = mirrors(config, |mirror, place| {
        let list = mirror.filter.as_ref().map(|acl| compiler.mirrored(acl, place));
        list.transpose()
    })?;
    compiler.check_logging()?;
    Ok(Policies {
        lists: compiler.lists,
        sets: compiler.names.into_sets(),
        ports,
        mirrors,
    })
}

struct Compiler<'a> {
    names: Names<'a>,
    lists: BTreeMap<ListId, List>,
    /// Numbers of lists, by name.
    numbers: HashMap<String, ListId>,
}

impl Compiler<'_> {
    /// Checks lists and groups that no port names: their sets are nobody's.
    fn check_unused(&mut self, config: &Config) -> Result<(), CheckError> {
        // Before anything is made of rules, which may be millions.
        for (index, acl) in config.acls.iter().enumerate() {
            let place = [PathSegment::Key("acl"), PathSegment::Index(index)];
            check_count(acl.rules.len(), &format!("acl {}", acl.name), &place)?;
        }
        for (index, group) in config.groups.iter().enumerate() {
            let rules = [&group.from, &group.to].into_iter().flatten().map(Vec::len);
            let place = [PathSegment::Key("security-group"), PathSegment::Index(index)];
            check_count(rules.sum(), &format!("security group {}", group.name), &place)?;
        }
        let mut names = Names::of(config)?;
        for stated in config.acls.iter().enumerate() {
            add_acl(&mut Rules::default(), stated, Direction::To, &mut names)?;
        }
        for (index, group) in config.groups.iter().enumerate() {
            for direction in [Direction::From, Direction::To] {
                groups::add(&mut Rules::default(), (index, group), direction, &mut names)?;
            }
        }
        Ok(())
    }

    /// Checks the number of rules that log.
    fn check_logging(&self) -> Result<(), CheckError> {
        let rules = self.lists.values().flat_map(|list| &list.rules);
        let count = rules.filter(|rule| rule.rule.log).count();
        if count <= MAX_LOGGING_RULES {
            return Ok(());
        }
        let message = format!(
            "all lists together have {count} rules that log, by `log` or `log-drops`; there are at most {MAX_LOGGING_RULES}"
        );
        Err(CheckError {
            path: Vec::new(),
            message,
        })
    }

    /// Makes the lists of a policy with a name. All four are made, since whoever gives them to a port does
    /// not know which the policy needs.
    fn port_policy(&mut self, stated: &PortPolicyConfig, place: &[PathSegment]) -> Result<(), CheckError> {
        let name = &stated.name;
        if stated.guards.contains(&Guard::Spoof) && stated.allowed_pairs.is_empty() {
            let message = "the guard \"spoof\" of a port policy needs `allowed-pairs`".into();
            return Err(at(place, "guards", message));
        }
        let port = stated.as_port();
        self.check_groups(&port, place)?;
        let numbers = NamedPolicy::of(name.as_str());
        let guards = guards::list(&port, &format!("port-policy {name}"), &mut self.names, place)?;
        let from = self.make_list(&port, Direction::From, place)?;
        let to = self.make_list(&port, Direction::To, place)?;
        for (number, list, part) in [
            (numbers.guards, guards, "guards"),
            (numbers.from, from, "from"),
            (numbers.to, to, "to"),
            (numbers.marks, marks::list(&port), "marks"),
        ] {
            let list = List {
                name: format!("port-policy {name}: {part}"),
                ..list.unwrap_or_else(List::open)
            };
            if let Some(other) = self.lists.insert(number, list) {
                let message = format!(
                    "the data plane cannot tell {name} from {}; rename one",
                    other.name
                );
                return Err(at(place, "name", message));
            }
        }
        Ok(())
    }

    /// The lists of the ports of a switch's host and uplink, by name.
    fn own_ports(
        &self,
        switch: &SwitchConfig,
        place: &[PathSegment],
    ) -> Result<Vec<(String, PortLists)>, CheckError> {
        let host = switch.host.as_ref().and_then(|host| host.policy.as_ref());
        let stated = [
            (host, "host", switch.host_port()),
            (
                switch.uplink_policy.as_ref(),
                "uplink-policy",
                switch.uplink_port(),
            ),
        ];
        let mut ports = Vec::new();
        for (policy, key, port) in stated {
            let Some(policy) = policy else { continue };
            if !self.names.has_port_policy(policy) {
                return Err(at(place, key, format!("there is no port policy {policy}")));
            }
            ports.push((port, NamedPolicy::of(policy.as_str()).into()));
        }
        Ok(ports)
    }

    /// The lists of a port.
    fn port(&mut self, port: &PortConfig, place: &[PathSegment]) -> Result<PortLists, CheckError> {
        let guards = guards::list(port, port.name.as_str(), &mut self.names, place)?;
        self.check_groups(port, place)?;
        Ok(PortLists {
            guards: guards.map(|list| self.number(list)),
            from: self.policy(port, Direction::From, place)?,
            to: self.policy(port, Direction::To, place)?,
            marks: marks::list(port).map(|list| match self.numbers.get(&list.name) {
                Some(number) => *number,
                None => self.number(list),
            }),
        })
    }

    fn check_groups(&self, port: &PortConfig, place: &[PathSegment]) -> Result<(), CheckError> {
        for (number, group) in port.security_groups.iter().enumerate() {
            let is_twice = port.security_groups[..number].contains(group);
            if self.names.group(group).is_none() || is_twice {
                let message = match is_twice {
                    true => format!("security group {group} is there twice"),
                    false => format!("there is no security group {group}"),
                };
                let path = [
                    place,
                    &[PathSegment::Key("security-groups"), PathSegment::Index(number)],
                ]
                .concat();
                return Err(CheckError { path, message });
            }
        }
        Ok(())
    }

    /// The list of a port's access control list and groups for a direction, which ports with the same ones
    /// share.
    fn policy(
        &mut self,
        port: &PortConfig,
        direction: Direction,
        place: &[PathSegment],
    ) -> Result<Option<ListId>, CheckError> {
        let name = self.list_name(port, direction);
        if let Some(number) = name.and_then(|name| self.numbers.get(&name)) {
            return Ok(Some(*number));
        }
        let list = self.make_list(port, direction, place)?;
        Ok(list.map(|list| self.number(list)))
    }

    /// A name that says what a port's list for a direction is made of; `None` if it has none.
    fn list_name(&self, port: &PortConfig, direction: Direction) -> Option<String> {
        let mut parts = Vec::new();
        parts.extend(acl(port, direction).1.map(|acl| format!("acl {acl}")));
        if self.is_limited(port, direction) {
            let mut groups: Vec<&str> = port.security_groups.iter().map(Name::as_str).collect();
            groups.sort_unstable();
            parts.push(format!("groups {}", groups.join(" ")));
        }
        let logged = if port.log_drops { " (drops logged)" } else { "" };
        (!parts.is_empty()).then(|| format!("{direction}: {}{logged}", parts.join(", ")))
    }

    /// Whether any of a port's groups limits that direction.
    fn is_limited(&self, port: &PortConfig, direction: Direction) -> bool {
        let mut groups = port
            .security_groups
            .iter()
            .filter_map(|group| self.names.group(group));
        groups.any(|(_, group)| groups::stated(group, direction).is_some())
    }

    /// Makes the list of a port's access control list and groups for a direction, if it has any.
    fn make_list(
        &mut self,
        port: &PortConfig,
        direction: Direction,
        place: &[PathSegment],
    ) -> Result<Option<List>, CheckError> {
        let Some(name) = self.list_name(port, direction) else {
            return Ok(None);
        };
        let (key, acl) = acl(port, direction);
        let mut rules = Rules::default();
        let mut default = Verdict::Drop;
        if let Some(acl) = acl {
            let Some(stated) = self.names.acl(acl) else {
                return Err(at(place, key, format!("there is no acl {acl}")));
            };
            default = verdict(stated.1.default);
            add_acl(&mut rules, stated, direction, &mut self.names)?;
            rules.drop_headless();
        }
        if self.is_limited(port, direction) {
            default = Verdict::Drop;
            let groups = port
                .security_groups
                .iter()
                .filter_map(|group| self.names.group(group));
            for group in groups.collect::<Vec<_>>() {
                groups::add(&mut rules, group, direction, &mut self.names)?;
            }
            groups::add_common(&mut rules, direction);
        }
        if port.log_drops {
            rules.log_drops(default);
        }
        Ok(Some(check_length(rules.into_list(name, default), place)?))
    }

    /// The list of an access control list for mirrors.
    fn mirrored(&mut self, acl: &Name, place: &[PathSegment]) -> Result<ListId, CheckError> {
        let name = format!("mirrors: acl {acl}");
        if let Some(number) = self.numbers.get(&name) {
            return Ok(*number);
        }
        let Some(stated) = self.names.acl(acl) else {
            return Err(at(place, "filter", format!("there is no acl {acl}")));
        };
        let mut rules = Rules::default();
        // The port that a packet comes from is known.
        add_acl(&mut rules, stated, Direction::To, &mut self.names)?;
        check_length(rules.into_list(name, verdict(stated.1.default)), place).map(|list| self.number(list))
    }

    fn number(&mut self, list: List) -> ListId {
        let number = ListId(free_number(&list.name, NamedPolicy::OTHER_BITS, |number| {
            self.lists.contains_key(&ListId(number))
        }));
        self.numbers.insert(list.name.clone(), number);
        self.lists.insert(number, list);
        number
    }
}

/// The list, unless it is too long.
fn check_length(list: List, place: &[PathSegment]) -> Result<List, CheckError> {
    check_count(list.rules.len(), &list.name, place).map(|()| list)
}

fn check_count(count: usize, of: &str, place: &[PathSegment]) -> Result<(), CheckError> {
    if count > MAX_RULES {
        let message = format!("{of} has {count} rules; a list has at most {MAX_RULES}");
        let path = place.to_vec();
        return Err(CheckError { path, message });
    }
    Ok(())
}

/// The access control list of a port for a direction, and its key.
fn acl(port: &PortConfig, direction: Direction) -> (&'static str, Option<&Name>) {
    match direction {
        Direction::From => ("acl-from", port.acl_from.as_ref()),
        Direction::To => ("acl-to", port.acl_to.as_ref()),
    }
}

/// The place of an access control list's rule.
pub(crate) fn acl_place(acl: usize, rule: usize) -> [PathSegment; 4] {
    [
        PathSegment::Key("acl"),
        PathSegment::Index(acl),
        PathSegment::Key("rule"),
        PathSegment::Index(rule),
    ]
}

/// Adds the rules of an access control list, in the order in which they are tried.
fn add_acl(
    rules: &mut Rules,
    (index, acl): (usize, &AclConfig),
    direction: Direction,
    names: &mut Names<'_>,
) -> Result<(), CheckError> {
    let mut stated: Vec<(u16, usize, Match, Verdict)> = Vec::with_capacity(acl.rules.len());
    for (number, rule) in acl.rules.iter().enumerate() {
        let place = acl_place(index, number);
        let Some(action) = rule.action else {
            let message = "a rule of an acl needs `action`: \"allow\", \"drop\" or \"reject\"".into();
            return Err(CheckError {
                path: place.to_vec(),
                message,
            });
        };
        if rule.replies {
            let message =
                "`replies` is for rules of security groups; an acl has a rule for each direction".into();
            return Err(at(&place, "replies", message));
        }
        let matches = matches(rule, direction, names, &place)?;
        stated.push((rule.priority.unwrap_or(0), number, matches, verdict(action)));
    }
    stated.sort_by_key(|(priority, ..)| Reverse(*priority));
    let (mut priority, mut before) = (FIRST, None);
    for (_, number, matches, verdict) in stated {
        if before.is_some_and(|before| before != verdict) {
            priority -= 1;
        }
        before = Some(verdict);
        let origin = Origin::Acl(acl.name.clone(), number + 1);
        let rule = rules.add(priority, matches, verdict, origin);
        (rule.trial, rule.log) = (acl.rules[number].trial, acl.rules[number].log);
    }
    Ok(())
}
