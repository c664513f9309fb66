//! Prints times of look-ups and changes: `cargo run --release -p rule-list --example speed-of-rule-lists`.
//!
//! Packets come in random order, so that most of what a look-up reads is in no near cache, as on the first
//! packet of a kind.

use flow::{FlowKey, PortId, Unseen};
use rule_list::{
    Addresses, Builder, IpPrefix, ListId, Match, Member, Ports, Range, Rule, RuleLists, SetId, SetKind,
    Transport, Verdict,
};
use std::collections::HashSet;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

const RULES: u32 = 10_000;
const MEMBERS: u32 = 100_000;
const LIST: ListId = ListId(1);
const SET: SetId = SetId(1);
const TCP: u8 = 6;

/// Makes the rule with a number.
type MakeRule = fn(u32, &mut fastrand::Rng) -> Rule;

fn address(bits: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(bits))
}

fn prefix(bits: u32, len: u8) -> Addresses {
    let address = address(bits & u32::MAX << (32 - len));
    Addresses::Prefix(IpPrefix { address, len })
}

fn member(number: u32) -> Member {
    let address = address(member_bits(number));
    Member::Address(IpPrefix { address, len: 32 })
}

fn member_bits(number: u32) -> u32 {
    0x0a00_0000 | number.wrapping_mul(0x9e37_79b1) >> 8
}

/// An access list of a firewall: prefixes of 16 to 32 bits, protocol and a port or a range of ports.
fn access_rule(number: u32, random: &mut fastrand::Rng) -> Rule {
    let first = random.u16(..60_000);
    let last = if random.bool() {
        first
    } else {
        first + random.u16(..5000)
    };
    let destination = Range { first, last };
    Rule {
        number,
        priority: RULES - number,
        matches: Match {
            ip_src: random
                .bool()
                .then(|| prefix(0x0a00_0000 | random.u32(..1 << 24), random.u8(16..=32))),
            ip_dst: Some(prefix(0x0a00_0000 | random.u32(..1 << 24), random.u8(16..=32))),
            ip_proto: Some(if random.bool() { TCP } else { 17 }),
            transport: Some(Transport::Ports {
                source: Range::ALL,
                destination,
            }),
            ..Match::default()
        },
        verdict: Verdict::Allow,
        trial: false,
        log: false,
    }
}

/// A security group: from the set, or from a port, to one port each.
fn group_rule(number: u32, _: &mut fastrand::Rng) -> Rule {
    Rule {
        number,
        priority: 0,
        matches: Match {
            in_port: number
                .is_multiple_of(2)
                .then_some(Ports::One(PortId(number % 1000))),
            ip_src: Some(Addresses::Set(SET)),
            ip_proto: Some(TCP),
            transport: Some(Transport::Ports {
                source: Range::ALL,
                destination: Range::one(number as u16),
            }),
            ..Match::default()
        },
        verdict: Verdict::Allow,
        trial: false,
        log: false,
    }
}

fn key(random: &mut fastrand::Rng) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(random.u32(..1000));
    key.set_eth_type(0x0800);
    let source = if random.bool() {
        member_bits(random.u32(..MEMBERS))
    } else {
        0x0a00_0000 | random.u32(..1 << 24)
    };
    key.set_ip_src(source.into());
    key.set_ip_dst((0x0a00_0000 | random.u32(..1 << 24)).into());
    key.set_ip_proto(if random.bool() { TCP } else { 17 });
    key.set_tp_src(random.u16(1024..));
    key.set_tp_dst(random.u16(..));
    key
}

/// Time that the thread has had on a processor, which others on the machine change less than time by the
/// clock.
fn on_processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

fn main() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut lists = RuleLists::default();
    lists
        .sets_mut()
        .create(SET, SetKind::Addresses)
        .expect("the set is the first");
    let begin = Instant::now();
    for number in 0..MEMBERS {
        lists
            .sets_mut()
            .insert(SET, member(number))
            .expect("there is room");
    }
    println!(
        "{MEMBERS} members added: {:?} each, {} MiB",
        begin.elapsed() / MEMBERS,
        lists.sets().memory() >> 20
    );
    let kinds: [(&str, MakeRule); 2] = [("an access list", access_rule), ("a security group", group_rule)];
    for (kind, rule) in kinds {
        println!("\n{RULES} rules of {kind}");
        measure(&mut lists, &mut random, rule);
    }
}

fn measure(lists: &mut RuleLists, random: &mut fastrand::Rng, rule: MakeRule) {
    let mut builder = Builder::new(Verdict::Drop);
    for number in 0..RULES {
        builder.add(rule(number, random)).expect("the rule is sound");
    }
    let list = builder
        .compile()
        .finish()
        .expect("the list is within its bounds")
        .0;
    println!("  memory: {} KiB", list.memory() >> 10);
    lists.put(LIST, list).expect("the set is there");

    let keys: Vec<FlowKey> = (0..100_000).map(|_| key(random)).collect();
    let mut kinds = HashSet::new();
    let mut times: Vec<Duration> = Vec::with_capacity(keys.len());
    for key in &keys {
        let begin = Instant::now();
        let answer = lists.look_up(LIST, black_box(key), Unseen::Nothing);
        times.push(begin.elapsed());
        let noted = answer.expect("the list is there").noted;
        kinds.insert((noted, key.masked(&noted)));
    }
    times.sort();
    let [middle, late] = [2, 100].map(|part| times[times.len() - 1 - times.len() / part]);
    println!("  look-up: median {middle:?}, 99th percentile {late:?}");
    println!("  kinds of {} packets: {}", keys.len(), kinds.len());

    let mut wholes = Vec::new();
    let busy = on_processor();
    let mut longest = Duration::ZERO;
    for round in 0..21 {
        let begin = Instant::now();
        let old = Arc::clone(lists.get(LIST).expect("the list is there"));
        let mut builder = Builder::from_list(old);
        builder.remove(round);
        builder
            .add(rule(RULES + round, random))
            .expect("the rule is sound");
        let mut compiler = builder.compile();
        loop {
            let begin = Instant::now();
            let done = compiler.step(256).expect("the list is within its bounds");
            longest = longest.max(begin.elapsed());
            if done {
                break;
            }
        }
        let list = compiler.finish().expect("the list is within its bounds").0;
        lists.put(LIST, list).expect("the set is there");
        wholes.push(begin.elapsed());
    }
    let busy = (on_processor() - busy) / wholes.len() as u32;
    wholes.sort();
    println!(
        "  change of one rule: mean {busy:?} of processor time, median {:?}; longest step of 256 rules {longest:?}",
        wholes[10]
    );

    let decisions: Vec<_> = keys
        .iter()
        .map(|key| {
            lists
                .look_up(LIST, key, Unseen::Nothing)
                .expect("the list is there")
                .noted
        })
        .collect();
    let list = Arc::clone(lists.get(LIST).expect("the list is there"));
    let mut ended = 0;
    for number in 0..100 {
        let change = lists.sets_mut().take_out(SET, member(number));
        let change = change.expect("the set is there").expect("it is a member");
        let concerned = keys
            .iter()
            .zip(&decisions)
            .filter(|(key, noted)| list.may_concern(&change, key, noted));
        ended += concerned.count();
        lists
            .sets_mut()
            .insert(SET, member(number))
            .expect("there is room");
    }
    println!(
        "  change of a member: {} of {} decisions end",
        ended as f64 / 100.0,
        keys.len()
    );
}
