//! Rule lists, judged by trying rule after rule, and changes of lists and sets.

use classifier::Rules;
use flow::{ControllerId, FlowKey, FlowStats, ListId, PortId, VLAN_PRESENT};
use proptest::prelude::*;
use rule_list::{
    Addresses, Builder, IpPrefix, MacPrefix, Macs, Marks, Match, Member, Ports, Range, Rule, SetId, SetKind,
    Transport, Verdict, Vlan,
};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};

/// Lists that filters name: of two controllers, and not all of them exist at first.
pub const LISTS: [ListId; 3] = [ListId(1), ListId(2), ListId(1 << ControllerId::LIST_BITS | 1)];

/// A set of addresses and one of ports, which each of the controllers has.
const ADDRESSES: SetId = SetId(1);
const PORTS: SetId = SetId(2);

/// A rule, or the default of a list, whose packets are counted.
type Counted = (ListId, Option<u32>, Verdict, bool);

/// A change of lists or sets.
#[derive(Clone, Debug)]
pub enum Change {
    /// Puts a list in the place of its former version.
    Put(ListId, Vec<Rule>, Verdict),
    /// Exchanges one of its rules for another one.
    Exchange(ListId, usize, Rule),
    Remove(ListId),
    /// Adds members that are not there, and takes out others.
    Toggle(ControllerId, Vec<Member>),
}

/// The definition of lists.
#[derive(Default)]
pub struct TwinRules {
    lists: BTreeMap<ListId, (Vec<Rule>, Verdict)>,
    members: HashMap<(ControllerId, SetId), Vec<Member>>,
    pub counts: HashMap<Counted, FlowStats>,
}

/// What a list says about a packet.
pub struct Judgement {
    pub verdict: Verdict,
    /// The rules to count.
    pub counted: Vec<Counted>,
}

pub fn verdicts() -> impl Strategy<Value = Verdict> {
    let marks = (proptest::option::of(0..8u8), proptest::option::of(0..64u8));
    let marks = marks.prop_map(|(vlan_priority, dscp)| Verdict::Mark(Marks { vlan_priority, dscp }));
    prop_oneof![
        4 => Just(Verdict::Allow),
        2 => Just(Verdict::Drop),
        1 => Just(Verdict::Reject),
        1 => marks,
    ]
}

fn owner(list: ListId) -> ControllerId {
    list.controller()
}

fn addresses() -> impl Strategy<Value = Addresses> {
    prop_oneof![
        address().prop_map(Addresses::Prefix),
        Just(Addresses::Set(ADDRESSES))
    ]
}

fn address() -> impl Strategy<Value = IpPrefix> {
    (0u32..4, 30u8..=32).prop_map(|(low, len)| IpPrefix {
        address: IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | low & u32::MAX << (32 - len))),
        len,
    })
}

fn macs() -> impl Strategy<Value = Macs> {
    (0u64..4, 47u8..=48).prop_map(|(low, len)| {
        let address = (0x0200_0000_0000 | low) & u64::MAX << (48 - len);
        Macs::Prefix(MacPrefix { address, len })
    })
}

fn matches() -> impl Strategy<Value = Match> {
    let link = (
        prop::option::weighted(
            0.3,
            prop_oneof![
                (0u32..3).prop_map(|port| Ports::One(PortId(port))),
                Just(Ports::Set(PORTS))
            ],
        ),
        prop::option::weighted(0.2, macs()),
        prop::option::weighted(0.2, macs()),
        prop::option::weighted(
            0.3,
            prop_oneof![
                Just(Vlan::Untagged),
                Just(Vlan::Tagged),
                (0u16..4).prop_map(Vlan::Id)
            ],
        ),
        prop::option::weighted(0.3, prop::sample::select(vec![0x0806u16, 0x88b5, 0x0800])),
    );
    let network = (
        prop::option::weighted(0.3, addresses()),
        prop::option::weighted(0.4, addresses()),
        prop::option::weighted(
            0.4,
            (prop_oneof![Just(6u8), Just(17)], 0u16..4, 0u16..4).prop_map(|(protocol, one, other)| {
                let ports = Transport::Ports {
                    source: Range::ALL,
                    destination: Range {
                        first: one.min(other),
                        last: one.max(other),
                    },
                };
                (protocol, ports)
            }),
        ),
    );
    (link, network).prop_map(|((in_port, eth_src, eth_dst, vlan, eth_type), network)| {
        let (ip_src, ip_dst, transport) = network;
        let is_ip = ip_src.is_some() || ip_dst.is_some() || transport.is_some();
        Match {
            in_port,
            eth_src,
            eth_dst,
            vlan,
            eth_type: if is_ip { Some(0x0800) } else { eth_type },
            ip_src,
            ip_dst,
            ip_proto: transport.map(|(protocol, _)| protocol),
            transport: transport.map(|(_, ports)| ports),
            ..Match::default()
        }
    })
}

