//! What a configuration's policies come to.

use crate::mirrors::PortMirror;
use configuration::{Guard, Name};
use flow::NamedPolicy;
use rule_list::{IpPrefix, ListId, MacPrefix, Match, Range, Rule, SetId, Transport, Verdict};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::{Hash, Hasher};

/// TCP and SCTP, whose headers are longer than the 8 bytes that a first fragment has at least. A later
/// fragment brings the rest (RFC 1858, 3).
const LONG_HEADERS: [u8; 2] = [6, 132];

/// Lists and sets, and which port has which lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "see the type")]
pub struct Policies {
    pub lists: BTreeMap<ListId, List>,
    pub sets: BTreeMap<SetId, Set>,
    /// Ports with policies, by name.
    pub ports: BTreeMap<String, PortLists>,
    /// Mirrors of ports, by name.
    pub mirrors: BTreeMap<String, Vec<PortMirror>>,
}

/// The lists that a port's packets meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortLists {
    /// Judges packets from the port, in filter [`GUARDS`](flow::GUARDS).
    pub guards: Option<ListId>,
    /// Judges packets from the port, in filter [`ACLS`](flow::ACLS).
    pub from: Option<ListId>,
    /// Judges packets to the port, in filter [`ACLS`](flow::ACLS).
    pub to: Option<ListId>,
    /// Marks packets from the port, in filter [`MARKS`](flow::MARKS).
    pub marks: Option<ListId>,
}

impl PortLists {
    /// All that the port has.
    pub fn all(&self) -> impl Iterator<Item = ListId> {
        [self.guards, self.from, self.to, self.marks]
            .into_iter()
            .flatten()
    }
}

impl From<NamedPolicy> for PortLists {
    fn from(policy: NamedPolicy) -> PortLists {
        PortLists {
            guards: Some(policy.guards),
            from: Some(policy.from),
            to: Some(policy.to),
            marks: Some(policy.marks),
        }
    }
}

/// A list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Name for users: what the list is made of.
    pub name: String,
    /// What happens to packets that match no rule.
    pub default: Verdict,
    /// Rules in the order of their priorities.
    pub rules: Vec<ListRule>,
}

impl List {
    /// A list by which all packets pass.
    pub(crate) fn open() -> List {
        List {
            name: String::new(),
            default: Verdict::Allow,
            rules: Vec::new(),
        }
    }

    /// A number by which this list can be told from others, and from former versions.
    pub fn tag(&self) -> u64 {
        let rules = self.rules.iter().map(|rule| &rule.rule);
        hash(&(self.default, rules.collect::<Vec<_>>()))
    }
}

/// A rule with its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "see the type")]
pub struct ListRule {
    pub rule: Rule,
    pub origin: Origin,
}

/// Where a rule comes from. Places count from 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A rule of an access control list.
    Acl(Name, usize),
    /// A rule of a security group for packets to members, or from them.
    Group(Name, Direction, usize),
    /// Replies to what a rule of a group for that direction allows.
    Replies(Name, Direction, usize),
    /// What every member of a group may do.
    Member,
    /// A guard.
    Guard(Guard),
    /// Guards, or an access control list's rules about ports, do not see what the packet holds.
    Hidden,
    /// Marks of a port that is not trusted.
    Mark,
    /// What matches no other rule, where that is logged.
    Default,
    /// The control process learns addresses from the packet.
    Leases,
}

/// Direction of packets, as a port's guest sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the port.
    From,
    /// To the port.
    To,
}

/// A set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Name for users.
    pub name: String,
    /// All members.
    pub members: SetMembers,
}

/// Members of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetMembers {
    /// IP addresses.
    Addresses(BTreeSet<IpPrefix>),
    /// MAC addresses.
    Macs(BTreeSet<MacPrefix>),
    /// Names of ports, which need not exist.
    Ports(BTreeSet<String>),
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::From => "from",
            Direction::To => "to",
        })
    }
}

