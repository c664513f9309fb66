//! What changes of rules and sets end, and how long that takes, with many decisions and members.

#![allow(clippy::unwrap_used, reason = "tests")]

use classifier::{Decision, Ending, Hint, MegaflowTable, PortFlows, Rules, Shape, Walker};
use flow::{
    Action, Context, ControllerId, Filter, Filters, Flow, FlowId, FlowKey, FlowMask, ListId, PortId, SwitchId,
};
use rule_list::{
    Addresses, Builder, IpPrefix, Match, Member, Range, Rule, SetId, SetKind, Transport, Verdict,
};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const OWNER: ControllerId = ControllerId(0);
const LIST: ListId = ListId(1);
const SET: SetId = SetId(1);

/// Addresses that are spread, each one once.
fn address(number: u32) -> u32 {
    number.wrapping_mul(0x9e37_79b1)
}

fn member(address: u32, len: u8) -> Member {
    let address = Ipv4Addr::from_bits(address & u32::MAX << (32 - len)).into();
    Member::Address(IpPrefix { address, len })
}

/// TCP from a source to a port.
fn key(source: u32, port: u16) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(1);
    key.set_eth_dst(2);
    key.set_eth_type(0x0800);
    key.set_ip_proto(6);
    key.set_ip_src(source.into());
    key.set_tp_dst(port);
    key
}

/// Rules that drop a port each for members of the set, before one that lets members pass.
fn list(others: u32) -> Builder {
    let rule = |number, port: Option<Transport>| {
        let matches = Match {
            ip_src: Some(Addresses::Set(SET)),
            ip_proto: Some(6),
            transport: port,
            ..Match::default()
        };
        let verdict = if port.is_some() {
            Verdict::Drop
        } else {
            Verdict::Allow
        };
        rule(number, others - number, matches, verdict)
    };
    let mut builder = Builder::new(Verdict::Drop);
    for number in 0..others {
        let (source, port) = (Range::ALL, Range::one(50_000 + number as u16));
        let destination = Transport::Ports {
            source,
            destination: port,
        };
        builder.add(rule(number, Some(destination))).unwrap();
    }
    builder.add(rule(others, None)).unwrap();
    builder
}

/// Rules as firewalls have them, of which none decides about a connection to a low port, before one that lets
/// members pass.
fn firewall(others: u32) -> Builder {
    let mut random = fastrand::Rng::with_seed(1);
    let mut builder = Builder::new(Verdict::Drop);
    for number in 0..others {
        let mut network = || {
            let len = random.u8(16..=32);
            let address = Ipv4Addr::from_bits(address(random.u32(..)) & u32::MAX << (32 - len)).into();
            Some(Addresses::Prefix(IpPrefix { address, len }))
        };
        let (ip_src, ip_dst) = (network(), network());
        let first = random.u16(30_000..60_000);
        let last = first + if random.bool() { 0 } else { random.u16(..5000) };
        let matches = Match {
            ip_src: ip_src.filter(|_| number.is_multiple_of(2)),
            ip_dst,
            ip_proto: Some(6),
            transport: Some(Transport::Ports {
                source: Range::ALL,
                destination: Range { first, last },
            }),
            ..Match::default()
        };
        builder.add(rule(number, 1, matches, Verdict::Drop)).unwrap();
    }
    let members = Match {
        ip_src: Some(Addresses::Set(SET)),
        ..Match::default()
    };
    builder.add(rule(others, 0, members, Verdict::Allow)).unwrap();
    builder
}

fn rule(number: u32, priority: u32, matches: Match, verdict: Verdict) -> Rule {
    Rule {
        number,
        priority,
        matches,
        verdict,
        trial: false,
        log: false,
    }
}

/// Two ports, of which the second has the list for what comes to it.
struct Setup {
    rules: Arc<Rules>,
    table: MegaflowTable,
    flows: PortFlows,
    walker: Walker,
}

impl Setup {
    fn new(members: u32, others: u32) -> Setup {
        Setup::with_list(members, list(others))
    }

