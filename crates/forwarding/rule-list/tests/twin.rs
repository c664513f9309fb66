//! Random lists, sets, packets and changes, judged by look-ups and by trying rule after rule.

#![allow(clippy::unwrap_used)]

use flow::{FieldId, FlowKey, FlowMask, KEY_WORDS, PortId, Unseen, VLAN_PRESENT};
use proptest::prelude::*;
use rule_list::{
    Addresses, Answer, Builder, Fragment, IpPrefix, ListId, MacPrefix, Macs, Match, Member, Outcome, Outline,
    Ports, Range, Rule, RuleList, RuleLists, SetId, SetKind, Standing, TcpFlags, Transport, Verdict, Vlan,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

const LIST: ListId = ListId(7);
/// Sets of each kind: the number's remainder by three is the kind.
const SETS: u32 = 6;

fn kind(set: u32) -> SetKind {
    [SetKind::Addresses, SetKind::Macs, SetKind::Ports][(set % 3) as usize]
}

/// Few values, so that rules, members and packets often meet, and neighbours of each other.
fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0..8u32).prop_map(|low| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | low & 3 | (low & 4) << 20))),
        // Their low bits are those of the IPv4 addresses.
        (0..8u128).prop_map(|low| IpAddr::V6(Ipv6Addr::from_bits(0x0a00_0000 | low & 3 | (low & 4) << 120))),
    ]
}

fn ip_prefix() -> impl Strategy<Value = IpPrefix> {
    (
        address(),
        prop_oneof![Just(0u8), Just(8), Just(9), Just(31), Just(32), Just(128)],
    )
        .prop_map(|(address, len)| {
            let (address, len) = match address {
                IpAddr::V4(it) => {
                    let len = len.min(32);
                    let bits = it.to_bits() & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                    (IpAddr::V4(Ipv4Addr::from_bits(bits)), len)
                }
                IpAddr::V6(it) => {
                    let len = if len == 31 { 127 } else { len };
                    let bits = it.to_bits() & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                    (IpAddr::V6(Ipv6Addr::from_bits(bits)), len)
                }
            };
            IpPrefix { address, len }
        })
}

fn mac_prefix() -> impl Strategy<Value = MacPrefix> {
    (0..4u64, prop_oneof![Just(8u8), Just(47), Just(48)]).prop_map(|(low, len)| MacPrefix {
        address: (0x0200_0000_0000 | low) & (u64::MAX << (48 - len)),
        len,
    })
}

fn set(kind: u32) -> impl Strategy<Value = SetId> {
    (0..SETS / 3).prop_map(move |number| SetId(3 * number + kind))
}

fn range(limit: u16) -> impl Strategy<Value = Range> {
    prop_oneof![
        Just(Range::ALL),
        (0..4u16).prop_map(Range::one),
        (0..6u16, 0..6u16).prop_map(|(one, other)| Range {
            first: one.min(other),
            last: one.max(other)
        }),
        (0..6u16).prop_map(move |first| Range { first, last: limit }),
    ]
}

fn transport() -> impl Strategy<Value = (u8, Transport)> {
    prop_oneof![
        (prop_oneof![Just(6), Just(17)], range(u16::MAX), range(u16::MAX))
            .prop_map(|(protocol, source, destination)| (protocol, Transport::Ports { source, destination })),
        (prop_oneof![Just(1), Just(58)], range(255), range(255))
            .prop_map(|(protocol, kind, code)| (protocol, Transport::Icmp { kind, code })),
    ]
}