fn rules() -> impl Strategy<Value = Rule> {
    (
        0u32..8,
        0u32..3,
        matches(),
        verdicts(),
        prop::bool::weighted(0.15),
    )
        .prop_map(|(number, priority, matches, verdict, trial)| Rule {
            number,
            priority,
            matches,
            verdict,
            trial,
            log: false,
        })
}

pub fn changes() -> impl Strategy<Value = Change> {
    let list = || prop::sample::select(LISTS.to_vec());
    let member = prop_oneof![
        address().prop_map(Member::Address),
        (0u32..3).prop_map(|port| Member::Port(PortId(port)))
    ];
    let controller = prop_oneof![Just(ControllerId(0)), Just(ControllerId(1))];
    prop_oneof![
        10 => (list(), prop::collection::vec(rules(), 0..7), verdicts())
            .prop_map(|(list, rules, default)| Change::Put(list, rules, default)),
        4 => (list(), 0usize..8, rules()).prop_map(|(list, at, rule)| Change::Exchange(list, at, rule)),
        1 => list().prop_map(Change::Remove),
        4 => (controller, prop::collection::vec(member, 1..3))
            .prop_map(|(controller, members)| Change::Toggle(controller, members)),
    ]
}

/// The sets of both controllers.
pub fn make_sets(rules: &Rules) {
    for controller in [0, 1].map(ControllerId) {
        rules
            .create_set(controller, ADDRESSES, SetKind::Addresses)
            .unwrap();
        rules.create_set(controller, PORTS, SetKind::Ports).unwrap();
    }
}

impl Change {
    /// Changes both.
    pub fn make(self, rules: &Rules, twin: &mut TwinRules) {
        match self {
            Change::Put(list, new, default) => twin.put(list, Builder::new(default), new, rules, false),
            Change::Exchange(list, at, rule) => {
                let Some(present) = rules.get(list) else { return };
                let mut builder = Builder::from_list(present);
                let (there, _) = twin.lists.get_mut(&list).unwrap();
                if !there.is_empty() {
                    assert!(builder.remove(there.remove(at % there.len()).number));
                }
                twin.put(list, builder, vec![rule], rules, true);
            }
            Change::Remove(list) => {
                rules.remove(list).finish();
                twin.lists.remove(&list);
                twin.counts.retain(|counted, _| counted.0 != list);
            }
            Change::Toggle(controller, members) => {
                for member in members {
                    let set = if matches!(member, Member::Port(_)) {
                        PORTS
                    } else {
                        ADDRESSES
                    };
                    let there = twin.members.entry((controller, set)).or_default();
                    let (mut remove, mut add) = (Vec::new(), Vec::new());
                    match there.iter().position(|one| *one == member) {
                        Some(at) => remove.push(there.remove(at)),
                        None => {
                            there.push(member);
                            add.push(member);
                        }
                    }
                    rules.change_set(controller, set, &remove, &add).unwrap().finish();
                }
            }
        }
    }
}

impl TwinRules {
    fn put(&mut self, list: ListId, mut builder: Builder, new: Vec<Rule>, rules: &Rules, on: bool) {
        let former = self.lists.remove(&list).filter(|_| on);
        let (mut all, mut default) = former.unwrap_or((Vec::new(), Verdict::Drop));
        for rule in new {
            if builder.add(rule.clone()).is_ok() {
                let place = all.partition_point(|other: &Rule| other.priority >= rule.priority);
                all.insert(place, rule);
            }
        }
        let (made, change) = builder.compile().finish().unwrap();
        assert_eq!(made.rules(), &all[..]);
        if !on {
            default = made.default_verdict();
        }
        rules
            .put(list, made, 0, Some(change).filter(|_| on))
            .unwrap()
            .finish();
        self.counts.retain(|&(of, number, verdict, trial), _| {
            let is_it =
                |rule: &Rule| (Some(rule.number), rule.verdict, rule.trial) == (number, verdict, trial);
            of != list || number.is_none() && verdict == default || all.iter().any(is_it)
        });
        self.lists.insert(list, (all, default));
    }