impl Direction {
    /// What is sent in answer.
    pub fn opposite(self) -> Direction {
        match self {
            Direction::From => Direction::To,
            Direction::To => Direction::From,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Acl(name, place) => write!(f, "acl {name} rule {place}"),
            Origin::Group(name, direction, place) => write!(f, "group {name} {direction} rule {place}"),
            Origin::Replies(name, direction, place) => {
                write!(f, "group {name} replies to {direction} rule {place}")
            }
            Origin::Member => f.write_str("members of groups"),
            Origin::Guard(guard) => write!(f, "guard {guard}"),
            Origin::Hidden => f.write_str("guard headers-hidden"),
            Origin::Mark => f.write_str("marks"),
            Origin::Default => f.write_str("default"),
            Origin::Leases => f.write_str("address source"),
        }
    }
}

/// Rules that are collected for a list, in order.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    all: Vec<ListRule>,
    numbers: BTreeSet<u32>,
    /// Last numbers of rules that did not get the number that they wanted, by that one. There may be
    /// thousands of equal rules.
    twins: HashMap<u32, u32>,
}

impl Rules {
    /// Adds a rule behind the others, whose priorities are no lower.
    pub fn add(&mut self, priority: u32, matches: Match, verdict: Verdict, origin: Origin) -> &mut Rule {
        // Counters follow the number, so what the rule says decides it, and its place does not.
        let wanted = free_number(&(&matches, verdict), 32, |_| false);
        let mut number = self
            .twins
            .get(&wanted)
            .map_or(wanted, |last| last.wrapping_add(1));
        while !self.numbers.insert(number) {
            number = number.wrapping_add(1);
        }
        if number != wanted {
            self.twins.insert(wanted, number);
        }
        let rule = Rule {
            number,
            priority,
            matches,
            verdict,
            trial: false,
            log: false,
        };
        self.all.push(ListRule { rule, origin });
        &mut self.all.last_mut().expect("a rule was pushed").rule
    }

    /// Has first fragments dropped whose headers are too short for rules that drop by ports or flags, behind
    /// the first of these rules. Missing ports count as 0, which is no connection's.
    pub fn drop_headless(&mut self) {
        for protocol in LONG_HEADERS {
            let matches = Match {
                ip_proto: Some(protocol),
                transport: Some(Transport::Ports {
                    source: Range::ALL,
                    destination: Range::one(0),
                }),
                ..Match::default()
            };
            let found = self.all.iter().position(|rule| {
                let Rule {
                    matches,
                    verdict,
                    trial,
                    ..
                } = &rule.rule;
                let needs_header = matches.transport.is_some() || matches.tcp_flags.is_some();
                matches.ip_proto == Some(protocol) && needs_header && !verdict.passes() && !trial
            });
            if let Some(place) = found {
                let Rule { priority, log, .. } = self.all[place].rule;
                self.add(priority, matches, Verdict::Drop, Origin::Hidden).log = log;
                self.all[place + 1..].rotate_right(1);
            }
        }
    }

    /// Has all that is dropped logged, also by the default of the list.
    pub fn log_drops(&mut self, default: Verdict) {
        if !default.passes() {
            self.add(0, Match::default(), default, Origin::Default);
        }
        let drops = self.all.iter_mut().filter(|rule| !rule.rule.verdict.passes());
        drops.for_each(|rule| rule.rule.log = true);
    }

    pub fn into_list(self, name: String, default: Verdict) -> List {
        List {
            name,
            default,
            rules: self.all,
        }
    }
}

/// A number of so many bits for something, which is always the same unless it is taken.
pub(crate) fn free_number(of: &impl Hash, bits: u32, is_taken: impl Fn(u32) -> bool) -> u32 {
    // The highest bits depend on all that was hashed.
    let mut number = (hash(of) >> 32) as u32 >> (32 - bits);
    while is_taken(number) {
        number = number.wrapping_add(1) & (u32::MAX >> (32 - bits));
    }
    number
}

/// A hash that is the same in each process of a version of this program (FNV-1a).
fn hash(of: &impl Hash) -> u64 {
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    of.hash(&mut hasher);
    hasher.finish()
}

struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        self.0 = bytes.iter().fold(self.0, add);
    }
}