fn matches() -> impl Strategy<Value = Match> {
    let link = (
        prop::option::weighted(
            0.3,
            prop_oneof![
                (0..3u32).prop_map(|port| Ports::One(PortId(port))),
                set(2).prop_map(Ports::Set)
            ],
        ),
        prop::option::weighted(
            0.3,
            prop_oneof![mac_prefix().prop_map(Macs::Prefix), set(1).prop_map(Macs::Set)],
        ),
        prop::option::weighted(
            0.2,
            prop_oneof![mac_prefix().prop_map(Macs::Prefix), set(1).prop_map(Macs::Set)],
        ),
        prop::option::weighted(
            0.2,
            prop_oneof![Just(0x0800u16), Just(0x0806), Just(0x86dd), Just(0x88cc)],
        ),
        prop::option::weighted(
            0.2,
            prop_oneof![
                Just(Vlan::Untagged),
                Just(Vlan::Tagged),
                (0..3u16).prop_map(Vlan::Id)
            ],
        ),
    );
    let addresses = || {
        prop::option::weighted(
            0.4,
            prop_oneof![
                ip_prefix().prop_map(Addresses::Prefix),
                set(0).prop_map(Addresses::Set)
            ],
        )
    };
    let network = (
        addresses(),
        addresses(),
        prop::option::weighted(
            0.3,
            prop_oneof![2 => Just(6u8), 2 => Just(17), 2 => Just(1), 2 => Just(2), 3 => Just(58)],
        ),
        prop::option::weighted(
            0.2,
            prop_oneof![
                Just(Fragment::No),
                Just(Fragment::NotLater),
                Just(Fragment::Later)
            ],
        ),
        prop::option::weighted(0.4, transport()),
        prop::option::weighted(
            0.1,
            (0..4u16, 1..4u16).prop_map(|(value, mask)| TcpFlags {
                value: value & mask,
                mask,
            }),
        ),
    );
    let message = (
        prop::option::weighted(0.1, ip_prefix()),
        prop::option::weighted(0.15, mac_prefix()),
        prop::option::weighted(0.1, mac_prefix()),
    );
    (link, network, message).prop_map(|(link, network, (nd_target, nd_sll, nd_tll))| {
        let (in_port, eth_src, eth_dst, eth_type, vlan) = link;
        let (ip_src, ip_dst, ip_proto, fragment, transport, tcp_flags) = network;
        Match {
            in_port,
            eth_src,
            eth_dst,
            eth_type,
            vlan,
            ip_src,
            ip_dst,
            ip_proto: tcp_flags.map(|_| 6).or(transport.map(|it| it.0)).or(ip_proto),
            fragment,
            transport: transport.map(|it| it.1),
            tcp_flags,
            nd_target,
            nd_sll,
            nd_tll,
            connection: None,
        }
    })
}

fn key() -> impl Strategy<Value = FlowKey> {
    let link = (
        0..4u32,
        0..5u64,
        0..5u64,
        0..4u16,
        prop_oneof![Just(0x0800u16), Just(0x0806), Just(0x86dd), Just(0x88cc)],
    );
    let network = (
        address(),
        address(),
        prop_oneof![Just(6u8), Just(17), Just(1), Just(58), Just(2)],
        0..3u8,
    );
    let transport = (0..8u16, prop_oneof![0..8u16, Just(u16::MAX)], 0..8u16);
    (link, network, transport, any::<bool>()).prop_map(|(link, network, transport, priority)| {
        let mut key = FlowKey::default();
        key.set_in_port(link.0);
        key.set_eth_src(0x0200_0000_0000 | link.1);
        key.set_eth_dst(0x0200_0000_0000 | link.2);
        if link.3 > 0 {
            key.set_vlan_tci(VLAN_PRESENT | (link.3 - 1) | u16::from(priority) << 13);
        }
        key.set_eth_type(link.4);
        let bits = |address: IpAddr| match address {
            IpAddr::V4(it) => u128::from(it.to_bits()),
            IpAddr::V6(it) if link.4 == 0x86dd => it.to_bits(),
            IpAddr::V6(it) => u128::from(it.to_bits() as u32),
        };
        if link.4 != 0x88cc {
            key.set_ip_src(bits(network.0));
            key.set_ip_dst(bits(network.1));
            key.set_ip_proto(network.2);
        }
        if matches!(link.4, 0x0800 | 0x86dd) {
            key.set_ip_frag(network.3);
            if network.3 != 2 {
                key.set_tp_src(transport.0);
                key.set_tp_dst(transport.1);
                key.set_tcp_flags(transport.2);
            }
        }
        if link.4 == 0x0806 || network.2 == 58 && link.4 == 0x86dd {
            key.set_nd_sll(0x0200_0000_0000 | u64::from(transport.0));
            key.set_nd_tll(0x0200_0000_0000 | u64::from(transport.2));
        }
        if network.2 == 58
            && link.4 == 0x86dd
            && let IpAddr::V6(target) = network.0
        {
            key.set_nd_target(target.to_bits());
        }
        key
    })
}

/// What the twin knows of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Yes,
    No,
    Unknown,
}