    fn with_list(members: u32, list: Builder) -> Setup {
        let rules = Arc::<Rules>::default();
        rules.create_set(OWNER, SET, SetKind::Addresses).unwrap();
        let all: Vec<_> = (0..members).map(|number| member(address(number), 32)).collect();
        for some in all.chunks(1000) {
            rules.change_set(OWNER, SET, &[], some).unwrap().finish();
        }
        let (made, _) = list.compile().finish().unwrap();
        rules.put(LIST, made, 0, None).unwrap().finish();
        let mut table = MegaflowTable::with_rules(2000, 10, rules.clone());
        let mut mask = FlowMask::ANY;
        mask.0.set_in_port(u32::MAX);
        mask.0.set_eth_dst(u64::MAX);
        let actions = vec![Action::Output(PortId(2))];
        table
            .insert(Flow::new(FlowId(1), SwitchId(1), key(0, 0), mask, actions))
            .unwrap();
        let mut filters = Filters::default();
        filters.egress[2] = Filter::Rules(LIST);
        table.set_filters(PortId(2), filters);
        Setup {
            flows: table.port(PortId(1)),
            rules,
            table,
            walker: Walker::default(),
        }
    }

    fn decide(&mut self, key: &FlowKey) -> Arc<Decision> {
        let reading = self.flows.read();
        let walked = reading.walk(Hint::default(), key, &Context::NONE, &mut self.walker);
        walked.decision().expect("a composed walk").clone()
    }

    /// Whether packets with this key pass.
    fn passes(&mut self, key: &FlowKey) -> bool {
        self.decide(key).shape == Shape::Plain(PortId(2))
    }

    /// Decisions about that many connections, whose sources are members.
    fn connections(&mut self, count: u32) -> Vec<Arc<Decision>> {
        (0..count)
            .map(|number| self.decide(&key(address(number), 80)))
            .collect()
    }

    fn toggle(&self, member: Member, comes: bool) -> Ending {
        let (remove, add) = if comes {
            (vec![], vec![member])
        } else {
            (vec![member], vec![])
        };
        self.rules.change_set(OWNER, SET, &remove, &add).unwrap()
    }

    /// One rule more, or one less.
    fn change_rule(&self, number: u32, comes: bool) -> Ending {
        if comes {
            let matches = Match {
                ip_proto: Some(6),
                transport: Some(Transport::Ports {
                    source: Range::ALL,
                    destination: Range::one(60_000),
                }),
                ..Match::default()
            };
            return self.add_rule(number, u32::MAX, matches);
        }
        self.change_list(|builder| assert!(builder.remove(number)))
    }

    /// A rule more, which drops.
    fn add_rule(&self, number: u32, priority: u32, matches: Match) -> Ending {
        let rule = rule(number, priority, matches, Verdict::Drop);
        self.change_list(|builder| builder.add(rule).unwrap())
    }

    fn change_list(&self, change: impl FnOnce(&mut Builder)) -> Ending {
        let mut builder = Builder::from_list(self.rules.get(LIST).unwrap());
        change(&mut builder);
        let (made, change) = builder.compile().finish().unwrap();
        self.rules.put(LIST, made, 0, Some(change)).unwrap()
    }
}

fn live(decisions: &[Arc<Decision>]) -> usize {
    decisions.iter().filter(|decision| decision.is_live()).count()
}

/// Does all steps. Returns how long the longest one took.
fn finish(mut ending: Ending) -> Duration {
    let mut longest = Duration::ZERO;
    loop {
        let begin = Instant::now();
        let goes_on = ending.step();
        longest = longest.max(begin.elapsed());
        if !goes_on {
            return longest;
        }
    }
}

#[test]
fn a_change_of_one_member_ends_few_decisions_of_many() {
    const COUNT: u32 = 20_000;
    let mut all = Setup::new(COUNT, 3);
    let connections = all.connections(COUNT);
    assert_eq!(live(&connections), COUNT as usize);
    for (member, comes) in [
        (member(address(7), 32), false),
        (member(0x0102_0304, 32), true),
        (member(address(9), 24), true),
    ] {
        let before = live(&connections);
        all.toggle(member, comes).finish();
        let lost = before - live(&connections);
        assert!(lost <= COUNT as usize / 50, "{lost} for {member:?}");
    }
    assert!(!connections[7].is_live() && !all.passes(&key(address(7), 80)));
    assert!(!connections[9].is_live() && all.passes(&key(address(9) ^ 1, 80)));
}

