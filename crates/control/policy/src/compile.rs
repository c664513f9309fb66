//! All policies of a configuration.

use crate::groups;
use crate::guards;
use crate::lists::{Direction, List, Origin, Policies, PortLists, Rules, free_number};
use crate::names::{Names, at};
use crate::rules::{matches, verdict};
use configuration::{AclConfig, CheckError, Config, Name, PathSegment, PortConfig};
use flow::ControllerId;
use rule_list::{ListId, MAX_RULES, Match, Verdict};
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
    let mut ports = BTreeMap::new();
    for (number, switch) in config.switches.iter().enumerate() {
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
    Ok(Policies {
        lists: compiler.lists,
        sets: compiler.names.into_sets(),
        ports,
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

    /// The lists of a port.
    fn port(&mut self, port: &PortConfig, place: &[PathSegment]) -> Result<PortLists, CheckError> {
        let guards = guards::list(port, &mut self.names, place)?;
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
        Ok(PortLists {
            guards: guards.map(|list| self.number(list)),
            from: self.policy(port, Direction::From, place)?,
            to: self.policy(port, Direction::To, place)?,
        })
    }

    /// The list of a port's access control list and groups for a direction.
    fn policy(
        &mut self,
        port: &PortConfig,
        direction: Direction,
        place: &[PathSegment],
    ) -> Result<Option<ListId>, CheckError> {
        let (key, acl) = match direction {
            Direction::From => ("acl-from", &port.acl_from),
            Direction::To => ("acl-to", &port.acl_to),
        };
        let groups: Vec<_> = port
            .security_groups
            .iter()
            .filter_map(|group| self.names.group(group))
            .collect();
        let is_limited = groups
            .iter()
            .any(|(_, group)| groups::stated(group, direction).is_some());
        let name = list_name(
            acl.as_ref(),
            if is_limited { &port.security_groups } else { &[] },
            direction,
        );
        let Some(name) = name else { return Ok(None) };
        if let Some(number) = self.numbers.get(&name) {
            return Ok(Some(*number));
        }
        let mut rules = Rules::default();
        let mut default = Verdict::Drop;
        if let Some(acl) = acl {
            let Some(stated) = self.names.acl(acl) else {
                return Err(at(place, key, format!("there is no acl {acl}")));
            };
            default = verdict(stated.1.default);
            add_acl(&mut rules, stated, direction, &mut self.names)?;
        }
        if is_limited {
            default = Verdict::Drop;
            for group in groups {
                groups::add(&mut rules, group, direction, &mut self.names)?;
            }
            groups::add_common(&mut rules, direction);
        }
        let list = rules.into_list(name, default);
        if list.rules.len() > MAX_RULES {
            let message = format!(
                "{} has {} rules; a list has at most {MAX_RULES}",
                list.name,
                list.rules.len()
            );
            return Err(CheckError {
                path: place.to_vec(),
                message,
            });
        }
        Ok(Some(self.number(list)))
    }

    fn number(&mut self, list: List) -> ListId {
        let number = ListId(free_number(&list.name, ControllerId::LIST_BITS, |number| {
            self.lists.contains_key(&ListId(number))
        }));
        self.numbers.insert(list.name.clone(), number);
        self.lists.insert(number, list);
        number
    }
}

/// A name that says what the list is made of; `None` for a list of nothing.
fn list_name(acl: Option<&Name>, groups: &[Name], direction: Direction) -> Option<String> {
    let mut parts = Vec::new();
    parts.extend(acl.map(|acl| format!("acl {acl}")));
    if let [_, ..] = groups {
        let mut groups: Vec<&str> = groups.iter().map(Name::as_str).collect();
        groups.sort_unstable();
        parts.push(format!("groups {}", groups.join(" ")));
    }
    (!parts.is_empty()).then(|| format!("{direction}: {}", parts.join(", ")))
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
        rules.add(priority, matches, verdict, origin).trial = acl.rules[number].trial;
    }
    Ok(())
}