/// Rules in order, and members of sets.
#[derive(Clone, Debug, Default)]
struct Twin {
    rules: Vec<Rule>,
    members: BTreeMap<SetId, Vec<Member>>,
}

fn in_prefix(address: IpAddr, prefix: IpPrefix) -> bool {
    let (one, other, width) = match (address, prefix.address) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits().into(), other.to_bits().into(), 32),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits(), other.to_bits(), 128),
        _ => return false,
    };
    let differing: u128 = one ^ other;
    differing.checked_shr(width - u32::from(prefix.len)).unwrap_or(0) == 0
}

fn in_mac_prefix(address: u64, prefix: MacPrefix) -> bool {
    (address ^ prefix.address) >> (48 - prefix.len) == 0
}

/// A prefix of no bits asks for the version of IP only.
fn is_condition(addresses: &Addresses) -> bool {
    !matches!(addresses, Addresses::Prefix(prefix) if prefix.len == 0)
}

fn in_range(number: u16, range: Range) -> bool {
    (range.first..=range.last).contains(&number)
}

impl Twin {
    fn has(&self, set: SetId, is_member: impl Fn(&Member) -> bool) -> bool {
        self.members
            .get(&set)
            .is_some_and(|members| members.iter().any(is_member))
    }

    fn mac_holds(&self, address: u64, macs: Macs) -> bool {
        match macs {
            Macs::Prefix(prefix) => in_mac_prefix(address, prefix),
            Macs::Set(set) => self.has(
                set,
                |member| matches!(member, Member::Mac(prefix) if in_mac_prefix(address, *prefix)),
            ),
        }
    }

    fn address_holds(&self, address: IpAddr, addresses: Addresses) -> bool {
        match addresses {
            Addresses::Prefix(prefix) => in_prefix(address, prefix),
            Addresses::Set(set) => self.has(
                set,
                |member| matches!(member, Member::Address(prefix) if in_prefix(address, *prefix)),
            ),
        }
    }