/// As many as were exchanged may be concerned, and no others.
#[test]
fn an_exchange_of_many_members_ends_their_decisions_alone() {
    const COUNT: u32 = 2000;
    let mut all = Setup::new(COUNT, 3);
    let connections = all.connections(COUNT);
    let leave: Vec<_> = (0..300).map(|number| member(address(number), 32)).collect();
    all.rules.change_set(OWNER, SET, &leave, &[]).unwrap().finish();
    assert_eq!(live(&connections[..300]), 0);
    assert!(live(&connections) > COUNT as usize - 400);
}

#[test]
fn a_change_of_one_rule_ends_the_decisions_that_it_may_concern() {
    let mut all = Setup::new(100, 3);
    let others = all.connections(100);
    let concerned: Vec<_> = (0..100)
        .map(|number| all.decide(&key(address(number), 60_000)))
        .collect();
    all.change_rule(100, true).finish();
    assert_eq!((live(&concerned), live(&others)), (0, 100));
    assert!(!all.passes(&key(address(1), 60_000)) && all.passes(&key(address(1), 80)));
    all.change_rule(100, false).finish();
    assert!(all.passes(&key(address(1), 60_000)));
}

/// A rule that decided about no packet goes, although packets fulfil its conditions.
#[test]
fn a_rule_that_goes_ends_the_decisions_that_stood_on_it() {
    let mut all = Setup::new(100, 3);
    // Behind the one that lets members pass.
    let twice = Match {
        ip_src: Some(Addresses::Set(SET)),
        ..Match::default()
    };
    all.add_rule(7, 0, twice).finish();
    let members = all.connections(100);
    all.change_rule(7, false).finish();
    assert_eq!(live(&members), 100);
    all.change_rule(3, false).finish();
    assert_eq!(live(&members), 0);
    assert!(!all.passes(&key(address(1), 80)));
}

/// What is looked at is in a vector, of which nothing is seen but the memory that it takes.
#[test]
fn a_change_of_a_rule_or_a_network_looks_at_few_decisions_of_many() {
    const COUNT: u32 = 20_000;
    let mut all = Setup::new(COUNT, 3);
    let connections = all.connections(COUNT);
    let taken = |what: &str, ending: Ending| {
        let bytes = allocation_counter::measure(|| ending.finish()).bytes_total;
        assert!(bytes < 4 * u64::from(COUNT), "{what}: {bytes} bytes");
    };
    taken("a rule comes", all.change_rule(100, true));
    taken("it goes", all.change_rule(100, false));
    taken("a network comes", all.toggle(member(0x0102_0000, 20), true));
    taken("it goes", all.toggle(member(0x0102_0000, 20), false));
    assert!(live(&connections) > COUNT as usize * 49 / 50);
}

/// Decisions that stand on an ingress list alone, since it drops the packets.
#[test]
fn a_port_without_its_list_has_no_decisions_of_the_list() {
    let mut all = Setup::new(1, 3);
    let mut filters = Filters::default();
    filters.ingress[2] = Filter::Rules(LIST);
    all.table.set_filters(PortId(1), filters);
    let dropped: Vec<_> = (1..500)
        .map(|number| all.decide(&key(address(number), 80)))
        .collect();
    assert!(
        dropped
            .iter()
            .all(|decision| decision.shape == Shape::Run && decision.is_live())
    );
    all.table.set_filters(PortId(1), Filters::default());
    assert_eq!(live(&dropped), 0);
}

/// A guest makes as many kinds of packets as it can, and nobody keeps what was decided about them.
#[test]
fn kinds_of_packets_that_are_gone_take_no_memory() {
    let mut all = Setup::new(1000, 1000);
    let mut kinds = |from: u32| {
        for number in from..from + 5000 {
            all.decide(&key(address(number % 2000), number as u16));
            if number.is_multiple_of(50) {
                all.toggle(member(address(number), 32), true).finish();
                all.toggle(member(address(number), 32), false).finish();
            }
        }
    };
    kinds(10_000);
    let grown = allocation_counter::measure(|| kinds(20_000)).bytes_current;
    assert!(grown < 64 * 1024, "{grown} bytes");
}