    fn has(&self, list: ListId, set: SetId, is_it: impl Fn(&Member) -> bool) -> bool {
        let members = self.members.get(&(owner(list), set));
        members.is_some_and(|members| members.iter().any(is_it))
    }

    fn holds(&self, list: ListId, matches: &Match, key: &FlowKey) -> bool {
        let in_prefix = |address: u32, prefix: &IpPrefix| match prefix.address {
            IpAddr::V4(first) => (address ^ first.to_bits()) >> (32 - prefix.len) == 0,
            IpAddr::V6(_) => false,
        };
        let in_port = matches.in_port.is_none_or(|ports| match ports {
            Ports::One(port) => port.0 == key.in_port(),
            Ports::Set(set) => self.has(list, set, |one| *one == Member::Port(PortId(key.in_port()))),
        });
        let has_mac = |macs: Option<Macs>, mac: u64| match macs {
            Some(Macs::Prefix(prefix)) => (mac ^ prefix.address) >> (48 - prefix.len) == 0,
            Some(Macs::Set(_)) => false,
            None => true,
        };
        let vlan = matches.vlan.is_none_or(|vlan| match vlan {
            Vlan::Untagged => key.vlan_tci() == 0,
            Vlan::Tagged => key.vlan_tci() != 0,
            Vlan::Id(id) => key.vlan_tci() & 0x1fff == VLAN_PRESENT | id,
        });
        let has_address = |addresses: Option<Addresses>, address: u32| match addresses {
            Some(Addresses::Prefix(prefix)) => in_prefix(address, &prefix),
            Some(Addresses::Set(set)) => self.has(
                list,
                set,
                |one| matches!(one, Member::Address(prefix) if in_prefix(address, prefix)),
            ),
            None => true,
        };
        let transport = matches.transport.is_none_or(|transport| match transport {
            Transport::Ports { destination, .. } => {
                key.ip_frag() < 2 && (destination.first..=destination.last).contains(&key.tp_dst())
            }
            Transport::Icmp { .. } => false,
        });
        in_port
            && has_mac(matches.eth_src, key.eth_src())
            && has_mac(matches.eth_dst, key.eth_dst())
            && vlan
            && has_address(matches.ip_src, key.ip_src() as u32)
            && has_address(matches.ip_dst, key.ip_dst() as u32)
            && transport
            && matches.eth_type.is_none_or(|eth_type| eth_type == key.eth_type())
            && matches.ip_proto.is_none_or(|protocol| protocol == key.ip_proto())
    }

    /// The first rule that matches decides, and those on trial before it count. `None` if there is no list.
    pub fn judge(&self, list: ListId, key: &FlowKey) -> Option<Judgement> {
        let (rules, default) = self.lists.get(&list)?;
        let mut counted = Vec::new();
        for rule in rules.iter().filter(|rule| self.holds(list, &rule.matches, key)) {
            counted.push((list, Some(rule.number), rule.verdict, rule.trial));
            if !rule.trial {
                let verdict = rule.verdict;
                return Some(Judgement { verdict, counted });
            }
        }
        counted.push((list, None, *default, false));
        let verdict = *default;
        Some(Judgement { verdict, counted })
    }

    /// All rules have counted what they should.
    pub fn check_counts(&self, rules: &Rules) -> Result<(), TestCaseError> {
        let count = |counted| self.counts.get(&counted).copied().unwrap_or_default();
        for (&list, (there, verdict)) in &self.lists {
            let (default, found) = rules.rules(list, 0, 100, 0).unwrap();
            prop_assert_eq!(default, count((list, None, *verdict, false)), "{}: default", list);
            prop_assert_eq!(found.len(), there.len());
            for (rule, stats) in found {
                let counted = (list, Some(rule.number), rule.verdict, rule.trial);
                prop_assert_eq!(stats, count(counted), "{}: {:?}", list, rule);
            }
        }
        Ok(())
    }
}