    /// Each condition of a rule, spelt out, with the field that it needs.
    fn conditions(&self, rule: &Match, key: &FlowKey) -> Vec<(FieldId, bool)> {
        let mut all = Vec::new();
        let ethernet_types: &[u16] = match (rule.eth_type, rule.ip_src, rule.ip_dst, rule.transport) {
            (Some(0x0800), ..) => &[0x0800],
            (Some(0x0806), ..) => &[0x0806],
            (Some(0x86dd), ..) => &[0x86dd],
            (Some(_), ..) => &[0x88cc],
            (None, Some(Addresses::Prefix(prefix)), ..) | (None, _, Some(Addresses::Prefix(prefix)), _) => {
                if prefix.address.is_ipv6() {
                    &[0x86dd]
                } else {
                    &[0x0800]
                }
            }
            (None, _, _, Some(Transport::Icmp { .. })) => {
                if rule.ip_proto == Some(58) {
                    &[0x86dd]
                } else {
                    &[0x0800]
                }
            }
            // No rule without a protocol has them.
            (None, ..) if rule.nd_target.is_some() || rule.nd_sll.or(rule.nd_tll).is_some() => &[0x86dd],
            (None, None, None, None) if rule.ip_proto.is_none() && rule.fragment.is_none() => &[],
            _ => &[0x0800, 0x86dd],
        };
        let ethernet_type = key.eth_type();
        if !ethernet_types.is_empty() {
            all.push((FieldId::EthType, ethernet_types.contains(&ethernet_type)));
        }
        let address = |bits: u128| match ethernet_type {
            0x86dd => IpAddr::V6(Ipv6Addr::from_bits(bits)),
            _ => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
        };
        if let Some(ports) = rule.in_port {
            let port = key.in_port();
            let holds = match ports {
                Ports::One(one) => one.0 == port,
                Ports::Set(set) => {
                    self.has(set, |member| matches!(member, Member::Port(one) if one.0 == port))
                }
            };
            all.push((FieldId::InPort, holds));
        }
        all.extend(
            rule.eth_src
                .map(|macs| (FieldId::EthSrc, self.mac_holds(key.eth_src(), macs))),
        );
        all.extend(
            rule.eth_dst
                .map(|macs| (FieldId::EthDst, self.mac_holds(key.eth_dst(), macs))),
        );
        if let Some(vlan) = rule.vlan {
            let tag = key.vlan_tci();
            let holds = match vlan {
                Vlan::Untagged => tag & VLAN_PRESENT == 0,
                Vlan::Tagged => tag & VLAN_PRESENT != 0,
                Vlan::Id(id) => tag & 0x1fff == VLAN_PRESENT | id,
            };
            all.push((FieldId::VlanTci, holds));
        }
        all.extend(
            rule.ip_src
                .filter(is_condition)
                .map(|it| (FieldId::IpSrc, self.address_holds(address(key.ip_src()), it))),
        );
        all.extend(
            rule.ip_dst
                .filter(is_condition)
                .map(|it| (FieldId::IpDst, self.address_holds(address(key.ip_dst()), it))),
        );
        all.extend(
            rule.ip_proto
                .map(|protocol| (FieldId::IpProto, key.ip_proto() == protocol)),
        );
        let has_transport = rule.transport.is_some() || rule.tcp_flags.is_some();
        let fragment = rule.fragment.or(has_transport.then_some(Fragment::NotLater));
        all.extend(fragment.map(|fragment| {
            let holds = match fragment {
                Fragment::No => key.ip_frag() == 0,
                Fragment::NotLater => key.ip_frag() < 2,
                Fragment::Later => key.ip_frag() == 2,
            };
            (FieldId::IpFrag, holds)
        }));
        if let Some(
            Transport::Ports { source, destination }
            | Transport::Icmp {
                kind: source,
                code: destination,
            },
        ) = rule.transport
        {
            let is_all = |range: Range| {
                range == Range::ALL
                    || matches!(rule.transport, Some(Transport::Icmp { .. }))
                        && range.first == 0
                        && range.last == 255
            };
            if !is_all(source) {
                all.push((FieldId::TpSrc, in_range(key.tp_src(), source)));
            }
            if !is_all(destination) {
                all.push((FieldId::TpDst, in_range(key.tp_dst(), destination)));
            }
        }
        all.extend(
            rule.tcp_flags
                .map(|flags| (FieldId::TcpFlags, key.tcp_flags() & flags.mask == flags.value)),
        );
        all.extend(rule.nd_target.filter(|target| target.len > 0).map(|target| {
            let address = IpAddr::V6(Ipv6Addr::from_bits(key.nd_target()));
            (FieldId::NdTarget, in_prefix(address, target))
        }));
        let links = [
            (FieldId::NdSll, rule.nd_sll, key.nd_sll()),
            (FieldId::NdTll, rule.nd_tll, key.nd_tll()),
        ];
        for (field, prefix, link) in links {
            all.extend(prefix.map(|prefix| (field, in_mac_prefix(link, prefix))));
        }
        all
    }

    fn holds(&self, rule: &Rule, key: &FlowKey, unseen: Unseen) -> Holds {
        let conditions = self.conditions(&rule.matches, key);
        let known = |field: FieldId| !unseen.hides(field);
        if conditions.iter().any(|(field, holds)| known(*field) && !holds) {
            Holds::No
        } else if conditions.iter().all(|(field, _)| known(*field)) {
            Holds::Yes
        } else {
            Holds::Unknown
        }
    }

    /// The number of the first rule that matches and is not on trial; `Err` if that is unknown.
    fn first_match(&self, key: &FlowKey, unseen: Unseen) -> Result<Option<u32>, ()> {
        self.matching(key, unseen).1
    }

    /// The numbers of rules on trial that match before, and of the rule that decides.
    fn matching(&self, key: &FlowKey, unseen: Unseen) -> (Vec<u32>, Result<Option<u32>, ()>) {
        let mut trials = Vec::new();
        for rule in &self.rules {
            match self.holds(rule, key, unseen) {
                Holds::Yes if rule.trial => trials.push(rule.number),
                Holds::Unknown if rule.trial => {}
                Holds::Yes => return (trials, Ok(Some(rule.number))),
                Holds::No => {}
                Holds::Unknown => return (trials, Err(())),
            }
        }
        (trials, Ok(None))
    }
}

/// Lists and their twin, changed together.
#[derive(Debug)]
struct Both {
    lists: RuleLists,
    twin: Twin,
}