/// `cargo test --release -p classifier --test rule_changes -- --ignored --nocapture`
#[test]
#[ignore = "measures"]
fn speed_of_changes() {
    const COUNT: u32 = 100_000;
    let mut all = Setup::with_list(COUNT, firewall(10_000));
    let begin = Instant::now();
    let mut connections = all.connections(COUNT);
    let ns = begin.elapsed().as_nanos() / u128::from(COUNT);
    println!("a walk under 10,001 rules, with a new decision: {ns} ns");
    let mut measure = |what: &str, all: &Setup, change: &dyn Fn(&Setup, u32) -> Ending, often: u32| {
        let (before, begin) = (live(&connections), Instant::now());
        let longest = (0..often).map(|round| finish(change(all, round))).max().unwrap();
        let each = begin.elapsed() / often;
        let lost = before - live(&connections);
        println!("{what}: {each:?} each, longest step {longest:?}, {lost} decisions lost in {often}");
        connections.retain(|decision| decision.is_live());
    };
    let other =
        |all: &Setup, round: u32| all.toggle(member(address(COUNT + round / 2), 32), round.is_multiple_of(2));
    measure("a member comes or goes", &all, &other, 1000);
    let network =
        |all: &Setup, round: u32| all.toggle(member(address(COUNT + round / 2), 20), round.is_multiple_of(2));
    measure("a network comes or goes", &all, &network, 10);
    let rule = |all: &Setup, round: u32| all.change_rule(20_000 + round / 2, round.is_multiple_of(2));
    measure("a rule comes or goes", &all, &rule, 10);
    let exchange = |all: &Setup, round: u32| {
        let some = |from: u32| {
            (from..from + 100)
                .map(|n| member(address(COUNT + n), 32))
                .collect::<Vec<_>>()
        };
        let (leave, come) = (some(round * 100), some(round * 100 + 100));
        all.rules.change_set(OWNER, SET, &leave, &come).unwrap()
    };
    measure("100 members are exchanged", &all, &exchange, 100);
    let begin = Instant::now();
    drop(connections);
    println!(
        "decisions are dropped: {} ns each",
        begin.elapsed().as_nanos() / u128::from(COUNT)
    );
}

/// The longest of the walks that a thread does one after the other while `change` is made, and how long that
/// takes.
fn longest_walk(flows: &PortFlows, change: impl FnOnce()) -> (Duration, Duration) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let walking = scope.spawn(|| {
            let (mut walker, mut longest) = (Walker::default(), Duration::ZERO);
            for number in (0..).take_while(|_| !done.load(Ordering::Relaxed)) {
                let key = key(address(number % 1000), 80);
                let begin = Instant::now();
                let reading = flows.read();
                let walked = reading.walk(Hint::default(), &key, &Context::NONE, &mut walker);
                drop(walked);
                drop(reading);
                longest = longest.max(begin.elapsed());
            }
            longest
        });
        let begin = Instant::now();
        change();
        let elapsed = begin.elapsed();
        done.store(true, Ordering::Relaxed);
        (walking.join().unwrap(), elapsed)
    })
}

/// What a thread that looks up waits for is locks that changes hold. The threads need a core each.
///
/// `cargo test --release -p classifier --test rule_changes -- --ignored --nocapture`
#[test]
#[ignore = "measures"]
fn longest_stop_while_a_policy_is_applied_to_many_ports() {
    const PORTS: u32 = 1000;
    let Setup { mut table, flows, .. } = Setup::with_list(1000, firewall(1000));
    let mut mask = FlowMask::ANY;
    mask.0.set_in_port(u32::MAX);
    mask.0.set_eth_dst(u64::MAX);
    for port in 3..PORTS + 3 {
        let mut key = key(0, 0);
        key.set_in_port(port);
        key.set_eth_dst((port - 1).into());
        let actions = vec![Action::Output(PortId(port - 1))];
        let flow = Flow::new(FlowId(port.into()), SwitchId(1), key, mask, actions);
        table.insert(flow).unwrap();
    }
    let mut filters = Filters::default();
    (filters.ingress[2], filters.egress[2]) = (Filter::Rules(LIST), Filter::Rules(LIST));
    for round in 0..5 {
        for (what, filters) in [("comes", filters), ("goes", Filters::default())] {
            let (longest, elapsed) = longest_walk(&flows, || {
                (3..PORTS + 3).for_each(|port| table.set_filters(PortId(port), filters));
            });
            let (usual, _) = longest_walk(&flows, || std::thread::sleep(elapsed));
            println!("{round}: a policy {what} in {elapsed:?}; longest walk {longest:?}, without {usual:?}");
        }
    }
}