impl Both {
    fn new(rules: Vec<Rule>, members: &[(u32, Member)]) -> Both {
        let mut lists = RuleLists::default();
        (0..SETS).for_each(|set| lists.sets_mut().create(SetId(set), kind(set)).unwrap());
        let mut both = Both {
            lists,
            twin: Twin::default(),
        };
        members
            .iter()
            .for_each(|&(set, member)| assert!(both.toggle(set, member).is_some()));
        let mut builder = Builder::new(Verdict::Drop);
        for rule in rules {
            if builder.add(rule.clone()).is_ok() {
                both.twin.rules.push(rule);
            }
        }
        both.twin
            .rules
            .sort_by_key(|rule| std::cmp::Reverse(rule.priority));
        let mut compiler = builder.compile();
        while !compiler.step(1).unwrap() {}
        both.lists.put(LIST, compiler.finish().unwrap().0).unwrap();
        both
    }

    /// Adds the member if it is not there, or takes it out.
    fn toggle(&mut self, set: u32, member: Member) -> Option<rule_list::SetChange> {
        let set = SetId(
            set - set % 3
                + match member {
                    Member::Address(_) => 0,
                    Member::Mac(_) => 1,
                    Member::Port(_) => 2,
                },
        );
        let members = self.twin.members.entry(set).or_default();
        let change = if let Some(at) = members.iter().position(|one| *one == member) {
            members.remove(at);
            self.lists.sets_mut().take_out(set, member).unwrap()
        } else {
            members.push(member);
            self.lists.sets_mut().insert(set, member).unwrap()
        };
        assert!(change.is_some());
        change
    }

    fn look_up(&self, key: &FlowKey, unseen: Unseen) -> Answer {
        self.lists.look_up(LIST, key, unseen).unwrap()
    }

    fn numbers(&self, places: &[u16]) -> Vec<u32> {
        let list = self.lists.get(LIST).unwrap();
        let number = |&place: &u16| list.rules()[usize::from(place)].number;
        places.iter().map(number).collect()
    }

    /// The rule's number, as the twin says it.
    fn number(&self, outcome: Outcome) -> Result<Option<u32>, ()> {
        match outcome {
            Outcome::Rule(place) => Ok(Some(
                self.lists.get(LIST).unwrap().rules()[usize::from(place)].number,
            )),
            Outcome::Default => Ok(None),
            Outcome::Unknown(_) => Err(()),
        }
    }
}

fn rules(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Rule>> {
    let rule = (0..4u32, matches(), prop::bool::weighted(0.2));
    prop::collection::vec(rule, count).prop_map(|rules| {
        let numbered = rules.into_iter().enumerate();
        numbered
            .map(|(number, (priority, matches, trial))| Rule {
                number: number as u32,
                priority,
                matches,
                verdict: Verdict::Allow,
                trial,
                log: false,
            })
            .collect()
    })
}

fn member() -> impl Strategy<Value = (u32, Member)> {
    let member = prop_oneof![
        4 => ip_prefix().prop_map(Member::Address),
        1 => mac_prefix().prop_map(Member::Mac),
        1 => (0..4u32).prop_map(|port| Member::Port(PortId(port))),
    ];
    (0..SETS, member)
}

/// `key` with the bits outside `noted` from `other`.
fn alike(key: &FlowKey, noted: &FlowMask, other: &FlowKey) -> FlowKey {
    let mut words = [0; KEY_WORDS];
    for (at, word) in words.iter_mut().enumerate() {
        let mask = noted.0.words[at];
        *word = key.words[at] & mask | other.words[at] & !mask;
    }
    FlowKey { words }
}

fn unseen() -> impl Strategy<Value = Unseen> {
    prop_oneof![3 => Just(Unseen::Nothing), 1 => prop::sample::select(&Unseen::ALL[..])]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// The first match is that of the twin; and so it is for every packet that agrees in the noted bits,
    /// none of which is unknown. The field that an answer names is unknown and matters.
    #[test]
    fn look_ups_find_the_first_match_and_note_what_decided(
        rules in rules(0..12),
        members in prop::collection::vec(member(), 0..12),
        keys in prop::collection::vec(key(), 1..12),
        unseen in unseen(),
    ) {
        let both = Both::new(rules, &members);
        for key in &keys {
            let answer = both.look_up(key, unseen);
            let (mut trials, first) = both.twin.matching(key, unseen);
            prop_assert_eq!(both.number(answer.outcome), first);
            trials.truncate(rule_list::MAX_TRIALS);
            prop_assert_eq!(both.numbers(answer.trials.places()), trials);
            if let Outcome::Unknown(field) = answer.outcome {
                prop_assert!(unseen.hides(field));
            }
            let hidden = unseen.bits();
            prop_assert!(answer.noted.0.words.iter().zip(&hidden.0.words).all(|(noted, hidden)| noted & hidden == 0));
            for other in &keys {
                let like = alike(key, &answer.noted, other);
                prop_assert_eq!(both.look_up(&like, unseen), answer);
                prop_assert_eq!(both.twin.first_match(&like, unseen), both.number(answer.outcome));
            }
        }
    }

    /// Decisions that no change concerns are still right after the change.
    #[test]
    fn decisions_stay_right_until_a_change_concerns_them(
        rules in rules(1..8),
        members in prop::collection::vec(member(), 0..12),
        changes in prop::collection::vec((member(), 0..4u32, matches(), 0..3u8), 1..8),
        keys in prop::collection::vec(key(), 1..16),
    ) {
        let mut both = Both::new(rules, &members);
        let mut next = 1000;
        let mut remembered = Vec::new();
        for ((set, member), priority, matches, what) in changes {
            for key in &keys {
                let answer = both.look_up(key, Unseen::Nothing);
                prop_assert_eq!(both.number(answer.outcome), both.twin.first_match(key, Unseen::Nothing));
                let standing = match both.number(answer.outcome) {
                    _ if !answer.trials.places().is_empty() => Standing::Several,
                    Ok(number) => number.map_or(Standing::Default, Standing::Rule),
                    Err(()) => Standing::Several,
                };
                // As it is kept, without the bits that do not count.
                let key = key.masked(&answer.noted);
                let outline = Outline::new(&key, &answer.noted, standing);
                remembered.push((key, answer.noted, both.number(answer.outcome), outline));
            }
            let before = Arc::clone(both.lists.get(LIST).unwrap());
            if what == 0 {
                if let Some(change) = both.toggle(set, member) {
                    remembered.retain(|(key, noted, _, outline)| {
                        let is_sought = before.sought(&change).any(|sought| sought.finds(outline));
                        !is_sought || !before.may_concern(&change, key, noted)
                    });
                }
            } else {
                let mut builder = Builder::from_list(before);
                if what == 1 && !both.twin.rules.is_empty() {
                    let rule = both.twin.rules.remove(priority as usize % both.twin.rules.len());
                    prop_assert!(builder.remove(rule.number) && !builder.remove(rule.number));
                }
                let rule = Rule { number: next, priority, matches, verdict: Verdict::Allow, trial: false, log: false };
                next += 1;
                if builder.add(rule.clone()).is_ok() {
                    let place = both.twin.rules.partition_point(|other| other.priority >= priority);
                    both.twin.rules.insert(place, rule);
                }
                let mut compiler = builder.compile();
                compiler.step(2).unwrap();
                let (list, change) = compiler.finish().unwrap();
                prop_assert_eq!(list.rules(), &both.twin.rules[..]);
                // As if there had been no version before.
                let mut builder = Builder::new(Verdict::Drop);
                both.twin.rules.iter().for_each(|rule| builder.add(rule.clone()).unwrap());
                let (fresh, _) = builder.compile().finish().unwrap();
                let sets = both.lists.sets();
                for key in &keys {
                    let of = |list: &RuleList| list.look_up(sets, key, Unseen::Nothing);
                    prop_assert_eq!(of(&list), of(&fresh));
                }
                both.twin.rules.iter().for_each(|rule| assert_eq!(list.place_of(rule.number), fresh.place_of(rule.number)));
                both.lists.put(LIST, list).unwrap();
                remembered.retain(|(key, noted, _, outline)| {
                    !change.may_meet(outline) || !change.may_concern(key, noted)
                });
            }
            for (key, noted, outcome, _) in &remembered {
                prop_assert_eq!(&both.twin.first_match(key, Unseen::Nothing), outcome);
                for other in &keys {
                    let like = alike(key, noted, other);
                    prop_assert_eq!(&both.twin.first_match(&like, Unseen::Nothing), outcome);
                }
            }
        }
    }
}
